"""The built-in rules as a GovernanceClient, for work that is verified without a contract."""

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

import msgspec

from meruit.governance.evaluate import PreparedRule, apply_rules, prepare_rules
from meruit.governance.metadata import TELLING
from meruit.model.canonical import digest
from meruit.model.governance import (
    ALL_CLEAR,
    Action,
    Disposition,
    Dossier,
    Flag,
    GovernanceClient,
    GovernanceResult,
    LocalGovernance,
    Policy,
)
from meruit.model.kinds import SHARES, YES_OR_NO, MetricType
from meruit.model.verdict import VerificationResult
from meruit.model.work import Work

_COPY, _REFERENCE = "reference_copy", "reference"
RESEMBLANCE = frozenset({_COPY, "replayed_output", "sybil_output"})
"""Rules that hold a payment because an output equals another text.

Without a contract there is no payment to hold, a perfect answer may well be the reference, and test sets repeat
answers: so these only flag.
"""
OURS = "meruit.governance.flags."


class RuleGovernance(LocalGovernance):
    """Apply the rules that need no history, in this process; with `remote`, ask that service as well."""

    def __init__(
        self,
        policy: Policy = Policy(),  # noqa: B008 - frozen
        remote: GovernanceClient | None = None,
    ) -> None:
        self.policy = policy
        self.remote = remote
        rules = prepare_rules(policy)
        self._rules = tuple(one for one in rules if not one.rule.needs_history)
        self._of_history = tuple(one for one in rules if one.rule.needs_history)
        self.version = rules_version(self._rules)
        self._copy = next((one for one in self._rules if one.rule.name == _COPY), None)
        # A rule of another package, or a limit of the operator's own, may find something anywhere.
        self._usual = not policy.limits and all(
            getattr(one.rule.judge, "__module__", "").startswith(OURS) for one in self._rules
        )

    def is_clear(self, work: Work, result: VerificationResult) -> bool:
        """Whether our rules cannot find anything."""
        return self._usual and is_unremarkable(work, result) and not self._is_copy(work)

    def check(self, work: Work, result: VerificationResult) -> GovernanceResult:
        """Apply the rules to judged work."""
        # An output that is not JSON may have no end, so it is not compared as it is.
        if (result.output_digest is not None or _REFERENCE not in work.input) and self.is_clear(work, result):
            return ALL_CLEAR
        return flag_resemblance(apply_rules(self._rules, verification_dossier(work, result)))

    def _is_copy(self, work: Work) -> bool:
        """Whether the output would be flagged as a copy of the reference."""
        if self._copy is None or _REFERENCE not in work.input:
            return False
        # Loaded where there is a reference, as the dossier itself is.
        from meruit.governance.dossier import reaches_similarity

        least = self._copy.limits
        return reaches_similarity(
            work.output,
            work.input[_REFERENCE],
            similarity_min=least["similarity_min"],
            chars_min=least["chars_min"],
        )

    def check_history(self, dossier: Dossier) -> GovernanceResult:
        """Apply the rules that compare with earlier outcomes, to a dossier that holds them."""
        return flag_resemblance(apply_rules(self._of_history, dossier))

    async def validate_outcome(
        self, *, contract_id: str, claimed_metrics: Mapping[str, Any], execution_context: Mapping[str, Any]
    ) -> GovernanceResult:
        """Apply the rules to what a caller knows about an outcome."""
        from meruit.governance.dossier import dossier_from_context

        return apply_rules(self._rules, dossier_from_context(contract_id, claimed_metrics, execution_context))


def is_unremarkable(work: Work, result: VerificationResult) -> bool:
    """Whether our rules can find nothing but a copy: there is nothing to compare, and each number is possible.

    Most work is so, and then costs next to nothing.
    """
    if not TELLING.isdisjoint(work.metadata):
        return False
    if not _is_possible(work.metadata.get("duration_ms"), inf):
        return False
    for judged in result.criterion_results:
        most = 1 if judged.natural in SHARES or judged.natural in YES_OR_NO else inf
        if not _is_possible(judged.value, most) or (
            judged.natural is MetricType.BOOLEAN and judged.value not in (0, 1)
        ):
            return False
    return True


# Any: metadata is any JSON.
def _is_possible(value: Any, most: float) -> bool:
    """Whether it is not a number, or one that no rule can object to; others are left to the rules."""
    if value.__class__ is float or value.__class__ is int:
        return 0 <= value < inf and value <= most
    return value is None or value.__class__ is bool or value.__class__ is str


def rules_version(rules: Iterable[PreparedRule]) -> str:
    """A digest of the rules and their limits: equal where equal work gets equal flags."""
    return digest({one.rule.name: [one.rule.version, {**one.limits}] for one in rules})[:16]


def verification_dossier(work: Work, result: VerificationResult, agent_id: str | None = None) -> Dossier:
    """The dossier of work that is verified without a contract: nothing planted, no terms."""
    # Most work is unremarkable, and needs no dossier, which takes a moment to load.
    from meruit.governance.dossier import CheatTraps, OutcomeIdentity, dossier_of

    if result.output_digest is None:
        # What is not JSON may contain itself, and so has no end.
        text = work.output.get("text")
        work = Work(output={"text": text} if isinstance(text, str) else {}, input=work.input, metadata=work.metadata)
    about = OutcomeIdentity(contract_id=result.contract_id, work_id=None, agent_id=agent_id, consumer_id=None)
    # Whether claims may earn a bonus is for the terms of a contract to say.
    return dossier_of(about, work, result, CheatTraps(), claimed_may_earn=True)


def flag_resemblance(result: GovernanceResult) -> GovernanceResult:
    """The answer, in which an output that equals another text is flagged and not held."""
    if result.disposition is Disposition.CLEAR:
        return result
    softened = [
        msgspec.structs.replace(flag, action=Action.FLAG)
        if isinstance(flag, Flag) and flag.rule in RESEMBLANCE
        else flag
        for flag in result.flags
    ]
    answer = GovernanceResult(valid=True, flags=softened, confidence=result.confidence)
    return msgspec.structs.replace(
        answer, valid=answer.conclusion is not Disposition.INVALID, disposition=answer.conclusion
    )
