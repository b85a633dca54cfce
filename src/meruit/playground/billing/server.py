"""A provider on this machine that counts tokens and serves the usage APIs of several providers.

    with ProviderServer(clock=clock) as server:
        server.use(clock(), "gpt-6", Tokens(100, 20), key="key_1")
        httpx.get(f"{server.url}/v1/organization/usage/completions", ...)

All APIs show the same calls. A call becomes visible only after a delay, by the clock that the server is given; `truth`
is what was really used, `seen` what the APIs show at a time.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qs, urlsplit

import msgspec

from meruit.errors import ProviderRefusal
from meruit.model.metering import Window
from meruit.model.usage import Tokens
from meruit.playground.billing.anthropic import Anthropic
from meruit.playground.billing.base import BillingRequest, ProviderApi
from meruit.playground.billing.calls import MINUTE_S, CallLedger, CallVisibility, Counts, ProviderCall, total
from meruit.playground.billing.faults import Faults, OutageKind, is_triggered
from meruit.playground.billing.litellm import LiteLLM
from meruit.playground.billing.openai import OpenAI
from meruit.playground.billing.openrouter import OpenRouter

ADMIN_KEY = "sk-admin-test"
PLAIN_KEY = "sk-plain-test"
"""A good key that may not read usage."""
STUCK_S = 20.0
"""How long a silent answer waits for its caller."""
MAX_PARAMS = 1_000

Clock = Callable[[], datetime]


class ProviderAnswer(msgspec.Struct, frozen=True):
    """What goes over the wire."""

    status: int
    content: bytes = b""
    headers: Mapping[str, str] = {}
    half: bool = False
    """Whether the connection closes half-way."""
    how: OutageKind | None = None
    """Whether nothing goes over the wire at all."""


class ProviderServer:
    """The server; a context manager."""

    def __init__(
        self,
        *,
        clock: Clock,
        delay: timedelta = timedelta(minutes=10),
        admin_key: str = ADMIN_KEY,
        plain_key: str = PLAIN_KEY,
        seed: int = 0,
        page_rows: int | None = None,
        faults: Faults | None = None,
    ) -> None:
        """`delay` is how long after a call it shows, `page_rows` the most rows on one page."""
        self.clock = clock
        self.delay = delay
        self.admin_key = admin_key
        self.plain_key = plain_key
        self.seed = seed
        self.page_rows = page_rows
        self.faults = faults or Faults()
        """May be changed at any time."""
        self.calls: Counter[str] = Counter()
        """Requests by path, including refused ones."""
        self.statuses: Counter[int] = Counter()
        """How they were answered; 0 is not at all, or not to the end."""
        self.closing = threading.Event()
        self._ledger = CallLedger()
        self._desks: tuple[ProviderApi, ...] = (OpenAI(), Anthropic(), OpenRouter(), LiteLLM())
        self._endpoints = {path: (desk, answer) for desk in self._desks for path, answer in desk.endpoints.items()}
        self._asked_before: Counter[str] = Counter()
        self._minute = (0, 0)
        """The last one in which something was asked, and how much."""
        self._lock = threading.Lock()
        self._server = _ProviderHttpServer(("127.0.0.1", 0), _Handler)
        self._server.provider = self
        # A short poll, which is how long an end may take.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        """Where it is, without a path."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        """Begin to serve."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def use(  # noqa: PLR0913 - all that there is to say of a call
        self,
        at: datetime,
        model: str,
        tokens: Tokens,
        *,
        key: str = "",
        project: str = "",
        session: str = "",
        call_id: str = "",
        visible_after: timedelta | None = None,
        cost: Decimal | None = None,
    ) -> None:
        """Make a call; the APIs show it after the delay, or after `visible_after`."""
        with self._lock:
            if visible_after is None:
                late = is_triggered(self.faults.late, self.seed, "late", str(self._ledger.written))
                visible_after = self.faults.late_by if late else self.delay
            began = at.timestamp()
            turn = self._ledger.next_turn(model, key, project, session)
            visible = began + visible_after.total_seconds()
            counts = _counts(tokens)
            self._ledger.write(
                ProviderCall(
                    at=began,
                    visible_at=visible,
                    turn=turn,
                    model=model,
                    key=key,
                    project=project,
                    session=session,
                    id=call_id,
                    counts=counts,
                    cost=cost,
                )
            )

    def truth(
        self,
        window: Window | None = None,
        *,
        key: str | None = None,
        project: str | None = None,
        session: str | None = None,
        model: str | None = None,
    ) -> Tokens:
        """What was really used in a window, or ever; by key, project, session and model where they are named."""
        with self._lock:
            return total(self._calls_in(window, _call_filters(key, project, session, model))).tokens

    def visible_usage(
        self,
        window: Window | None = None,
        *,
        at: datetime | None = None,
        key: str | None = None,
        project: str | None = None,
        session: str | None = None,
        model: str | None = None,
    ) -> Tokens:
        """What the APIs say of that at a moment, or now."""
        with self._lock:
            sight = self._visibility_at(at or self.clock())
            calls = self._calls_in(window, _call_filters(key, project, session, model))
            return total(filter(sight.shows, calls)).tokens

    def bill(
        self,
        window: Window | None = None,
        *,
        key: str | None = None,
        project: str | None = None,
        session: str | None = None,
        model: str | None = None,
    ) -> Decimal:
        """What the calls of a window really cost in US dollars, those that have a cost."""
        with self._lock:
            calls = self._calls_in(window, _call_filters(key, project, session, model))
            return sum((call.cost for call in calls if call.cost is not None), Decimal(0))

    def answer(self, target: str, headers: Mapping[str, str]) -> ProviderAnswer:
        """Answer a request."""
        with self._lock:
            reply = self._answer(target, headers)
            self.statuses[0 if reply.half or reply.how is not None else reply.status] += 1
            return reply

    def date(self) -> str:
        """What the provider's clock shows, as HTTP writes it."""
        return format_datetime((self.clock() + self.faults.skew).astimezone(UTC), usegmt=True)

    def _calls_in(self, window: Window | None, wanted: Mapping[str, str]) -> Iterable[ProviderCall]:
        start, end = (window.start.timestamp(), window.end.timestamp()) if window is not None else (0.0, float("inf"))
        for call in self._ledger.between(start, end):
            if all(getattr(call, name) == value for name, value in wanted.items()):
                yield call

    def _visibility_at(self, now: datetime) -> CallVisibility:
        return CallVisibility(now.timestamp(), self.faults.loss_share(now))

    def _answer(self, target: str, headers: Mapping[str, str]) -> ProviderAnswer:
        now, path = self.clock(), urlsplit(target).path
        self.calls[path] += 1
        self._asked_before[target] += 1
        desk, endpoint = self._endpoints.get(path, (self._desks[0], _refuse_unknown_path))
        match self.faults.outage(now):
            case OutageKind.HANG_UP | OutageKind.SILENT as how:
                return ProviderAnswer(0, how=how)
            case OutageKind.ERROR | OutageKind.UNAVAILABLE as status:
                return _refusal(desk, desk.down(int(status)))
            case None:
                pass
        try:
            self._admit(desk, desk.key(headers))
            wait_s = self._wait_s(now, target)
            if wait_s:
                return _refusal(desk, desk.too_many(), {"Retry-After": str(wait_s)})
            return self._encode_answer(endpoint(self._question(target, headers, now)), target)
        except ProviderRefusal as refused:
            return _refusal(desk, refused)

    def _admit(self, desk: ProviderApi, key: str) -> None:
        if key not in (self.admin_key, self.plain_key) or not key:
            raise desk.no_key(key)
        if desk.scope and key != self.admin_key:
            raise desk.no_scope()

    def _wait_s(self, now: datetime, target: str) -> int:
        """The Retry-After of a caller over the rate limit; 0 for any other."""
        if self._by_chance(self.faults.rate_limited, "rate", target):
            return self.faults.retry_after_s
        if self.faults.per_minute is not None:
            minute, second = divmod(int(now.timestamp()), MINUTE_S)
            asked = self._minute[1] if self._minute[0] == minute else 0
            if asked >= self.faults.per_minute:
                return MINUTE_S - second
            self._minute = (minute, asked + 1)
        return 0

    def _question(self, target: str, headers: Mapping[str, str], now: datetime) -> BillingRequest:
        url = urlsplit(target)
        params: dict[str, list[str]] = {}
        for name, values in parse_qs(url.query, keep_blank_values=True, max_num_fields=MAX_PARAMS).items():
            params.setdefault(name.removesuffix("[]"), []).extend(values)
        return BillingRequest(
            path=url.path,
            params=params,
            headers=headers,
            now=(now + self.faults.skew).timestamp(),
            refreshed_at=(now - self.delay).timestamp(),
            ledger=self._ledger,
            sight=self._visibility_at(now),
            unfinished=self._by_chance(self.faults.unfinished, "unfinished", target),
            page_rows=self.page_rows,
        )

    def _encode_answer(self, document: object, target: str) -> ProviderAnswer:
        content = msgspec.json.encode(document)
        if self._by_chance(self.faults.malformed, "malformed", target):
            content = content[: len(content) // 2]
        return ProviderAnswer(200, content, half=self._by_chance(self.faults.broken_off, "broken off", target))

    def _by_chance(self, share: float, what: str, target: str) -> bool:
        # By how often the same request was made, so that other requests make no difference.
        return is_triggered(share, self.seed, what, f"{target}\n{self._asked_before[target]}")


def _counts(tokens: Tokens) -> Counts:
    """What a provider knows of its own calls, of which it knows everything."""
    return Counts(
        input=tokens.input,
        output=tokens.output,
        requests=1 if tokens.requests is None else tokens.requests,
        cached=tokens.cached or 0,
        cache_write=tokens.cache_write or 0,
        reasoning=tokens.reasoning or 0,
    )


def _refuse_unknown_path(asked: BillingRequest) -> object:
    raise ProviderRefusal(404, f"Invalid URL (GET {asked.path})")


def _call_filters(key: str | None, project: str | None, session: str | None, model: str | None) -> Mapping[str, str]:
    named = {"key": key, "project": project, "session": session, "model": model}
    return {name: value for name, value in named.items() if value is not None}


def _refusal(desk: ProviderApi, refused: ProviderRefusal, headers: Mapping[str, str] | None = None) -> ProviderAnswer:
    return ProviderAnswer(
        status=refused.status, content=msgspec.json.encode(desk.error_document(refused)), headers=headers or {}
    )


class _ProviderHttpServer(ThreadingHTTPServer):
    daemon_threads = True
    # Do not wait for connections that callers have abandoned.
    block_on_close = False
    request_queue_size = 128
    provider: ProviderServer

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a caller that went away."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # One packet an answer, at once: a second one would wait for the first to be acknowledged.
    wbufsize = -1
    disable_nagle_algorithm = True
    server: _ProviderHttpServer

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as it is called
        """Say nothing."""

    def date_time_string(self, timestamp: float | None = None) -> str:  # noqa: ARG002 - as it is called
        """By the provider's clock."""
        return self.server.provider.date()

    def do_GET(self) -> None:
        """Answer, or not."""
        reply = self.server.provider.answer(self.path, {name.lower(): value for name, value in self.headers.items()})
        if reply.how is not None:
            self.close_connection = True
            if reply.how is OutageKind.SILENT:
                self.server.provider.closing.wait(STUCK_S)
            return
        self.send_response(reply.status)
        for name, value in {"Content-Type": "application/json", **reply.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.content)))
        self.end_headers()
        self.wfile.write(reply.content[: len(reply.content) // 2] if reply.half else reply.content)
        self.close_connection = self.close_connection or reply.half
