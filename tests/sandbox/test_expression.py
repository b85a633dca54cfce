"""One expression: its number, or a failure that tells its author where and what to write instead."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.errors import Failure, SandboxError
from meruit.model.limits import MAX_EXPRESSION
from meruit.sandbox import expression
from meruit.sandbox.contract import encode_context
from meruit.sandbox.expression import CHEAP, admit, check, engine, evaluate, is_cheap
from meruit.sandbox.sandbox import Sandbox

WORK = {
    "input": {"question": "why?"},
    "output": {"text": "héllo", "items": [1, 2, 3.5], "flag": True, "none": None, "big": 2**70, "wide": 2**53},
    "metadata": {"tokens": 12},
}


def value(code: str, work: Any = WORK) -> float:
    (found,) = evaluate(code, encode_context(work)).values()
    return found


def refused(code: str, work: Any = WORK) -> tuple[Failure, str]:
    with pytest.raises(SandboxError) as raised:
        evaluate(code, encode_context(work))
    return raised.value.failure, str(raised.value)


@pytest.mark.parametrize(
    ("code", "number"),
    [
        ("1", 1),
        ("7u", 7),
        ("1.5", 1.5),
        ("-2 * 3", -6),
        ("5 / 2", 2),
        ("5.0 / 2.0", 2.5),
        ("size(output.text)", 5),
        ("output.items[2]", 3.5),
        ("output['items'][0]", 1),
        ("metadata.tokens", 12),
        ("output.flag ? 1 : 0", 1),
        ("has(output.absent) ? 1 : 0", 0),
        ("output.none == null ? 1 : 0", 1),
        ("output.text.contains('llo') ? 1 : 0", 1),
        ("output.text.matches('^h.l+o$') ? 1 : 0", 1),
        ("math.greatest(1, 4, 2)", 4),
        ("size(output.text.split('l'))", 3),
        ("size(input.question) + size(output.items)", 7),
        ("double(output.items[0]) / 4.0", 0.25),
        ("output.wide", 2**53),
        ("output.big > 1e20 ? 1 : 0", 1),
        ("size(output.items.filter(x, x > 1))", 2),
        ("output.items.all(x, x > 0) ? 1 : 0", 1),
    ],
)
def test_an_expression_is_worth_its_number(code: str, number: float) -> None:
    found = value(code)
    assert (found, type(found)) == (number, type(number))


def test_its_number_has_one_name() -> None:
    assert evaluate("1", encode_context({})) == {"value": 1}


@pytest.mark.parametrize(("code", "truth"), [("true", 1), ("output.flag", 1), ("size(output.items) > 9", 0)])
def test_a_boolean_expression_is_worth_its_truth(code: str, truth: int) -> None:
    assert evaluate(code, encode_context(WORK)) == {"boolean": truth}


@pytest.mark.parametrize(
    ("code", "certainly"), [("output.a > 1.0", True), ("has(output.a)", True), ("output.a", False), ("1", False)]
)
def test_what_an_expression_gives_is_known_before_it_runs(code: str, certainly: bool) -> None:
    assert check(code) is certainly
    with Sandbox(tier="expr") as sandbox:
        assert sandbox.load_sync(code) == {"metrics": {}}


@pytest.mark.parametrize("code", ["'a'", "null", "[1]", "{'a': 1}", "duration('1s')", "type(1)"])
def test_what_never_gives_a_number_is_refused_before_it_runs(code: str) -> None:
    with Sandbox(tier="expr") as sandbox:
        assert sandbox.load_sync(code).failure is Failure.RESULT_REJECTED


@given(st.integers(-(2**53), 2**53) | st.floats(-(2**53), 2**53))
def test_a_number_of_the_work_arrives_unchanged(number: float) -> None:
    assert value("output", {"output": number}) == number


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("'a'", "gives string & size(…)"),
        ("null", "gives null & has(…)"),
        ("output.none", "gives null & has(…)"),
        ("[1]", "gives list"),
        ("output", "gives map"),
        ("b'a'", "gives bytes"),
        ("duration('1s')", "gives duration"),
        ("type(1)", "gives type"),
        ("1.0 / 0.0", "metric 'value': inf"),
        ("0.0 / 0.0", "metric 'value': nan"),
        ("9007199254740993", "beyond ±2^53"),
        ("output.big", "beyond ±2^53"),
    ],
)
def test_a_value_that_is_not_a_number_is_refused_with_a_hint(code: str, why: str) -> None:
    failure, message = refused(code)
    assert failure is Failure.RESULT_REJECTED
    assert all(part in message for part in why.split(" & "))


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("output.absent", "key 'absent'"),
        ("output.absent.deeper", "key 'absent'"),
        ("output.items[9]", "index"),
        ("1 / 0", "divide by zero"),
        ("1 % 0", "modulus by zero"),
        ("9223372036854775807 + 1", "integer overflow"),
        ("output.text + 1", "(string, int64)"),
        ("int('x')", "int"),
        ("output.text.matches('(')", "missing )"),
    ],
)
def test_what_fails_on_this_work_says_why(code: str, why: str) -> None:
    failure, message = refused(code)
    assert failure is Failure.CRASHED
    assert why.lower() in message.lower()


@pytest.mark.parametrize(
    ("code", "where"),
    [
        ("", "1:1: "),
        ("1 +", "1:4: "),
        ("1 +\n\n) 2", "3:1: "),
        ("nothing", "1:1: undeclared"),
        ("unknown(1)", "1:8: undeclared"),
        ("size(1)", "1:5: found no matching overload for 'size'"),
        ("'\\ud800'", "1:1: "),
        ("((((", "1:5: "),
        ("__import__('os')", "1:11: undeclared"),
    ],
)
def test_what_cannot_be_compiled_says_where(code: str, where: str) -> None:
    failure, message = refused(code)
    assert failure is Failure.UNSUPPORTED_CONSTRUCT
    assert message.startswith(where)
    assert "INVALID_ARGUMENT" not in message


def test_an_expression_has_a_longest_length() -> None:
    assert value("1 " + " " * (MAX_EXPRESSION - 2)) == 1
    failure, message = refused("1 " + " " * (MAX_EXPRESSION - 1))
    assert failure is Failure.UNSUPPORTED_CONSTRUCT
    assert "4,097 characters" in message


def test_an_expression_is_compiled_once() -> None:
    code = "1 + 1 + 1 + 1 + 1"
    value(code)
    before = expression._compile.cache_info()
    value(code)
    after = expression._compile.cache_info()
    assert (after.hits, after.misses) == (before.hits + 1, before.misses)


def test_the_iteration_budget_is_a_limit_of_time() -> None:
    code = "size(output.map(a, output.map(b, output.map(c, 1))))"
    failure, message = refused(code, {"output": list(range(300))})
    assert failure is Failure.TIMEOUT
    assert "budget exceeded" in message


def test_work_too_deep_to_read_is_a_failure_and_no_crash() -> None:
    deep = b'{"input":' + b"[" * 2_000 + b"]" * 2_000 + b',"output":{},"metadata":{}}'
    with pytest.raises(SandboxError) as raised:
        evaluate("1", deep)
    assert raised.value.failure is Failure.CRASHED


def test_the_engine_is_named_with_its_version() -> None:
    name, _, version = engine().partition(" ")
    assert name == "cel-expr-python"
    assert version[0].isdigit()


# Where it runs.


@pytest.mark.parametrize(
    "code",
    [
        "1",
        "size(output.text) > 3 ? 1 : 0",
        "output.text.startsWith('allow') ? 1 : 0",
    ],
)
def test_what_plainly_neither_loops_nor_grows_is_cheap(code: str) -> None:
    assert is_cheap(code, encode_context(WORK))


@pytest.mark.parametrize(
    "code",
    [
        "[1].map(x, x)[0]",
        "[1].map (x, x)[0]",
        "[1].map\n\t(x, x)[0]",
        "[1].all(x, true) ? 1 : 0",
        "[1].exists(x, true) ? 1 : 0",
        "[1].exists_one(x, true) ? 1 : 0",
        "[1].existsOne(i, x, true) ? 1 : 0",
        "size([1].filter(x, true))",
        "size([1].transformList(i, x, x))",
        "size({1: 2}.transformMap(k, v, v))",
        "size({1: 2}.transformMapEntry(k, v, {v: k}))",
        "size('a'.replace('a', 'b'))",
        "size(['a'].join())",
        "size('%s'.format(['a']))",
    ],
)
def test_an_expression_that_loops_or_grows_runs_in_a_jail(code: str) -> None:
    assert not is_cheap(code, encode_context({}))


def test_length_times_work_bounds_what_is_cheap() -> None:
    assert is_cheap("1" * 16, b" " * (CHEAP // 16))
    assert not is_cheap("1" * 16, b" " * (CHEAP // 16 + 1))


@pytest.mark.parametrize("code", ["[1].map//\n(x, x)[0]", "size('aa'.replace // why\n ('a', 'bb'))"])
def test_a_comment_does_not_hide_a_loop(code: str) -> None:
    assert value(code, {}) > 0
    assert not is_cheap(code, encode_context({}))


def test_a_pattern_that_takes_seconds_is_not_cheap() -> None:
    code = "output.matches('((x?){0,99}){0,9}y')?1:0"
    assert not is_cheap(code, encode_context({"output": "x" * 380_000}))


@pytest.mark.parametrize("code", ["size([1, 2].map(x, x * 2))", "size(output.items)", "size('a'.replace('a', 'bb'))"])
def test_here_or_in_a_jail_the_number_is_the_same(expr: Sandbox, code: str) -> None:
    found = expr.execute_sync(code, WORK, 60_000)
    assert found == {"metrics": evaluate(code, encode_context(WORK))}


@pytest.mark.parametrize(
    ("code", "failure", "why"),
    [
        ("output.map(a, output.map(b, output.map(c, 1)))", Failure.TIMEOUT, "budget exceeded"),
        ("[1].map(x, x / 0)[0]", Failure.CRASHED, "divide by zero"),
        ("[1].map(x, x)", Failure.RESULT_REJECTED, "gives list"),
        ("[1].map(x)", Failure.UNSUPPORTED_CONSTRUCT, "1:"),
        ("[1].map(x, 'a')[0]", Failure.RESULT_REJECTED, "size(…)"),
    ],
)
def test_a_failure_in_a_jail_is_named_as_here(expr: Sandbox, code: str, failure: Failure, why: str) -> None:
    work = {"output": list(range(300))}
    found = expr.execute_sync(code, work, 60_000)
    assert (found.failure, found) == (failure, {})
    assert why in found.message
    assert (found.failure, found.message) == refused(code, work)


def test_big_work_is_read_alike_in_a_jail(expr: Sandbox) -> None:
    work = {"output": ["x" * 1_000] * 2_000}
    assert expr.execute_sync("size(output.filter(x, size(x) == 1000))", work, 60_000) == {"metrics": {"value": 2_000}}
    assert expr.execute_sync("size(output)          ", work, 60_000) == {"metrics": {"value": 2_000}}
    assert len(json.dumps(work)) * 20 > CHEAP


@pytest.mark.parametrize(
    "code",
    [
        "output.matches('a') ? 1 : 0",
        "[output.matches('^0\\\\pL{200}')].size()",
        "output.matches(input) ? 1 : 0",
        "strings.quote('a') == '' ? 1 : 0",
        "string(1) == '1' ? 1 : 0",
    ],
)
def test_what_compiles_a_pattern_or_makes_text_goes_to_a_jail(code: str) -> None:
    assert not is_cheap(code, encode_context({}))


def test_a_long_text_is_refused_before_anyone_reads_it() -> None:
    with pytest.raises(SandboxError, match="at most 4,096"):
        admit("a" * (MAX_EXPRESSION + 1))
    with Sandbox("expr") as box:
        assert box.execute_sync("a" * 200_000, {}).failure is Failure.UNSUPPORTED_CONSTRUCT
