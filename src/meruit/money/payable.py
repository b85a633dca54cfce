"""Whether a verdict may be paid without anyone looking."""

from meruit.model.verdict import BELIEVED, GovernanceStatus, Status, Verdict, VerificationResult
from meruit.money.charges import charged

CONCLUSIVE = frozenset({Verdict.PASS, Verdict.PARTIAL, Verdict.FAIL})
PAYABLE = BELIEVED | {GovernanceStatus.NOT_CHECKED}


def why_held(result: VerificationResult) -> str:
    """Why no money moves on this result without a person; empty when it may."""
    if result.governance not in PAYABLE:
        return f"governance {result.governance}: {', '.join(result.governance_flags)}"
    if result.verdict not in CONCLUSIVE:
        return f"the verdict is {result.verdict}: what could not be measured may still change it"
    # What is charged for being missing is decided already.
    decided = {one.criterion_id for one in charged(result)}
    at_stake = [
        one.criterion_id
        for one in result.criterion_results
        if one.status is Status.INDETERMINATE and (one.bonus or one.penalty) and one.criterion_id not in decided
    ]
    if at_stake:
        return f"money depends on what could not be measured: {', '.join(at_stake)}"
    return ""
