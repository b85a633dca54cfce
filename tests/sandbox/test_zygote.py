"""What a child of the jail says, and how: the parts that need no jail around them."""

import json
import sys
from typing import Any

import pytest

from meruit.errors import Failure, MetricRejected, SandboxError
from meruit.sandbox.determinism import NullTextStream
from meruit.sandbox.zygote import LONGEST_MESSAGE, _describe_failure, _run_metric, _to_json_value

CONTEXT = b'{"input":{"a":1},"output":"text","metadata":{}}'


@pytest.fixture(autouse=True)
def _no_metric_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring leaves a module of that name behind, as code in the jail may expect."""
    monkeypatch.setitem(sys.modules, "metric", sys)


def measured(*lines: str) -> Any:
    code = "\n    ".join(("def metric(input, output, metadata):", *lines))
    return json.loads(_run_metric(code, CONTEXT))


def rejected(code: str) -> str:
    with pytest.raises(MetricRejected) as raised:
        _run_metric(code, CONTEXT)
    return str(raised.value)


def test_the_function_is_given_the_context_by_name() -> None:
    assert measured("return {'a': input['a'], 'b': len(output), 'c': len(metadata)}") == {"a": 1, "b": 4, "c": 0}


def test_a_result_that_is_not_a_mapping_reaches_the_host() -> None:
    assert measured("return [1, True, None]") == [1, True, None]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def", "unsupported_construct SyntaxError: invalid syntax (line 1)"),
        ("\n\nx = = 1", "unsupported_construct SyntaxError: invalid syntax (line 3)"),
        ("a\x00b", "source code string cannot contain null bytes"),
        ("async def metric(**_): return {}", "unsupported_construct metric is"),
        ("x = 1", "unsupported_construct "),
        ("metric = 3", "unsupported_construct "),
        ("def metric(**_): return {1: 2}", "result_rejected "),
        ("def metric(**_): return {'a': object()}", "result_rejected metric 'a': object"),
        ("def metric(**_): return {'a': 10**5000}", "result_rejected Exceeds the limit"),
        ("def metric(**_):\n    a = []\n    a.append(a)\n    return a", "result_rejected Circular reference detected"),
        ("def metric(**_): return 'x' * 65_535", "64 KiB"),
    ],
)
def test_what_is_not_an_answer_is_rejected_by_name(code: str, said: str) -> None:
    assert said in rejected(code)


def test_code_too_deep_to_compile_is_not_supported() -> None:
    assert rejected("a" + " + a" * 60_000).startswith("unsupported_construct ")


def test_code_that_replaces_the_writer_of_answers_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "dumps", json.dumps)
    assert measured("import json", "json.dumps = lambda *_: 'forged'", "return {'a': 1}") == {"a": 1}


def test_numbers_of_numpy_become_plain_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    for number, kind in ((numpy.float64(1.5), float), (numpy.int32(3), int), (numpy.bool_(True), bool)):
        assert type(_to_json_value("a", number)) is kind
    assert _to_json_value("a", "text") == "text"
    for stranger in (numpy, numpy.array([1]), {1}, 1j):
        with pytest.raises(MetricRejected, match="result_rejected"):
            _to_json_value("a", stranger)


def caught(code: str) -> BaseException:
    try:
        exec(compile(code, "metric.py", "exec"), {})
    except BaseException as problem:  # noqa: BLE001 - whatever the code raises is what is asked for
        return problem
    raise AssertionError("the code raises nothing")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("\n1 / 0", "by zero (line 2)"),
        ("def f():\n    raise KeyError('k')\nf()", "crashed KeyError: 'k' (line 2)"),
        (
            "import nowhere_at_all",
            "unsupported_construct ModuleNotFoundError: No module named 'nowhere_at_all' (line 1)",
        ),
        ("raise SystemExit(3)", "crashed SystemExit: 3 (line 1)"),
        ("raise KeyboardInterrupt", "crashed KeyboardInterrupt:  (line 1)"),
    ],
)
def test_an_exception_is_reported_with_its_line(code: str, said: str) -> None:
    assert _describe_failure(caught(code)).endswith(said)


def test_a_failure_that_has_a_name_keeps_it() -> None:
    assert _describe_failure(SandboxError(Failure.TIMEOUT, "budget")) == "timeout budget"
    assert _describe_failure(SandboxError(Failure.CRASHED, "it broke")).startswith("crashed ")
    assert _describe_failure(MetricRejected("memory much")) == "memory much"


def test_a_message_has_a_longest_length() -> None:
    assert len(_describe_failure(MetricRejected("x" * 10_000))) == LONGEST_MESSAGE
    assert len(_describe_failure(ValueError("x" * 10_000))) < LONGEST_MESSAGE + 100


def test_printed_text_goes_nowhere() -> None:
    nowhere = NullTextStream()
    assert nowhere.writable()
    assert print("text", file=nowhere) is None
    assert nowhere.write("text") == 4
