"""Count the open event streams and exports of each key."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from meruit.errors import ApiProblem

if TYPE_CHECKING:
    # Not on Windows, which has no locks on bytes of a file.
    from meruit.api.processes.limits import SharedLimits

STREAM_OF = "stream_of"
"""The key that a request's stream counts for and its slot, by this name in the state of its ASGI scope."""


class OpenStreams:
    """The open event streams of each key. Belongs to one event loop; limits hold for all workers of a service."""

    def __init__(self, shared: "SharedLimits | None" = None) -> None:
        self._open: Counter[str] = Counter()
        self._shared = shared

    def __getitem__(self, key_id: str) -> int:
        return self._open[key_id]

    @property
    def total(self) -> int:
        """Open streams of all keys, of this process."""
        return self._open.total()

    # Any, here and below: an application may put any value into the state of an ASGI scope.
    def open_stream(self, key_id: str, most: int, state: dict[str, Any]) -> None:
        """Count one more stream until its request ends; raises ApiProblem 429 for one too many."""
        slot = 0 if self._shared is None else self._shared.acquire(_slot_name(key_id), most)
        if self._open[key_id] >= most or slot is None:
            raise ApiProblem(429, "too_many_streams", f"a key may have {most} open streams; close one first")
        self._open[key_id] += 1
        state[STREAM_OF] = (key_id, slot)

    def on_request_end(self, state: dict[str, Any]) -> None:
        """Count the stream of a request that ended no longer."""
        counted = state.pop(STREAM_OF, None)
        if isinstance(counted, tuple):
            key_id, slot = counted
            if self._shared is not None:
                self._shared.release(_slot_name(key_id), slot)
            self._open[key_id] -= 1
            if not self._open[key_id]:
                del self._open[key_id]


def _slot_name(key_id: str) -> str:
    return f"stream:{key_id}"
