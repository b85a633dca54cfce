"""Which criteria cost their penalty."""

from meruit.model.money import as_micros
from meruit.model.verdict import CriterionResult, Status, VerificationResult


def charged(result: VerificationResult) -> list[CriterionResult]:
    """Those not met; and those that could not be measured, where the criteria say that this costs too."""
    found = [one for one in result.criterion_results if one.status is Status.NOT_MET and one.penalty]
    # The result's own sum is larger than theirs only where criteria penalize what is missing.
    if result.penalty_micros > sum(as_micros(one.penalty or 0) for one in found):
        found += [one for one in result.criterion_results if one.status is Status.INDETERMINATE and one.penalty]
    return found
