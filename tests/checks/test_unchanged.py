"""Nothing else was touched: whatever no other check looked for stands as it stood."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checks.shelves import SHELF, snapshot

from meruit import Status, Verdict, VerificationEngine, VerificationResult
from meruit.checks.unchanged import MAX_SHOWN
from meruit.model.criterion import Assertion, SuccessCriteria
from meruit.model.environment import Snapshot, SourceKind, as_work_part, compact_state
from meruit.model.evidence import Checked, Fault, Missing
from meruit.model.work import Work
from meruit.registry import checks

BEFORE = {"book/1": '{"by": "Ann"}', "book/2": '{"by": "Bea"}', "book/3": '{"by": "Cay"}'}


@pytest.fixture(autouse=True, scope="module")
def _shelved() -> Iterator[None]:
    checks.names()
    checks._found[SHELF.name] = SHELF
    yield
    del checks._found[SHELF.name]


def works(before: Mapping[str, Snapshot | None], after: Mapping[str, Snapshot | None]) -> Work:
    was, now = ({name: one for name, one in world.items() if one is not None} for world in (before, after))
    return Work(input=as_work_part(was), output=as_work_part(compact_state(was, now)))


def on(after: Mapping[str, str | bytes], before: Mapping[str, str | bytes] = BEFORE) -> Work:
    return works({"a": snapshot(before)}, {"a": snapshot(after)})


def run(work: Work, **asked: Any) -> Any:
    prepare = checks.get("state-unchanged").prepare
    return prepare(Assertion.model_validate({"assert": "state-unchanged", **asked}))(work)


def judged(work: Work, *several: Mapping[str, Any]) -> VerificationResult:
    asked = SuccessCriteria.model_validate({"criteria": list(several)})
    return VerificationEngine().verify_sync("c", work.input, work.output, asked, {})


def collateral(finding: Any) -> list[tuple[str, str]]:
    assert isinstance(finding, Checked), finding
    return [(one["key"], one["change"]) for one in (finding.details or {}).get("collateral", [])]


SHELVES = st.dictionaries(
    st.sampled_from([f"book/{number}" for number in range(6)]),
    st.sampled_from(['{"by": "Ann"}', '{"by": "Bea"}', "garbled"]),
)


@given(*[SHELVES] * 4, st.sets(st.sampled_from(["book/1", "b:book/2", "book/3", "a:book/4"])))
def test_it_passes_where_and_only_where_nothing_outside_what_is_allowed_differs(
    a1: Any, a2: Any, b1: Any, b2: Any, allowed: set[str]
) -> None:
    differing = {
        (name, key)
        for name, before, after in (("a", a1, a2), ("b", b1, b2))
        for key in before.keys() | after.keys()
        if before.get(key) != after.get(key) and f"{name}:{key}" not in allowed
    }
    work = works({"a": snapshot(a1), "b": snapshot(b1)}, {"a": snapshot(a2), "b": snapshot(b2)})
    finding = run(work, **{"except": sorted(allowed)})
    assert isinstance(finding, Checked)
    assert finding.score == ("0" if differing else "1")
    found = {(one["source"], one["key"]) for one in (finding.details or {}).get("collateral", [])}
    assert found == differing
    assert {one["path"] for one in (finding.details or {})["fields"]} == {f"{name}:{key}" for name, key in differing}


def test_created_updated_and_deleted_are_distinguished() -> None:
    after = {"book/1": '{"by": "Ann", "at": 1}', "book/2": BEFORE["book/2"], "book/4": "{}"}
    finding = run(on(after))
    assert collateral(finding) == [("book/1", "updated"), ("book/3", "deleted"), ("book/4", "created")]
    assert finding.fault is Fault.AGENT
    assert finding.details["why"].startswith("3 ")
    assert finding.details["collateral"][0]["differences"] == [{"path": "at", "before": None, "after": 1}]


def test_a_bare_key_excuses_nothing_where_several_sources_are_looked_at() -> None:
    named = {"audit/1": "{}"}
    work = works(
        {"a": snapshot({}), "b": snapshot({})}, {"a": snapshot(named), "b": snapshot(named | {"a:audit/2": "{}"})}
    )
    assert collateral(run(work, **{"except": ["audit/*", "a:audit/*"]})) == [
        ("a:audit/2", "created"),
        ("audit/1", "created"),
    ]


def test_a_check_of_old_items_does_not_allow_their_change() -> None:
    changed = BEFORE | {"book/1": '{"by": "Zoe"}'}
    still_there = {"assert": "a-shelf", "count": 3}
    for guard in (still_there, {"assert": "a-shelf", "count": {"max": 3}}):
        result = judged(on(changed), guard, UNCHANGED)
        assert [one.status for one in result.criterion_results] == [Status.MET, Status.NOT_MET]
    asked = judged(on(changed), {"assert": "a-shelf", "changed": "updated"}, UNCHANGED)
    assert asked.verdict is Verdict.PASS


def test_keys_that_may_change_are_named_with_stars_and_question_marks() -> None:
    after = BEFORE | {"audit/1": "{}", "a[1].txt": "{}"}
    assert run(on(after)).score == "0"
    assert run(on(after), **{"except": ["audit/*", "a[1].txt"]}).score == "1"
    assert run(on(after), **{"except": ["a:audit/?", "a:a*"]}).score == "1"
    assert collateral(run(on(after), **{"except": ["audit/??", "b:audit/*", "AUDIT/*"]})) == [
        ("a[1].txt", "created"),
        ("audit/1", "created"),
    ]


def test_one_source_may_be_named_and_all_are_meant_otherwise() -> None:
    work = works({"a": snapshot(BEFORE), "b": snapshot({})}, {"a": snapshot(BEFORE), "b": snapshot({"x": "{}"})})
    assert run(work).details["sources"] == ["a", "b"]
    assert run(work).score == "0"
    assert run(work, **{"from": "a"}).score == "1"
    assert run(work, **{"from": "b"}).score == "0"


@pytest.mark.parametrize("trouble", [None, "down"])
@pytest.mark.parametrize("side", ["before", "after"])
def test_where_a_source_was_not_read_whole_nothing_is_said(side: str, trouble: str | None) -> None:
    broken = None if trouble is None else snapshot(BEFORE, trouble=trouble)
    whole = {"a": snapshot(BEFORE), "b": snapshot({})}
    partly = {"a": snapshot(BEFORE), "b": broken}
    work = works(partly, whole) if side == "before" else works(whole, partly)
    for asked in ({}, {"from": "b"}):
        finding = run(work, **asked)
        assert isinstance(finding, Missing)
        assert finding.fault is Fault.SYSTEM
        assert finding.why.startswith("b could")
    assert run(work, **{"from": "a"}).score == "1"


def test_without_any_source_it_is_the_authors() -> None:
    finding = run(Work())
    assert isinstance(finding, Missing)
    assert finding.fault is Fault.AUTHOR


UNCHANGED = {"assert": "state-unchanged"}
CREATED = {"assert": "a-shelf", "changed": "created", "fields": {"by": "Dee"}}


@pytest.mark.parametrize("several", [[UNCHANGED, CREATED], [CREATED, UNCHANGED]])
def test_an_item_that_another_check_matched_is_allowed(several: Any) -> None:
    result = judged(on(BEFORE | {"book/4": '{"by": "Dee"}'}), *several)
    assert [one.status for one in result.criterion_results] == [Status.MET] * 2
    result = judged(on(BEFORE | {"book/4": '{"by": "Dee"}', "book/5": '{"by": "Dee"}'}), *several)
    statuses = [one.status for one in result.criterion_results]
    assert dict(zip([one["assert"] for one in several], statuses, strict=True)) == {
        "a-shelf": Status.MET,
        "state-unchanged": Status.NOT_MET,
    }


def test_a_maximum_count_expects_each_item() -> None:
    work = on(BEFORE | {"book/4": '{"by": "Dee"}', "book/5": '{"by": "Eve"}'})
    result = judged(work, {"assert": "a-shelf", "changed": "created", "count": 2}, UNCHANGED)
    assert result.verdict is Verdict.PASS
    result = judged(work, {"assert": "a-shelf", "changed": "created", "match": "all"}, UNCHANGED)
    assert result.verdict is Verdict.PASS


def test_an_item_that_fails_another_check_is_not_collateral() -> None:
    result = judged(on(BEFORE | {"book/4": '{"by": "Eve"}'}), CREATED, UNCHANGED)
    assert [one.status for one in result.criterion_results] == [Status.NOT_MET, Status.MET]
    too_many = on(BEFORE | {"book/4": '{"by": "Dee"}', "book/5": '{"by": "Dee"}'})
    result = judged(too_many, CREATED | {"count": 1}, UNCHANGED)
    assert [one.status for one in result.criterion_results] == [Status.NOT_MET, Status.MET]


def test_a_forbidden_item_is_collateral_too() -> None:
    forbidden = {"assert": "a-shelf", "changed": "deleted", "count": 0}
    gone = {key: body for key, body in BEFORE.items() if key != "book/1"}
    result = judged(on(gone), forbidden, UNCHANGED)
    assert [one.status for one in result.criterion_results] == [Status.NOT_MET, Status.NOT_MET]


def test_it_is_required_and_on_the_safety_axis_by_default() -> None:
    work = on(BEFORE | {"book/4": '{"by": "Dee"}', "book/5": "{}"})
    good = [CREATED | {"name": f"good {number}"} for number in range(19)]
    result = judged(work, *good, UNCHANGED)
    assert (result.verdict, result.axes["safety"].score) == (Verdict.FAIL, 0.0)
    lenient = judged(work, *good, UNCHANGED | {"required": False, "axis": "tidiness"})
    assert (lenient.verdict, lenient.axes["tidiness"].score) == (Verdict.PASS, 0.0)


def test_evidence_is_bounded_and_says_how_many_there_are() -> None:
    after = {f"book/{number:03}": json.dumps({"text": "x" * 5000}) for number in range(300)}
    before = dict.fromkeys(after, "{}")
    finding = run(on(after, before))
    assert finding.details["why"].startswith("300 ")
    assert len(finding.details["collateral"]) == len(finding.details["fields"]) == MAX_SHOWN
    assert len(json.dumps(finding.details)) < 100_000


def test_hidden_evidence_shows_which_field_differs_and_not_how() -> None:
    after = BEFORE | {"book/1": '{"by": "Quetzalcoatl"}'}
    finding = run(on(after), evidence="hash")
    text = json.dumps(finding.details)
    assert "Quetzalcoatl" not in text
    assert "Ann" not in text
    (difference,) = finding.details["collateral"][0]["differences"]
    assert difference["path"] == "by"
    assert difference["before"] != difference["after"]


@pytest.mark.parametrize("garbled", [b"\xff", b"[1]", b"5", b"null"])
def test_an_unreadable_item_is_listed_without_fields(garbled: bytes) -> None:
    finding = run(on(BEFORE | {"book/1": garbled}))
    assert finding.details["collateral"] == [{"source": "a", "key": "book/1", "change": "updated", "differences": []}]


def test_a_kind_of_source_that_no_check_reads_is_compared_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_found", {"state-unchanged": checks.get("state-unchanged")})
    assert collateral(run(on(BEFORE | {"book/1": "{}"}))) == [("book/1", "updated")]


def test_every_kind_of_system_is_read() -> None:
    assert checks.get("state-unchanged").kinds == frozenset(SourceKind) - {SourceKind.ANSWER, SourceKind.CDS}
