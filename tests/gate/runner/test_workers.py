"""What holds of workers on either engine: one process on a SQLite file, and one of several on Postgres."""

import os
import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.gate_crew import Client, Nursery, alive, open_with_its_key, until

from meruit.gate.run import AgentRun, RunState
from meruit.gate.store.runs import MAX_TAKEOVERS, CancelRun, ClaimRun, ResumeRun
from meruit.model.events import EventType

ENDS = {EventType.AGENT_RUN_COMPLETED, EventType.AGENT_RUN_FAILED, EventType.AGENT_RUN_CANCELLED}


@pytest.fixture(params=["sqlite", "postgresql"])
def client(request: pytest.FixtureRequest, tmp_path: Path, process: Nursery) -> Iterator[Client]:
    """Somebody who asks for runs."""
    url = request.getfixturevalue("database") if request.param == "postgresql" else None
    store = open_with_its_key(tmp_path, url)
    client = Client(store, f"tenant-{secrets.token_hex(4)}")
    yield client
    process.clear()
    client.end_all()
    store.close()


def ends(client: Client, run_id: str) -> list[str]:
    """How a run ended, as others were told."""
    return [kind for run, kind in client.events().elements() if run == run_id and kind in ENDS]


def test_a_run_is_rejected_revised_and_passed(client: Client, process: Nursery) -> None:
    client.queue("one")
    process.start(client.store)
    run = client.wait("one", RunState.COMPLETED)
    assert run.result == {"n": 2}
    assert run.verification.attempts_used == 1
    assert ends(client, "one") == [EventType.AGENT_RUN_COMPLETED]


def test_a_killed_worker_s_run_is_driven_on_and_nothing_is_counted_twice(client: Client, process: Nursery) -> None:
    client.queue("one")
    first = process.start(client.store)
    with client.held():
        until(lambda: client.verifying("one"), "the second candidate is being verified")
        os.kill(first, signal.SIGKILL)
        until(lambda: not alive(first), "it is dead")
        process.start(client.store)
        until(lambda: len(client.verifying("one")) == 2, f"the next goes on: {client.news()}")
    run = client.wait("one", RunState.COMPLETED)
    assert run.verification.attempts_used == 1
    assert client.effects() == {"one:1:call_1": 1, "one:2:call_1": 2}
    assert client.events()["one", EventType.VERIFICATION_STARTED] == 2
    assert ends(client, "one") == [EventType.AGENT_RUN_COMPLETED]


def test_a_stopping_worker_releases_its_runs_at_once(client: Client, process: Nursery) -> None:
    client.queue("one")
    first = process.start(client.store)
    with client.held():
        until(lambda: client.verifying("one"), "it is being verified")
        os.kill(first, signal.SIGTERM)
        until(lambda: client.run("one").status is RunState.QUEUED, "it is let go of")
        until(lambda: not alive(first), f"the worker has ended: {client.news()}")
    process.start(client.store)
    run = client.wait("one", RunState.COMPLETED)
    assert (run.takeovers, run.verification.attempts_used) == (0, 1)


def test_a_run_cancelled_during_verification_ends(client: Client, process: Nursery) -> None:
    client.queue("one", "two")
    process.start(client.store)
    with client.held():
        until(lambda: client.verifying("one"), "it is being verified")
        client.store.recorder.write(CancelRun(client.tenant, "one"))
        run = client.wait("one", RunState.CANCELLED)
    assert run.verification.attempts_used == 1
    assert ends(client, "one") == [EventType.AGENT_RUN_CANCELLED]
    client.wait("two", RunState.COMPLETED)


def test_what_a_run_waits_for_may_come_after_its_worker_has_died(client: Client, process: Nursery) -> None:
    client.queue("one", agent="asker")
    first = process.start(client.store)
    waiting = client.wait("one", RunState.WAITING)
    os.kill(first, signal.SIGKILL)
    until(lambda: not alive(first), "it is dead")
    assert waiting.waiting_for is not None
    client.store.recorder.write(ResumeRun(client.tenant, "one", waiting.waiting_for, b'"yes"'))
    process.start(client.store)
    run = client.wait("one", RunState.COMPLETED)
    assert run.takeovers == 0
    kinds = client.events()
    assert kinds["one", EventType.AGENT_RUN_WAITING] == kinds["one", EventType.AGENT_RUN_RESUMED] == 1


def test_a_pause_holds_no_worker_and_ends_by_itself(client: Client, process: Nursery) -> None:
    client.queue("one", "two", agent="napper")
    worker = process.start(client.store, concurrency=1, until_idle=True)
    until(lambda: not alive(worker), f"nothing is left to do: {client.news()}")
    assert [run.status for run in client.runs()] == [RunState.COMPLETED] * 2


def test_a_run_past_its_deadline_fails_wherever_it_stands(client: Client, process: Nursery) -> None:
    client.queue("one", max_seconds=0.3)
    with client.held():
        process.start(client.store)
        run = client.wait("one", RunState.FAILED)
    assert run.ending == "deadline"
    assert "0.3 s" in (run.error or "")


def test_a_run_that_kills_its_workers_is_given_up(client: Client, process: Nursery) -> None:
    client.queue("one", "two")

    def died(number: int) -> AgentRun:
        claim = ClaimRun(client.tenant, "one", f"owner-{number}", f"dead-{number}", takeover=True)
        return client.store.recorder.write(claim)

    assert [died(number).takeovers for number in range(MAX_TAKEOVERS)] == [*range(MAX_TAKEOVERS)]
    process.start(client.store)
    assert client.wait("one", RunState.FAILED).ending == "poison"
    client.wait("two", RunState.COMPLETED)


def test_a_worker_leaves_runs_of_agents_that_it_does_not_know(client: Client, process: Nursery) -> None:
    client.queue("one", agent="asker")
    client.queue("two")
    client.queue("three", agent="asker")
    client.store.recorder.write(ClaimRun(client.tenant, "three", "owner", "dead"))
    worker = process.start(client.store, "writer", until_idle=True)
    until(lambda: not alive(worker), f"it has nothing to do: {client.news()}")
    assert client.run("two").status is RunState.COMPLETED
    assert client.run("one").started_at is None
    assert client.owner("three") == ("owner", "dead")
    process.start(client.store)
    client.wait("one", RunState.WAITING)
    client.wait("three", RunState.WAITING)


def test_a_worker_keeps_to_its_concurrency(client: Client, process: Nursery) -> None:
    client.queue(*(f"run-{number}" for number in range(6)))
    with client.held():
        process.start(client.store, concurrency=2)
        until(lambda: len(client.effects()) == 4, f"two are being verified for the second time: {client.news()}")
        # Several looks long: what is wrong is seen more often than not, and what is right always passes.
        for _ in range(10):
            assert [run.status for run in client.runs()].count(RunState.RUNNING) == 2
            time.sleep(0.02)
    client.wait_all()
