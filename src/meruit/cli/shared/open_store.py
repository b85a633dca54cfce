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


LATEST = "latest"
"""In place of the id of an outcome."""


def resolve_outcome(store: "Store", tenant: str, given: str) -> str:
    """The id of an outcome, where LATEST means the one that was recorded last; raises NotFound where there is none."""
    if given != LATEST:
        return given
    from meruit.errors import NotFound
    from meruit.model.access import Scope
    from meruit.outcomes.records import page

    with store.database.reading() as connection:
        found, _ = page(connection, Scope(tenant), limit=1)
    if not found:
        raise NotFound(f"there are no outcomes of the tenant {tenant!r}; `meruit verify --record` records one")
    return found[0].id
