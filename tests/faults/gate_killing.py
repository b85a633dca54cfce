"""Ends or stops a process at a chosen point of a gated run."""

import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tests.faults.deaths import label
from tests.faults.deaths import watch as watch_writer

from meruit.gate.store.runs import (
    CancelRun,
    ClaimRun,
    EndRun,
    ParkRun,
    QueueRun,
    RecordStep,
    ResumeRun,
    WakeRun,
)
from meruit.gate.store.submissions import GiveUp, Submit
from meruit.store.store import Store

Say = Callable[..., None]
BEGIN, COMMIT, COMMITTED = "before it is written", "before COMMIT", "after COMMIT"

ACCOUNTING = {f"INSERT {table}" for table in ("submissions", "agent_steps", "events", "log_leaves")} | {
    f"UPDATE {table}" for table in ("agent_runs", "log_state")
}
"""Statements of the accounting, in which a death after every single one is worth it."""


class Point(NamedTuple):
    """A place on the way of a run."""

    what: str
    """`account: before COMMIT`."""
    time: int
    """The first, the second… of its kind that a process passes."""


class Step(NamedTuple):
    """What somebody is about to do, and of which run."""

    what: str
    run: str
    place: str = ""
    """The turn, and the place of a tool's call in it."""


PLAIN: dict[type, str] = {EndRun: "end", ResumeRun: "resume", WakeRun: "wake", CancelRun: "cancel"}
"""Writes of which there is one kind each."""


# Any: writes of every kind.
def step_of(write: Any) -> Step | None:
    """What a write means for its run; None for what has nothing to do with one."""
    match write:
        case RecordStep():
            kind, _, place = write.key.partition(":")
            return Step(f"keep {'model' if kind == 'turn' else kind}", write.id, place.partition(":")[0])
        case Submit() | GiveUp():
            return Step(write.key.partition(":")[0], write.run_id) if write.key else None
        case ClaimRun():
            what = "take over" if write.takeover else "claim"
        case ParkRun():
            what = {None: "rest", "members": "wait for members"}.get(write.waiting_for, "wait")
        case QueueRun():
            what = "queue" if write.parent_id is None else "queue a member"
        case _:
            what = PLAIN.get(type(write), "")
    return Step(what, write.id) if what else None


def redone(what: str, *, slept: bool = False) -> str | None:
    """What is done a second time after a death at that point: nobody knew what it had given.

    Who only slept there does itself what others have done meanwhile.
    """
    step, _, when = what.partition(": ")
    if when in ("done", BEGIN, COMMIT) or (slept and when == "asked"):
        kind = step.removeprefix("keep ")
        return kind if kind in ("model", "tool", "verify") else None
    return None


class Killer:
    """Watches what a process does, and ends it, or puts it to sleep, where it was told to."""

    def __init__(self, say: Say, at: Point | None = None, *, asleep: bool = False) -> None:
        self._say, self._at, self._asleep = say, at, asleep
        self._times: Counter[str] = Counter()
        self._now: Sequence[Step] = ()
        self.passed: list[Point] = []

    def watch(self, store: Store) -> None:
        """See what is written to it."""
        recorder = store.recorder
        together = recorder._commit_group

        def watched(group: Any) -> Any:
            self._now = [step for step in (step_of(one.write) for one in group) if step is not None]
            self._pass(BEGIN)
            try:
                return together(group)
            finally:
                self._now = ()

        def executing(statement: str) -> None:
            if statement == "COMMIT":
                self._pass(COMMIT)

        def executed(statement: str) -> None:
            if statement == "COMMIT":
                self._pass(COMMITTED)
            kind = label(statement)
            if kind in ACCOUNTING:
                for step in self._now:
                    if step.what == "account":
                        self.reach(step, f"after {kind}")

        watch_writer(store.database, executing, executed)
        # Of this store alone.
        setattr(recorder, "_commit_group", watched)  # noqa: B010 - mypy takes no method's place otherwise

    def reach(self, step: Step, when: str) -> None:
        """A point; nobody passes the chosen one."""
        what = f"{step.what}: {when}"
        self._times[what] += 1
        point = Point(what, self._times[what])
        if point == self._at:
            self._say(died=what, run=step.run, place=step.place)
            # To this very thread: another might take the signal, and this one go on into a transaction meanwhile.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP if self._asleep else signal.SIGKILL)
        self.passed.append(point)

    def _pass(self, when: str) -> None:
        for step in self._now:
            self.reach(step, when)
