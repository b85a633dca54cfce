"""Workers that a test may kill: one process that has imported everything, and each worker a fork of it.

python -m tests.faults.gate_worker, then on its standard input one line of JSON a worker; it answers the process id.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from meruit.errors import VerificationRejected
from meruit.gate.agent import Agent
from meruit.gate.runner.engine import AgentRoster
from meruit.gate.runner.polling import PollingIntervals
from meruit.gate.runner.worker import run_worker
from meruit.gate.tools import Deferred, Pause
from meruit.store.location import Location
from meruit.store.store import Store
from meruit.testing import ScriptedModel, calls, says, submits

HOLD_S = 0.01


class Effects(NamedTuple):
    """What verifiers do in the world: a line each time one is asked, and a file that holds them up."""

    folder: Path

    def note(self, line: str) -> None:
        """Write it down, whoever else does."""
        with os.fdopen(os.open(self.folder / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT), "wb") as file:
            file.write(f"{os.getpid()} {line}\n".encode())

    @property
    def held(self) -> bool:
        """Whether verifiers are to wait."""
        return (self.folder / "hold").exists()


class Final(BaseModel):
    """What passes."""

    n: int


class Out(BaseModel):
    """A candidate: 1 is too small, whatever else passes."""

    n: int

    async def verify(self, submission_id: str, deps: Effects) -> Final:
        """Says that it was asked, takes its time, and rejects what is too small."""
        deps.note(submission_id)
        if self.n > 1:
            while deps.held:  # noqa: ASYNC110 - the test is another process
                await asyncio.sleep(HOLD_S)
        if self.n == 1:
            raise VerificationRejected("1 is too small")
        return Final(n=self.n)


def ask() -> Deferred:
    """Ask a person."""
    return Deferred("approval")


def nap() -> Pause:
    """Rest a little."""
    return Pause(0.05)


def agents() -> list[Agent]:
    """All that a worker may know."""
    return [
        Agent("writer", "", ScriptedModel([submits(n=1), submits(n=2)]), [], Out),
        Agent("asker", "", ScriptedModel([says("", calls("ask")), submits(n=2)]), [ask], Out),
        Agent("napper", "", ScriptedModel([says("", calls("nap")), submits(n=2)]), [nap], Out),
    ]


async def live(order: dict[str, Any]) -> None:
    """Be one worker until SIGTERM."""
    if order.get("host"):
        from dbos import DBOS

        DBOS(config={"name": "host", "system_database_url": order["url"]})
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    folder = Path(order["folder"])
    store = Store.open(Location(folder, order["url"]))
    try:
        known = [one for one in agents() if one.name in order["agents"]]
        await run_worker(
            store,
            AgentRoster(known),
            concurrency=order["concurrency"],
            total=order.get("total"),
            deps=Effects(folder),
            stopping=stopping,
            until_idle=order.get("until_idle", False),
            pace=PollingIntervals(*order["pace"]),
            watch=_said(folder),
        )
    finally:
        store.close()


def _said(folder: Path) -> Callable[[str, str], None]:
    def watch(run: str, text: str) -> None:
        with (folder / "news").open("a") as file:
            file.write(f"{os.getpid()} {run} {text}\n")

    return watch


def _child(order: dict[str, Any]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(Path(order["folder"]) / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    code = 1
    try:
        asyncio.run(live(order))
        code = 0
    except Exception as problem:  # noqa: BLE001 - the test reads it
        os.write(log, f"{type(problem).__name__}: {problem}\n".encode())
    finally:
        os._exit(code)


def main() -> None:
    """Fork a worker for each line."""
    # Before any fork: it takes longer than all that a test does with a worker.
    import meruit.gate.runner.dbos as _loaded  # noqa: F401

    # Nobody waits for them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _child(json.loads(line))
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
