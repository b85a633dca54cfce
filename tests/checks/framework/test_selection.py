"""Items are selected, counted, matched and scored; and the evidence says how."""

import json
import re
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checks.shelves import Shelf, run, scored, snapshot, work

from meruit.checks.framework.assertion import MatchMode
from meruit.model.environment import Encoding, Item, Read, Snapshot, SourceKind, make_item
from meruit.model.evidence import Cause, Checked, Fault, Missing

ANN, BEA, CAY = '{"by": "Ann", "n": 1}', '{"by": "Bea", "n": 2}', '{"by": "Cay", "n": 3}'
SHELF = {"book/1": ANN, "book/2": BEA, "book/3": CAY, "map/1": '{"by": "Ann"}'}


def keys(several: Any) -> list[str]:
    return [one["key"] for one in several]


# Selecting and counting


@pytest.mark.parametrize(
    ("asked", "score"),
    [
        ({}, "1"),
        ({"book": "book", "count": 3}, "1"),
        ({"book": "book", "count": 2}, "0"),
        ({"book": "book", "count": {"max": 3}}, "1"),
        ({"book": "book", "where": {"n": {"gte": 2}}, "count": 2}, "1"),
        ({"book": "book", "where": {"n": {"gte": 9}}, "count": 0}, "1"),
        ({"book": "book", "where": {"n": {"gte": 9}}}, "0"),
        ({"book": "atlas"}, "0"),
        ({"book": "atlas", "count": [0, 2]}, "1"),
    ],
)
def test_as_many_as_were_asked_for_must_be_there(asked: dict[str, Any], score: str) -> None:
    assert scored(work(SHELF, SHELF), **asked)[0] == score


def test_without_fields_that_one_is_there_is_enough() -> None:
    score, evidence = scored(work(None, SHELF), book="book")
    assert (score, evidence["fields"], evidence["considered"]) == ("1", [], 3)


def test_the_nearest_items_are_shown_when_none_is_selected() -> None:
    shelf = {f"book/{n}": json.dumps({"by": "Ann" if n > 6 else "Bea", "n": n}) for n in range(1, 10)}
    asked = {"where": {"by": "Ann", "n": {"lt": 7}}, "fields": {"n": {"lt": 8}, "title": "exists"}}
    score, evidence = scored(work(shelf, shelf), **asked)
    assert (score, evidence["selected"], evidence["why"][:20]) == ("0", [], "0 found; at least 1 ")
    # Each of the first six lacks author and title; the seventh lacks number and title; the eighth one more.
    assert keys(evidence["nearest"]) == ["book/1", "book/2", "book/3"]
    assert [one["path"] for one in evidence["nearest"][0]["failing"]] == ["by", "title"]
    assert evidence["nearest"][0]["failing"][0] == {
        "path": "by",
        "op": "equals",
        "expected": "Ann",
        "actual": "Bea",
        "passed": False,
        "why": "is 'Bea'",
    }


def test_one_that_did_not_change_as_asked_is_less_near_than_one_that_did() -> None:
    after = SHELF | {"book/9": '{"by": "Zoe", "n": 99}'}
    _, evidence = scored(work(SHELF, after), changed="created", where={"by": "Ann", "n": 1})
    assert keys(evidence["nearest"]) == ["book/9", "book/1", "map/1"]
    assert [one["change"] for one in evidence["nearest"]] == ["created", "none", "none"]


def test_the_ids_of_too_many_items_are_listed() -> None:
    shelf = {f"book/{number:03}": ANN for number in range(120)}
    score, evidence = scored(work({}, shelf), count={"max": 100})
    assert (score, evidence["why"][:20]) == ("0", "120 found; 0 to 100 ")
    assert keys(evidence["selected"]) == sorted(shelf)
    assert "nearest" not in evidence


def test_fields_without_an_item_score_zero() -> None:
    for fields in ({"by": "absent"}, {"by": "Ann"}, {"by": None}):
        score, evidence = scored(work({}, {}), count={"max": 1}, fields=fields)
        assert (score, "no item" in evidence["why"]) == ("0", True)


def test_the_fault_is_the_agents_where_the_count_is_wrong() -> None:
    finding = run(work({}, {}), book="book")
    assert isinstance(finding, Checked)
    assert finding.fault is Fault.AGENT


# What changed

BEFORE = {"book/1": ANN, "book/2": BEA, "book/3": CAY}
AFTER = {"book/1": ANN, "book/2": '{"by": "Bea", "n": 22}', "book/4": '{"by": "Dee", "n": 4}'}


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        (None, ["book/1", "book/2", "book/4"]),
        ("created", ["book/4"]),
        ("updated", ["book/2"]),
        ("deleted", ["book/3"]),
        ("any", ["book/2", "book/3", "book/4"]),
        ("none", ["book/1"]),
    ],
)
def test_items_are_selected_by_what_happened_to_them(changed: str | None, found: list[str]) -> None:
    asked = {} if changed is None else {"changed": changed}
    score, evidence = scored(work(BEFORE, AFTER), match="all", count=len(found), **asked)
    assert (score, keys(evidence["selected"])) == ("1", found)


def test_what_was_deleted_is_held_against_the_fields_as_it_was() -> None:
    assert scored(work(BEFORE, AFTER), changed="deleted", fields={"by": "Cay", "n": 3})[0] == "1"


@given(
    *[st.dictionaries(st.sampled_from([f"book/{n}" for n in range(6)]), st.sampled_from([ANN, BEA, CAY]))] * 2,
    st.sampled_from(["created", "updated", "deleted", "any", "none"]),
)
def test_changes_are_found_by_comparing_two_states(before: Any, after: Any, changed: str) -> None:
    changes = {
        "created": after.keys() - before.keys(),
        "deleted": before.keys() - after.keys(),
        "updated": {key for key in after.keys() & before.keys() if after[key] != before[key]},
        "none": {key for key in after.keys() & before.keys() if after[key] == before[key]},
    }
    changes["any"] = changes["created"] | changes["updated"] | changes["deleted"]
    score, evidence = scored(work(before, after), changed=changed, match="all", count=[0, 9])
    assert (score, set(keys(evidence["selected"]))) == ("1", changes[changed])


def test_changes_are_unknown_without_a_read_before() -> None:
    for before in (None, snapshot({}, trouble="down")):
        finding = run(work(before, AFTER), changed="created")
        assert isinstance(finding, Missing)
        assert (finding.cause, finding.fault) == (Cause.CHECK_ERROR, Fault.SYSTEM)
        assert scored(work(before, AFTER), fields={"by": "Ann"})[0] == "1"


# Trouble


@pytest.mark.parametrize("asked", [{}, {"count": 0}, {"changed": "created"}, {"fields": {"by": "Ann"}}])
def test_an_unread_source_is_a_system_fault(asked: dict[str, Any]) -> None:
    after = snapshot(SHELF, trouble="401 from the server", reads=[Read("https://ehr/Patient", 401)])
    finding = run(work(SHELF, after), **asked)
    assert isinstance(finding, Missing)
    assert (finding.cause, finding.fault) == (Cause.CHECK_ERROR, Fault.SYSTEM)
    assert "401 from the server" in finding.why
    assert finding.details is not None
    assert finding.details["reads"][0]["status"] == 401


def test_evidence_shows_what_it_rests_on() -> None:
    after = snapshot(SHELF, reads=[Read("/books", 200, "W/1", "ab" * 32, 4)], settled_after_ms=250)
    _, evidence = scored(work(SHELF, after), book="book")
    assert (evidence["source"], evidence["settled_after_ms"]) == ("a", 250)
    assert evidence["reads"] == [{"what": "/books", "status": 200, "etag": "W/1", "sha256": "ab" * 32, "items": 4}]


# What cannot be read

GARBLED = SHELF | {"book/8": b'{"by": "Ann"', "book/9": b"\xff\xfe"}


def test_what_the_agent_garbled_may_be_one_too_many() -> None:
    for count in (3, {"max": 3}, {"max": 9}):
        score, evidence = scored(work(SHELF, GARBLED), book="book", count=count)
        assert (score, evidence["why"][:12]) == ("0", "2 unreadable")
        assert keys(evidence["unreadable"]) == ["book/8", "book/9"]
        assert "UTF-8" in evidence["unreadable"][1].pop("why")
        assert evidence["unreadable"][1] == {"key": "book/9", "offset": 0, "head": "\\xff\\xfe"}


def test_what_is_garbled_does_not_undo_one_that_fits() -> None:
    assert scored(work(SHELF, GARBLED), book="book", fields={"by": "Ann"})[0] == "1"


def test_what_is_garbled_is_among_all_and_does_not_fit() -> None:
    assert scored(work(SHELF, GARBLED), book="book", match="all", fields={"by": "exists"})[0] == "3/5"


def test_what_was_garbled_before_the_run_is_not_the_agents_doing() -> None:
    assert scored(work(GARBLED, GARBLED), book="book", count=3)[0] == "1"


def test_what_was_garbled_in_another_way_than_asked_for_does_not_matter() -> None:
    assert scored(work(SHELF, GARBLED), changed="updated", count=0)[0] == "1"
    assert scored(work(SHELF, GARBLED), changed="created", count=0)[0] == "0"


def test_nothing_but_garbage_is_a_failure_that_says_where_it_begins() -> None:
    score, evidence = scored(work({}, {"book/1": b'{"by": nobody}'}), fields={"by": "Ann"})
    assert score == "0"
    assert evidence["unreadable"][0]["offset"] == 7


LARGE = Item("book/7", "v1", None, Encoding.LEFT, {"size": 10**9, "limit": 4_000})
HANGING = [
    {"count": 1},
    {"count": 0},
    {"match": "all"},
    {"match": "first"},
    {"fields": {"by": "Zoe"}},
    {"book": "atlas"},
]
"""What hangs on an item that nobody can read."""


@pytest.mark.parametrize("asked", HANGING)
def test_a_result_that_needs_an_unkept_item_is_missing(asked: dict[str, Any]) -> None:
    after = Snapshot(SourceKind.ROWS, [make_item("book/1", ANN.encode()), LARGE])
    for before in (Snapshot(SourceKind.ROWS, [LARGE]), None, Snapshot(SourceKind.ROWS, trouble="down")):
        finding = run(work(before, after), **asked)
        assert isinstance(finding, Missing)
        assert (finding.fault, "a: book/7" in finding.why) == (Fault.SYSTEM, True)


@pytest.mark.parametrize("asked", [one for one in HANGING if one != {"match": "first"}])
@pytest.mark.parametrize(
    "before", [[], [make_item("book/7", ANN.encode())], [msgspec.structs.replace(LARGE, version="v0")]]
)
def test_what_the_agent_made_too_large_to_keep_is_its_own_fault(before: list[Item], asked: dict[str, Any]) -> None:
    after = Snapshot(SourceKind.ROWS, [make_item("book/1", ANN.encode()), LARGE])
    finding = run(work(Snapshot(SourceKind.ROWS, before), after), **asked)
    assert isinstance(finding, Checked)
    assert finding.fault is Fault.AGENT
    assert Fraction(finding.score) < 1
    (shown,) = (finding.details or {})["unreadable"]
    assert (shown["key"], shown["size"], shown["limit"]) == ("book/7", 10**9, 4_000)
    assert re.findall(r"[\d,]*\d", shown["why"]) == ["1,000,000,000", "4,000"]


def test_how_large_it_is_may_be_shown_where_values_are_not() -> None:
    after = Snapshot(SourceKind.ROWS, [msgspec.structs.replace(LARGE, facts={})])
    _, evidence = scored(work({}, after), evidence="hash")
    (large,) = evidence["unreadable"]
    assert "too large" in large.pop("why")
    assert large == {"key": "book/7", "offset": 0, "size": None, "limit": None}


def test_what_a_record_lost_is_not_the_agents() -> None:
    lost = Snapshot(SourceKind.ROWS, [Item("book/7", "v1", None, Encoding.BEFORE)])
    finding = run(work({}, lost))
    assert isinstance(finding, Missing)
    assert (finding.fault, "a: book/7" in finding.why) == (Fault.SYSTEM, True)


def test_the_first_is_unknown_behind_an_unreadable_item() -> None:
    after = Snapshot(SourceKind.ROWS, [make_item("book/8", ANN.encode()), LARGE])
    score, evidence = scored(work({}, after), match="first", fields={"by": "Ann"})
    assert (score, "1 unreadable" in evidence["why"]) == ("0", True)
    after = Snapshot(SourceKind.ROWS, [make_item("book/1", ANN.encode()), LARGE])
    assert scored(work({}, after), match="first", fields={"by": "Ann"})[0] == "1"


def test_one_match_is_enough_despite_items_not_kept() -> None:
    after = Snapshot(SourceKind.ROWS, [make_item("book/1", ANN.encode()), LARGE])
    assert scored(work({}, after), fields={"by": "Ann"})[0] == "1"
    assert scored(work(after, after), changed="created", count=0)[0] == "1"


# Matching and scoring


def test_the_best_is_the_one_of_which_most_fits() -> None:
    score, evidence = scored(work(SHELF, SHELF), book="book", fields={"by": "Bea", "n": {"gte": 2}, "title": "exists"})
    assert (score, keys(evidence["selected"])) == ("2/3", ["book/2"])
    assert keys(evidence["also_selected"]) == ["book/1", "book/3"]
    assert [one["passed"] for one in evidence["fields"]] == [True, True, False]


def test_of_equals_the_first_by_key_is_the_best() -> None:
    shelf = {"book/3": ANN, "book/1": ANN, "book/2": ANN}
    for match in ("best", "any", "first"):
        _, evidence = scored(work({}, shelf), match=match, fields={"by": "Ann"})
        assert keys(evidence["selected"]) == ["book/1"]


def test_any_is_another_word_for_best_and_first_is_only_the_first() -> None:
    asked = {"book": "book", "fields": {"by": "Cay"}}
    assert Shelf.model_validate({"match": "any"}) == Shelf.model_validate({"match": "best"})
    assert scored(work(SHELF, SHELF), match="any", **asked)[0] == "1"
    assert scored(work(SHELF, SHELF), match="first", **asked)[0] == "0"


def test_all_is_the_mean_over_all_and_says_whose_each_field_is() -> None:
    score, evidence = scored(work(SHELF, SHELF), book="book", match="all", fields={"n": {"gte": 2}, "by": "Ann"})
    assert score == "1/2"
    assert [one["item"] for one in evidence["fields"]] == ["book/1", "book/1", "book/2", "book/2", "book/3", "book/3"]


def test_fields_count_for_what_they_weigh() -> None:
    fields = {"by": {"equals": "Ann", "weight": 3}, "n": 9, "title": {"exists": True, "weight": 0.5}}
    assert scored(work(SHELF, SHELF), book="map", fields=fields)[0] == "2/3"


def test_without_what_must_be_everything_is_lost() -> None:
    fields = {"by": {"equals": "Zoe", "must": True}, "n": {"gte": 1, "weight": 9}}
    score, evidence = scored(work(SHELF, SHELF), fields=fields)
    assert score == "0"
    # Of those that are worth nothing, the one of which most fits is shown.
    assert keys(evidence["selected"]) == ["book/1"]
    assert scored(work(SHELF, SHELF), fields={"by": {"equals": "Ann", "must": True}, "n": 9}, match="first")[0] == "1/2"


def test_credit_for_all_or_nothing() -> None:
    assert scored(work(SHELF, SHELF), fields={"by": "Ann", "n": 9})[0] == "1/2"
    assert scored(work(SHELF, SHELF), fields={"by": "Ann", "n": 9}, credit="all")[0] == "0"
    assert scored(work(SHELF, SHELF), fields={"by": "Ann", "n": 1}, credit="all")[0] == "1"


def test_what_a_check_asks_besides_counts_as_a_field() -> None:
    shelf = {"book/1": '{"by": "Ann", "pages": 5}'}
    assert scored(work({}, shelf), pages=5, fields={"by": "Bea"})[0] == "1/2"
    score, evidence = scored(work({}, shelf), pages=6)
    assert (score, evidence["fields"][0]["why"]) == ("0", "has 5 pages")


@given(
    st.dictionaries(
        st.integers(1, 6).map("book/{}".format),
        st.fixed_dictionaries({name: st.integers(0, 1) for name in "abc"}),
        min_size=1,
    ),
    st.dictionaries(st.sampled_from("abc"), st.tuples(st.integers(0, 1), st.integers(1, 4), st.booleans()), min_size=1),
    st.sampled_from(MatchMode),
    st.sampled_from(["fields", "all"]),
)
def test_the_score_is_what_the_rules_say(books: Any, rules: Any, match: MatchMode, credit: str) -> None:
    def worth(book: dict[str, int]) -> Fraction:
        if any(must and book[name] != wanted for name, (wanted, _, must) in rules.items()):
            return Fraction(0)
        fitting = sum(weight for name, (wanted, weight, _) in rules.items() if book[name] == wanted)
        return Fraction(fitting, sum(weight for _, weight, _ in rules.values()))

    several = [worth(books[key]) for key in sorted(books)]
    expected = {
        MatchMode.BEST: max(several),
        MatchMode.ANY: max(several),
        MatchMode.ALL: sum(several, Fraction(0)) / len(several),
        MatchMode.FIRST: several[0],
    }[match]
    if credit == "all" and expected < 1:
        expected = Fraction(0)
    fields = {
        name: {"equals": wanted, "weight": weight, "must": must} for name, (wanted, weight, must) in rules.items()
    }
    shelf = {key: json.dumps(book) for key, book in books.items()}
    score, evidence = scored(work({}, shelf), fields=fields, match=match, credit=credit)
    assert Fraction(score) == expected
    assert len(evidence["fields"]) == len(fields) * (len(books) if match is MatchMode.ALL else 1)


# Evidence


def test_evidence_shows_numbers_as_numbers_and_bounds_what_is_long() -> None:
    shelf = {"book/1": json.dumps({"n": 7.5, "big": 2**60, "text": "x" * 9000, "list": list(range(5000))})}
    fields = {"n": 7.5, "big": 2**60, "text": "exists", "list": {"count": 5000}}
    score, evidence = scored(work({}, shelf), fields=fields)
    shown = {one["path"]: one["actual"] for one in evidence["fields"]}
    assert score == "1"
    assert (shown["n"], shown["big"]) == (7.5, str(2**60))
    assert all(len(str(one)) < 2100 for one in shown.values())
    assert json.loads(json.dumps(evidence, allow_nan=False)) == evidence


def test_evidence_of_many_is_bounded() -> None:
    shelf = {f"book/{number:04}": ANN for number in range(2_000)}
    _, evidence = scored(work({}, shelf), match="all", fields={"by": "Ann", "n": 1})
    assert len(json.dumps(evidence)) < 250_000


SECRET = "Quetzalcoatl"


@pytest.mark.parametrize(
    "asked",
    [
        {"fields": {"by": "Ann", "n": {"gt": 5}, "tags": {"all": "a"}}},
        {"where": {"by": "Ann"}},
        {"changed": "deleted", "where": {"by": "Ann"}},
        {"match": "all", "fields": {"by": {"matches": "A.*"}, "tags": {"set": ["b"]}}},
        {"count": 1},
        {"pages": 7},
        {"fields": {"by": {"near": {"value": 1, "by": 1}}}},
    ],
)
def test_hidden_evidence_shows_nothing_of_what_was_found(asked: dict[str, Any]) -> None:
    shelf: dict[str, str | bytes] = {
        "book/1": json.dumps({"by": SECRET, "n": 424242, "tags": [SECRET, "b"], "pages": 424242}),
        "book/2": f'{{"{SECRET}": 424242'.encode(),
    }
    on = {f"gone/{key}": one for key, one in shelf.items()} | shelf
    plain = json.dumps(scored(work(on, shelf | {"book/3": shelf["book/2"]}), **asked)[1])
    hidden = json.dumps(scored(work(on, shelf | {"book/3": shelf["book/2"]}), evidence="hash", **asked)[1])
    assert SECRET in plain or "424242" in plain
    assert SECRET not in hidden
    assert "424242" not in hidden


def test_equal_values_have_equal_digests_however_long_they_are() -> None:
    long = "x" * 10_000
    shelf = {
        "book/1": json.dumps({"a": f"{long}1", "b": f"{long}2", "c": f"{long}1", "d": 1.0, "e": 1, "f": ["y", "z"]})
    }
    fields = dict.fromkeys("abcdef", "exists")
    _, evidence = scored(work({}, shelf), evidence="hash", fields=fields)
    found = {one["path"]: one["actual"] for one in evidence["fields"]}
    assert found["a"] == found["c"] != found["b"]
    assert found["d"] == found["e"]
    assert all(str(one).startswith("sha256:") for name, one in found.items() if name != "f")
    assert len(set(found["f"])) == 2
