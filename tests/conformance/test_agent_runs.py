"""What holds of agents' runs and of the accounting of submissions, whatever database they are on."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count, cycle
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import select
from tests.conformance.counting import rows_of
from tests.events.emitting import Clock
from tests.outcomes.making import together

from meruit.errors import AgentRunConflict, MeruitError, NotFound, RunCancelled, RunFenced
from meruit.events.store import outbox
from meruit.gate.accounting import SubmissionResult, account
from meruit.gate.limits import GateLimits
from meruit.gate.run import AgentRun, RunRequest, RunState
from meruit.gate.state import (
    SchemaErrorFound,
    VerdictGiven,
    VerificationEnding,
    VerificationOutcome,
    VerificationState,
)
from meruit.gate.store import read as agent_reading
from meruit.gate.store.read import DueRun, ForgetWorker, RecordHeartbeat
from meruit.gate.store.runs import (
    MEMBERS,
    CancelRun,
    ClaimRun,
    EndRun,
    ParkRun,
    QueueRun,
    RecordStep,
    ResumeRun,
    RunFailure,
    WakeRun,
)
from meruit.gate.store.submissions import GiveUp, RecordedState, RecordedSubmission, Submit, commitment_content
from meruit.gate.verdict import Acceptance, Rejection, SystemErrorVerdict
from meruit.log.commitment import SALT_BYTES, commitment
from meruit.log.entries import GateEntry, read_entry
from meruit.model.chat import Usage
from meruit.store import tables
from meruit.store.idempotency import IdempotentReplay, IdempotentRequest, IdempotentWrite
from meruit.store.location import Location
from meruit.store.recorder import Write
from meruit.store.store import ClockAndEntropy, Store

ME, OTHER = "own-1", "own-2"
"""Tokens of two workers."""
SALT = b"s" * SALT_BYTES
KEY = "1.0"
TABLES = ("agent_runs", "agent_steps", "submissions", "events", "log_leaves")
_NUMBERS = count()


@pytest.fixture(scope="module")
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Location:
    url = request.getfixturevalue("new_postgres")() if request.param == "postgresql" else None
    return Location(tmp_path_factory.mktemp("agent_runs"), url)


@pytest.fixture(scope="module")
def store(location: Location, clock: Clock) -> Iterator[Store]:
    """One of each kind; every test is a tenant of its own."""
    opened = Store.open(location, ClockAndEntropy(clock=clock))
    yield opened
    opened.close()


class Place(NamedTuple):
    """A tenant whom nobody else is."""

    store: Store
    tenant: str

    # Any: each write has an answer of its own kind.
    def write(self, write: Any) -> Any:
        return self.store.recorder.write(write)

    def queue(self, run_id: str = "r", agent: str = "a", **more: Any) -> QueueRun:
        return QueueRun(self.tenant, "me", run_id, agent, RunRequest("do it"), **more)

    def claim(self, owner: str = ME, run_id: str = "r", **more: Any) -> ClaimRun:
        return ClaimRun(self.tenant, run_id, owner, f"{self.tenant}, {owner}", **more)

    def submit(self, submission_id: str, candidate: str = "A", owner: str | None = ME, run_id: str = "r") -> Submit:
        """A candidate whose first letter says what becomes of it."""
        return Submit(
            self.tenant,
            run_id,
            happening(submission_id, candidate),
            SALT,
            owner,
            candidate=msgspec.json.encode(candidate),
            verifier_version="v1",
            problems="no fit" if candidate.startswith("M") else "",
        )

    def run(self, run_id: str = "r") -> AgentRun:
        with self.store.database.reading() as connection:
            return agent_reading.find(connection, self.tenant, run_id)

    def running(self, run_id: str = "r", **more: Any) -> AgentRun:
        self.write(self.queue(run_id, **more))
        found = self.write(self.claim(run_id=run_id))
        assert isinstance(found, AgentRun)
        return found

    def rows(self) -> dict[str, int]:
        return rows_of(self.store, self.tenant, TABLES)

    def steps(self, run_id: str = "r") -> dict[str, bytes]:
        with self.store.database.reading() as connection:
            return agent_reading.steps(connection, self.tenant, run_id)

    def told(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Type, key and content of every event; no key comes twice."""
        with self.store.database.reading() as connection:
            found = [one.event for one in outbox.events_after(connection, 0, tenant=self.tenant)]
        keys = [one.idempotency_key for one in found]
        assert len(keys) == len(set(keys))
        return [(one.event_type, one.idempotency_key, one.data) for one in found]

    def types(self) -> list[str]:
        return [kind for kind, _, _ in self.told()]

    def logged(self, run_id: str = "r") -> list[GateEntry]:
        """What the audit log says of a run, in order."""
        of = tables.log_leaves
        query = select(of.c.body).where(of.c.tenant == self.tenant, of.c.contract_id == run_id).order_by(of.c.seq)
        with self.store.database.reading() as connection:
            read = [read_entry(bytes(body)) for body in connection.execute(query).scalars()]
        entries = [one for one in read if isinstance(one, GateEntry)]
        assert len(entries) == len(read)
        return entries


@pytest.fixture
def here(store: Store) -> Place:
    return Place(store, f"tenant-{next(_NUMBERS)}")


def happening(submission_id: str, candidate: str) -> VerdictGiven | SchemaErrorFound:
    match candidate[0]:
        case "M":
            return SchemaErrorFound(submission_id)
        case "P":
            return VerdictGiven(submission_id, candidate, Acceptance({"final": candidate}), 0.0, "v1")
        case "X":
            return VerdictGiven(submission_id, candidate, SystemErrorVerdict("no network"), 0.0, "v1")
        case "F":
            return VerdictGiven(submission_id, candidate, Rejection("never", "final", retryable=False), 0.0, "v1")
        case _:
            return VerdictGiven(submission_id, candidate, Rejection("not yet", "weak", metadata={"a": 1}), 0.0, "v1")


# Every move from every state

MOVES: dict[str, Callable[[Place], Any]] = {
    "queue": lambda here: here.queue(),
    "claim": lambda here: here.claim(OTHER),
    "claim again": lambda here: here.claim(),
    "take over": lambda here: here.claim(OTHER, takeover=True),
    "complete": lambda here: EndRun(here.tenant, "r", ME, RunState.COMPLETED, b'{"n":1}', usage=Usage(1, 2), turn=3),
    "fail": lambda here: EndRun(here.tenant, "r", ME, RunState.FAILED, failure=RunFailure("error", "broke")),
    "pause": lambda here: ParkRun(here.tenant, "r", ME, here.store.surroundings.clock().year),
    "wait": lambda here: ParkRun(here.tenant, "r", ME, None, KEY),
    "resume": lambda here: ResumeRun(here.tenant, "r", KEY, b'"yes"'),
    "wake": lambda here: WakeRun(here.tenant, "r", KEY, b'"nothing came"'),
    "cancel": lambda here: CancelRun(here.tenant, "r"),
    "keep": lambda here: RecordStep(here.tenant, "r", ME, "turn:1", b"{}"),
    "once": lambda here: msgspec.structs.replace(here.submit("s", owner=ME), key="account:1:0"),
    "submit": lambda here: here.submit("s"),
    "give up": lambda here: GiveUp(here.tenant, "r", ME),
}
OWNERS = ("complete", "fail", "pause", "wait", "keep", "once", "submit", "give up")
Q, R, W = RunState.QUEUED, RunState.RUNNING, RunState.WAITING
_NOT_OURS: dict[str, RunState | type[MeruitError]] = dict.fromkeys(OWNERS, RunFenced)


def _over(state: RunState) -> dict[str, RunState | type[MeruitError]]:
    refused = dict.fromkeys(("claim", "claim again", "take over", "resume"), AgentRunConflict)
    return {**_NOT_OURS, **refused, **dict.fromkeys(("queue", "complete", "fail", "wake", "cancel"), state)}


LEADS_TO: dict[str, dict[str, RunState | type[MeruitError]]] = {
    "queued": {
        **_NOT_OURS,
        **dict.fromkeys(("claim", "claim again", "take over"), R),
        "queue": Q,
        "wake": Q,
        "resume": AgentRunConflict,
        "cancel": RunState.CANCELLED,
    },
    "running": {
        "queue": R,
        "claim": AgentRunConflict,
        "claim again": R,
        "take over": R,
        "resume": AgentRunConflict,
        "wake": R,
        "cancel": R,
        "complete": RunState.COMPLETED,
        "fail": RunState.FAILED,
        "pause": Q,
        "wait": W,
        **dict.fromkeys(("keep", "once", "submit", "give up"), R),
    },
    "waiting": {
        **_NOT_OURS,
        **dict.fromkeys(("claim", "claim again", "take over"), AgentRunConflict),
        "queue": W,
        "resume": Q,
        "wake": W,
        "cancel": RunState.CANCELLED,
    },
    "being cancelled": {
        **dict.fromkeys(("claim", "claim again", "take over", "pause", "wait"), RunState.CANCELLED),
        "queue": R,
        "resume": AgentRunConflict,
        "wake": R,
        "cancel": R,
        "complete": RunState.COMPLETED,
        "fail": RunState.FAILED,
        **dict.fromkeys(("keep", "once", "submit", "give up"), RunCancelled),
    },
    "completed": _over(RunState.COMPLETED),
    "failed": _over(RunState.FAILED),
    "cancelled": _over(RunState.CANCELLED),
}
"""Where each move leads from each situation, or what it is refused with."""


def reach(here: Place, situation: str) -> None:
    here.write(here.queue())
    if situation == "queued":
        return
    here.write(here.claim())
    by_one_move = {
        "waiting": "wait",
        "being cancelled": "cancel",
        "completed": "complete",
        "failed": "fail",
        "cancelled": "cancel",
    }
    if situation in by_one_move:
        here.write(MOVES[by_one_move[situation]](here))
    if situation == "cancelled":
        here.write(here.claim(OTHER))


@pytest.mark.parametrize("situation", LEADS_TO)
def test_each_transition_is_refused_from_a_wrong_state(store: Store, situation: str) -> None:
    assert LEADS_TO[situation].keys() == MOVES.keys()
    for move, leads_to in LEADS_TO[situation].items():
        here = Place(store, f"tenant-{next(_NUMBERS)}")
        reach(here, situation)
        before = here.rows(), here.run()
        if isinstance(leads_to, RunState):
            here.write(MOVES[move](here))
            assert here.run().status is leads_to, move
            if before[1].ended_at is not None:
                assert (here.rows(), here.run()) == before, move
        else:
            with pytest.raises(leads_to, match="run r "):
                here.write(MOVES[move](here))
            assert (here.rows(), here.run()) == before, move
        here.told()


@pytest.mark.parametrize("move", [move for move in MOVES if move != "queue"])
def test_an_unknown_run_is_not_found(here: Place, move: str) -> None:
    with pytest.raises(NotFound, match="'r'"):
        here.write(MOVES[move](here))
    with pytest.raises(NotFound, match="'r'"):
        here.run()
    assert set(here.rows().values()) == {0}


def test_a_queued_run_is_found_and_the_same_id_is_the_same_run(here: Place) -> None:
    request = RunRequest("do it", {"a": [1]}, 3, 60.0, {"team": "x"})
    queue = QueueRun(here.tenant, "me", "r", "a", request, GateLimits(3))
    made = here.write(queue)
    assert (made.status, made.request, made.created_by, made.verification.limits) == (Q, request, "me", GateLimits(3))
    before = here.rows()
    again = together(here.store, [queue, msgspec.structs.replace(queue, agent="b"), queue])
    assert again == [made] * 3
    assert here.rows() == before
    assert here.run() == made
    assert here.types() == ["agent_run.queued"]


def test_a_request_that_comes_twice_queues_one_run_and_is_answered_alike(here: Place) -> None:
    def queue(run_id: str) -> Write[Any]:
        request = IdempotentRequest("key", "same", 202)
        return IdempotentWrite(here.tenant, request, here.queue(run_id), lambda run: run.id.encode())

    first, second = together(here.store, [queue("r"), queue("other")])
    assert isinstance(first, AgentRun)
    assert second == IdempotentReplay(202, b"r") == here.write(queue("r"))
    assert here.rows()["agent_runs"] == 1


def test_a_run_keeps_what_it_ended_with(here: Place) -> None:
    here.running()
    done = here.write(MOVES["complete"](here))
    assert done == here.run()
    assert (done.result, done.usage, done.turn, done.ending) == ({"n": 1}, Usage(1, 2), 3, None)
    assert done.ended_at == done.started_at
    late = here.write(MOVES["fail"](here))
    assert late == done
    assert here.types() == ["agent_run.queued", "agent_run.started", "agent_run.completed"]


def test_what_a_verifier_returned_is_the_result_of_its_run(here: Place) -> None:
    here.running()
    here.write(here.submit("s", "P"))
    done = here.write(EndRun(here.tenant, "r", ME, RunState.COMPLETED))
    assert done.result == here.run().result == {"final": "P"}
    here.running("unverified")
    assert here.write(EndRun(here.tenant, "unverified", ME, RunState.COMPLETED)).result is None


def test_why_a_run_failed_can_be_kept_whatever_was_raised(here: Place) -> None:
    here.running()
    failed = EndRun(here.tenant, "r", ME, RunState.FAILED, failure=RunFailure("error", "a\0b"))
    assert here.write(failed).error == here.run().error
    assert "b" in (here.run().error or "")


# Owners


def test_who_was_taken_over_from_can_write_nothing_more(here: Place) -> None:
    here.running()
    taken = here.write(here.claim(OTHER, takeover=True))
    assert taken.takeovers == 1
    before = here.rows(), here.run()
    for move in OWNERS:
        with pytest.raises(RunFenced, match="run r "):
            here.write(MOVES[move](here))
    assert (here.rows(), here.run()) == before
    here.write(here.submit("s", owner=OTHER))
    assert here.run().verification.attempts_used == 1


def test_of_several_who_claim_a_run_one_has_it(here: Place) -> None:
    here.write(here.queue())
    answers = together(here.store, [here.claim(f"own-{number}") for number in range(8)])
    assert [type(answer) for answer in answers] == [AgentRun, *[AgentRunConflict] * 7]


def test_a_run_is_taken_from_the_worker_that_is_gone_and_from_no_other(here: Place) -> None:
    here.running()
    with pytest.raises(AgentRunConflict):
        here.write(here.claim(OTHER, takeover=True, gone="somebody else"))
    assert here.write(here.claim(OTHER, takeover=True, gone=f"{here.tenant}, {ME}")).takeovers == 1


def test_a_run_that_kills_five_workers_in_a_row_is_given_up(here: Place) -> None:
    here.running()
    # The worker that had it first has died, and each of these will.
    for number in range(4):
        assert here.write(here.claim(f"own-{number}x", takeover=True)).status is R
    dead = here.write(here.claim("last", takeover=True))
    assert (dead.status, dead.ending, dead.takeovers) == (RunState.FAILED, "poison", 5)
    assert here.types()[-1] == "agent_run.failed"


@pytest.mark.parametrize("kept", ["keep", "once"])
def test_a_recorded_step_resets_the_takeovers(here: Place, kept: str) -> None:
    here.running()
    for number in range(4):
        here.write(here.claim(f"own-{number}x", takeover=True))
    here.write(msgspec.structs.replace(MOVES[kept](here), owner="own-3x"))
    assert here.run().takeovers == 0
    assert here.write(here.claim("next", takeover=True)).takeovers == 1


ENDS_OTHERWISE: dict[str, Callable[[Place], list[Any]]] = {
    "failed": lambda here: [EndRun(here.tenant, "r", ME, RunState.FAILED, failure=RunFailure("deadline", "late"))],
    "cancelled by its worker": lambda here: [EndRun(here.tenant, "r", ME, RunState.CANCELLED)],
    "cancelled, then claimed": lambda here: [CancelRun(here.tenant, "r"), here.claim(OTHER, takeover=True)],
    "cancelled, then parked": lambda here: [CancelRun(here.tenant, "r"), MOVES["pause"](here)],
    "parked, then cancelled": lambda here: [MOVES["pause"](here), CancelRun(here.tenant, "r")],
    "poison": lambda here: [here.claim(OTHER, takeover=True, most_takeovers=0)],
}


@pytest.mark.parametrize("how", ENDS_OTHERWISE)
@pytest.mark.parametrize("at_once", [False, True])
def test_a_run_that_passed_is_completed_however_it_ends(here: Place, how: str, *, at_once: bool) -> None:
    here.running()
    writes = [here.submit("s", "P"), *ENDS_OTHERWISE[how](here)]
    if at_once:
        together(here.store, writes)
    else:
        for write in writes:
            here.write(write)
    run = here.run()
    assert (run.status, run.result, run.ending, run.error) == (RunState.COMPLETED, {"final": "P"}, None, None)
    assert here.types()[-1] == "agent_run.completed"


# Resting


@pytest.mark.parametrize(("timeout_s", "key"), [(None, KEY), (3, KEY), (100, KEY), (None, MEMBERS), (100, None)])
def test_a_run_at_rest_is_taken_up_when_its_time_is_up(
    here: Place, clock: Clock, timeout_s: int | None, key: str | None
) -> None:
    here.write(msgspec.structs.replace(here.queue(), request=RunRequest("do it", max_seconds=10)))
    here.write(here.claim())
    wake = None if timeout_s is None else clock.micros + timeout_s * 1_000_000
    parked = here.write(ParkRun(here.tenant, "r", ME, wake, key))
    rests_s = 3 if timeout_s == 3 else 10
    assert parked.wake_at == parked.started_at + timedelta(seconds=rests_s)
    clock.pass_s(rests_s)
    if key is not None:
        woken = here.write(WakeRun(here.tenant, "r", key, b'"nothing came"'))
        assert (woken.status, woken.waiting_for) == (Q, None)
    # Of a run that is over time, nobody knows that nothing came.
    assert here.steps().keys() == ({f"wait:{KEY}"} if timeout_s == 3 else set())


@pytest.mark.parametrize("max_seconds", [1e300, 1e12])
def test_a_time_that_no_calendar_holds_is_none(here: Place, max_seconds: float) -> None:
    here.write(msgspec.structs.replace(here.queue(), request=RunRequest("do it", max_seconds=max_seconds)))
    here.write(here.claim())
    assert here.write(ParkRun(here.tenant, "r", ME, None, KEY)).wake_at is None


def test_what_is_handed_in_wakes_the_run_once(here: Place) -> None:
    here.running()
    parked = here.write(MOVES["wait"](here))
    assert (parked.waiting_for, parked.wake_at) == (KEY, None)
    with pytest.raises(AgentRunConflict, match=f"waits for '{KEY}'"):
        here.write(ResumeRun(here.tenant, "r", "2.0", b"1"))
    answers = together(here.store, [MOVES["resume"](here)] * 3)
    assert [answer.status for answer in answers] == [Q] * 3
    with pytest.raises(AgentRunConflict, match=f"{KEY!r}"):
        here.write(ResumeRun(here.tenant, "r", KEY, b'"no"'))
    assert here.steps() == {f"wait:{KEY}": b'"yes"'}
    assert here.types().count("agent_run.resumed") == 1
    # A worker that was too late to hear of it parks for what is there, and goes on.
    here.write(here.claim())
    assert here.write(MOVES["wait"](here)).status is Q
    here.write(here.claim())
    here.write(MOVES["complete"](here))
    assert here.write(MOVES["resume"](here)).status is RunState.COMPLETED


def test_a_run_that_has_waited_long_enough_goes_on_without(here: Place, clock: Clock) -> None:
    here.running()
    here.write(ParkRun(here.tenant, "r", ME, clock.micros + 60_000_000, KEY))
    with here.store.database.reading() as connection:
        assert here.tenant not in {one.tenant for one in agent_reading.overdue_waits(connection, clock.micros)}
    assert here.write(MOVES["wake"](here)).status is W
    clock.pass_s(60)
    with here.store.database.reading() as connection:
        (found,) = [one for one in agent_reading.overdue_waits(connection, clock.micros) if one.tenant == here.tenant]
    assert (found.id, found.key) == ("r", KEY)
    assert [one.status for one in together(here.store, [MOVES["wake"](here)] * 2)] == [Q, Q]
    assert here.steps() == {f"wait:{KEY}": b'"nothing came"'}
    with pytest.raises(AgentRunConflict, match=f"{KEY!r}"):
        here.write(MOVES["resume"](here))


def test_a_pause_tells_its_error_until_the_run_has_moved_on(here: Place) -> None:
    here.running()
    paused = here.write(ParkRun(here.tenant, "r", ME, 1, error="connection\0refused"))
    assert paused.error == "connection\N{REPLACEMENT CHARACTER}refused"
    # Whoever asks again does not know yet whether it is over.
    assert here.write(here.claim()).error == paused.error
    here.write(MOVES["keep"](here))
    with here.store.database.reading() as connection:
        assert agent_reading.find(connection, here.tenant, "r").error is None


def test_a_waiting_run_has_a_note(here: Place) -> None:
    here.running()
    waits = here.write(ParkRun(here.tenant, "r", ME, None, KEY, note="approval"))
    with here.store.database.reading() as connection:
        assert agent_reading.find(connection, here.tenant, "r") == waits
    assert (waits.waiting_for, waits.note) == (KEY, "approval")
    assert here.write(MOVES["resume"](here)).note is None


def test_a_pause_keeps_what_was_used_so_far_and_ends_in_time(here: Place, clock: Clock) -> None:
    here.running()
    wake = clock.micros + 5_000_000
    parked = here.write(ParkRun(here.tenant, "r", ME, wake, retries=2, usage=Usage(5), turn=4))
    assert (parked.status, parked.retries, parked.usage, parked.turn) == (Q, 2, Usage(5), 4)

    def due() -> list[DueRun]:
        with here.store.database.reading() as connection:
            return [
                one for one in agent_reading.due_runs(connection, clock.micros, ["a"], 100) if one.tenant == here.tenant
            ]

    assert due() == []
    clock.pass_s(5)
    assert due() == [DueRun(here.tenant, "r", "a", wake)]
    assert here.write(here.claim()).started_at == parked.started_at
    assert here.types() == ["agent_run.queued", "agent_run.started"]


# Cancelling


def test_a_run_that_a_loop_of_its_host_owns_is_cancelled_at_once(here: Place) -> None:
    host = _host(here)
    here.write(host(here.submit("1", "A", None)))
    assert here.write(CancelRun(here.tenant, "r")).status is RunState.CANCELLED
    before = here.rows()
    with pytest.raises(RunCancelled):
        here.write(host(here.submit("2", "B", None)))
    assert here.rows() == before


def test_a_team_that_is_cancelled_takes_its_members_with_it(here: Place) -> None:
    _team(here, "x", "y", "z")
    here.write(here.claim(OTHER, "r.y"))
    here.write(here.claim(OTHER, "r.z"))
    here.write(EndRun(here.tenant, "r.z", OTHER, RunState.COMPLETED, b"1"))
    here.write(here.claim())
    here.write(ParkRun(here.tenant, "r", ME, None, MEMBERS, unless_over=("r.x", "r.y")))
    here.write(CancelRun(here.tenant, "r"))
    states = {run_id: here.run(run_id).status for run_id in ("r", "r.x", "r.y", "r.z")}
    assert states == {"r": "cancelled", "r.x": "cancelled", "r.y": "running", "r.z": "completed"}
    with pytest.raises(RunCancelled):
        here.write(RecordStep(here.tenant, "r.y", OTHER, "turn:1", b"{}"))
    # Nobody is told that a team goes on which is over.
    assert here.types()[-2:] == ["agent_run.cancelled"] * 2


@pytest.mark.parametrize("order", ["cancelled first", "queued first", "separately"])
def test_a_team_that_is_cancelled_gets_no_new_members(here: Place, order: str) -> None:
    _team(here)
    here.write(here.claim())
    member, cancel = here.queue("r.late", parent_id="r", item="late"), CancelRun(here.tenant, "r")
    match order:
        case "cancelled first":
            assert isinstance(together(here.store, [cancel, member])[1], RunCancelled)
        case "queued first":
            together(here.store, [member, cancel])
            assert here.run("r.late").status is RunState.CANCELLED
        case _:
            here.write(cancel)
            with pytest.raises(RunCancelled):
                here.write(member)
            here.write(EndRun(here.tenant, "r", ME, RunState.CANCELLED))
            with pytest.raises(RunCancelled):
                here.write(member)


# Steps


def test_what_a_step_gave_first_counts(here: Place) -> None:
    here.running()
    keep = RecordStep(here.tenant, "r", ME, "turn:1", b"first", {"submission_id": "s"})
    assert together(here.store, [keep, msgspec.structs.replace(keep, body=b"second")]) == [b"first", b"first"]
    # Whoever owned the run then stops here, before it does anything again.
    here.write(here.claim(OTHER, takeover=True))
    with pytest.raises(RunFenced):
        here.write(msgspec.structs.replace(keep, body=b"third"))
    assert here.steps() == {"turn:1": b"first"}
    assert here.types().count("verification_started") == 1


def test_a_write_that_happens_once_is_answered_alike_for_ever(here: Place) -> None:
    here.running()

    def once(submission_id: str) -> Submit:
        return msgspec.structs.replace(here.submit(submission_id), key="account:1:0")

    first, second = together(here.store, [once("s1"), once("s2")])
    third = here.write(once("s3"))
    assert first.result == second.result == third.result
    assert first.recorded == second.recorded
    assert third.recorded == msgspec.structs.replace(
        first.recorded, state=msgspec.structs.replace(first.recorded.state, submission_ids=(), rejected={})
    )
    assert (first.is_new, second.is_new, third.is_new) == (True, False, False)
    assert here.rows()["submissions"] == 1
    assert here.run().verification.attempts_used == 1


# What a submission writes


def test_emits_expected_verification_events(here: Place) -> None:
    here.running(limits=GateLimits(2))
    about = {"submission_id": "1", "candidate_hash": "A", "attempt": 1, "max_attempts": 2}
    here.write(RecordStep(here.tenant, "r", ME, "turn:1", b"{}", about))
    for number, candidate in enumerate(("A", "A", "B"), 1):
        here.write(here.submit(str(number), candidate))
    told = here.told()[2:]
    assert [kind for kind, _, _ in told] == [
        "verification_started",
        *("verification_rejected", "verification_attempt_counted"),
        "verification_rejected",
        *("verification_rejected", "verification_attempt_counted", "verification_exhausted"),
    ]
    assert told[0][2] == {"run_id": "r", "agent": "a", **about}
    assert told[1][2] == {
        "run_id": "r",
        "agent": "a",
        "submission_id": "1",
        "candidate_hash": "A",
        "attempt": 1,
        "code": "weak",
        "retryable": True,
        "metadata": {"a": 1},
        "attempts_used": 1,
        "max_attempts": 2,
    }
    assert (told[-1][2]["reason"], told[-1][2]["attempts_used"]) == ("attempts", 2)


def test_a_pass_and_the_end_of_a_hosts_run_are_events(here: Place) -> None:
    here.write(_host(here)(msgspec.structs.replace(here.submit("1", "P", None), emit_started=True)))
    assert here.types() == [
        *("agent_run.started", "verification_started", "verification_passed"),
        "agent_run.completed",
    ]
    assert here.run().result == {"final": "P"}


def test_the_audit_log_has_every_submission_without_a_gap(here: Place) -> None:
    here.running(limits=GateLimits(9))
    for number, candidate in enumerate(("A", "X", "M", "A", "B", "P"), 1):
        here.write(here.submit(str(number), candidate))
        here.write(here.submit(str(number), candidate))
    entries = here.logged()
    assert [(one.number, one.outcome, one.counted, one.attempts_used) for one in entries] == [
        *((1, "rejected", True, 1), (2, "schema_error", False, 1), (3, "rejected", False, 1)),
        *((4, "rejected", True, 2), (5, "passed", False, 2)),
    ]
    of = tables.submissions
    query = select(of.c.salt, of.c.candidate, of.c.said).where(of.c.tenant == here.tenant).order_by(of.c.number)
    with here.store.database.reading() as connection:
        kept = [commitment(row.salt, commitment_content(row.candidate, row.said)) for row in connection.execute(query)]
    assert kept == [one.submission for one in entries]


def test_a_submission_is_found_as_it_was_answered(here: Place) -> None:
    here.running()
    for number, candidate in enumerate(("A", "M", "F"), 1):
        here.write(here.submit(str(number), candidate))
    with here.store.database.reading() as connection:
        found = agent_reading.submissions(connection, here.tenant, "r")
        assert [(one.number, one.outcome, one.code, one.retryable, one.ending) for one in found] == [
            *((1, "rejected", "weak", True, None), (2, "schema_error", None, True, None)),
            (3, "rejected", "final", False, VerificationEnding.REJECTED_FINAL),
        ]
        assert all((one.feedback or "").startswith("<") for one in found)
        assert agent_reading.candidate(connection, here.tenant, "r", "1") == "A"
        assert agent_reading.find_verdict(connection, here.tenant, "r", "3") == Rejection(
            "never", "final", retryable=False
        )
        answer = agent_reading.find_answer(connection, here.tenant, "r", "3")
        assert answer is not None
        assert answer.verdict == agent_reading.find_verdict(connection, here.tenant, "r", "3")
        assert (answer.done.submission_id, answer.done.ending) == ("3", VerificationEnding.REJECTED_FINAL)
        assert agent_reading.find_verdict(connection, here.tenant, "r", "2") is None
        assert agent_reading.find_verdict(connection, here.tenant, "r", "nothing") is None
        assert agent_reading.find_answer(connection, here.tenant, "r", "nothing") is None
        with pytest.raises(NotFound, match="'nothing'"):
            agent_reading.candidate(connection, here.tenant, "r", "nothing")


def test_a_system_error_costs_nothing_and_leaves_no_submission(here: Place) -> None:
    here.running(limits=GateLimits(5, system_errors=3))
    pauses = [here.write(here.submit("1", "X")).result.pause_s for _ in range(3)]
    assert pauses == [1.0, 2.0, None]
    run = here.run()
    assert (run.verification.attempts_used, run.verification.ended) == (0, VerificationEnding.SYSTEM_ERROR)
    assert run.verification.last_outcome is VerificationOutcome.SYSTEM_ERROR
    assert here.rows()["submissions"] == 0
    assert here.logged() == []


def test_a_schema_error_keeps_the_last_verifier_version(here: Place) -> None:
    here.running()
    here.write(here.submit("1"))
    here.write(msgspec.structs.replace(here.submit("2", "M"), verifier_version=None))
    assert here.run().verification.verifier_version == "v1"


def test_who_has_no_turn_left_gives_up_once(here: Place) -> None:
    here.running()
    here.write(here.submit("1"))
    first, second = (here.write(MOVES["give up"](here)) for _ in range(2))
    assert (first.ending, first.attempts_used) == (second.ending, second.attempts_used) == (VerificationEnding.TURNS, 1)
    assert here.types().count("verification_exhausted") == 1
    late = here.write(here.submit("2", "B")).result
    assert (late.replayed, late.ending) == (True, VerificationEnding.TURNS)
    assert here.rows()["submissions"] == 1


# Counting


@pytest.mark.parametrize("budget", [1, 5])
def test_the_last_rejection_of_a_budget_ends_the_run_and_none_before(here: Place, budget: int) -> None:
    here.running(limits=GateLimits(budget))
    done = [here.write(here.submit(str(number), f"A{number}")).result for number in range(budget)]
    assert [one.ending for one in done] == [None] * (budget - 1) + [VerificationEnding.ATTEMPTS]
    assert here.run().verification.attempts_used == budget


def test_a_b_a_counts_three(here: Place) -> None:
    here.running()
    done = [here.write(here.submit(str(number), candidate)).result for number, candidate in enumerate("ABA")]
    assert [one.counted for one in done] == [True] * 3
    assert " attempt 1." in done[2].feedback


def test_two_hundred_identical_resubmissions_end_as_no_progress(here: Place) -> None:
    here.running()
    done = together(here.store, [here.submit(str(number)) for number in range(200)])
    assert [one.result.ending for one in done] == [None] * 3 + [VerificationEnding.NO_PROGRESS] * 197
    assert (here.rows()["submissions"], here.run().verification.attempts_used) == (4, 1)
    assert here.types().count("verification_exhausted") == 1


class Model:
    """What the ledger should say, in the plainest words."""

    def __init__(self, limits: GateLimits) -> None:
        self.owner, self.limits = ME, limits
        self.used = self.identical = self.misshapen = self.broken = 0
        self.last: str | None = None
        self.ended: str | None = None
        self.seen: dict[str, tuple[Any, ...]] = {}

    # Any: the class of what is refused, or what is answered.
    def submit(self, owner: str, submission_id: str, candidate: str) -> Any:
        if owner != self.owner:
            return RunFenced
        if submission_id in self.seen:
            return self.seen[submission_id]
        if self.ended is not None:
            return "rejected", self.used, self.ended
        kind = candidate[0]
        if kind == "X":
            self.broken += 1
            self.ended = "system_error" if self.broken == self.limits.system_errors else None
            return "system_error", self.used, self.ended
        answer = self._misshapen() if kind == "M" else self._judged(kind, candidate)
        self.seen[submission_id] = answer
        return answer

    def _misshapen(self) -> tuple[Any, ...]:
        self.misshapen += 1
        self.ended = "schema_errors" if self.misshapen == self.limits.schema_errors else None
        return "schema_error", self.used, self.ended

    def _judged(self, kind: str, candidate: str) -> tuple[Any, ...]:
        self.misshapen = self.broken = 0
        if kind == "P":
            self.ended = "passed"
            return "passed", self.used, None
        new, self.last = candidate != self.last, candidate
        self.used += new
        self.identical = 0 if new else self.identical + 1
        if kind == "F":
            self.ended = "rejected_final"
        elif self.used == self.limits.max_attempts:
            self.ended = "attempts"
        elif self.identical == self.limits.no_progress:
            self.ended = "no_progress"
        return "rejected", self.used, self.ended


class Step(NamedTuple):
    """A worker takes the run over, or hands in a submission, perhaps one that was handed in before."""

    owner: str
    submission_id: str | None = None
    candidate: str = ""


CANDIDATES = "AABBCMXMAPXFD"
TAKEOVERS = st.sampled_from([Step(ME), Step(OTHER)])
SUBMISSIONS = st.sampled_from(
    [Step(owner, str(number), one) for owner in (ME, OTHER) for number, one in enumerate(CANDIDATES)]
)
STEPS = st.integers(0, 5).flatmap(lambda number: SUBMISSIONS if number else TAKEOVERS)


def _write_of(here: Place, step: Step) -> Any:
    if step.submission_id is None:
        return here.claim(step.owner, takeover=True, most_takeovers=1000)
    return here.submit(step.submission_id, step.candidate, step.owner)


def _expected(model: Model, step: Step) -> Any:
    if step.submission_id is None:
        model.owner = step.owner
        return AgentRun
    return model.submit(step.owner, step.submission_id, step.candidate)


def _seen(answer: Any) -> Any:
    if isinstance(answer, RecordedSubmission):
        return answer.result.outcome, answer.result.attempts_used, answer.result.ending
    return type(answer)


@settings(max_examples=25)
@given(st.lists(STEPS, min_size=4, max_size=30), st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_submissions_and_takeovers_count_as_the_model_does(store: Store, steps: list[Step], sizes: list[int]) -> None:
    grouped, alone = (Place(store, f"tenant-{next(_NUMBERS)}") for _ in range(2))
    limits = GateLimits(4, 2, 2, 2)
    model = Model(limits)
    for place in (grouped, alone):
        place.running(limits=limits)
    expected = [_expected(model, step) for step in steps]
    one_by_one = [together(store, [_write_of(alone, step)])[0] for step in steps]
    several: list[Any] = []
    for number in count():
        if len(several) == len(steps):
            break
        here = steps[len(several) : len(several) + sizes[number % len(sizes)]]
        several += together(store, [_write_of(grouped, step) for step in here])
    assert [*map(_seen, one_by_one)] == [*map(_seen, several)] == expected
    for place in (grouped, alone):
        state = place.run().verification
        assert (state.attempts_used, state.ended) == (model.used, model.ended)
        assert [one.number for one in place.logged()] == [*range(1, len(model.seen) + 1)]
        assert place.rows()["submissions"] == len(model.seen)
        counted = Counter(place.types())
        assert counted["verification_attempt_counted"] == model.used
        assert counted["verification_passed"] == (model.ended == "passed")
        # A verifier that broke has judged nobody; that run fails, and is told as failed.
        assert counted["verification_exhausted"] == (model.ended not in (None, "passed", "system_error"))
    assert grouped.told() == alone.told()


def _host(here: Place) -> Callable[[Submit], Submit]:
    opened = here.queue(owner="host:r", limits=GateLimits(40))
    return lambda submit: msgspec.structs.replace(submit, open=opened)


def test_two_recorders_that_race_on_one_run_count_each_submission_once(
    here: Place, location: Location, clock: Clock
) -> None:
    second = Store.open(location, ClockAndEntropy(clock=clock))
    host = _host(here)
    writes = [host(here.submit(str(number), f"A{number}", None)) for number in range(30)]

    def race(store: Store, order: Sequence[Submit]) -> list[SubmissionResult]:
        return [store.recorder.write(write).result for write in order]

    try:
        with ThreadPoolExecutor(2) as threads:
            both = [threads.submit(race, *one) for one in ((here.store, writes), (second, writes))]
            mine, theirs = (one.result(60) for one in both)
    finally:
        second.close()
    assert [one.replayed for one in mine].count(False) + [one.replayed for one in theirs].count(False) == 30
    for one, other in zip(mine, theirs, strict=True):
        assert msgspec.structs.replace(one, replayed=False) == msgspec.structs.replace(other, replayed=False)
    assert here.run().verification.attempts_used == 30
    assert [one.number for one in here.logged()] == [*range(1, 31)]
    assert Counter(here.types())["verification_attempt_counted"] == 30


def test_a_loop_of_a_host_cannot_submit_to_a_run_that_a_worker_has(here: Place) -> None:
    here.running()
    before = here.rows()
    with pytest.raises(RunFenced, match="run r "):
        here.write(_host(here)(here.submit("1", "A", None)))
    assert here.rows() == before


def test_a_host_gets_the_state_also_after_others_wrote(here: Place) -> None:
    host = _host(here)
    first, second = together(here.store, [host(here.submit("1", "A", None)), host(here.submit("2", "B", None))])
    assert [answer.recorded.state.attempts_used for answer in (first, second)] == [1, 2]
    whole = here.run().verification
    assert second.recorded == RecordedState(whole, 2)
    again = here.write(host(here.submit("1", "A", None)))
    done, recorded = again.result, again.recorded
    assert (done.replayed, done.attempts_used, recorded.state.attempts_used) == (True, 1, 2)
    # What stands in rows of its own is not read with the state.
    assert recorded == RecordedState(msgspec.structs.replace(whole, submission_ids=(), rejected={}), 2)


_HISTORIES = st.lists(st.tuples(st.sampled_from("123456"), st.sampled_from(["A", "B", "C", "M", "X"])), max_size=12)


@settings(max_examples=15)
@example([("1", "A"), ("2", "B"), ("3", "A"), ("1", "A")], [1])
@example([("1", "A"), ("2", "B"), ("3", "A"), ("1", "A")], [2])
@given(_HISTORIES, st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_rows_of_submissions_say_what_one_state_of_all_would(
    store: Store, submitted: list[tuple[str, str]], sizes: list[int]
) -> None:
    """Whatever is submitted, in groups or alone, every reader and every write sees the state of the pure rules."""
    here = Place(store, f"tenant-{next(_NUMBERS)}")
    limits = GateLimits(6, 3, 3, 3)
    here.running(limits=limits)
    state = VerificationState(limits=limits)
    answers: list[Any] = []
    contents: dict[str, str] = {}
    # Another content under the same id is refused, which another test shows.
    steps = [(one, what) for one, what in submitted if contents.setdefault(one, what) == what]
    done = 0
    for size in cycle(sizes):
        if done >= len(steps):
            break
        group = steps[done : done + size]
        answers += together(here.store, [here.submit(one, what) for one, what in group])
        done += size
    for (one, what), answer in zip(steps, answers, strict=True):
        write = here.submit(one, what)
        event = write.event
        if isinstance(event, VerdictGiven):
            event = event.with_time(answer.result.at)
        before = msgspec.structs.replace(state, verifier_version=write.verifier_version)
        after, result = account(before, event, problems=write.problems)
        if result is not None:
            state = state if result.replayed else after
            assert msgspec.structs.replace(answer.result, at=0.0) == msgspec.structs.replace(result, at=0.0)
        assert answer.result.replayed == (result is None or result.replayed)
        assert answer.recorded.submissions == len(state.submission_ids)
    with here.store.database.reading() as connection:
        found = agent_reading.find(connection, here.tenant, "r").verification
        assert found == state
        assert [*found.rejected] == [*state.rejected]
        assert [run.verification for run in agent_reading.page(connection, here.tenant)] == [state]
        for known in range(len(state.submission_ids) + 1):
            part = agent_reading.extend_submissions(connection, here.tenant, "r", VerificationState(), known)
            assert part.submission_ids == state.submission_ids[:known]
            assert agent_reading.find_state(connection, here.tenant, "r", part) == state
    assert here.write(CancelRun(here.tenant, "r")).verification == state


# Teams


def _team(here: Place, *items: str, budget: int = 100) -> None:
    here.write(here.queue(agent="team", limits=GateLimits(budget)))
    for item in items:
        here.write(here.queue(f"r.{item}", parent_id="r", item=item))


def test_the_end_of_a_member_wakes_the_team_that_waits_for_it(here: Place) -> None:
    _team(here, "x", "y")
    here.write(here.claim())
    wait = ParkRun(here.tenant, "r", ME, None, MEMBERS, unless_over=("r.x", "r.y"))
    assert here.write(wait).status is W
    with pytest.raises(AgentRunConflict, match="waits for 'members'"):
        here.write(ResumeRun(here.tenant, "r", MEMBERS, b"1"))
    here.write(here.claim(OTHER, "r.x"))
    here.write(EndRun(here.tenant, "r.x", OTHER, RunState.COMPLETED, b"1"))
    assert here.run().status is Q
    here.write(here.claim())
    # One that ended while the team was being driven is not waited for.
    assert here.write(wait).status is Q
    here.write(here.claim())
    assert here.write(msgspec.structs.replace(wait, unless_over=("r.y",))).status is W
    here.write(CancelRun(here.tenant, "r.y"))
    assert here.run().status is Q
    told = Counter(here.types())
    assert (told["agent_run.waiting"], told["agent_run.resumed"]) == (2, 2)
    with here.store.database.reading() as connection:
        assert [one.item for one in agent_reading.members(connection, here.tenant, "r")] == ["x", "y"]


def test_rejections_of_all_members_use_the_budget_of_their_team(here: Place) -> None:
    _team(here, "x", "y", budget=3)
    for item in "xy":
        here.write(here.claim(item, f"r.{item}"))
    x = [here.submit(str(number), f"A{number}", "x", "r.x") for number in range(3)]
    y = [here.submit(str(number), f"A{number}", "y", "r.y") for number in range(3)]
    endings = [here.write(write).result.ending for write in (x[0], x[0], y[0], x[1])]
    assert endings == [None, None, None, VerificationEnding.TEAM_BUDGET]
    assert here.write(x[1]).result.ending is VerificationEnding.TEAM_BUDGET
    assert here.write(x[2]).result.ending is VerificationEnding.TEAM_BUDGET
    assert here.run().verification.attempts_used == 3
    # What the other member still has passes as ever; rejected, it is over as well.
    assert here.write(y[1]).result.ending is VerificationEnding.TEAM_BUDGET
    # It was verified while there was something left; nothing is used up twice.
    assert here.run().verification.attempts_used == 3
    assert [one["reason"] for kind, _, one in here.told() if kind == "verification_exhausted"] == ["team_budget"] * 2


# Reading


def test_runs_are_listed_newest_first_in_pages_and_narrowed(here: Place) -> None:
    for number in range(5):
        here.write(here.queue(f"r{number}", agent=f"a{number % 2}"))
    here.write(here.queue("child", parent_id="r0", item="x"))
    here.write(CancelRun(here.tenant, "r4"))
    with here.store.database.reading() as connection:

        def ids(**narrowed: Any) -> list[str]:
            return [run.id for run in agent_reading.page(connection, here.tenant, **narrowed)]

        newest = ["child", "r4", "r3", "r2", "r1", "r0"]
        assert ids() == newest
        assert ids(limit=2) == newest[:2]
        assert ids(before=agent_reading.find(connection, here.tenant, "r3").seq) == newest[3:]
        assert ids(agent="a1") == ["r3", "r1"]
        assert ids(status=RunState.CANCELLED) == ["r4"]
        assert ids(parent_id="r0") == ["child"]
        assert agent_reading.page(connection, "stranger") == []
        assert agent_reading.has_unfinished_runs(connection, ["a1"])
        assert not agent_reading.has_unfinished_runs(connection, ["nobody"])
        assert agent_reading.count_by_state(connection)[here.tenant, Q] >= 5


def test_workers_are_believed_for_as_long_as_they_say_so(here: Place, clock: Clock) -> None:
    agent = f"agent of {here.tenant}"
    here.running(agent=agent)
    worker = f"{here.tenant}, {ME}"

    def orphans(**more: Any) -> list[DueRun]:
        with here.store.database.reading() as connection:
            return agent_reading.orphan_runs(connection, clock.micros, [agent], **more)

    lost = [DueRun(here.tenant, "r", agent, worker=worker, owner=ME)]
    assert orphans() == lost
    here.write(RecordHeartbeat(worker, (agent,), 10))
    clock.pass_s(9)
    here.write(RecordHeartbeat(worker, (agent,), 10))
    clock.pass_s(9)
    assert orphans() == []
    assert orphans(all_but=worker) == []
    assert orphans(all_but="another") == lost
    with here.store.database.reading() as connection:
        (seen,) = [one for one in agent_reading.live_workers(connection, clock.micros) if one.agents == (agent,)]
        assert seen.until - clock.micros == 1_000_000
        assert agent_reading.runs_to_cancel(connection, worker) == []
    clock.pass_s(2)
    assert orphans() == lost
    here.write(CancelRun(here.tenant, "r"))
    with here.store.database.reading() as connection:
        assert DueRun(here.tenant, "r", agent) in agent_reading.runs_to_cancel(connection, worker)
        assert worker in agent_reading.dead_worker_ids(connection, clock.micros)
    here.write(ForgetWorker(worker))
    with here.store.database.reading() as connection:
        assert worker not in agent_reading.dead_worker_ids(connection, clock.micros)


def test_many_callers_at_once_are_each_answered_about_their_own_run(here: Place) -> None:
    """Reading a whole group's runs and steps with one question mixes nothing up."""

    async def each(number: int) -> tuple[bytes, SubmissionResult]:
        record = here.store.recorder.record
        run_id, owner = f"r{number}", f"own{number}"
        await record(here.queue(run_id))
        await record(here.claim(owner, run_id))
        kept = await record(RecordStep(here.tenant, run_id, owner, "turn:1", str(number).encode()))
        submit = msgspec.structs.replace(here.submit("1", f"A{number}", owner, run_id), key="account:1")
        return kept, (await record(submit)).result

    async def all_at_once() -> list[tuple[bytes, SubmissionResult]]:
        return await asyncio.gather(*map(each, range(50)))

    answers = asyncio.run(all_at_once())
    assert [kept for kept, _ in answers] == [str(number).encode() for number in range(50)]
    assert all(done.attempts_used == 1 and not done.replayed for _, done in answers)
    assert here.rows()["submissions"] == 50


@pytest.mark.parametrize("how", ["complete", "fail"])
def test_a_host_s_gate_does_not_revive_a_run_that_is_over(here: Place, how: str) -> None:
    here.running()
    here.write(MOVES[how](here))
    before = here.rows(), here.run()
    with pytest.raises(AgentRunConflict, match="run r is"):
        here.write(_host(here)(here.submit("1", "A", None)))
    assert (here.rows(), here.run()) == before


@pytest.mark.parametrize("at_once", [False, True])
def test_a_verification_begins_once_however_often_its_verifier_broke(here: Place, *, at_once: bool) -> None:
    host = _host(here)
    happens = [("1", "X"), ("1", "X"), ("1", "A"), ("2", "X"), ("3", "X"), ("2", "P")]
    writes = [host(msgspec.structs.replace(here.submit(*one, None), emit_started=True)) for one in happens]
    if at_once:
        together(here.store, writes)
    else:
        for write in writes:
            here.write(write)
    begun = [key for kind, key, _ in here.told() if kind == "verification_started"]
    assert begun == ["r:1:started", "r:2:started", "r:3:started"]


@pytest.mark.parametrize(("candidate", "error"), [("F", "never"), ("M", "no fit")])
def test_a_host_s_run_says_in_plain_words_why_it_failed(here: Place, candidate: str, error: str) -> None:
    host = _host(here)
    for number in range(3):
        if here.rows()["agent_runs"] == 0 or here.run().status is R:
            here.write(host(here.submit(str(number), candidate, None)))
    assert (here.run().status, here.run().error) == (RunState.FAILED, error)


@pytest.mark.parametrize("submitted_first", [True, False])
def test_all_that_one_transaction_writes_of_a_run_stands_in_whatever_order(
    here: Place, *, submitted_first: bool
) -> None:
    here.running("other")
    here.running()
    taken, last = here.claim(OTHER, takeover=True), here.submit("s2", "R2", OTHER)
    # Any: each write has an answer of its own kind.
    moves: list[Any] = [here.submit("s1", "R"), taken] if submitted_first else [taken, here.submit("s1", "R", OTHER)]
    # Another run is written as a whole before, so that statements of both kinds are in either order.
    here.write(lambda writing: [move(writing) for move in (here.claim(OTHER, "other", takeover=True), *moves, last)])
    run = here.run()
    assert run.verification.attempts_used == 2
    assert run.takeovers == 1
    assert here.write(RecordStep(here.tenant, "r", OTHER, KEY, b"1")) == b"1"
    with pytest.raises(RunFenced):
        here.write(RecordStep(here.tenant, "r", ME, KEY, b"1"))
