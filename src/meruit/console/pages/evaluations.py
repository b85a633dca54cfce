"""Evaluations: the list of them."""

import asyncio
from typing import Any

from litestar import Response

from meruit.api.listing import table_response
from meruit.console.live import Live
from meruit.console.page import NavEntry, PageRequest, page
from meruit.console.query import Query
from meruit.console.table import Column, Table
from meruit.evaluations.reader import Evaluations
from meruit.model.events import EventType

PAGE_SIZE = 25
COLUMNS = (
    Column("name", "Evaluation"),
    Column("status", "Status"),
    Column("cases", "Cases", numeric=True),
    Column("tags", "Tags", wide=True),
    Column("started", "Started", numeric=True),
)


@page("/evaluations", nav=NavEntry("Quality", "Evaluations", keys="e", order=10))
async def list_evaluations(request: PageRequest) -> Response[Any]:
    """List the evaluations, newest first."""
    query = Query.of(request)
    table = Table.of(query, "Evaluations, newest first", COLUMNS)
    evaluations = Evaluations(request.service.store, request.caller.tenant)
    before = query.get("before") or None
    found = await asyncio.to_thread(evaluations.page, before=before, limit=PAGE_SIZE + 1)
    shown, more = found[:PAGE_SIZE], len(found) > PAGE_SIZE
    if table.file is not None:
        rows = [(one.name, one.id, str(one.status), one.cases, one.started_at) for one in shown]
        return await table_response(request, table.file, ("name", "id", "status", "cases", "started_at"), rows)
    return request.show(
        "evaluations.html",
        live=Live(types=(EventType.EVALUATION_STARTED,)),
        table=table,
        evaluations=shown,
        query=query,
        next=query.turn("before", shown[-1].id) if more else None,
    )
