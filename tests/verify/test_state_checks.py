"""State checks through the engine: verdicts, axes, gates, trouble, and evidence that is judged again."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checks.shelves import SHELF, snapshot

from meruit import Fault, Status, SuccessCriteria, Verdict, VerificationEngine, VerificationResult, rejudge
from meruit.model.environment import Snapshot, SourceKind, as_work_part, make_item
from meruit.outcomes.rescore.reuse import EvidenceSources
from meruit.registry import checks


@pytest.fixture(autouse=True, scope="module")
def _shelved() -> Iterator[None]:
    checks.names()
    checks._found[SHELF.name] = SHELF
    yield
    del checks._found[SHELF.name]


TEN = '{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1, "g": 1, "h": 1, "i": 1, "j": 1}'
BEFORE = {"map/1": "{}"}
AFTER = {"map/1": "{}", "book/1": TEN}


def asked(*several: Mapping[str, Any]) -> SuccessCriteria:
    """Criteria as a task has them."""
    whole = {"aggregation": "weighted", "minimum_weighted_score": 0.9}
    return SuccessCriteria.model_validate({"criteria": list(several), **whole})


def tenths(number: int, **more: Any) -> dict[str, Any]:
    """A check that scores so many tenths."""
    fields = {name: 1 if place < number else 2 for place, name in enumerate("abcdefghij")}
    return {"assert": "a-shelf", "book": "book", "fields": fields, **more}


def verify(
    *several: Mapping[str, Any], before: Any = BEFORE, after: Any = AFTER, more: Mapping[str, Snapshot] | None = None
) -> VerificationResult:
    was, now = (one if isinstance(one, Snapshot) else snapshot(one) for one in (before, after))
    given, done = as_work_part({"a": was}), as_work_part({"a": now, **(more or {})})
    result = VerificationEngine().verify_sync("c", given, done, asked(*several), {})
    # A stranger who has the evidence comes to the same verdict.
    assert rejudge(asked(*several), result).verdict is result.verdict
    return result


def test_what_is_exactly_nine_tenths_passes() -> None:
    result = verify(tenths(10, weight=0.1), tenths(9, weight=0.1), tenths(8, weight=0.1))
    assert [one.exact for one in result.criterion_results] == ["1", "9/10", "4/5"]
    assert (result.verdict, result.score) == (Verdict.PASS, 0.9)


@given(st.lists(st.tuples(st.integers(0, 10), st.integers(1, 9)), min_size=1, max_size=5))
def test_the_verdict_follows_the_weighted_mean_exactly(several: list[tuple[int, int]]) -> None:
    result = verify(*(tenths(number, weight=weight / 10) for number, weight in several))
    total = sum(number * weight for number, weight in several)
    weights = sum(weight for _, weight in several)
    expected = Verdict.PASS if total >= 9 * weights else Verdict.PARTIAL if total else Verdict.FAIL
    assert result.verdict is expected


def test_axes_are_as_in_the_specification() -> None:
    result = verify(tenths(10, axis="correctness", weight=2), tenths(0, axis="safety", weight=1))
    assert (result.verdict, result.score) == (Verdict.PARTIAL, 2 / 3)
    assert {name: (axis.score, axis.weight) for name, axis in result.axes.items()} == {
        "correctness": (1.0, 2),
        "safety": (0.0, 1),
    }


def test_a_required_check_that_fails_caps_the_verdict() -> None:
    good = [tenths(10) for _ in range(19)]
    assert verify(*good, tenths(0)).verdict is Verdict.PASS
    assert verify(*good, tenths(0, required=True)).verdict is Verdict.FAIL
    assert verify(*good, tenths(10, required=True)).verdict is Verdict.PASS


@pytest.mark.parametrize(
    "unsupported",
    [
        {"assert": "a-shelve", "fields": {"a": 1}},
        {"assert": "a-shelf", "feilds": {"a": 1}},
        {"assert": "a-shelf", "fields": {"a": {"equal": 1}}},
        {"assert": "a-shelf", "fields": {"a": "${lambda: 1}"}},
        {"assertion": {"assert": "a-shelf", "count": "many"}},
    ],
)
def test_an_assertion_that_does_not_parse_fails_on_its_authors_account_and_the_others_go_on(unsupported: Any) -> None:
    result = verify(tenths(10), unsupported)
    good, bad = result.criterion_results
    assert good.met
    assert (bad.status, bad.score, bad.fault) == (Status.NOT_MET, 0.0, Fault.AUTHOR)
    assert bad.details is not None
    assert bad.details["unsupported_assertion"] in ("a-shelve", "a-shelf")
    assert bad.details["message"].startswith("unsupported assertion: ")
    assert result.verdict is Verdict.PARTIAL


DOWN = {"b": Snapshot(SourceKind.ROWS, trouble="down")}
ELSEWHERE = {"assert": "a-shelf", "from": "b"}
HERE = {"from": "a"}


def test_trouble_leaves_the_verdict_open_where_it_matters() -> None:
    result = verify(tenths(10, **HERE), ELSEWHERE, more=DOWN)
    assert [one.status for one in result.criterion_results] == [Status.MET, Status.INDETERMINATE]
    assert result.criterion_results[1].fault is Fault.SYSTEM
    assert (result.verdict, result.success) == (Verdict.INCONCLUSIVE, False)


def test_trouble_does_not_matter_where_both_ways_come_to_the_same() -> None:
    assert verify(tenths(10, weight=9, **HERE), ELSEWHERE, more=DOWN).verdict is Verdict.PASS
    failed = verify(tenths(0, required=True, **HERE), ELSEWHERE, more=DOWN)
    assert failed.verdict is Verdict.FAIL


def test_trouble_with_what_is_required_leaves_the_verdict_open() -> None:
    result = verify(tenths(10, weight=99, **HERE), {**ELSEWHERE, "required": True}, more=DOWN)
    assert result.verdict is Verdict.INCONCLUSIVE


def test_what_is_skipped_weighs_nothing() -> None:
    result = verify(tenths(10), tenths(0, when="1 > 2", weight=99))
    assert [one.status for one in result.criterion_results] == [Status.MET, Status.EXCLUDED]
    assert result.verdict is Verdict.PASS


def test_a_capture_goes_from_one_criterion_to_the_next() -> None:
    first = {"assert": "a-shelf", "book": "book", "capture": "found"}
    second = {"assert": "a-shelf", "book": "book", "fields": {"b": "${found.a}"}}
    assert verify(first, second).verdict is Verdict.PASS
    lost = verify(first, second, after=BEFORE)
    assert [(one.status, one.fault) for one in lost.criterion_results] == [(Status.NOT_MET, Fault.AGENT)] * 2


def test_each_verification_starts_anew() -> None:
    """What one run selected or captured is unknown to the next, though the work is the same."""
    engine, given, done = (
        VerificationEngine(),
        as_work_part({"a": snapshot(BEFORE)}),
        as_work_part({"a": snapshot(AFTER)}),
    )
    both = asked({"assert": "a-shelf", "book": "book", "capture": "found"}, {"assert": "state-unchanged"})
    alone = asked({"assert": "state-unchanged"}, {"assert": "a-shelf", "when": "found.a == 1"})
    assert engine.verify_sync("c", given, done, both, {}).verdict is Verdict.PASS
    result = engine.verify_sync("c", given, done, alone, {})
    assert [one.status for one in result.criterion_results] == [Status.NOT_MET, Status.INDETERMINATE]


def test_results_of_state_checks_can_be_written_and_read() -> None:
    after = {"map/1": "{}", "book/1": TEN, "book/2": b"\xff", "book/3": '{"a": "\\u00e9\\u0000", "n": 1e300}'}
    result = verify(tenths(5), tenths(10, evidence="hash"), {"assert": "state-unchanged"}, after=after)
    assert VerificationResult.from_json(result.to_json()) == result
    details = result.criterion_results[0].details or {}
    assert [one["key"] for one in details["unreadable"]] == ["book/2"]
    assert [one["key"] for one in details["also_selected"]] == ["book/3"]


def test_a_body_that_cannot_be_decoded_costs_its_own_criterion() -> None:
    broken = as_work_part({"a": Snapshot(SourceKind.ROWS, [make_item("book/1", b"\xff")])})
    broken["world"]["a"]["items"][0]["body"] = "no base64!"
    criteria = asked({"assert": "a-shelf"}, {"assert": "a-shelf", "from": "a", "changed": "created"})
    result = VerificationEngine().verify_sync("c", as_work_part({}), broken, criteria, {})
    assert [one.status for one in result.criterion_results] == [Status.INDETERMINATE] * 2
    assert result.criterion_results[0].fault is Fault.SYSTEM


# Judged again

FIRST = {"assert": "a-shelf", "book": "book", "capture": "found"}


def reusable(old: list[Mapping[str, Any]], new: list[Mapping[str, Any]]) -> bool:
    engine = VerificationEngine()
    return EvidenceSources(engine.compile(asked(*new)), engine.compile(asked(*old))).possible


@pytest.mark.parametrize(
    "leaning",
    [
        {"assert": "state-unchanged"},
        {"assert": "a-shelf", "fields": {"b": "${found.a}"}},
        {"assert": "a-shelf", "when": "found.a == 1"},
        {"assert": "a-shelf", "let": {"x": {"book": "${found.a}", "path": "a"}}},
    ],
)
def test_what_leans_on_other_checks_is_reused_only_beside_the_same(leaning: Mapping[str, Any]) -> None:
    assert reusable([FIRST, leaning], [{**FIRST, "weight": 3}, {**leaning, "name": "called so"}])
    assert not reusable([FIRST, leaning], [leaning])
    assert not reusable([FIRST, leaning], [leaning, FIRST])
    assert not reusable([FIRST, tenths(3), leaning], [FIRST, leaning])


def test_what_stands_by_itself_is_reused_beside_any() -> None:
    assert reusable([tenths(3), tenths(4), {"assert": "state-unchanged"}], [tenths(4)])
    assert not reusable([tenths(3)], [tenths(4)])
