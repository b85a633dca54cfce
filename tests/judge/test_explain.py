"""Verdict and success may differ, and then one sentence says why."""

from typing import Any

import msgspec
import pytest

from meruit import SuccessCriteria, VerificationEngine, VerificationResult
from meruit.app import build_engine
from meruit.config import Settings
from meruit.judge.explain import explain_difference
from meruit.model.verdict import GovernanceStatus

MET = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 1}
MISSED = {**MET, "threshold": 1000}
BACKWARDS = {"started_at": 100, "ended_at": 99}


def judged(*criteria: dict[str, Any], metadata: Any = None, **more: Any) -> VerificationResult:
    asked = SuccessCriteria.model_validate({"criteria": [*criteria], **more})
    return build_engine(Settings()).verify_sync("c", {}, {"text": "two words"}, asked, metadata)


LIGHT = {**MISSED, "weight": 0.01}
OPTIONAL = {"required": False}


@pytest.mark.parametrize(
    ("result", "ended", "named"),
    [
        (judged(MET, LIGHT), ("pass", False), "word_count-2"),
        (judged(MET, *[LIGHT] * 5), ("pass", False), "and others"),
        (judged(MET, metadata=BACKWARDS), ("pass", False), "rejects"),
        (judged(MET, metadata={"claimed_metrics": {"word_count": 90}}), ("pass", False), "review"),
        (judged(MET | OPTIONAL), ("pass", False), "`all`"),
        (
            judged(MET, LIGHT, aggregation="weighted", minimum_weighted_score=1),
            ("pass", False),
            "minimum_weighted_score",
        ),
        (judged(MET, MISSED, aggregation="any"), ("partial", True), "one met criterion"),
        (judged(MET, MISSED, aggregation="weighted"), ("partial", True), "0.9"),
        (judged(MISSED, aggregation="weighted", minimum_weighted_score=0), ("fail", True), "minimum"),
        (judged(MET, MISSED | OPTIONAL), ("partial", True), "optional"),
    ],
)
def test_a_difference_is_explained(result: VerificationResult, ended: tuple[str, bool], named: str) -> None:
    assert (result.verdict, result.success) == ended
    sentence = explain_difference(result)
    assert sentence is not None
    assert named in sentence


@pytest.mark.parametrize(
    "result",
    [
        judged(MET),
        judged(MISSED),
        judged(MET, MISSED),
        VerificationEngine().verify_sync("c", {}, {}, {"criteria": [MET]}),
        VerificationEngine().verify_sync("c", {}, {}, {"criteria": []}),
    ],
)
def test_where_both_agree_nothing_is_said(result: VerificationResult) -> None:
    assert explain_difference(result) is None


def test_a_result_of_another_hand_is_explained_too() -> None:
    odd = msgspec.structs.replace(judged(MET), success=False, governance=GovernanceStatus.CLEAR)
    assert explain_difference(odd) is not None
