"""Count the open event streams of each key."""

from collections import Counter
from typing import Any

from meruit.errors import ApiProblem

STREAM_OF = "stream_of"
"""The name of the key that a request's stream counts for, in the state of its ASGI scope."""


class OpenStreams:
    """The open event streams of each key. Belongs to one event loop."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def __getitem__(self, key_id: str) -> int:
        return self._open[key_id]

    @property
    def total(self) -> int:
        """Open streams of all keys."""
        return self._open.total()

    # Any, here and below: an application may put any value into the state of an ASGI scope.
    def open_stream(self, key_id: str, most: int, state: dict[str, Any]) -> None:
        """Count one more stream until its request ends; raises ApiProblem 429 for one too many."""
        if self._open[key_id] >= most:
            raise ApiProblem(429, "too_many_streams", f"a key may have {most} open streams; close one first")
        self._open[key_id] += 1
        state[STREAM_OF] = key_id

    def on_request_end(self, state: dict[str, Any]) -> None:
        """Count the stream of a request that ended no longer."""
        key_id = state.pop(STREAM_OF, None)
        if isinstance(key_id, str):
            self._open[key_id] -= 1
            if not self._open[key_id]:
                del self._open[key_id]
