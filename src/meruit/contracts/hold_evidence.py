"""Explain why a contract waits for a person: who stopped it and when, each reason, and what the reason rests on."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from typing import Any

import msgspec

from meruit.contracts.payment_decision import HoldCode, HoldReason, deciding_judges
from meruit.model.contract import Contract, Escrow, Terms
from meruit.model.governance import Disposition, Flag, GovernanceCheck, disposition_of
from meruit.model.money import ContractTokenUse, JudgeStanding
from meruit.model.numbers import in_units
from meruit.model.record import Record
from meruit.model.verdict import CriterionResult, Status, VerificationResult
from meruit.registry import flags as governance_rules

DISPUTED = "disputed"
"""The code of the reason of a dispute, beside those of HoldCode."""
EXCERPT_CHARS = 200
"""How much of a reference is shown."""


class HoldKind(StrEnum):
    """What a contract waits for."""

    HELD = "held"
    """A release or a void, or tokens that are still being verified."""
    DISPUTED = "disputed"
    """A decision on a dispute."""


class HoldEvidence(Record, frozen=True):
    """One reason, and what it rests on."""

    code: str
    """As in the list of holds, or `disputed`."""
    message: str
    about: list[str] = msgspec.field(default_factory=list)
    """Ids and names: a rule of governance, a criterion, a run, a contract."""
    # Any: numbers, names, times and amounts, by what they are called.
    evidence: dict[str, Any] = msgspec.field(default_factory=dict)


class HoldView(Record, frozen=True):
    """Why a contract waits for a person, since when, and who stopped it."""

    kind: HoldKind
    reason: str
    by: str | None
    """Who disputed it, or reversed its payment; None where the service itself holds it."""
    since: datetime
    reasons: list[HoldEvidence] | None = None
    """Every reason with its evidence; only where one contract is read."""


class HoldFacts(msgspec.Struct, frozen=True):
    """What is recorded about a contract that waits."""

    contract: Contract
    result: VerificationResult | None
    check: GovernanceCheck | None
    """What governance went by; None where it was not asked, or was erased."""
    usage: tuple[ContractTokenUse, ...] = ()
    judges: tuple[JudgeStanding, ...] = ()
    terms: Terms = Terms()
    # Any: an input is any JSON.
    work_input: Mapping[str, Any] = {}
    canaries: tuple[str, ...] = ()


def explain_dispute(hold: HoldView, contract: Contract) -> HoldEvidence:
    """The dispute of a contract, and the money that it is about."""
    paid = contract.escrow is Escrow.PAID
    evidence = {
        "by": hold.by,
        "at": hold.since.isoformat(),
        "state_before": str(contract.disputed_from),
        "paid" if paid else "held": in_units(contract.total_micros if paid else contract.hold_micros),
        "currency": contract.currency,
    }
    return HoldEvidence(DISPUTED, hold.reason, [] if hold.by is None else [hold.by], evidence)


def explain_reason(reason: HoldReason, facts: HoldFacts) -> Iterator[HoldEvidence]:
    """A reason with its evidence, one entry for each rule, criterion or run that it is about."""
    code, about = str(reason.code), [*reason.about]
    match reason.code:
        case HoldCode.GOVERNANCE:
            found = [*_explain_flags(facts)]
            yield from found or [HoldEvidence(code, reason.message, about)]
        case HoldCode.UNMEASURED | HoldCode.ONLY_CLAIMED:
            for judged in _results_of(facts.result, reason.about):
                yield HoldEvidence(code, judged.error or reason.message, [judged.criterion_id], _describe(judged))
        case HoldCode.JUDGE_UNCALIBRATED:
            yield HoldEvidence(code, reason.message, about, _describe_judge(reason.about[0], facts))
        case HoldCode.INCONCLUSIVE:
            yield HoldEvidence(code, reason.message, about, _describe_bounds(facts.result))
        case HoldCode.USAGE_UNVERIFIED | HoldCode.USAGE_NOT_PAYABLE | HoldCode.PRICE_UNKNOWN:
            runs = [_describe_use(use) for use in facts.usage if use.run_id in reason.about]
            yield HoldEvidence(code, reason.message, about, runs[0] if runs else {})
        case HoldCode.DUPLICATE_CLAIM:
            yield HoldEvidence(code, reason.message, about, {"contract_id": reason.about[0]})
        case HoldCode.OTHER_CRITERIA | HoldCode.ALREADY_SETTLED:
            yield HoldEvidence(code, reason.message, about, {"version": int(reason.about[0])})
        case (
            HoldCode.ERASED
            | HoldCode.USAGE_MISSING
            | HoldCode.RULE_FAILED
            | HoldCode.RUN_MISSING
            | HoldCode.RECORD_TAMPERED
        ):
            yield HoldEvidence(code, reason.message, about)


def _explain_flags(facts: HoldFacts) -> Iterator[HoldEvidence]:
    """The flags that stop the payment, each with what its rule found."""
    if facts.check is None:
        return
    for flag in facts.check.result.flags:
        if not isinstance(flag, Flag):
            yield HoldEvidence(str(HoldCode.GOVERNANCE), flag, [flag], {"source": "remote governance"})
        elif disposition_of(flag.action) is not Disposition.CLEAR:
            rule = governance_rules.find(flag.rule.partition(":")[0])
            summary = flag.rule if rule is None else rule.summary
            about = [flag.rule] if flag.metric is None else [flag.rule, flag.metric]
            evidence = {"action": str(flag.action), **_readable(flag.evidence), **_sources(flag, facts)}
            yield HoldEvidence(str(HoldCode.GOVERNANCE), summary, about, evidence)


def _readable(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """The evidence, with times as text instead of seconds since 1970."""
    return {name: _moment(value) if name.endswith("_at") else value for name, value in evidence.items()}


def _moment(value: Any) -> Any:
    try:
        return datetime.fromtimestamp(value, UTC).isoformat()
    except (TypeError, ValueError, OverflowError, OSError):
        return value


def _sources(flag: Flag, facts: HoldFacts) -> dict[str, Any]:
    """What of the work a flag is about: the reference that was copied, the canaries that were quoted."""
    if flag.rule == "reference_copy" and isinstance(reference := facts.work_input.get("reference"), str):
        return {
            "work_id": facts.contract.work_id,
            "reference": reference[:EXCERPT_CHARS] + ("…" if len(reference) > EXCERPT_CHARS else ""),
            "reference_sha256": _sha256(reference),
        }
    if flag.rule == "canary_leak":
        leaked = flag.evidence.get("leaked", ())
        return {"canaries": [canary for canary in facts.canaries if _sha256(canary) in leaked]}
    return {}


def _sha256(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _results_of(result: VerificationResult | None, ids: tuple[str, ...]) -> list[CriterionResult]:
    return [] if result is None else [one for one in result.criterion_results if one.criterion_id in ids]


def _describe(judged: CriterionResult) -> dict[str, Any]:
    """A criterion by which money is not decided yet; what is not known is left out."""
    known = {
        "metric": judged.metric,
        # Beside its threshold, so on the threshold's scale.
        "value": judged.value_on_scale,
        "comparison": judged.comparison,
        "threshold": judged.threshold,
        "scale": judged.scale,
        "cause": judged.cause,
        "fault": judged.fault if judged.status is Status.INDETERMINATE else None,
        "provenance": judged.provenance,
        "bonus": judged.bonus,
        "penalty": judged.penalty,
    }
    return {name: value for name, value in known.items() if value is not None}


def _describe_judge(criterion: str, facts: HoldFacts) -> dict[str, Any]:
    """The judge of a criterion, and what is known of it beside what the terms ask for."""
    judges = {} if facts.result is None else deciding_judges(facts.result)
    judge, version = judges.get(criterion, ("", ""))
    standing = next((one for one in facts.judges if one.version == version), JudgeStanding(judge, version, 0))
    known = {**standing.to_dict(), "min_labels": facts.terms.labels_asked_for, "min_kappa": facts.terms.min_kappa}
    return {name: value for name, value in known.items() if value is not None}


def _describe_bounds(result: VerificationResult | None) -> dict[str, Any]:
    if result is None:
        return {}
    low, high = result.bounds
    missing = [one.criterion_id for one in result.criterion_results if one.status is Status.INDETERMINATE]
    return {"verdict": str(result.verdict), "score_low": low, "score_high": high, "not_measured": missing}


def _describe_use(use: ContractTokenUse) -> dict[str, Any]:
    return {"run_id": use.run_id, "status": str(use.status), "observations": use.observations, "why": use.why}
