"""Check the store against its audit log while the service runs: slowly, in the background, once after each start."""

import asyncio
import time
from dataclasses import dataclass, field
from enum import StrEnum

from meruit.api.logging import log
from meruit.api.telemetry import Instruments
from meruit.audit.check import LogCheck, LogProblem, check_log
from meruit.errors import LogCheckStopped
from meruit.events.commit_signal import first_of
from meruit.store.store import Store

DELAY_S = 5.0
"""How long after the start the check begins, so that it does not slow the start down."""
PAUSE_S = 0.05
"""The pause after each page of leaves, so that requests are served meanwhile."""


class IntegrityState(StrEnum):
    """How far the check is."""

    UNCHECKED = "unchecked"
    CHECKING = "checking"
    SOUND = "sound"
    BROKEN = "broken"
    """The store contradicts its audit log: the database was changed from outside."""


@dataclass(slots=True)
class StoreIntegrity:
    """What the check of the store has found so far."""

    state: IntegrityState = IntegrityState.UNCHECKED
    problems: list[LogProblem] = field(default_factory=list)


async def check_in_background(
    store: Store, integrity: StoreIntegrity, instruments: Instruments, ended: asyncio.Event
) -> None:
    """Check the whole store once; the result is in `integrity`, in the metrics and in the log."""
    await first_of(ended, within_s=DELAY_S)
    if ended.is_set():
        return
    integrity.state = IntegrityState.CHECKING
    try:
        found = await asyncio.to_thread(_check_store, store, instruments, ended)
    except LogCheckStopped:
        return
    except Exception as problem:  # noqa: BLE001 - the service goes on; that nothing was checked is said
        integrity.state = IntegrityState.UNCHECKED
        log("audit_check_failed", level="error", error=problem)
        return
    integrity.problems = found.problems
    integrity.state = IntegrityState.SOUND if found.sound else IntegrityState.BROKEN
    instruments.audit_problems.set(len(found.problems))
    if found.problems:
        # What differs may quote a row; `meruit audit check` prints it.
        log("audit_broken", level="error", count=len(found.problems))


def _check_store(store: Store, instruments: Instruments, ended: asyncio.Event) -> LogCheck:
    def pace(done: int, _total: int) -> None:
        if ended.is_set():
            raise LogCheckStopped
        instruments.audit_leaves.set(done)
        time.sleep(PAUSE_S)

    with store.database.reading() as connection:
        return check_log(connection, pace)
