"""Rescoring in every kind of store: what is judged in bulk is recorded as what is judged one by one."""

from collections.abc import Sequence
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from sqlalchemy import select, update

from meruit import SuccessCriteria, VerificationEngine
from meruit.log.entries import VersionSegmentEntry, read_entry
from meruit.log.segment import segment_root, version_bytes
from meruit.model.access import Scope
from meruit.model.outcome import Labels
from meruit.outcomes.rescore import in_bulk
from meruit.outcomes.rescore import run as rescoring
from meruit.outcomes.rescore.in_bulk import BulkJudging, JudgedPage, PlainOutcome
from meruit.outcomes.rescore.run import LocalRunner, RescoreSummary, RescoreTask, Skip, rescore
from meruit.outcomes.segment import pack_version
from meruit.outcomes.service import Registrar, Submission
from meruit.outcomes.store import batches
from meruit.outcomes.store import read as outcomes
from meruit.outcomes.store.read import OutcomeFilter, OutcomeWork
from meruit.outcomes.store.segments import SegmentReader
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


def check_rows(store: Store) -> None:
    """Each row of a segment says what the segment does, as does the entry of the log; so do the outcomes."""
    of = tables.verdicts.c
    with store.database.reading() as connection:
        segments = SegmentReader(connection, "default")
        rows = connection.execute(select(tables.verdicts).where(of.tenant == "default", of.place.is_not(None))).all()
        for row in rows:
            content = segments.segment(row.leaf).content(row.place)
            assert (row.outcome_id, row.version, row.verdict) == (content.outcome, content.version, content.verdict)
            assert (row.success, row.score) == (content.success, float(Fraction(content.score)))
            assert (row.reason, row.salt, row.result) == ("the threshold moved", None, None)
        for leaf in {row.leaf for row in rows}:
            body = connection.execute(select(tables.log_leaves.c.body).where(tables.log_leaves.c.seq == leaf)).scalar()
            entry, contents = read_entry(bytes(body or b"")), segments.segment(leaf).contents()
            assert isinstance(entry, VersionSegmentEntry)
            assert entry.root == segment_root([version_bytes(one.entry()) for one in contents]).hex()
            assert len(contents) == sum(row.leaf == leaf for row in rows)
        latest = select(tables.outcomes, of.verdict, of.score, of.success, of.criteria_digest).join(
            tables.verdicts,
            (of.tenant == tables.outcomes.c.tenant)
            & (of.outcome_id == tables.outcomes.c.id)
            & (of.version == tables.outcomes.c.version),
        )
        for row in connection.execute(latest):
            assert (row.verdict, row.score, row.success) == (row.verdict_1, row.score_1, row.success_1)
            assert row.criteria_digest == row.criteria_digest_1


@pytest.fixture
def in_one_pass(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many outcomes were measured in bulk, page by page."""
    counted: list[int] = []

    def count(*arguments: Any) -> JudgedPage:
        judged = in_bulk.measure_page(*arguments)
        counted.append(len(judged.versions))
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
    check_rows(store)


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
    made: list[Any] = []

    def keep(asking: Sequence[PlainOutcome], works: Any, task: BulkJudging, entropy: Any) -> JudgedPage:
        judged = in_bulk.measure_page(asking, works, task, entropy)
        made.extend(one.packed for one in judged.versions)
        return judged

    monkeypatch.setattr(rescoring, "measure_page", keep)
    again(store, OTHER)
    with store.database.reading() as connection:
        leaf = (
            connection.execute(select(tables.verdicts.c.leaf).where(tables.verdicts.c.version == 3)).scalars().first()
        )
        contents = SegmentReader(connection, "default").segment(leaf or 0).contents()
    assert [one.outcome for one in contents] == ids
    assert made == [pack_version(one) for one in contents]
