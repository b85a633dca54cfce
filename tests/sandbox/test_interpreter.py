"""The small Python: every end of a call has its name, and no call knows another."""

import atexit
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pydantic_monty
import pytest
from pydantic_monty import _binary

from meruit.errors import Failure, SandboxError
from meruit.sandbox import interpreter
from meruit.sandbox.interpreter import Interpreter
from meruit.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's")

Write = Callable[..., str]
CONTEXT = b'{"input":{},"output":{},"metadata":{}}'
SHORT_MS = 200
LONG_MS = 60_000
PATIENCE_S = 60


@pytest.fixture
def own(small: Sandbox) -> Iterator[Interpreter]:
    """An interpreter that a test may ruin."""
    made = Interpreter(64)
    yield made
    made.close()


def failure(worker: Interpreter, code: str, timeout_ms: int = LONG_MS) -> tuple[Failure, str]:
    with pytest.raises(SandboxError) as raised:
        worker.run(code, CONTEXT, timeout_ms)
    worker.renew()
    return raised.value.failure, str(raised.value)


# How a call ends.


def test_metric_code_is_given_its_work_and_answers(small: Sandbox, metric: Write) -> None:
    code = metric("return {'a': input['n'], 'b': len(output), 'c': metadata['t'] / 2}")
    work = {"input": {"n": 2**53}, "output": "äöü", "metadata": {"t": 1}}
    assert small.execute_sync(code, work, LONG_MS) == {"metrics": {"a": 2**53, "b": 3, "c": 0.5}}


def test_ordinary_metric_code_runs(small: Sandbox, metric: Write) -> None:
    code = "import json, math, re\nLEAST = 2\ndef long(word):\n    return len(word) > LEAST\n" + metric(
        "words = re.findall('[a-z]+', output['text'].lower())",
        "try:",
        "    parsed = json.loads(output['json'])",
        "except ValueError:",
        "    parsed = {}",
        "return {'long': sum(1 for word in words if long(word)), 'root': math.sqrt(parsed['n']), 'n': len(set(words))}",
    )
    found = small.execute_sync(code, {"output": {"text": "An apple, a pear, AN egg", "json": '{"n": 16}'}}, LONG_MS)
    assert found == {"metrics": {"long": 3, "root": 4.0, "n": 5}}


@pytest.mark.parametrize(
    ("lines", "expected", "why"),
    [
        (["1 / 0"], Failure.CRASHED, "by zero (line 2)"),
        (["x = 1", "raise ValueError('two\\n  lines')"], Failure.CRASHED, "ValueError: two lines (line 3)"),
        (["raise ValueError('x' * 1000)"], Failure.CRASHED, "(line 2)"),
        (["return {'a': output['absent']}"], Failure.CRASHED, "KeyError: "),
        (["return {'a': undefined}"], Failure.CRASHED, "NameError: name 'undefined'"),
        (["return {}['metric']"], Failure.CRASHED, "KeyError: "),
        (["def f(): return f()", "return f()"], Failure.CRASHED, "RecursionError"),
        (["raise TimeoutError('mine')"], Failure.CRASHED, "TimeoutError: mine (line 2)"),
        (["return = 1"], Failure.UNSUPPORTED_CONSTRUCT, "line 2"),
        (["yield 1"], Failure.UNSUPPORTED_CONSTRUCT, "yield"),
        (["class A(int): pass"], Failure.UNSUPPORTED_CONSTRUCT, "inheritance"),
        (["import numpy"], Failure.UNSUPPORTED_CONSTRUCT, "No module named 'numpy'"),
        (["from nowhere import it"], Failure.UNSUPPORTED_CONSTRUCT, "No module named 'nowhere'"),
        (["return {'a': compile('1', '', 'eval')}"], Failure.UNSUPPORTED_CONSTRUCT, "name 'compile'"),
        (["import math", "return {'a': math.nowhere}"], Failure.UNSUPPORTED_CONSTRUCT, "attribute 'nowhere'"),
        (["return {'a': 'x' * 10**9}"], Failure.MEMORY, "MemoryError: memory limit exceeded"),
        (["kept = [0] * 10**8"], Failure.MEMORY, "MemoryError"),
        (["while True: pass"], Failure.TIMEOUT, "200 ms"),
        (["return {'a': 7 ** 40_000_000 % 10}"], Failure.TIMEOUT, "200 ms"),
        (["return {'a': 'b'}"], Failure.RESULT_REJECTED, "metric 'a': str"),
        (["return {'a': True}"], Failure.RESULT_REJECTED, "metric 'a': bool"),
        (["return {'a': float('inf')}"], Failure.RESULT_REJECTED, "metric 'a': inf"),
        (["return {1: 1}"], Failure.RESULT_REJECTED, "name must"),
        (["return {'a': {1}}"], Failure.RESULT_REJECTED, "JSON serializable"),
        (["return {'a': 10**5000}"], Failure.RESULT_REJECTED, "4300 digits"),
        (["return 1"], Failure.RESULT_REJECTED, "not int"),
        (["pass"], Failure.RESULT_REJECTED, "not NoneType"),
        (["return {'x' * 70_000: 1}"], Failure.RESULT_REJECTED, "64 KiB"),
        (["return {str(n): n for n in range(65)}"], Failure.RESULT_REJECTED, "65 metrics"),
    ],
)
def test_every_end_without_numbers_has_its_name(
    small: Sandbox, metric: Write, lines: list[str], expected: Failure, why: str
) -> None:
    timeout_ms = SHORT_MS if expected is Failure.TIMEOUT else LONG_MS
    found = small.execute_sync(metric(*lines), {}, timeout_ms)
    assert (found.failure, found) == (expected, {}), found.message
    assert why in found.message


@pytest.mark.parametrize("code", ["", "x = 1", "def other(): pass"])
def test_code_without_its_function_is_not_supported(small: Sandbox, code: str) -> None:
    found = small.execute_sync(code, {}, LONG_MS)
    assert found.failure is Failure.UNSUPPORTED_CONSTRUCT
    assert all(part in found.message for part in ("metric(input", "output"))


@pytest.mark.parametrize("parameters", ["", "input", "input, output, meta", "input, output, metadata, more"])
def test_a_function_with_other_names_cannot_be_called(small: Sandbox, parameters: str) -> None:
    found = small.execute_sync(f"def metric({parameters}): return {{}}", {}, LONG_MS)
    assert found.failure is Failure.CRASHED
    assert "metric() " in found.message


def test_a_metric_that_is_not_a_function_crashes(small: Sandbox) -> None:
    found = small.execute_sync("metric = 3", {}, LONG_MS)
    assert found.failure in (Failure.CRASHED, Failure.UNSUPPORTED_CONSTRUCT)


def test_printed_text_goes_nowhere(small: Sandbox, metric: Write, capfd: pytest.CaptureFixture[str]) -> None:
    for line in ("print('loud')", "print('loud', end='')", "[print] and [p('loud') for p in [print]]"):
        code = f"print('loud')\n{metric(line, 'return {}')}"
        assert small.execute_sync(code, {}, LONG_MS) == {"metrics": {}}
    # Code without the word, which is not looked for in it.
    for size in (1, 1_000_000):
        hidden = metric(f"exec('pr' + 'int(\"x\" * {size})')", "return {}")
        assert small.execute_sync(hidden, {}, LONG_MS) == {"metrics": {}}
    assert capfd.readouterr() == ("", "")


# One call and the next.


def test_nothing_survives_a_call(own: Interpreter, metric: Write) -> None:
    leaving = "mark = 1\n" + metric("global mark", "mark += 1", "return {'mark': mark}")
    for _ in range(3):
        assert own.run(leaving, CONTEXT, LONG_MS) == {"mark": 2}
        own.renew()
    for name in ("mark", "answered", "space", "code", "context", "found"):
        ending, why = failure(own, metric(f"return {{'a': {name}}}"))
        assert ending is Failure.CRASHED
        assert why.startswith(f"NameError: name '{name}' ")
        assert why.endswith("(line 2)")


def test_calls_may_follow_each_other_without_renewal(own: Interpreter, metric: Write) -> None:
    for number in range(3):
        assert own.run(metric(f"return {{'n': {number}}}"), CONTEXT, LONG_MS) == {"n": number}


def test_each_call_has_its_own_limit_of_time(own: Interpreter, metric: Write) -> None:
    endless, quick = metric("while True: pass"), metric("return {'a': 1}")
    for timeout_ms in (LONG_MS, 50, 60, LONG_MS, 50):
        if timeout_ms < LONG_MS:
            ending, why = failure(own, endless, timeout_ms)
            assert (ending, why.endswith(f" {timeout_ms} ms")) == (Failure.TIMEOUT, True)
        else:
            assert own.run(quick, CONTEXT, timeout_ms) == {"a": 1}
            own.renew()


def test_one_step_that_takes_too_long_is_killed_and_the_next_call_works(own: Interpreter, metric: Write) -> None:
    assert failure(own, metric("return {'a': 7 ** 40_000_000 % 10}"), 50)[0] is Failure.TIMEOUT
    assert own.run(metric("return {'a': 1}"), CONTEXT, LONG_MS) == {"a": 1}


def test_memory_ends_where_the_limit_is(own: Interpreter, metric: Write) -> None:
    assert own.run(metric("return {'a': len('x' * (32 * 2**20))}"), CONTEXT, LONG_MS) == {"a": 32 * 2**20}
    own.renew()
    for lines in (["return {'a': len('x' * (128 * 2**20))}"], ["kept = []", "while True: kept.append('x' * 10**6)"]):
        assert failure(own, metric(*lines))[0] is Failure.MEMORY


@pytest.mark.parametrize(
    ("source", "number"),
    [
        ("import time; r = time.time()", 946_684_800),
        ("import datetime; r = datetime.datetime.now(datetime.timezone.utc).timestamp()", 946_684_800),
        ("import datetime; r = datetime.date.today().year", 2000),
        ("import time; time.sleep(3600); r = time.time()", 946_684_800),
        ("import random; r = random.random()", None),
        ("r = hash('text') % 2**50", None),
        ("r = float(list({'a', 'b', 'c', 'd'}).index('a'))", None),
    ],
)
def test_chance_and_time_are_the_same_for_every_call(
    small: Sandbox, own: Interpreter, metric: Write, source: str, number: float | None
) -> None:
    code = metric(source, "return {'r': r}")
    found = [small.execute_sync(code, {}, LONG_MS) for _ in range(2)]
    assert found[0].failure is None, found[0].message
    assert found[0] == found[1] == {"metrics": own.run(code, CONTEXT, LONG_MS)}
    assert number is None or found[0] == {"metrics": {"r": number}}


# Processes.


def workers() -> set[int]:
    """Interpreters that this process has started and that still run."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                command = (folder / "cmdline").read_bytes()
            except (OSError, IndexError):
                continue
            if parent == os.getpid() and b"monty" in command:
                found.add(int(folder.name))
    return found


def awaited(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def test_closing_ends_the_process(small: Sandbox, metric: Write) -> None:
    before = workers()
    made = Interpreter(64)
    made.run(metric("return {}"), CONTEXT, LONG_MS)
    started = workers() - before
    assert len(started) == 1
    made.close()
    assert awaited(lambda: not workers() & started)


def ended_from_outside(worker: Interpreter) -> None:
    """End the idle process, as the kernel does when memory runs out."""
    assert worker._wire is not None
    worker._wire.kill()
    worker._wire._worker.wait()


def test_a_worker_that_is_ended_from_outside_costs_no_call(small: Sandbox, metric: Write) -> None:
    made = Interpreter(64)
    try:
        made.run(metric("return {'a': 1}"), CONTEXT, LONG_MS)
        made.renew()
        ended_from_outside(made)
        assert made.run(metric("return {'a': 2}"), CONTEXT, LONG_MS) == {"a": 2}
    finally:
        made.close()


@pytest.mark.parametrize("timeout_ms", [LONG_MS, LONG_MS + 1])
def test_no_process_starts_in_the_thread_of_a_caller(small: Sandbox, metric: Write, timeout_ms: int) -> None:
    made = Interpreter(64)
    try:
        made.run(metric("return {'a': 1}"), CONTEXT, LONG_MS)
        made.renew()
        ended_from_outside(made)
        # The kernel would end the process with that thread.
        assert made.serve(metric("return {'a': 2}"), CONTEXT, timeout_ms) is None
        with pytest.raises(EOFError):
            made.clear()
        assert made._wire is None
    finally:
        made.close()


def test_code_that_asks_for_all_memory_at_once_ends_as_memory(own: Interpreter, metric: Write) -> None:
    # The process ends, unlike where the interpreter itself counts to its limit.
    found, _ = failure(own, metric("return {'a': len(('x' * 50_000).join(['y'] * 50_000))}"))
    assert found is Failure.MEMORY
    assert own.run(metric("return {'a': 1}"), CONTEXT, LONG_MS) == {"a": 1}


def test_code_that_fails_late_does_not_run_again(
    own: Interpreter, monkeypatch: pytest.MonkeyPatch, metric: Write
) -> None:
    own.renew()
    assert own.serve(metric("return 1 / 0"), CONTEXT, LONG_MS) is None
    own.clear()
    monkeypatch.setattr(interpreter, "_is_quick", lambda *_: False)
    with pytest.raises(SandboxError, match="ZeroDivisionError") as raised:
        own.serve(metric("return 1 / 0"), CONTEXT, LONG_MS)
    assert raised.value.failure is Failure.CRASHED
    own.clear()


def test_an_answer_of_another_kind_is_refused(own: Interpreter, monkeypatch: pytest.MonkeyPatch, metric: Write) -> None:
    class Session:
        def feed_run(self, *_: object, **__: object) -> object:
            return 3

        def __exit__(self, *_: object) -> None:
            """Nothing to end."""

    library = own._with_library()
    monkeypatch.setattr(own, "_ask", lambda *_: None)
    monkeypatch.setattr(library, "_session", Session())
    monkeypatch.setattr(library, "_timeout_ms", LONG_MS)
    with pytest.raises(SandboxError, match="JSON") as raised:
        own.run(metric("return {}"), CONTEXT, LONG_MS)
    assert raised.value.failure is Failure.RESULT_REJECTED


def test_the_engine_is_named_with_its_version() -> None:
    assert interpreter.engine() == "pydantic-monty 1.4.0"
    assert pydantic_monty.__name__ == "pydantic_monty"


def test_printed_text_has_a_place_to_vanish(capfd: pytest.CaptureFixture[str]) -> None:
    ended: list[bool] = []
    printed = interpreter.PrintLimit(lambda: ended.append(True))
    for _ in range(3):
        printed("stdout", "x" * (interpreter.MAX_PRINTED // 2))
    assert (ended, printed.too_much) == ([True], True)
    assert capfd.readouterr() == ("", "")


def test_printing_without_end_ends_the_call(small: Sandbox, metric: Write) -> None:
    started = time.monotonic()
    found = small.execute_sync(metric("p = eval('print', {})", "while True: p('x' * 10_000)"), {}, LONG_MS)
    assert (found.failure, "1,000,000 characters" in found.message) == (Failure.CRASHED, True)
    assert time.monotonic() - started < LONG_MS / 1000 / 2


# Machines on which it cannot be started.


@pytest.fixture
def unmemorised() -> Iterator[None]:
    """Launchers are written anew, before and after."""
    interpreter._launchers.clear()
    yield
    interpreter._launchers.clear()


@pytest.fixture
def tidy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """All folders are made here, and nothing is left to do when the process ends."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(atexit, "register", lambda *_, **__: None)
    for folder in ("runtime", "home/.cache"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def test_the_first_folder_in_which_programs_start_is_taken(tidy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Path(interpreter._folder()).parent == tidy
    tried: list[Path] = []

    def access(path: Path, mode: int) -> bool:
        assert mode == os.X_OK
        tried.append(path.parent.parent)
        return ".cache" in str(path)

    monkeypatch.setattr(os, "access", access)
    assert Path(interpreter._folder()).parent == tidy / "home" / ".cache"
    assert tried == [tidy, tidy / "runtime", tidy / "home" / ".cache"]


def test_without_any_such_folder_the_tier_is_unavailable(tidy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(SandboxError, match="TMPDIR") as raised:
        interpreter._folder()
    assert raised.value.failure is Failure.SANDBOX_UNAVAILABLE


def test_folders_that_cannot_be_made_are_passed_over(tidy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tidy / "absent"))
    (tidy / "runtime").rmdir()
    assert Path(interpreter._folder()).parent == tidy / "home" / ".cache"


@pytest.mark.usefixtures("unmemorised", "tidy")
def test_without_its_program_the_tier_is_unavailable(monkeypatch: pytest.MonkeyPatch, metric: Write) -> None:
    def absent() -> str:
        raise FileNotFoundError("no monty here")

    monkeypatch.setattr(_binary, "find_monty_binary", absent)
    with Sandbox("python", 48, max_workers=1) as box:
        for _ in range(2):
            found = box.execute_sync(metric("return {}"), {})
            assert (found.failure, found.message) == (Failure.SANDBOX_UNAVAILABLE, "no monty here")


@pytest.mark.usefixtures("unmemorised", "tidy")
def test_a_file_that_is_not_a_program_makes_the_tier_unavailable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    program.write_text("not a program")
    monkeypatch.setattr(_binary, "find_monty_binary", lambda: str(program))
    with pytest.raises(SandboxError, match="confined interpreter") as raised:
        Interpreter(64)
    assert raised.value.failure is Failure.SANDBOX_UNAVAILABLE


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'lacks\n Landlock' >&2; exit 126", "lacks Landlock"),
        ("exit 7", "exit code 7"),
        ("exit 0", "exit code 0"),
    ],
)
def test_a_launcher_that_fails_says_why(tmp_path: Path, script: str, why: str) -> None:
    launcher = tmp_path / "launch"
    launcher.write_text(f"#!/bin/sh\n{script}\n")
    launcher.chmod(0o700)
    with pytest.raises(SandboxError, match="confined interpreter") as raised:
        interpreter._probe(str(launcher))
    assert raised.value.failure is Failure.SANDBOX_UNAVAILABLE
    assert str(raised.value).endswith(why)


def test_a_launcher_that_is_absent_or_silent_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SandboxError, match="interpreter"):
        interpreter._probe(str(tmp_path / "absent"))
    launcher = tmp_path / "launch"
    launcher.write_text("#!/bin/sh\nexec sleep 600\n")
    launcher.chmod(0o700)
    monkeypatch.setattr(interpreter, "START_S", 0.1)
    with pytest.raises(SandboxError, match="timed out"):
        interpreter._probe(str(launcher))


REFUSING = """
from meruit.sandbox import confine, launch
confine.landlock_version = lambda: 0
launch.main("/bin/true", "64")
"""


def test_the_launcher_refuses_in_words_when_a_wall_does_not_stand() -> None:
    command = [sys.executable, "-c", REFUSING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 126
    assert "Landlock" in done.stderr
