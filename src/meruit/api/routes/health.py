"""Whether the service lives, and its numbers."""

from contextlib import suppress

from litestar import Response, get
from sqlalchemy import select

from meruit import __version__
from meruit.api.auth import PUBLIC, READERS
from meruit.api.request import ApiRequest
from meruit.api.wire import json_response
from meruit.errors import StoreError
from meruit.gate.run import FINAL_STATES, RunState
from meruit.gate.store import read as agent_reading
from meruit.model.record import Record
from meruit.store import tables

PROMETHEUS = "text/plain; version=0.0.4"
"""In UTF-8, as Litestar adds by itself."""


class Health(Record, frozen=True):
    """How the service is."""

    status: str
    version: str
    database: str


@get("/health", opt={PUBLIC: True}, summary="Whether the service can serve", tags=["service"])
async def read_health(request: ApiRequest) -> Response[Health]:
    """200 when records can be read, 503 when not."""
    try:
        await request.service.read(lambda connection: connection.execute(select(tables.log_state.c.id)).one())
    except StoreError:
        return json_response(Health("unavailable", __version__, "unreachable"), 503)
    return json_response(Health("ok", __version__, "ok"))


@get("/metrics", guards=[READERS], summary="Numbers for Prometheus", tags=["service"], media_type=PROMETHEUS)
async def read_metrics(request: ApiRequest) -> Response[bytes]:
    """Requests, verdicts, records, deliveries, agents' runs, in Prometheus's text format."""
    service = request.service
    service.instruments.recorder_queue.set(service.store.recorder.queue_length)
    # The other numbers are there to be read, most of all where the database is not.
    with suppress(StoreError):
        standing = await service.read(agent_reading.count_by_state)
        for state in RunState:
            if state not in FINAL_STATES:
                service.instruments.agent_runs.labels(state.value).set(standing.get(state, 0))
    return Response(service.instruments.exposition(), media_type=PROMETHEUS)
