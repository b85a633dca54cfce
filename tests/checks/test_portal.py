"""Rows of an application: selected, looked at, or asked by a query; whatever they hold, an answer and no crash."""

import json
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checks.questions import Holding, judged

from meruit.checks.portal import MAX_COPIES, MAX_QUERY, compile_query
from meruit.errors import AuthorError
from meruit.model.criterion import Assertion
from meruit.model.environment import Encoding, Item, Snapshot, SourceKind, as_work_part, make_item
from meruit.model.evidence import Checked, Fault, Missing
from meruit.model.work import Work
from meruit.registry import checks

# Any: rows and assertions are JSON.
Rows = Mapping[str, Any]


def snapshot(rows: Rows) -> Snapshot:
    return Snapshot(SourceKind.ROWS, [make_item(key, json.dumps(row).encode()) for key, row in rows.items()])


PAYER = Holding[Rows]("portal-state-match", "payer", snapshot, {})
work, found, checked, refused = PAYER.work, PAYER.found, PAYER.checked, PAYER.refused


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "0", "é"]), inner, max_size=3)
    ),
    max_leaves=10,
)
MATCHERS: list[Any] = [
    *("exists", "absent", "empty", "x", 1, True, None),
    *({"equals": [1]}, {"equals": {"a": 1}}, {"in": [1, "a"]}, {"not_in": [None]}, {"not": "absent"}),
    *({"matches": ".*"}, {"contains": "a"}, {"says": "a"}, {"count": {"gte": 1}}, {"gt": 1}, {"lte": "2026-01-01"}),
    *({"between": [0, 5]}, {"near": {"value": 1, "pct": 10}}, {"same_day": "2026-03-06"}, {"coding": "s|c"}),
    *({"around": {"value": "2026-03-06T10:00:00Z", "by": "15m"}}, {"ref": "Patient/1"}, {"hl7_null": True}),
    *({"quantity": {"value": 1, "unit": "mg"}}, {"any": 1}, {"all": {"gt": 0}}, {"none": "a"}, {"set": [1, "a"]}),
    *({"one_of": ["absent", 1]}, {"all_of": ["exists", {"count": 1}]}, {"before": "2026-01-01T00:00:00Z"}),
]
PATHS = ["a", "a.b", "a[].b", "a[0]", "[0]", "[]", "a[b=1].a", '["é"]']


@given(
    st.dictionaries(st.sampled_from(["r", "r/1", "r/2", "s/1"]), JSON),
    st.sampled_from(MATCHERS),
    st.sampled_from(PATHS),
)
def test_every_matcher_answers_on_any_row(rows: Rows, matcher: Any, path: str) -> None:
    score, details = checked({"correlate_by": {"resource": "r"}, "fields": {path: matcher}}, rows)
    assert score in ("0", "1")
    assert details["considered"] == sum(key.split("/")[0] == "r" for key in rows)
    json.dumps(details)
    checked({"correlate_by": {"resource": "r", path: matcher}, "where": {path: matcher}}, rows)


QUERIES = [
    *("r", "@", "r[].a", "r[?a > `1`].b", "length(r)", "sum(r[].a)", "r[*].a | [0]", "sort_by(r, &a)[-1].b", "*.a"),
    *("{x: r, y: s}", "max_by(r, &a)", "join(',', r[].b)", "to_string(@)", "floor(r[0].a)", "avg(s[].a)", "keys(r)"),
    *("r[::2]", "merge(r[0], s[0])", "r[].a[]", "to_number(r[0].b)", "r[0] == s[0]", "values(@)", "reverse(r)"),
]


@given(
    st.dictionaries(st.sampled_from(["r", "r/1", "r/2", "s/1"]), JSON),
    st.sampled_from(MATCHERS),
    st.sampled_from(QUERIES),
)
def test_every_query_answers_on_any_row(rows: Rows, matcher: Any, query: str) -> None:
    score, details = checked({"query": query, "expected": matcher}, rows)
    assert score in ("0", "1")
    (result,) = details["fields"]
    assert result["path"] == query
    assert result["passed"] is (score == "1")
    assert ("why" in result) is (score == "0")
    json.dumps(details)


SMALL = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2))


@given(SMALL.filter(bool), SMALL)
def test_a_row_earns_the_share_of_its_fields_that_fit(asked: dict[str, int], row: dict[str, int]) -> None:
    score, details = checked({"correlate_by": {"resource": "r"}, "fields": asked}, {"r/1": row})
    fitting = [name for name, value in asked.items() if row.get(name) == value]
    assert Fraction(score) == Fraction(len(fitting), len(asked))
    assert [one["path"] for one in details["fields"] if one["passed"]] == fitting
    strict, _ = checked({"correlate_by": {"resource": "r"}, "fields": asked, "credit": "all"}, {"r/1": row})
    assert strict == ("1" if len(fitting) == len(asked) else "0")


@given(st.lists(SMALL, max_size=6), SMALL.filter(bool))
def test_rows_are_correlated_by_their_resource_and_fields(rows: list[dict[str, int]], by: dict[str, int]) -> None:
    world = {f"{'rs'[place % 2]}/{place}": row for place, row in enumerate(rows)}
    meant = [key for key, row in world.items() if key[0] == "r" and by.items() <= row.items()]
    score, details = checked({"correlate_by": {"resource": "r", **by}, "count": len(meant)}, world)
    assert score == "1"
    listed = [one["key"] for one in [*details["selected"], *details.get("also_selected", [])]]
    assert sorted(listed) == meant


@given(st.lists(SMALL, max_size=6), st.integers(0, 2))
def test_a_query_counts_what_a_loop_counts(rows: list[dict[str, int]], wanted: int) -> None:
    count = sum(row.get("a") == wanted for row in rows)
    world = {f"r/{place}": row for place, row in enumerate(rows)}
    score, _ = checked({"query": f"r[?a == `{wanted}`]", "expected": {"count": count}}, world)
    assert score == "1"


ROW = {
    "member": "MEM88771",
    "cpt": "72148",
    "status": "pending",
    "attachments": ["a.pdf"],
    "documents": [{"name": "note.txt"}, {"name": "lumbar MRI 2026.pdf"}],
}
BY_QUERY = {
    "assert": "portal-state-match",
    "from": "payer",
    "query": "full_state.appealActions.submittedAttachmentCount",
    "expected": {"gte": 1},
}
BY_ROW = {
    "assert": "portal-state-match",
    "from": "payer",
    "correlate_by": {"resource": "prior_auth", "member": "MEM88771"},
    "changed": "created",
    "count": 1,
    "fields": {
        "cpt": "72148",
        "status": {"in": ["pending", "approved"]},
        "attachments": {"count": {"gte": 1}},
        "documents[].name": {"any": {"matches": ".*MRI.*\\.pdf"}},
    },
}


@pytest.mark.parametrize(
    ("criterion", "before", "after", "score"),
    [
        (BY_QUERY, {}, {"full_state": {"appealActions": {"submittedAttachmentCount": 2}}}, 1),
        (BY_QUERY, {}, {"full_state": {"appealActions": {"submittedAttachmentCount": 0}}}, 0),
        (BY_QUERY, {}, {"full_state": {}}, 0),
        (BY_QUERY, {}, {}, 0),
        (BY_ROW, {}, {"prior_auth/9": ROW}, 1),
        (BY_ROW, {}, {"prior_auth/9": ROW | {"status": "denied"}}, 0.75),
        (BY_ROW, {}, {"prior_auth/9": {"member": "MEM88771"}}, 0),
        (BY_ROW, {}, {"prior_auth/9": ROW | {"member": "MEM1"}}, 0),
        (BY_ROW, {}, {"prior_auth/8": ROW, "prior_auth/9": ROW}, 0),
        (BY_ROW, {"prior_auth/9": ROW}, {"prior_auth/9": ROW}, 0),
        (BY_ROW, {"prior_auth/9": {}}, {"prior_auth/9": ROW}, 0),
        (BY_ROW, {}, {"appeal/9": ROW}, 0),
        (BY_ROW, {}, {}, 0),
    ],
)
def test_the_worked_examples(criterion: dict[str, Any], before: Rows, after: Rows, score: float) -> None:
    (result,) = judged([criterion], work(before, after))
    assert result.score == score
    assert result.fault is (Fault.NONE if score == 1 else Fault.AGENT)


def test_evidence_is_path_expected_actual_passed() -> None:
    assert checks.get("portal-state-match").evidence == "assertionResults"
    _, details = checked({"correlate_by": {"resource": "r"}, "fields": {"cpt": "72148", "n": 1}}, {"r/1": {"cpt": "1"}})
    first, second = details["fields"]
    assert first == {
        "path": "cpt",
        "op": "equals",
        "expected": "72148",
        "actual": "1",
        "passed": False,
        "why": "is '1'",
    }
    assert (second["path"], second["expected"], second["actual"], second["passed"]) == ("n", 1, None, False)


def test_one_element_of_a_list_is_enough_only_with_match_any() -> None:
    rows: Rows = {"r/1": {"n": 1}, "r/2": {"n": 2}}
    assert checked({"query": "r[].n", "expected": 2}, rows)[0] == "0"
    assert checked({"query": "r[].n", "expected": 2, "match": "any"}, rows)[0] == "1"
    assert "match" in refused({"query": "r[].n", "expected": 2, "match": "all"})


@pytest.mark.parametrize(
    ("query", "expected", "holds"),
    [
        ("r[].n", {"set": [1, 2]}, True),
        ("r[].n", {"count": 2}, True),
        ("r[].n", 2, False),
        ("r[].n", {"equals": [1, 2]}, True),
        ("r[].n", {"all": {"lt": 2}}, False),
        ("r[?n == `9`]", "absent", True),
        ("r[?n == `9`]", {"count": 0}, True),
        ("r[?n == `9`] | [0].n", None, True),
        ("r[0].price", 0.1, True),
        ("r[?price == `0.1`].n", {"equals": [1]}, True),
        ("r[0].price", "0.1", False),
        ("r[0]", {"equals": {"n": 1, "price": 0.1}}, True),
        ("one.x", "y", True),
        ("both[].x", {"set": ["whole", "part"]}, True),
        ("length(gone)", 0, False),
        ("length(gone)", "absent", False),
        ("not_null(gone, `[]`) | length(@)", 0, True),
        ("floor(`1e999`)", "exists", False),
    ],
)
def test_what_a_query_comes_to(query: str, expected: Any, holds: bool) -> None:
    rows: Rows = {
        "r/1": {"n": 1, "price": 0.1},
        "r/2": {"n": 2},
        "one": {"x": "y"},
        "both": {"x": "whole"},
        "both/1": {"x": "part"},
    }
    score, _ = checked({"query": query, "expected": expected}, rows)
    assert score == str(int(holds))


def test_what_is_null_is_not_asked() -> None:
    asked = {"correlate_by": {"resource": "r"}, "query": None}
    assert checked(asked, {"r/1": {}})[0] == "1"


def test_a_query_alone_asks_whether_there_is_anything() -> None:
    assert checked({"query": "r[?n == `1`]"}, {"r/1": {"n": 1}})[0] == "1"
    assert checked({"query": "r[?n == `2`]"}, {"r/1": {"n": 1}})[0] == "0"


@pytest.mark.parametrize(
    ("asked", "place", "why"),
    [
        ({}, "", "which rows"),
        ({"correlate_by": {"member": "M"}}, "", "which rows"),
        ({"correlate_by": {"resource": "r"}, "query": "a"}, "", "correlate_by"),
        ({"query": "a", "changed": "created", "count": 1}, "", "changed, count"),
        ({"correlate_by": {"resource": "r"}, "expected": 1}, "", "expected"),
        ({"query": "a["}, "query", "JMESPath"),
        ({"query": "a[?b == '${x}']"}, "query", "${…}"),
        ({"query": "lenght(a)"}, "query", "'length'"),
        ({"query": "a && lenght(a)"}, "query", "'length'"),
        ({"query": "length(a, b)"}, "query", "1 arguments, not 2"),
        ({"query": "not_null()"}, "query", "takes at least 1 arguments"),
        ({"query": "a[::0]"}, "query", "step 0"),
        ({"query": "a" * (MAX_QUERY + 1)}, "query", "at most"),
        ({"query": "(" * 900}, "query", "too deep"),
        ({"query": "a" + "|a" * 200}, "query", "deep"),
        ({"query": "@" + "|[@,@][]" * 20}, "query", "copy"),
        ({"query": "a", "expected": {"gtee": 1}}, "expected", "'gte'"),
        ({"correlate_by": {"resource": "r", "a..b": 1}}, "correlate_by", "'a..b'"),
        ({"correlate_by": {"resource": "r"}, "fields": {"a": {"matches": "("}}}, "fields.a", "regular expression"),
        ({"correlate_by": {"resource": "r"}, "where": {"a": {"in": []}}}, "where.a", "a list"),
        ({"correlate_by": ["r"]}, "correlate_by", "a path"),
        ({"querry": "a"}, "querry", "'query'"),
    ],
)
def test_an_invalid_assertion_is_refused_at_its_path(asked: dict[str, Any], place: str, why: str) -> None:
    told = refused(asked)
    assert why in told
    assert told.startswith(place)


def test_a_query_may_select_from_what_it_selected() -> None:
    compile_query("prior_auth[].{id: id, docs: documents[].{name: name, size: size}, state: [status, decision]}")
    assert MAX_COPIES > 1
    with pytest.raises(AuthorError):
        compile_query("to_string([to_string([to_string([to_string([to_string([to_string([a])])])])])])")


def test_what_a_query_looks_for_is_not_collateral() -> None:
    unchanged = {"assert": "state-unchanged"}
    created = work({"full_state": {}, "r/1": {}}, {"full_state": {"a": 1}, "r/1": {}, "r/2": {"n": 2}})
    whole = {"assert": "portal-state-match", "query": "@.full_state.a", "expected": 1}
    rows = {"assert": "portal-state-match", "query": "r[?n == `2`]", "expected": {"count": 1}}
    scalar = {"assert": "portal-state-match", "query": "sort_by(r[?n], &n)[0].n", "expected": 2}
    assert [one.score for one in judged([whole, rows, unchanged], created)] == [1, 1, 1]
    # What row a number came from nobody can tell.
    *_, collateral = judged([whole, scalar, unchanged], created)
    assert collateral.score == 0


def test_where_no_row_is_of_the_resource_the_evidence_names_those_there_are() -> None:
    score, details = checked({"correlate_by": {"resource": "prior_auths"}}, {"prior_auth/1": {}, "member/1": {}})
    assert (score, details["considered"], details["resources"]) == ("0", 0, ["member", "prior_auth"])


def test_a_row_of_another_resource_need_not_be_readable() -> None:
    rows = Snapshot(SourceKind.ROWS, [make_item("r/1", b'{"n": 1}'), make_item("s/1", b"\xff<html>")])
    given_work = Work(input=as_work_part({"p": Snapshot(SourceKind.ROWS)}), output=as_work_part({"p": rows}))
    by_row = {"assert": "portal-state-match", "correlate_by": {"resource": "r"}, "count": 1}
    garbled = {"assert": "portal-state-match", "correlate_by": {"resource": "s"}}
    query = {"assert": "portal-state-match", "query": "r[].n", "expected": 1}
    fine, unreadable, unknown = judged([by_row, garbled, query], given_work)
    assert fine.score == 1
    for one in (unreadable, unknown):
        assert (one.score, one.fault) == (0, Fault.AGENT)
        assert one.details is not None
        (shown,) = one.details["unreadable"]
        assert (shown["key"], shown["offset"], shown["head"]) == ("s/1", 0, "\\xff<html>")


@pytest.mark.parametrize("asked", [{"query": "r"}, {"correlate_by": {"resource": "r"}}])
def test_an_item_that_was_not_kept_makes_no_failure(asked: dict[str, Any]) -> None:
    left = Snapshot(SourceKind.ROWS, [Item("r/1", "v", None, Encoding.LEFT)])
    for after, why in ((left, "too large to read"), (Snapshot(SourceKind.ROWS, trouble="down"), "down")):
        given_work = Work(input=as_work_part({"p": left}), output=as_work_part({"p": after}))
        run = checks.get("portal-state-match").prepare(
            Assertion.model_validate({"assert": "portal-state-match", **asked})
        )
        finding = run(given_work)
        assert isinstance(finding, Missing)
        assert finding.fault is Fault.SYSTEM
        assert why in finding.why


@pytest.mark.parametrize("asked", [{"query": "r"}, {"correlate_by": {"resource": "r"}}])
def test_a_row_that_the_agent_made_too_large_to_keep_is_its_own_fault(asked: dict[str, Any]) -> None:
    left = Snapshot(SourceKind.ROWS, [Item("r/1", "v", None, Encoding.LEFT, {"size": 9, "limit": 8})])
    given_work = Work(input=as_work_part({"p": Snapshot(SourceKind.ROWS)}), output=as_work_part({"p": left}))
    (one,) = judged([{"assert": "portal-state-match", **asked}], given_work)
    assert (one.score, one.fault) == (0, Fault.AGENT)
    assert one.details is not None
    assert (one.details["unreadable"][0]["size"], one.details["unreadable"][0]["limit"]) == (9, 8)


def test_a_value_of_the_state_before_is_found_by_what_rows_are_correlated_by() -> None:
    before = {"plan/1": {"id": "P1", "limit": 3}, "plan/2": {"id": "P2", "limit": 5}}
    for selector in ({"correlate_by": {"resource": "plan", "id": "P2"}}, {"where": {"limit": {"gt": 4}}}):
        asked = {
            "let": {"limit": {**selector, "path": "limit"}},
            "correlate_by": {"resource": "visits"},
            "fields": {"n": "${limit - 1}"},
        }
        assert checked(asked, before | {"visits/1": {"n": 4}}, before)[0] == "1"
    strange = refused({"let": {"a": {"serch": {}, "path": "b"}}, "correlate_by": {"resource": "r"}})
    assert all(name in strange for name in ("correlate_by", "where"))
    unclear = refused({"let": {"a": {"where": {"a..b": 1}, "path": "b"}}, "correlate_by": {"resource": "r"}})
    assert "'a..b'" in unclear


def test_what_a_query_finds_can_be_captured() -> None:
    rows = {"r/1": {"n": 1, "id": "A"}, "s/1": {"of": "A"}}
    capturing = {"assert": "portal-state-match", "query": "r[?n == `1`] | [0]", "capture": "row"}
    using = {"assert": "portal-state-match", "correlate_by": {"resource": "s"}, "fields": {"of": "${row.id}"}}
    assert [one.score for one in judged([capturing, using], work({}, rows))] == [1, 1]
    lacking = judged([capturing | {"query": "r[?n == `2`] | [0]"}, using], work({}, rows))
    assert [one.score for one in lacking] == [0, 0]


def test_evidence_can_be_digests_only() -> None:
    rows = {"r/1": {"name": "Ann Secret"}}
    for asked in (
        {"correlate_by": {"resource": "r"}, "fields": {"name": "Bob"}},
        {"query": "r[0].name", "expected": "Bob"},
        {"query": "sum(r)", "expected": 1},
    ):
        score, details = checked({**asked, "evidence": "hash"}, rows)
        assert score == "0"
        assert "Secret" not in json.dumps(details)


def test_many_rows_and_a_large_one() -> None:
    rows = {f"r/{number:05}": {"n": number} for number in range(2_000)} | {"big": {"text": "x" * 1_000_000}}
    assert checked({"correlate_by": {"resource": "r", "n": 1_999}, "count": 1}, rows)[0] == "1"
    score, details = checked({"query": "big.text", "expected": {"matches": "x+"}}, rows)
    assert score == "1"
    assert len(json.dumps(details)) < 10_000


def test_the_examples_hold() -> None:
    check = checks.get("portal-state-match")
    for example in check.examples:
        finding = check.prepare(Assertion.model_validate({"assert": check.name, **example.assertion}))(example.work)
        assert isinstance(finding, Checked)
        assert finding.score == example.expect
