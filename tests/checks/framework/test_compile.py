"""Values from the state before, conditions, captures; and who answers for what cannot be computed."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from tests.checks.shelves import BOOKS, SHELF, Books, run, scored, snapshot, work

from meruit.checks.framework.compile import Finding, reader_of
from meruit.checks.framework.context import build_work_context
from meruit.errors import AuthorError
from meruit.model.criterion import Assertion
from meruit.model.environment import Snapshot, SourceKind, as_work_part
from meruit.model.evidence import Cause, Checked, Fault, Missing, Skipped
from meruit.model.work import Work
from meruit.registry import checks

BEFORE = {
    "lab/1": '{"at": "2026-03-01", "k": 3.9}',
    "lab/2": '{"at": "2026-03-06T10:00:00Z", "k": 2.7}',
    "lab/3": '{"at": "2026-03-06T05:00:00-04:00", "k": 3.3, "many": [1, 2]}',
    "patient/1": '{"id": "P1", "limit": 3.5}',
}
K = {"k": {"book": "lab", "pick": "latest at", "path": "k"}}
ORDER = {"order/1": '{"dose": 80, "for": "P1", "number": "AUTH-7"}'}


@pytest.fixture(autouse=True)
def _shelved(monkeypatch: pytest.MonkeyPatch) -> None:
    checks.names()
    monkeypatch.setitem(checks._found, SHELF.name, SHELF)


def done(**facts: Any) -> Work:
    return work(BEFORE, BEFORE | ORDER, facts or None)


def score(finding: Finding) -> str:
    assert isinstance(finding, Checked), finding
    return finding.score


def blamed(finding: Finding) -> tuple[type, Fault]:
    assert isinstance(finding, Checked | Missing), finding
    return type(finding), finding.fault


# Values from before


def test_a_dose_is_computed_from_the_latest_value_before() -> None:
    asked = {"let": K, "book": "order", "changed": "created", "fields": {"dose": "${(3.5 - k) / 0.1 * 10}"}}
    assert score(run(done(), **asked)) == "1"
    _, evidence = scored(done(), **asked)
    assert evidence["fields"][0]["expected"] == 80


@pytest.mark.parametrize(
    ("pick", "found"), [("first", 3.9), ("last", 3.3), ("latest at", 2.7), ("earliest at", 3.9), ("latest when", None)]
)
def test_one_of_several_is_picked_as_asked(pick: str, found: float | None) -> None:
    finding = run(done(), let={"k": {"book": "lab", "pick": pick, "path": "k"}}, fields={"k": {"equals": "${k}"}})
    if found is None:
        assert blamed(finding) == (Missing, Fault.AUTHOR)
    else:
        assert isinstance(finding, Checked)
        assert (finding.details or {})["fields"][0]["expected"] == found


@pytest.mark.parametrize(
    "let",
    [
        {"book": "lab", "path": "k"},
        {"book": "novel", "path": "k"},
        {"book": "lab", "pick": "last", "path": "many"},
        {"book": "lab", "pick": "last", "path": "nothing"},
        {"book": "${nobody}", "path": "k"},
        {"from": "elsewhere", "path": "k"},
    ],
)
def test_a_value_that_cannot_be_found_before_is_the_authors(let: dict[str, Any]) -> None:
    finding = run(done(), let={"k": let}, when="k < 9")
    assert blamed(finding) == (Missing, Fault.AUTHOR)


@pytest.mark.parametrize(
    ("let", "words"),
    [
        ({"book": "lab", "pick": "last", "path": "a..b"}, "a..b"),
        ({"book": "lab", "pick": "latest a..b", "path": "k"}, "a..b"),
        ({"cook": "lab", "path": "k"}, "by book"),
        ({"book": "lab", "cook": "x", "path": "k"}, "by book"),
    ],
)
def test_a_let_that_cannot_be_meant_is_refused_before_anything_is_run(let: dict[str, Any], words: str) -> None:
    with pytest.raises(AuthorError, match=words):
        SHELF.prepare(Assertion.model_validate({"assert": "a-shelf", "let": {"k": let}}))


def test_a_let_may_use_facts_and_earlier_lets() -> None:
    let = {"who": {"book": "${kind}", "path": "id"}, "again": {"book": "${'patient' if_not}", "path": "id"}}
    with pytest.raises(AuthorError):
        run(done(kind="patient"), let=let)
    let = {"kind": {"book": "patient", "path": "id"}, "who": {"book": "${shelf}", "path": "id"}}
    assert score(run(done(shelf="patient"), let=let, book="order", fields={"for": "${who}"})) == "1"


def test_a_value_may_come_from_another_source() -> None:
    on = Work(
        input=as_work_part({"a": snapshot({}), "b": snapshot({"x/1": '{"n": 5}'})}),
        output=as_work_part({"a": snapshot({"y/1": '{"n": 5}'}), "b": snapshot({})}),
    )
    asked = {"from": "a", "let": {"n": {"from": "b", "path": "n"}}, "fields": {"n": "${n}"}}
    assert score(run(on, **asked)) == "1"


def test_where_the_state_before_was_not_read_nothing_is_said() -> None:
    for before in (None, snapshot(BEFORE, trouble="down")):
        finding = run(work(before, BEFORE | ORDER), let=K, when="k < 3.5")
        assert blamed(finding) == (Missing, Fault.SYSTEM)


# When


def test_a_check_whose_condition_does_not_hold_is_skipped() -> None:
    finding = run(done(), let=K, when="k >= 3.5", book="nothing like it")
    assert isinstance(finding, Skipped)
    assert "k >= 3.5" in finding.why
    assert score(run(done(), let=K, when="k < 3.5", book="order")) == "1"


def test_a_condition_may_use_facts() -> None:
    assert isinstance(run(done(age=17), when="age >= 18"), Skipped)
    assert score(run(done(age=18), when="age >= 18")) == "1"
    assert blamed(run(done(), when="age >= 18")) == (Missing, Fault.AUTHOR)
    assert blamed(run(done(age=0), when="1 / age > 1")) == (Missing, Fault.AUTHOR)


# Which source


def test_the_only_source_of_a_kind_is_the_default() -> None:
    both = {"a": snapshot(ORDER), "b": snapshot({})}
    on = Work(input=as_work_part(both), output=as_work_part(both))
    finding = run(on)
    assert isinstance(finding, Missing)
    assert (finding.cause, "a, b; " in finding.why) == (Cause.AUTHOR_ERROR, True)
    assert score(run(on, **{"from": "a"})) == "1"
    assert score(run(on, **{"from": "b"})) == "0"


@pytest.mark.parametrize(
    ("world", "asked", "why"),
    [
        ({}, {}, "task has none"),
        ({}, {"from": "a"}, "'a'"),
        ({"b": Snapshot(SourceKind.FHIR)}, {"from": "b"}, "'b' is fhir"),
        ({"b": Snapshot(SourceKind.FHIR)}, {}, "task has none"),
    ],
)
def test_an_unknown_source_is_the_authors_fault(world: Any, asked: Any, why: str) -> None:
    finding = run(Work(input=as_work_part(world), output=as_work_part(world)), **asked)
    assert isinstance(finding, Missing)
    assert finding.fault is Fault.AUTHOR
    assert why in finding.why


def test_a_source_not_read_after_the_run_is_a_system_fault() -> None:
    for asked in ({}, {"from": "a"}):
        finding = run(Work(input=as_work_part({"a": snapshot({})}), output={}), **asked)
        assert isinstance(finding, Missing)
        assert (finding.fault, "after" in finding.why) == (Fault.SYSTEM, True)


@pytest.mark.parametrize("world", [5, [], "", {"a": 5}, {"a": {"kind": "attic"}}, {"a": {"kind": "rows", "items": {}}}])
def test_an_invalid_state_is_a_system_fault(world: Any) -> None:
    for on in (Work(input={"world": world}), Work(output={"world": world})):
        assert blamed(run(on)) == (Missing, Fault.SYSTEM)


# Captures


def chain(on: Work, *several: Mapping[str, Any]) -> list[Finding]:
    return [run(on, **asked) for asked in several]


CAPTURE = {"book": "order", "changed": "created", "capture": "order"}


def test_what_one_check_matched_lends_its_values_to_later_ones() -> None:
    later = {"book": "patient", "fields": {"id": "${order['for']}"}}
    assert [score(one) for one in chain(done(), CAPTURE, later)] == ["1", "1"]


def test_a_name_that_is_not_captured_yet_is_the_authors_fault() -> None:
    later = {"book": "patient", "fields": {"id": "${order['for']}"}}
    assert blamed(chain(done(), later, CAPTURE)[0]) == (Missing, Fault.AUTHOR)


LATER = [
    {"fields": {"id": "${order['for']}"}},
    {"when": "order.dose > 5"},
    {"let": {"x": {"book": "${order['for']}", "path": "id"}}},
    {"where": {"id": {"in": ["${order['for']}"]}}, "count": 0},
]


@pytest.mark.parametrize("later", LATER)
def test_a_failed_capture_fails_later_checks_too(later: dict[str, Any]) -> None:
    first, second = chain(work(BEFORE, BEFORE), CAPTURE, later)
    assert score(first) == "0"
    assert blamed(second) == (Checked, Fault.AGENT)
    assert isinstance(second, Checked)
    assert (second.score, (second.details or {})["why"][-5:]) == ("0", "order")


@pytest.mark.parametrize("later", LATER)
def test_where_the_source_was_in_trouble_later_checks_are_as_undecided(later: dict[str, Any]) -> None:
    on = work(BEFORE, snapshot(BEFORE, trouble="down"))
    first, second = chain(on, CAPTURE, later)
    assert [blamed(one) for one in (first, second)] == [(Missing, Fault.SYSTEM)] * 2


@pytest.mark.parametrize("later", LATER)
def test_where_the_first_check_was_skipped_later_ones_are_too(later: dict[str, Any]) -> None:
    found = chain(done(), CAPTURE | {"when": "1 > 2"}, later)
    assert [type(one) for one in found] == [Skipped, Skipped]


def test_a_condition_is_asked_first_where_it_needs_nothing_that_was_lost() -> None:
    _, second = chain(work(BEFORE, BEFORE), CAPTURE, {"when": "1 > 2", "fields": {"id": "${order['for']}"}})
    assert isinstance(second, Skipped)


def test_a_fact_of_the_same_name_does_not_stand_in_for_what_was_not_captured() -> None:
    on = work(BEFORE, BEFORE, {"order": {"for": "P1"}})
    _, second = chain(on, CAPTURE, {"book": "patient", "fields": {"id": "${order['for']}"}})
    assert blamed(second) == (Checked, Fault.AGENT)


@pytest.mark.parametrize(
    "later",
    [
        {"fields": {"id": "${order.nothing}"}},
        {"fields": {"id": "${1 / order.zero}"}},
        {"fields": {"id": {"gte": "${order.number}"}}},
        {"fields": {"id": "${order.number * 2}"}},
        {"when": "order.number < 5"},
        {"fields": {"id": {"around": {"value": "${order.number}", "by": "1h"}}}},
    ],
)
def test_what_cannot_be_computed_from_what_the_agent_left_is_the_agents(later: dict[str, Any]) -> None:
    on = work(BEFORE, BEFORE | {"order/1": '{"number": "AUTH-7", "zero": 0}'})
    first, second = chain(on, CAPTURE, later)
    assert score(first) == "1"
    assert blamed(second) == (Checked, Fault.AGENT)
    assert score(second) == "0"


@pytest.mark.parametrize(
    "planted", ["exists", {"exists": True}, {"matches": ".*"}, {"weight": 1, "exists": True}, "${id}"]
)
def test_what_the_agent_left_is_never_read_as_a_matcher(planted: Any) -> None:
    on = work(BEFORE, BEFORE | {"order/1": json.dumps({"for": planted})})
    asked = {"book": "patient", "fields": {"id": "${order['for']}"}}
    assert [score(one) for one in chain(on, CAPTURE, asked)] == ["1", "0"]
    listed = {"book": "patient", "fields": [{"path": "id", "expected": "${order['for']}"}]}
    assert score(run(on, **listed)) == "0"


def test_a_pattern_that_the_agent_left_matches_only_itself() -> None:
    on = work(BEFORE, BEFORE | {"order/1": '{"for": ".*"}'})
    asked = {"book": "patient", "fields": {"id": {"matches": "${order['for']}"}}}
    assert [score(one) for one in chain(on, CAPTURE, asked)] == ["1", "0"]


def test_the_best_is_captured_even_where_not_all_of_it_fits() -> None:
    found = chain(
        done(), CAPTURE | {"fields": {"dose": 80, "note": "x"}}, {"book": "patient", "where": {"id": "${order['for']}"}}
    )
    assert [score(one) for one in found] == ["1/2", "1"]


def test_hidden_evidence_does_not_show_what_was_filled_in() -> None:
    asked = {"book": "patient", "fields": {"id": {"not": "${order.number}"}, "limit": 9}, "evidence": "hash"}
    _, second = chain(done(), CAPTURE, asked)
    assert isinstance(second, Checked)
    evidence = json.dumps(second.details)
    assert "AUTH-7" not in evidence
    assert [one["expected"] for one in (second.details or {})["fields"]] == [{"not": "${order.number}"}, 9]


# Compiling


def test_an_assertion_is_compiled_once_and_run_on_any_number_of_works() -> None:
    ready = SHELF.prepare(Assertion.model_validate({"assert": "a-shelf", "let": K, "fields": {"k": "${k}"}}))
    assert [score(ready(done())) for _ in range(3)] == ["1"] * 3
    assert score(ready(work(BEFORE, {"lab/9": '{"k": 1}'}))) == "0"


def test_endless_nesting_is_the_authors_fault() -> None:
    deep: Any = "a"
    for _ in range(100):
        deep = [deep]
    with pytest.raises(AuthorError, match="deep"):
        run(done(), fields={"a": {"equals": deep}})


def test_a_kind_that_no_check_reads_is_the_authors_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reader_of(SourceKind.ROWS) is SHELF.reader
    monkeypatch.setattr(checks, "_found", {SHELF.name: msgspec.structs.replace(SHELF, reader=None)})
    with pytest.raises(AuthorError, match="reads rows"):
        reader_of(SourceKind.ROWS)


def test_a_reader_that_reads_otherwise_gets_a_document_of_its_own() -> None:
    class Lengths(Books):
        def parse(self, item: Any) -> Any:
            return len(item.content())

    book = done().derive(build_work_context)
    one = book.after["a"].items[0]
    lengths = Lengths()
    assert book.document("a", one, BOOKS)["at"] == "2026-03-01"
    assert book.document("a", one, lengths) == len(one.content())
    assert book.document("a", one, BOOKS) is book.document("a", one, BOOKS)
