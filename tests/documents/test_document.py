"""Files become values that know their lines, and bad files are refused with every problem named."""

import json
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from meruit.documents import tree, yaml_events
from meruit.documents.document import MAX_BYTES, MAX_PROBLEMS, Document, parse
from meruit.documents.tree import MAX_DEPTH, MAX_NODES, Path
from meruit.errors import DocumentError, Problem
from meruit.model.numbers import MAX_DIGITS, exact

SOON_S = 30
"""Ten times what it takes, since measuring coverage slows it down; without our limits it would take years."""

# Any: a document holds any nesting of these.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
documents = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)
yaml_texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"], exclude_characters="\ufeff"))
yaml_documents = st.recursive(
    yaml_texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(yaml_texts, inner, max_size=4),
    max_leaves=20,
)


@pytest.fixture(params=["C", "Python"])
def either_parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "Python":
        monkeypatch.setattr(yaml_events, "LOADER", yaml.SafeLoader)


def problems(text: str | bytes, name: str = "file.yaml") -> list[tuple[int | None, str, str]]:
    with pytest.raises(DocumentError) as refused:
        parse(text, name)
    return [(problem.line, problem.where, problem.message) for problem in refused.value.problems]


def the_problem(text: str | bytes, name: str = "file.yaml") -> tuple[int | None, str]:
    [(line, _, message)] = problems(text, name)
    return line, message


def typed(value: Any) -> Any:
    """The value with its numbers exact, whatever their type, and told from truth."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [typed(item) for item in value]
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return exact(value)
    return type(value), value


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, item in inside:
        yield from places(item, (*path, step))


def unless_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a repeated key")
    return dict(pairs)


def unless_out_of_range(text: str) -> Decimal:
    if abs(Decimal(text).adjusted()) > MAX_DIGITS:
        raise ValueError("out of range")
    return Decimal(text)


class TestRoundTrips:
    @given(documents, st.sampled_from([None, 2]), st.booleans(), st.sampled_from(["a.json", "a.yaml"]))
    def test_json_means_what_it_says(self, value: Any, indent: int | None, ascii_only: bool, name: str) -> None:
        text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
        # A bare scalar in a file that is not named JSON is YAML, which folds and forbids more.
        name = name if isinstance(value, dict | list) else "a.json"
        assert typed(parse(text, name).value) == typed(value)

    @given(yaml_documents)
    def test_quoted_yaml_means_what_it_says(self, value: Any) -> None:
        text = yaml.safe_dump(value, default_style='"', allow_unicode=True)
        document = parse(text.replace('!!str "', '"'), "a.yaml")
        assert document.value == value

    @given(documents, st.sampled_from([None, 1]))
    def test_every_place_has_a_line_and_every_line_a_place(self, value: Any, indent: int | None) -> None:
        document = parse(json.dumps(value, indent=indent), "a.json")
        assert set(document.lines) == set(places(value))

    @given(
        st.text() | st.binary() | st.text(alphabet="&*a:[]{},-? \n!<|>'\"#%1.e\t~"),
        st.sampled_from(["", ".json"]),
    )
    def test_any_text_is_read_or_refused_with_reasons(self, text: str | bytes, suffix: str) -> None:
        try:
            told: tuple[Problem, ...] = ()
            parse(text, f"file{suffix}")
        except DocumentError as refused:
            told = refused.problems or (Problem("", ""),)
        assert all(problem.message for problem in told)

    @given(st.text(alphabet='{}[]:,"\\ \n\t\r01-+.eEtrufalsn/b', max_size=12))
    def test_json_is_what_the_standard_library_calls_json(self, text: str) -> None:
        try:
            expected = json.loads(text, parse_float=unless_out_of_range, object_pairs_hook=unless_repeated)
        except ValueError:
            with pytest.raises(DocumentError):
                parse(text, "a.json")
        else:
            assert typed(parse(text, "a.json").value) == typed(expected)


class TestLines:
    def test_yaml_entries_have_the_line_of_their_key_and_items_their_own(self, either_parser: None) -> None:
        text = """# 1
key2:
  key3:
    - 4
    -
      key6: x

    - [8,
       9]
key10: {b: 1,
  key11: 'x
   y',
  key13: z}
"""
        assert parse(text, "a.yaml").lines == {
            (): 2,
            ("key2",): 2,
            ("key2", "key3"): 3,
            ("key2", "key3", 0): 4,
            ("key2", "key3", 1): 6,
            ("key2", "key3", 1, "key6"): 6,
            ("key2", "key3", 2): 8,
            ("key2", "key3", 2, 0): 8,
            ("key2", "key3", 2, 1): 9,
            ("key10",): 10,
            ("key10", "b"): 10,
            ("key10", "key11"): 11,
            ("key10", "key13"): 13,
        }

    @given(st.lists(st.sampled_from(["entry", "deeper", "item", "blank", "comment", "text"]), max_size=30))
    def test_yaml_keys_that_name_their_line_stand_on_it(self, steps: list[str]) -> None:
        rows, indent = ["L1: 1"], ""
        for step in steps:
            number = len(rows) + 1
            match step:
                case "entry":
                    rows.append(f"{indent}L{number}: 1")
                case "deeper":
                    rows += [f"{indent}L{number}:", f"{indent}  L{number + 1}: x"]
                    indent += "  "
                case "item":
                    rows += [
                        f"{indent}L{number}:",
                        f"{indent}- L{number + 1}: x",
                        f"{indent}  L{number + 2}: y",
                    ]
                case "blank":
                    rows.append("")
                case "comment":
                    rows.append("# nothing")
                case _:
                    rows += [f"{indent}L{number}: |", f"{indent}  L0: text", "", f"{indent}  more"]
        self.named_lines_are_right(parse("\r\n".join(rows) if len(steps) % 2 else "\n".join(rows), "a.yaml"))

    @given(st.recursive(st.just(1), lambda inner: st.lists(inner, min_size=1, max_size=4), max_leaves=20))
    def test_json_keys_that_name_their_line_stand_on_it(self, shape: Any) -> None:
        rows: list[str] = []

        def write(node: Any) -> None:
            if isinstance(node, int):
                rows[-1] += "1"
                return
            rows[-1] += "{"
            for position, inner in enumerate(node):
                rows[-1] += "," if position else ""
                rows.append(f'"L{len(rows) + 1}":\t')
                write(inner)
            rows.append("}")

        rows.append("")
        write([shape])
        self.named_lines_are_right(parse("\n".join(rows), "a.json"))

    @staticmethod
    def named_lines_are_right(document: Document) -> None:
        named = {path: line for path, line in document.lines.items() if path and isinstance(path[-1], str)}
        assert named
        assert {path: f"L{line}" for path, line in named.items()} == {path: path[-1] for path in named}

    def test_the_line_of_an_unknown_place_is_that_of_what_surrounds_it(self) -> None:
        document = parse("\na: 1\nb:\n  - c: 2\n", "a.yaml")
        assert document.line_of(("b", 0, "c", "d", 5)) == 4
        assert document.line_of(("b", 7)) == 3
        assert document.line_of(("z",)) == 2

    def test_an_aliased_value_keeps_its_lines(self) -> None:
        document = parse("a: &x\n  k: 1\nb: *x\n", "a.yaml")
        assert document.value == {"a": {"k": 1}, "b": {"k": 1}}
        assert document.lines["b",] == 3
        assert document.lines["b", "k"] == 2


class TestScalars:
    @pytest.mark.parametrize(
        "text",
        [
            "01",
            "NO",
            "No",
            "yes",
            "on",
            "10:15",
            "0x1F",
            "0o17",
            "1_000",
            "2024-01-01",
            "+5",
            "1.",
            ".5",
            "1e",
            "--1",
            "y",
            "nan",
            "NaN",
            "١",
        ],
    )
    def test_codes_stay_text(self, text: str, either_parser: None) -> None:
        assert parse(f"a: {text}", "a.yaml").value == {"a": text}

    @pytest.mark.parametrize("text", ["null", "Null", "NULL", "~", ""])
    def test_nothing_is_none(self, text: str) -> None:
        assert parse(f"a: {text}", "a.yaml").value == {"a": None}

    @pytest.mark.parametrize("text", ["true", "True", "TRUE", "false", "False", "FALSE"])
    def test_truth_is_a_bool(self, text: str) -> None:
        assert parse(f"a: {text}", "a.yaml").value == {"a": text.lower() == "true"}

    @pytest.mark.parametrize("form", ["a: {}", '{{"a": {}}}'])
    def test_numbers_are_as_written_in_yaml_and_json(self, form: str) -> None:
        for text, expected in {
            "0.90": 0.9,
            "2000": 2000,
            "-0": 0,
            "1e3": 1000.0,
            "0.1234567890123456789": Decimal("0.1234567890123456789"),
            "1e400": Decimal("1e400"),
            "1e-400": Decimal("1e-400"),
            "9" * 400: int("9" * 400),
        }.items():
            assert typed(parse(form.format(text), "a").value) == typed({"a": expected})

    @pytest.mark.parametrize("form", ["\na: {}", '{{\n"a": {}}}'])
    @pytest.mark.parametrize(
        "text",
        [
            "1e999999999",
            "1e401",
            "-1e-401",
            "0.1e99999999999999999999999",
            "9" * 401,
            f"0.{'1' * 400}",
            "9" * 5000,
        ],
    )
    def test_numbers_beyond_all_use_are_refused(self, text: str, form: str) -> None:
        [(line, where, message)] = problems(form.format(text), "a")
        assert (line, where) == (2, "a")
        assert "number" in message

    @pytest.mark.parametrize(
        "text", ["a: .nan", "a: .inf", "a: -.INF", '{"a": NaN}', '{"a": -Infinity}', '{"a": Infinity}']
    )
    def test_only_finite_numbers_are_read(self, text: str) -> None:
        line, message = the_problem(text)
        assert (line, "finite" in message) == (1, True)

    def test_quoted_and_tagged_scalars_are_text(self) -> None:
        text = "a: '1'\nb: \"true\"\nc: !!str 1\nd: |-\n  1\ne: !!str null\nf: ''\ng: '.nan'"
        assert parse(text, "a.yaml").value == {
            "a": "1", "b": "true", "c": "1", "d": "1", "e": "null", "f": "", "g": ".nan",
        }  # fmt: skip

    def test_keys_are_their_text(self) -> None:
        text = "01: a\n1: b\ntrue: c\n~: d\n1e999999999: e\n'<<': f\n&k key: g\n"
        assert parse(text, "a.yaml").value == {
            "01": "a", "1": "b", "true": "c", "~": "d", "1e999999999": "e", "<<": "f", "key": "g",
        }  # fmt: skip

    def test_yaml_in_braces_is_yaml(self) -> None:
        assert parse("{a: 1, b: [x, NO],}", "a.yaml").value == {"a": 1, "b": ["x", "NO"]}

    def test_json_may_hold_tabs_and_surrogate_pairs(self) -> None:
        assert parse('\t{\t"a":\t"\\ud83d\\ude00"}', "a").value == {"a": "😀"}

    def test_the_parser_without_c_reads_the_same(self, either_parser: None) -> None:
        text = "a: &x [1, 'b', {c: ~}]\nd: *x\ne: >\n  f\n  g\n"
        value = [1, "b", {"c": None}]
        assert parse(text, "a.yaml").value == {"a": value, "d": value, "e": "f g\n"}


class TestAnchors:
    def test_aliases_may_stand_for_scalars_lists_and_keys(self) -> None:
        text = "a: &one x\nb: &two [1, *one]\nc: *two\n*one : d"
        assert parse(text, "a.yaml").value == {"a": "x", "b": [1, "x"], "c": [1, "x"], "x": "d"}

    def test_the_latest_anchor_of_a_name_counts(self) -> None:
        assert parse("[&a 1, *a, &a 2, *a]", "a.yaml").value == [1, 1, 2, 2]
        assert parse("[&a [&a 1], *a]", "a.yaml").value == [[1], 1]

    def test_an_alias_needs_a_finished_anchor_above_it(self) -> None:
        (line_a, where_a, inside), (line_b, where_b, absent) = problems("a: &a [*a]\nb: *b\n")
        assert (line_a, where_a, "*a" in inside) == (1, "a[0]", True)
        assert (line_b, where_b, "&b" in absent) == (2, "b", True)

    def test_a_billion_laughs_are_refused_at_once(self, either_parser: None) -> None:
        rows = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
        rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
        began = time.process_time()
        line, message = the_problem("\n".join(rows))
        assert time.process_time() - began < SOON_S
        assert line == 6
        assert f"{MAX_NODES:,}" in message

    def test_aliases_cannot_hide_depth(self) -> None:
        rows = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 100)]
        assert "deeper" in the_problem("\n".join(rows))[1]


class TestRefusals:
    @pytest.mark.parametrize("name", ["a.json", "a.yaml"])
    @pytest.mark.parametrize("opening", ["[", '{"a":', "[\n"])
    def test_endless_nesting_is_refused(self, opening: str, name: str, either_parser: None) -> None:
        line, message = the_problem(opening * 100_000, name)
        assert f"{MAX_DEPTH} levels" in message
        assert line == (MAX_DEPTH + 1 if "\n" in opening else 1)

    @pytest.mark.parametrize("opening", ["- ", "a: [ b, ", "{a: "])
    def test_endless_nesting_is_refused_in_block_and_flow(self, opening: str, either_parser: None) -> None:
        with pytest.raises(DocumentError):
            parse(opening * 100_000, "a.yaml")

    def test_the_deepest_allowed_nesting_is_read(self) -> None:
        text = "[" * MAX_DEPTH + "]" * MAX_DEPTH
        assert parse(text, "a.json").value == parse(f"# YAML\n{text}", "a.yaml").value

    @pytest.mark.parametrize("name", ["a.json", "a.yaml"])
    def test_too_many_values_are_refused(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tree, "MAX_NODES", 100)
        assert len(parse("[" + "1,\n" * 98 + "1]", name).value) == 99
        line, message = the_problem("[" + "1,\n" * 99 + "1]", name)
        assert line == 100
        assert "200,000 keys" in message

    def test_too_many_bytes_are_refused(self) -> None:
        line, message = the_problem(b"a" * (MAX_BYTES + 1))
        assert (line, "5,000,001 bytes" in message) == (None, True)
        assert "bytes" in the_problem("é" * (MAX_BYTES // 2 + 1))[1]

    @pytest.mark.parametrize("text", ["", " \n\t", "# only a comment\n", "---\n", "---\n# x\n...\n", b"\xef\xbb\xbf"])
    def test_an_empty_file_is_called_empty(self, text: str | bytes) -> None:
        assert "empty" in the_problem(text)[1]
        assert "empty" in the_problem(" ", "a.json")[1]

    def test_nothing_said_on_purpose_is_nothing(self) -> None:
        assert parse("~", "a.yaml").value is None
        assert parse("null", "a.json").value is None
        assert parse("''", "a.yaml").value == ""

    def test_a_byte_order_mark_is_skipped(self) -> None:
        assert parse(b"\xef\xbb\xbfa: 1", "a.yaml").value == {"a": 1}
        assert parse("\ufeff[1]", "a.json").value == [1]

    def test_other_encodings_are_named(self) -> None:
        line, message = the_problem(b"a: 1\nb: \xff\n")
        assert (line, "0xff at offset 8" in message) == (2, True)
        for encoding in ("utf-16", "utf-32"):
            line, message = the_problem("a: 1".encode(encoding))
            assert (line, encoding.upper() in message) == (None, True)
        assert "UTF-16" in the_problem("a: 1".encode("utf-16-le"))[1]

    @pytest.mark.parametrize("character", ["\0", "\x07", "\x1b", "\ufeff", "\ud800", "\ufffe"])
    def test_control_characters_are_refused_with_their_line(self, character: str, either_parser: None) -> None:
        line, message = the_problem(f"a: 1\nb: x{character}y\n")
        assert line == 2
        assert f"U+{ord(character):04X}" in message

    def test_half_a_surrogate_pair_is_refused(self) -> None:
        assert [found[:2] for found in problems('{"a": "\\ud800",\n"\\udc00": 1}')] == [
            (1, "a"),
            (2, "\udc00"),
        ]

    @pytest.mark.parametrize(
        ("escape", "reason"),
        [('"\\ud800"', ""), ('"\\U99999999"', "YAML"), ('"\\q"', "YAML")],
    )
    def test_impossible_escapes_are_refused(self, escape: str, reason: str, either_parser: None) -> None:
        assert reason in the_problem(f"a: {escape}")[1]

    def test_absurd_versions_are_refused(self, either_parser: None) -> None:
        assert "YAML" in the_problem(f"%YAML 1.{'9' * 5000}\n---\na: 1")[1]

    def test_a_second_document_is_refused(self) -> None:
        line, message = the_problem("a: 1\n---\nb: 2\n---\nc: 3")
        assert (line, "document" in message) == (2, True)

    def test_all_unsupported_yaml_is_reported_at_once(self, either_parser: None) -> None:
        text = """
a: !!python/object/apply:os.system ["true"]
b: !foo {x: .nan}
c: !!int 5
base: &base {k: 1}
d:
  <<: *base
? [x, 1e999]
: 1
? {y: z}
: 2
e: 1
'e': 2
!bar f: 1
1: a
"1": b
"""
        found = problems(text)
        assert [(line, where) for line, where, _ in found] == [
            (2, "a"), (3, "b"), (3, "b.x"), (4, "c"), (7, "d.<<"), (8, ""), (8, "[1]"), (10, ""), (13, "e"),
            (14, "f"), (16, "1"),
        ]  # fmt: skip
        messages = [message for _, _, message in found]
        assert "!!python/object/apply:os.system" in messages[0]
        assert "!foo" in messages[1]
        assert "!!int" in messages[3]
        assert "merge keys" in messages[4]
        assert "key must" in messages[5]
        assert messages[8].startswith(f"{tree.DUPLICATE} 'e'")
        assert messages[8].endswith("line 12")
        assert messages[10].startswith(f"{tree.DUPLICATE} '1'")
        assert messages[10].endswith("line 15")

    def test_json_duplicates_name_both_lines(self) -> None:
        line, message = the_problem('{"a": 1,\n\n"a": 2}')
        assert (line, message.partition(":")[0], message[-6:]) == (3, f"{tree.DUPLICATE} 'a'", "line 1")

    def test_problems_before_a_syntax_error_are_reported_too(self) -> None:
        assert [line for line, _, _ in problems("a: .nan\nb: 'x")] == [1, 2]

    @pytest.mark.parametrize(
        ("text", "line", "reason"),
        [
            ("a: 1\nb:\n\t- c", 3, "tabs"),
            ("a: 1\nb: @c", 2, "with @"),
            ("a: b: c", 1, "mapping values"),
            ("a:\n  - b\n  c: d", 3, "line 2"),
            ("a: [1,\n\n2", 3, "YAML"),
            ("{a: 1, b: [x}", 1, "YAML"),
            ("%YAML 3.0\n---\na: 1", 1, "YAML"),
        ],
    )
    def test_a_yaml_error_has_its_line_and_a_hint(self, text: str, line: int, reason: str, either_parser: None) -> None:
        found_line, message = the_problem(text)
        assert found_line == line
        assert reason in message

    @pytest.mark.parametrize(
        ("text", "line", "reason"),
        [
            ("a: 1", 1, "value, got 'a'"),
            ('{\n"a": 01}', 2, "value, got '01'"),
            ('{"a": 1,\n}', 2, "quotes, got '}'"),
            ("{1: 2}", 1, "quotes or }, got '1'"),
            ('{"a" 1}', 1, "colon, got '1'"),
            ("[1\n2]", 2, "or ], got '2'"),
            ("[,]", 1, "value or ], got ','"),
            ("[1}", 1, "comma or ], got '}'"),
            ('{\n"a": 1\n', 2, "comma or }, got"),
            ("[] []", 1, "got '['"),
            ('["\n"]', 1, "string"),
            ('["\\q"]', 1, "string"),
            ("[\n'a']", 2, 'unexpected character "\'"'),
            ('["a"\n\0]', 2, "unexpected character"),
        ],
    )
    def test_a_json_error_has_its_line(self, text: str, line: int, reason: str) -> None:
        found_line, message = the_problem(text, "a.JSON")
        assert found_line == line
        assert "JSON: " in message
        assert reason in message

    def test_only_the_first_problems_are_reported(self) -> None:
        found = problems("\n".join("a: 1" for _ in range(500)))
        assert len(found) == MAX_PROBLEMS + 1
        assert found[-1][:2] == (None, "")

    def test_the_error_shows_file_and_line(self) -> None:
        with pytest.raises(DocumentError, match=r"^my\.yaml: line 2, b: "):
            parse("a: 1\nb: .nan", "my.yaml")


def test_a_thousand_criteria_are_read_in_well_under_a_second() -> None:
    entry = "  - metric: accuracy\n" + "".join(f"    key{number}: 0.9\n" for number in range(7))
    began = time.process_time()
    assert len(parse("criteria:\n" + entry * 1000, "a.yaml").value["criteria"]) == 1000
    assert time.process_time() - began < SOON_S
