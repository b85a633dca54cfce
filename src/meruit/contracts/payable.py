"""Whether a verdict may be paid without anyone looking."""

from collections.abc import Sequence

from meruit.contracts.bill import chargeable_criteria
from meruit.contracts.token_terms import why_usage_waits
from meruit.model.contract import BonusOnFailure, Terms
from meruit.model.criterion import SuccessCriteria
from meruit.model.evidence import Provenance
from meruit.model.kinds import Aggregation
from meruit.model.money import ContractTokenUse
from meruit.model.verdict import BELIEVED, GovernanceStatus, Status, Verdict, VerificationResult

CONCLUSIVE = frozenset({Verdict.PASS, Verdict.PARTIAL, Verdict.FAIL})
PAYABLE = BELIEVED | {GovernanceStatus.NOT_CHECKED}


def why_held(
    result: VerificationResult, criteria: SuccessCriteria | None, terms: Terms, usage: Sequence[ContractTokenUse] = ()
) -> str:
    """Why no money moves on this result yet: a person must look, or tokens are not verified; empty when it may.

    `criteria` are those that it was judged by, `usage` are the runs that name the contract.
    """
    return why_review_needed(result, criteria, terms) or why_usage_waits(usage, terms)


def why_review_needed(result: VerificationResult, criteria: SuccessCriteria | None, terms: Terms) -> str:
    """Why a person must look at this result before money moves; empty when nobody need."""
    if result.governance not in PAYABLE:
        return f"governance {result.governance}: {', '.join(result.governance_flags)}"
    if result.verdict not in CONCLUSIVE:
        return f"the verdict is {result.verdict}: what could not be measured may still change it"
    # What is charged for being missing is decided already.
    decided = {one.criterion_id for one in chargeable_criteria(result)}
    at_stake = [
        one.criterion_id
        for one in result.criterion_results
        if one.status is Status.INDETERMINATE and (one.bonus or one.penalty) and one.criterion_id not in decided
    ]
    if at_stake:
        return f"money depends on what could not be measured: {', '.join(at_stake)}"
    claimed = [] if criteria is None or terms.claimed_may_earn else _only_claimed(result, criteria, terms)
    if claimed:
        return f"money depends on what only the agent says: {', '.join(claimed)}"
    return ""


def _only_claimed(result: VerificationResult, criteria: SuccessCriteria, terms: Terms) -> list[str]:
    """The criteria by whose claims an agent goes without a penalty, or is paid for a success."""
    # A claim that earns a bonus is no concern here: the rule claimed_only withholds that.
    by_success = terms.bonus_on_failure is BonusOnFailure.NONE or "pay_on_success" in terms.rules
    any_counts = criteria.aggregation is not Aggregation.ALL
    return [
        one.criterion_id
        for one in result.criterion_results
        if one.status is Status.MET
        and one.provenance is Provenance.CLAIMED
        # A result tells the penalty only of what is not met.
        and (criteria.criteria[one.index].penalty or (by_success and (one.required or any_counts)))
    ]
