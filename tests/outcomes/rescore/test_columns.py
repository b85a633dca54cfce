"""Columns of stored metrics: judged as one by one, in blocks, and never by a value that answers another question."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meruit import SuccessCriteria, VerificationEngine
from meruit.errors import BatchUnsupported, MeruitError
from meruit.judge.plan import Plan
from meruit.judge.verdict import Circumstances, conclude
from meruit.model.access import Scope
from meruit.model.evidence import Evidence, Missing
from meruit.model.governance import GovernanceClient
from meruit.model.verdict import Status
from meruit.outcomes.export import atomic_file, export_parquet
from meruit.outcomes.rescore import columns as bulk
from meruit.outcomes.rescore.columns import FileSummary, judge_file, preview_outcomes
from meruit.outcomes.rescore.run import LocalRunner, rescore
from meruit.outcomes.service import Registrar, Submission
from meruit.store.location import Location
from meruit.store.store import Store

NOW = datetime(2026, 7, 1, tzinfo=UTC)
ENGINE = VerificationEngine()
WORDS = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 2}
LATENCY = {"metric": "latency_ms", "metric_type": "latency", "comparison": "lte", "threshold": 2000, "bonus": 0.5}
SURE = {"metric": "confidence", "metric_type": "custom", "comparison": "gte", "threshold": 0.5}
KEYWORDS = {"metric": "contains_keywords", "metric_type": "contains", "comparison": "contains_all"}


def criteria_of(*parts: dict[str, Any], **whole: Any) -> SuccessCriteria:
    return SuccessCriteria.model_validate({"criteria": list(parts), **whole})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(Location(tmp_path / "records"))
    yield opened
    opened.close()


def put(store: Store, output: dict[str, Any], criteria: SuccessCriteria, engine: VerificationEngine = ENGINE) -> str:
    registrar = Registrar(engine, store)
    judged = registrar.judge_sync(registrar.compile(criteria), Submission({}, output, {"duration_ms": 100}))
    return registrar.record_sync("default", judged).outcome_id


def judged(source: Path, criteria: SuccessCriteria, target: Path | None = None) -> FileSummary:
    return judge_file(source, ENGINE, ENGINE.compile(criteria), target, lambda *_: None)


# Frames.


def judge_frame(plan: Plan, frame: pl.DataFrame) -> pl.DataFrame:
    """Each row of metrics judged, the columns named as the plan names its values."""
    judged = bulk._judge_series(plan, [frame[rule.slot] for rule in plan.rules])
    table = bulk._to_table(plan, judged, None, bulk._shape(plan, with_id=False))
    # As texts, to be compared with.
    return pl.DataFrame(pl.from_arrow(table)).with_columns(pl.col(pl.Categorical).cast(pl.String))


numbers = st.lists(st.none() | st.sampled_from([0.0, 1.0, 2.0, 2.5, 2000.0, 1e308]), min_size=1, max_size=8)


@given(numbers, st.booleans(), st.sampled_from(["all", "weighted"]))
def test_a_frame_is_judged_as_one_by_one(values: list[float | None], exclude: bool, aggregation: str) -> None:
    policy = {"missing": "exclude"} if exclude else {}
    plan = ENGINE.compile(criteria_of({**WORDS, **policy}, LATENCY, aggregation=aggregation)).plan
    found = judge_frame(plan, pl.DataFrame({"word_count": values, "latency_ms": values}, schema_overrides=_floats))
    for row, value in zip(found.to_dicts(), values, strict=True):
        evidence: Evidence = Missing("nothing") if value is None else value
        one = conclude(plan, [evidence, evidence], Circumstances("c", NOW))
        assert (row["verdict"], row["success"], row["score"], row["score_high"]) == (
            *(one.verdict, one.success),
            *one.bounds,
        )
        assert (row["bonus_micros"], row["penalty_micros"]) == (one.bonus_micros, one.penalty_micros)
        assert [row["status.word_count"], row["status.latency_ms"]] == [r.status for r in one.criterion_results]


_floats = {"word_count": pl.Float64, "latency_ms": pl.Float64}


@pytest.mark.parametrize(
    ("column", "statuses"),
    [
        (pl.Series([1, None, 3], dtype=pl.Int8), ["not_met", "indeterminate", "met"]),
        (pl.Series([1, None, 3], dtype=pl.UInt16), ["not_met", "indeterminate", "met"]),
        (pl.Series([2**60, None, 3]), ["indeterminate", "indeterminate", "met"]),
        (pl.Series([1, 2, 3]), ["not_met", "met", "met"]),
        (pl.Series([None, None, None]), ["indeterminate"] * 3),
        (pl.Series([float("nan"), None, float("inf")]), ["indeterminate"] * 3),
        (pl.Series([True, None, False]), ["indeterminate"] * 3),
        (pl.Series([True, True, False]), ["indeterminate"] * 3),
    ],
)
def test_what_is_missing_is_unknown_whatever_the_column_is_made_of(column: pl.Series, statuses: list[str]) -> None:
    plan = ENGINE.compile(criteria_of(WORDS)).plan
    assert judge_frame(plan, pl.DataFrame({"word_count": column}))["status.word_count"].to_list() == statuses


def test_truth_values_count_where_the_criterion_asks_for_them() -> None:
    yes = {"metric": "confidence", "metric_type": "boolean", "comparison": "eq", "threshold": True}
    number = {"metric": "confidence", "metric_type": "numeric", "comparison": "gte", "threshold": 0, "id": "n"}
    plan = ENGINE.compile(criteria_of(yes, number)).plan
    found = judge_frame(plan, pl.DataFrame({"confidence": [True, None, False]}))
    assert found["status.confidence"].to_list() == ["met", "indeterminate", "not_met"]
    assert found["status.n"].to_list() == ["indeterminate"] * 3


def test_a_column_that_does_not_hold_numbers_is_refused() -> None:
    plan = ENGINE.compile(criteria_of(WORDS)).plan
    with pytest.raises(BatchUnsupported):
        judge_frame(plan, pl.DataFrame({"word_count": ["many"]}))


# What a rescore would change.

outputs = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "text": st.sampled_from(["one two three", "two", ""]),
            "confidence": st.sampled_from([0.7, 0.2, True, "sure", 7]),
        },
    ),
    min_size=1,
    max_size=6,
)
new_criteria = st.sampled_from(
    [
        criteria_of({**WORDS, "threshold": 3}, LATENCY),
        criteria_of(SURE, {**WORDS, "missing": "exclude"}, aggregation="weighted"),
        criteria_of({**SURE, "metric_type": "percentage"}, {**WORDS, "metric": "nobody"}),
        criteria_of({"metric": "output_length", "metric_type": "count", "comparison": "gte", "threshold": 4}, WORDS),
        criteria_of({**KEYWORDS, "threshold": ["two"]}, WORDS),
        criteria_of({**SURE, "comparison": "eq", "threshold": "sure"}, WORDS),
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=15)
@given(outputs, new_criteria)
def test_a_preview_says_what_the_rescore_then_does(
    tmp_path_factory: pytest.TempPathFactory, outputs: list[dict[str, Any]], new: SuccessCriteria
) -> None:
    store = Store.open(Location(tmp_path_factory.mktemp("records")))
    try:
        old = criteria_of(WORDS, LATENCY, SURE, {**KEYWORDS, "threshold": ["two"]})
        for output in outputs:
            put(store, output, old)
        where = (store, ENGINE, "default", new)
        planned = preview_outcomes(*where, narrowed=None, now=NOW, progress=lambda *_: None)
        done = rescore(
            *where, narrowed=None, reason="r", runner=LocalRunner(), now=NOW, progress=lambda *_: None, dry_run=False
        )
        same = {"seconds": 0.0, "dry_run": False}
        assert msgspec.structs.replace(planned, **same) == msgspec.structs.replace(done, **same)
    finally:
        store.close()


class Suspicious(GovernanceClient):
    """Believes nothing."""

    async def validate_outcome(self, contract_id: str, claimed_metrics: Any, execution_context: Any) -> Any:
        return type("Answer", (), {"valid": False, "flags": []})()


def test_a_preview_knows_what_governance_said(store: Store) -> None:
    put(
        store,
        {"text": "two words"},
        criteria_of({**WORDS, "threshold": 9}),
        VerificationEngine(governance=Suspicious()),
    )
    summary = preview_outcomes(
        store, ENGINE, "default", criteria_of(WORDS), narrowed=None, now=NOW, progress=lambda *_: None
    )
    assert (summary.changed[0].after, summary.success_gained) == ("pass", 0)


def test_what_cannot_be_judged_at_all_is_counted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, {"text": "two words"}, criteria_of(WORDS))

    def broken(*_: Any) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("meruit.verify.engine.measure", broken)
    summary = preview_outcomes(
        store, ENGINE, "default", criteria_of(SURE), narrowed=None, now=NOW, progress=lambda *_: None
    )
    assert (summary.rescored, list(summary.skipped.values())) == (0, [1])


# Files.


def test_a_file_of_any_origin_is_judged_by_its_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "BLOCK_ROWS", 1000)
    rng = np.random.default_rng(3)
    frame = pl.DataFrame(
        {"metric.word_count": rng.integers(0, 5, 3500), "latency_ms": np.where(rng.random(3500) < 0.1, np.nan, 100.0)}
    )
    frame.write_parquet(tmp_path / "in.parquet")
    steps: list[tuple[int, int]] = []
    prepared = ENGINE.compile(criteria_of(WORDS, LATENCY))
    summary = judge_file(
        tmp_path / "in.parquet", ENGINE, prepared, tmp_path / "out.parquet", lambda *step: steps.append(step)
    )
    assert steps == [(1000, 3500), (2000, 3500), (3000, 3500), (3500, 3500)]
    found = pl.read_parquet(tmp_path / "out.parquet")
    expected = judge_frame(prepared.plan, frame.rename({"metric.word_count": "word_count"}))
    assert found.equals(expected)
    assert summary.rows == 3500
    assert summary.successes == expected["success"].sum()
    assert summary.bonus_micros == expected["bonus_micros"].sum()
    assert summary.verdicts == dict(expected["verdict"].value_counts().iter_rows())
    assert summary.criteria["latency_ms"][Status.INDETERMINATE] == frame["latency_ms"].is_nan().sum()


def test_an_exported_file_is_judged_as_its_records_are(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "BLOCK_ROWS", 4)
    for number in range(6):
        parts = [WORDS, {**KEYWORDS, "threshold": ["a"], "id": "k"}]
        put(store, {"text": "a " * number}, criteria_of(*(parts if number % 2 else reversed(parts))))
    # Asked otherwise, so its column of that name answers nothing here.
    put(store, {"text": "a b"}, criteria_of(WORDS, {**KEYWORDS, "threshold": ["a", "b"], "id": "k"}))
    with atomic_file(tmp_path / "in.parquet") as file:
        export_parquet(store, Scope("default"), None, file, lambda *_: None)
    new = criteria_of({**KEYWORDS, "threshold": ["a"]}, {**WORDS, "threshold": 3}, aggregation="weighted")
    judged(tmp_path / "in.parquet", new, tmp_path / "out.parquet")
    found = pl.read_parquet(tmp_path / "out.parquet")
    assert found["id"].to_list() == pl.read_parquet(tmp_path / "in.parquet")["id"].to_list()
    assert found["status.contains_keywords"].to_list() == ["not_met", *["met"] * 5, "indeterminate"]
    assert found["status.word_count"].to_list() == [*["not_met"] * 3, *["met"] * 3, "not_met"]


def test_only_some_sets_of_criteria_are_remembered(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MAX_SETS", 1)
    for threshold in (1, 2, 3):
        put(store, {"text": "two words"}, criteria_of({**WORDS, "threshold": threshold}))
    with atomic_file(tmp_path / "in.parquet") as file:
        export_parquet(store, Scope("default"), None, file, lambda *_: None)
    assert judged(tmp_path / "in.parquet", criteria_of({**WORDS, "threshold": 4})).verdicts == {"fail": 3}


def test_what_was_measured_nowhere_is_unknown(store: Store, tmp_path: Path) -> None:
    put(store, {"text": "two words"}, criteria_of(WORDS, SURE))
    with atomic_file(tmp_path / "in.parquet") as file:
        export_parquet(store, Scope("default"), None, file, lambda *_: None)
    assert judged(tmp_path / "in.parquet", criteria_of(SURE)).verdicts == {"inconclusive": 1}


def test_values_of_several_kinds_are_not_guessed(store: Store, tmp_path: Path) -> None:
    for confidence in (True, 0.7):
        put(store, {"confidence": confidence}, criteria_of(SURE))
    with atomic_file(tmp_path / "in.parquet") as file:
        export_parquet(store, Scope("default"), None, file, lambda *_: None)
    with pytest.raises(BatchUnsupported, match="several kinds"):
        judged(tmp_path / "in.parquet", criteria_of(SURE))


def test_files_that_do_not_do_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(MeruitError, match="cannot be read as Parquet"):
        judged(tmp_path / "none.parquet", criteria_of(WORDS))
    (tmp_path / "text.parquet").write_text("no Parquet")
    with pytest.raises(MeruitError, match="cannot be read as Parquet"):
        judged(tmp_path / "text.parquet", criteria_of(WORDS))
    pl.DataFrame({"other": [1.0]}).write_parquet(tmp_path / "other.parquet")
    with pytest.raises(MeruitError, match=r"no column metric\.word_count or word_count"):
        judged(tmp_path / "other.parquet", criteria_of(WORDS))


def test_an_empty_file_is_judged_to_nothing(tmp_path: Path) -> None:
    pl.DataFrame({"word_count": []}, schema={"word_count": pl.Float64}).write_parquet(tmp_path / "in.parquet")
    assert judged(tmp_path / "in.parquet", criteria_of(WORDS), tmp_path / "out.parquet").rows == 0
    assert pl.read_parquet(tmp_path / "out.parquet").shape == (0, 7)
