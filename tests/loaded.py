"""A process that has loaded Meruit and forks for each caller of `at_hand`; a program of its own."""

import gc
import marshal
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import meruit.cli
from meruit.cli import COMMANDS, IN_PACKAGES
from meruit.store import migrate as opening

LATER = (
    *("alembic.config", "meruit.api.app", "meruit.api.server", "meruit.contracts.client", "meruit.plugins"),
    *("meruit.testing", "meruit.gate", "meruit.bridges", "sqlalchemy.dialects.sqlite", "uvicorn.protocols.http.auto"),
)
"""What commands and examples load only when they run; one that is not named here is loaded then, as ever."""


def main() -> None:
    """Serve until our input ends."""
    # Not through `tests`: our callers' folders have packages of that name.
    migrating = runpy.run_path(str(Path(__file__).with_name("migrating.py")))
    for name in COMMANDS:
        module, _ = IN_PACKAGES.get(name, (f"commands.{name}", name))
        import_module(f"meruit.cli.{module}")
    for name in LATER:
        import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        opening.upgrade = migrating["upgrade_from_copy"](Path(folder))
    # What is never collected is not copied either.
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("line")
        listener.listen()
        os.write(1, b"ready\n")
        while listener.fileno() in select.select([listener.fileno(), 0], [], [])[0]:
            line, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                answer(line)
            line.close()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def answer(line: socket.socket) -> NoReturn:
    """Let a program run for the caller, and say how it ended; it is killed if the caller goes away first."""
    _, streams, _, _ = socket.recv_fds(line, 1, 3)
    with line.makefile("rb") as said:
        program, arguments, folder, environment = marshal.load(said)
    process = os.fork()
    if process == 0:
        line.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        run(program, arguments)
    for stream in streams:
        os.close(stream)
    line.sendall(b"%d\n" % process)
    ended = os.pidfd_open(process)
    if ended not in select.select([ended, line.fileno()], [], [])[0]:
        os.kill(process, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    with suppress(OSError):
        line.sendall(b"%d\n" % code)
    os._exit(0)


# Any: a program leaves by an exception.
def run(program: str, arguments: list[str]) -> Any:
    """Be `meruit`, or `python` with a file."""
    # A caller in the background may ignore interruptions; a program that is typed does not.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [program, *arguments]
    if program == "meruit":
        meruit.cli.main()
    sys.argv = arguments
    sys.path.insert(0, os.path.realpath(os.path.dirname(arguments[0])))  # noqa: PTH120 - as Python does
    runpy.run_path(arguments[0], run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    main()
