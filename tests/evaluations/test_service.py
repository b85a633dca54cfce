"""Evaluations are recorded whole, once, and go on after a death."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from sqlalchemy import bindparam, func, select, update
from tests.evaluations.conftest import CRITERIA, TENANT

from meruit.audit.check import check_store
from meruit.errors import (
    AuthorError,
    DocumentError,
    EvaluationConflict,
    InvalidCase,
    MeruitError,
    NoCases,
    NotFound,
    Problem,
    UnknownName,
)
from meruit.evaluations.case_judge import FinishedSegment, SegmentBuffer, finish_segment
from meruit.evaluations.compare import compare_evaluations
from meruit.evaluations.evaluation import MAX_NAME, MAX_TAGS, Case, CaseError, EvaluationRecord, EvaluationStatus
from meruit.evaluations.reader import CaseFilter, EvaluationFilter, Evaluations
from meruit.evaluations.run import EvaluationProgress, run_cases
from meruit.evaluations.segment import entries_of, unpack
from meruit.evaluations.service import Evaluator
from meruit.evaluations.store import read
from meruit.evaluations.summary import MAX_TAG_VALUES, EvaluationFigures
from meruit.log.entries import SegmentEntry, read_entry
from meruit.log.segment import MAX_CASES, case_proof, is_in_segment
from meruit.model.evidence import Fault
from meruit.model.verdict import Verdict
from meruit.store import tables
from meruit.store.store import Store
from meruit.store.transaction import WriteTransaction
from meruit.verify.catalogue import CompiledCriteria


def case(number: int, text: str | None = "yes", **more: object) -> Case:
    output = None if text is None else {"text": text}
    return msgspec.convert({"id": f"c{number}", "input": {"reference": "yes"}, "output": output, **more}, type=Case)


def record(evaluator: Evaluator, criteria: CompiledCriteria, name: str, cases: list[Case]) -> None:
    run_cases(evaluator, evaluator.start(name, criteria), criteria, cases)


def test_an_evaluation_keeps_every_case_with_its_evidence(
    evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria
) -> None:
    cases = [case(n, "yes" if n % 3 else "no", group=f"g{n % 2}", tags={"even": str(n % 2)}) for n in range(700)]
    record(evaluator, criteria, "first", cases)
    found = reader.find("first")
    assert (found.status, found.cases, found.segments) == (EvaluationStatus.FINISHED, 700, 2)
    assert reader.find(found.id) == found
    details = [*reader.details(found)]
    assert [one.summary.case_id for one in details] == [f"c{n}" for n in range(700)]
    assert [one.output for one in details] == [one.output for one in cases]
    assert {one.result.verdict for one in details if one.result} == {Verdict.PASS, Verdict.PARTIAL}
    assert reader.summary(found).overall.passed == 466


def test_each_case_is_proven_by_the_log(
    evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria, records: Store
) -> None:
    record(evaluator, criteria, "first", [case(n) for n in range(20)])
    segments, leaves = tables.evaluation_segments, tables.log_leaves
    with records.database.reading() as connection:
        (segment,) = connection.execute(select(segments)).all()
        body = connection.execute(select(leaves.c.body).where(leaves.c.seq == segment.leaf)).scalar_one()
        cases = entries_of(unpack(records.blobs.content(connection, TENANT, segment.address)))
        criteria_leaf = connection.execute(select(tables.criteria.c.leaf)).scalar_one()
    entry = read_entry(body)
    assert isinstance(entry, SegmentEntry)
    assert (entry.cases, entry.number, entry.criteria) == (20, 1, criteria.digest)
    # The criteria were there before any case.
    assert entry.criteria_index == criteria_leaf < segment.leaf
    for place in (0, 7, 19):
        assert is_in_segment(cases[place], place, 20, case_proof(place, cases), bytes.fromhex(entry.root))


def test_one_segment_is_one_entry_and_one_event(
    evaluator: Evaluator, criteria: CompiledCriteria, records: Store
) -> None:
    record(evaluator, criteria, "first", [case(n) for n in range(MAX_CASES)])
    with records.database.reading() as connection:
        count = {
            name: connection.execute(select(func.count()).select_from(tables.metadata.tables[name])).scalar_one()
            for name in ("evaluation_cases", "evaluation_segments", "blobs", "outcomes")
        }
        kinds = [*connection.execute(select(tables.events.c.type).order_by(tables.events.c.seq)).scalars()]
    assert count == {"evaluation_cases": MAX_CASES, "evaluation_segments": 1, "blobs": 1, "outcomes": 0}
    assert kinds == ["evaluation.started", "evaluation.segment_recorded", "evaluation.finished"]


def test_a_run_goes_on_where_another_ended(
    evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria
) -> None:
    cases = [case(n) for n in range(30)]
    started = evaluator.start("first", criteria, tags={"model": "m"})
    evaluator.record(started, [evaluator.judge(criteria, one) for one in cases[5:12]])
    told: list[EvaluationProgress] = []
    again = evaluator.start("first", criteria, tags={"model": "m"})
    assert again.id == started.id
    run_cases(evaluator, again, criteria, cases, report=told.append)
    found = reader.find("first")
    assert sorted(one.case_id for one in reader.cases(found)) == sorted(one.id for one in cases)
    assert (told[-1].done, told[-1].judged) == (30, 23)


def test_what_is_finished_does_not_change(
    evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria
) -> None:
    record(evaluator, criteria, "first", [case(1)])
    with pytest.raises(EvaluationConflict):
        evaluator.start("first", criteria)
    done = reader.find("first")
    with pytest.raises(EvaluationConflict):
        evaluator.record(done, [evaluator.judge(criteria, case(2))])
    assert evaluator.finish(done) == done


def test_an_unfinished_name_is_kept_for_the_same_evaluation(evaluator: Evaluator, criteria: CompiledCriteria) -> None:
    evaluator.start("first", criteria, tags={"model": "m"}, dataset_digest="d")
    other = evaluator.compile({"criteria": CRITERIA["criteria"][:1]})
    for changed in ({"tags": {"model": "n"}}, {"dataset_digest": "e"}, {}):
        with pytest.raises(EvaluationConflict):
            evaluator.start("first", criteria, **{"tags": {"model": "m"}, **changed})  # type: ignore[arg-type]
    with pytest.raises(EvaluationConflict):
        evaluator.start("first", other, tags={"model": "m"}, dataset_digest="d")


def test_a_name_without_cases_is_free_for_other_data(
    evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria
) -> None:
    started = evaluator.start("first", criteria, dataset_digest="a")
    assert evaluator.start("first", criteria, dataset_digest="a", replaces_empty=True).id == started.id
    again = evaluator.start("first", criteria, dataset_digest="b", replaces_empty=True)
    assert (again.id != started.id, again.dataset_digest) == (True, "b")
    # Its process may still be at work.
    with pytest.raises(NotFound):
        evaluator.record(started, [evaluator.judge(criteria, Case("c", {}, {"text": "a"}))])
    # Outputs that a target made are paid for.
    with pytest.raises(EvaluationConflict), evaluator.journal(again):
        evaluator.start("first", criteria, dataset_digest="c", replaces_empty=True)
    evaluator.record(again, [evaluator.judge(criteria, Case("c", {}, {"text": "a"}))])
    with pytest.raises(EvaluationConflict):
        evaluator.start("first", criteria, dataset_digest="c", replaces_empty=True)
    assert reader.find("first").id == again.id


def test_a_case_is_recorded_once_whoever_records_it(evaluator: Evaluator, criteria: CompiledCriteria) -> None:
    started = evaluator.start("first", criteria)
    evaluator.record(started, [evaluator.judge(criteria, case(1))])
    with pytest.raises(EvaluationConflict):
        evaluator.record(started, [evaluator.judge(criteria, case(2)), evaluator.judge(criteria, case(1))])


def test_several_segments_are_recorded_together_or_not_at_all(
    evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria
) -> None:
    def pack(*numbers: int) -> FinishedSegment:
        return finish_segment([evaluator.judge(criteria, case(n)) for n in numbers])

    started = evaluator.start("first", criteria)
    assert evaluator.record_all(started, [pack(0, 1), pack(2)], recorded=0) == 2
    # Another process has recorded more than this one knows.
    for known in (0, None):
        with pytest.raises(EvaluationConflict):
            evaluator.record_all(started, [pack(3, 4), pack(5, 1)], recorded=known)
    assert evaluator.record_all(started, [pack(3, 4), pack(5)], recorded=0) == 4
    found = reader.find("first")
    assert (found.cases, found.segments) == (6, 4)
    assert [(one.case_id, one.seq) for one in reader.cases(found)] == [(case(n).id, n + 1) for n in range(6)]
    evaluator.finish(started)
    with pytest.raises(EvaluationConflict):
        evaluator.record_all(started, [pack(6)])


def test_two_cases_of_one_id_are_refused(evaluator: Evaluator, criteria: CompiledCriteria) -> None:
    with pytest.raises(MeruitError):
        record(evaluator, criteria, "first", [case(1), case(2), case(1)])


def test_an_evaluation_without_cases_is_not_finished(
    evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria
) -> None:
    empty = evaluator.start("first", criteria, dataset_digest="a")
    with pytest.raises(NoCases):
        run_cases(evaluator, empty, criteria, [])
    assert reader.find("first").status is EvaluationStatus.RUNNING
    again = evaluator.start("first", criteria, dataset_digest="b", replaces_empty=True)
    assert run_cases(evaluator, again, criteria, [case(1)]).status is EvaluationStatus.FINISHED


@pytest.mark.parametrize(("digest", "after"), [("d", "another name"), (None, "goes on")])
def test_a_late_fault_of_the_data_counts_what_is_recorded(
    evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria, digest: str | None, after: str
) -> None:
    def broken() -> Iterator[Case]:
        yield from (case(n) for n in range(MAX_CASES + 1))
        raise DocumentError("a.jsonl", [Problem("", "not JSON", 514)])

    started = evaluator.start("first", criteria, dataset_digest=digest)
    with pytest.raises(DocumentError) as refused:
        run_cases(evaluator, started, criteria, broken())
    (problem,) = refused.value.problems
    assert (problem.line, "512 cases" in problem.message, after in problem.message) == (514, True, True)
    with pytest.raises(InvalidCase) as twice:
        run_cases(evaluator, reader.find("first"), criteria, [case(600), case(600)])
    assert "512 cases" in str(twice.value)
    with pytest.raises(EvaluationConflict) as other:
        evaluator.start("first", criteria, dataset_digest="e", replaces_empty=True)
    assert ("data" in str(other.value), "tags" in str(other.value), "512" in str(other.value)) == (True, False, True)


def test_segments_share_transactions_and_an_interrupted_run_keeps_whole_ones(
    evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria, monkeypatch: pytest.MonkeyPatch
) -> None:
    together: list[int] = []
    record_all = Evaluator.record_all

    def watch(self: Evaluator, evaluation: EvaluationRecord, segments: Sequence[FinishedSegment], **more: Any) -> int:
        together.append(len(segments))
        return record_all(self, evaluation, segments, **more)

    def interrupted() -> Iterator[Case]:
        yield from (case(n) for n in range(5 * MAX_CASES + 1))
        raise KeyboardInterrupt

    monkeypatch.setattr(Evaluator, "record_all", watch)
    started = evaluator.start("first", criteria)
    with pytest.raises(KeyboardInterrupt):
        run_cases(evaluator, started, criteria, interrupted())
    assert together == [4, 1]
    assert reader.find("first").cases == 5 * MAX_CASES
    record(evaluator, criteria, "first", [case(n) for n in range(5 * MAX_CASES + 1)])
    found = reader.find("first")
    assert (found.status, found.cases, found.segments) == (EvaluationStatus.FINISHED, 5 * MAX_CASES + 1, 6)


def test_a_case_without_an_output_is_nobodys_failure(
    evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria
) -> None:
    record(
        evaluator,
        criteria,
        "first",
        [case(1), case(2, None), case(3, None, error="target_timeout", error_message="too slow")],
    )
    found = reader.find("first")
    summary = reader.summary(found)
    assert (summary.overall.passed, summary.overall.failed, summary.overall.open) == (1, 0, 2)
    assert summary.errors == {"target_timeout": 1}
    (timed_out,) = reader.details(found, CaseFilter(error=True))
    assert (timed_out.summary.verdict, timed_out.summary.error) == (Verdict.INCONCLUSIVE, CaseError.TARGET_TIMEOUT)
    assert timed_out.error_message == "too slow"


def test_filters_are_combined(evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria) -> None:
    record(
        evaluator,
        criteria,
        "first",
        [
            case(1, "no", tags={"lang": "en"}, group="g"),
            case(2, "no", tags={"lang": "fr"}, group="g"),
            case(3, "yes", tags={"lang": "en"}, claimed="fail"),
            case(4, "a b c d", tags={"lang": "en"}),
        ],
    )
    found = reader.find("first")

    def ids(wanted: CaseFilter, **more: int) -> list[str]:
        return [one.case_id for one in reader.cases(found, wanted, **more)]

    english = (("lang", "en"),)
    assert ids(CaseFilter(failing=True)) == ["c1", "c2", "c4"]
    assert ids(CaseFilter(failing=True, tags=english)) == ["c1", "c4"]
    assert ids(CaseFilter(failing=True, tags=english, groups=("g",))) == ["c1"]
    assert ids(CaseFilter(criteria=reader.criterion_positions(found, ["word_count"]))) == ["c4"]
    assert ids(CaseFilter(verdicts=(Verdict.PASS,))) == ["c3"]
    assert ids(CaseFilter(disputed=True)) == ["c3"]
    assert ids(CaseFilter(case_ids=("c2", "c9"))) == ["c2"]
    assert ids(CaseFilter(error=False), after=2, limit=1) == ["c3"]
    both = reader.criterion_positions(found, ["word_count", "exact_match", "word_count"])
    assert ids(CaseFilter(criteria=both)) == ["c1", "c2", "c4"]
    assert ids(CaseFilter(tags=(*english, ("lang", "fr")), groups=("g", "h"))) == ["c1", "c2"]
    with pytest.raises(UnknownName):
        reader.criterion_positions(found, ["words"])


def test_cases_are_found_by_text_and_by_fault(
    evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = {"reference": "yes", "notes": [{"page": 17}, "Größe"]}
    record(
        evaluator,
        criteria,
        "first",
        [
            case(1, "yes", input=deep),
            case(2, "no"),
            case(3, None, error="target_error", error_message="refused: 17"),
            case(4, "yes", input={}),
        ],
    )
    found = reader.find("first")

    def ids(wanted: CaseFilter) -> list[str]:
        return [one.case_id for one in reader.cases(found, wanted)]

    assert ids(CaseFilter(text="GRÖSSE")) == ["c1"]
    assert ids(CaseFilter(text="17")) == ["c1", "c3"]
    assert ids(CaseFilter(text="17", failing=True)) == ["c3"]
    assert ids(CaseFilter(text="notes")) == []
    assert ids(CaseFilter(faults=(Fault.AGENT,))) == ["c2"]
    assert ids(CaseFilter(faults=(Fault.SYSTEM,))) == ["c3"]
    assert ids(CaseFilter(faults=(Fault.AUTHOR, Fault.AGENT))) == ["c2", "c4"]
    # A page of a search opens a bounded number of cases and goes on from there.
    monkeypatch.setattr("meruit.evaluations.reader.SEARCHED_CASES", 2)
    page = reader.page_details(found, CaseFilter(text="c4"))
    assert (page.cases, page.next) == ([], 2)
    (last,) = reader.page_details(found, CaseFilter(text="c4"), after=2, limit=1).cases
    assert last == reader.case(found, "c4")
    with pytest.raises(NotFound):
        reader.case(found, "c4", repeat=1)


def test_evaluations_are_listed_by_combined_filters(
    evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria
) -> None:
    for name, model in (("Nightly 1", "m-1"), ("nightly 2", "m-2"), ("release", "m-1")):
        evaluator.start(name, criteria, tags={"model": model, "team": "a"}, dataset_digest=name)
    run_cases(evaluator, reader.find("release"), criteria, [case(1)])

    def names(wanted: EvaluationFilter) -> list[str]:
        return [one.name for one in reader.page(wanted)]

    assert names(EvaluationFilter(text="NIGHTLY")) == ["nightly 2", "Nightly 1"]
    assert names(EvaluationFilter(text="nightly", tags=(("model", "m-1"),))) == ["Nightly 1"]
    assert names(EvaluationFilter(tags=(("model", "m-1"), ("model", "m-2"), ("team", "a"))))[0] == "release"
    assert names(EvaluationFilter(tags=(("model", "m-1"), ("team", "b")))) == []
    assert names(EvaluationFilter(statuses=(EvaluationStatus.FINISHED,))) == ["release"]
    assert names(EvaluationFilter(dataset_digest="release", criteria_digest=criteria.digest)) == ["release"]
    started = reader.find("release").started_at
    assert names(EvaluationFilter(since=started, until=started)) == []
    assert [one.name for one in reader.page(limit=1, before=reader.find("release").id)] == ["nightly 2"]


def test_several_comparisons_allow_for_each_other(
    evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria
) -> None:
    for name, right in (("a", 20), ("b", 27), ("c", 20), ("d", 22)):
        record(evaluator, criteria, name, [case(n, "yes" if n < right else "no") for n in range(60)])
    first, *others = (reader.find(name) for name in "abcd")
    alone = reader.compare(first, others[0])
    together = reader.compare_several(first, others)
    assert alone.overall.p_holm is None
    assert together[0].overall.p_holm is not None
    assert alone.overall.p is not None
    assert together[0].overall.p_holm > alone.overall.p
    assert reader.compare_several(first, others[:1]) == [alone]
    for several in ([], [*others, first]):
        with pytest.raises(MeruitError):
            reader.compare_several(first, several)


def test_pairs_are_counted_as_they_are_compared_one_by_one(
    evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria
) -> None:
    for name, seed in (("a", 3), ("b", 5)):
        answers = {n: None if n % 17 == seed else "yes" if n % seed else "no at all, sir, no" for n in range(seed, 90)}
        record(evaluator, criteria, name, [case(n, text, tags={"part": str(n % 4)}) for n, text in answers.items()])
    first, second = reader.find("a"), reader.find("b")
    found = reader.compare(first, second)
    ids = reader.criteria(first).ids
    sides = [(one.name, [*reader.cases(one)], ids) for one in (first, second)]
    assert found == compare_evaluations(sides[0], sides[1])
    assert found.fixed
    assert found.broken
    assert found.open
    changes = reader.changes(first, second)
    assert [one.case_id for one in changes if one.change == "broken"] == [*found.broken]
    assert {one.change for one in changes} == {"fixed", "broken", "both pass", "both fail", "not judged"}


def test_figures_are_kept_signed_and_else_counted_again(
    evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria, records: Store
) -> None:
    begun = evaluator.start("figures", criteria)
    evaluator.record(begun, [evaluator.judge(criteria, case(n, "yes" if n else "no")) for n in range(12)])
    running = reader.find("figures")
    counted = reader.figures(running)
    assert reader.find_figures(running) is None
    assert (counted.summary, sum(counted.scores), dict(counted.faults)) == (reader.summary(running), 12, {"agent": 1})
    done = evaluator.finish(running)
    assert reader.find_figures(done) == counted
    forged = reader.draft_figures(done).content.replace(b'"passed":11', b'"passed":12')

    def forge(writing: WriteTransaction) -> None:
        writing.change(update(tables.evaluation_figures).values(content=bindparam("new")), new=forged)

    records.recorder.write(forge)
    assert reader.find_figures(done) is None
    assert reader.figures(done) == counted


def test_figures_depend_on_no_order_of_rows(
    evaluator: Evaluator,
    reader: Evaluations,
    criteria: CompiledCriteria,
    records: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Databases group rows in the order of their plan, which statistics of the table may change."""
    record(evaluator, criteria, "first", [case(n, tags={"id": f"v{n}"}) for n in range(MAX_TAG_VALUES + 50)])
    done = reader.find("first")
    kept = reader.find_figures(done)
    assert check_store(records).problems == []
    with records.database.writer.begin() as connection:
        connection.exec_driver_sql("ANALYZE")
    assert check_store(records).problems == []
    alike = read.alike_cases
    monkeypatch.setattr(read, "alike_cases", lambda *of: reversed([*alike(*of)]))
    assert msgspec.json.decode(reader.draft_figures(done).content, type=EvaluationFigures) == kept
    assert check_store(records).problems == []


def test_figures_of_fewer_cases_are_not_kept(
    evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria, records: Store
) -> None:
    begun = evaluator.start("late", criteria)
    draft = evaluator.draft_finish(begun)
    evaluator.record(begun, [evaluator.judge(criteria, case(1))])
    done = records.recorder.write(draft)
    assert reader.find_figures(done) is None
    assert reader.figures(done).summary.overall.cases == 1


def test_an_unknown_evaluation_names_the_nearest(
    evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria
) -> None:
    evaluator.start("baseline", criteria)
    with pytest.raises(NotFound) as missed:
        reader.find("base-line")
    assert "'baseline'" in str(missed.value)


def test_evaluations_are_paged_newest_first(
    evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria
) -> None:
    for name in "abc":
        evaluator.start(name, criteria)
    newest = reader.page(limit=2)
    assert [one.name for one in newest] == ["c", "b"]
    assert [one.name for one in reader.page(before=newest[-1].id)] == ["a"]


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * (MAX_NAME + 1)])
def test_a_name_that_cannot_be_shown_is_refused(evaluator: Evaluator, criteria: CompiledCriteria, name: str) -> None:
    with pytest.raises(MeruitError):
        evaluator.start(name, criteria)
    with pytest.raises(MeruitError):
        evaluator.judge(criteria, Case(id=name))
    with pytest.raises(MeruitError):
        evaluator.judge(criteria, Case(id="a", group=name))
    with pytest.raises(MeruitError):
        evaluator.judge(criteria, Case(id="a", tags={"t": name}))


def test_a_case_that_cannot_be_kept_is_refused(evaluator: Evaluator, criteria: CompiledCriteria) -> None:
    for wrong in (
        Case(id="a", repeat=-1),
        Case(id="a", tags={str(n): "v" for n in range(MAX_TAGS + 1)}),
        Case(id="a", output={"text": "yes"}, metadata={"x": float("nan")}),
    ):
        with pytest.raises((MeruitError, AuthorError)):
            evaluator.judge(criteria, wrong)


def test_a_segment_is_full_by_cases_or_by_bytes(evaluator: Evaluator, criteria: CompiledCriteria) -> None:
    buffer = SegmentBuffer()
    large = Case(id="large", output={"text": "x" * 9_000_000})
    assert buffer.add(evaluator.judge(criteria, case(1))) == []
    assert [one.summary.case_id for one in buffer.add(evaluator.judge(criteria, large))] == ["c1", "large"]
    assert buffer.take() == []


def test_parts_that_few_cases_of_a_segment_have_are_kept(
    evaluator: Evaluator, reader: Evaluations, criteria: CompiledCriteria
) -> None:
    cases = [
        Case(f"c{n}", {}, {"text": "yes"}, {"duration_ms": n} if n % 3 else {}, tags={"n": str(n)} if n == 150 else {})
        for n in range(200)
    ]
    done = run_cases(evaluator, evaluator.start("sparse", criteria), criteria, cases)
    kept = [*reader.cases(done)]
    assert [one.case_id for one in kept] == [one.id for one in cases]
    assert [one.latency_ms for one in kept] == [one.metadata.get("duration_ms") for one in cases]
    assert [one.tags for one in kept] == [one.tags for one in cases]
    assert {one.claimed for one in kept} == {None}
    latency = reader.summary(done).latency_ms
    assert latency is not None
    assert latency.cases == 133
