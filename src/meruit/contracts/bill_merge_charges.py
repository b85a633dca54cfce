"""Which criteria cost their penalty."""

from meruit.model.evidence import Cause, Fault
from meruit.model.money import as_micros
from meruit.model.verdict import CriterionResult, Status, VerificationResult

OF_CODE = frozenset(
    {
        Cause.TIMEOUT,
        Cause.MEMORY,
        Cause.CRASHED,
        Cause.RESULT_REJECTED,
        Cause.UNSUPPORTED_CONSTRUCT,
        Cause.NONDETERMINISTIC,
        Cause.SANDBOX_UNAVAILABLE,
    }
)
"""How the author's own code ends when it gives no number."""
OF_VALUES = frozenset({Cause.NOT_A_NUMBER, Cause.WRONG_TYPE, Cause.OUT_OF_DOMAIN})


def charged(result: VerificationResult) -> list[CriterionResult]:
    """Those not met; and those that could not be measured, where the criteria say that this costs too."""
    found = [one for one in result.criterion_results if one.status is Status.NOT_MET and one.penalty]
    # The result's own sum is larger than theirs only where criteria penalize what is missing.
    if result.penalty_micros > sum(as_micros(one.penalty or 0) for one in found):
        found += [
            one
            for one in result.criterion_results
            if one.status is Status.INDETERMINATE and one.penalty and not _own_code(one)
        ]
    return found


def _own_code(judged: CriterionResult) -> bool:
    """Whether it is the author's own code that gave nothing, or nothing that can be judged: nobody pays for that."""
    return judged.cause in OF_CODE or (judged.cause in OF_VALUES and judged.fault is Fault.AUTHOR)
