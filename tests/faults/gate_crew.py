"""Starts workers that a test may kill, and reads what became of the runs that they had."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import text
from tests.faults.gate_worker import agents
from tests.faults.started import ROOT

from meruit.events.store import outbox
from meruit.gate.run import AgentRun, RunRequest, RunState
from meruit.gate.store import read as agent_reading
from meruit.gate.store.runs import CancelRun, EndRun, QueueRun
from meruit.store.location import KEY_FILE, Location
from meruit.store.store import Store

PATIENCE_S = 60.0
"""For a loaded machine; nothing here takes a tenth of it on one that is not."""
LIMITS = {agent.name: agent.limits() for agent in agents()}
PACE = [0.05, 0.2, 1.5, 0.3]


_keys: dict[str, bytes] = {}
"""The key that signs each database's log."""


def open_with_its_key(folder: Path, url: str | None) -> Store:
    """A store in a new folder; for a database that had one before, with the key that its log admits."""
    if url in _keys:
        (folder / KEY_FILE).write_bytes(_keys[url])
    store = Store.open(Location(folder, url))
    if url is not None:
        _keys[url] = (folder / KEY_FILE).read_bytes()
    return store


class Nursery:
    """One process that has imported everything, and the workers that are forks of it."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.gate_worker"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, store: Store, *names: str, concurrency: int = 4, **chosen: Any) -> int:
        """A worker of a store that knows these agents; answers its process id."""
        location = store.database.location
        order = {"folder": str(location.folder), "url": location.url, "agents": names or [*LIMITS], "pace": PACE}
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({**order, "concurrency": concurrency, **chosen}) + "\n")
        stdin.flush()
        self.pids.append(int(stdout.readline()))
        return self.pids[-1]

    def clear(self) -> None:
        """End what a test has started."""
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not any(map(alive, self.pids)), "the workers are gone")
        self.pids.clear()

    def close(self) -> None:
        """End it all."""
        self.clear()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def nursery() -> Iterator[Nursery]:
    """For as long as a module's tests need it."""
    made = Nursery()
    try:
        yield made
    finally:
        made.close()


def alive(pid: int) -> bool:
    """Whether a process is there."""
    return Path(f"/proc/{pid}").exists()


def until(holds: Callable[[], Any], what: str) -> None:
    """Wait for something that must come true."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, f"not within {PATIENCE_S:g} s: {what}"
        time.sleep(0.02)


class Client(NamedTuple):
    """Whoever asks for runs: a process that needs no engine."""

    store: Store
    tenant: str = "acme"

    def queue(self, *ids: str, agent: str = "writer", max_seconds: float | None = None) -> None:
        """Ask for runs."""
        for one in ids:
            request = RunRequest("go", max_seconds=max_seconds)
            self.store.recorder.write(QueueRun(self.tenant, "me", one, agent, request, LIMITS[agent]))

    def run(self, run_id: str) -> AgentRun:
        """A run as it stands."""
        with self.store.database.reading() as connection:
            return agent_reading.find(connection, self.tenant, run_id)

    def runs(self) -> list[AgentRun]:
        """All of them, the first one first."""
        with self.store.database.reading() as connection:
            return agent_reading.page(connection, self.tenant, limit=1_000)[::-1]

    def wait(self, run_id: str, *states: RunState) -> AgentRun:
        """A run as soon as it is in one of these states."""
        until(lambda: self.run(run_id).status in states, f"{run_id} is {' or '.join(states)}: {self.news()}")
        return self.run(run_id)

    def wait_all(self, state: RunState = RunState.COMPLETED) -> None:
        """Until every run is in that state."""
        until(lambda: all(run.status is state for run in self.runs()), f"all are {state}: {self.news()}")

    def owner(self, run_id: str) -> tuple[str | None, str | None]:
        """The token that writes must show, and the worker that has it."""
        with self.store.database.reading() as connection:
            query = text("SELECT owner, worker FROM agent_runs WHERE tenant = :tenant AND id = :id")
            row = connection.execute(query, {"tenant": self.tenant, "id": run_id}).one()
        return row.owner, row.worker

    def events(self) -> Counter[tuple[str, str]]:
        """What others were told, by run."""
        with self.store.database.reading() as connection:
            told = outbox.events_after(connection, 0, tenant=self.tenant, limit=1_000)
        return Counter((one.event.data["run_id"], one.event.event_type) for one in told)

    def effects(self) -> Counter[str]:
        """How often each submission was verified."""
        return Counter(line.split()[1] for line in self._lines("effects"))

    def verifying(self, run_id: str) -> set[int]:
        """The processes that have begun to verify the second candidate of a run, the one that may be held up."""
        return {int(line.split()[0]) for line in self._lines("effects") if line.split()[1].startswith(f"{run_id}:2:")}

    def end_all(self) -> None:
        """Leave nothing that the next test's workers would find."""
        for run in self.runs():
            owner = self.owner(run.id)[0]
            end = EndRun(self.tenant, run.id, owner or "", RunState.CANCELLED)
            self.store.recorder.write(CancelRun(self.tenant, run.id) if owner is None else end)

    def news(self) -> str:
        """The last that workers said, for whoever reads a failure."""
        return "\n".join([*self._lines("news")[-20:], *self._lines("log")[-20:]])

    @contextmanager
    def held(self) -> Iterator[None]:
        """Verifiers of what would pass wait meanwhile."""
        hold = self.store.database.location.folder / "hold"
        hold.touch()
        try:
            yield
        finally:
            hold.unlink(missing_ok=True)

    def _lines(self, name: str) -> list[str]:
        file = self.store.database.location.folder / name
        return file.read_text().splitlines() if file.exists() else []
