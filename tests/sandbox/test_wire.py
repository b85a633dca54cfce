"""The wire says what the library says, and believes a worker nothing but a plain answer."""

import json
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.errors import Failure, SandboxError
from meruit.sandbox import interpreter, wire
from meruit.sandbox.interpreter import Interpreter, Library
from meruit.sandbox.wire import (
    Values,
    Wire,
    configure,
    feed,
    is_timeout,
    read_number,
    read_text,
    renewal,
    unwrap,
    write_number,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's")

PATIENCE_S = 60.0
LONG_MS = 60_000

WORKER = """
import os, struct, sys
DONE, ANSWER = b"\\x52\\x00", b"\\x32\\x0b\\x12\\x09\\x08\\x01\\x12\\x05\\x42\\x03{{}} "
heard = open({heard!r}, "ab", buffering=0)
while head := os.read(0, 4):
    message, (size,) = b"", struct.unpack("<I", head)
    while len(message) < size:
        message += os.read(0, size - len(message))
    heard.write(head + message)
    reply = ANSWER if message[0] == 3 << 3 | 2 else DONE
    os.write(1, struct.pack("<I", len(reply)) + reply)
"""
"""A worker that writes down what it is sent, and always answers `{} `."""

Launch = Callable[[str], str]


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Make a launcher of a worker with this program."""

    def make(program: str) -> str:
        script = tmp_path / "worker.py"
        script.write_text(textwrap.dedent(program))
        launcher = tmp_path / "launch"
        launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {script} "$@"\n')
        launcher.chmod(0o700)
        return str(launcher)

    return make


# What is sent.


@pytest.mark.parametrize(
    "context",
    [
        {"input": {}, "output": {}, "metadata": {}},
        {"input": "", "output": "é\u2028" * 100, "metadata": [[], [{}], {"": []}]},
        {"input": [0, 1, -1, 63, 64, -64, -65, 2**53, -(2**53), 2**62], "output": [0.0, -0.5, 1e300 / 1e290]},
        {"input": {"n" * wire.MAX_KEPT_NAME: 1, "n" * 200: 2}, "output": {str(number): 0 for number in range(26)}},
        {"input": [None, True, False], "output": {"a": {"b": {"c": [1, "x" * 70_000]}}}, "metadata": {"n": 1.5}},
    ],
)
def test_the_same_bytes_as_the_library(
    context: dict[str, Any], launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = tmp_path / "heard"
    launcher = launch(WORKER.format(heard=str(heard)))
    monkeypatch.setattr(interpreter, "_launcher", lambda _: launcher)
    library = Library(64)
    given_context = json.loads(json.dumps(context))
    assert library.run_script("script", {"code": "code", "context": given_context}, 1_234) == "{} "
    library.close()
    theirs = heard.read_bytes()
    session = configure(64 * 2**20, interpreter.MAX_DEPTH, interpreter.MAX_SUSPENSIONS, 1_234)
    scripts = wire.Scripts(parsed=b"script", unparsed=b"unparsed")
    written = json.dumps(context).encode()
    assert theirs.startswith(session + feed(b"code", written, scripts) + wire.END)


@pytest.mark.parametrize("many", [[1] * (wire.MAX_VALUES + 1), 2**63, -(2**63), 1e30, 10**30, [[[0]] * 40]])
def test_large_contexts_and_numbers_are_sent_as_json(many: Any) -> None:
    with pytest.raises(OverflowError):
        Values().add(json.loads(json.dumps(many)))
    written = json.dumps({"output": many}).encode()
    assert written in feed(b"code", written, wire.Scripts(parsed=b"parsed", unparsed=b"unparsed"))


def test_a_context_of_any_depth_is_sent() -> None:
    deep = b'{"output":' + b"[" * 900 + b"]" * 900 + b"}"
    assert deep in feed(b"code", deep, wire.Scripts(parsed=b"parsed", unparsed=b"unparsed"))


@given(st.integers(0, 2**64 - 1))
def test_numbers_come_back(number: int) -> None:
    written = b"\x00" + write_number(number) + b"\x01"
    assert read_number(written, 1) == (number, len(written) - 1)


# What code sees.

_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@pytest.fixture(scope="module")
def own() -> Iterator[Interpreter]:
    made = Interpreter(64)
    yield made
    made.close()


@given(_JSON, _JSON)
def test_code_sees_a_context_as_json_has_it(own: Interpreter, one: Any, other: Any) -> None:
    context = json.dumps({"input": one, "metadata": {}, "output": other}, ensure_ascii=False)
    code = (
        "import json\ndef metric(input, output, metadata):\n"
        "    seen = json.dumps([input, output])\n"
        "    return {'size': len(seen), 'sum': sum([ord(one) * (place % 97) for place, one in enumerate(seen)])}\n"
    )
    own.renew()
    try:
        written = context.encode()
    except UnicodeEncodeError:
        return
    seen = own.run(code, written, LONG_MS)
    own.renew()
    limit, wire.MAX_VALUES = wire.MAX_VALUES, 0
    try:
        assert own.run(code, written, LONG_MS) == seen
    finally:
        wire.MAX_VALUES = limit


def test_containers_are_not_shared_between_arguments(own: Interpreter) -> None:
    code = "def metric(input, output, metadata):\n    input['a'].append(1)\n    return {'n': len(output['a'])}\n"
    own.renew()
    assert own.run(code, b'{"input":{"a":[]},"output":{"a":[]},"metadata":{}}', LONG_MS) == {"n": 0}


# What is believed.


@given(st.binary(max_size=60))
def test_any_other_reply_is_not_an_answer(message: bytes) -> None:
    assert read_text(b"\x1a" + message) is None
    assert not is_timeout(b"\x32" + message)
    read_text(b"\x32" + message)
    is_timeout(b"\x3a" + message)


@pytest.mark.parametrize("cut", range(1, 14))
def test_an_answer_that_is_cut_is_not_one(cut: int) -> None:
    whole = b"\x32\x0b\x12\x09\x08\x01\x12\x05\x42\x03abc"
    assert read_text(whole) == "abc"
    assert read_text(whole[:-cut]) is None
    assert unwrap(b"\x32\xff") is not None


SAYING = """
import os, struct, sys, time
def say(*messages):
    for message in messages:
        os.write(1, struct.pack("<I", len(message)) + message)
def hear():
    (size,) = struct.unpack("<I", os.read(0, 4))
    return os.read(0, size)
hear()
say(b"\\x52\\x00")
hear()
"""
ANSWER = b"\x32\x0b\x12\x09\x08\x01\x12\x05\x42\x03{} "


@pytest.mark.parametrize(
    ("program", "end"),
    [
        ("say(b'\\n' + b'x' * 200, {answer})", ANSWER),
        ("say(b'\\n' + b'x' * 200_000, b'\\n' + b'x' * 200_000)", OverflowError),
        ("os.write(1, b'\\xff' * 8); time.sleep(100)", OverflowError),
        ("sys.exit()", EOFError),
        ("time.sleep(100)", TimeoutError),
        ("os.write(1, b'\\x05'); time.sleep(100)", TimeoutError),
    ],
)
def test_a_worker_ends_only_its_own_call(program: str, end: bytes | type[Exception], launch: Launch) -> None:
    made = Wire(launch(SAYING + program.format(answer=repr(ANSWER))))
    try:
        assert made.is_ready(wire.frame(b"session"), time.monotonic() + PATIENCE_S)
        patience_s = 0.2 if end is TimeoutError else PATIENCE_S
        if isinstance(end, bytes):
            assert made.ask(wire.frame(b"code"), b"", time.monotonic() + patience_s) == end
        else:
            with pytest.raises(end):
                made.ask(wire.frame(b"code"), b"", time.monotonic() + patience_s)
    finally:
        made.close()


def test_the_next_session_is_asked_for_with_the_call(launch: Launch, tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    made = Wire(launch(WORKER.format(heard=str(heard))))
    begin, renew = (make(1, 2, 3, 4) for make in (configure, renewal))
    call = feed(b"code", b"{}", wire.Scripts(parsed=b"parsed", unparsed=b"unparsed"))
    try:
        assert made.is_ready(begin, time.monotonic() + PATIENCE_S)
        for _ in range(2):
            assert made.ask(call, renew, time.monotonic() + PATIENCE_S) == ANSWER
            # With another limit, say.
            made.renew(renew, time.monotonic() + PATIENCE_S)
        made.ask(call, renew, time.monotonic() + PATIENCE_S)
    finally:
        made.close()
    assert heard.read_bytes().startswith(begin + (call + 2 * renew) * 2 + call)


def test_a_worker_that_is_out_of_step_is_not_believed(launch: Launch) -> None:
    made = Wire(launch(SAYING + f"say({ANSWER!r}); time.sleep(100)"))
    try:
        assert made.is_ready(wire.frame(b"session"), time.monotonic() + PATIENCE_S)
        # Two replies are owed for the session; an answer in their place may be another call's.
        made.renew(wire.frame(b"session"), time.monotonic() + PATIENCE_S)
        with pytest.raises(EOFError):
            made.ask(wire.frame(b"code"), b"", time.monotonic() + PATIENCE_S)
    finally:
        made.close()


def test_a_worker_that_reads_nothing_holds_up_no_call(launch: Launch) -> None:
    made = Wire(launch("import time; time.sleep(100)"))
    try:
        with pytest.raises(TimeoutError):
            made.ask(b"x" * 10**6, b"", time.monotonic() + 0.2)
    finally:
        made.close()


@pytest.mark.parametrize("program", ["import sys; sys.exit()", SAYING.replace("x52", "x3a") + "time.sleep(100)"])
def test_a_worker_of_another_release_is_unavailable(
    program: str, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = launch(program)
    monkeypatch.setattr(interpreter, "_launcher", lambda _: launcher)
    with pytest.raises(SandboxError, match=wire.VERSION) as raised:
        Interpreter(64)
    assert raised.value.failure is Failure.SANDBOX_UNAVAILABLE


def test_a_launcher_that_is_absent_leaves_no_pipe(tmp_path: Path) -> None:
    before = sorted(Path("/proc/self/fd").iterdir())
    with pytest.raises(OSError, match="absent"):
        Wire(str(tmp_path / "absent"))
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_the_release_is_the_one_that_is_installed() -> None:
    assert interpreter.engine().endswith(f" {wire.VERSION}")
