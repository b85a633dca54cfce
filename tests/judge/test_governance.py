"""What the answers of governance do to a result."""

import msgspec
import pytest

from meruit import SuccessCriteria, VerificationEngine, VerificationResult, rejudge
from meruit.judge.governance import add_answer, carry_answer, is_worse
from meruit.model.governance import ALL_CLEAR, Action, Disposition, Flag, GovernanceResult
from meruit.model.verdict import GovernanceStatus, ReasonCode, Verdict

CRITERIA = SuccessCriteria.model_validate(
    {"criteria": [{"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 1}]}
)
PLAIN = VerificationEngine().verify_sync("c", {}, {"text": "two words"}, CRITERIA)
CLEAR, REVIEW, INVALID = GovernanceStatus.CLEAR, GovernanceStatus.REVIEW, GovernanceStatus.INVALID
FLAGGED = GovernanceResult(True, [Flag("odd", "1", Action.FLAG)], Disposition.CLEAR)
HELD = GovernanceResult(True, [Flag("copy", "1", Action.HOLD, evidence={"share": 1})], Disposition.HOLD)
SILENT = GovernanceResult(True, [Flag("governance_unavailable", "1", Action.HOLD)], Disposition.HOLD)
REJECTED = GovernanceResult(False, ["lie"])
WORDLESS = GovernanceResult(False)


def after(*answers: GovernanceResult) -> VerificationResult:
    result = PLAIN
    for said in answers:
        result = add_answer(result, said)
    # Whatever was said, a reader comes to the same result from the record.
    assert rejudge(CRITERIA, result).to_json() == result.to_json()
    return result


@pytest.mark.parametrize(
    ("answers", "status", "flags", "code"),
    [
        ([ALL_CLEAR], CLEAR, [], None),
        ([FLAGGED], CLEAR, ["odd"], None),
        ([ALL_CLEAR, ALL_CLEAR], CLEAR, [], None),
        ([ALL_CLEAR, FLAGGED, FLAGGED], CLEAR, ["odd"], None),
        ([HELD], REVIEW, ["copy"], ReasonCode.GOVERNANCE_HOLD),
        ([SILENT], REVIEW, ["governance_unavailable"], ReasonCode.GOVERNANCE_UNAVAILABLE),
        ([HELD, SILENT], REVIEW, ["copy", "governance_unavailable"], ReasonCode.GOVERNANCE_HOLD),
        ([HELD, FLAGGED], REVIEW, ["copy", "odd"], ReasonCode.GOVERNANCE_HOLD),
        ([HELD, REJECTED], INVALID, ["copy", "lie"], ReasonCode.GOVERNANCE_INVALID),
        ([REJECTED, HELD], INVALID, ["lie", "copy"], ReasonCode.GOVERNANCE_INVALID),
        ([WORDLESS], INVALID, [], ReasonCode.GOVERNANCE_INVALID),
    ],
)
def test_the_worst_answer_counts_and_all_flags_stay(
    answers: list[GovernanceResult], status: GovernanceStatus, flags: list[str], code: ReasonCode | None
) -> None:
    result = after(*answers)
    assert (result.governance, result.governance_flags, result.success) == (status, flags, status is CLEAR)
    assert [reason.code for reason in result.reasons] == ([] if code is None else [code])


def test_a_reason_has_the_evidence_of_what_decides() -> None:
    both = GovernanceResult(True, [*FLAGGED.flags, *HELD.flags], Disposition.HOLD)
    assert after(both).reasons[0].message.endswith(": copy (share 1)")


def test_a_later_version_carries_the_answer() -> None:
    assert carry_answer(PLAIN, PLAIN) is PLAIN
    assert carry_answer(after(REJECTED), PLAIN) == after(REJECTED)
    broken = msgspec.structs.replace(PLAIN, verdict=Verdict.ERROR)
    assert carry_answer(after(REJECTED), broken) is broken


def test_answers_are_ordered() -> None:
    assert is_worse(INVALID, REVIEW)
    assert is_worse(REVIEW, CLEAR)
    assert not is_worse(CLEAR, GovernanceStatus.RELEASED)
