"""Telemetry of every request: its id, security headers, one log line, and metrics for Prometheus."""

import asyncio
import re
import threading
import time
from collections.abc import Callable
from http import HTTPMethod
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from meruit.api.logging import log_each
from meruit.model.access import Caller

NO_ROUTE = "-"
"""The route label of a request that matches no route."""
OTHER_METHOD = "other"
DOCS_PATH = "/schema"
GONE = 499
"""The status label when the client left before the reply began."""
FAILED = 500

_METHODS = frozenset(HTTPMethod)
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_NO_STORE = (b"cache-control", b"no-store")
_NO_SNIFF = (b"x-content-type-options", b"nosniff")
_NO_CONTENT = (b"content-security-policy", b"default-src 'none'")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
MAX_TIMED = 2_000
"""Pairs of a route and a tenant that have times of their own; each is a dozen lines of `/metrics`."""
OTHER_TENANTS = "(other)"
"""The tenants of further pairs, together."""
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Instruments:
    """The metrics of one service, in its own registry."""

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        self.requests_total = Counter(
            "meruit_requests", "Requests answered.", ("method", "route", "status", "tenant"), registry=own
        )
        self.request_seconds = Histogram(
            "meruit_request_seconds",
            "From first byte in to last byte out.",
            ("route", "tenant"),
            buckets=_SECONDS,
            registry=own,
        )
        self.requests_in_flight = Gauge("meruit_requests_in_flight", "Requests being answered now.", registry=own)
        self.verdicts_total = Counter("meruit_verdicts", "Verdicts given.", ("verdict", "tenant"), registry=own)
        self.recorded_total = Counter("meruit_recorded", "Outcomes recorded.", ("tenant",), registry=own)
        self.contract_events_total = Counter(
            "meruit_contract_events", "Events of contracts.", ("event", "tenant"), registry=own
        )
        self.agent_events_total = Counter(
            "meruit_agent_events", "Events of agent runs and their verifications.", ("event", "tenant"), registry=own
        )
        self.usage_events_total = Counter(
            "meruit_usage_events",
            "Events of usage runs.",
            ("event", "tenant"),
            registry=own,
        )
        self.agent_runs = Gauge(
            "meruit_agent_runs", "Agent runs that have not ended.", ("status", "tenant"), registry=own
        )
        self.group_size = Histogram(
            "meruit_group_size", "Outcomes written in one transaction.", buckets=_SIZES, registry=own
        )
        self.recorder_queue = Gauge("meruit_recorder_queue", "Outcomes waiting to be written.", registry=own)
        self.outbox_lag = Gauge("meruit_outbox_lag", "Events that are not delivered yet.", registry=own)
        self.webhook_attempts_total = Counter(
            "meruit_webhook_attempts", "Deliveries tried.", ("result", "tenant"), registry=own
        )
        self.dead_letters_total = Counter(
            "meruit_dead_letters", "Events that became dead letters.", ("tenant",), registry=own
        )
        self.audit_problems = Gauge(
            "meruit_audit_problems", "Contradictions between the store and its audit log.", registry=own
        )
        self.audit_leaves = Gauge("meruit_audit_leaves_checked", "Leaves of the audit log checked.", registry=own)
        self.witnessed_size = Gauge(
            "meruit_audit_witnessed_entries", "Entries of the audit log that the quorum has cosigned.", registry=own
        )
        self.witness_cosigned = Gauge(
            "meruit_witness_entries",
            "Entries of the audit log that a witness cosigned last.",
            ("witness",),
            registry=own,
        )
        ProcessCollector(registry=own)
        self.in_flight = 0
        self.requests_in_flight.set_function(lambda: self.in_flight)
        self._counts: dict[tuple[Counter, tuple[str, ...]], int] = {}
        self._counting = threading.Lock()

    def count(self, counter: Counter, *labels: str, by: int = 1) -> None:
        """Add to a counter when the metrics are next read: to find and change it costs more than a small digest."""
        key = counter, labels
        with self._counting:
            self._counts[key] = self._counts.get(key, 0) + by

    def _add_counts(self) -> None:
        with self._counting:
            counts, self._counts = self._counts, {}
        for (counter, labels), number in counts.items():
            counter.labels(*labels).inc(number)

    def exposition(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        self._add_counts()
        return generate_latest(self.registry)

    def exposition_for_sibling(self) -> bytes:
        """The metrics of this process alone, without counts that it once read for all."""
        self.agent_runs.clear()
        self._add_counts()
        return generate_latest(self.registry)


class TelemetryMiddleware:
    """An ASGI app around the whole service, so that requests without a route are counted too."""

    def __init__(
        self,
        app: ASGIApp,
        instruments: Instruments,
        *,
        new_id: Callable[[], str],
        over: Callable[[dict[str, Any]], None] = lambda _state: None,
        count: Callable[[Caller | None, str, int, int], None] = lambda *_: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`over` is called at the end of each request with its state, `count` with caller, method, status and bytes."""
        self._count = count
        self._app = app
        self._over = over
        self._instruments = instruments
        self._new_id = new_id
        self._clock = clock
        self._histograms: dict[tuple[str, str], Histogram] = {}
        self._lines: list[dict[str, Any]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = self._clock()
        request_id = _client_id(scope["headers"]) or self._new_id()
        state: dict[str, Any] = scope.setdefault("state", {})
        state["request_id"] = request_id
        added = _headers(request_id, scope["path"])
        status = 0
        bytes_in = 0

        async def receive_and_count() -> Any:
            nonlocal bytes_in
            message = await receive()
            if message["type"] == "http.request":
                bytes_in += len(message.get("body", b""))
            return message

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = list(message["headers"])
                present = {name for name, _ in headers}
                # A copy, because a cached response sends the same message again.
                message = {**message, "headers": headers + [header for header in added if header[0] not in present]}
            await send(message)

        self._instruments.in_flight += 1
        try:
            await self._app(scope, receive_and_count, send_with_headers)
        except Exception:
            status = status or FAILED
            raise
        finally:
            self._over(state)
            self._instruments.in_flight -= 1
            self._report(scope, status=status or GONE, seconds=self._clock() - begun, bytes_in=bytes_in)

    def _report(self, scope: Any, *, status: int, seconds: float, bytes_in: int) -> None:
        """Count one request and write its line."""
        method = scope["method"] if scope["method"] in _METHODS else OTHER_METHOD
        route = scope.get("path_template", NO_ROUTE)
        caller = scope["state"].get("caller")
        self._count(caller if isinstance(caller, Caller) else None, method, status, bytes_in)
        # Empty for requests without a key, and for those of wrong ones.
        tenant = caller.tenant if isinstance(caller, Caller) else ""
        self._instruments.count(self._instruments.requests_total, method, route, str(status), tenant)
        self._histogram(route, tenant).observe(seconds)
        fields: dict[str, Any] = {
            "request_id": scope["state"]["request_id"],
            "method": method,
            "route": route,
            "status": status,
            "ms": round(seconds * 1000, 2),
            "bytes_in": bytes_in,
        }
        if isinstance(caller, Caller):
            fields |= {"key_id": caller.key_id, "tenant": caller.tenant, "role": caller.role}
        # Requests of one group end together: their lines are written together.
        if not self._lines:
            asyncio.get_running_loop().call_soon(self._write_lines)
        self._lines.append(fields)

    def _write_lines(self) -> None:
        try:
            log_each("request", self._lines)
        finally:
            self._lines = []

    def _histogram(self, route: str, tenant: str) -> Histogram:
        found = self._histograms.get((route, tenant))
        if found is None:
            if tenant != OTHER_TENANTS and len(self._histograms) >= MAX_TIMED:
                return self._histogram(route, OTHER_TENANTS)
            found = self._histograms[route, tenant] = self._instruments.request_seconds.labels(route, tenant)
        return found


def _client_id(headers: Any) -> str | None:
    """The request id of the client, if it is safe to log."""
    for name, value in headers:
        if name == b"x-request-id":
            return value.decode() if _REQUEST_ID.fullmatch(value) else None
    return None


def _headers(request_id: str, path: str) -> list[tuple[bytes, bytes]]:
    """The headers of every response; the documentation has no content security policy."""
    common = [(b"x-request-id", request_id.encode()), _NO_SNIFF, _NO_STORE]
    is_docs = path == DOCS_PATH or path.startswith(f"{DOCS_PATH}/")
    return common if is_docs else [*common, _NO_CONTENT]
