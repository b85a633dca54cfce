"""What is judged in bulk is recorded as each case alone would be: to the byte of every entry of the log."""

import math
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meruit.errors import InvalidCase, StoreError
from meruit.evaluations import bulk_judge
from meruit.evaluations.bulk_judge import BulkJudge
from meruit.evaluations.case_judge import CaseJudge, FinishedSegment, finish_segment
from meruit.evaluations.evaluation import Case, CaseError
from meruit.evaluations.segment import entries_of, open_segment, pack, unpack
from meruit.governance.rule_governance import RuleGovernance
from meruit.log.segment import segment_root
from meruit.store.store import ClockAndEntropy
from meruit.verify.catalogue import CompiledCriteria
from meruit.verify.engine import VerificationEngine

NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
CRITERIA: dict[str, Any] = {
    "criteria": [
        {"metric": "contains_keywords", "metric_type": "contains", "comparison": "contains_all", "threshold": ["a"]},
        {"metric": "confidence", "metric_type": "percentage", "comparison": "gte", "threshold": 0.5, "bonus": 1},
        {"metric": "confidence", "metric_type": "numeric", "comparison": "lte", "threshold": 0.9, "id": "not_sure"},
        {"metric": "latency_ms", "metric_type": "latency", "comparison": "lte", "threshold": 9, "required": False},
        {
            "metric": "matches_schema",
            "metric_type": "matches_schema",
            "comparison": "eq",
            "threshold": True,
            "params": {"schema": {"properties": {"text": {"type": "string", "maxLength": 6}}}},
        },
    ]
}
PLAIN: dict[str, Any] = {"criteria": [CRITERIA["criteria"][0], CRITERIA["criteria"][1]]}
# Constant chance and time: then both ways draw the same ids and salts, and even the roots must be equal.
STILL = ClockAndEntropy(clock=lambda: NOW, entropy=bytes)
NUMBERS = st.floats() | st.integers(-3, 3) | st.sampled_from([2**53, 2**60, 10**30, 0.5, -0.0, 1e22, 1e-7, 0.1 + 0.2])
PARTS = NUMBERS | st.booleans() | st.none() | st.text(max_size=8) | st.lists(st.integers(0, 3), max_size=2)
OUTPUTS = st.none() | st.fixed_dictionaries({}, optional={"text": PARTS, "confidence": PARTS, "more": PARTS})
CASES = st.builds(
    Case,
    id=st.just(""),
    input=st.fixed_dictionaries({}, optional={"reference": st.text(max_size=3), "x": PARTS}),
    output=OUTPUTS,
    metadata=st.fixed_dictionaries({}, optional={"duration_ms": PARTS, "é\u2028": PARTS}),
    group=st.none() | st.just("g"),
    tags=st.just({}) | st.just({"t": "1"}),
    repeat=st.integers(0, 12),
    claimed=st.none() | st.just("pass"),
    error=st.none() | st.none() | st.just(CaseError.TARGET_ERROR),
    cost_micros=st.none() | st.integers(0, 9),
)


def engine_of(*, governed: bool) -> VerificationEngine:
    return VerificationEngine(governance=RuleGovernance() if governed else None, clock=lambda: NOW)


def judge_in_bulk(judge: CaseJudge, criteria: CompiledCriteria, cases: Sequence[Case]) -> list[FinishedSegment]:
    bulk = BulkJudge(judge, criteria)
    segments = [segment for case in cases if (segment := bulk.add(case)) is not None]
    last = bulk.take()
    assert bulk.take() is None
    assert bulk.judged == len(cases)
    return segments if last is None else [*segments, last]


@settings(max_examples=60)
@given(st.lists(CASES, min_size=1, max_size=6), st.booleans(), st.sampled_from([CRITERIA, PLAIN]))
def test_bulk_writes_what_each_case_alone_would_get(
    drawn: list[Case], governed: bool, criteria: dict[str, Any]
) -> None:
    engine = engine_of(governed=governed)
    judge, compiled = CaseJudge(engine, "acme", STILL), engine.compile(criteria)
    cases = [
        Case(f'c"{place}é' if place % 2 else f"c{place}", *[getattr(one, name) for name in Case.__struct_fields__[1:]])
        for place, one in enumerate(drawn)
    ]
    try:
        alone = finish_segment([judge.judge(compiled, case) for case in cases])
    except InvalidCase:
        with pytest.raises(InvalidCase):
            judge_in_bulk(judge, compiled, cases)
        return
    (bulk,) = judge_in_bulk(judge, compiled, cases)
    assert bulk.root == alone.root
    assert bulk.summaries == alone.summaries
    kept = unpack(bulk.blob)
    assert kept == unpack(alone.blob)
    assert segment_root(entries_of(kept)) == bulk.root
    # Erasing packs a segment anew, from what was read of it.
    assert unpack(pack(kept)) == kept


def test_works_that_differ_in_numbers_only_share_one_template() -> None:
    engine = engine_of(governed=True)
    judge, compiled = CaseJudge(engine, "acme", ClockAndEntropy()), engine.compile(PLAIN)
    cases = [Case(f"c{n}", {}, {"text": "a", "confidence": 0.5 + n / 200}) for n in range(100)]
    (segment,) = judge_in_bulk(judge, compiled, cases)
    opened = open_segment(segment.blob)
    assert len(opened.templates) == 1
    values = [unpack(segment.blob)[n] for n in range(100)]
    assert len({one.outcome for one in values}) == len({one.salts for one in values}) == 100
    alone = [judge.judge(compiled, case).result for case in cases]
    got = [one.summary for one in (judge.adopt(case, result) for case, result in zip(cases, alone, strict=True))]
    assert [one.score for one in got] == [one.score for one in segment.summaries]


@given(st.lists(st.sampled_from(["plain", "alone", "numbers"]), min_size=1, max_size=40))
def test_each_case_keeps_its_own_salts(kinds: list[str]) -> None:
    engine = engine_of(governed=False)
    judge, compiled = CaseJudge(engine, "acme", ClockAndEntropy()), engine.compile(PLAIN)
    outputs: dict[str, Any] = {"plain": {"text": "a"}, "alone": None, "numbers": {"text": "b", "confidence": 0.7}}
    cases = [Case(f"c{place}", {}, outputs[kind]) for place, kind in enumerate(kinds)]
    (segment,) = judge_in_bulk(judge, compiled, cases)
    kept = unpack(segment.blob)
    assert segment_root(entries_of(kept)) == segment.root
    assert len({salt for one in kept for salt in one.part_salts()}) == 4 * len(cases)
    assert [one.case_id for one in segment.summaries] == [one.case for one in kept] == [one.id for one in cases]
    assert [one.outcome_id for one in segment.summaries] == [one.outcome for one in kept]


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * 201])
def test_a_case_that_cannot_be_kept_is_refused(name: str) -> None:
    engine = engine_of(governed=False)
    bulk = BulkJudge(CaseJudge(engine, "acme", STILL), engine.compile(PLAIN))
    with pytest.raises(InvalidCase):
        bulk.add(Case(name, {}, {"text": "a"}))
    with pytest.raises(InvalidCase):
        bulk.add(Case("a", {}, {"text": math.nan}))
    with pytest.raises(InvalidCase):
        bulk.add(Case("a", {}, {"text": "a"}, tags={"t": name}))
    assert bulk.take() is None


def test_a_segment_is_finished_by_cases_or_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(governed=False)
    judge, compiled = CaseJudge(engine, "acme", ClockAndEntropy()), engine.compile(PLAIN)
    monkeypatch.setattr(bulk_judge, "MAX_CASES", 4)
    cases = [Case(f"c{n}", {}, {"text": "a", "confidence": 0.7} if n % 3 else None, cost_micros=2) for n in range(10)]
    assert [len(one.summaries) for one in judge_in_bulk(judge, compiled, cases)] == [4, 4, 2]
    monkeypatch.setattr(bulk_judge, "SEGMENT_BYTES", 1)
    assert [len(one.summaries) for one in judge_in_bulk(judge, compiled, cases[:2])] == [1, 1]


def test_what_was_counted_is_what_was_judged() -> None:
    engine = engine_of(governed=False)
    bulk = BulkJudge(CaseJudge(engine, "acme", ClockAndEntropy()), engine.compile(PLAIN))
    for place, output in enumerate([{"text": "a", "confidence": 0.7}, {"text": "b", "confidence": 0.7}, {}, None]):
        bulk.add(Case(f"c{place}", {}, output, cost_micros=place))
    assert (bulk.judged, bulk.passed, bulk.open, bulk.spent_micros) == (4, 1, 2, 6)


def test_a_crash_of_a_metric_costs_its_own_criterion_only() -> None:
    engine = engine_of(governed=False)
    compiled = engine.compile(PLAIN)

    def crash(_work: object) -> float:
        raise SystemExit(3)

    broken = compiled.with_slots(tuple(msgspec.structs.replace(one, measure=crash) for one in compiled.slots))
    judge = CaseJudge(engine, "acme", STILL)
    (segment,) = judge_in_bulk(judge, broken, [Case("a", {}, {"text": "a"})])
    assert segment.summaries[0].statuses == "ii"


def test_a_template_that_lacks_other_numbers_is_damage() -> None:
    engine = engine_of(governed=False)
    judge, compiled = CaseJudge(engine, "acme", STILL), engine.compile(PLAIN)
    (segment,) = judge_in_bulk(judge, compiled, [Case("a", {}, {"text": "a", "confidence": 0.7})])
    reader = zlib.decompressobj()
    lines = reader.decompress(segment.blob)
    damaged = zlib.compress(lines.replace(b",1.0,0.7]", b",1.0]")) + reader.unused_data
    assert damaged != segment.blob
    with pytest.raises(StoreError):
        unpack(damaged)
