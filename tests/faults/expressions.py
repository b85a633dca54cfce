"""Hostile expressions: what one line can do to a host that evaluates it."""

from typing import Any

from .snippet import Kind, Snippet

REFUSED = frozenset({"timeout", "memory", "crashed", "result_rejected", "unsupported_construct"})
DOUBLINGS = 26
"""Enough for terabytes, and few enough for the parser's own limit on depth."""
WORK: dict[str, Any] = {
    "list": list(range(100)),
    "text": "x" * 100,
    "words": ["a"] * 100,
    "nested": [[[1]]],
    "map": {str(number): number for number in range(20)},
    "zero": 0,
    "tiny": 5e-324,
    "large": 1.7976931348623157e308,
    "big": 2**63 - 1,
    "odd": "a\u202e\u0000b",
    "quotes": '"\\' * 50,
}
"""What the expressions work on: small, since a host may evaluate a short expression on small work by itself."""


def _doubled(start: str, step: str) -> str:
    return f"[{start}]" + f".map(a, {step})" * DOUBLINGS


def _spaced(call: str) -> str:
    """The first bomb, its calls written so that a careless search for them finds none."""
    return f"size({_doubled('input.text', 'a + a')}[0])".replace("map(", call)


def _nested(call: str, inside: str, depth: int) -> str:
    return f"{call}(" * depth + inside + ")" * depth


def _loops(depth: int) -> str:
    """Loops in loops over a hundred elements."""
    inside = "1"
    for level in range(depth):
        inside = f"size(input.list.map(a{level}, {inside}))"
    return inside


def _bomb(name: str, kind: Kind, code: str, timeout_ms: int = 700) -> Snippet:
    return Snippet(f"expr_{name}", kind, code, timeout_ms, REFUSED, boasts=False)


def _any(name: str, kind: Kind, code: str) -> Snippet:
    """May give a number; must not do harm."""
    return Snippet(f"expr_{name}", kind, code, 1_000, boasts=False)


EXPRESSIONS: tuple[Snippet, ...] = (
    # Growth.
    _bomb("double_a_text", Kind.MEMORY, f"size({_doubled('input.text', 'a + a')}[0])"),
    _bomb("double_a_list", Kind.MEMORY, f"size({_doubled('input.list', 'a + a')}[0])"),
    _bomb("nest_a_list", Kind.MEMORY, f"{_doubled('[1]', '[a, a]')} == {_doubled('[1]', '[a, a]')} ? 1 : 0"),
    _bomb("replace_and_replace", Kind.MEMORY, "size('x'" + ".replace('x', 'xxxxxxxxxx')" * 12 + ")"),
    _bomb("replace_nothing", Kind.MEMORY, "size(input.text" + ".replace('', input.text)" * 4 + ")"),
    _bomb("join_and_join", Kind.MEMORY, "size(" + "input.words.map(a, " * 4 + "input.text" + ").join()" * 4 + ")"),
    _bomb("loop_before_a_comment", Kind.MEMORY, _spaced("map // x\n(")),
    _bomb("loop_before_a_newline", Kind.MEMORY, _spaced("map \n\t(")),
    _bomb("loop_with_strange_spaces", Kind.MEMORY, _spaced("map\x0c(")),
    _bomb("loop_with_a_quoted_name", Kind.MEMORY, _spaced("`map`(")),
    _bomb("loop_behind_a_text", Kind.MEMORY, "size('//' + " + _spaced("map //(\n(").removeprefix("size(")),
    _bomb("bind_and_bind", Kind.MEMORY, "cel.bind(a, " * 6 + "input.text" + f", {'+'.join('a' * 16)})" * 6),
    _any("format_wide", Kind.FORMAT, "size('%.999999999f'.format([1.0]))"),
    _any("format_many", Kind.FORMAT, "size('" + "%s" * 500 + "'.format(input.list))"),
    _bomb("bytes_growth", Kind.MEMORY, f"size({_doubled('bytes(input.text)', 'a + a')}[0])"),
    # Each quoting doubles a text of quotes, without any loop.
    _bomb("quote_and_quote", Kind.MEMORY, f"size({_nested('strings.quote', 'input.quotes', 26)})"),
    _bomb("quote_for_long", Kind.C_LOOP, f"size({_nested('strings.quote', 'input.quotes', 23)})", timeout_ms=300),
    _any("split_and_split", Kind.MEMORY, "size(input.text.split(''))"),
    # Time.
    _bomb("loops_in_loops", Kind.PYTHON_LOOP, _loops(6)),
    _bomb("all_in_all", Kind.PYTHON_LOOP, "input.list.all(a, " * 5 + "true" + ")" * 5 + " ? 1 : 0"),
    _bomb("exists_in_exists", Kind.PYTHON_LOOP, "input.list.exists(a, " * 5 + "false" + ")" * 5 + " ? 1 : 0"),
    _bomb("filter_in_filter", Kind.PYTHON_LOOP, "size(" + "input.list.filter(a, size(" * 5 + "[1]" + ")==1)" * 5 + ")"),
    _any("regex_nested_plus", Kind.REGEX, "(input.text + 'y').matches('(x+)+$') ? 1 : 0"),
    _any("regex_counts", Kind.REGEX, "input.text.matches('((x{1,30}){1,30}){1,30}y') ? 1 : 0"),
    _any("regex_huge_counts", Kind.REGEX, "input.text.matches('(((x{1,1000}){1,1000}){1,1000}){1,1000}') ? 1 : 0"),
    _any("regex_backreference", Kind.REGEX, r"input.text.matches(r'(x+)\1\1y') ? 1 : 0"),
    _any("regex_deep", Kind.REGEX, f"input.text.matches('{'(' * 1800}{')' * 1800}') ? 1 : 0"),
    _any("regex_in_a_loop", Kind.REGEX, "size(input.list.filter(a, input.text.matches('(x+)+$')))"),
    _any(
        "compare_deep", Kind.C_LOOP, f"{_doubled('input.list', '[a, a]')} in {_doubled('input.list', '[a, a]')} ? 1 : 0"
    ),
    # Depth: the parser runs in the host.
    _any("deep_parentheses", Kind.PARSER, "(" * 2_000 + "1" + ")" * 2_000),
    _any("deep_lists", Kind.PARSER, "[" * 2_000 + "]" * 2_000),
    _any("deep_maps", Kind.PARSER, "{1:" * 1_000 + "1" + "}" * 1_000),
    _any("deep_negation", Kind.PARSER, "-" * 4_000 + "1"),
    _any("deep_not", Kind.PARSER, "!" * 4_000 + "true"),
    _any("deep_choice", Kind.PARSER, "true?1:" * 580 + "1"),
    _any("deep_choice_left", Kind.PARSER, "(" * 500 + "true" + "?true:false)" * 280 + "?1:0"),
    _any("deep_calls", Kind.PARSER, "size(" * 680 + "'a'" + ")" * 680),
    _any("deep_index", Kind.PARSER, "input" + "[0]" * 1_300),
    _any("deep_index_inside", Kind.PARSER, "a[" * 1_300 + "0" + "]" * 1_300),
    _any("deep_fields", Kind.PARSER, "input" + ".a" * 2_000),
    _any("deep_sum", Kind.PARSER, "1+" * 2_000 + "1"),
    _any("deep_product", Kind.PARSER, "1*" * 2_000 + "1"),
    _any("deep_and", Kind.PARSER, "true&&" * 680 + "true ? 1 : 0"),
    _any("deep_unclosed", Kind.PARSER, "([{" * 1_300),
    _any("deep_macros", Kind.PARSER, "[1].map(a," * 300 + "1" + ")" * 300),
    _any("has_has", Kind.PARSER, "has(" * 800 + "input.a" + ")" * 800),
    _any("too_long", Kind.PARSER, "1+" * 100_000 + "1"),
    _any("empty", Kind.PARSER, ""),
    _any("null_byte", Kind.PARSER, "1 + \x00 1"),
    _any("surrogate", Kind.SURROGATE, "size('\ud800')"),
    _any("surrogate_escaped", Kind.SURROGATE, r"size('\ud800\udfff')"),
    _any("surrogate_beyond", Kind.SURROGATE, r"size('\U00110000')"),
    _any("raw_bytes", Kind.SURROGATE, r"size(string(b'\xff\xfe\x00'))"),
    # Results.
    _bomb("nan", Kind.NAN, "0.0 / 0.0"),
    _bomb("nan_from_text", Kind.NAN, "double('NaN')"),
    _bomb("infinity", Kind.INF, "1.0 / 0.0"),
    _bomb("infinity_from_text", Kind.INF, "double('-Infinity')"),
    _bomb("infinity_by_overflow", Kind.INF, "input.large * 10.0"),
    # A truth value is a result, for metrics of the type boolean.
    _any("bool", Kind.STRINGS, "true"),
    _bomb("text", Kind.STRINGS, "'1'"),
    _bomb("bytes", Kind.STRINGS, "b'1'"),
    _bomb("null", Kind.STRINGS, "null"),
    _bomb("list", Kind.STRINGS, "[1]"),
    _bomb("map", Kind.STRINGS, "{'x': 1}"),
    _bomb("type", Kind.STRINGS, "type(1)"),
    _bomb("duration", Kind.STRINGS, "duration('1s')"),
    _bomb("timestamp", Kind.STRINGS, "timestamp('2000-01-01T00:00:00Z')"),
    _bomb("whole_input", Kind.STRINGS, "input"),
    _bomb("beyond_exact", Kind.HUGE, "9007199254740993"),
    _bomb("unsigned_beyond", Kind.HUGE, "18446744073709551615u"),
    _bomb("float_beyond", Kind.HUGE, "1e300"),
    _bomb("integer_overflow", Kind.HUGE, "input.big + 1"),
    _bomb("least_negated", Kind.HUGE, "-(-9223372036854775807 - 1)"),
    _bomb("least_divided", Kind.EXIT, "(-9223372036854775807 - 1) / -1"),
    _bomb("divided_by_zero", Kind.EXIT, "1 / input.zero"),
    _bomb("rest_by_zero", Kind.EXIT, "1 % input.zero"),
    _bomb("index_beyond", Kind.EXIT, "input.list[9223372036854775807]"),
    _bomb("index_negative", Kind.EXIT, "input.list[-1]"),
    _bomb("unknown_name", Kind.DUNDERS, "nobody"),
    _bomb("unknown_call", Kind.DUNDERS, "open('/etc/passwd')"),
    _bomb("dunder", Kind.DUNDERS, "input.__class__"),
    _bomb("message_type", Kind.DUNDERS, "google.protobuf.Any{type_url: 'x', value: b'x'}"),
    _bomb("raise_odd_text", Kind.REPR, "input[input.odd]"),
    _bomb("raise_long_text", Kind.REPR, "input[input.text + input.text]"),
)
