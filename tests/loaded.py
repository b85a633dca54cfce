"""A process that has loaded Meruit and forks for each caller of `at_hand`; a program of its own."""

import gc
import marshal
import os
import select
import socket
import sys
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

import meruit.cli
from meruit.cli import COMMANDS, IN_PACKAGES

LATER = ("alembic.config", "meruit.api.app", "meruit.contracts.client", "sqlalchemy.dialects.sqlite")
"""What commands load only when they run; one that is not named here is loaded then, as ever."""


def main() -> None:
    """Serve until our input ends."""
    for name in COMMANDS:
        module, _ = IN_PACKAGES.get(name, (f"commands.{name}", name))
        import_module(f"meruit.cli.{module}")
    for name in LATER:
        import_module(name)
    # What is never collected is not copied either.
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
    """Let a command run for the caller, and tell how it ended."""
    _, streams, _, _ = socket.recv_fds(line, 1, 3)
    with line.makefile("rb") as said:
        arguments, folder, environment = marshal.loads(said.read())
    process = os.fork()
    if process == 0:
        line.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["meruit", *arguments]
        meruit.cli.main()
    for stream in streams:
        os.close(stream)
    line.sendall(b"%d\n" % process)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    line.sendall(b"%d\n" % (code if code >= 0 else 128 - code))
    os._exit(0)


if __name__ == "__main__":
    main()
