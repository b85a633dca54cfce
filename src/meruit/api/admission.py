"""How many large bodies there are at once: few are parsed and held, some wait, and nobody takes all the places."""

import asyncio
from collections import Counter, OrderedDict, deque
from typing import Any

from meruit.errors import ApiProblem

AT_ONCE = 2
"""Large bodies that are parsed and held; a parsed one takes some thirty times its size."""
MAX_WAITING = 16
"""Large bodies that are read, and wait for their turn."""
RETRY_AFTER_S = 1
ADMISSION_SLOT = "place"
"""Where a request's place stands in its scope's state."""


class AdmissionSlot:
    """One request's, from where its body is known to be large to the end of its answer."""

    __slots__ = ("caller", "has_turn", "waits")

    def __init__(self, caller: str) -> None:
        self.caller = caller
        self.has_turn = False
        self.waits: asyncio.Future[None] | None = None


class BodyAdmission:
    """Gives places to large bodies, and turns to callers one after the other; belongs to one event loop."""

    def __init__(self, at_once: int = AT_ONCE, waiting: int = MAX_WAITING) -> None:
        self._at_once = at_once
        self._places = at_once + waiting
        self._of_one_caller = max(1, waiting // 2)
        self._inside: Counter[str] = Counter()
        self._queues: OrderedDict[str, deque[AdmissionSlot]] = OrderedDict()
        self.busy = 0
        """Requests whose turn it is."""

    @property
    def slots_in_use(self) -> int:
        """Requests that have a place."""
        return self._inside.total()

    def acquire_slot(self, caller: str) -> AdmissionSlot:
        """A place for one large body; raises ApiProblem 503 when all are taken, or too many by this caller."""
        if self.slots_in_use >= self._places or self._inside[caller] >= self._of_one_caller:
            raise ApiProblem(
                *(503, "too_many_large_bodies", "too many large bodies are being served; send it again in a moment"),
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )
        self._inside[caller] += 1
        return AdmissionSlot(caller)

    async def wait_for_turn(self, place: AdmissionSlot) -> None:
        """Wait until this body may be parsed; what a caller sent first comes first, and callers take turns."""
        if place.has_turn:
            return
        if self.busy < self._at_once:
            self._give_turn(place)
            return
        place.waits = asyncio.get_running_loop().create_future()
        self._queues.setdefault(place.caller, deque()).append(place)
        await place.waits

    def release_slot(self, place: AdmissionSlot) -> None:
        """Give the place back, wherever its request got to."""
        self._inside[place.caller] -= 1
        if not self._inside[place.caller]:
            del self._inside[place.caller]
        if place.has_turn:
            self.busy -= 1
            self._admit_next()
        elif place.waits is not None:
            self._queues[place.caller].remove(place)
            self._forget_empty(place.caller)

    def _admit_next(self) -> None:
        if not self._queues:
            return
        caller, queue = next(iter(self._queues.items()))
        place = queue.popleft()
        self._queues.move_to_end(caller)
        self._forget_empty(caller)
        self._give_turn(place)

    def _give_turn(self, place: AdmissionSlot) -> None:
        self.busy += 1
        place.has_turn = True
        # Whoever left while waiting still gives its place back.
        if place.waits is not None and not place.waits.done():
            place.waits.set_result(None)

    def _forget_empty(self, caller: str) -> None:
        if not self._queues[caller]:
            del self._queues[caller]

    # Any: the state of an ASGI scope holds whatever its application puts there.
    def on_request_end(self, state: dict[str, Any]) -> None:
        """Hear that a request ended, however it did."""
        place = state.pop(ADMISSION_SLOT, None)
        if isinstance(place, AdmissionSlot):
            self.release_slot(place)
