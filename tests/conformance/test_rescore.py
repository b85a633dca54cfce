"""Rescoring in every kind of store: what is judged in bulk is recorded as what is judged one by one."""

import itertools
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update
from tests.outcomes.making import together

from meruit import SuccessCriteria, VerificationEngine
from meruit.audit.check import check_store
from meruit.log.entries import VersionSegmentEntry, criteria_digest_of, read_entry
from meruit.log.segment import segment_root, version_bytes
from meruit.model.access import Scope
from meruit.model.canonical import canonical
from meruit.model.outcome import Labels
from meruit.outcomes.rescore import in_bulk
from meruit.outcomes.rescore import run as rescoring
from meruit.outcomes.rescore.in_bulk import BulkJudging, JudgedPage, PlainOutcome
from meruit.outcomes.rescore.run import LocalRunner, RescoreSummary, RescoreTask, Skip, rescore
from meruit.outcomes.segment import PackedVersions, pack_version
from meruit.outcomes.service import Registrar, Submission
from meruit.outcomes.store import batches
from meruit.outcomes.store import read as outcomes
from meruit.outcomes.store import versions as versions_module
from meruit.outcomes.store.batches import OutcomePlace
from meruit.outcomes.store.read import OutcomeFilter, OutcomeWork
from meruit.outcomes.store.rescored import AddRescored, RescoredResult, RescoredVersions
from meruit.outcomes.store.segments import SegmentReader
from meruit.outcomes.store.versions import MAX_SPAN, VersionReader, VersionRun, can_form_run, pack_offsets
from meruit.outcomes.store.write import AddVersions, NewVersion
from meruit.store import tables
from meruit.store.store import Store

NOW = datetime(2026, 7, 1, tzinfo=UTC)
WORDS = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 2}
SURE = {"metric": "confidence", "metric_type": "numeric", "comparison": "gte", "threshold": 0.5}
LENGTH = {"metric": "output_length", "metric_type": "count", "comparison": "gte", "threshold": 12}


def criteria_of(*parts: dict[str, Any]) -> SuccessCriteria:
    return SuccessCriteria.model_validate({"criteria": list(parts)})


OLD = criteria_of(WORDS, SURE)
STRICTER = criteria_of({**WORDS, "threshold": 3}, {**SURE, "threshold": 0.7})
OTHER = criteria_of(LENGTH, SURE)
OUTPUTS = [{"text": f"{'word ' * (number % 5)}{number}", "confidence": number / 10} for number in range(9)]


def put(store: Store, output: dict[str, Any], tenant: str = "default", agent: str | None = None) -> str:
    registrar = Registrar(VerificationEngine(), store)
    work = Submission({"question": "?"}, output, {"duration_ms": 100}, Labels(agent_id=agent))
    judged = registrar.judge_sync(registrar.compile(OLD), work)
    return registrar.record_sync(tenant, judged).outcome_id


def again(store: Store, criteria: SuccessCriteria, narrowed: OutcomeFilter | None = None) -> RescoreSummary:
    return rescore(
        store,
        VerificationEngine(),
        "default",
        criteria,
        narrowed=narrowed,
        reason="the threshold moved",
        runner=LocalRunner(),
        now=NOW,
        progress=lambda _done, _total: None,
    )


def check_latest(
    store: Store, ids: Sequence[str], outputs: Sequence[dict[str, Any]], criteria: SuccessCriteria
) -> None:
    """The latest result of each is what a fresh verification gives, to the byte."""
    engine = VerificationEngine()
    with store.database.reading() as connection:
        for name, output in zip(ids, outputs, strict=True):
            stored = outcomes.versions(connection, Scope("default"), name)[-1].result
            fresh = engine.verify_sync(name, {"question": "?"}, output, criteria, {"duration_ms": 100})
            assert stored is not None
            assert stored.to_json() == msgspec.structs.replace(fresh, verified_at=NOW).to_json()


def check_rows(store: Store, *, tampered: bool = False) -> None:
    """Each row and run of a segment says what the segment does, as does the entry of the log; so do the outcomes."""
    with store.database.reading() as connection:
        reader = VersionReader(connection, "default")
        rows = connection.execute(select(tables.outcomes).where(tables.outcomes.c.tenant == "default")).all()
        versions = reader.of_many({row.id: row.seq for row in rows})
        places: dict[int, list[int]] = {}
        for row in rows:
            found = [reader.complete(one) for one in versions[row.id]]
            assert [one.version for one in found] == [*range(1, row.version + 1)]
            for one in found:
                if one.place is not None:
                    content = reader.segments.segment(one.leaf).content(one.place)
                    assert (one.outcome_id, one.version, one.verdict) == (
                        *(content.outcome, content.version, content.verdict),
                    )
                    assert (one.success, one.score) == (content.success, float(Fraction(content.score)))
                    assert (one.reason, one.salt, one.result) == ("the threshold moved", None, None)
                    places.setdefault(one.leaf, []).append(one.place)
            last = found[-1]
            assert (row.verdict, row.score, row.success) == (last.verdict, last.score, last.success)
            assert row.criteria_digest == last.criteria_digest
        for leaf, several in places.items():
            body = connection.execute(select(tables.log_leaves.c.body).where(tables.log_leaves.c.seq == leaf)).scalar()
            entry, contents = read_entry(bytes(body or b"")), reader.segments.segment(leaf).contents()
            assert isinstance(entry, VersionSegmentEntry)
            assert entry.root == segment_root([version_bytes(one.entry()) for one in contents]).hex()
            assert sorted(several) == [*range(len(contents))]
    assert (check_store(store).problems != []) is tampered


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a few outcomes."""
    monkeypatch.setattr(versions_module, "MIN_RUN", 1)


@pytest.fixture
def in_one_pass(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many outcomes were measured in bulk, page by page."""
    counted: list[int] = []

    def count(*arguments: Any) -> JudgedPage:
        judged = in_bulk.measure_page(*arguments)
        counted.append(len(judged.before))
        return judged

    monkeypatch.setattr(rescoring, "measure_page", count)
    return counted


def test_each_way_gives_what_a_fresh_verification_gives(store: Store, in_one_pass: list[int]) -> None:
    ids = [put(store, output) for output in OUTPUTS]
    # From rows; then from segments, by evidence and measured, in turns.
    for criteria, measured in ((STRICTER, 0), (OLD, 0), (OTHER, 9), (STRICTER, 9), (OLD, 0)):
        summary = again(store, criteria)
        assert (summary.rescored, summary.measured) == (9, measured)
        check_latest(store, ids, OUTPUTS, criteria)
        check_rows(store)
    assert in_one_pass == [9, 9]


def test_outcomes_of_others_between_them_stay_as_they_are(store: Store) -> None:
    ids = []
    for number, output in enumerate(OUTPUTS):
        ids.append(put(store, output, agent="ada" if number % 4 else "bob"))
        put(store, output, tenant="another" if number < 5 else "default", agent="eve")
    for criteria in (STRICTER, OTHER, OLD):
        again(store, criteria, OutcomeFilter(agent_id="ada"))
        again(store, criteria, OutcomeFilter(agent_id="bob"))
        check_latest(store, ids, OUTPUTS, criteria)
        check_rows(store)
    # Neighbours of several versions, all together.
    assert again(store, STRICTER).rescored == 13
    check_latest(store, ids, OUTPUTS, STRICTER)
    check_rows(store)


def test_what_has_to_be_measured_for_itself_comes_with_its_work(
    store: Store, monkeypatch: pytest.MonkeyPatch, in_one_pass: list[int]
) -> None:
    ids = [put(store, output) for output in OUTPUTS]
    again(store, STRICTER)
    measure = RescoreTask.measure

    def refuse(self: RescoreTask, alike: Any, work: OutcomeWork, digests: Any) -> Any:
        return None if b"word word" in (work.output or b"") else measure(self, alike, work, digests)

    monkeypatch.setattr(RescoreTask, "measure", refuse)
    assert again(store, OTHER).measured == 9
    check_latest(store, ids, OUTPUTS, OTHER)
    check_rows(store)
    alone = sum("word word" in str(output["text"]) for output in OUTPUTS)
    assert in_one_pass == [9 - alone]
    assert 0 < alone < 9


def test_numbers_that_are_impossible_now_are_judged_one_by_one(store: Store) -> None:
    outputs = [*OUTPUTS, {"text": "word word", "confidence": 7}]
    ids = [put(store, output) for output in outputs]
    share = criteria_of(WORDS, {**SURE, "metric_type": "percentage"})
    # What was impossible is no evidence for others, and is measured again.
    for criteria, answered in ((STRICTER, 10), (share, 10), (OLD, 9)):
        assert again(store, criteria).from_evidence == answered
        check_latest(store, ids, outputs, criteria)
        check_rows(store)


def test_what_has_to_be_awaited_is_measured_one_by_one(store: Store, in_one_pass: list[int]) -> None:
    ids = [put(store, output) for output in OUTPUTS]
    again(store, STRICTER)
    half = {"metrics": ["half"], "code": "def metric(input, output, metadata):\n    return {'half': 0.5}\n"}
    part = {"metric": "half", "metric_type": "numeric", "comparison": "gte", "threshold": 0.5}
    halves = SuccessCriteria.model_validate({"criteria": [WORDS, part], "custom_metrics": [half]})
    summary = again(store, halves)
    assert (summary.measured, in_one_pass) == (9, [])
    check_latest(store, ids, OUTPUTS, halves)
    check_rows(store)


def test_work_that_is_gone_or_changed_is_counted_and_left(store: Store) -> None:
    ids = [put(store, output) for output in OUTPUTS]
    again(store, STRICTER)
    of = tables.outcomes.c
    with store.database.writer.begin() as connection:
        connection.execute(update(tables.outcomes).where(of.id == ids[0]).values(output_address=None))
        address = select(of.output_address).where(of.id == ids[1]).scalar_subquery()
        changed = update(tables.blobs).where(tables.blobs.c.address == address)
        connection.execute(changed.values(content=b'{"text": "a better answer"}'))
    summary = again(store, OTHER)
    assert (summary.examined, summary.measured) == (9, 7)
    assert summary.skipped == {Skip.ERASED: 1, Skip.UNREADABLE: 1}
    check_latest(store, ids[2:], OUTPUTS[2:], OTHER)
    check_rows(store, tampered=True)


def test_a_few_works_at_a_time_are_measured_too(
    store: Store, monkeypatch: pytest.MonkeyPatch, in_one_pass: list[int]
) -> None:
    outputs = [{**output, "text": f"{output['text']} {'x' * 9_000}"} for output in OUTPUTS]
    ids = [put(store, output) for output in outputs]
    again(store, STRICTER)
    monkeypatch.setattr(batches, "MAX_GROUP_BYTES", 40_000)
    assert again(store, OTHER).measured == 9
    assert in_one_pass == [4, 4, 1]
    check_latest(store, ids, outputs, OTHER)
    check_rows(store)


def test_a_version_is_packed_as_its_content_is(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [put(store, output) for output in OUTPUTS]
    again(store, STRICTER)
    made: list[PackedVersions] = []

    def keep(asking: Sequence[PlainOutcome], works: Any, task: BulkJudging, entropy: Any) -> JudgedPage:
        judged = in_bulk.measure_page(asking, works, task, entropy)
        made.append(judged.versions.packed)
        return judged

    monkeypatch.setattr(rescoring, "measure_page", keep)
    again(store, OTHER)
    with store.database.reading() as connection:
        leaf = connection.execute(
            select(tables.verdict_runs.c.leaf).where(tables.verdict_runs.c.version == 3)
        ).scalar_one()
        contents = SegmentReader(connection, "default").segment(leaf).contents()
    assert [one.outcome for one in contents] == ids
    again_packed = PackedVersions()
    for one in contents:
        again_packed.add(pack_version(one))
    (packed,) = made
    for column in PackedVersions.__slots__:
        assert getattr(packed, column) == getattr(again_packed, column)


def runs_of(store: Store) -> list[tuple[int, bool]]:
    """The version of each run, and whether outcomes of others stand between its own."""
    table = tables.verdict_runs
    with store.database.reading() as connection:
        rows = connection.execute(select(table).order_by(table.c.version, table.c.first_seq)).all()
    return [(row.version, row.offsets is not None) for row in rows]


def test_outcomes_near_each_other_share_a_run(store: Store) -> None:
    ids = []
    for number, output in enumerate(OUTPUTS):
        ids.append(put(store, output, agent="ada" if number % 4 else "bob"))
        put(store, output, tenant="another")
    again(store, STRICTER, OutcomeFilter(agent_id="ada"))
    again(store, STRICTER, OutcomeFilter(agent_id="bob"))
    again(store, OLD)
    # Of another tenant's outcomes and of other agents', none is taken for one of a run.
    assert runs_of(store) == [(2, True), (2, True), (3, True)]
    check_latest(store, ids, OUTPUTS, OLD)
    check_rows(store)


def test_few_outcomes_have_rows(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions_module, "MIN_RUN", 10)
    ids = [put(store, output) for output in OUTPUTS]
    again(store, STRICTER)
    assert runs_of(store) == []
    check_latest(store, ids, OUTPUTS, STRICTER)
    monkeypatch.setattr(versions_module, "MIN_RUN", 9)
    again(store, OLD)
    assert runs_of(store) == [(3, False)]
    check_latest(store, ids, OUTPUTS, OLD)
    check_rows(store)


def test_outcomes_far_from_each_other_have_rows(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions_module, "MAX_SPAN", 8)
    ids = [put(store, output) for output in OUTPUTS]
    again(store, STRICTER)
    assert runs_of(store) == []
    check_latest(store, ids, OUTPUTS, STRICTER)
    check_rows(store)
    # From rows into a run again.
    monkeypatch.setattr(versions_module, "MAX_SPAN", 9)
    again(store, OLD)
    assert runs_of(store) == [(3, False)]
    check_latest(store, ids, OUTPUTS, OLD)
    check_rows(store)


@given(st.lists(st.integers(1, MAX_SPAN // 48), min_size=1, max_size=80), st.integers(1, 10**9))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_run_knows_its_outcomes(steps: list[int], first: int) -> None:
    seqs = [first + step for step in itertools.accumulate(steps)]
    assert can_form_run(seqs) == (seqs[-1] - seqs[0] < MAX_SPAN)
    assert can_form_run([*seqs, seqs[-1]]) is can_form_run([*seqs, seqs[0]]) is False
    if can_form_run(seqs):
        run = VersionRun(seqs[0], 2, seqs[-1], 7, "digest", "", 0, pack_offsets(seqs))
        assert [*run.seqs()] == seqs
        assert (run.offsets is None) == (seqs == [*range(seqs[0], seqs[-1] + 1)])
        around = range(seqs[0] - 2, seqs[-1] + 3)
        assert {seq: place for seq in around if (place := run.place_of(seq)) is not None} == {
            seq: place for place, seq in enumerate(seqs)
        }


@pytest.mark.parametrize(
    "change",
    [
        # Any: statements of SQLAlchemy's.
        lambda of: update(of).where(of.c.seq == 2).values(version=1),
        lambda of: update(of).where(of.c.seq == 2).values(criteria_digest="0" * 64),
        lambda of: of.delete().where(of.c.seq == 2),
    ],
)
def test_outcomes_whose_rows_say_something_else_are_read_one_by_one(
    store: Store, change: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [put(store, output) for output in OUTPUTS]
    again(store, STRICTER)
    with store.database.writer.begin() as connection:
        connection.execute(change(tables.outcomes))
    read: list[bool] = []
    of = batches.RunScan.read

    def keep(*arguments: Any, **more: Any) -> Any:
        found = of(*arguments, **more)
        read.append(found is not None)
        return found

    monkeypatch.setattr(batches.RunScan, "read", keep)
    again(store, OLD)
    assert not any(read)
    left = [(one, output) for one, output in zip(ids, OUTPUTS, strict=True) if one != ids[1]]
    check_latest(store, [one for one, _ in left], [output for _, output in left], OLD)
    # Those that are left have versions of one number, with a gap.
    read.clear()
    again(store, OTHER, None)
    assert not any(read)


def test_outcomes_of_one_run_are_read_together(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH", 4)
    ids = [put(store, output) for output in OUTPUTS]
    again(store, STRICTER)
    monkeypatch.setattr(batches.PlaceQuery, "read", lambda *_, after, **__: [] if after == 9 else pytest.fail("rows"))
    again(store, OLD)
    assert again(store, OLD).skipped == {Skip.ALREADY: 9}
    check_latest(store, ids, OUTPUTS, OLD)
    check_rows(store)


def version_writes(store: Store, ids: Sequence[str], criteria: SuccessCriteria) -> tuple[AddRescored, AddVersions]:
    """The second version of outcomes, as a rescore writes it, and as a service does for one after the other."""
    engine, new = VerificationEngine(), RescoredVersions()
    body = canonical(criteria.model_dump(exclude_defaults=True))
    with store.database.reading() as connection:
        table = tables.outcomes
        rows = {row.id: row for row in connection.execute(select(table).where(table.c.id.in_(ids)))}
    single = []
    for number, one in enumerate(ids):
        result = engine.verify_sync(one, {}, {"text": "word word", "confidence": 0.9}, criteria)
        place = OutcomePlace(*(getattr(rows[one], name) for name in OutcomePlace._fields))
        new.add(place, RescoredResult.of(result), b"%016d" % number)
        single.append(NewVersion(one, 1, result, b"%016d" % number))
    rescored = AddRescored.of("default", (body, criteria_digest_of(body)), new, "the threshold moved", 0)
    return rescored, AddVersions("default", body, tuple(single), "the threshold moved")


@pytest.mark.parametrize("order", [*itertools.permutations(range(3), 2)])
def test_callers_of_one_transaction_double_no_version(store: Store, order: tuple[int, int]) -> None:
    ids = [put(store, output) for output in OUTPUTS]
    # Pages that overlap, and do not begin with the same outcome.
    front, _ = version_writes(store, ids[:6], STRICTER)
    back, single = version_writes(store, ids[3:], OTHER)
    writes: list[Any] = [front, back, single]
    first, second = together(store, [writes[one] for one in order])
    expected = {0: set(ids[:6]), 1: set(ids[3:]), 2: set(ids[3:])}
    assert {one.outcome_id for one in first} == expected[order[0]]
    assert {one.outcome_id for one in second} == expected[order[1]] - expected[order[0]]
    with store.database.reading() as connection:
        rows = connection.execute(select(tables.outcomes)).all()
        found = VersionReader(connection, "default").of_many({row.id: row.seq for row in rows})
    for row in rows:
        assert row.version == len(found[row.id])
        assert [one.version for one in found[row.id]] == [*range(1, row.version + 1)]
    assert check_store(store).problems == []


def test_what_is_judged_one_by_one_is_in_the_same_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [put(store, output) for output in OUTPUTS]
    again(store, STRICTER)
    measure = RescoreTask.measure

    def refuse(self: RescoreTask, alike: Any, work: OutcomeWork, digests: Any) -> Any:
        return None if b"word word" in (work.output or b"") else measure(self, alike, work, digests)

    monkeypatch.setattr(RescoreTask, "measure", refuse)
    again(store, OTHER)
    assert runs_of(store) == [(2, False), (3, False)]
    check_latest(store, ids, OUTPUTS, OTHER)
    check_rows(store)


def test_a_contract_of_a_client_may_be_named_as_ours_begin(store: Store) -> None:
    registrar = Registrar(VerificationEngine(), store)
    for number, output in enumerate(OUTPUTS):
        labels = Labels(contract_id="con_x") if number == 4 else Labels()
        work = Submission({"question": "?"}, output, {"duration_ms": 100}, labels)
        registrar.record_sync("default", registrar.judge_sync(registrar.compile(OLD), work))
    again(store, STRICTER)
    assert runs_of(store) == [(2, False)]
    check_rows(store)
