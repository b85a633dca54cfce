"""Several workers on one Postgres queue, of which some die, sleep, or are told too little."""

import asyncio
import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from tests.faults.gate_crew import PACE, PATIENCE_S, Client, Nursery, alive, open_with_its_key, until
from tests.faults.gate_worker import Effects, agents

from meruit.errors import StoreUnavailable, WorkerRefused
from meruit.gate.run import RunState
from meruit.gate.runner.engine import AgentRoster
from meruit.gate.runner.polling import PollingIntervals
from meruit.gate.runner.worker import run_worker
from meruit.gate.store import read as agent_reading
from meruit.gate.store.read import DueRun, RecordHeartbeat
from meruit.gate.store.runs import ClaimRun
from meruit.model.events import EventType


@pytest.fixture
def client(tmp_path: Path, process: Nursery, database: str) -> Iterator[Client]:
    """Somebody who asks for runs."""
    store = open_with_its_key(tmp_path, database)
    client = Client(store, f"tenant-{secrets.token_hex(4)}")
    yield client
    process.clear()
    client.end_all()
    store.close()


@pytest.mark.parametrize(("workers", "runs"), [(2, 10), (4, 18)])
def test_each_task_completes_once_though_a_worker_is_killed(
    client: Client, process: Nursery, workers: int, runs: int
) -> None:
    names = [f"run-{number}" for number in range(runs)]
    client.queue(*names)
    with client.held():
        started = {process.start(client.store) for _ in range(workers)}
        until(lambda: set.union(*map(client.verifying, names)) == started, f"each is verifying: {client.news()}")
        victim = max(started)
        theirs = {name for name in names if victim in client.verifying(name)}
        os.kill(victim, signal.SIGKILL)
        begun = {name for name in names if f"-{victim}-" in (client.owner(name)[1] or "")}
    client.wait_all()
    told = client.events()
    for name in names:
        run = client.run(name)
        assert (run.result, run.verification.attempts_used) == ({"n": 2}, 1)
        once = [EventType.AGENT_RUN_QUEUED, EventType.AGENT_RUN_STARTED, EventType.AGENT_RUN_COMPLETED]
        once += [EventType.VERIFICATION_REJECTED, EventType.VERIFICATION_ATTEMPT_COUNTED, EventType.VERIFICATION_PASSED]
        assert [told[name, kind] for kind in once] == [1] * len(once)
        assert told[name, EventType.VERIFICATION_STARTED] == 2
    # A verifier is asked again only of what the dead had begun, and under the same submission id.
    until(lambda: not _pending(client, victim), "DBOS no longer counts what the dead had")
    again = {submission.split(":")[0] for submission, times in client.effects().items() if times > 1}
    assert theirs <= again <= begun


def _pending(client: Client, pid: int) -> int | None:
    query = text("SELECT count(*) FROM meruit_dbos.workflow_status WHERE status = 'PENDING' AND executor_id LIKE :some")
    with client.store.database.reading() as connection:
        return connection.execute(query, {"some": f"%-{pid}-%"}).scalar()


def test_a_worker_that_wakes_after_its_run_was_taken_over_changes_nothing(client: Client, process: Nursery) -> None:
    client.queue("one")
    sleeper = process.start(client.store)
    with client.held():
        until(lambda: client.verifying("one"), "it is being verified")
        os.kill(sleeper, signal.SIGSTOP)
        other = process.start(client.store)
        until(lambda: other in client.verifying("one"), f"the other has it: {client.news()}")
    taken = client.wait("one", RunState.COMPLETED)
    os.kill(other, signal.SIGKILL)
    os.kill(sleeper, signal.SIGCONT)
    # It lives on, and works on.
    client.queue("two")
    client.wait("two", RunState.COMPLETED)
    assert sleeper in client.verifying("two")
    assert client.run("one") == taken
    assert taken.verification.attempts_used == 1
    assert client.events()["one", EventType.AGENT_RUN_COMPLETED] == 1
    assert client.events()["one", EventType.VERIFICATION_PASSED] == 1


def test_all_workers_together_keep_to_a_total(client: Client, process: Nursery) -> None:
    client.queue(*(f"run-{number}" for number in range(90)))
    with client.held():
        for _ in range(2):
            process.start(client.store, concurrency=2, total=3)
        until(lambda: _running(client) == 3, f"three run: {client.news()}")
        for _ in range(10):
            assert _running(client) <= 3
            time.sleep(0.02)
        with client.store.database.reading() as connection:
            query = text(
                "SELECT count(DISTINCT split_part(workflow_uuid, ':', 3)) FROM meruit_dbos.workflow_status "
                "WHERE workflow_uuid LIKE :some"
            )
            queued = connection.execute(query, {"some": f"%:{client.tenant}:%"}).scalar()
        assert queued is not None
        assert 3 <= queued <= 64 + 3


def _running(client: Client) -> int:
    return [run.status for run in client.runs()].count(RunState.RUNNING)


def test_a_process_that_already_uses_dbos_is_refused(client: Client, process: Nursery) -> None:
    worker = process.start(client.store, host=True)
    until(lambda: not alive(worker), "it has ended")
    assert "WorkerRefused" in client.news()


class Said:
    """A worker in this process, and what it says."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.lines: list[str] = []

    async def work(self, stopping: asyncio.Event | None = None, only: str | None = None) -> str:
        """Until there is nothing to do, or it is told to stop."""
        await run_worker(
            self.client.store,
            AgentRoster(agents()),
            deps=Effects(self.client.store.database.location.folder),
            stopping=stopping,
            until_idle=stopping is None,
            watch=lambda run, text: self.lines.append(f"{run} {text}"),
            pace=PollingIntervals(*PACE),
            only=only,
        )
        # The loop has threads of its own again.
        return await asyncio.to_thread(str, "still there")


def test_one_process_may_work_twice_each_time_on_a_loop_of_its_own(client: Client) -> None:
    said = Said(client)
    for name in ("one", "two"):
        client.queue(name)
        assert asyncio.run(said.work()) == "still there"
        assert client.run(name).status is RunState.COMPLETED
        assert f"{name} turn 2: verify, attempt 2" in said.lines
        assert f"{name} completed" in said.lines
    with client.store.database.reading() as connection:
        assert not [one.id for one in agent_reading.live_workers(connection, 0) if f"-{os.getpid()}-" in one.id]


def test_who_works_for_one_run_leaves_the_others_to_the_workers(client: Client) -> None:
    client.queue("one", "other", "left")
    for name in ("one", "left"):
        client.store.recorder.write(ClaimRun(client.tenant, name, f"owner of {name}", "dead"))
    asyncio.run(Said(client).work(only="one"))
    assert client.run("one").status is RunState.COMPLETED
    assert (client.run("other").status, client.owner("left")) == (RunState.QUEUED, ("owner of left", "dead"))


OUTAGE = """Exception encountered in queue thread for q: (psycopg.errors.AdminShutdown) terminating connection
(Background on this error at: https://sqlalche.me/e/20/e3q8)"""


def test_a_database_that_is_away_fills_no_log(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from meruit.gate.runner.dbos import DbosEngine

    see, failing = DbosEngine._read_store, iter([True] * 3)

    def seldom(engine: DbosEngine) -> Any:
        if next(failing, False):
            logging.getLogger("dbos").warning(OUTAGE)
            logging.getLogger("dbos").warning("a rule is broken\nand this is its long story")
            logging.getLogger("sqlalchemy.pool.impl.QueuePool").error("Exception terminating connection")
            raise StoreUnavailable("nobody answers")
        return see(engine)

    monkeypatch.setattr(DbosEngine, "_read_store", seldom)
    client.queue("one")
    said = Said(client)
    asyncio.run(said.work())
    told = [line.split(" ", 1)[1] for line in said.lines if not line.startswith("one ")]
    assert ["nobody answers" in line for line in told if "database" in line] == [True, False]
    assert "a rule is broken" in told
    assert not [line for line in told if "\n" in line or "psycopg" in line]
    assert not [one for one in caplog.records if one.name.startswith("sqlalchemy")]
    assert client.run("one").status is RunState.COMPLETED


def test_what_dead_workers_left_is_driven_on_and_what_is_over_is_forgotten(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from meruit.gate.runner import dbos as dbos_engine

    monkeypatch.setattr(dbos_engine, "DONE_FOR_S", 0.0)
    monkeypatch.setattr(dbos_engine, "FORGET_AFTER", 0)
    client.queue("one", "two")
    client.store.recorder.write(RecordHeartbeat("dead", ("writer",), 0.0))
    client.store.recorder.write(ClaimRun(client.tenant, "one", "theirs", "dead"))
    said = Said(client)

    def swept() -> bool:
        if not all(run.status is RunState.COMPLETED for run in client.runs()):
            return False
        with client.store.database.reading() as connection:
            query = text("SELECT count(*) FROM meruit_dbos.workflow_status WHERE workflow_uuid LIKE :some")
            kept = connection.execute(query, {"some": f"%:{client.tenant}:%"}).scalar()
            dead = [one for one in agent_reading.live_workers(connection, 0) if one.id == "dead"]
        return not kept and not dead

    async def served() -> None:
        stopping = asyncio.Event()
        working = asyncio.create_task(said.work(stopping))
        until_then = time.monotonic() + PATIENCE_S
        while not swept():
            assert time.monotonic() < until_then, said.lines
            await asyncio.sleep(0.05)
        stopping.set()
        await working

    asyncio.run(served())


def test_a_run_that_could_not_be_enqueued_is_enqueued_by_the_next_poll(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dbos import DBOS

    put, failures = DBOS.enqueue_workflow_with_options_async, iter([True])

    async def seldom(*options: Any) -> Any:
        if next(failures, False):
            DBOS.logger.warning("queue away")
            raise ConnectionError("nobody answers")
        return await put(*options)

    monkeypatch.setattr(DBOS, "enqueue_workflow_with_options_async", seldom)
    client.queue("one")
    said = Said(client)
    asyncio.run(said.work())
    assert client.run("one").status is RunState.COMPLETED
    assert any(line.startswith("one ") and line.endswith(": nobody answers") for line in said.lines)
    assert any(line.endswith(" queue away") for line in said.lines)


def test_what_is_taken_from_the_queue_too_late_is_given_back_at_once(client: Client) -> None:
    from meruit.gate.runner.dbos import DbosEngine

    client.queue("one")
    queued = client.run("one")

    async def stopped() -> None:
        engine = DbosEngine(client.store, AgentRoster(agents()))
        await engine.close()
        await engine.drive(DueRun(client.tenant, "one", "writer"))

    asyncio.run(stopped())
    given_back = client.run("one")
    assert (given_back.status, given_back.takeovers) == (RunState.QUEUED, 0)
    # By that, every worker knows it for another taking-up.
    assert given_back.wake_at != queued.wake_at


def test_a_dbos_that_cannot_start_is_reported_with_its_database(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dbos import DBOS

    def refused() -> None:
        raise PermissionError("permission denied to make a schema")

    monkeypatch.setattr(DBOS, "launch", refused)
    with pytest.raises(WorkerRefused, match=r"postgresql://.*permission denied"):
        asyncio.run(Said(client).work())


def test_a_missing_or_old_dbos_is_refused_with_what_to_install(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda _name: "3.2.9")
    with pytest.raises(WorkerRefused, match=r"3\.2\.9.*meruit\[cluster\]"):
        asyncio.run(run_worker(client.store, AgentRoster(agents())))
    monkeypatch.delitem(sys.modules, "meruit.gate.runner.dbos", raising=False)
    monkeypatch.setitem(sys.modules, "dbos", None)
    with pytest.raises(WorkerRefused, match=r"meruit\[cluster\]"):
        asyncio.run(run_worker(client.store, AgentRoster(agents())))


def test_each_holding_of_a_run_that_was_lost_is_put_into_the_queue_once(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from meruit.gate.runner.dbos import DbosEngine

    put: list[str] = []

    async def put_in(_engine: DbosEngine, _due: DueRun, workflow_id: str, _priority: int) -> None:
        put.append(workflow_id)

    monkeypatch.setattr(DbosEngine, "_enqueue_workflow", put_in)
    client.queue("one")
    engine = DbosEngine(client.store, AgentRoster(agents()))
    # The same worker falls silent twice, and has the run again in between.
    for owner in ("first", "second"):
        client.store.recorder.write(ClaimRun(client.tenant, "one", owner, "silent", takeover=True))
        for _ in range(2):
            asyncio.run(engine._reap())
    mine = [one for one in put if f":{client.tenant}:one:" in one]
    assert (len(mine), len(set(mine))) == (4, 2)
