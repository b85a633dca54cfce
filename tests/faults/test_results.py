"""Whatever a tier says, the host takes a few finite numbers under names, and nothing else."""

import json
import math
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meruit.errors import Failure, SandboxError
from meruit.model.limits import MAX_METRICS, MAX_NAME
from meruit.sandbox.contract import SandboxResult, read_answer
from meruit.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's")
CONTEXT: dict[str, Any] = {"input": {}, "output": {"a": 1}, "metadata": {}}
TIMEOUT_MS = 10_000
LARGEST = 2**53
# An engine may refuse to make such a value at all, before the host hears of it.
REFUSED = {Failure.RESULT_REJECTED, Failure.CRASHED, Failure.MEMORY, Failure.UNSUPPORTED_CONSTRUCT}


@pytest.fixture(scope="module", params=["python", "python-full"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with Sandbox(tier=request.param) as made:
        yield made


@pytest.fixture(scope="module")
def expr() -> Iterator[Sandbox]:
    with Sandbox(tier="expr") as made:
        yield made


def answered(sandbox: Sandbox, value: str, before: str = "pass") -> SandboxResult:
    code = f"def metric(input, output, metadata):\n    {before}\n    return {value}\n"
    return sandbox.execute_sync(code, CONTEXT, TIMEOUT_MS)


def assert_rejected(result: SandboxResult, failures: set[Failure]) -> None:
    assert "metrics" not in result
    assert result.failure in failures, f"{result.failure}: {result.message}"
    assert result.message


@pytest.mark.parametrize(
    "value",
    [
        '{"x": float("nan")}',
        '{"x": float("inf")}',
        '{"x": -float("inf")}',
        '{"x": 1e308 * 10}',
        '{"x": True}',
        '{"x": False}',
        '{"x": "1"}',
        '{"x": None}',
        '{"x": [1]}',
        '{"x": {"y": 1}}',
        '{"x": 2**53 + 1}',
        '{"x": -(2**53) - 1}',
        '{"x": 1e16}',
        '{"": 1}',
        '{"a\\nb": 1}',
        '{"x" * 201: 1}',
        "{1: 1}",
        "{None: 1}",
        "{True: 1}",
        '{"a": 1, "b": float("nan")}',
        '{"x%d" % n: n for n in range(65)}',
        '{"x%d" % n: n for n in range(10000)}',
        '{("n%05d" % n) * 40: n for n in range(400)}',
        '{"x": "y" * 70000}',
        "None",
        "1",
        "True",
        '"{}"',
        "[]",
        '[["x", 1]]',
    ],
)
def test_what_is_no_number_is_never_a_metric(sandbox: Sandbox, value: str) -> None:
    assert_rejected(answered(sandbox, value), {Failure.RESULT_REJECTED})


@pytest.mark.parametrize(
    ("value", "before"),
    [
        ('{"x": 10**400}', "pass"),
        ('{"x": 10**5000}', "pass"),
        ('{"x": b"1"}', "pass"),
        ('{"x": {1}}', "pass"),
        ('{"x": metric}', "pass"),
        ('{"x": 1j}', "pass"),
        ('{"x": chr(0xD800)}', "pass"),
        ('{"a" + chr(0xDFFF): 1}', "pass"),
        ('{"x": ring}', "ring = []; ring.append(ring)"),
        ("ring", 'ring = {}; ring["x"] = ring'),
        ('{"x": deep}', "deep = []\n    for _ in range(100000): deep = [deep]"),
        ("deep", "deep = {}\n    for _ in range(100000): deep = {'x': deep}"),
        ('{"x": "y" * 100_000_000}', "pass"),
        ('{"x": [0] * 10_000_000}', "pass"),
        ("{str(n): n for n in range(300000)}", "pass"),
    ],
)
def test_what_is_too_strange_for_an_engine_is_never_a_metric(sandbox: Sandbox, value: str, before: str) -> None:
    assert_rejected(answered(sandbox, value, before), REFUSED)


@pytest.mark.parametrize("code", ["def metric(input, output, metadata):\n    pass", "metric = 1", "x = 1", ""])
def test_code_that_answers_nothing_is_a_failure(sandbox: Sandbox, code: str) -> None:
    assert_rejected(sandbox.execute_sync(code, CONTEXT, TIMEOUT_MS), REFUSED)


@pytest.mark.parametrize(
    ("value", "metrics"),
    [
        ('{"x": 1}', {"x": 1}),
        ('{"x": 2**53, "y": -(2**53)}', {"x": LARGEST, "y": -LARGEST}),
        ('{"x": 0.1 + 0.2, "y": 5e-324, "z": -0.0}', {"x": 0.1 + 0.2, "y": 5e-324, "z": -0.0}),
        ('{"größe, 大": 1}', {"größe, 大": 1}),
        ("{}", {}),
        ('{"x%d" % n: n for n in range(64)}', {f"x{n}": n for n in range(64)}),
    ],
)
def test_what_is_allowed_arrives_exactly(sandbox: Sandbox, value: str, metrics: dict[str, float]) -> None:
    result = answered(sandbox, value)
    assert result.failure is None, result.message
    assert result["metrics"] == metrics
    assert [type(number) for number in result["metrics"].values()] == [type(number) for number in metrics.values()]


@pytest.mark.parametrize(
    "code",
    [
        "0.0 / 0.0",
        "1.0 / 0.0",
        "-1.0 / 0.0",
        "double('NaN')",
        "double('Infinity')",
        "'1'",
        "b'1'",
        "null",
        "[1]",
        "{'x': 1}",
        "output",
        "type(1)",
        "duration('1s')",
        "timestamp('2000-01-01T00:00:00Z')",
        "9007199254740993",
        "-9007199254740993",
        "18446744073709551615u",
        "1e300",
        # The same from behind the wall: what walks a list is evaluated by a worker.
        "[1].map(a, 'text')[0]",
        "[1].map(a, 0.0 / 0.0)[0]",
        "[1].map(a, 9007199254740993)[0]",
        "[1].map(a, a)",
    ],
)
def test_an_expression_gives_one_finite_number_or_nothing(expr: Sandbox, code: str) -> None:
    assert_rejected(expr.execute_sync(code, CONTEXT, TIMEOUT_MS), {Failure.RESULT_REJECTED})


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
answers = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


@given(st.binary(max_size=200) | answers.map(lambda value: json.dumps(value).encode()))
@example(b'{"x": NaN}')
@example(b'{"x": 1e999}')
@example(b'{"x": 1, "x": 2}')
@example(b'{"x": 1}{"x": 2}')
@example(b'\xff\xfe{\x00"\x00x\x00"\x00:\x001\x00}\x00')
@example(b'\xef\xbb\xbf{"x": 1}')
@example(b'{"\\ud800": 1}')
@example(b'{"x": 1' + b"0" * 5_000 + b"}")
@example(b"[" * 60_000)
@example(b'{"x":' * 10_000)
@example(b'{"x": 1' + b" " * 70_000 + b"}")
@example(b"")
def test_no_bytes_whatsoever_become_anything_but_finite_numbers(answer: bytes) -> None:
    metrics, failure = read(answer)
    assert failure in {None, Failure.RESULT_REJECTED}
    assert len(metrics) <= MAX_METRICS
    for name, value in metrics.items():
        assert type(name) is str
        assert 0 < len(name) <= MAX_NAME
        name.encode()
        assert type(value) in (int, float)
        assert math.isfinite(value)
        assert abs(value) <= LARGEST


def read(answer: bytes) -> tuple[dict[str, float], Failure | None]:
    try:
        return read_answer(answer), None
    except SandboxError as failed:
        return {}, failed.failure
