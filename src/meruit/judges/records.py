"""What other packages read and do with the records of judges."""

import msgspec

from meruit.judges.store import (
    CalibratedJudge,
    RecordCalibration,
    StoredVotes,
    check_calibrations,
    forget_votes,
    read_totals,
    select_calibrations,
    standings_of,
)
from meruit.model.verdict import CriterionResult, VerificationResult
from meruit.model.vote import JudgeEvidence, read_judge_evidence

__all__ = [
    "CalibratedJudge",
    "JudgedCriterion",
    "RecordCalibration",
    "StoredVotes",
    "check_calibrations",
    "forget_votes",
    "judged_criteria",
    "read_totals",
    "select_calibrations",
    "standings_of",
]


class JudgedCriterion(msgspec.Struct, frozen=True):
    """A criterion that a judge decided, with its votes."""

    result: CriterionResult
    evidence: JudgeEvidence


def judged_criteria(result: VerificationResult) -> list[JudgedCriterion]:
    """The criteria of a result that a judge was asked about, in their order; without those that hold no votes."""
    found = ((one, read_judge_evidence(one.details)) for one in result.criterion_results if one.is_judged)
    return [JudgedCriterion(one, evidence) for one, evidence in found if evidence is not None]
