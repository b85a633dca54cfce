"""Limit large request bodies: a few are served at once, one of each caller; some wait; no caller takes every slot."""

import asyncio
from collections import Counter, OrderedDict, deque
from typing import Any

from meruit.errors import ApiProblem

AT_ONCE = 2
"""Large bodies parsed at once. A parsed body takes about thirty times its size in memory."""
MAX_WAITING = 16
"""Large bodies that were received and wait to be parsed."""
RETRY_AFTER_S = 1
ADMISSION_SLOT = "admission_slot"
"""The name of a request's slot in the state of its ASGI scope."""


class AdmissionSlot:
    """The slot of one request, from when its body is known to be large until its reply ends."""

    __slots__ = ("caller", "has_turn", "waits")

    def __init__(self, caller: str) -> None:
        self.caller = caller
        self.has_turn = False
        self.waits: asyncio.Future[None] | None = None


class BodyAdmission:
    """Gives slots to large bodies, and lets callers take turns. Belongs to one event loop."""

    def __init__(self, at_once: int = AT_ONCE, waiting: int = MAX_WAITING) -> None:
        self._at_once = at_once
        self._slots = at_once + waiting
        self._slots_per_caller = max(1, waiting // 2)
        self._held: Counter[str] = Counter()
        self._queues: OrderedDict[str, deque[AdmissionSlot]] = OrderedDict()
        self._served: set[str] = set()
        """Callers that have a turn. One large body at a time of each: a second would hold up everyone else twice."""

    @property
    def busy(self) -> int:
        """Requests whose body is being parsed or served."""
        return len(self._served)

    @property
    def slots_in_use(self) -> int:
        """How many requests have a slot."""
        return self._held.total()

    def acquire_slot(self, caller: str) -> AdmissionSlot:
        """Take a slot for one large body; raises ApiProblem 503 when no slot is free, or this caller has too many."""
        if self.slots_in_use >= self._slots or self._held[caller] >= self._slots_per_caller:
            raise ApiProblem(
                503,
                "too_many_large_bodies",
                "too many large bodies are being served; retry in a moment",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )
        self._held[caller] += 1
        return AdmissionSlot(caller)

    async def wait_for_turn(self, slot: AdmissionSlot) -> None:
        """Wait until this body may be parsed. Callers take turns; each caller's bodies come one after another."""
        if slot.has_turn:
            return
        if self.busy < self._at_once and slot.caller not in self._served:
            self._give_turn(slot)
            return
        slot.waits = asyncio.get_running_loop().create_future()
        self._queues.setdefault(slot.caller, deque()).append(slot)
        await slot.waits

    def release_slot(self, slot: AdmissionSlot) -> None:
        """Free the slot, however far its request came."""
        self._held[slot.caller] -= 1
        if not self._held[slot.caller]:
            del self._held[slot.caller]
        if slot.has_turn:
            self._served.remove(slot.caller)
            self._admit_next()
        elif slot.waits is not None:
            self._queues[slot.caller].remove(slot)
            self._drop_empty_queue(slot.caller)

    def _admit_next(self) -> None:
        waiting = next(((one, queue) for one, queue in self._queues.items() if one not in self._served), None)
        if waiting is None:
            return
        caller, queue = waiting
        slot = queue.popleft()
        self._queues.move_to_end(caller)
        self._drop_empty_queue(caller)
        self._give_turn(slot)

    def _give_turn(self, slot: AdmissionSlot) -> None:
        self._served.add(slot.caller)
        slot.has_turn = True
        # A caller that left while it waited still frees its slot.
        if slot.waits is not None and not slot.waits.done():
            slot.waits.set_result(None)

    def _drop_empty_queue(self, caller: str) -> None:
        if not self._queues[caller]:
            del self._queues[caller]

    # Any: an application may put any value into the state of an ASGI scope.
    def on_request_end(self, state: dict[str, Any]) -> None:
        """Free the slot of a request that ended."""
        slot = state.pop(ADMISSION_SLOT, None)
        if isinstance(slot, AdmissionSlot):
            self.release_slot(slot)
