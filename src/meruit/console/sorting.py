"""Sorted pages of lists that may be very long: sorted beside the request where that takes long."""

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from meruit.console.background import Computing, Progress
from meruit.console.page import PageRequest
from meruit.console.table import Table, read_once

T = TypeVar("T")


async def read_beside(request: PageRequest, table: Table, read: Callable[[Connection, Table], T]) -> T | Computing:
    """A page of a list: read at once in its usual order, beside the request where the reader chose another one."""
    service, caller = request.service, request.caller
    if table.order is None:
        return await service.read(lambda connection: read(connection, table))

    def compute(_: Progress) -> T:
        return read_once(service.store, read, table)

    key = ("sorted", service.store.signer.vkey, caller.scope, str(table.query))
    return await request.console.figures.ask(key, compute, changing=True)
