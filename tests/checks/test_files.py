"""Files: found by wildcards, weighed, digested, parsed as said; what nobody can read is never taken for good."""

import csv
import io
import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.checks.questions import Holding, judged

from meruit.checks.framework import file_formats as formats
from meruit.checks.framework.file_formats import FileFormat, format_by_ending
from meruit.checks.values.globs import MAX_GLOB, glob
from meruit.errors import AuthorError, UnreadableContent
from meruit.model.criterion import Assertion
from meruit.model.environment import Encoding, Item, Snapshot, SourceKind, make_item
from meruit.model.evidence import Checked, Fault, Missing
from meruit.registry import checks

Files = Mapping[str, bytes | Item]


def snapshot(files: Files) -> Snapshot:
    items = [
        one if isinstance(one, Item) else make_item(path, one, facts={"size": len(one)}) for path, one in files.items()
    ]
    return Snapshot(SourceKind.FILES, items)


DROP = Holding[Files]("sftp-file-present", "drop", snapshot, {})
work, found, checked, refused = DROP.work, DROP.found, DROP.checked, DROP.refused


def meant(pattern: str, path: str) -> bool:
    """What a glob means, tried out character by character."""
    if not pattern:
        return not path
    if pattern.startswith("**/"):
        return any(meant(pattern[3:], path[end:]) for end in range(len(path) + 1) if end == 0 or path[end - 1] == "/")
    if pattern.startswith("**"):
        return any(meant(pattern[2:], path[end:]) for end in range(len(path) + 1))
    if pattern.startswith("*"):
        return any(meant(pattern[1:], path[end:]) for end in range(len(path) + 1) if "/" not in path[:end])
    if not path or (path[0] == "/" and pattern[0] != "/"):
        return False
    return pattern[0] in ("?", path[0]) and meant(pattern[1:], path[1:])


PIECES = st.lists(st.sampled_from(["a", "b", "*", "?", ".", "\n"]), min_size=1, max_size=4).map("".join)
GLOBS = st.lists(PIECES | st.just("**"), min_size=1, max_size=3).map("/".join)


@given(GLOBS, st.lists(st.text("ab.\n", max_size=3), min_size=1, max_size=4).map("/".join))
def test_a_glob_means_what_trying_it_out_means(pattern: str, path: str) -> None:
    # Inside a segment ** crosses slashes, too, but only as a segment does it stand for no folder at all.
    assume(".." not in pattern.split("/") and not any("**" in part and part != "**" for part in pattern.split("/")))
    assert glob(pattern)(path) is meant(pattern, path)


@given(st.text(min_size=1, max_size=20))
def test_any_path_is_a_glob_or_refused(pattern: str) -> None:
    try:
        fits = glob(pattern)
    except AuthorError:
        return
    assert fits(pattern) in (True, False)
    if not set(pattern) & set("*?[/"):
        assert fits(pattern)


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("outbound/roster_*.json", "outbound/roster_7.json", True),
        ("outbound/roster_*.json", "outbound/old/roster_7.json", False),
        ("outbound/roster_*.json", "outbound/roster_/7.json", False),
        ("/outbound/a.json", "outbound/a.json", True),
        ("**/a.json", "a.json", True),
        ("**/a.json", "x/y/a.json", True),
        ("**/a.json", "xa.json", False),
        ("x/**", "x/y/z", True),
        ("x/**", "x", False),
        ("x/**/z", "x/z", True),
        ("x/a**z", "x/a/b/z", True),
        ("x/a**/z", "x/a/z", True),
        ("x/a**/z", "x/az", False),
        ("r_[0-9].csv", "r_5.csv", True),
        ("r_[0-9].csv", "r_x.csv", False),
        ("r_[!0-9].csv", "r_x.csv", True),
        ("r_[!0-9].csv", "r_/.csv", False),
        ("r_[[]1].csv", "r_[1].csv", True),
        ("r_[\\^].csv", "r_^.csv", True),
        ("a.json", "aXjson", False),
        ("a.JSON", "a.json", False),
        ("é?", "éü", True),
    ],
)
def test_what_wildcards_stand_for(pattern: str, path: str, fits: bool) -> None:
    assert glob(pattern)(path) is fits


ROSTER = {
    "assert": "sftp-file-present",
    "from": "drop",
    "path": "outbound/roster_*.json",
    "changed": "created",
    "count": 1,
    "size": {"between": [2, 1_048_576]},
    "parse": "json",
    "fields": {"members": {"count": 3}, "members[].id": {"set": ["A1", "A2", "A3"]}},
}
CLAIM = {
    "assert": "sftp-file-present",
    "from": "drop",
    "path": "claims/*.837",
    "sha256": {"exists": True},
    "parse": "x12",
    "fields": {"ST.1": "837", "CLM.1": "CLAIM-77", "CLM.2": {"near": {"value": 450.00, "by": 0}}},
}
NO_TMP = {"assert": "sftp-file-present", "from": "drop", "path": "claims/*.tmp", "count": 0}


def roster(*ids: str) -> bytes:
    return json.dumps({"members": [{"id": one} for one in ids]}).encode()


def claim(number: str = "CLAIM-77", amount: str = "450") -> bytes:
    isa = "ISA*00*          *00*          *ZZ*SENDER         *ZZ*RECEIVER       *260301*1200*^*00501*000000001*0*P*:~"
    body = f"GS*HC*S*R*20260301*1200*1*X*005010X222A1~ST*837*0001~CLM*{number}*{amount}***11:B:1~SE*3*0001~GE*1*1~"
    return f"{isa}{body}IEA*1*000000001~".encode()


@pytest.mark.parametrize(
    ("criterion", "before", "after", "score"),
    [
        (ROSTER, {}, {"outbound/roster_1.json": roster("A1", "A2", "A3")}, 1),
        (ROSTER, {}, {"outbound/roster_1.json": roster("A3", "A2", "A1")}, 1),
        (ROSTER, {}, {"outbound/roster_1.json": roster("A1", "A2")}, 1 / 3),
        (ROSTER, {}, {"outbound/roster_1.json": roster("A1", "A2", "A4")}, 2 / 3),
        (ROSTER, {}, {"outbound/roster_1.json": b'{"members": ['}, 0),
        (ROSTER, {}, {"outbound/roster_1.json": b""}, 0),
        (ROSTER, {}, {}, 0),
        (ROSTER, {}, {"inbound/roster_1.json": roster("A1", "A2", "A3")}, 0),
        (ROSTER, {}, dict.fromkeys(["outbound/roster_1.json", "outbound/roster_2.json"], roster("A1", "A2", "A3")), 0),
        (ROSTER, {"outbound/roster_1.json": b"{}"}, {"outbound/roster_1.json": roster("A1", "A2", "A3")}, 0),
        (CLAIM, {}, {"claims/77.837": claim()}, 1),
        (CLAIM, {}, {"claims/77.837": claim(amount="450.00")}, 1),
        (CLAIM, {}, {"claims/77.837": claim(number="CLAIM-78")}, 0),
        (CLAIM, {}, {"claims/77.837": b"not X12 at all"}, 0),
        (NO_TMP, {}, {"claims/77.837": b""}, 1),
        (NO_TMP, {}, {}, 1),
        (NO_TMP, {}, {"claims/77.837.tmp": b""}, 0),
    ],
)
def test_the_worked_examples(criterion: dict[str, Any], before: Files, after: Files, score: float) -> None:
    (result,) = judged([criterion], work(before, after))
    assert result.score == pytest.approx(score)
    assert result.fault is (Fault.NONE if score == 1 else Fault.AGENT)


def test_evidence_has_field_results_and_the_paths_that_matched() -> None:
    assert checks.get("sftp-file-present").evidence == "fieldResults"
    files = {"a/1.json": b'{"n": 1}', "a/2.json": b'{"n": 2}', "b/1.json": b"[]"}
    score, details = checked({"path": "a/*.json", "parse": "json", "fields": {"n": 2}, "size": 8}, files)
    assert score == "1"
    assert details["paths"] == ["a/1.json", "a/2.json"]
    assert details["selected"][0]["key"] == "a/2.json"
    size, number = details["fields"]
    assert size == {"path": "size", "op": "equals", "expected": 8, "actual": 8, "passed": True}
    assert number == {"path": "n", "op": "equals", "expected": 2, "actual": 2, "passed": True}
    assert checked({"path": "c/*"}, files)[1]["paths"] == []


def test_a_file_that_is_not_what_it_is_read_as_is_shown_with_offset_and_head() -> None:
    finding = found({"path": "*", "parse": "json"}, {"x": b'{"a": 1,, "b": "' + b"y" * 100 + b'"}'})
    assert isinstance(finding, Checked)
    assert (finding.score, finding.fault) == ("0", Fault.AGENT)
    assert finding.details is not None
    (shown,) = finding.details["unreadable"]
    assert (shown["key"], shown["offset"], len(shown["head"])) == ("x", 8, 64)


@given(st.sampled_from(list(FileFormat)), st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_content_is_parsed_or_refused(parse: FileFormat, content: bytes) -> None:
    path = {"csv": "rows[].a", "text": "lines[0]", "hl7": "MSH-9", "x12": "ST.1"}.get(parse, "a")
    fields = {} if parse is FileFormat.NONE else {path: "absent"}
    score, details = checked({"path": "f", "parse": parse.value, "fields": fields}, {"f": content})
    assert score in ("0", "1")
    json.dumps(details)
    assert details.get("unreadable") or details["paths"] == ["f"]


# No dollar sign: what an author writes as ${…} is computed.
CELLS = st.text(st.characters(codec="utf-8", exclude_characters="$"), max_size=5)


def tables(header: list[str]) -> st.SearchStrategy[tuple[list[str], list[list[str]]]]:
    row = st.lists(CELLS, min_size=len(header), max_size=len(header))
    return st.tuples(st.just(header), st.lists(row, max_size=4))


@given(st.lists(st.text("abc", min_size=1), min_size=1, max_size=3, unique=True).flatmap(tables))
def test_what_is_written_as_csv_is_read_from_it(table: tuple[list[str], list[list[str]]]) -> None:
    header, rows = table
    # A row of one empty cell is an empty line, and those are left out.
    assume(all(any(row) for row in rows))
    written = io.StringIO(newline="")
    csv.writer(written).writerows([header, *rows])
    fields: dict[str, Any] = {"header": {"equals": header}, "rows": {"count": len(rows)}}
    for place, row in enumerate(rows):
        fields |= {f"rows[{place}].{name}": {"equals": cell} for name, cell in zip(header, row, strict=True)}
    score, details = checked(
        {"path": "t.csv", "parse": "csv", "fields": fields}, {"t.csv": written.getvalue().encode()}
    )
    assert score == "1", details


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n$"), min_size=1, max_size=5), max_size=5))
def test_lines_are_split_at_line_ends(lines: list[str]) -> None:
    for end in ("\n", "\r\n", "\r"):
        content = "".join(line + end for line in lines).encode()
        asked = {"path": "t", "parse": "text", "fields": {"lines": {"set": lines}}}
        assert checked(asked, {"t": content})[0] == ("1" if not content.startswith(b"\xef\xbb\xbf") else "0")


@pytest.mark.parametrize(
    ("parse", "content", "fields", "score"),
    [
        ("text", b"\xef\xbb\xbfone\r\ntwo\r\n", {"text": {"contains": "two"}, "lines[1]": "two"}, "1"),
        ("text", b"one\n\ntwo", {"lines": {"count": 3}}, "1"),
        ("text", b"", {"lines": {"count": 0}, "text": {"empty": True}}, "1"),
        ("text", b"7", {"text": 7}, "1"),
        ("csv", b'id,name\n7,"a, b"\n8,c\n', {"rows[].id": {"set": ["7", "8"]}, "rows[0].name": "a, b"}, "1"),
        ("csv", b"id,name\n7,8\n", {"rows[0].id": 7, "rows": {"count": 1}, "header": {"set": ["id", "name"]}}, "1"),
        ("csv", b"id,name\n7\n", {"rows[0].name": "absent"}, "1"),
        ("csv", b"id,name\n7,8\n", {"rows[id=7].name": {"gte": 8}}, "1"),
        ("ndjson", b'{"id": 1}\n\n{"id": 2}\r\n', {"id": {"set": [1, 2]}, "[1].id": 2, "[]": {"count": 2}}, "1"),
        ("json", b'[{"id": 1.50}]', {"id": 1.5}, "1"),
        ("json", b"null", {"id": "absent"}, "1"),
        ("hl7", b"MSH|^~\\&|A|B|C|D|2026||ADT^A01|1|P|2.5\rPID|1||7\r", {"MSH-9.2": "A01", "PID-3": 7}, "1"),
        ("hl7", b"MSH|^~\\&|A||||||ADT^A01\rMSH|^~\\&|B||||||ADT^A08\r", {"MSH-3": {"all": {"in": ["A", "B"]}}}, "1"),
        ("x12", claim() + claim("CLAIM-78"), {"CLM.1": {"set": ["CLAIM-77", "CLAIM-78"]}, "ISA.15": {"all": "P"}}, "1"),
    ],
)  # fmt: skip
def test_what_each_format_holds(parse: str, content: bytes, fields: dict[str, Any], score: str) -> None:
    found_score, details = checked({"path": "f", "parse": parse, "fields": fields}, {"f": content})
    assert found_score == score, details


@pytest.mark.parametrize(
    ("parse", "content", "offset"),
    [
        ("json", b"", 0),
        ("ndjson", b'{"a": 1}\n{"a": }\n', 15),
        ("ndjson", b'\xef\xbb\xbf{"a": 1}\n\xff', 12),
        ("csv", b"", 0),
        ("csv", b"a,a\n1,2\n", 0),
        ("csv", b"a,b\n1,2\n1,2,3\n", 8),
        ("csv", b'a,b\n"1"x,2\n', 4),
        ("csv", b'a,b\n1,2\n"1', 8),
        ("text", b"\xef\xbb\xbfab\xff", 5),
        ("hl7", b"PID|1", 0),
        ("x12", b"ISA*", 0),
    ],
)
def test_an_unreadable_file_is_reported_with_its_offset(parse: str, content: bytes, offset: int) -> None:
    score, details = checked({"path": "f", "parse": parse}, {"f": content})
    assert score == "0"
    assert [one["offset"] for one in details["unreadable"]] == [offset]


def test_one_file_may_be_read_in_two_ways() -> None:
    as_json = {"assert": "sftp-file-present", "path": "f", "parse": "json", "fields": {"a": 1}}
    as_text = {"assert": "sftp-file-present", "path": "f", "parse": "text", "fields": {"text": '{"a": 1}'}}
    assert [one.score for one in judged([as_json, as_text, as_json], work({}, {"f": b'{"a": 1}'}))] == [1, 1, 1]


def test_a_file_too_large_to_keep_is_a_system_fault() -> None:
    digest = "ab" * 32
    large = Item("big.json", digest, None, Encoding.LEFT, {"size": 10**9})
    asked = {"path": "*.json", "parse": "json", "fields": {"a": 1}}
    finding = found(asked, {"big.json": large}, {"big.json": large})
    assert isinstance(finding, Missing)
    assert finding.fault is Fault.SYSTEM
    assert "big.json" in finding.why
    # What stood there before and is not asked about is in nobody's way.
    small: Files = {"a.json": b'{"a": 1}', "big.json": large}
    assert checked(asked | {"changed": "created"}, small, {"big.json": large})[0] == "1"
    outside = {"path": "big.json", "size": {"gt": 10**8}, "sha256": digest.upper(), "count": 1}
    assert checked(outside, small)[0] == "1"


def test_a_file_that_the_agent_made_too_large_to_keep_is_its_own_fault() -> None:
    large = Item("big.json", "ab" * 32, None, Encoding.LEFT, {"size": 10**9, "limit": 4_000})
    for asked in ({"fields": {"a": 1}}, {"count": 0}, {"count": 1}):
        finding = found({"path": "*.json", "parse": "json", **asked}, {"big.json": large})
        assert isinstance(finding, Checked)
        assert (finding.score, finding.fault) == ("0", Fault.AGENT)
        (shown,) = (finding.details or {})["unreadable"]
        assert (shown["size"], shown["limit"]) == (10**9, 4_000)


def test_other_files_may_be_unreadable() -> None:
    files = {"in/a.json": b"{}", "in/b.bin": b"\xff\xfe", "out/c.json": b"{"}
    assert checked({"path": "in/*.json", "parse": "json", "count": 1}, files)[0] == "1"
    score, details = checked({"path": "*/*.json", "parse": "json", "count": 1}, files)
    assert (score, len(details["unreadable"])) == ("0", 1)


def test_digests_and_sizes_are_those_of_the_content() -> None:
    content = b"\x00\xff binary"
    digest = sha256(content).hexdigest()
    for wanted in (digest, digest.upper(), {"in": [digest]}, {"matches": "[0-9a-f]{64}"}, "exists"):
        assert checked({"path": "f", "sha256": wanted}, {"f": content})[0] == "1"
    assert checked({"path": "f", "sha256": None, "size": None}, {"f": content})[1]["fields"] == []
    assert checked({"path": "f", "sha256": "0" * 64, "size": len(content)}, {"f": content})[0] == "1/2"
    assert checked({"path": "f", "sha256": {"equals": "0" * 64, "must": True}, "size": 9}, {"f": content})[0] == "0"


def test_files_that_were_deleted_or_left_alone() -> None:
    before, after = {"a": b"1", "b": b"1", "c": b"1"}, {"b": b"2", "c": b"1", "d": b"1"}
    for change, path in (("deleted", "a"), ("updated", "b"), ("none", "c"), ("created", "d")):
        score, details = checked({"path": "?", "changed": change, "count": 1}, after, before)
        assert (score, details["paths"]) == ("1", [path])


@pytest.mark.parametrize(
    ("asked", "place", "why"),
    [
        ({}, "path", "needs 'path'"),
        ({"path": ""}, "path", "''"),
        ({"path": "outbound/"}, "path", "'outbound/'"),
        ({"path": "../etc/passwd"}, "path", "'../etc/passwd'"),
        ({"path": "a" * (MAX_GLOB + 1)}, "path", "file path"),
        ({"path": "a[b"}, "path", "without its ]"),
        ({"path": "a[z-a]"}, "path", "range"),
        ({"path": "a[a-b-c-a]"}, "path", "range"),
        ({"path": "a[+-9]"}, "path", "slash"),
        ({"path": "a_${"}, "", "closing brace"),
        ({"path": "f", "fields": {"a": 1}}, "fields", "parse: json"),
        ({"path": "f", "where": {"a": 1}}, "where", "parse: json"),
        ({"path": "f", "parse": "jsn", "fields": {"a": 1}}, "parse", "'json'"),
        ({"path": "f", "parse": "json", "fields": {"a..b": 1}}, "fields", "'a..b'"),
        ({"path": "f", "parse": "x12", "fields": {"CLM-2": 1}}, "fields", "X12 path"),
        ({"path": "f", "parse": "hl7", "fields": {"PID.3": 1}}, "fields", "HL7 path"),
        ({"path": "f", "parse": "hl7", "fields": {"PID-3": True}}, "fields.PID-3", "is text"),
        ({"path": "f", "parse": "csv", "fields": {"name": 1}}, "fields", "rows[].name"),
        ({"path": "f", "parse": "text", "fields": {"line": 1}}, "fields", "lines[0]"),
        ({"path": "f", "sha256": "abc"}, "sha256", "'abc'"),
        ({"path": "f", "size": {"gtt": 1}}, "size", "'gt'"),
        ({"path": "f", "count": 0, "size": 1}, "", "count: 0"),
        ({"path": "f", "prse": "json"}, "prse", "'parse'"),
    ],
)
def test_an_invalid_assertion_is_refused_at_its_path(asked: dict[str, Any], place: str, why: str) -> None:
    told = refused(asked)
    assert why in told
    assert told.startswith(place)


def test_several_faults_are_reported_at_once() -> None:
    told = refused({"path": "a[b", "parse": "json", "fields": {"a..b": 1, "c": {"in": []}}, "size": []})
    assert all(place in told for place in ("path:", "fields.a..b", "fields.c:", "size:"))


def test_a_value_is_read_from_a_file_of_the_state_before() -> None:
    before = {"cfg/plan.json": b'{"limit": 3}', "cfg/ids.csv": b"id\n7\n", "cfg/broken.json": b"{"}
    for selector, path in (({"file": "cfg/plan.json"}, "limit"), ({"file": "cfg/*"}, "limit")):
        asked = {
            "let": {"limit": {**selector, "path": path, "pick": "last"}},
            "path": "out.json",
            "parse": "json",
            "fields": {"n": "${limit + 1}"},
        }
        assert checked(asked, {**before, "out.json": b'{"n": 4}'}, before)[0] == "1"
    named = {"let": {"id": {"file": "cfg/ids.csv", "path": "rows[0].id"}}, "path": "out_${id}.txt"}
    assert checked(named, {"out_7.txt": b""}, before)[0] == "1"
    assert "by file" in refused({"let": {"a": {"where": {}, "path": "b"}}, "path": "f"})


def test_a_file_can_be_captured() -> None:
    files = {"out/roster_9.json": b'{"id": "R9"}', "ack/R9.txt": b"roster_9"}
    first = {"assert": "sftp-file-present", "path": "out/*.json", "parse": "json", "capture": "roster"}
    second = {"assert": "sftp-file-present", "path": "ack/${roster.content.id}.txt", "size": 8}
    assert [one.score for one in judged([first, second], work({}, files))] == [1, 1]


def test_a_filled_in_wildcard_is_literal() -> None:
    first = {"assert": "sftp-file-present", "path": "out.json", "parse": "json", "capture": "it"}
    second = {"assert": "sftp-file-present", "path": "ack/${it.content.id}_*.txt"}
    for name in ("*", "**", "?", "[a]", "R[9"):
        files = {"out.json": json.dumps({"id": name}).encode(), "ack/a_1.txt": b""}
        assert [one.score for one in judged([first, second], work({}, files))] == [1, 0]
        assert [one.score for one in judged([first, second], work({}, {**files, f"ack/{name}_1.txt": b""}))] == [1, 1]


def test_what_else_was_written_is_collateral() -> None:
    unchanged = {"assert": "state-unchanged"}
    wanted = {"assert": "sftp-file-present", "path": "out/*.json", "parse": "json"}
    assert [one.score for one in judged([wanted, unchanged], work({}, {"out/a.json": b"{}"}))] == [1, 1]
    _, collateral = judged([wanted, unchanged], work({"b.txt": b"1"}, {"out/a.json": b"{}", "b.txt": b"2"}))
    assert collateral.score == 0


@pytest.mark.parametrize(
    ("path", "parse"),
    [("a.JSON", FileFormat.JSON), ("x.d/a.jsonl", FileFormat.NDJSON), ("c.837", FileFormat.X12),
     ("c.edi", FileFormat.X12), ("a.hl7", FileFormat.HL7), ("a.csv", FileFormat.CSV),
     ("x.json/readme", FileFormat.TEXT), ("a", FileFormat.TEXT)],
)  # fmt: skip
def test_the_extension_is_the_default_format(path: str, parse: FileFormat) -> None:
    assert format_by_ending(path) is parse


def test_many_files_long_names_and_a_large_one() -> None:
    files: dict[str, bytes] = {f"d{number % 10}/{'a' * 200}{number}": b"" for number in range(1_000)}
    files["big.csv"] = b"id,name\n" + b"1,x\n" * 100_000
    score, details = checked({"path": "*" + "a*" * 100 + "b"}, files)
    assert score == "0"
    score, details = checked({"path": "**", "count": 1_001}, files)
    assert (score, len(details["selected"])) == ("1", 1)
    assert len(json.dumps(details)) < 500_000
    asked = {"path": "big.csv", "parse": "csv", "fields": {"rows": {"count": 100_000}}}
    score, details = checked(asked, files)
    assert score == "1"
    assert len(json.dumps(details)) < 20_000


def test_the_examples_hold() -> None:
    check = checks.get("sftp-file-present")
    for example in check.examples:
        finding = check.prepare(Assertion.model_validate({"assert": check.name, **example.assertion}))(example.work)
        assert isinstance(finding, Checked)
        assert finding.score == example.expect


@pytest.mark.parametrize(
    ("parse", "row"),
    [(FileFormat.CSV, b"a\n"), (FileFormat.CSV, b"\n"), (FileFormat.NDJSON, b"1\n"), (FileFormat.TEXT, b"a\r")],
)
def test_a_file_of_endless_rows_is_not_read(monkeypatch: pytest.MonkeyPatch, parse: FileFormat, row: bytes) -> None:
    monkeypatch.setattr(formats, "MAX_ROWS", 3)
    head = b"name\n" if parse is FileFormat.CSV else b""
    formats.FORMATS[parse].read(head + row * 3)
    with pytest.raises(UnreadableContent, match="more than 3"):
        formats.FORMATS[parse].read(head + row * 4)
