"""CPython in a jail: every end of a call has its name, and the same code on the same work gives the same numbers."""

import errno
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from meruit.errors import Failure, SandboxError
from meruit.sandbox import confine, jail
from meruit.sandbox.jail import PLAIN, FullPython, Jail
from meruit.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the jail is Linux's")

Write = Callable[..., str]
PATIENCE_S = 60
CONTEXT = b'{"input":{},"output":{},"metadata":{}}'
SHORT_MS = 400
LONG_MS = 60_000


@pytest.fixture(scope="module")
def kept(full: Sandbox) -> Iterator[FullPython]:
    """One worker without a pool around it."""
    made = FullPython(256)
    yield made
    made.close()


@pytest.fixture
def own(full: Sandbox) -> Iterator[Jail]:
    """A jail that a test may ruin."""
    made = Jail(64)
    yield made
    made.close()


def failure(kept: FullPython, code: str, timeout_ms: int = LONG_MS) -> tuple[Failure, str]:
    with pytest.raises(SandboxError) as raised:
        kept.run(code, CONTEXT, timeout_ms)
    kept.renew()
    return raised.value.failure, str(raised.value)


def numbers(kept: FullPython | Jail, code: str) -> dict[str, float]:
    try:
        return kept.run(code, CONTEXT, LONG_MS)
    finally:
        kept.renew()


# How a call ends.


def test_metric_code_is_given_its_work_and_answers(full: Sandbox, metric: Write) -> None:
    code = metric("return {'a': input['n'], 'b': len(output), 'c': metadata['t'] / 2}")
    work = {"input": {"n": 2**53}, "output": "äöü", "metadata": {"t": 1}}
    assert full.execute_sync(code, work, LONG_MS) == {"metrics": {"a": 2**53, "b": 3, "c": 0.5}}


def test_syntax_that_the_small_python_lacks_runs_here(full: Sandbox, metric: Write) -> None:
    code = (
        "class Base:\n    n = 1\nclass Both(Base):\n    pass\ndef numbers():\n    yield 1\n    yield 2\n"
        "import collections, re, statistics, zlib\n"
        + metric("kept = [1]", "del kept", "return {'a': sum(numbers()) + Both().n, 'b': len(re.findall('a', 'aba'))}")
    )
    assert full.execute_sync(code, {}, LONG_MS) == {"metrics": {"a": 4, "b": 2}}


def test_numbers_of_numpy_are_numbers(full: Sandbox, metric: Write) -> None:
    pytest.importorskip("numpy")
    code = metric(
        "import numpy as np",
        "values = np.array([1, 2, 3, 4])",
        "return {'mean': values.mean(), 'max': values.max(), 'norm': np.linalg.norm(values) ** 2, 'n': len(values)}",
    )
    found = full.execute_sync(code, {}, LONG_MS)["metrics"]
    assert found == {"mean": 2.5, "max": 4, "norm": pytest.approx(30), "n": 4}
    assert [type(value) for value in found.values()] == [float, int, float, int]


def test_a_truth_value_of_numpy_is_not_a_number(full: Sandbox, metric: Write) -> None:
    pytest.importorskip("numpy")
    found = full.execute_sync(metric("import numpy as np", "return {'a': np.bool_(True)}"), {}, LONG_MS)
    assert found.failure is Failure.RESULT_REJECTED
    assert "metric 'a': bool" in found.message


@pytest.mark.parametrize(
    ("lines", "expected", "why"),
    [
        (["1 / 0"], Failure.CRASHED, "by zero (line 2)"),
        (["x = 1", "raise ValueError('two\\n  lines')"], Failure.CRASHED, "ValueError: two lines (line 3)"),
        (["raise SystemExit(3)"], Failure.CRASHED, "SystemExit: 3 (line 2)"),
        (["raise KeyboardInterrupt"], Failure.CRASHED, "KeyboardInterrupt: (line 2)"),
        (["import os", "os._exit(3)"], Failure.CRASHED, "without an"),
        (["import ctypes", "ctypes.string_at(0)"], Failure.CRASHED, "signal 11"),
        (["import nowhere_at_all"], Failure.UNSUPPORTED_CONSTRUCT, "No module named 'nowhere_at_all' (line 2)"),
        (["return = 1"], Failure.UNSUPPORTED_CONSTRUCT, "invalid syntax (line 2)"),
        (["open('/etc/passwd')"], Failure.CRASHED, "PermissionError"),
        (["return {'a': 'b'}"], Failure.RESULT_REJECTED, "metric 'a': str"),
        (["return {'a': float('nan')}"], Failure.RESULT_REJECTED, "metric 'a': nan"),
        (["return {1: 1}"], Failure.RESULT_REJECTED, "name must"),
        (["return {'a': {1}}"], Failure.RESULT_REJECTED, "metric 'a': set"),
        (["return 1"], Failure.RESULT_REJECTED, "not int"),
        (["return None"], Failure.RESULT_REJECTED, "not NoneType"),
        (["return {'x' * 70_000: 1}"], Failure.RESULT_REJECTED, "64 KiB"),
        (["return bytearray(2**33)"], Failure.MEMORY, "memory"),
        (["while True: pass"], Failure.TIMEOUT, "400 ms"),
        (["3 ** (10 ** 9)"], Failure.TIMEOUT, "400 ms"),
    ],
)
def test_every_end_without_numbers_has_its_name(
    full: Sandbox, metric: Write, lines: list[str], expected: Failure, why: str
) -> None:
    timeout_ms = SHORT_MS if expected is Failure.TIMEOUT else LONG_MS
    found = full.execute_sync(metric(*lines), {}, timeout_ms)
    assert (found.failure, found) == (expected, {})
    assert why in found.message


@pytest.mark.parametrize("code", ["", "x = 1", "metric = 1", "def other(): pass"])
def test_code_without_its_function_is_not_supported(full: Sandbox, code: str) -> None:
    found = full.execute_sync(code, {}, LONG_MS)
    assert found.failure is Failure.UNSUPPORTED_CONSTRUCT
    assert all(part in found.message for part in ("metric(input", "output"))


@pytest.mark.parametrize("parameters", ["", "input", "input, output, meta", "input, output, metadata, more"])
def test_a_function_with_other_names_cannot_be_called(full: Sandbox, parameters: str) -> None:
    found = full.execute_sync(f"def metric({parameters}): return {{}}", {}, LONG_MS)
    assert found.failure is Failure.CRASHED
    assert "metric() " in found.message


def test_a_long_message_keeps_its_line(full: Sandbox, metric: Write) -> None:
    found = full.execute_sync(metric("raise ValueError('x' * 1000)"), {}, LONG_MS)
    assert found.message.endswith("(line 2)")


def test_code_too_deep_for_the_parser_is_not_a_matter_of_memory(full: Sandbox) -> None:
    assert full.execute_sync("-" * 100_000 + "1", {}, LONG_MS).failure is Failure.UNSUPPORTED_CONSTRUCT


def test_printed_text_goes_nowhere(full: Sandbox, metric: Write, capfd: pytest.CaptureFixture[str]) -> None:
    code = metric("import sys", "print('loud')", "sys.stderr.write('loud')", "return {'a': 1}")
    assert full.execute_sync(code, {}, LONG_MS) == {"metrics": {"a": 1}}
    assert capfd.readouterr() == ("", "")


def test_nothing_survives_a_call(full: Sandbox, metric: Write) -> None:
    code = "import builtins, json, random, sys\n" + metric(
        "seen = hasattr(builtins, 'mark') + hasattr(json, 'mark') + ('mark' in sys.modules)",
        "builtins.mark = json.mark = sys.modules['mark'] = 1",
        "random.seed(99)",
        "return {'seen': seen}",
    )
    for _ in range(4):
        assert full.execute_sync(code, {}, LONG_MS) == {"metrics": {"seen": 0}}


MEDDLING = """
import builtins, ctypes, json, os, random, sys, time
def metric(input, output, metadata):
    chance, text = random.random(), json.dumps.__doc__
    seen = [
        hasattr(builtins, 'mark'), hasattr(json, 'mark'), 'mark' in sys.modules, 'mark' in os.environ,
        text.startswith('xxxxxxxx'), os.getpid() != 1, time.time() != 946684800, json.loads('1') != 1,
    ]
    builtins.mark = json.mark = sys.modules['mark'] = 1
    os.environ['mark'] = '1'
    json.loads = time.time = os.getpid = random.random = lambda *_: 99
    # Past the interpreter: memory that all children share until one of them writes to it.
    ctypes.memset(id(text) + sys.getsizeof(text) - len(text) - 1, ord('x'), 8)
    return {'seen': sum(seen), 'written': int(text.startswith('xxxxxxxx')), 'chance': chance}
"""


@pytest.mark.parametrize("loaded", ["", "import numpy\n"])
def test_a_call_changes_nothing_for_children_made_before_or_after_it(kept: FullPython, loaded: str) -> None:
    found = [numbers(kept, loaded + MEDDLING) for _ in range(4)]
    assert (found[0]["seen"], found[0]["written"]) == (0, 1)
    assert all(other == found[0] for other in found)


def test_no_call_is_given_the_process_of_another(own: Jail) -> None:
    # The real number of the process; `os.getpid` is fixed.
    code = "import ctypes\ndef metric(**_): return {'pid': ctypes.CDLL(None).getpid()}"
    seen = [numbers(own, code)["pid"] for _ in range(6)]
    assert len(set(seen)) == len(seen)


def test_numpy_is_loaded_only_for_code_that_names_it(kept: FullPython) -> None:
    count = "import sys\ndef metric(**_): return {'a': sum(name.startswith('num' 'py') for name in sys.modules)}"
    assert numbers(kept, count) == {"a": 0}
    if "numpy" in jail.engine():
        assert numbers(kept, f"{count}  # numpy")["a"] > 0


def test_a_worker_killed_early_starts_no_living_jail(full: Sandbox, metric: Write) -> None:
    made = FullPython(64)
    made.kill()
    try:
        with pytest.raises(SandboxError) as raised:
            made.run(metric("while True: pass"), CONTEXT, LONG_MS)
        assert raised.value.failure is Failure.SANDBOX_UNAVAILABLE
    finally:
        made.close()
    assert gone(made._jails[PLAIN]._zygote.pid)


def test_a_worker_without_calls_has_nothing_to_renew() -> None:
    made = FullPython(64)
    made.renew()
    made.kill()
    made.close()
    assert made._jails == {}


# What a child may say on its one line, forged.

FORGED = (
    "import os, struct\ndef answer(length, failed, said):\n    os.write(3, struct.pack('>IB', length, failed) + said)\n"
)


@pytest.mark.parametrize(
    ("deed", "expected", "why"),
    [
        ("answer(2**32 - 1, 0, b'')", Failure.RESULT_REJECTED, "64 KiB"),
        ("answer(65_537, 0, b'x' * 65_537)", Failure.RESULT_REJECTED, "64 KiB"),
        ("answer(100, 0, b'half'); os._exit(0)", Failure.CRASHED, "without an"),
        ("os.write(3, b'x'); os._exit(0)", Failure.CRASHED, "without an"),
        ("answer(100, 0, b'half')\nwhile True: pass", Failure.TIMEOUT, "no answer"),
        ("answer(0, 0, b'')", Failure.RESULT_REJECTED, "not JSON"),
        ("answer(7, 0, b'{\"a\":1')", Failure.CRASHED, "without an"),
        ("answer(3, 0, b'\\xff\\xfe\\x00')", Failure.RESULT_REJECTED, "not JSON"),
        ("answer(0, 1, b'')", Failure.CRASHED, "no reason"),
        ("answer(9, 1, b'memory  \\n')", Failure.MEMORY, "no reason"),
        ("answer(21, 1, b'sandbox_unavailable x')", Failure.CRASHED, "x"),
        ("answer(12, 1, b'strange word')", Failure.CRASHED, "word"),
        ("answer(4, 1, b'\\xff \\xff\\xff')", Failure.CRASHED, "�"),
    ],
)
def test_a_forged_answer_is_worth_no_more_than_its_bytes(
    kept: FullPython, deed: str, expected: Failure, why: str
) -> None:
    timeout_ms = SHORT_MS if expected is Failure.TIMEOUT else LONG_MS
    found, message = failure(kept, f"{FORGED}{deed}\nos._exit(0)\n", timeout_ms)
    assert found is expected
    assert why in message


def test_numbers_that_code_writes_itself_are_still_only_numbers(kept: FullPython) -> None:
    assert numbers(kept, FORGED + "answer(7, 0, b'{\"a\":1}')\n") == {"a": 1}


# Chance, time and place.

SAME = {
    "random": "import random; r = random.random()",
    "a generator of its own": "import random; r = random.Random().random()",
    "system randomness": "import random; r = random.SystemRandom().random()",
    "urandom": "import os; r = int.from_bytes(os.urandom(6), 'big')",
    "secrets": "import secrets; r = secrets.randbelow(2**40)",
    "uuid4": "import uuid; r = uuid.uuid4().int % 2**50",
    "hash": "r = hash('text') % 2**50",
    "order of a set": "r = float([str(n) for n in range(50)].index(list({str(n) for n in range(50)})[0]))",
    "time": "import time; r = time.time()",
    "time_ns": "import time; r = time.time_ns() / 10**9",
    "monotonic": "import time; r = time.monotonic()",
    "perf_counter": "import time; r = time.perf_counter_ns() / 10**9",
    "clock_gettime": "import time; r = time.clock_gettime(0)",
    "gmtime": "import calendar, time; r = calendar.timegm(time.gmtime())",
    "localtime": "import calendar, time; r = calendar.timegm(time.localtime())",
    "sleep": "import time; time.sleep(3600); r = time.time()",
    "now": "import datetime; r = datetime.datetime.now().timestamp()",
    "now there": "import datetime; r = datetime.datetime.now(datetime.timezone.utc).timestamp()",
    "utcnow": "import datetime; r = datetime.datetime.utcnow().timestamp()",
    "today": "import datetime; r = datetime.datetime.today().timestamp()",
    "date": "import datetime; r = datetime.date.today().toordinal()",
    "from datetime": "from datetime import datetime as d; r = d.now().timestamp()",
    "timezone": "import time; r = time.timezone + time.daylight",
    "locale": "import locale; r = float(locale.str(1.5)) + len(f'{10**6:n}')",
    "environment": "import os; r = len(os.environ)",
    "folder": "import sys; r = len(sys.path) + len(sys.argv)",
}
NUMPY = {
    "numpy": "import numpy as np; r = np.random.rand()",
    "numpy generator": "import numpy as np; r = np.random.default_rng().random()",
    "numpy bits": "import numpy as np; r = np.random.PCG64().random_raw() % 2**50",
    "numpy old generator": "import numpy as np; r = np.random.RandomState().rand()",
}
CLOCKS = {
    "strftime": ("import time; r = int(time.strftime('%Y'))", 2000),
    "asctime": ("import time; r = int(time.asctime()[-4:])", 2000),
    "ctime": ("import time; r = int(time.ctime()[-4:])", 2000),
    "localtime": ("import time; r = time.localtime().tm_year", 2000),
    "a clock by name": ("import time; r = time.gmtime(time.clock_gettime(time.CLOCK_REALTIME)).tm_year", 2000),
}
FROZEN = 946_684_800


@pytest.fixture(scope="module")
def zygotes(full: Sandbox) -> Iterator[list[FullPython]]:
    """Two zygotes, started in different surroundings."""
    with pytest.MonkeyPatch.context() as surroundings:
        made = [FullPython(256)]
        for name, value in {"TZ": "Asia/Tokyo", "LC_ALL": "de_DE.UTF-8", "PYTHONHASHSEED": "7", "HOME": "/"}.items():
            surroundings.setenv(name, value)
        made.append(FullPython(128))
    yield made
    for each in made:
        each.close()


@pytest.mark.parametrize("source", [*SAME, *NUMPY])
def test_chance_time_and_place_are_the_same_for_every_call(
    zygotes: list[FullPython], metric: Write, source: str
) -> None:
    if source in NUMPY:
        pytest.importorskip("numpy")
    code = metric({**SAME, **NUMPY}[source], "return {'r': r}")
    found = [numbers(each, code)["r"] for each in (*zygotes, *zygotes)]
    assert len(set(found)) == 1


@pytest.mark.parametrize("source", ["time", "time_ns", "monotonic", "gmtime", "localtime", "sleep", "now", "now there"])
def test_there_is_one_moment(kept: FullPython, metric: Write, source: str) -> None:
    assert numbers(kept, metric(SAME[source], "return {'r': r}")) == {"r": FROZEN}


@pytest.mark.parametrize("source", CLOCKS)
def test_every_clock_shows_the_fixed_time(kept: FullPython, metric: Write, source: str) -> None:
    code, year = CLOCKS[source]
    if "numpy" in source:
        pytest.importorskip("numpy")
    assert numbers(kept, metric(code, "return {'r': r}")) == {"r": year}


@pytest.mark.parametrize("source", ["uuid.getnode()", "uuid.uuid1().int % 2**50", "uuid.uuid1().clock_seq"])
def test_ids_made_of_time_and_place_are_the_same_for_every_call(kept: FullPython, metric: Write, source: str) -> None:
    code = metric("import uuid", f"return {{'r': {source}}}")
    # Chance alone makes a few of them equal, and never so many.
    assert len({numbers(kept, code)["r"] for _ in range(6)}) == 1


@pytest.mark.parametrize(
    "claim",
    [
        "isinstance(dt.datetime(2001, 1, 1) + dt.timedelta(1), dt.datetime)",
        "isinstance(dt.datetime.fromisoformat('2001-01-01'), dt.datetime)",
        "dt.datetime(2001, 1, 1) < dt.datetime.now(dt.timezone.utc).replace(tzinfo=None) + dt.timedelta(9999)",
        "dt.date(2001, 1, 1) - dt.date.today() == dt.timedelta(366)",
        "copy.deepcopy(dt.datetime.now()) == dt.datetime(2000, 1, 1)",
        "isinstance(dt.datetime(2001, 1, 1), dt.date)",
        "isinstance(dt.datetime(2001, 1, 1).date(), dt.date)",
        "issubclass(dt.datetime, dt.date)",
        "repr(dt.datetime(2000, 1, 1)) == 'datetime.datetime(2000, 1, 1, 0, 0)'",
        "repr(dt.date(2000, 1, 1)) == 'datetime.date(2000, 1, 1)'",
        "not isinstance(dt.date(2000, 1, 1), dt.datetime)",
        "not isinstance(dt.datetime(2000, 1, 1), type('Mine', (dt.datetime,), {}))",
        "dt.datetime.strptime('2001-02-03', '%Y-%m-%d').day == 3",
        "time.strptime('2001', '%Y').tm_year == 2001",
        "time.strftime('%Y', time.gmtime(0)) == '1970'",
    ],
)
def test_dates_are_as_everywhere(kept: FullPython, metric: Write, claim: str) -> None:
    code = metric("import copy, time, datetime as dt", f"return {{'holds': int({claim})}}")
    assert numbers(kept, code) == {"holds": 1}


# Memory.


@pytest.mark.parametrize("limit_mb", [64, 200])
def test_memory_ends_where_the_limit_is(full: Sandbox, metric: Write, limit_mb: int) -> None:
    with Sandbox("python-full", limit_mb, max_workers=1) as box:
        half = metric(f"return {{'a': len(bytearray({limit_mb // 2} * 2**20))}}")
        twice = metric(f"return {{'a': len(bytearray({limit_mb * 2} * 2**20))}}")
        grown = metric("kept = []", "while True: kept.append(bytearray(2**20))")
        assert box.execute_sync(half, {}, LONG_MS) == {"metrics": {"a": limit_mb // 2 * 2**20}}
        for code in (twice, grown):
            assert box.execute_sync(code, {}, LONG_MS).failure is Failure.MEMORY
        assert box.execute_sync(half, {}, LONG_MS).failure is None


# Processes: ended, stopped, never started.


def gone(process_id: int) -> bool:
    """Whether nobody runs under that number any more; the dead that wait for burial do not run."""
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def awaited(condition: Callable[[], bool]) -> bool:
    """Whether it comes true before patience ends."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def test_closing_ends_the_zygote_and_its_child(full: Sandbox, metric: Write) -> None:
    made = Jail(64)
    numbers(made, metric("return {'a': 1}"))
    made.renew()
    children = Path(f"/proc/{made._zygote.pid}/task/{made._zygote.pid}/children")
    (child,) = map(int, children.read_text().split()[-1:]) if children.exists() else (made._zygote.pid,)
    made.close()
    made.close()
    assert gone(made._zygote.pid)
    assert awaited(lambda: gone(child))
    with pytest.raises(SandboxError) as raised:
        made.run("", CONTEXT, LONG_MS)
    assert raised.value.failure is Failure.SANDBOX_UNAVAILABLE


def test_a_call_that_is_too_late_leaves_no_process_behind(own: Jail, metric: Write) -> None:
    with pytest.raises(SandboxError, match="50 ms"):
        own.run(metric("while True: pass"), CONTEXT, 50)
    own.renew()
    assert numbers(own, metric("return {'a': 1}")) == {"a": 1}
    children = Path(f"/proc/{own._zygote.pid}/task/{own._zygote.pid}/children")
    if children.exists():
        spares = jail.SPARES
        assert awaited(lambda: len([one for one in children.read_text().split() if not gone(int(one))]) == spares)


def test_a_zygote_that_does_not_end_by_itself_is_killed(full: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jail, "ENDING_S", 0.01)
    made = Jail(64)
    made._zygote.send_signal(signal.SIGSTOP)
    made.close()
    assert made._zygote.returncode == -signal.SIGKILL


def test_a_zygote_that_says_nothing_is_not_waited_for_without_end(own: Jail) -> None:
    assert own._receive_control(0.01) == b""


def test_a_jail_that_cannot_fork_leaves_no_process(full: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Jail] = []

    def refuse(self: Jail) -> None:
        made.append(self)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Jail, "_fork", refuse)
    with pytest.raises(SandboxError) as raised:
        Jail(64)
    assert raised.value.failure is Failure.SANDBOX_UNAVAILABLE
    assert made[0]._zygote.returncode is not None
    assert made[0]._control.fileno() == -1


def test_a_line_that_breaks_is_silence(own: Jail, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def settimeout(self, _seconds: float) -> None:
            """As every socket can."""

        def recv(self, _size: int) -> bytes:
            raise ConnectionResetError

    with monkeypatch.context() as patch:
        patch.setattr(own, "_control", Broken())
        assert own._receive_control(0.01) == b""


@pytest.fixture
def jails(monkeypatch: pytest.MonkeyPatch) -> list[Jail]:
    """All jails that are made while a test runs."""
    made: list[Jail] = []

    class Remembered(Jail):
        def __init__(self, memory_limit_mb: int, language: str = "python") -> None:
            super().__init__(memory_limit_mb, language)
            made.append(self)

    monkeypatch.setattr(jail, "Jail", Remembered)
    return made


def test_a_zygote_killed_while_code_runs_costs_that_call_only(full: Sandbox, metric: Write, jails: list[Jail]) -> None:
    with Sandbox("python-full", 64, max_workers=1) as box:
        assert box.execute_sync(metric("return {'a': 1}"), {}, LONG_MS).failure is None
        (first,) = jails
        killer = threading.Timer(0.3, first._zygote.kill)
        killer.start()
        found = box.execute_sync(metric("while True: pass"), {}, LONG_MS)
        killer.join()
        assert found.failure is Failure.SANDBOX_UNAVAILABLE
        assert "from outside" in found.message
        assert box.execute_sync(metric("return {'a': 2}"), {}, LONG_MS) == {"metrics": {"a": 2}}
        assert len(jails) == 2


def test_a_zygote_killed_while_idle_costs_one_call_at_most(full: Sandbox, metric: Write, jails: list[Jail]) -> None:
    with Sandbox("python-full", 64, max_workers=1) as box:
        box.execute_sync(metric("return {'a': 1}"), {}, LONG_MS)
        jails[0]._zygote.kill()
        jails[0]._zygote.wait(PATIENCE_S)
        box.execute_sync(metric("return {'a': 2}"), {}, LONG_MS)
        assert box.execute_sync(metric("return {'a': 3}"), {}, LONG_MS) == {"metrics": {"a": 3}}


def test_a_dead_zygote_makes_no_child(own: Jail) -> None:
    own._zygote.kill()
    own._zygote.wait(PATIENCE_S)

    def refuses() -> bool:
        try:
            own.renew()
        except OSError:
            return True
        return False

    # The line is dead once the zygote's child, which dies with it, has let go of it too.
    assert awaited(refuses)


@pytest.mark.parametrize(
    ("status", "expected", "why"),
    [
        (b"24", Failure.TIMEOUT, "processor time"),
        (b"11", Failure.CRASHED, "signal 11"),
        (b"9", Failure.CRASHED, "signal 9"),
        (b"0", Failure.CRASHED, "without an"),
        (b"768", Failure.CRASHED, "without an"),
        (b"", Failure.SANDBOX_UNAVAILABLE, "from outside"),
    ],
)
def test_the_kernel_says_how_a_child_ended(
    own: Jail, monkeypatch: pytest.MonkeyPatch, status: bytes, expected: Failure, why: str
) -> None:
    monkeypatch.setattr(own, "_receive_control", lambda _patience_s: status)
    found = own._explain_exit()
    assert found.failure is expected
    assert why in str(found)


def test_patience_that_has_run_out_is_not_started_again() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"late")
        with pytest.raises(TimeoutError):
            jail._receive(ours, 4, time.monotonic() - 1)
        assert jail._receive(ours, 4, time.monotonic() + PATIENCE_S) == b"late"
        assert jail._receive(ours, 0, 0) == b""


# Jails that cannot be built.


def refused() -> str:
    with pytest.raises(SandboxError) as raised:
        Jail(64)
    assert raised.value.failure is Failure.SANDBOX_UNAVAILABLE
    return str(raised.value)


def instead_of_python(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Something else is started in the zygote's place; `control` is its end of the line."""
    program = folder / "program.py"
    program.write_text(
        "import re, socket, sys\n"
        "control = socket.socket(fileno=int(re.search(r'main\\((\\d+)', sys.argv[-1])[1]))\n" + script
    )
    starter = folder / "python"
    starter.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{program}" "$@"\n')
    starter.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(starter))


def test_a_zygote_that_ends_while_loading_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    instead_of_python(monkeypatch, tmp_path, "sys.exit(3)")
    assert "while loading" in refused()


def test_a_zygote_that_refuses_gives_its_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    instead_of_python(monkeypatch, tmp_path, "control.send(b'refused ConfinementError: one\\nline')")
    assert refused().endswith(": ConfinementError: one line")


def test_a_silent_zygote_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    instead_of_python(monkeypatch, tmp_path, "import time; time.sleep(600)")
    monkeypatch.setattr(jail, "START_S", 0.2)
    monkeypatch.setattr(jail, "ENDING_S", 0.01)
    assert "while loading" in refused()


def test_a_missing_interpreter_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "absent"))
    assert "cannot be" in refused()


def test_the_real_zygote_refuses_when_a_wall_does_not_stand() -> None:
    with pytest.MonkeyPatch.context() as patch:
        popen = subprocess.Popen

        def hindered(command: list[str], **options: object) -> object:
            code = "from meruit.sandbox import confine\nconfine.landlock_version = lambda: 1 / 0\n"
            patched = command[-1].replace("from meruit.sandbox.zygote", f"\n{code}from meruit.sandbox.zygote")
            # Any: the options are passed on as they came.
            return popen([*command[:-1], patched], **options)  # type: ignore[call-overload]

        patch.setattr(subprocess, "Popen", hindered)
        assert refused().endswith("by zero")


def test_a_machine_without_walls_has_no_jail(monkeypatch: pytest.MonkeyPatch) -> None:
    confine.machine.cache_clear()
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    try:
        assert "riscv64" in refused()
    finally:
        confine.machine.cache_clear()


def test_a_refusal_is_the_result_of_every_call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, metric: Write) -> None:
    instead_of_python(monkeypatch, tmp_path, "control.send(b'refused no wall')")
    with Sandbox("python-full", 48, max_workers=1) as box:
        for _ in range(2):
            found = box.execute_sync(metric("return {'a': 1}"), {})
            assert (found.failure, found) == (Failure.SANDBOX_UNAVAILABLE, {})
            assert found.message.endswith(": no wall")


def test_the_engine_is_named_with_its_version() -> None:
    assert jail.engine().startswith(f"CPython {platform.python_version()}")


def test_only_folders_of_what_is_installed_are_preloaded() -> None:
    (folder,) = jail._install_folders("pydantic", "no_such_module_at_all", "orjson")
    assert (Path(folder) / "pydantic").is_dir()
    assert Path(folder).is_absolute()
