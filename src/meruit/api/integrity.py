"""Check the store against its audit log while the service runs: slowly, in the background, slice by slice.

Each slice has a short transaction of its own, so that writers go on. A slice that fails is tried again, and the check
goes on from there. When it ends, it begins again after some hours.
"""

import asyncio
import time
from dataclasses import dataclass, field
from enum import StrEnum

from meruit.api.logging import log
from meruit.api.telemetry import Instruments
from meruit.audit.check import LogProblem, StoreCheck, begin_check
from meruit.errors import LogCheckStopped, StoreUnavailable
from meruit.events.commit_signal import first_of
from meruit.store.store import Store

DELAY_S = 5.0
"""How long after the start the check begins, so that it does not slow the start down."""
PAUSE_S = 0.05
"""The pause after each slice, so that requests are served meanwhile."""
RETRY_S = 5.0
"""The pause after a slice that could not be read."""
REPEAT_S = 6 * 3600.0
"""The pause after a whole check."""


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
    """Check the whole store again and again; the result is in `integrity`, in the metrics and in the log."""
    await first_of(ended, within_s=DELAY_S)
    while not ended.is_set():
        await _check_once(store, integrity, instruments, ended)
        await first_of(ended, within_s=REPEAT_S)


async def _check_once(store: Store, integrity: StoreIntegrity, instruments: Instruments, ended: asyncio.Event) -> None:
    known = integrity.state
    if known is not IntegrityState.BROKEN:
        integrity.state = IntegrityState.CHECKING
    try:
        check = await asyncio.to_thread(begin_check, store)
        await asyncio.to_thread(_check_slices, store, check, integrity, instruments, ended)
    except LogCheckStopped:
        return
    except Exception as problem:  # noqa: BLE001 - the service goes on; that nothing was checked is said
        if integrity.state is IntegrityState.CHECKING:
            integrity.state = IntegrityState.UNCHECKED
        log("audit_check_failed", level="error", error=problem)
        return
    integrity.problems = [*check.problems]
    integrity.state = IntegrityState.BROKEN if check.problems else IntegrityState.SOUND
    instruments.audit_problems.set(len(check.problems))


def _check_slices(
    store: Store, check: StoreCheck, integrity: StoreIntegrity, instruments: Instruments, ended: asyncio.Event
) -> None:
    more = True
    while more:
        pause_s = PAUSE_S
        try:
            with store.database.reading() as connection:
                more = check.check_slice(connection)
        except StoreUnavailable:
            pause_s = RETRY_S
        if check.problems and integrity.state is not IntegrityState.BROKEN:
            # As soon as one is found, and not at the end of the check.
            integrity.state, integrity.problems = IntegrityState.BROKEN, check.problems
            instruments.audit_problems.set(len(check.problems))
            # What differs may quote a row; `meruit audit check` prints it.
            log("audit_broken", level="error", count=len(check.problems))
        instruments.audit_leaves.set(check.position[0])
        until = time.monotonic() + pause_s
        while not ended.is_set() and time.monotonic() < until:
            time.sleep(min(pause_s, PAUSE_S))
        if ended.is_set():
            raise LogCheckStopped
