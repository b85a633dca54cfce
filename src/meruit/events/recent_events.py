"""Events that this process has just committed, so that the log of the service need not read them back."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from meruit.events.store.outbox import outbox_event_of
from meruit.model.events import OutboxEvent

MAX_RECENT = 4_096
"""Events that are kept until they are logged; older ones are read from the outbox."""


class RecentEvents:
    """The newest events of this process, in order. One thread adds them, another takes them."""

    def __init__(self, most: int = MAX_RECENT) -> None:
        # Any: rows of the outbox, as they were written.
        self._rows: deque[tuple[Any, ...]] = deque(maxlen=most)

    def add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Keep the rows of a transaction that is durable."""
        self._rows.extend(rows)

    def take_after(self, seq: int) -> list[OutboxEvent]:
        """Remove and return the events that follow a number without a gap; others are in the outbox."""
        rows, found = self._rows, list[OutboxEvent]()
        while rows and rows[0][0] <= seq + 1:
            row = rows.popleft()
            if row[0] == seq + 1:
                found.append(outbox_event_of(*row))
                seq += 1
        return found
