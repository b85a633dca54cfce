"""Ask the configured witnesses to cosign new checkpoints while the service runs; no request waits for it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from meruit.api.logging import Level, log
from meruit.api.telemetry import Instruments
from meruit.audit.cosigning import WitnessClient, request_cosignatures
from meruit.audit.known_witness import KnownWitness
from meruit.errors import WitnessRefusal
from meruit.events.commit_signal import first_of
from meruit.log.cosignature import Cosignature
from meruit.model.record import Record
from meruit.store import log as audit
from meruit.store.store import Store

TICK_S = 2.0
"""How often the log is asked whether it has grown."""
FIRST_WAIT_S, MAX_WAIT_S = 4.0, 300.0
"""The wait after a refusal; it doubles with each further one, up to the second value."""
CONTRADICTIONS = frozenset({"witness_ahead", "witness_saw_fork"})
"""Refusals which say that the log was rolled back or rewritten."""


class WitnessedState(StrEnum):
    """How the newest entries are witnessed."""

    OFF = "off"
    """The settings name no witness."""
    WAITING = "waiting"
    """Too few have cosigned so far."""
    WITNESSED = "witnessed"
    """As many as the quorum have cosigned the newest checkpoint."""
    CONTRADICTED = "contradicted"
    """A witness has cosigned another history of this log."""


class WitnessStatus(Record, frozen=True):
    """What one witness answered last."""

    name: str
    size: int
    """Entries that it cosigned last; 0 for none since the start."""
    code: str
    """`cosigned`, or why not; empty before the first answer."""


@dataclass(slots=True)
class Patience:
    """When a witness is asked again."""

    size: int = 0
    code: str = ""
    failures: int = 0
    not_before: float = 0.0


@dataclass(slots=True)
class Witnessing:
    """What the witnesses have cosigned so far."""

    witnesses: Sequence[KnownWitness]
    quorum: int
    asked: dict[str, Patience] = field(default_factory=dict)
    newest: int = 0
    """Entries that as many as the quorum have cosigned."""
    is_current: bool = False
    """Whether that is all of them, as of the last look."""

    @property
    def state(self) -> WitnessedState:
        """How the newest entries are witnessed."""
        if not self.witnesses:
            return WitnessedState.OFF
        if any(one.code in CONTRADICTIONS for one in self.asked.values()):
            return WitnessedState.CONTRADICTED
        return WitnessedState.WITNESSED if self.is_current else WitnessedState.WAITING

    def statuses(self) -> list[WitnessStatus]:
        """What each witness answered last."""
        known = {one.name: self.asked.get(one.name, Patience()) for one in self.witnesses}
        return [WitnessStatus(name, one.size, one.code) for name, one in known.items()]

    def due(self, size: int, now: float) -> list[KnownWitness]:
        """The witnesses to ask about a log of this size."""
        return [
            one
            for one in self.witnesses
            if (asked := self.asked.setdefault(one.name, Patience())).size < size and asked.not_before <= now
        ]

    def note(self, name: str, answer: Cosignature | WitnessRefusal, size: int, now: float) -> None:
        """Remember an answer about a log of this size."""
        asked = self.asked.setdefault(name, Patience())
        if isinstance(answer, WitnessRefusal):
            asked.code = answer.code
            asked.not_before = now + min(FIRST_WAIT_S * 2**asked.failures, MAX_WAIT_S)
            asked.failures = min(asked.failures + 1, 32)
        else:
            self.asked[name] = Patience(size=size, code="cosigned")
        reached = sorted((one.size for one in self.asked.values()), reverse=True)
        self.newest = reached[self.quorum - 1] if len(reached) >= self.quorum > 0 else 0


async def witness_in_background(
    store: Store,
    witnessing: Witnessing,
    instruments: Instruments,
    ended: asyncio.Event,
    client: WitnessClient | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Ask the witnesses whenever the log has grown, until the service ends; does nothing without witnesses."""
    client = client or WitnessClient()
    while witnessing.witnesses and not ended.is_set():
        try:
            await witness_once(store, witnessing, instruments, client, clock())
        except Exception as problem:  # noqa: BLE001 - nothing may end the loop silently; the error is logged and retried
            log("witnessing_failed", level="error", error=problem)
        await first_of(ended, within_s=TICK_S)


async def witness_once(
    store: Store, witnessing: Witnessing, instruments: Instruments, client: WitnessClient, now: float
) -> None:
    """Ask the witnesses that are due about the log as it is."""
    size = await asyncio.to_thread(_size, store)
    due = witnessing.due(size, now)
    if due:
        signed, answers = await request_cosignatures(store, client, due)
        size = signed.size
        for name, answer in answers.items():
            before = witnessing.asked[name].code
            witnessing.note(name, answer, signed.size, now)
            if isinstance(answer, WitnessRefusal) and answer.code != before:
                level: Level = "error" if answer.code in CONTRADICTIONS else "warning"
                log("witness_refused", level=level, subject=name, reason=answer.code)
    witnessing.is_current = witnessing.newest >= size
    instruments.witnessed_size.set(witnessing.newest)
    for one in witnessing.statuses():
        instruments.witness_cosigned.labels(one.name).set(one.size)


def _size(store: Store) -> int:
    with store.database.reading() as connection:
        return audit.log_size(connection)
