"""Decide whether a contract may be paid, and if not, why not.

Every way to pay asks `decide_payment`: completing a contract, settling it, releasing it, and following the tokens that
it is paid by. It goes by facts alone: no database, no clock.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from meruit.contracts.bill import bill, chargeable_criteria
from meruit.contracts.token_terms import price_of, why_price_unknown
from meruit.errors import RuleFailed, UnknownName
from meruit.model.contract import BonusOnFailure, Terms
from meruit.model.criterion import SuccessCriteria
from meruit.model.evidence import Provenance
from meruit.model.kinds import Aggregation
from meruit.model.money import Bill, ContractTokenUse, JudgeStanding
from meruit.model.numbers import exact
from meruit.model.usage import UsageStatus
from meruit.model.verdict import BELIEVED, GovernanceStatus, Status, Verdict, VerificationResult
from meruit.model.vote import read_judge_evidence

CONCLUSIVE = frozenset({Verdict.PASS, Verdict.PARTIAL, Verdict.FAIL})
PAYABLE = BELIEVED | {GovernanceStatus.NOT_CHECKED}
DUPLICATE_FLAG = "duplicate_claim"
"""The governance flag of an output whose run was paid under another contract."""


class HoldCode(StrEnum):
    """Why a contract is not paid; the values never change."""

    ERASED = "erased"
    """The result was erased."""
    OTHER_CRITERIA = "other_criteria"
    """The latest verdict was not reached by the criteria of the contract."""
    GOVERNANCE = "governance"
    """Governance asks for a review, or rejects the outcome."""
    INCONCLUSIVE = "inconclusive"
    """The verdict is neither pass, partial nor fail."""
    UNMEASURED = "unmeasured"
    """A bonus or penalty depends on a criterion that was not measured."""
    ONLY_CLAIMED = "only_claimed"
    """A penalty or success depends on what only the agent says."""
    JUDGE_UNCALIBRATED = "judge_uncalibrated"
    """The terms ask for a calibrated judge, and people's labels do not show that this one is."""
    RUN_MISSING = "run_missing"
    """The terms pay per run, and the work names no run."""
    USAGE_MISSING = "usage_missing"
    """The terms price tokens, and no run names the contract."""
    USAGE_UNVERIFIED = "usage_unverified"
    """The tokens of a run are not verified."""
    USAGE_NOT_PAYABLE = "usage_not_payable"
    """The tokens of a run are verified by observations that are not good enough to pay by."""
    PRICE_UNKNOWN = "price_unknown"
    """The tokens of a run have no known price."""
    DUPLICATE_CLAIM = "duplicate_claim"
    """Another contract was paid for the same run, and governance has not flagged it."""
    ALREADY_SETTLED = "already_settled"
    """A person reversed the settlement of this verdict; it takes a later one."""
    RULE_FAILED = "rule_failed"
    """A settlement rule failed or is not installed."""
    RECORD_TAMPERED = "record_tampered"
    """A record that the payment rests on is not what the audit log commits to."""


REVIEW = frozenset(
    {
        HoldCode.GOVERNANCE,
        HoldCode.INCONCLUSIVE,
        HoldCode.UNMEASURED,
        HoldCode.ONLY_CLAIMED,
        HoldCode.JUDGE_UNCALIBRATED,
        HoldCode.RUN_MISSING,
    }
)
"""What a person may overrule by a release."""
USAGE = frozenset(
    {HoldCode.USAGE_MISSING, HoldCode.USAGE_UNVERIFIED, HoldCode.USAGE_NOT_PAYABLE, HoldCode.PRICE_UNKNOWN}
)
"""What ends by itself once the tokens are verified and priced; a release does not overrule it."""


@dataclass(frozen=True, slots=True)
class HoldReason:
    """One reason not to pay yet."""

    code: HoldCode
    message: str
    about: tuple[str, ...] = ()
    """Ids and names that it is about: flags, criteria, a run, a contract."""


ERASED = HoldReason(HoldCode.ERASED, "the result that it was judged by was erased")


@dataclass(frozen=True, slots=True)
class Pay:
    """The contract may be paid, by this bill."""

    bill: Bill


@dataclass(frozen=True, slots=True)
class Hold:
    """The contract must not be paid yet."""

    reasons: tuple[HoldReason, ...]
    """At least one; the first is the one to show."""

    @property
    def message(self) -> str:
        """The reason to show."""
        return self.reasons[0].message

    @property
    def needs_person(self) -> bool:
        """Whether it stays held until a person acts, even when its tokens change."""
        lasting = REVIEW | {HoldCode.ALREADY_SETTLED, HoldCode.RECORD_TAMPERED}
        return any(reason.code in lasting for reason in self.reasons)


@dataclass(frozen=True, slots=True)
class PaymentFacts:
    """Everything that decides whether a contract may be paid."""

    terms: Terms
    escrow_micros: int
    result: VerificationResult | None
    """The latest verdict; None once it was erased."""
    version: int
    """Of the latest verdict."""
    criteria: SuccessCriteria | None
    """The criteria of the contract; None for work that is paid for completion alone."""
    criteria_digest: str | None
    """Of the criteria of the contract."""
    usage: tuple[ContractTokenUse, ...] = ()
    """The tokens of the runs that name the contract; empty where the terms do not price tokens."""
    judges: tuple[JudgeStanding, ...] = ()
    """The judges that decided a criterion; empty where the terms do not ask for calibrated ones."""
    paid_under: str | None = None
    """Another contract that was paid for the same run."""
    settled_version: int = 0
    """The last version of the verdict that was paid by, though it may be reversed; 0 before the first."""
    reversed_by_usage: bool = False
    """Whether that settlement was reversed only because its tokens were no longer verified."""
    has_run: bool = True
    """Whether the work names its run."""
    released: bool = False
    """Whether a person releases it, who overrules what asks for a review."""
    tampered: str | None = None
    """What contradicts the audit log; it cannot be overruled."""


def decide_payment(facts: PaymentFacts) -> Pay | Hold:
    """Pay by the terms' bill, or hold for the reasons that stand against it; the first one is shown."""
    if facts.tampered is not None:
        return Hold((HoldReason(HoldCode.RECORD_TAMPERED, facts.tampered),))
    unusable = unusable_verdict(facts)
    if facts.result is None or unusable is not None:
        return Hold((unusable or ERASED,))
    reasons = tuple(_reasons(facts, facts.result))
    if reasons:
        return Hold(reasons)
    try:
        return Pay(bill(facts.result, facts.terms, facts.escrow_micros, facts.usage, facts.judges))
    except (RuleFailed, UnknownName) as problem:
        return Hold((HoldReason(HoldCode.RULE_FAILED, str(problem)),))


def unusable_verdict(facts: PaymentFacts) -> HoldReason | None:
    """Why nothing can be paid by the latest verdict, not even by decision of a person; None where it can."""
    if facts.result is None:
        return ERASED
    if facts.result.criteria_digest != facts.criteria_digest:
        message = f"version {facts.version} of its verdict was not reached by the criteria of the contract"
        return HoldReason(HoldCode.OTHER_CRITERIA, message, (str(facts.version),))
    return None


def _reasons(facts: PaymentFacts, result: VerificationResult) -> Iterator[HoldReason]:
    if not facts.released:
        yield from review_reasons(result, facts.criteria, facts.terms)
        if facts.terms.pay_per_run and not facts.has_run:
            message = "its terms pay per run, and the output came without a run_id"
            yield HoldReason(HoldCode.RUN_MISSING, message)
        yield from judge_reasons(result, facts.judges, facts.terms)
    yield from usage_reasons(facts.usage, facts.terms)
    # A person who releases a flagged output has seen the flag; a payment since then is not flagged.
    if facts.paid_under is not None and DUPLICATE_FLAG not in result.governance_flags:
        message = f"its run was already paid under contract {facts.paid_under}"
        yield HoldReason(HoldCode.DUPLICATE_CLAIM, message, (facts.paid_under,))
    if facts.version <= facts.settled_version and not facts.reversed_by_usage:
        message = f"version {facts.version} of its verdict was settled and reversed; a later version is needed"
        yield HoldReason(HoldCode.ALREADY_SETTLED, message, (str(facts.version),))


def review_reasons(result: VerificationResult, criteria: SuccessCriteria | None, terms: Terms) -> Iterator[HoldReason]:
    """Why a person must review the result before money moves; nothing where no review is needed."""
    if result.governance not in PAYABLE:
        flags = tuple(result.governance_flags)
        yield HoldReason(HoldCode.GOVERNANCE, f"governance {result.governance}: {', '.join(flags)}", flags)
    if result.verdict not in CONCLUSIVE:
        message = f"the verdict is {result.verdict}: what could not be measured may still change it"
        yield HoldReason(HoldCode.INCONCLUSIVE, message, (str(result.verdict),))
    if unmeasured := _criteria_without_value(result):
        message = f"money depends on what could not be measured: {', '.join(unmeasured)}"
        yield HoldReason(HoldCode.UNMEASURED, message, unmeasured)
    if claimed := () if criteria is None or terms.claimed_may_earn else _criteria_with_claims(result, criteria, terms):
        message = f"money depends on what only the agent says: {', '.join(claimed)}"
        yield HoldReason(HoldCode.ONLY_CLAIMED, message, claimed)


def _criteria_without_value(result: VerificationResult) -> tuple[str, ...]:
    """Criteria whose bonus or penalty is still open because they were not measured."""
    # What is charged for being missing is decided already.
    decided = {one.criterion_id for one in chargeable_criteria(result)}
    return tuple(
        one.criterion_id
        for one in result.criterion_results
        if one.status is Status.INDETERMINATE and (one.bonus or one.penalty) and one.criterion_id not in decided
    )


def _criteria_with_claims(result: VerificationResult, criteria: SuccessCriteria, terms: Terms) -> tuple[str, ...]:
    """Criteria by whose claims an agent avoids a penalty, or is paid for a success."""
    # A bonus that rests on a claim is not listed: the rule claimed_only withholds it.
    by_success = terms.bonus_on_failure is BonusOnFailure.NONE or "pay_on_success" in terms.rules
    any_counts = criteria.aggregation is not Aggregation.ALL
    return tuple(
        one.criterion_id
        for one in result.criterion_results
        if one.status is Status.MET
        and one.provenance is Provenance.CLAIMED
        # A result has the penalty only of criteria that are not met.
        and (criteria.criteria[one.index].penalty or (by_success and (one.required or any_counts)))
    )


def deciding_judges(result: VerificationResult) -> dict[str, tuple[str, str]]:
    """The judge that decided each criterion, by the criterion's id: its name and its version."""
    found = {}
    for one in result.criterion_results:
        if one.is_judged and one.status is not Status.INDETERMINATE:
            evidence = read_judge_evidence(one.details)
            found[one.criterion_id] = ("", "") if evidence is None else (evidence.name, evidence.version)
    return found


def judge_reasons(result: VerificationResult, judges: Sequence[JudgeStanding], terms: Terms) -> Iterator[HoldReason]:
    """Why judged criteria cannot be paid without review, one by one; nothing where the terms do not ask."""
    wanted = terms.labels_asked_for
    if wanted is None:
        return
    known = {one.version: one for one in judges}
    for criterion, (judge, version) in deciding_judges(result).items():
        standing = known.get(version, JudgeStanding(judge, version, 0))
        if standing.labels < wanted:
            lacks = f"has {standing.labels} random labels of the {wanted} that the terms ask for"
        elif terms.min_kappa is not None and (standing.kappa is None or exact(standing.kappa) < exact(terms.min_kappa)):
            shown = "unknown" if standing.kappa is None else f"{standing.kappa:g}"
            lacks = f"has a kappa of {shown}, and the terms ask for {terms.min_kappa}"
        else:
            continue
        message = f"criterion {criterion} was decided by the judge {judge!r}, which {lacks}"
        yield HoldReason(HoldCode.JUDGE_UNCALIBRATED, message, (criterion,))


def usage_reasons(usage: Sequence[ContractTokenUse], terms: Terms) -> Iterator[HoldReason]:
    """Why tokens that the terms price cannot be paid yet, run by run; nothing where they can, or have no price."""
    if not terms.prices_tokens:
        return
    if not usage:
        message = "its terms price tokens, and no run is recorded under its contract_id"
        yield HoldReason(HoldCode.USAGE_MISSING, message)
    for use in usage:
        if use.status is not UsageStatus.VERIFIED:
            message = f"usage of run {use.run_id} is {use.status}: {use.why}"
            yield HoldReason(HoldCode.USAGE_UNVERIFIED, message, (use.run_id,))
        elif use.tokens is None:
            yield HoldReason(HoldCode.USAGE_NOT_PAYABLE, f"usage of run {use.run_id} {use.why}", (use.run_id,))
        elif price_of(use, terms) is None:
            message = f"the cost of run {use.run_id} is unknown: {why_price_unknown(use, terms)}"
            yield HoldReason(HoldCode.PRICE_UNKNOWN, message, (use.run_id,))
