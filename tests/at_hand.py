"""The command `meruit` for shells, forked from a process that has loaded it: Python alone takes most of a second to.

Each is still a process of its own, with the arguments, folder, environment and streams that the shell gives it, and is
sent the signals that the shell sends.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

LOADED = Path(__file__).with_name("loaded.py")
# Reached by its name alone: where a socket may be is limited to a hundred characters.
CALLER = """#!{python} -IS
import marshal, os, signal, socket, sys
asked = marshal.dumps((sys.argv[1:], os.getcwd(), dict(os.environ)))
os.chdir({folder!r})
line = socket.socket(socket.AF_UNIX)
line.connect("line")
socket.send_fds(line, [b"-"], [0, 1, 2])
line.sendall(asked)
line.shutdown(socket.SHUT_WR)
told = line.makefile()
process = int(told.readline())
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: os.kill(process, number))
sys.exit(int(told.readline()))
"""


@pytest.fixture(scope="session")
def meruit_at_hand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a program `meruit`, to be looked in before all others."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "meruit"
    program.write_text(CALLER.format(python=sys.executable, folder=str(folder)))
    program.chmod(0o700)
    # It ends when we do, however we end: its input does then.
    with subprocess.Popen(
        [sys.executable, "-P", str(LOADED)], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield folder
        process.communicate(timeout=300)
