"""Sorted pages of lists that may be very long: sorted beside the request where that takes long."""

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from meruit.console.background import Computing, Progress
from meruit.console.page import PageRequest
from meruit.console.query import Query
from meruit.console.table import FORMAT
from meruit.store.sorting import SortedPage

T = TypeVar("T")


async def sort_beside(
    request: PageRequest, query: Query, read: Callable[[Connection], SortedPage[T]]
) -> SortedPage[T] | Computing:
    """A page of a sorted list; a file waits for it."""
    service, caller = request.service, request.caller

    def compute(_: Progress) -> SortedPage[T]:
        with service.store.database.reading() as connection:
            return read(connection)

    key = ("sorted", service.store.signer.vkey, caller.scope, str(query))
    figures = request.console.figures
    if query.get(FORMAT):
        return await figures.wait_for(key, compute, changing=True)
    return await figures.ask(key, compute, changing=True)
