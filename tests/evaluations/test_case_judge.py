"""A case that shares its conclusion gets to the byte the result that it would get alone."""

from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from meruit.evaluations.case_judge import CaseJudge, WrittenWork, finish_segment
from meruit.evaluations.evaluation import Case
from meruit.evaluations.segment import entries_of, unpack
from meruit.governance.rule_governance import RuleGovernance
from meruit.log.segment import segment_root
from meruit.model.verdict import VerificationResult
from meruit.model.work import Work
from meruit.store.store import ClockAndEntropy
from meruit.verify.engine import VerificationEngine

NOW = datetime(2026, 1, 2, tzinfo=UTC)
CRITERIA: dict[str, Any] = {
    "criteria": [
        {"metric": "word_count", "metric_type": "count", "comparison": "lte", "threshold": 3},
        {"metric": "confidence", "metric_type": "percentage", "comparison": "gte", "threshold": 0.5},
        {"metric": "latency_ms", "metric_type": "latency", "comparison": "lte", "threshold": 100, "required": False},
    ]
}
WORKS: list[tuple[dict[str, Any], dict[str, Any] | None, dict[str, Any]]] = [
    ({}, {"text": "a b", "confidence": 0.9}, {"duration_ms": 5}),
    ({}, {"text": "a b", "confidence": 0.9}, {"duration_ms": 5}),
    ({"reference": "a b"}, {"text": "a b", "confidence": 0.9}, {"duration_ms": 5}),
    ({}, {"text": "a b", "confidence": 9}, {"duration_ms": -5}),
    ({}, {"text": "a b c d", "confidence": True}, {}),
    ({}, {"text": 'é "quoted" \u2028', "confidence": "high"}, {"duration_ms": 1e300}),
    ({}, None, {}),
]


@pytest.mark.parametrize("governed", [False, True])
def test_a_shared_result_is_the_cases_own(governed: bool) -> None:
    engine = VerificationEngine(governance=RuleGovernance() if governed else None, clock=lambda: NOW)
    criteria = engine.compile(CRITERIA)
    judge = CaseJudge(engine, "acme", ClockAndEntropy(clock=lambda: NOW))
    cases = [Case(f"c{n}", *work) for n, work in enumerate(WORKS)]
    judged = [judge.judge(criteria, case) for case in cases]
    assert sum(one.packed.template is not None for one in judged) >= 3
    for case, one in zip(cases, judged, strict=True):
        if case.output is not None:
            digests = WrittenWork.write(case).digests()
            work = Work(output=case.output, input=case.input, metadata=case.metadata)
            alone = engine.verify_digested(one.summary.outcome_id, criteria, work, digests)
            assert one.result_json == alone.to_json()
        assert one.result == VerificationResult.from_json(one.result_json)
    segment = finish_segment(judged)
    kept = unpack(segment.blob)
    assert [bytes(one.result) for one in kept] == [one.result_json for one in judged]
    assert entries_of(kept) == [one.entry for one in judged]
    assert segment_root(entries_of(kept)) == segment.root
    assert [sha256(bytes(one.output)).hexdigest() for one in kept] == [one.result.output_digest for one in judged]
    assert [msgspec.json.decode(one.output) for one in kept] == [case.output or {} for case in cases]
