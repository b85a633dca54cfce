"""Results are copied from one that ended alike: each still has its own content, and nothing that another can change."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from meruit import VerificationEngine
from meruit.documents.sanitize import sanitize
from meruit.model.evidence import Measured
from meruit.model.verdict import ReasonCode, VerificationResult

CRITERIA = {
    "criteria": [
        {"metric": "contains_keywords", "metric_type": "contains", "comparison": "contains_all", "threshold": ["cat"]},
        {"metric": "word_count", "metric_type": "count", "comparison": "in_range", "threshold": {"min": 1, "max": 5}},
        {"metric": "latency_ms", "metric_type": "latency", "comparison": "lte", "threshold": 10},
    ]
}
ENGINE = VerificationEngine()
COMPILED = ENGINE.compile(CRITERIA)


def judge(text: str, metadata: dict[str, Any]) -> VerificationResult:
    return ENGINE.verify_sync("c", {}, {"text": text}, COMPILED, metadata)


def untimed(result: VerificationResult) -> dict[str, Any]:
    return {name: value for name, value in result.to_dict().items() if name != "verified_at"}


def test_changing_one_result_changes_no_later_one() -> None:
    first = judge("a dog", {"duration_ms": 20})
    before = untimed(first)
    for one in first.criterion_results:
        if isinstance(one.threshold, list | dict):
            one.threshold.clear()
        if isinstance(one.details, dict):
            one.details["found"].append("changed")
    for part in (first.metrics, first.axes, first.versions):
        part.clear()
    first.reasons.clear()
    first.governance_flags.append("changed")
    first.criterion_results.clear()
    assert untimed(judge("a dog", {"duration_ms": 20})) == before


def test_works_that_end_alike_keep_their_own_reasons() -> None:
    results = [judge("a cat", {}), judge("a cat", {"duration_ms": "soon"}), judge("a cat", {"duration_ms": -1})]
    reasons = [[reason for reason in one.reasons if reason.code is ReasonCode.INDETERMINATE] for one in results]
    assert [len(some) for some in reasons] == [1, 1, 1]
    assert len({some[0].message for some in reasons}) == 3
    for one, some in zip(results, reasons, strict=True):
        assert (one.criterion_results[2].error or "") in some[0].message


TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)
DETAILS = st.dictionaries(TEXTS, TEXTS | st.lists(TEXTS | st.integers(0, 9), max_size=3) | st.floats(), max_size=4)


@given(DETAILS)
def test_details_are_kept_as_json_would_give_them_back(details: dict[str, Any]) -> None:
    kept = sanitize(Measured(1.0, details))
    assert isinstance(kept, Measured)
    assert kept.details == msgspec.json.decode(msgspec.json.encode(details))
    assert all(value is not details[name] for name, value in (kept.details or {}).items() if isinstance(value, list))
