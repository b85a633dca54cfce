"""`/health` and `/metrics`."""

from contextlib import suppress

import msgspec

from meruit import __version__
from meruit.api.auth import PUBLIC, READERS
from meruit.api.direct_routes import DirectRequest, DirectRoute
from meruit.api.integrity import IntegrityState
from meruit.api.processes.exposition import gather_expositions
from meruit.api.request import ApiRequest, EncodedReply, Service
from meruit.api.wire.common import json_response
from meruit.api.witnessing import WitnessedState
from meruit.errors import ApiProblem, StoreError
from meruit.gate import records as agent_reading
from meruit.model.record import Record
from meruit.web.responses import Response
from meruit.web.routing import get

PROMETHEUS = "text/plain; version=0.0.4"
"""The reply adds the charset UTF-8."""


class Health(Record, frozen=True):
    """The health of the service."""

    status: str
    """`ok`; `degraded` where the store contradicts its audit log or a witness, or nothing may be signed; `unavailable`
    without a database."""
    version: str
    database: str
    audit: str
    """Whether the store agrees with its audit log: `unchecked`, `checking`, `sound` or `broken`."""
    witnesses: str
    """Whether witnesses have cosigned the audit log: `off`, `waiting`, `witnessed`, or `contradicted`."""
    signing: str = "unknown"
    """Whether the service signs the audit log: `ok`, `key_not_admitted` (its key was retired), `log_rewritten`,
    `log_rolled_back` (the log lost entries), or `kept_checkpoint_damaged` (the data folder cannot tell)."""
    root: str = "unknown"
    """The root key of the audit log: `none`, `founding`, or `late` where it came after other entries."""


@get("/health", opt={PUBLIC: True}, summary="Check the health of the service", tags=["service"])
async def read_health(request: ApiRequest) -> Response[Health]:
    """Answer 200 when the database can be read, else 503; `audit` says whether it was changed from outside."""
    return json_response(*await _examine(request.service))


async def read_health_directly(request: DirectRequest) -> EncodedReply:
    """Answer as `read_health` does, for a request that is served past the framework."""
    return await _examine(request.service)


HEALTH_DIRECTLY = DirectRoute(
    method="GET", path="/health", handler=read_health_directly, has_body=False, is_public=True
)


async def _examine(service: Service) -> EncodedReply:
    audit, witnesses = service.integrity.state, service.witnessing.state
    try:
        signing = await service.read(service.store.read_signing)
    except StoreError:
        found = Health(
            status="unavailable",
            version=__version__,
            database="unreachable",
            audit=str(audit),
            witnesses=str(witnesses),
        )
        return EncodedReply(msgspec.json.encode(found), 503)
    broken = audit is IntegrityState.BROKEN or witnesses is WitnessedState.CONTRADICTED or signing.code != "ok"
    found = Health(
        status="degraded" if broken else "ok",
        version=__version__,
        database="ok",
        audit=str(audit),
        witnesses=str(witnesses),
        signing=signing.code,
        root=signing.root,
    )
    return EncodedReply(msgspec.json.encode(found))


@get("/metrics", guards=[READERS], summary="Read Prometheus metrics", tags=["service"], media_type=PROMETHEUS)
async def read_metrics(request: ApiRequest) -> Response[bytes]:
    """Read the metrics of the service in the text format of Prometheus; only for keys of the operator's tenant."""
    service = request.service
    operators = service.settings.operator_tenant
    if request.caller.tenant != operators:
        raise ApiProblem(403, "forbidden", f"only keys of the tenant {operators} read the metrics of all tenants")
    service.instruments.recorder_queue.set(service.store.recorder.queue_length)
    # The other metrics are served even when the database is down.
    with suppress(StoreError):
        standing = await service.read(agent_reading.count_by_state)
        # A tenant whose last run ended has no row any more.
        service.instruments.agent_runs.clear()
        for (tenant, state), count in standing.items():
            service.instruments.agent_runs.labels(state.value, tenant).set(count)
    exposition = service.instruments.exposition()
    if service.process is not None:
        exposition = await gather_expositions(service.process, exposition)
    return Response(exposition, media_type=PROMETHEUS)
