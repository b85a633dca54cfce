"""Says in one sentence why verdict and success of a result differ."""

from meruit.model.verdict import GovernanceStatus, ReasonCode, Status, Verdict, VerificationResult

MAX_NAMED = 3
"""Most criteria that the sentence names."""


def explain_difference(result: VerificationResult) -> str | None:
    """Why the work passes without success, or succeeds without a pass; None where verdict and success agree."""
    if result.verdict is Verdict.PASS and not result.success:
        return f"The verdict is pass, but success is false: {_why_not_success(result)}."
    if result.success and result.verdict is not Verdict.PASS:
        return f"Success is true, but the verdict is {result.verdict}: {_why_not_pass(result)}."
    return None


def _why_not_success(result: VerificationResult) -> str:
    codes = {reason.code for reason in result.reasons}
    missed = [one.criterion_id for one in result.criterion_results if one.required and one.status is Status.NOT_MET]
    if missed:
        named = ", ".join(missed[:MAX_NAMED]) + (" and others" if len(missed) > MAX_NAMED else "")
        return f"the score is high enough, but {named} must be met"
    if ReasonCode.BELOW_MINIMUM in codes:
        return "the criteria set a minimum_weighted_score that is higher than the score"
    if ReasonCode.NOTHING_REQUIRED in codes:
        return "no criterion is required, so that `all` asks for nothing"
    match result.governance:
        case GovernanceStatus.INVALID:
            return "the criteria are met, but governance rejects the outcome"
        case GovernanceStatus.REVIEW:
            return "the criteria are met, but a person must review the outcome first"
        case GovernanceStatus.NOT_CHECKED | GovernanceStatus.CLEAR | GovernanceStatus.RELEASED:
            return "the reasons say what is missing"


def _why_not_pass(result: VerificationResult) -> str:
    if result.weighted_score is not None:
        return "the score reaches the minimum of the criteria, and a pass begins at 0.9"
    if any(one.required for one in result.criterion_results):
        return "all that is required is met, and the score counts the optional criteria too"
    return "one met criterion is enough here, and the score counts all of them"
