"""Workers start on any descriptor numbers of their host. Each host here is a process of its own."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meruit.sandbox import jail
from meruit.sandbox.jail import Jail
from meruit.sandbox.sandbox import Sandbox
from meruit.sandbox.zygote import CHANNEL, CONTROL

LOWEST, HIGHEST = 3, 1_100
ROOM = HIGHEST + 100
"""The lowest descriptor of the host's own files, above all numbers that are tested."""
PATIENCE_S = 120

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the jail is Linux's"),
    pytest.mark.skipif(
        0 <= resource.getrlimit(resource.RLIMIT_NOFILE)[1] < ROOM + 10, reason="a process may not have so many files"
    ),
]

BEFORE = f"""
import fcntl, json, os, resource, socket, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard if 0 <= hard < 4_096 else 4_096, hard))
answers = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, {ROOM})

def report(found):
    os.write(answers, json.dumps(found).encode())
"""


# Any: the JSON that the process reports.
def report_of(script: str, *arguments: object) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", BEFORE + script, *map(str, arguments)],
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


MOVED = """
from meruit.sandbox.zygote import move_descriptor
target, lowest, highest = map(int, sys.argv[1:])
wrong = []
for number in range(lowest, highest + 1):
    for inheritable in (False, True):
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours = fcntl.fcntl(ends[0], fcntl.F_DUPFD_CLOEXEC, answers)
        theirs = fcntl.fcntl(ends[1], fcntl.F_DUPFD_CLOEXEC, answers)
        for end in ends:
            end.close()
        os.set_blocking(ours, False)
        os.dup2(theirs, number)
        os.set_inheritable(number, inheritable)
        os.close(theirs)
        try:
            move_descriptor(number, target)
            os.write(ours, b"heard")
            assert os.read(target, 5) == b"heard", "another line is there"
            assert not os.get_inheritable(target), "a program that is executed would have it"
            os.close(target)
            assert os.read(ours, 1) == b"", "the old number is open"
        except (AssertionError, OSError) as problem:
            wrong.append([number, inheritable, str(problem)])
        os.close(ours)
report(wrong)
"""


@pytest.mark.parametrize("target", [CONTROL, CHANNEL])
def test_a_descriptor_moves_from_every_number(target: int) -> None:
    assert report_of(MOVED, target, LOWEST, HIGHEST) == []


HOST = """
from pathlib import Path
from meruit.errors import SandboxError
from meruit.sandbox.jail import Jail
number = int(sys.argv[1])
nothing = os.open(os.devnull, os.O_RDWR)
while os.dup(nothing) < number:
    pass
# The jail's line takes the two lowest numbers that are free.
os.closerange(number - 1, number + 1)
try:
    made = Jail(64)
    started = Path(f"/proc/{made._zygote.pid}/cmdline").read_bytes()
    code = "def metric(input, output, metadata):\\n    return {'a': 1}\\n"
    found = []
    for _ in range(2):
        found.append(made.run(code, b'{"input":{},"output":{},"metadata":{}}', 60_000))
        made.renew()
    report([f"main({number},".encode() in started, made._control.fileno(), *found])
    made.close()
except SandboxError as failed:
    report(str(failed))
"""


@pytest.mark.parametrize("number", [3, 199, 200, 201, 1023, 1024, 1100])
def test_a_jail_starts_on_any_control_descriptor(full: Sandbox, number: int) -> None:
    assert report_of(HOST, number) == [True, number - 1, {"a": 1}, {"a": 1}]


LIMITED = """
from meruit.sandbox.jail import Jail
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
made = Jail(64)
code = "def metric(input, output, metadata):\\n    return {'a': 1}\\n"
report(made.run(code, b'{"input":{},"output":{},"metadata":{}}', 60_000))
made.close()
"""


@pytest.mark.parametrize("limit", [32, 100, 200, 201])
def test_a_jail_starts_where_few_descriptors_are_allowed(full: Sandbox, limit: int) -> None:
    assert report_of(LIMITED, limit) == {"a": 1}


@pytest.mark.parametrize("number", [1, 2])
def test_a_jail_starts_when_a_standard_stream_is_closed(full: Sandbox, number: int) -> None:
    assert report_of(HOST, number) == [False, number - 1, {"a": 1}, {"a": 1}]


NO_STREAMS = """
from meruit.sandbox.sandbox import Sandbox
tier, *streams = sys.argv[1:]
for stream in streams:
    os.close(int(stream))
code = "size([1].map(x, x))" if tier == "expr" else "def metric(input, output, metadata):\\n    return {'a': 1}\\n"
with Sandbox(tier, 64, max_workers=1) as box:
    found = box.execute_sync(code, {}, 60_000)
    report([found, found.message])
"""


@pytest.mark.parametrize("streams", [(0,), (1,), (2,), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("tier", ["python", "python-full"])
def test_workers_start_without_standard_streams(
    small: Sandbox, full: Sandbox, tier: str, streams: tuple[int, ...]
) -> None:
    assert report_of(NO_STREAMS, tier, *streams)[0] == {"metrics": {"a": 1}}


def test_the_control_socket_avoids_the_standard_streams(full: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jail, "NO_STREAM", 600)
    ours, theirs = jail._control_socket_pair()
    with ours, theirs:
        assert theirs.fileno() >= 600
        assert not theirs.get_inheritable()
        ours.send(b"heard")
        assert theirs.recv(5) == b"heard"
        theirs.close()
        assert ours.recv(1) == b""
    made = Jail(64)
    try:
        (number,) = Path(f"/proc/{made._zygote.pid}/cmdline").read_text().partition("main(")[2].split(",")[:1]
        assert int(number) >= 600
    finally:
        made.close()
