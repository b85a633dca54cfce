"""Rescoring: equal to a fresh verification, from evidence where that is enough, once a version and never twice."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update

from meruit import SuccessCriteria, VerificationEngine
from meruit.errors import RecordTampered, StoreError, VerificationRefusal
from meruit.metrics.support.extractor import MetricExtractor
from meruit.model.access import Scope
from meruit.model.evidence import Cause, Checked, Measured, Missing, Provenance, Skipped
from meruit.model.governance import GovernanceClient
from meruit.model.outcome import Labels
from meruit.model.verdict import GovernanceStatus, Verdict, VerificationResult
from meruit.outcomes.rescore import run as rescoring
from meruit.outcomes.rescore.reuse import EvidenceSources
from meruit.outcomes.rescore.run import (
    LocalRunner,
    RescoreRow,
    RescoreSummary,
    RescoreTask,
    Skip,
    judge_rows,
    rescore,
    write_together,
)
from meruit.outcomes.service import Registrar, Submission
from meruit.outcomes.store import batches
from meruit.outcomes.store import read as outcomes
from meruit.outcomes.store import versions as versions_module
from meruit.outcomes.store.erase import erase
from meruit.outcomes.store.read import OutcomeFilter, OutcomeWork
from meruit.outcomes.store.rescored import AddSeveral, RescoredVerdict
from meruit.outcomes.store.write import RecordedVersion
from meruit.registry import Check, checks
from meruit.store import tables
from meruit.store.location import Location
from meruit.store.store import Store

NOW = datetime(2026, 7, 1, tzinfo=UTC)
LATENCY = {"metric": "latency_ms", "metric_type": "latency", "comparison": "lte", "threshold": 2000}
WORDS = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 2}


def criteria_of(*parts: Mapping[str, Any], **whole: Any) -> SuccessCriteria:
    return SuccessCriteria.model_validate({"criteria": list(parts), **whole})


OLD = criteria_of(WORDS, LATENCY)
STRICTER = criteria_of({**WORDS, "threshold": 3}, LATENCY)
OTHER = criteria_of({"metric": "output_length", "metric_type": "count", "comparison": "gte", "threshold": 12})


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a few outcomes."""
    monkeypatch.setattr(versions_module, "MIN_RUN", 1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(Location(tmp_path / "records"))
    yield opened
    opened.close()


def put(
    store: Store,
    output: Mapping[str, Any],
    criteria: SuccessCriteria = OLD,
    *,
    engine: VerificationEngine | None = None,
    metadata: Mapping[str, Any] | None = None,
    labels: Labels = Labels(),  # noqa: B008 - frozen
    work_input: Mapping[str, Any] | None = None,
) -> str:
    registrar = Registrar(engine or VerificationEngine(), store)
    work = Submission(work_input or {}, output, {"duration_ms": 100} if metadata is None else metadata, labels)
    judged = registrar.judge_sync(registrar.compile(criteria), work)
    return registrar.record_sync("default", judged).outcome_id


def again(
    store: Store,
    criteria: SuccessCriteria = STRICTER,
    *,
    engine: VerificationEngine | None = None,
    narrowed: OutcomeFilter | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    dry_run: bool = False,
) -> RescoreSummary:
    return rescore(
        store,
        engine or VerificationEngine(),
        "default",
        criteria,
        narrowed=narrowed,
        reason="the threshold moved",
        runner=LocalRunner(),
        now=NOW,
        progress=progress,
        dry_run=dry_run,
    )


def versions(store: Store, outcome_id: str) -> list[Any]:
    with store.database.reading() as connection:
        return outcomes.versions(connection, Scope("default"), outcome_id)


def result(store: Store, outcome_id: str) -> VerificationResult:
    found = versions(store, outcome_id)[-1].result
    assert isinstance(found, VerificationResult)
    return found


# What it comes to.


def test_each_outcome_gets_one_more_version_and_keeps_the_old(store: Store) -> None:
    two, three = put(store, {"text": "two words"}), put(store, {"text": "now three words"})
    summary = again(store)
    assert (summary.examined, summary.rescored, summary.from_evidence, summary.measured) == (2, 2, 2, 0)
    assert (summary.unchanged, [(turn.before, turn.after, turn.count) for turn in summary.changed]) == (
        1,
        [("pass", "partial", 1)],
    )
    assert (summary.success_lost, summary.success_gained, summary.criteria) == (1, 0, {"word_count": 1})
    first, second = versions(store, two)
    assert (first.version, first.verdict, second.version, second.verdict) == (1, "pass", 2, "partial")
    assert (second.reason, second.result.verified_at, second.created_at) == ("the threshold moved", NOW, NOW)
    assert second.criteria_digest == summary.criteria_digest != first.criteria_digest
    assert [one.version for one in versions(store, three)] == [1, 2]


def test_running_again_changes_nothing(store: Store) -> None:
    one = put(store, {"text": "two words"})
    again(store)
    summary = again(store)
    assert (summary.rescored, summary.skipped) == (0, {Skip.ALREADY: 1})
    assert len(versions(store, one)) == 2


def test_a_dry_run_says_the_same_and_records_nothing(store: Store) -> None:
    one = put(store, {"text": "two words"})
    planned = again(store, dry_run=True)
    assert len(versions(store, one)) == 1
    done = again(store)
    same = {"seconds": 0.0, "dry_run": False}
    assert msgspec.structs.replace(planned, **same) == msgspec.structs.replace(done, **same)


def test_only_the_chosen_outcomes_are_rescored(store: Store) -> None:
    ours = put(store, {"text": "two words"}, labels=Labels(contract_id="k", agent_id="ada"))
    theirs = put(store, {"text": "two words"}, labels=Labels(contract_id="j"))
    assert again(store, narrowed=OutcomeFilter(agent_id="ada")).rescored == 1
    assert (len(versions(store, ours)), len(versions(store, theirs))) == (2, 1)
    # A rescored outcome no longer is what it was chosen for, and the rest are still found.
    assert again(store, OTHER, narrowed=OutcomeFilter(verdict="pass")).rescored == 1
    assert (len(versions(store, ours)), len(versions(store, theirs))) == (2, 2)


def test_an_empty_store_is_no_trouble(store: Store) -> None:
    summary = again(store)
    assert (summary.examined, summary.rescored, summary.skipped) == (0, 0, {})


def test_criteria_that_the_engine_refuses_change_nothing(store: Store) -> None:
    put(store, {"text": "two words"})
    with pytest.raises(VerificationRefusal, match="max_criteria_per_task"):
        again(store, engine=VerificationEngine(max_criteria_per_task=1))


# Where the evidence comes from.


def sources(old: SuccessCriteria, new: SuccessCriteria, engine: VerificationEngine | None = None) -> EvidenceSources:
    engine = engine or VerificationEngine()
    return EvidenceSources(engine.compile(new), engine.compile(old))


def test_thresholds_weights_and_order_ask_nothing_new() -> None:
    new = criteria_of({**LATENCY, "threshold": 1, "weight": 3}, {**WORDS, "comparison": "lt"}, {**WORDS, "id": "again"})
    stored = VerificationEngine().verify_sync("c", {}, {"text": "a b"}, OLD, {"duration_ms": 5})
    assert sources(OLD, new).of(stored) == (1, 0, 0)


@pytest.mark.parametrize(
    "part",
    [
        {"metric": "output_length", "metric_type": "count", "comparison": "gte", "threshold": 2},
        {"metric": "contains_keywords", "metric_type": "contains", "comparison": "contains_all", "threshold": ["b"]},
        {
            "metric": "contains_keywords",
            "metric_type": "contains",
            "comparison": "gte",
            "threshold": 1,
            "params": {"keywords": ["a"], "whole_word": True},
        },
        {"expr": "size(output.text) + 1", "metric_type": "numeric", "comparison": "gte", "threshold": 1},
        {"assert": "nobody_checks_this"},
    ],
)
def test_another_question_needs_the_work(part: dict[str, Any]) -> None:
    keywords = {"metric_type": "contains", "comparison": "contains_all", "threshold": ["a"]}
    old = criteria_of(
        {"metric": "contains_keywords", **keywords},
        {"expr": "size(output.text)", "metric_type": "numeric", "comparison": "gte", "threshold": 1},
        {"assert": "nobody_checks_this"},
    )
    assert not sources(old, criteria_of(part)).possible
    stored = VerificationEngine().verify_sync("c", {}, {"text": "a b"}, old)
    assert sources(old, criteria_of(part)).of(stored) is None


def test_equal_code_and_equal_keywords_are_the_same_question() -> None:
    code = "def metric(input, output, metadata):\n    return {'half': 0.5}\n"
    half = {"metric": "half", "metric_type": "numeric", "comparison": "gte", "threshold": 0.1}
    size = {"expr": "size(output.text)", "metric_type": "numeric", "comparison": "gte", "threshold": 1}
    words = {"metric": "contains_keywords", "metric_type": "contains", "comparison": "contains_all"}
    custom = [{"metrics": ["half"], "code": code}]
    old = criteria_of(half, size, {**words, "threshold": ["a", "b"]}, custom_metrics=custom)
    new = criteria_of(
        {**size, "threshold": 9},
        {**half, "threshold": 0.9},
        {**words, "threshold": ["a", "b"], "weight": 2},
        custom_metrics=custom,
    )
    engine = VerificationEngine()
    stored = engine.verify_sync("c", {}, {"text": "a b"}, old)
    assert stored.verdict is Verdict.PASS
    assert sources(old, new, engine).of(stored) == (1, 0, 2)
    changed = criteria_of(half, custom_metrics=[{"metrics": ["half"], "code": code.replace("0.5", "0.6")}])
    assert not sources(old, changed, engine).possible


def test_what_a_threshold_made_of_a_value_is_not_the_value() -> None:
    share = {"metric": "confidence", "metric_type": "percentage", "comparison": "gte", "threshold": 0.5}
    number = {"metric": "confidence", "metric_type": "numeric", "comparison": "gte", "threshold": 0.5}
    stored = VerificationEngine().verify_sync("c", {}, {"confidence": 7}, criteria_of(share))
    assert stored.criterion_results[0].cause is Cause.OUT_OF_DOMAIN
    assert sources(criteria_of(share), criteria_of(number)).of(stored) is None
    # Where another criterion judged the value, it is on record.
    both = criteria_of(share, {**number, "id": "n"})
    stored = VerificationEngine().verify_sync("c", {}, {"confidence": 7}, both)
    assert sources(both, criteria_of(number)).of(stored) == (1,)


def test_absence_that_the_work_causes_is_evidence_and_other_absence_is_not() -> None:
    stored = VerificationEngine().verify_sync("c", {}, {"text": "a b"}, OLD)
    assert stored.criterion_results[1].cause is Cause.METRIC_MISSING
    assert sources(OLD, STRICTER).of(stored) == (0, 1)
    crashed = msgspec.structs.replace(stored.criterion_results[1], cause=Cause.EXTRACTOR_ERROR)
    stored = msgspec.structs.replace(stored, criterion_results=[stored.criterion_results[0], crashed])
    assert sources(OLD, STRICTER).of(stored) is None


def test_other_versions_need_the_work() -> None:
    stored = VerificationEngine().verify_sync("c", {}, {"text": "a b"}, OLD, {"duration_ms": 1})
    for changed in ({"engine": "0"}, {"word_count": "0"}):
        other = msgspec.structs.replace(stored, versions={**stored.versions, **changed})
        assert sources(OLD, STRICTER).of(other) is None
    cut = msgspec.structs.replace(stored, criterion_results=stored.criterion_results[:1])
    assert sources(OLD, STRICTER).of(cut) is None


class Stranger(MetricExtractor):
    """Counts words too, and says where from."""

    def __init__(self, provenance: Provenance = Provenance.COMPUTED, found: Any = 7.0) -> None:
        self.provenance, self._found = provenance, found

    def supported_metrics(self) -> list[str]:
        return ["word_count", "engine"]

    async def extract(self, task_input: Any, task_output: Any, metadata: Any) -> Any:
        return {"word_count": self._found, "engine": 1.0}


def test_a_value_from_elsewhere_is_another_value() -> None:
    words = criteria_of(WORDS)
    stored = VerificationEngine().verify_sync("c", {}, {"text": "a b"}, words)
    # The same name and the same version, and yet another metric: what it is by itself differs.
    assert sources(words, words, VerificationEngine({"s": Stranger()})).of(stored) is None
    claimed = VerificationEngine({"s": Stranger(Provenance.CLAIMED)})
    stored = claimed.verify_sync("c", {}, {}, words)
    assert sources(words, words, claimed).of(stored) == (0,)
    assert sources(words, words, VerificationEngine({"s": Stranger()})).of(stored) is None


def test_of_two_metrics_under_one_label_nothing_is_known() -> None:
    engine = VerificationEngine({"s": Stranger()})
    called_engine = criteria_of({**WORDS, "metric": "engine"}, WORDS)
    stored = engine.verify_sync("c", {}, {}, called_engine)
    assert sources(called_engine, criteria_of(WORDS), engine).of(stored) is None


def test_what_does_not_apply_is_evidence() -> None:
    engine = VerificationEngine({"s": Stranger(found=Skipped("not here"))})
    words = criteria_of(WORDS)
    stored = engine.verify_sync("c", {}, {}, words)
    assert sources(words, criteria_of({**WORDS, "weight": 2}), engine).of(stored) == (0,)


def test_a_check_is_asked_again_only_when_it_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    half = Check("half", "Half of it.", lambda _assertion: lambda _work: Checked("1/2"))
    checks.names()
    monkeypatch.setitem(checks._found, "half", half)
    old, new = criteria_of({"assert": "half", "of": 1}), criteria_of({"assert": "half", "of": 1, "weight": 2})
    engine = VerificationEngine()
    stored = VerificationResult.from_json(engine.verify_sync("c", {}, {}, old).to_json())
    assert sources(old, new).of(stored) == (0,)
    (judged,) = judge_rows(RescoreTask(engine, new, NOW), [RescoreRow(stored, (0,))])
    assert (judged.verdict, judged.score) == (Verdict.PARTIAL, 0.5)
    assert not sources(old, criteria_of({"assert": "half", "of": 2})).possible
    monkeypatch.setitem(checks._found, "half", msgspec.structs.replace(half, version="2"))
    assert sources(old, new).of(stored) is None


def test_a_criterion_that_nobody_can_answer_needs_no_work(store: Store) -> None:
    put(store, {"text": "two words"})
    unknown = criteria_of({**WORDS, "metric": "nobody"}, LATENCY)
    assert again(store, unknown).from_evidence == 1


# Equal to a fresh verification.

metric_parts = st.sampled_from(
    [
        {"metric": "word_count", "metric_type": "count"},
        {"metric": "word_count", "metric_type": "numeric"},
        {"metric": "latency_ms", "metric_type": "latency"},
        {"metric": "confidence", "metric_type": "percentage"},
        {"metric": "confidence", "metric_type": "numeric"},
        {"metric": "accuracy", "metric_type": "accuracy"},
        {"metric": "contains_keywords", "metric_type": "contains", "params": {"keywords": ["two", "four"]}},
        {"metric": "contains_keywords", "metric_type": "percentage", "params": {"keywords": ["two"]}},
        {"metric": "nobody_measures_this", "metric_type": "numeric"},
    ]
)
asked = st.builds(
    lambda part, comparison, threshold, more: {**part, "comparison": comparison, "threshold": threshold, **more},
    metric_parts,
    st.sampled_from(["gte", "lt", "eq"]),
    st.sampled_from([0, 0.5, 1]),
    st.fixed_dictionaries(
        {}, optional={"weight": st.sampled_from([0.5, 2]), "missing": st.just("exclude"), "axis": st.just("a")}
    ),
) | st.builds(
    lambda words: {
        "metric": "contains_keywords",
        "metric_type": "contains",
        "comparison": "contains_any",
        "threshold": words,
    },
    st.sampled_from([["two"], ["four", "two"]]),
)
any_criteria = st.builds(
    lambda parts, aggregation: criteria_of(*parts, aggregation=aggregation),
    st.lists(asked, min_size=1, max_size=5),
    st.sampled_from(["all", "any", "weighted"]),
)
any_work = st.tuples(
    st.fixed_dictionaries({}, optional={"ground_truth": st.just(["a", "b"])}),
    st.fixed_dictionaries(
        {},
        optional={
            "text": st.sampled_from(["one two three", "", "two"]),
            "confidence": st.sampled_from([0.7, 7, -1, True, "sure", 2**70, None]),
            "predictions": st.sampled_from([["a", "b"], ["a", "c"], []]),
        },
    ),
    st.fixed_dictionaries({}, optional={"duration_ms": st.sampled_from([1, 0.5, 1e300, "quick"])}),
)


@given(any_criteria, any_criteria, any_work)
def test_evidence_and_work_give_what_a_fresh_verification_gives(
    old: SuccessCriteria, new: SuccessCriteria, work: tuple[dict[str, Any], dict[str, Any], dict[str, Any]]
) -> None:
    engine = VerificationEngine()
    before = engine.verify_sync("c", work[0], work[1], old, work[2])
    stored = VerificationResult.from_json(before.to_json())
    fresh = msgspec.structs.replace(engine.verify_sync("c", work[0], work[1], new, work[2]), verified_at=NOW)
    task = RescoreTask(engine, new, NOW)
    kept = OutcomeWork(*(json.dumps(part, sort_keys=True).encode() for part in work))
    rows = [RescoreRow(stored, None, kept)]
    chosen = sources(old, new, engine).of(stored)
    if chosen is not None:
        rows.append(RescoreRow(stored, chosen))
    for judged in judge_rows(task, rows):
        assert judged.to_json() == fresh.to_json()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=15)
@given(any_criteria, any_criteria, st.lists(any_work, min_size=1, max_size=3))
def test_records_are_rescored_to_what_a_fresh_verification_gives(
    tmp_path_factory: pytest.TempPathFactory, old: SuccessCriteria, new: SuccessCriteria, works: list[Any]
) -> None:
    engine = VerificationEngine()
    store = Store.open(Location(tmp_path_factory.mktemp("records")))
    try:
        registrar = Registrar(engine, store)
        # Criteria that cannot be answered are refused where work is handed in, and may still be on record.
        ready = engine.compile(old)
        ids = [
            registrar.record_sync("default", registrar.judge_sync(ready, Submission(*work))).outcome_id
            for work in works
        ]
        # Once from results in rows, then from results in segments.
        for criteria in (new, old, new):
            again(store, criteria)
            for name, work in zip(ids, works, strict=True):
                fresh = engine.verify_sync(name, work[0], work[1], criteria, work[2])
                stored = result(store, name)
                assert msgspec.structs.replace(stored, verified_at=fresh.verified_at).to_json() == fresh.to_json()
    finally:
        store.close()


def test_numbers_of_their_own_are_judged_one_for_all(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = (
        criteria_of(
            {"metric": "confidence", "metric_type": "numeric", "comparison": "gte", "threshold": threshold}, WORDS
        )
        for threshold in (0.5, 0.7)
    )
    ids = [put(store, {"text": "two words", "confidence": number / 10}, old) for number in range(10)]
    made: list[VerificationResult] = []
    of = RescoredVerdict.of

    def count(result: VerificationResult) -> RescoredVerdict:
        made.append(result)
        return of(result)

    monkeypatch.setattr(RescoredVerdict, "of", count)
    for criteria, rate in ((new, 3), (old, 5)):
        assert again(store, criteria).from_evidence == 10
        assert sum(result(store, one).success for one in ids) == rate
        assert [result(store, one).criterion_results[0].value for one in ids] == [number / 10 for number in range(10)]
    # Once for each way that they ended before and end now: from rows, and from segments.
    assert len(made) == 3 + 3


def test_a_few_of_a_segment_are_judged_as_all_are(store: Store) -> None:
    ids = [put(store, {"text": "two words"}, labels=Labels(agent_id=f"a{number // 2}")) for number in range(40)]
    again(store)
    assert again(store, OLD, narrowed=OutcomeFilter(agent_id="a7")).from_evidence == 2
    assert [len(versions(store, one)) for one in ids] == [2 + (number // 2 == 7) for number in range(40)]
    assert result(store, ids[14]).verdict is Verdict.PASS


def test_neighbours_that_are_left_out_keep_their_version(store: Store) -> None:
    ids = [
        put(store, {"text": "two words"}, labels=Labels(agent_id="ada" if number % 3 else "bob")) for number in range(9)
    ]
    for criteria in (STRICTER, OLD):
        assert again(store, criteria, narrowed=OutcomeFilter(agent_id="ada")).rescored == 6
    assert [len(versions(store, one)) for one in ids] == [3 if number % 3 else 1 for number in range(9)]
    with store.database.reading() as connection:
        latest = connection.execute(select(tables.outcomes.c.version).order_by(tables.outcomes.c.seq)).scalars().all()
    assert latest == [3 if number % 3 else 1 for number in range(9)]


def test_every_digit_of_stored_work_is_measured(store: Store) -> None:
    number = 123456789012345678901234567890
    one = put(store, {"text": "two words", "n": number})
    before = result(store, one)
    assert again(store, OTHER).measured == 1
    after = result(store, one)
    assert (after.input_digest, after.output_digest, after.metadata_digest) == (
        *(before.input_digest, before.output_digest),
        before.metadata_digest,
    )


# Governance.


class Suspicious(GovernanceClient):
    """Says the same of everything."""

    def __init__(self, valid: bool) -> None:
        self._valid, self.asked = valid, 0

    async def validate_outcome(self, contract_id: str, claimed_metrics: Any, execution_context: Any) -> Any:
        self.asked += 1
        return type("Answer", (), {"valid": self._valid, "flags": ["seen"]})()


@pytest.mark.parametrize("criteria", [STRICTER, OTHER])
@pytest.mark.parametrize(
    ("valid", "status", "success"), [(True, GovernanceStatus.CLEAR, True), (False, GovernanceStatus.INVALID, False)]
)
def test_what_governance_said_is_carried_over_and_not_asked_again(
    store: Store, criteria: SuccessCriteria, valid: bool, status: GovernanceStatus, success: bool
) -> None:
    governance = Suspicious(valid)
    engine = VerificationEngine(governance=governance)
    one = put(store, {"text": "these are four words"}, engine=engine)
    again(store, criteria, engine=engine)
    after = result(store, one)
    assert governance.asked == 1
    assert engine.governance is governance
    assert (after.governance, after.success, after.governance_flags) == (status, success, ["seen"])
    assert [reason.code for reason in after.reasons] == ([] if valid else ["governance_invalid"])


# What is left alone.


def test_what_was_erased_is_left_alone_and_counted(store: Store) -> None:
    gone, kept = put(store, {"text": "two words"}), put(store, {"text": "other words"})
    erase(store, "default", gone, "asked to")
    summary = again(store)
    assert (summary.rescored, summary.skipped) == (1, {Skip.NO_RESULT: 1})
    assert (len(versions(store, gone)), len(versions(store, kept))) == (1, 2)


def test_without_the_work_the_evidence_may_still_do(store: Store) -> None:
    one = put(store, {"text": "two words"})
    with store.database.writer.begin() as connection:
        connection.execute(update(tables.outcomes).values(output_address=None))
    assert again(store, OTHER).skipped == {Skip.ERASED: 1}
    assert again(store).rescored == 1
    assert len(versions(store, one)) == 2


def test_work_that_was_tampered_with_is_left_alone(store: Store) -> None:
    put(store, {"text": "two words"})
    put(store, {"text": "x" * 100_000})
    with store.database.writer.begin() as connection:
        changed = update(tables.blobs).where(tables.blobs.c.content.is_not(None))
        connection.execute(changed.values(content=b'{"text": "a better answer"}'))
    assert again(store, OTHER).skipped == {Skip.UNREADABLE: 2}


def test_large_works_are_measured_from_their_files_and_a_few_at_a_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "MAX_GROUP_BYTES", 150_000)
    for number in range(3):
        put(store, {"text": f"{number} " + "x" * 100_000})
    steps: list[tuple[int, int]] = []
    assert again(store, OTHER, progress=lambda *step: steps.append(step)).measured == 3
    assert steps == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_what_cannot_be_judged_at_all_is_no_version(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one = put(store, {"text": "two words"})

    def broken(*_: Any) -> NoReturn:
        raise RuntimeError("a fault of ours")

    for name in ("meruit.verify.engine.measure", "meruit.judge.bulk.conclude"):
        monkeypatch.setattr(name, broken)
    assert again(store, OTHER).skipped == {Skip.NOT_MEASURED: 1}
    assert len(versions(store, one)) == 1


def test_old_criteria_that_nobody_can_read_any_more_cost_the_short_way_only(store: Store) -> None:
    put(store, {"text": "two words"})
    with store.database.writer.begin() as connection:
        connection.execute(update(tables.criteria).values(body=b'{"criteria":[{"metric":"word_count"}]}'))
    assert again(store).measured == 1


def test_only_some_sets_of_old_criteria_are_remembered(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescoring, "MAX_SETS", 2)
    for threshold in (1, 2, 1, 4, 5):
        put(store, {"text": "two words"}, criteria_of({**WORDS, "threshold": threshold}, LATENCY))
    assert again(store).from_evidence == 5


# Interruptions and rivals.


def test_after_an_interruption_it_goes_on_where_it_stopped(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH", 2)
    monkeypatch.setattr(rescoring, "TOGETHER", 1)
    ids = [put(store, {"text": f"words {number}"}) for number in range(5)]

    def stop(done: int, _total: int) -> None:
        if done >= 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        again(store, progress=stop)
    assert [len(versions(store, name)) for name in ids] == [2, 2, 1, 1, 1]
    assert again(store).skipped == {Skip.ALREADY: 2}
    assert [len(versions(store, name)) for name in ids] == [2] * 5


def test_a_few_segments_share_a_transaction(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH", 2)
    for number in range(11):
        put(store, {"text": f"words {number}"})
    notices: list[int] = []
    store.recorder.listen(lambda notice: notices.append(len(notice.emitted)))
    steps: list[int] = []
    assert again(store, progress=lambda done, _total: steps.append(done)).rescored == 11
    assert (notices, steps) == ([4, 2], [2, 4, 6, 8, 10, 11])
    # What is judged one by one is written at once: its work may be large.
    monkeypatch.setattr(RescoreTask, "measure", lambda *_: None)
    notices.clear()
    assert again(store, OTHER).measured == 11
    assert notices == [1] * 6


def test_what_was_judged_before_an_error_is_written(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH", 2)
    ids = [put(store, {"text": f"words {number}"}) for number in range(6)]
    again(store)
    with store.database.writer.begin() as connection:
        leaf = select(tables.verdict_runs.c.leaf).order_by(tables.verdict_runs.c.leaf.desc()).limit(1).scalar_subquery()
        address = select(tables.verdict_segments.c.address).where(tables.verdict_segments.c.leaf == leaf)
        connection.execute(
            update(tables.blobs).where(tables.blobs.c.address == address.scalar_subquery()).values(content=b"damaged")
        )
    with pytest.raises(StoreError):
        again(store, OLD)
    with store.database.reading() as connection:
        latest = connection.execute(select(tables.outcomes.c.version).order_by(tables.outcomes.c.seq)).scalars().all()
    assert latest == [3, 3, 3, 3, 2, 2]
    assert [len(versions(store, one)) for one in ids[:4]] == [3] * 4


def test_a_refused_segment_does_not_hold_up_those_before_it(store: Store) -> None:
    # Any: parts that are only told apart.
    written: list[Any] = []
    parts: list[Any] = [1, 2, 3, 4]

    def refuse(several: AddSeveral) -> list[list[RecordedVersion]]:
        if parts[2] in several.parts:
            raise RecordTampered("the third")
        written.extend(several.parts)
        return [[RecordedVersion(str(one), 2, 0)] for one in several.parts]

    assert [found[0].outcome_id for found in write_together(refuse, parts[:2])] == ["1", "2"]
    for several in (parts, parts[2:]):
        written.clear()
        with pytest.raises(RecordTampered):
            write_together(refuse, several)
        assert written == [one for one in several if one < 3]


def test_results_in_rows_of_many_kinds_are_judged_as_they_are(store: Store) -> None:
    # More kinds of results than are compared with at once, and more than are learnt in one page.
    engines = [
        VerificationEngine({"s": Stranger(found=Measured(2.0 + kind % 3, {"kind": kind}))}) for kind in range(50)
    ]
    new = criteria_of({**WORDS, "threshold": 3})
    ids = [put(store, {"text": ""}, criteria_of(WORDS), engine=engines[number % 50]) for number in range(150)]
    assert again(store, new, engine=engines[0]).from_evidence == 150
    for number, one in enumerate(ids):
        fresh = engines[number % 50].verify_sync(one, {}, {"text": ""}, new, {"duration_ms": 100})
        assert result(store, one).to_json() == msgspec.structs.replace(fresh, verified_at=NOW).to_json()


def test_digests_that_would_be_written_otherwise_are_no_match(store: Store) -> None:
    first, second = put(store, {"text": "two words"}), put(store, {"text": "two more words"})
    digest = result(store, second).output_digest or ""
    table = tables.verdicts.c
    with store.database.writer.begin() as connection:
        row = connection.execute(select(table.result).where(table.outcome_id == second)).scalar_one()
        changed = bytes(row).replace(digest.encode(), digest.upper().encode())
        connection.execute(update(tables.verdicts).where(table.outcome_id == second).values(result=changed))
    assert again(store).from_evidence == 2
    assert (result(store, second).output_digest, len(versions(store, first))) == (digest.upper(), 2)


def test_what_is_recorded_meanwhile_is_not_waited_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH", 1)
    put(store, {"text": "two words"})

    def one_more(_done: int, _total: int) -> None:
        put(store, {"text": "and more words"})

    assert again(store, progress=one_more).examined == 1


def test_two_rescores_at_once_double_no_version(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH", 3)
    ids = [put(store, {"text": f"words {number}"}) for number in range(30)]
    summaries: list[RescoreSummary] = []
    meeting = threading.Barrier(4)

    def run() -> None:
        meeting.wait()
        summaries.append(again(store))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(summary.rescored for summary in summaries) == 30
    assert all(summary.rescored + sum(summary.skipped.values()) == 30 for summary in summaries)
    assert [[one.version for one in versions(store, name)] for name in ids] == [[1, 2]] * 30


def test_whoever_is_quicker_keeps_the_version(store: Store) -> None:
    one = put(store, {"text": "two words"})

    class Slow(LocalRunner):
        def judge(self, task: RescoreTask, waiting: Any) -> Any:
            for pair in super().judge(task, waiting):
                again(store, OTHER)
                yield pair

    summary = rescore(
        store,
        VerificationEngine(),
        "default",
        STRICTER,
        narrowed=None,
        reason="late",
        runner=Slow(),
        now=NOW,
        progress=lambda *_: None,
    )
    assert (summary.rescored, summary.skipped) == (0, {Skip.QUICKER: 1})
    assert [found.reason for found in versions(store, one)] == ["", "the threshold moved"]


KILLED = """
import os, signal, sys
from datetime import UTC, datetime
from pathlib import Path
from meruit import SuccessCriteria, VerificationEngine
from meruit.outcomes.rescore.run import LocalRunner, rescore
from meruit.outcomes.rescore import run
from meruit.outcomes.store import batches
from meruit.store.location import Location
from meruit.store.store import Store
batches.BATCH, run.TOGETHER = 1, 2
def progress(done, total):
    if done >= 3:
        os.kill(os.getpid(), signal.SIGKILL)
criteria = SuccessCriteria.model_validate_json(sys.argv[2])
rescore(Store.open(Location(Path(sys.argv[1]))), VerificationEngine(), "default", criteria, narrowed=None,
        reason="r", runner=LocalRunner(), now=datetime.now(UTC), progress=progress, dry_run=False)
"""


def test_a_killed_process_leaves_whole_versions_and_the_next_one_finishes(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    store = Store.open(Location(folder))
    ids = [put(store, {"text": f"words {number}"}) for number in range(7)]
    store.close()
    written = STRICTER.model_dump_json()
    ended = subprocess.run([sys.executable, "-c", KILLED, str(folder), written], check=False, timeout=120)
    assert ended.returncode == -signal.SIGKILL
    store = Store.open(Location(folder))
    try:
        assert [len(versions(store, name)) for name in ids] == [2, 2, 2, 2, 1, 1, 1]
        again(store)
        assert [[one.version for one in versions(store, name)] for name in ids] == [[1, 2]] * 7
    finally:
        store.close()


def test_a_missing_finding_with_details_is_carried_whole() -> None:
    engine = VerificationEngine({"s": Stranger(found=Missing("no", Cause.TOO_COSTLY, details={"n": 1}))})
    words, new = criteria_of(WORDS), criteria_of({**WORDS, "threshold": 9})
    stored = VerificationResult.from_json(engine.verify_sync("c", {}, {}, words).to_json())
    chosen = sources(words, new, engine).of(stored)
    (judged,) = judge_rows(RescoreTask(engine, new, NOW), [RescoreRow(stored, chosen)])
    fresh = msgspec.structs.replace(engine.verify_sync("c", {}, {}, new), verified_at=NOW)
    assert judged.to_json() == fresh.to_json()


def test_a_metric_that_says_where_its_value_is_from_is_measured_again() -> None:
    engine = VerificationEngine({"s": Stranger(found=Measured(3.0, provenance=Provenance.CLAIMED))})
    words = criteria_of(WORDS)
    assert sources(words, words, engine).of(engine.verify_sync("c", {}, {}, words)) is None
