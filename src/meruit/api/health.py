"""Whether the service lives, and its numbers."""

from litestar import Response, get
from sqlalchemy import select

from meruit import __version__
from meruit.api.access import PUBLIC, READERS
from meruit.api.service import Asked
from meruit.api.wire import encoded
from meruit.model.record import Record
from meruit.stores import tables
from meruit.stores.database import StoreError

PROMETHEUS = "text/plain; version=0.0.4"
"""In UTF-8, as Litestar adds by itself."""


class Health(Record, frozen=True):
    """How the service is."""

    status: str
    version: str
    database: str


@get("/health", opt={PUBLIC: True}, summary="Whether the service can serve", tags=["service"])
async def health(request: Asked) -> Response[Health]:
    """200 when records can be read, 503 when not."""
    try:
        await request.service.read(lambda connection: connection.execute(select(tables.log_state.c.id)).one())
    except StoreError:
        return encoded(Health("unavailable", __version__, "unreachable"), 503)
    return encoded(Health("ok", __version__, "ok"))


@get("/metrics", guards=[READERS], summary="Numbers for Prometheus", tags=["service"], media_type=PROMETHEUS)
async def metrics(request: Asked) -> Response[bytes]:
    """Requests, verdicts, records, deliveries, in Prometheus's text format."""
    service = request.service
    service.instruments.recorder_queue.set(service.store.recorder.queued)
    return Response(service.instruments.exposition(), media_type=PROMETHEUS)
