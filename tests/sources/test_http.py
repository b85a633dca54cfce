"""The HTTP client: limits, credentials, retries, and one reason for each kind of failure."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from meruit.errors import HttpError, HttpFailure, InvalidAddress, OutboundFailed, OutboundRefused, SourceError
from meruit.sources.credentials import SecretToken
from meruit.sources.http import HttpClient, HttpResponse, check_base_url, tls_context
from meruit.sources.http_replies import HttpReply, check_status, retry_after_s
from meruit.sources.retry import BackoffSchedule, ReadLimits, ReadPolicy

URL = "https://api.test/v1/things"
Handler = Callable[[httpx.Request], httpx.Response]


async def no_sleep(seconds: float) -> None:
    """Wait for nothing."""


async def read(response: HttpResponse) -> HttpReply:
    reply = await response.read()
    check_status(reply)
    return reply


def policy(tries: int = 1, **limits: Any) -> ReadPolicy:
    return ReadPolicy(BackoffSchedule(tries=tries), ReadLimits(**limits), sleep=no_sleep)


def send(
    handler: Handler,
    *,
    url: str = URL,
    method: str = "GET",
    take: Callable[[HttpResponse], Awaitable[HttpReply]] = read,
    params: list[tuple[str, str]] | None = None,
    content: bytes | None = None,
    **options: Any,
) -> HttpReply:
    async def sending() -> HttpReply:
        async with httpx.AsyncClient(transport=httpx.MockTransport(handler)) as client:
            http = HttpClient(client=client, **({"policy": policy()} | options))
            return await http.request(method, url, take, params=params or (), content=content)

    return asyncio.run(sending())


def failure(handler: Handler, **options: Any) -> HttpError:
    with pytest.raises(HttpError) as caught:
        send(handler, **options)
    return caught.value


def raising(problem: Exception) -> Handler:
    def handler(request: httpx.Request) -> httpx.Response:
        raise problem

    return handler


def answering(*args: Any, **options: Any) -> Handler:
    return lambda request: httpx.Response(*args, **options)


def test_a_request_carries_its_parts_and_refuses_compression() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, content=b"fine")

    token = SecretToken.from_value("s3cret")
    reply = send(handler, method="POST", params=[("a", "1"), ("a", "2")], content=b"body", token=token)
    (request,) = seen
    assert (reply.status, reply.content, reply.where) == (200, b"fine", URL)
    assert (request.method, str(request.url), request.content) == ("POST", f"{URL}?a=1&a=2", b"body")
    assert (request.headers["authorization"], request.headers["accept-encoding"]) == ("Bearer s3cret", "identity")


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b" " * 1000


async def broken_off() -> AsyncIterator[bytes]:
    yield b"[1, "
    raise httpx.ReadError("cut")


@pytest.mark.parametrize(
    ("handler", "reason", "again"),
    [
        (raising(httpx.ConnectError("refused")), HttpFailure.CONNECTION, True),
        (raising(httpx.ReadError("cut")), HttpFailure.CONNECTION, True),
        (raising(httpx.ConnectTimeout("late")), HttpFailure.TIMEOUT, True),
        (raising(httpx.ReadTimeout("late")), HttpFailure.TIMEOUT, True),
        (raising(OutboundFailed("no address")), HttpFailure.CONNECTION, True),
        (raising(OutboundRefused("not public")), HttpFailure.ADDRESS, False),
        (answering(200, content=endless()), HttpFailure.TOO_LARGE, False),
        (answering(200, content=broken_off()), HttpFailure.BROKEN_OFF, True),
        (answering(200, headers={"Content-Encoding": "br"}, stream=httpx.ByteStream(b"x")), HttpFailure.ENCODED, False),
        (answering(301, headers={"Location": "https://evil.test/"}), HttpFailure.REDIRECT, False),
        (answering(401), HttpFailure.UNAUTHORIZED, False),
        (answering(429), HttpFailure.BUSY, True),
        (answering(503), HttpFailure.BUSY, True),
        (answering(503, headers={"Retry-After": "3600"}), HttpFailure.BUSY, False),
    ],
)
def test_each_failure_has_its_reason(handler: Handler, reason: HttpFailure, again: bool) -> None:
    error = failure(handler, policy=policy(reply_bytes=5000))
    assert (error.reason, error.again, error.code) == (reason, again, "http_error")


@pytest.mark.parametrize("url", ["https://h:x/", "https://h\x00/"])
def test_a_url_that_is_none_is_not_called(url: str) -> None:
    assert failure(answering(200), url=url).reason is HttpFailure.ADDRESS


def test_the_whole_request_has_one_time_limit() -> None:
    async def slow() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.01)

    error = failure(answering(200, content=slow()), policy=policy(timeout_s=0.1))
    assert (error.reason, error.again) == (HttpFailure.TIMEOUT, True)


def test_only_what_may_help_is_tried_again() -> None:
    calls: list[int] = []

    def handler(request: httpx.Request) -> httpx.Response:
        calls.append(1)
        return httpx.Response(503 if len(calls) < 3 else 200, content=b"")

    def refuse(request: httpx.Request) -> httpx.Response:
        calls.append(1)
        return httpx.Response(302)

    assert send(handler, policy=policy(tries=3)).status == 200
    assert len(calls) == 3
    calls.clear()
    assert failure(refuse, policy=policy(tries=3)).reason is HttpFailure.REDIRECT
    assert len(calls) == 1


def test_every_try_is_announced() -> None:
    tries: list[int] = []

    async def before_try() -> None:
        tries.append(1)

    failure(answering(503), policy=policy(tries=3), before_try=before_try)
    assert len(tries) == 3


def test_what_the_reader_raises_is_tried_again_if_it_says_so() -> None:
    calls: list[int] = []

    async def take(response: HttpResponse) -> HttpReply:
        calls.append(1)
        raise SourceError("half of it", again=len(calls) < 2)

    with pytest.raises(SourceError, match="half of it"):
        send(answering(200), take=take, policy=policy(tries=5))
    assert len(calls) == 2


def tokens(*values: str) -> SecretToken:
    left = list(values)

    async def fetch() -> str:
        return left.pop(0)

    return SecretToken("a test token", fetch)


def test_a_refused_token_is_fetched_again() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200 if request.headers["authorization"] == "Bearer two" else 401)

    assert send(handler, token=tokens("one", "two")).status == 200
    assert failure(handler, token=tokens("one", "two"), renewals_max=0).reason is HttpFailure.UNAUTHORIZED


def test_no_secret_is_in_an_error() -> None:
    error = failure(
        lambda request: httpx.Response(401, json={"error": request.headers["x-key"]}),
        token=SecretToken.from_value("s3cret"),
        credential_headers=lambda secret: {"X-Key": secret},
        url="https://me:s3cret@api.test/?q=s3cret",
    )
    assert "s3cret" not in str(error)


@pytest.mark.parametrize("secret", ["two words", "line\nbreak", "tök", ""])
def test_a_token_that_no_header_can_carry_is_not_sent(secret: str) -> None:
    error = failure(raising(AssertionError()), token=SecretToken.from_value(secret))
    assert (error.reason, error.again) == (HttpFailure.CREDENTIAL, False)


def test_a_token_that_cannot_be_fetched_is_named() -> None:
    error = failure(raising(AssertionError()), token=SecretToken.from_environment("NO_SUCH_TOKEN", {}))
    assert error.reason is HttpFailure.CREDENTIAL
    assert "NO_SUCH_TOKEN" in str(error)


def test_the_start_of_an_error_is_read_and_the_rest_is_dropped() -> None:
    async def take(response: HttpResponse) -> HttpReply:
        return await response.read_start(1500)

    assert len(send(answering(500, content=endless()), take=take).content) == 1500


def test_without_a_client_each_request_has_its_own_connection() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine")
        await writer.drain()
        writer.close()

    async def sending() -> list[bytes]:
        async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            http = HttpClient(policy=policy())
            return [(await http.request("GET", f"http://127.0.0.1:{port}/", read)).content for _ in range(2)]

    assert asyncio.run(sending()) == [b"fine", b"fine"]


def test_certificates_are_read_once_and_only_for_https() -> None:
    assert tls_context("https") is tls_context("https")
    assert tls_context("https").verify_mode is ssl.CERT_REQUIRED
    assert tls_context("https").cert_store_stats()["x509_ca"] > 0
    assert tls_context("http").cert_store_stats()["x509_ca"] == 0


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"Retry-After": "3"}, 3.0),
        ({"Retry-After": "Tue, 15 Nov 2022 08:12:36 GMT", "Date": "Tue, 15 Nov 2022 08:12:31 GMT"}, 5.0),
        ({"Retry-After": "Tue, 15 Nov 2022 08:00:00 GMT", "Date": "Tue, 15 Nov 2022 08:12:31 GMT"}, 0.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-3"}, None),
        ({}, None),
    ],
)
def test_the_wait_that_a_server_asks_for(headers: dict[str, str], wait_s: float | None) -> None:
    assert retry_after_s(HttpReply(URL, 503, httpx.Headers(headers), b"")) == wait_s


def test_base_urls_are_checked() -> None:
    assert check_base_url("http://h:8080/a") == "http://h:8080/a"
    for url in ("ftp://h", "https://", "https://h:0", "https://u:p@h", "https://h:x"):
        with pytest.raises(InvalidAddress):
            check_base_url(url)
