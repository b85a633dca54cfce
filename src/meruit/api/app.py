"""The application: routes, authentication, error handlers, and the background tasks of the service."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from meruit.api import openapi
from meruit.api.admission import BodyAdmission
from meruit.api.auth import Authenticator, build_authentication
from meruit.api.bodies.dismantle import end_pause
from meruit.api.db_threads import share_slow_threads
from meruit.api.direct_routes import DirectRoutes
from meruit.api.idempotency import KeysInFlight
from meruit.api.integrity import StoreIntegrity, check_in_background
from meruit.api.logging import log, log_each
from meruit.api.open_streams import OpenStreams
from meruit.api.playground_host import PlaygroundHosting, is_playground_path
from meruit.api.problems import exception_handlers
from meruit.api.query_params import reject_unknown_parameters
from meruit.api.quotas import Quotas, record_use_in_background
from meruit.api.rate_limit import Throttle, TrafficLimits
from meruit.api.request import ApiRequest, Service
from meruit.api.routes import (
    agent_runs,
    agents,
    audit,
    benchmarks,
    contracts,
    criteria,
    datasets,
    evaluation_export,
    evaluations,
    events,
    governance,
    health,
    keys,
    ledger,
    outcomes,
    playgrounds,
    reviews,
    standings,
    usage,
    verify,
    work,
)
from meruit.api.routes import task_runs as runs
from meruit.api.server import ShutdownSignal
from meruit.api.telemetry import Instruments, TelemetryMiddleware
from meruit.api.witnessing import Witnessing, witness_in_background
from meruit.app import build_benchmarks, build_engine, build_marketplace
from meruit.benchmarks import records as task_runs
from meruit.benchmarks.service import needs_environment
from meruit.config import ServiceSettings, Settings
from meruit.contracts.transitions import ExpireContracts
from meruit.errors import SandboxInsecure
from meruit.events.commit_signal import first_of
from meruit.events.dispatcher import Dispatcher
from meruit.model.events import Event, EventType
from meruit.outcomes.service import Registrar
from meruit.sandbox.selftest import examine
from meruit.sources.http_guard import Outbound
from meruit.store.database import MAX_PAGE
from meruit.store.recorder import CommitNotice
from meruit.store.store import Store
from meruit.verify.custom_code import CustomCode
from meruit.verify.engine import VerificationEngine
from meruit.web.app import ExceptionHandlers, RouteGroup, WebApp
from meruit.web.loop_turns import LoopTurns

if TYPE_CHECKING:
    # Not on Windows.
    from meruit.api.processes.inheritance import WorkerProcess
    from meruit.api.processes.limits import SharedLimits

MEGABYTE = 1_048_576
EXPIRY_S = 30.0
"""Seconds between two searches for contracts whose deadline has passed."""
EXPIRED_AT_ONCE, MAX_ROUNDS = 100, 100
"""Most contracts that one transaction expires, and most such transactions in a row."""
SWEEP_S = 5.0
"""Seconds between two searches for task runs that timed out and environments that are no longer used."""
CONTRACT_EVENT_PREFIX = "contract."
"""Prefix of the event types of contracts."""
RUN_EVENT_PREFIXES = ("task_run.", "benchmark_run.")
AGENT_EVENT_PREFIXES = ("agent_run.", "verification_")
AGENT_RUN_ID = re.compile(r"run_[0-9a-f]{34}(?![0-9a-f])")
USAGE_EVENT_PREFIXES = ("usage_run.", "usage.")
"""Logged without run ids, because clients choose them."""
PLAYGROUNDS = "/playgrounds"
"""Route label of the systems of all playgrounds."""
DEADLINE_ACTOR = "deadline"
"""The actor that expires contracts."""
LARGE_BODY_ROUTES = [
    verify.verify_work,
    verify.verify_batch,
    work.submit_work,
    work.list_work,
    contracts.complete_contract,
    benchmarks.publish_benchmark,
    benchmarks.list_benchmarks,
    benchmarks.read_benchmark,
    benchmarks.replace_benchmark,
    benchmarks.change_benchmark,
    benchmarks.delete_benchmark,
    playgrounds.create_playground,
    playgrounds.list_playgrounds,
    usage.record_usage_run,
    usage.list_usage_runs,
    evaluations.start_evaluation,
    evaluations.list_evaluations,
    evaluations.record_cases,
    evaluations.list_cases,
    datasets.add_dataset,
    datasets.list_datasets,
    reviews.create_review,
    reviews.list_reviews,
    reviews.record_labels,
    reviews.list_labels,
]
"""Routes whose body may be as large as evidence, and the routes that share a path with one of them."""
ROUTES = [
    criteria.register_criteria,
    criteria.validate_criteria,
    criteria.list_criteria,
    criteria.read_criteria,
    criteria.list_criteria_versions,
    criteria.read_criteria_version,
    outcomes.list_outcomes,
    outcomes.read_outcome,
    outcomes.list_verdicts,
    outcomes.compare_verdicts,
    outcomes.read_receipt,
    outcomes.read_bundle,
    work.read_work,
    contracts.award_contract,
    contracts.list_contracts,
    contracts.list_holds,
    contracts.read_hold,
    contracts.read_contract,
    contracts.start_contract,
    contracts.settle_contract,
    contracts.release_contract,
    contracts.void_contract,
    contracts.reverse_payment,
    contracts.dispute_contract,
    contracts.resolve_dispute,
    contracts.rejudge_contract,
    benchmarks.read_task,
    standings.read_leaderboard,
    standings.compare_benchmark_runs,
    runs.create_benchmark_run,
    runs.list_benchmark_runs,
    runs.read_benchmark_run,
    runs.cancel_benchmark_run,
    runs.resume_benchmark_run,
    runs.create_task_run,
    runs.list_task_runs,
    runs.read_task_run,
    runs.start_task_run,
    runs.read_task_run_access,
    runs.read_task_run_progress,
    runs.complete_task_run,
    runs.cancel_task_run,
    runs.recheck_task_run,
    runs.rejudge_task_run,
    runs.list_criterion_runs,
    runs.read_criterion_run,
    playgrounds.read_playground,
    playgrounds.checkpoint_playground,
    playgrounds.reset_playground,
    playgrounds.branch_playground,
    playgrounds.remove_playground,
    playgrounds.list_playground_events,
    agent_runs.create_agent_run,
    agent_runs.list_agent_runs,
    agent_runs.read_agent_run,
    agent_runs.read_submission,
    agent_runs.cancel_agent_run,
    agent_runs.resume_agent_run,
    agent_runs.list_agent_run_events,
    usage.read_usage_run,
    usage.add_usage_step,
    usage.end_usage_run,
    usage.acknowledge_usage,
    usage.request_usage_observation,
    evaluations.read_evaluation,
    evaluations.finish_evaluation,
    evaluations.read_case,
    evaluations.compare_evaluations,
    evaluations.compare_by_preference,
    evaluation_export.export_evaluation,
    datasets.read_dataset,
    datasets.list_dataset_cases,
    datasets.compare_datasets,
    reviews.read_review,
    reviews.read_next_case,
    agents.read_trust,
    ledger.read_balances,
    ledger.read_earnings,
    ledger.read_statement,
    governance.validate_outcome,
    keys.create_key,
    keys.list_keys,
    keys.read_quotas,
    keys.revoke_key,
    audit.read_checkpoint,
    audit.read_verifier_key,
    audit.read_consistency,
    audit.read_keys,
    events.stream_events,
    events.create_webhook,
    events.list_webhooks,
    events.delete_webhook,
    events.list_dead_letters,
    events.redeliver_dead_letter,
    health.read_health,
    health.read_metrics,
    openapi.read_openapi,
]


class PageRoutes(msgspec.Struct, frozen=True):
    """Pages for browsers that a service has beside its API."""

    group: RouteGroup
    # Any: what the pages keep between requests.
    state: dict[str, Any]
    exception_handlers: ExceptionHandlers
    """For requests that match no route at all."""


def build_app(service: Service, pages: PageRoutes | None = None, *, working: bool = True) -> ASGIApp:
    """Build the whole service as one ASGI application; one that is not `working` only shows what is recorded."""
    settings = service.settings
    app = WebApp(
        [
            *ROUTES,
            RouteGroup(routes=LARGE_BODY_ROUTES, max_body_bytes=settings.max_evidence_bytes),
            *(() if pages is None else [pages.group]),
        ],
        request_class=ApiRequest,
        guards=[build_authentication(service.authenticator), reject_unknown_parameters],
        exception_handlers={**exception_handlers, **({} if pages is None else pages.exception_handlers)},
        state={"service": service, **({} if pages is None else pages.state)},
        lifespan=[_share_threads, _choose_lifespan(service, working=working)],
        max_body_bytes=settings.max_body_bytes,
    )
    _observe_group_sizes(service)
    new_id = service.store.surroundings.new_id
    direct = DirectRoutes(app, (verify.VERIFY_DIRECTLY, health.HEALTH_DIRECTLY))
    router = _PlaygroundRouter(app, direct, service.hosting)
    return TelemetryMiddleware(
        router,
        service.instruments,
        new_id=lambda: new_id("req"),
        over=lambda state: _end_request(service, state),
        count=service.quotas.count,
    )


# Any: an application may put any value into the state of an ASGI scope.
def _end_request(service: Service, state: dict[str, Any]) -> None:
    """Free what a request has taken, however it ended."""
    service.admission.on_request_end(state)
    service.open_streams.on_request_end(state)
    end_pause(state)


class _PlaygroundRouter:
    """Routes requests to the service or to the systems of playgrounds, which have their own keys."""

    def __init__(self, app: WebApp, direct: DirectRoutes, hosting: PlaygroundHosting) -> None:
        self.service = app
        self._direct = direct
        self._hosting = hosting

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        chosen: ASGIApp = self._direct
        if scope["type"] == "http" and is_playground_path(scope["path"]):
            scope["path_template"] = PLAYGROUNDS
            chosen = self._hosting.app
        await chosen(scope, receive, send)


def build_service(
    settings: Settings,
    store: Store,
    stopping: ShutdownSignal,
    *,
    allow_python_full: bool = False,
    hosting: PlaygroundHosting | None = None,
    process: "WorkerProcess | None" = None,
) -> Service:
    """Build the service from its settings; raises SandboxInsecure. One of several workers has a `process`."""
    engine = build_engine(settings, allow_python_full=allow_python_full)
    _refuse_open_sandbox(engine.catalogue.sandboxes.policy)
    return assemble_service(engine, settings, store, stopping, hosting, process)


def _build_throttle(limits: ServiceSettings, shared: "SharedLimits | None") -> Throttle:
    traffic = TrafficLimits(
        tenant_requests=limits.tenant_requests_per_minute,
        key_bytes=limits.key_mb_per_minute * MEGABYTE,
        tenant_bytes=limits.tenant_mb_per_minute * MEGABYTE,
        burst_bytes=2 * limits.max_evidence_bytes,
    )
    return Throttle(
        limits.requests_per_minute,
        limits.requests_per_minute,
        traffic=traffic,
        shared=lambda number: None if shared is None else shared.table(number),
    )


def assemble_service(
    engine: VerificationEngine,
    settings: Settings,
    store: Store,
    stopping: ShutdownSignal,
    hosting: PlaygroundHosting | None = None,
    process: "WorkerProcess | None" = None,
) -> Service:
    """Build the service around an engine whose sandbox was already tested."""
    hosting = hosting or build_hosting(store, settings)
    shared = None if process is None else process.limits
    instruments, throttle = Instruments(), _build_throttle(settings.service, shared)
    outbound = Outbound(allowed_networks=settings.service.webhook_networks)
    registrar = Registrar(engine, store, max_criteria=settings.verification.max_criteria_per_task)
    return Service(
        store=store,
        registrar=registrar,
        marketplace=build_marketplace(settings, registrar),
        dispatcher=Dispatcher(
            store,
            outbound.post,
            log=partial(_log_events, instruments),
            report=_log_delivery_failure,
            counters=_PrometheusDeliveryCounters(instruments),
        ),
        outbound=outbound,
        instruments=instruments,
        authenticator=Authenticator(store, throttle),
        throttle=throttle,
        quotas=Quotas(store, settings.service.tenant_stored_mb, settings.service.agent_key_stored_mb),
        keys_in_flight=KeysInFlight(shared),
        admission=BodyAdmission(),
        turns=LoopTurns(),
        settings=settings.service,
        configuration=settings,
        stopping=stopping,
        open_streams=OpenStreams(shared),
        integrity=StoreIntegrity(),
        witnessing=Witnessing(settings.audit.known_witnesses, settings.audit.needed),
        ended=asyncio.Event(),
        record_by_default=settings.verification.store_outcomes,
        max_criteria=settings.verification.max_criteria_per_task,
        benchmarks=build_benchmarks(settings, store, hosting),
        hosting=hosting,
        usage_policy=settings.usage.policy.policy,
        process=process,
    )


# Any: further arguments of PlaygroundHosting.
def build_hosting(store: Store, settings: Settings, **more: Any) -> PlaygroundHosting:
    """Build the hosting of the playgrounds in the folder of a store, without starting it."""
    surroundings = store.surroundings
    folder = store.database.location.folder
    quota = settings.benchmarks.playground_quota_mb * 1024 * 1024
    return PlaygroundHosting(
        folder, settings, clock=surroundings.clock, entropy=surroundings.entropy, quota_bytes=quota, **more
    )


def _refuse_open_sandbox(policy: CustomCode | None) -> None:
    """Refuse to serve untrusted code where the sandbox does not confine it."""
    for tier in sorted(policy.tiers) if policy is not None else ():
        found = examine(tier)
        # Code of a tier that is not installed cannot run: criteria that bring some are refused, and name the extra.
        if found.is_installed and not found.ready:
            raise SandboxInsecure(
                f"the sandbox is not secure on this machine in the tier {tier}: "
                f"{found.reason or 'a test escaped from it'}; run `meruit doctor` for details. To serve without custom "
                "code in criteria, pass --config with a copy of config/outcome-verification.yaml that has "
                "`enabled: false` under custom"
            )


def _lifespan(service: Service) -> "Lifespan":
    @asynccontextmanager
    async def run_background_tasks(_app: WebApp) -> AsyncIterator[None]:
        async with service.outbound, service.hosting:
            end_streams = asyncio.create_task(_end_streams_on_shutdown(service))
            deliver = asyncio.create_task(service.dispatcher.run(service.ended))
            expire = asyncio.create_task(_expire_due(service))
            sweep = asyncio.create_task(_sweep_runs(service))
            examine_log = asyncio.create_task(
                check_in_background(service.store, service.integrity, service.instruments, service.ended)
            )
            count_use = asyncio.create_task(record_use_in_background(service.quotas, service.ended))
            witness = asyncio.create_task(
                witness_in_background(service.store, service.witnessing, service.instruments, service.ended)
            )
            try:
                yield
            finally:
                service.ended.set()
                end_streams.cancel()
                # A request to a witness that does not answer would hold up the end; it is asked again after the start.
                witness.cancel()
                await asyncio.gather(witness, return_exceptions=True)
                await examine_log
                await count_use
                await deliver
                await expire
                await sweep

    return run_background_tasks


Lifespan = Callable[[WebApp], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def _share_threads(_app: WebApp) -> AsyncIterator[None]:
    share_slow_threads()
    yield


def _choose_lifespan(service: Service, *, working: bool) -> Lifespan:
    """What runs beside the requests: of several workers, only the first one delivers, expires, checks and witnesses."""
    process = service.process
    if not working:
        return _watch(service)
    if process is None:
        return _lifespan(service)
    return _as_worker(service, process, _lifespan(service) if process.is_first else _serve_beside_first(service))


def _as_worker(service: Service, process: "WorkerProcess", inner: Lifespan) -> Lifespan:
    from meruit.api.sibling_workers import send_checks, share_with_siblings

    @asynccontextmanager
    async def run_with_siblings(app: WebApp) -> AsyncIterator[None]:
        async with inner(app):
            share_with_siblings(service, process)
            sending = asyncio.create_task(send_checks(service, process)) if process.is_first else None
            try:
                yield
            finally:
                service.ended.set()
                if sending is not None:
                    await sending
                await process.siblings.close()

    return run_with_siblings


def _serve_beside_first(service: Service) -> Lifespan:
    @asynccontextmanager
    async def serve(app: WebApp) -> AsyncIterator[None]:
        async with service.outbound, service.hosting, _watch(service)(app):
            count_use = asyncio.create_task(record_use_in_background(service.quotas, service.ended))
            try:
                yield
            finally:
                service.ended.set()
                await count_use

    return serve


def _watch(service: Service) -> Lifespan:
    @asynccontextmanager
    async def notice_events(_app: WebApp) -> AsyncIterator[None]:
        end_streams = asyncio.create_task(_end_streams_on_shutdown(service))
        watch = asyncio.create_task(service.dispatcher.watch(service.ended))
        try:
            yield
        finally:
            service.ended.set()
            end_streams.cancel()
            await watch

    return notice_events


async def _end_streams_on_shutdown(service: Service) -> None:
    """End event streams before the server waits for open replies."""
    await service.stopping.wait()
    service.ended.set()


async def _expire_due(service: Service) -> None:
    """Expire contracts that were not completed in time and return their escrow, until the service ends."""
    while not service.ended.is_set():
        await first_of(service.ended, within_s=EXPIRY_S)
        try:
            for _ in range(MAX_ROUNDS):
                if service.ended.is_set():
                    return
                if (
                    await service.store.recorder.record(ExpireContracts(DEADLINE_ACTOR, EXPIRED_AT_ONCE))
                    < EXPIRED_AT_ONCE
                ):
                    break
        except Exception as problem:  # noqa: BLE001 - nothing may end the loop silently; the error is logged and retried
            log("expiry_failed", level="error", error=problem)


async def _sweep_runs(service: Service) -> None:
    """Time out task runs, and remove environments of runs that ended elsewhere, until the service ends."""
    while not service.ended.is_set():
        await first_of(service.ended, within_s=SWEEP_S)
        try:
            if not service.ended.is_set():
                await service.benchmarks.sweep()
                await _discard_ended_environments(service)
        except Exception as problem:  # noqa: BLE001 - nothing may end the loop silently; the error is logged and retried
            log("sweep_failed", level="error", error=problem)


async def _discard_ended_environments(service: Service) -> None:
    """Remove playgrounds of runs that another process cancelled or timed out."""
    for tenant, run_ids in service.hosting.task_runs_by_tenant().items():
        for start in range(0, len(run_ids), MAX_PAGE):
            some = run_ids[start : start + MAX_PAGE]
            for run in await service.read(partial(task_runs.find_several, tenant=tenant, ids=some)):
                if run.playground_id is not None and not needs_environment(run):
                    await service.hosting.discard(run.playground_id)


class _PrometheusDeliveryCounters(msgspec.Struct, frozen=True):
    """Counts deliveries in Prometheus metrics."""

    instruments: Instruments

    def count_attempt(self, result: str, tenant: str) -> None:
        self.instruments.webhook_attempts_total.labels(result, tenant).inc()

    def count_dead_letter(self, tenant: str) -> None:
        self.instruments.dead_letters_total.labels(tenant).inc()

    def set_lag(self, count: int) -> None:
        self.instruments.outbox_lag.set(count)


def _log_events(instruments: Instruments, several: Sequence[Event]) -> None:
    """Count and log events, only with ids that the service created: others may hold a payload."""
    for event in several:
        tenant = event.tenant_id
        if event.event_type.startswith(CONTRACT_EVENT_PREFIX):
            instruments.contract_events_total.labels(event.event_type.removeprefix(CONTRACT_EVENT_PREFIX), tenant).inc()
        if event.event_type.startswith(AGENT_EVENT_PREFIXES):
            instruments.agent_events_total.labels(event.event_type, tenant).inc()
        if event.event_type.startswith(USAGE_EVENT_PREFIXES):
            instruments.usage_events_total.labels(event.event_type, tenant).inc()
    log_each(
        "event",
        [
            {
                "event_id": event.event_id,
                "event_type": event.event_type,
                "tenant": event.tenant_id,
                "outcome_id": event.data.get("outcome_id"),
                **_loggable_ids(event),
            }
            for event in several
        ],
    )


def _loggable_ids(event: Event) -> dict[str, Any]:
    if event.event_type.startswith(CONTRACT_EVENT_PREFIX):
        return {"contract_id": event.data.get("contract_id"), "work_id": event.data.get("work_id")}
    if event.event_type.startswith(RUN_EVENT_PREFIXES):
        return {name: event.data.get(name) for name in ("task_run_id", "benchmark_run_id")}
    if event.event_type.startswith(AGENT_EVENT_PREFIXES):
        # A client may choose the id of a run; only ids of the service are logged.
        named = AGENT_RUN_ID.match(str(event.data.get("run_id")))
        return {"agent_run_id": None if named is None else named[0]}
    return {"work_id": event.data.get("work_id")} if event.event_type == EventType.WORK_SUBMITTED else {}


def _log_delivery_failure(problem: Exception) -> None:
    log("delivery_failed", level="error", error=problem)


def _observe_group_sizes(service: Service) -> None:
    def count(done: CommitNotice) -> None:
        service.instruments.group_size.observe(done.callers)

    service.store.recorder.listen(count)
