"""Open the store that a command reads or writes."""

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meruit.store.store import Store


@contextmanager
def open_records(data: str | None, database_url: str | None) -> "Iterator[Store]":
    """Open the store for a while; raises StoreError if there is none."""
    from meruit.app import open_store
    from meruit.config import location_of

    store = open_store(location_of(data, database_url))
    try:
        yield store
    finally:
        store.close()
