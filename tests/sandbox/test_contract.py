"""What crosses, and what is believed of what comes back."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meruit.errors import ContextError, Failure, SandboxError
from meruit.model.evidence import Cause
from meruit.model.kinds import Tier
from meruit.model.limits import MAX_METRICS, MAX_NAME
from meruit.sandbox import contract
from meruit.sandbox.contract import (
    MAX_MESSAGE,
    MAX_RESULT_BYTES,
    Limits,
    SandboxResult,
    build_evidence,
    code_digest,
    encode_context,
    read_answer,
    to_one_line,
    validate_metrics,
)

LARGEST = 2**53
NUMBERS = st.integers() | st.floats()
SCALARS = st.none() | st.booleans() | NUMBERS | st.text()


def nested(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Lists and objects of these, a few levels deep."""
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=10,
    )


JSON = nested(SCALARS)
FINITE = nested(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
LIKELY = st.dictionaries(st.text(max_size=5), SCALARS, max_size=4)
"""Near enough to an answer that some of them are one."""
GOOD = st.dictionaries(
    st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=MAX_NAME),
    st.integers(-LARGEST, LARGEST) | st.floats(-LARGEST, LARGEST),
    max_size=MAX_METRICS,
)


def refused(said: Any) -> str:
    """Why an answer is not believed."""
    with pytest.raises(SandboxError) as raised:
        validate_metrics(said)
    assert raised.value.failure is Failure.RESULT_REJECTED
    return str(raised.value)


def unreadable(answer: bytes) -> str:
    with pytest.raises(SandboxError) as raised:
        read_answer(answer)
    assert raised.value.failure is Failure.RESULT_REJECTED
    return str(raised.value)


def holds(metrics: object) -> None:
    """What may be relied on whenever an answer is believed."""
    assert type(metrics) is dict
    assert len(metrics) <= MAX_METRICS
    for name, value in metrics.items():
        assert type(name) is str
        assert 1 <= len(name) <= MAX_NAME
        assert name.isprintable()
        assert type(value) in (int, float)
        assert math.isfinite(value)
        assert abs(value) <= LARGEST


def believed_or_refused(read: Callable[[Any], dict[str, float]], answer: Any) -> None:
    """The one rule about answers: a few finite numbers, or one named failure, and never anything else."""
    try:
        metrics = read(answer)
    except SandboxError as failed:
        kind, message = failed.failure, str(failed)
    else:
        return holds(metrics)
    assert kind is Failure.RESULT_REJECTED
    assert message
    return None


# Answers.


@given(JSON | LIKELY)
@example({"a": True})
@example({"a": LARGEST + 1})
@example({"a": -float(LARGEST)})
@example({"a": math.nan})
@example({"": 1})
@example({"a\n": 1})
@example([])
def test_an_answer_is_a_few_finite_numbers_or_refused(said: Any) -> None:
    believed_or_refused(validate_metrics, said)


@given(
    st.binary() | JSON.map(lambda said: json.dumps(said).encode()) | LIKELY.map(lambda said: json.dumps(said).encode())
)
@example(b"")
@example(b"\xff\xfe{\x00}\x00")
@example(b'{"a":1')
@example(b'{"\\ud800":1}')
@example(b"\xef\xbb\xbf{}")
@example(b"[" * 60_000)
@example(b'{"a":' * 10_000)
@example(b'{"a":' + b"9" * 5_000 + b"}")
@example(b'{"a":-Infinity}')
def test_any_bytes_are_a_few_finite_numbers_or_refused(answer: bytes) -> None:
    believed_or_refused(read_answer, answer)


@given(GOOD)
def test_finite_numbers_under_names_are_taken_as_they_are(said: dict[str, float]) -> None:
    assert validate_metrics(said) == said
    written_down = json.dumps(said).encode()
    if len(written_down) <= MAX_RESULT_BYTES:
        assert read_answer(written_down) == said


@pytest.mark.parametrize("number", [LARGEST, -LARGEST, float(LARGEST), 0, -0.0, 5e-324])
def test_numbers_up_to_the_limit_keep_their_value_and_type(number: float) -> None:
    (found,) = validate_metrics({"a": number}).values()
    assert (type(found), found) == (type(number), number)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (None, "not NoneType"),
        ([1], "not list"),
        (1.5, "not float"),
        ({"a": True}, "metric 'a': bool"),
        ({"a": "1"}, "metric 'a': str"),
        ({"a": None}, "metric 'a': NoneType"),
        ({"a": {"b": 1}}, "metric 'a': dict"),
        ({"a": math.nan}, "metric 'a': nan"),
        ({"a": -math.inf}, "metric 'a': -inf"),
        ({"a": LARGEST + 1}, "beyond ±2^53"),
        ({"a": -LARGEST - 1}, "beyond ±2^53"),
        ({"a": float(LARGEST) * 2}, "beyond ±2^53"),
        ({"": 1}, "1 to 200 characters"),
        ({"n" * (MAX_NAME + 1): 1}, "1 to 200 characters"),
        ({7: 1}, "metric 7: "),
        ({"a\x00": 1}, "control characters"),
        ({"a\x1b[31m": 1}, "control characters"),
        ({"\u202e": 1}, "control characters"),
        ({f"m{number}": 1 for number in range(MAX_METRICS + 1)}, "65 metrics"),
    ],
)
def test_a_refusal_says_what_the_answer_is_instead(said: Any, why: str) -> None:
    assert why in refused(said)


def test_the_most_metrics_under_the_longest_names_are_taken() -> None:
    said = {f"{number:0{MAX_NAME}}": number for number in range(MAX_METRICS)}
    assert validate_metrics(said) == said


def test_a_subclass_of_a_number_is_refused() -> None:
    class Mine(float):
        """May lie about anything."""

    assert "metric 'a': Mine" in refused({"a": Mine(1)})


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b'{"a":1,"a":1}', "appears twice"),
        (b'{"b":{"a":1,"a":2}}', "appears twice"),
        (b'{"a" :1,"b":2,"a"\t: 3}', "appears twice"),
        (b'{"a:":1,"a:":1}', "appears twice"),
        (b'{"a":1}{}', "Extra data"),
        (b"\xff", "not JSON"),
        (b'{"a":NaN}', "metric 'a': "),
        (b'{"a":1e999}', "metric 'a': inf"),
        (b'{"a":-Infinity}', "metric 'a': -inf"),
        (b" " * MAX_RESULT_BYTES + b"{}", "64 KiB"),
        (b"[" * 50_000, "not JSON"),
    ],
)
def test_bytes_that_are_not_an_answer_are_refused(answer: bytes, why: str) -> None:
    assert why in unreadable(answer)


def test_a_name_may_have_a_colon() -> None:
    assert read_answer(b'{"a:b":1,"a\\":":2.5}') == {"a:b": 1, 'a":': 2.5}


def test_an_answer_of_exactly_the_largest_size_is_read() -> None:
    assert read_answer(b'{"a":1}' + b" " * (MAX_RESULT_BYTES - 7)) == {"a": 1}


def test_a_refusal_is_never_longer_than_an_explanation_may_be() -> None:
    assert len(refused({"\U000e0001" * MAX_NAME: 1})) <= MAX_MESSAGE


# The work that crosses.


def test_exactly_three_names_cross_and_what_is_missing_is_empty() -> None:
    assert json.loads(encode_context({})) == {"input": {}, "output": {}, "metadata": {}}
    assert json.loads(encode_context({"output": [1, "ä", None]})) == {
        "input": {},
        "output": [1, "ä", None],
        "metadata": {},
    }
    assert json.loads(encode_context(MappingProxyType({"input": 1}))) == {"input": 1, "output": {}, "metadata": {}}


@given(FINITE)
@example({"a": [2**64, -(2**64), {"": None}]})
def test_work_crosses_unchanged(work: Any) -> None:
    assert json.loads(encode_context({"output": work})) == {"input": {}, "output": work, "metadata": {}}


@pytest.mark.parametrize(
    "strange", [math.nan, [math.inf], {1, 2}, b"bytes", object(), "\ud800", {"a": {("b",): 1}}, 1j]
)
def test_a_value_that_is_not_json_is_refused(strange: Any) -> None:
    with pytest.raises(ContextError, match="as JSON"):
        encode_context({"input": strange})


@pytest.mark.parametrize("key", [1, None, True, 1.5])
def test_a_key_that_is_not_text_is_refused(key: Any) -> None:
    with pytest.raises(ContextError, match="as JSON"):
        encode_context({"input": {key: 1}})


@dataclass
class Reading:
    """An object of the caller's own."""

    value: float


def test_nan_never_crosses_as_null() -> None:
    with pytest.raises(ContextError):
        encode_context({"input": Reading(math.nan)})


def test_only_the_three_names_are_taken() -> None:
    with pytest.raises(ContextError, match="'secret'"):
        encode_context({"input": {}, "secret": 1})


@pytest.mark.parametrize("context", [None, "text", [("input", 1)]])
def test_a_context_is_a_mapping(context: Any) -> None:
    with pytest.raises(ContextError, match="mapping"):
        encode_context(context)


def test_work_beyond_the_limit_is_refused_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    fits = {"output": "x" * 100}
    size = len(encode_context(fits))
    monkeypatch.setattr(contract, "MAX_CONTEXT_BYTES", size)
    assert len(encode_context(fits)) == size
    with pytest.raises(ContextError, match=rf"{size + 1:,} bytes"):
        encode_context({"output": "x" * 101})


def test_integers_beyond_64_bits_cross_exactly() -> None:
    assert json.loads(encode_context({"input": 2**200}))["input"] == 2**200


# Words about a call.


@given(st.text() | st.text(st.characters(categories=["Cs", "Zs", "Zl"])))
@example("a\r\nb\tc")
@example("\ud800")
@example("x" * 5_000)
@example(" " * 5_000 + "late")
def test_a_message_is_one_short_line_of_unicode(text: str) -> None:
    line = to_one_line(text)
    assert len(line) <= MAX_MESSAGE
    assert line == " ".join(line.split())
    line.encode()


def test_a_message_that_is_cut_shows_that_it_was() -> None:
    assert to_one_line("x" * MAX_MESSAGE) == "x" * MAX_MESSAGE
    assert to_one_line("x" * (MAX_MESSAGE + 1)) == "x" * (MAX_MESSAGE - 1) + "…"
    assert to_one_line(" two \n words ") == "two words"


@pytest.mark.parametrize("sign", ["\x1b[2J", "\x00", "\x07", "\x9b", "\u202e", "\u2066"])
def test_a_message_gives_no_orders_to_a_terminal(sign: str) -> None:
    assert to_one_line(f"a{sign}b").isprintable()


def test_every_failure_is_a_cause_in_the_evidence() -> None:
    assert {str(failure) for failure in Failure} <= {str(cause) for cause in Cause}


def test_a_result_is_the_specified_mapping() -> None:
    given_back = {"a": 1.0}
    result = SandboxResult(given_back, {"tier": "python"})
    given_back["a"] = 2.0
    assert result == {"metrics": {"a": 1.0}}
    assert (result.failure, result.message, result.evidence) == (None, "", {"tier": "python"})
    assert SandboxResult({}, {}) == {"metrics": {}}


def test_a_failed_result_is_empty_and_says_why() -> None:
    result = SandboxResult(None, {}, Failure.TIMEOUT, "late")
    assert result == {}
    assert result.get("metrics", {}) == {}
    assert (result.failure, result.message) == (Failure.TIMEOUT, "late")


def test_a_failure_carries_its_kind_and_its_words() -> None:
    failed = SandboxError(Failure.MEMORY, "too much")
    assert (failed.failure, str(failed)) == (Failure.MEMORY, "too much")


def test_the_evidence_names_all_that_a_rerun_needs() -> None:
    assert build_evidence("x", Tier.EXPR, "engine 1", Limits(timeout_ms=7, memory_limit_mb=32)) == {
        "tier": "expr",
        "engine": "engine 1",
        "code_sha256": "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881",
        "timeout_ms": 7,
        "memory_limit_mb": 32,
        "clock": "2000-01-01T00:00:00+00:00",
        "seed": 0,
    }


def test_code_that_is_not_unicode_has_a_digest_too() -> None:
    assert len({code_digest("\ud800"), code_digest("\ud801"), code_digest("")}) == 3


def test_a_result_shows_how_it_ended() -> None:
    assert repr(SandboxResult({"a": 1}, {})) == "SandboxResult({'metrics': {'a': 1}})"
    failed = SandboxResult(None, {}, Failure.TIMEOUT, "too slow")
    assert repr(failed) == "SandboxResult(failure='timeout', message='too slow')"
