"""What the tests of the outbox, of webhooks and of deliveries tell and read, and the clock that they move."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from sqlalchemy import Connection

from meruit.events.store.webhooks import AddWebhook, IssuedWebhook
from meruit.model.events import EventType
from meruit.model.time import to_micros
from meruit.store.store import Store
from meruit.store.transaction import WriteTransaction

T = TypeVar("T")
ME, OTHER = "me", "other"
SECOND = 1_000_000


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    @property
    def micros(self) -> int:
        return to_micros(self.now)

    def pass_s(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def emit(store: Store, *subjects: str, tenant: str = "acme", kind: EventType = EventType.OUTCOME_RECORDED) -> list[int]:
    """Events, in one transaction."""

    def write(writing: WriteTransaction) -> list[int]:
        return [writing.emit(tenant, kind, subject, f"{subject}:1", {"of": subject}) for subject in subjects]

    return store.recorder.write(write)


def add(store: Store, tenant: str = "acme", *types: str, url: str = "https://example.com/hook") -> IssuedWebhook:
    return store.recorder.write(AddWebhook(tenant, url, frozenset(types), store.surroundings.entropy))


def read(store: Store, reading: Callable[[Connection], T]) -> T:
    with store.database.reading() as connection:
        return reading(connection)
