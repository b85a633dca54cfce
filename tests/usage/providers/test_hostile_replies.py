"""Whatever a server sends, a source ends with a failure of the right kind, or with what was meant."""

import gzip
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.usage.providers.opened import (
    HOUR,
    KEY,
    MINUTE,
    NOW,
    Clock,
    all_of,
    before,
    failure_of,
    opened,
    rows_of,
    sum_of,
)

from meruit.errors import FetchError, FetchFailed, InvalidAccount
from meruit.model.metering import UsageAccount, Window
from meruit.model.usage import Tokens
from meruit.registry import usage_sources
from meruit.sources.retry import ReadLimits
from meruit.usage.providers.support import paging
from meruit.usage.providers.support.http_client import UsageSourceContext
from meruit.usage.providers.support.source_factory import open_source

Params = dict[str, str]


class Reply(NamedTuple):
    body: Any = b""
    status: int = 200
    headers: Mapping[str, str] = {}


class _Quiet(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A caller that went away is no news."""


class Scripted:
    """A server that says what it is told to."""

    def __init__(self) -> None:
        self.say: Callable[[Params], Reply] = lambda _: Reply()
        self.asked: list[tuple[str, Params]] = []
        self.headers: list[dict[str, str]] = []
        self._server = _Quiet(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def always(self, body: Any, status: int = 200, **headers: str) -> None:
        reply = Reply(body, status, {name.replace("_", "-"): value for name, value in headers.items()})
        self.say = lambda _: reply

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1
            disable_nagle_algorithm = True

            def log_message(self, *args: object) -> None:
                """Say nothing."""

            def do_GET(self) -> None:
                where = urlsplit(self.path)
                params = dict(parse_qsl(where.query))
                scripted.asked.append((where.path, params))
                scripted.headers.append({name.lower(): value for name, value in self.headers.items()})
                reply = scripted.say(params)
                content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
                self.send_response_only(reply.status)
                headers = {"Date": format_datetime(NOW, usegmt=True), "Content-Length": str(len(content))}
                for name, value in {**headers, **reply.headers}.items():
                    if value:
                        self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

        return Handler


@pytest.fixture(scope="module")
def one_server() -> Iterator[Scripted]:
    server = Scripted()
    yield server
    server.close()


@pytest.fixture
def server(one_server: Scripted) -> Scripted:
    one_server.asked.clear()
    one_server.headers.clear()
    one_server.say = lambda _: Reply()
    return one_server


@pytest.fixture
def clock() -> Clock:
    return Clock()


RESULT = {"input_tokens": 10, "output_tokens": 2, "num_model_requests": 1, "model": "gpt-6", "api_key_id": "k"}


def bucket(at: datetime, *results: dict[str, Any], minutes: int = 1) -> dict[str, Any]:
    start = int(at.timestamp())
    return {"start_time": start, "end_time": start + 60 * minutes, "results": list(results)}


def page(*buckets: Any, next_page: str | None = None, **more: Any) -> dict[str, Any]:
    return {"data": list(buckets), "has_more": next_page is not None, "next_page": next_page, **more}


def openai(server: Scripted, clock: Clock | None = None, **options: str) -> Any:
    return opened("openai", server.url, clock=clock, kinds="completions", **options)


def whole(params: Params, *results: dict[str, Any], at: datetime | None = None) -> dict[str, Any]:
    """Every bucket of the window, as OpenAI tells it; all are empty, or but the one that is named."""
    minutes = range(int(params["start_time"]), int(params["end_time"]), 60)
    times = [datetime.fromtimestamp(second, UTC) for second in minutes]
    return page(*(bucket(one, *results) if at in (None, one) else bucket(one) for one in times))


AT = NOW - HOUR
ASKED = Window(AT, AT + MINUTE)
GOOD = page(bucket(AT, RESULT))
"""Of that one minute, the whole."""


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", FetchError.PARTIAL_PAGE),
        (b"<html><title>Welcome</title>", FetchError.MALFORMED),
        (b"\xff\xfe\x00", FetchError.MALFORMED),
        (json.dumps(GOOD)[:-20].encode(), FetchError.PARTIAL_PAGE),
        (json.dumps(GOOD).encode() + b"}", FetchError.MALFORMED),
        (b'{"data": NaN, "has_more": false}', FetchError.MALFORMED),
        (b'{"data": ' + b"[" * 100_000, FetchError.MALFORMED),
        ([], FetchError.MALFORMED),
        (None, FetchError.MALFORMED),
        ({"data": []}, FetchError.MALFORMED),
        ({"data": {}, "has_more": False}, FetchError.MALFORMED),
        ({"data": [], "has_more": "no"}, FetchError.MALFORMED),
        ({"error": {"message": "nothing"}}, FetchError.MALFORMED),
        (page(bucket(AT, {**RESULT, "input_tokens": -1})), FetchError.MALFORMED),
        (page(bucket(AT, {**RESULT, "input_tokens": 1.5})), FetchError.MALFORMED),
        (page(bucket(AT, {**RESULT, "input_tokens": "10"})), FetchError.MALFORMED),
        (page(bucket(AT, {**RESULT, "input_tokens": True})), FetchError.MALFORMED),
        (page(bucket(AT, {**RESULT, "input_tokens": 2**60})), FetchError.MALFORMED),
        (page(bucket(AT, {**RESULT, "output_tokens": None})), FetchError.MALFORMED),
        (page(bucket(AT, {"object": "something.else"})), FetchError.MALFORMED),
        (page({"start_time": 10**18, "end_time": 10**18, "results": []}), FetchError.MALFORMED),
        (page(bucket(AT, RESULT, minutes=0)), FetchError.MALFORMED),
        (page(bucket(AT, RESULT, minutes=2)), FetchError.MALFORMED),
        (page(bucket(NOW - 9 * HOUR, RESULT)), FetchError.CLOCK),
        (page(bucket(NOW, RESULT)), FetchError.CLOCK),
        (page(bucket(AT + MINUTE / 2, RESULT)), FetchError.MALFORMED),
        (page(bucket(AT, RESULT), bucket(AT, RESULT)), FetchError.PARTIAL_PAGE),
        (page(bucket(AT, RESULT, RESULT)), FetchError.MALFORMED),
        (page(bucket(AT, RESULT, {**RESULT, "input_tokens": 11})), FetchError.MALFORMED),
        (page(), FetchError.PARTIAL_PAGE),
        ({**GOOD, "has_more": True}, FetchError.PARTIAL_PAGE),
        ({**GOOD, "next_page": "page_2"}, FetchError.PARTIAL_PAGE),
        # The same page again and again.
        ({**GOOD, "has_more": True, "next_page": "page_2"}, FetchError.PARTIAL_PAGE),
        (page(next_page="page_2"), FetchError.PARTIAL_PAGE),
    ],
)
def test_a_body_that_is_not_a_usage_page_is_a_failure(server: Scripted, body: object, kind: FetchError) -> None:
    server.always(body)
    failure = failure_of(lambda: openai(server).usage(ASKED))
    assert failure.kind is kind
    assert failure.at == NOW
    assert str(failure).startswith(f"{server.url}/v1/organization/usage/completions ")
    assert len(server.asked) <= 2


def test_a_good_page_is_read(server: Scripted) -> None:
    server.always({**GOOD, "object": "page"})
    (found,) = all_of(openai(server).usage(ASKED))
    (row,) = found.rows
    assert (row.start, row.end, row.tokens, row.key) == (AT, AT + MINUTE, Tokens(10, 2, 1), "k")
    assert json.loads(found.raw) == {**GOOD, "object": "page"}
    (path, params), headers = server.asked[0], server.headers[0]
    assert path == "/v1/organization/usage/completions"
    assert params["bucket_width"] == "1m"
    assert int(params["end_time"]) <= NOW.timestamp()
    assert headers["authorization"] == f"Bearer {KEY}"
    assert headers["accept-encoding"] == "identity"


MINUTES = [AT + number * MINUTE for number in range(5)]


def by_anthropic(at: datetime) -> dict[str, Any]:
    return span(at, ANTHROPIC)


@pytest.mark.parametrize(("provider", "told"), [("openai", bucket), ("anthropic", by_anthropic)])
@given(st.sets(st.sampled_from(MINUTES)), st.integers(1, 5))
def test_a_window_with_a_missing_span_is_refused(
    provider: str, told: Callable[[datetime], Any], left: set[datetime], each: int
) -> None:
    times = sorted(left)
    pages = [times[first : first + each] for first in range(0, len(times), each)] or [[]]

    def answer(request: httpx.Request) -> httpx.Response:
        number = int(request.url.params.get("page", "0"))
        following = str(number + 1) if number + 1 < len(pages) else None
        return httpx.Response(200, json=page(*map(told, pages[number]), next_page=following))

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    account = UsageAccount(provider=provider, base_url="http://127.0.0.1:1", key_variable="K")
    clock = Clock()
    source = open_source(account, client=client, environment={"K": KEY}, clock=clock, sleep=clock.sleep)
    window = Window(AT, AT + 5 * MINUTE)
    if left == {*MINUTES}:
        assert all_of(source.usage(window))
        return
    failure = failure_of(lambda: source.usage(window))
    assert failure.kind is FetchError.PARTIAL_PAGE
    first = min({*MINUTES} - left)
    assert first.isoformat() in str(failure)


def test_a_span_that_has_not_ended_by_the_providers_clock_may_lack(server: Scripted) -> None:
    early = format_datetime(NOW - timedelta(seconds=90), usegmt=True)
    server.say = lambda params: Reply(page(*whole(params, RESULT)["data"][:-2]), headers={"Date": early})
    assert len(rows_of(all_of(openai(server).usage(before(1))))) == 58
    server.say = lambda params: Reply(page(*whole(params, RESULT)["data"][:-3]), headers={"Date": early})
    assert failure_of(lambda: openai(server).usage(before(1))).kind is FetchError.PARTIAL_PAGE


@pytest.mark.parametrize(
    ("kind", "result", "tokens"),
    [
        ("embeddings", {"input_tokens": 9, "num_model_requests": 2}, Tokens(9, 0, 2)),
        ("moderations", {"input_tokens": 9, "num_model_requests": 2}, Tokens(9, 0, 2)),
        (
            "decisions",
            {**RESULT, "input_cached_tokens": 4, "input_cache_write_tokens": 3},
            Tokens(10, 2, 1, 4, 3),
        ),
        ("images", {"images": 3, "num_model_requests": 2}, Tokens(0, 0, 2)),
        ("audio_transcriptions", {"seconds": 10, "num_model_requests": 2}, Tokens(0, 0, 2)),
        # Calls of tools are part of requests that are counted already.
        ("web_search_calls", {"num_model_requests": 2, "num_requests": 5}, None),
        ("code_interpreter_sessions", {"num_sessions": 2}, None),
        ("vector_stores", {"usage_bytes": 2}, None),
    ],
)
def test_each_kind_of_openais_usage_is_read(
    server: Scripted, kind: str, result: dict[str, Any], tokens: Tokens | None
) -> None:
    server.always(page(bucket(AT, result)))
    rows = rows_of(all_of(opened("openai", server.url, clock=None, kinds=kind, project_ids="p").usage(ASKED)))
    assert [row.tokens for row in rows] == ([] if tokens is None else [tokens])
    path, params = server.asked[0]
    assert path == f"/v1/organization/usage/{kind}"
    assert params["project_ids[]"] == "p"
    if tokens is not None:
        server.always(page(bucket(AT, {"object": "another"})))
        lacking = failure_of(lambda: opened("openai", server.url, clock=None, kinds=kind).usage(ASKED))
        assert lacking.kind is FetchError.MALFORMED


@pytest.mark.parametrize(
    ("status", "kind", "tries"),
    [
        (400, FetchError.MALFORMED, 1),
        (401, FetchError.AUTH, 1),
        (403, FetchError.AUTH, 1),
        (404, FetchError.MALFORMED, 1),
        (408, FetchError.TIMEOUT, 4),
        (410, FetchError.PARTIAL_PAGE, 3),
        (418, FetchError.MALFORMED, 1),
        (429, FetchError.RATE_LIMITED, 4),
        (500, FetchError.SERVER, 4),
        (501, FetchError.MALFORMED, 1),
        (503, FetchError.SERVER, 4),
        (204, FetchError.MALFORMED, 1),
        (302, FetchError.MALFORMED, 1),
    ],
)
def test_every_status_has_its_kind_of_failure_and_its_retries(
    server: Scripted, clock: Clock, status: int, kind: FetchError, tries: int
) -> None:
    server.always(
        {"error": {"message": f"no, not with {KEY}"}} if status != 204 else b"", status, Location="https://elsewhere/"
    )
    failure = failure_of(lambda: openai(server, clock).usage(before(2)))
    assert failure.kind is kind
    assert failure.at is not None
    assert KEY not in str(failure)
    assert len(server.asked) == tries
    assert {path for path, _ in server.asked} == {"/v1/organization/usage/completions"}
    if status in (400, 401, 429, 503):
        assert "no, not with ***" in str(failure)


@pytest.mark.parametrize(
    ("asked", "slept"),
    [
        ("7", [7.0, 7.0, 7.0]),
        ("0", [0.0, 0.0, 0.0]),
        ("30", [30.0, 30.0, 30.0]),
        ("31", []),
        ("999999999999999999999", []),
        (format_datetime(NOW + timedelta(seconds=9), usegmt=True), [9.0, 9.0, 9.0]),
        ("soon", [1.0, 2.0, 4.0]),
        ("", [1.0, 2.0, 4.0]),
        ("-5", [1.0, 2.0, 4.0]),
    ],
)
def test_a_retry_waits_as_long_as_the_server_asks_up_to_a_limit(
    server: Scripted, clock: Clock, asked: str, slept: list[float]
) -> None:
    server.always({}, 429, Retry_After=asked)
    assert failure_of(lambda: openai(server, clock).usage(before(2))).kind is FetchError.RATE_LIMITED
    assert clock.slept == slept


@pytest.mark.parametrize("away", [timedelta(minutes=61), timedelta(minutes=-61), timedelta(days=400)])
def test_a_clock_that_is_far_off_is_a_failure(server: Scripted, away: timedelta) -> None:
    for status in (200, 500, 401):
        server.always(GOOD, status, Date=format_datetime(NOW + away, usegmt=True))
        failure = failure_of(lambda: openai(server).usage(ASKED))
        assert failure.kind is FetchError.CLOCK
        assert failure.at == NOW + away


@pytest.mark.parametrize("date", ["", "yesterday", "Mon, 99 Sep 2026 12:00:00 GMT"])
def test_without_the_providers_time_it_is_ours(server: Scripted, date: str) -> None:
    server.always(GOOD, Date=date)
    (found,) = all_of(openai(server).usage(ASKED))
    assert found.at == NOW


def test_a_date_in_another_zone_is_the_same_moment(server: Scripted) -> None:
    for date in ("Mon, 14 Sep 2026 14:00:00 +0200", "Mon, 14 Sep 2026 12:00:00 -0000"):
        server.always(GOOD, Date=date)
        (found,) = all_of(openai(server).usage(ASKED))
        assert found.at == NOW
        assert found.at.tzinfo is UTC


def test_endless_pages_are_refused(server: Scripted) -> None:
    count = iter(range(10**9))
    server.say = lambda _: Reply(page(next_page=f"page_{next(count)}"))
    source = openai(server)
    source._client.limits = ReadLimits(pages=5)
    failure = failure_of(lambda: source.usage(Window(NOW - 2 * MINUTE, NOW)))
    assert failure.kind is FetchError.PARTIAL_PAGE
    # Both minutes alone have too many pages as well.
    assert len(server.asked) <= 3 * 5


def test_an_endless_response_is_refused(server: Scripted) -> None:
    server.always(b'{"data": [' + b" " * 200_000)
    source = openai(server)
    source._client.limits = ReadLimits(reply_bytes=100_000)
    failure = failure_of(lambda: source.usage(Window(NOW - MINUTE, NOW)))
    assert failure.kind is FetchError.PARTIAL_PAGE
    assert "100,000 bytes" in str(failure)


def test_a_window_whose_answer_is_too_large_is_asked_for_in_parts(server: Scripted) -> None:
    server.say = lambda params: Reply(whole(params, RESULT))
    source = openai(server)
    source._client.limits = ReadLimits(reply_bytes=3_000)
    found = sum_of(all_of(source.usage(before(2))))
    assert found == Tokens(1200, 240, 120)
    assert len(server.asked) < 60
    source._client.limits = ReadLimits(reply_bytes=50)
    assert failure_of(lambda: source.usage(before(2))).kind is FetchError.PARTIAL_PAGE


def test_too_much_altogether_is_asked_for_in_parts_too(server: Scripted) -> None:
    server.say = lambda params: Reply(page(next_page=None if "page" in params else "second"))
    source = openai(server)
    source._client.limits = ReadLimits(bytes_total=10)
    assert failure_of(lambda: source.usage(Window(NOW - MINUTE, NOW))).kind is FetchError.PARTIAL_PAGE


def test_pages_whose_cursor_expired_are_read_again(server: Scripted) -> None:
    replies = iter(
        [
            Reply(page(bucket(AT, RESULT), next_page="old")),
            Reply({}, 410),
            Reply(page(bucket(AT, RESULT), next_page="new")),
            Reply(page(bucket(AT + MINUTE, RESULT))),
        ]
    )
    server.say = lambda _: next(replies)
    assert sum_of(all_of(openai(server).usage(Window(AT, AT + 2 * MINUTE)))) == Tokens(20, 4, 2)
    assert [params.get("page") for _, params in server.asked] == [None, "old", None, "new"]


def test_a_refusal_that_is_not_about_the_future_is_not_asked_again(server: Scripted) -> None:
    server.always({"error": {"message": "no such project"}}, 400, Date=format_datetime(NOW - 3 * MINUTE, usegmt=True))
    failure = failure_of(lambda: openai(server).usage(before(2)))
    assert failure.kind is FetchError.MALFORMED
    assert "no such project" in str(failure)
    ends = [int(params["end_time"]) for _, params in server.asked]
    assert ends == [int(NOW.timestamp()), int((NOW - 3 * MINUTE).timestamp())]


def test_a_compressed_response_is_refused(server: Scripted) -> None:
    server.always(gzip.compress(json.dumps(GOOD).encode()), Content_Encoding="gzip")
    failure = failure_of(lambda: openai(server).usage(before(2)))
    assert failure.kind is FetchError.MALFORMED
    assert "(gzip)" in str(failure)


def test_a_refused_connection_is_a_server_failure(clock: Clock) -> None:
    failure = failure_of(lambda: opened("openai", "http://127.0.0.1:9", clock=clock).usage(before(2)))
    assert failure.kind is FetchError.SERVER
    assert failure.at is None
    assert clock.slept == [1.0, 2.0, 4.0]


def test_a_key_that_is_not_there_is_an_error_of_access(server: Scripted) -> None:
    account = UsageAccount(provider="openai", base_url=server.url)
    source = open_source(account, client=None, environment={}, clock=Clock())
    failure = failure_of(lambda: source.usage(before(2)))
    assert failure.kind is FetchError.AUTH
    assert "OPENAI_ADMIN_KEY" in str(failure)
    assert server.asked == []


def test_a_window_of_too_many_questions_is_refused(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "MAX_CHUNKS", 2)
    server.say = lambda params: Reply(whole(params))
    failure = failure_of(lambda: openai(server).usage(before(24 * 5)))
    assert failure.kind is FetchError.PARTIAL_PAGE
    assert len(server.asked) == 2


def test_a_provider_without_a_key_gets_no_credentials(server: Scripted) -> None:
    server.always(GOOD)
    open_to_all = msgspec.structs.replace(usage_sources.get("openai"), key_variable="")
    account = UsageAccount(provider="openai", base_url=server.url, options={"kinds": "completions"})
    clock = Clock()
    source = open_to_all.open(open_to_all, account, UsageSourceContext(None, {}, clock, clock.sleep))
    assert len(rows_of(all_of(source.usage(ASKED)))) == 1
    assert "authorization" not in server.headers[0]


def test_a_client_that_is_given_is_used_at_the_usual_address() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json=whole(dict(request.url.params)))

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    account = UsageAccount(provider="openai", key_variable="K", options={"kinds": "completions", "pause_s": "3"})
    clock = Clock()
    source = open_source(account, client=client, environment={"K": KEY}, clock=clock, sleep=clock.sleep)
    all_of(source.usage(before(40)))
    addresses = {str(request.url.copy_with(query=None)) for request in seen}
    assert addresses == {"https://api.openai.com/v1/organization/usage/completions"}
    # Two days are two questions, and some time lies between them.
    assert len(seen) == 2
    assert clock.slept == [3.0]


def test_questions_at_the_usual_address_are_apart() -> None:
    clock = Clock()
    client = httpx.AsyncClient(
        transport=httpx.MockTransport(lambda asked: httpx.Response(200, json=whole(dict(asked.url.params))))
    )
    account = UsageAccount(provider="openai", key_variable="K")
    source = open_source(account, client=client, environment={"K": KEY}, clock=clock, sleep=clock.sleep)
    all_of(source.usage(before(2)))
    assert clock.slept == [12.0]


def test_https_needs_a_valid_certificate(server: Scripted, clock: Clock) -> None:
    failure = failure_of(lambda: opened("openai", server.url.replace("http:", "https:"), clock=clock).usage(before(2)))
    assert failure.kind is FetchError.SERVER
    assert server.asked == []


COST = {"amount": {"value": 0.06, "currency": "usd"}, "line_item": "gpt-6, input_tokens", "project_id": "p"}


def day(*costs: Any) -> dict[str, Any]:
    return page(bucket(NOW.replace(hour=0), *costs, minutes=1440))


def test_costs_are_exact_and_in_their_currency(server: Scripted) -> None:
    server.always(day(COST, {**COST, "amount": {"value": 1e-7, "currency": "eur"}}))
    (found,) = all_of(openai(server).costs(before(2)))
    assert [(cost.amount, cost.currency) for cost in found.costs] == [
        (Decimal("0.06"), "USD"),
        (Decimal("1e-07"), "EUR"),
    ]
    assert found.costs[0].item == "gpt-6, input_tokens"


def test_costs_are_of_every_day_and_of_each_line_once(server: Scripted) -> None:
    server.always(day(COST, COST))
    assert failure_of(lambda: openai(server).costs(before(2))).kind is FetchError.MALFORMED
    server.always(day(COST))
    failure = failure_of(lambda: openai(server).costs(before(14)))
    assert failure.kind is FetchError.PARTIAL_PAGE
    line = {"amount": "123.45", "currency": "USD", "description": "Claude Usage", "inference_geo": "us"}
    server.always(page(span(NOW.replace(hour=0), line, {**line, "inference_geo": "eu"}, wide=timedelta(days=1))))
    (found,) = all_of(opened("anthropic", server.url).costs(before(2)))
    assert len(found.costs) == 2
    server.always(page(span(NOW.replace(hour=0), line, line, wide=timedelta(days=1))))
    assert failure_of(lambda: opened("anthropic", server.url).costs(before(2))).kind is FetchError.MALFORMED
    assert failure_of(lambda: opened("anthropic", server.url).costs(before(14))).kind is FetchError.PARTIAL_PAGE


@pytest.mark.parametrize("amount", [None, {}, {"value": None}, {"value": "NaN"}, {"value": "1e99"}, {"value": True}, 5])
def test_a_cost_without_an_amount_is_a_failure(server: Scripted, amount: object) -> None:
    server.always(day({**COST, "amount": amount}))
    assert failure_of(lambda: openai(server).costs(before(2))).kind is FetchError.MALFORMED


ANTHROPIC = {
    "uncached_input_tokens": 5,
    "cache_read_input_tokens": 3,
    "cache_creation": {"ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 1},
    "output_tokens": 7,
    "server_tool_use": {"web_search_requests": 4},
    "api_key_id": "k",
    "workspace_id": None,
    "model": "claude",
}


def span(at: datetime, *results: Any, wide: timedelta = MINUTE) -> dict[str, Any]:
    return {"starting_at": at.isoformat(), "ending_at": (at + wide).isoformat(), "results": list(results)}


def test_anthropics_input_is_made_whole(server: Scripted) -> None:
    server.always(page(span(AT, ANTHROPIC, {**ANTHROPIC, "cache_creation": None, "api_key_id": None})))
    rows = rows_of(all_of(opened("anthropic", server.url).usage(ASKED)))
    assert rows[0].tokens == Tokens(11, 7, None, 3, 3)
    assert rows[1].tokens == Tokens(8, 7, None, 3, 0)
    assert (rows[1].key, rows[1].project) == ("", "")
    assert server.headers[0]["x-api-key"] == KEY
    assert server.headers[0]["anthropic-version"] == "2023-06-01"
    assert "authorization" not in server.headers[0]


def test_a_repeated_group_of_anthropic_is_a_failure(server: Scripted) -> None:
    server.always(page(span(AT, ANTHROPIC, {**ANTHROPIC, "output_tokens": 8})))
    failure = failure_of(lambda: opened("anthropic", server.url).usage(ASKED))
    assert failure.kind is FetchError.MALFORMED
    assert "twice" in str(failure)


def test_anthropics_costs_are_in_cents(server: Scripted) -> None:
    cost = {"amount": "123.45", "currency": "USD", "description": "Claude Usage", "workspace_id": "w"}
    server.always(page(span(NOW.replace(hour=0), cost, wide=timedelta(days=1))))
    (found,) = all_of(opened("anthropic", server.url).costs(before(2)))
    assert [(one.amount, one.project, one.item) for one in found.costs] == [(Decimal("1.2345"), "w", "Claude Usage")]


def row(at: datetime = AT, **more: Any) -> dict[str, Any]:
    return {
        **ANTHROPIC,
        "starting_at": at.isoformat(),
        "ending_at": (at + MINUTE).isoformat(),
        "session_id": "s",
        "requests": 2,
        "total_tokens": 18,
        **more,
    }


def analytics(server: Scripted, **options: str) -> Any:
    return opened("anthropic_analytics", server.url, clock=None, **options)


def test_analytics_have_sessions_requests_and_a_watermark(server: Scripted) -> None:
    server.always(page(row(), data_refreshed_at=(NOW - MINUTE).isoformat()))
    (found,) = all_of(analytics(server, beta="analytics-2026").usage(before(2)))
    assert found.watermark == NOW - MINUTE
    assert [(one.session, one.tokens) for one in found.rows] == [("s", Tokens(11, 7, 2, 3, 3))]
    assert server.headers[0]["anthropic-beta"] == "analytics-2026"
    path, params = server.asked[0]
    assert path == "/v1/organizations/analytics/usage"
    assert (params["limit"], params["time_bucket_width"]) == ("1000", "1m")


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (page(data_refreshed_at=None), FetchError.NOT_READY),
        (page(data_refreshed_at=(NOW - 2 * HOUR).isoformat()), FetchError.NOT_READY),
        (page(row(), data_refreshed_at="2026-09-14T12:00:00"), FetchError.MALFORMED),
        (page(row()), FetchError.MALFORMED),
        (page(row(total_tokens=19), data_refreshed_at=NOW.isoformat()), FetchError.MALFORMED),
        (page(row(NOW), data_refreshed_at=NOW.isoformat()), FetchError.CLOCK),
        (page(row(), row(), data_refreshed_at=NOW.isoformat()), FetchError.MALFORMED),
        (page(row(), row(output_tokens=8, total_tokens=19), data_refreshed_at=NOW.isoformat()), FetchError.MALFORMED),
        (page(row(ending_at=(AT + HOUR).isoformat()), data_refreshed_at=NOW.isoformat()), FetchError.MALFORMED),
        (page(row(ending_at=AT.isoformat()), data_refreshed_at=NOW.isoformat()), FetchError.MALFORMED),
        (page(row(AT + MINUTE / 2), data_refreshed_at=NOW.isoformat()), FetchError.MALFORMED),
        (page(row(starting_at=None), data_refreshed_at=NOW.isoformat()), FetchError.MALFORMED),
    ],
)
def test_analytics_that_contradict_themselves_are_refused(server: Scripted, body: object, kind: FetchError) -> None:
    server.always(body)
    assert failure_of(lambda: analytics(server).usage(before(2))).kind is kind


def test_analytics_refreshed_between_two_pages_are_read_again(server: Scripted) -> None:
    fresh = iter([NOW - HOUR / 2, NOW - HOUR / 4, NOW - HOUR / 4, NOW - HOUR / 4])
    server.say = lambda params: Reply(
        page(
            row(session_id=params.get("page")),
            next_page=None if "page" in params else "more",
            data_refreshed_at=next(fresh).isoformat(),
        )
    )
    found = all_of(analytics(server).usage(before(2)))
    assert len(found) == 2
    assert len(server.asked) == 4


def test_analytics_that_repeat_a_row_on_a_later_page_are_refused(server: Scripted) -> None:
    for what in ("usage", "costs"):
        day_row = {"amount": "5", "starting_at": NOW.replace(hour=0).isoformat(), "ending_at": NOW.isoformat()}
        told = row() if what == "usage" else day_row
        server.say = lambda params, told=told: Reply(  # type: ignore[misc]  # bound now
            page(told, next_page=None if "page" in params else "more", data_refreshed_at=NOW.isoformat())
        )
        failure = failure_of(lambda what=what: getattr(analytics(server), what)(before(2)))  # type: ignore[misc]  # bound now
        assert failure.kind is FetchError.MALFORMED
        assert "twice" in str(failure)


def test_the_older_analytics_are_refused() -> None:
    for report in ("usage_report", "cost_report"):
        with pytest.raises(InvalidAccount, match="base_url"):
            opened("anthropic_analytics", f"https://api.anthropic.com/v1/organizations/analytics/{report}")


GENERATION = {
    "id": "gen-1",
    "created_at": "2026-09-14T11:00:00.5+00:00",
    "model": "openai/gpt-6",
    "native_tokens_prompt": 10,
    "native_tokens_completion": 25,
    "native_tokens_reasoning": 5,
    "native_tokens_cached": 3,
    "tokens_prompt": 9,
    "tokens_completion": 20,
    "total_cost": 0.0015,
    "cancelled": True,
}


def calls(server: Scripted, *ids: str) -> Any:
    return opened("openrouter", server.url).calls(ids or ["gen-1"])


@pytest.mark.parametrize(
    ("more", "tokens"),
    [
        ({}, Tokens(10, 25, 1, 3, None, 5)),
        ({"native_tokens_reasoning": None, "native_tokens_cached": None}, Tokens(10, 25, 1)),
        # Thoughts that are more than the answer were counted apart.
        ({"native_tokens_reasoning": 100}, Tokens(10, 125, 1, 3, None, 100)),
    ],
)
def test_a_call_of_openrouter_is_counted_by_its_model(server: Scripted, more: dict[str, Any], tokens: Tokens) -> None:
    server.always({"data": {**GENERATION, **more}})
    (found,) = rows_of(all_of(calls(server)))
    assert found.tokens == tokens
    assert (found.request_id, found.cost, found.model) == ("gen-1", Decimal("0.0015"), "openai/gpt-6")
    assert server.asked == [("/api/v1/generation", {"id": "gen-1"})]


@pytest.mark.parametrize("more", [{"native_tokens_prompt": None}, {"native_tokens_completion": None}])
def test_a_call_whose_tokens_are_not_counted_yet_has_no_row(server: Scripted, more: dict[str, Any]) -> None:
    server.always({"data": {**GENERATION, **more}})
    assert rows_of(all_of(calls(server))) == []


@pytest.mark.parametrize("more", [{"id": "gen-2"}, {"created_at": "2026-09-14T11:00:00"}, {"total_cost": "Infinity"}])
def test_another_call_than_the_one_asked_for_is_refused_by_name(server: Scripted, more: dict[str, Any]) -> None:
    server.always({"data": {**GENERATION, **more}})
    failure = failure_of(lambda: calls(server))
    assert failure.kind is FetchError.MALFORMED
    assert str(failure).endswith("(call gen-1)")


def test_a_key_that_the_server_quotes_is_not_shown(server: Scripted) -> None:
    server.always({"data": {**GENERATION, "id": f"gen {KEY}"}})
    failure = failure_of(lambda: calls(server))
    assert "gen ***" in str(failure)
    assert KEY not in str(failure)


def test_one_call_that_fails_is_named(server: Scripted) -> None:
    server.say = lambda params: Reply({}, 500 if params["id"] == "gen-3" else 404)
    failure = failure_of(lambda: calls(server, *(f"gen-{number}" for number in range(9))))
    assert failure.kind is FetchError.SERVER
    assert str(failure).endswith("(call gen-3)")


LOG = {
    "request_id": "r1",
    "api_key": "hash",
    "spend": 0.25,
    "prompt_tokens": 10,
    "completion_tokens": 5,
    "startTime": "2026-09-14T11:00:00.250000+00:00",
    "model": "gpt-6",
    "status": "success",
    "metadata": {
        "usage_object": {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}
    },
}


def logs(*rows: Any, total: int | None = None, number: int = 1, pages: int = 1, **more: Any) -> dict[str, Any]:
    count = len(rows) if total is None else total
    return {"data": list(rows), "total": count, "page": number, "page_size": 100, "total_pages": pages, **more}


def litellm(server: Scripted, **options: str) -> Any:
    return opened("litellm", server.url, clock=None, **options)


@pytest.mark.parametrize(
    ("more", "tokens"),
    [
        ({}, Tokens(10, 5, 1, 4)),
        # Its own columns are in UTC, whether it says so or not.
        ({"startTime": "2026-09-14T11:00:00"}, Tokens(10, 5, 1, 4)),
        ({"metadata": None}, Tokens(10, 5, 1)),
        ({"metadata": "{}"}, Tokens(10, 5, 1)),
        ({"metadata": {"usage_object": {"prompt_tokens": "many"}}}, Tokens(10, 5, 1)),
        ({"metadata": {"usage_object": {"prompt_tokens": 11, "completion_tokens": 5}}}, Tokens(10, 5, 1)),
        # A call that failed counts nowhere else either.
        ({"status": "failure", "prompt_tokens": 0, "completion_tokens": 0}, Tokens(0, 0, 0)),
        ({"status": "failure"}, Tokens(10, 5, 1, 4)),
    ],
)
def test_a_row_of_spend_is_read(server: Scripted, more: dict[str, Any], tokens: Tokens) -> None:
    server.always(logs({**LOG, **more}))
    (found,) = rows_of(all_of(litellm(server, page_size="1000").usage(before(2))))
    assert found.tokens == tokens
    assert (found.key, found.cost, found.request_id) == ("hash", Decimal("0.25"), "r1")
    path, params = server.asked[0]
    assert path == "/spend/logs/v2"
    assert (params["start_date"], params["end_date"]) == ("2026-09-14 10:00:00", "2026-09-14 12:00:00")
    assert params["page_size"] == "1000"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ([LOG], FetchError.MALFORMED),
        (logs({**LOG, "prompt_tokens": None}), FetchError.MALFORMED),
        (logs({**LOG, "startTime": "2026-09-14T09:00:00Z"}), FetchError.CLOCK),
        (logs(LOG, total=2), FetchError.PARTIAL_PAGE),
        (logs(LOG, LOG), FetchError.PARTIAL_PAGE),
        (logs(LOG, {**LOG, "prompt_tokens": 11}, total=1), FetchError.MALFORMED),
        (logs(LOG, {**LOG, "spend": 0.5}), FetchError.MALFORMED),
        (logs(LOG, number=2), FetchError.PARTIAL_PAGE),
        (logs(LOG, pages=10**9), FetchError.PARTIAL_PAGE),
        (logs(LOG, total_is_capped=True), FetchError.PARTIAL_PAGE),
    ],
)
def test_logs_that_contradict_themselves_are_refused(server: Scripted, body: object, kind: FetchError) -> None:
    server.always(body)
    failure = failure_of(lambda: litellm(server).usage(Window(NOW - HOUR, NOW - HOUR + timedelta(seconds=2))))
    assert failure.kind is kind


def test_equal_rows_of_a_call_are_one_and_different_ones_a_failure(server: Scripted) -> None:
    server.always(logs(LOG, LOG, total=1))
    second = Window(NOW - HOUR, NOW - HOUR + timedelta(seconds=2))
    assert sum_of(all_of(litellm(server).usage(second))).total == 15
    assert sum_of(all_of(litellm(server).calls(["r1"]))).total == 15
    server.always(logs(LOG, {**LOG, "completion_tokens": 6}))
    failure = failure_of(lambda: litellm(server).calls(["r1"]))
    assert failure.kind is FetchError.MALFORMED
    assert "'r1'" in str(failure)


def test_different_rows_of_a_call_on_two_pages_are_a_failure(server: Scripted) -> None:
    server.say = lambda params: Reply(
        logs({**LOG, "prompt_tokens": int(params["page"])}, total=1, number=int(params["page"]), pages=2)
    )
    second = Window(NOW - HOUR, NOW - HOUR + timedelta(seconds=2))
    assert failure_of(lambda: litellm(server).usage(second)).kind is FetchError.MALFORMED


def test_rows_of_a_call_on_two_days_are_a_failure(server: Scripted) -> None:
    server.say = lambda params: Reply(logs({**LOG, "startTime": params["start_date"].replace(" ", "T")}))
    failure = failure_of(lambda: litellm(server).usage(before(48)))
    assert failure.kind is FetchError.MALFORMED
    assert "'r1'" in str(failure)


def test_too_many_bytes_of_logs_are_asked_for_in_parts(server: Scripted) -> None:
    server.always(logs(LOG))
    source = litellm(server)
    source._client.limits = ReadLimits(bytes_total=10)
    second = Window(NOW - HOUR, NOW - HOUR + timedelta(seconds=1))
    assert failure_of(lambda: source.usage(second)).kind is FetchError.PARTIAL_PAGE


def test_logs_that_grow_meanwhile_are_read_again(server: Scripted) -> None:
    more = {**LOG, "request_id": "r2"}
    replies = iter(
        [
            logs(LOG, total=2, pages=2),
            logs(more, total=3, number=2, pages=2),
            logs(LOG, total=2, pages=2),
            logs(more, total=2, number=2, pages=2),
        ]
    )
    server.say = lambda _: Reply(next(replies))
    assert sum_of(all_of(litellm(server).usage(before(2)))).total == 30


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["data", "has_more", "next_page", "results", "amount", "total", "page"]), inner
        )
    ),
    max_leaves=9,
)


@given(
    st.sampled_from(["openai", "anthropic", "anthropic_analytics", "openrouter", "litellm"]), json_values | st.binary()
)
def test_any_answer_is_pages_or_a_failure(provider: str, body: object) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    client = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(200, content=content)))
    account = UsageAccount(provider=provider, base_url="http://127.0.0.1:1", key_variable="K")
    clock = Clock()
    source = open_source(account, client=client, environment={"K": KEY}, clock=clock, sleep=clock.sleep)
    minute = Window(NOW - MINUTE, NOW)
    for pages in (source.usage(minute), source.costs(minute), source.calls(["a"])):
        try:
            all_of(pages)
        except FetchFailed:
            continue
