"""The one HTTP client: limits, credentials, retries, no redirects, and one mapping of failures to `HttpError`.

Sources read through `source_client.SourceClient`, which also records each request as evidence. Webhooks go through
`http_guard.Outbound`, which calls public addresses only.
"""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import TypeVar

import certifi
import httpx

from meruit.errors import (
    AddressFault,
    HttpError,
    HttpFailure,
    InvalidAddress,
    OutboundFailed,
    OutboundRefused,
    SourceError,
)
from meruit.sources.credentials import SecretToken, redact
from meruit.sources.http_replies import MAX_KIND_CHARS, MAX_QUOTED_CHARS, MAX_SHOWN_CHARS, HttpReply, truncate
from meruit.sources.retry import DEFAULT, ReadLimits, ReadPolicy, with_retries

T = TypeVar("T")
Params = Sequence[tuple[str, str]]

IDENTITY = "identity"
"""The encoding that is asked for: a few compressed bytes could expand to gigabytes."""
USER_AGENT = "meruit"
MAX_ERROR_BYTES = 64 * 1024
"""How much of an error reply is read."""
MAX_PORT = 65535
PORTS = {"http": 80, "https": 443}

_VISIBLE = re.compile(r"[\x21-\x7e]+")
_BROKEN_OFF = (httpx.ReadError, httpx.RemoteProtocolError)


class HttpResponse:
    """A reply whose body was not read yet."""

    def __init__(self, response: httpx.Response, where: str, limits: ReadLimits) -> None:
        self._response = response
        self._limits = limits
        self.where = where
        self.status = response.status_code
        self.headers = response.headers

    async def iter_bytes(self) -> AsyncIterator[bytes]:
        """Yield the body; raises HttpError for a compressed body, one that is too large and one that breaks off."""
        encoding = self._encoding()
        if encoding:
            raise HttpError(
                HttpFailure.ENCODED,
                f"{self.where} compressed its reply ({truncate(encoding, MAX_KIND_CHARS)}) although the request "
                "forbids it; check the proxy in front of it",
            )
        size = 0
        async for chunk in self._iter(self._response.aiter_bytes()):
            size += len(chunk)
            if size > self._limits.reply_bytes:
                raise HttpError(
                    HttpFailure.TOO_LARGE,
                    f"{self.where} sent more than {self._limits.reply_bytes:,} bytes in one reply; request less of it",
                )
            yield chunk

    def iter_raw(self, chunk_bytes: int | None = None) -> AsyncIterator[bytes]:
        """Yield the body as it was sent, compressed or not, without a limit."""
        return self._iter(self._response.aiter_raw(chunk_bytes))

    async def _iter(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        try:
            async for chunk in chunks:
                yield chunk
        except _BROKEN_OFF as problem:
            raise HttpError(
                HttpFailure.BROKEN_OFF,
                f"{self.where} broke off in the middle of its reply ({type(problem).__name__}); check that it is up",
                again=True,
            ) from None

    def _encoding(self) -> str:
        """How the body is compressed; empty when it is not."""
        encoding: str = self.headers.get("content-encoding", IDENTITY)
        return encoding.strip().lower().removeprefix(IDENTITY)

    async def read(self) -> HttpReply:
        """Read the whole body."""
        return self._reply(b"".join([chunk async for chunk in self.iter_bytes()]))

    async def read_start(self, max_bytes: int = MAX_ERROR_BYTES) -> HttpReply:
        """Read the first bytes, as they were sent, and drop the rest."""
        content = bytearray()
        async for chunk in self.iter_raw() if self._encoding() else self._iter(self._response.aiter_bytes()):
            content += chunk
            if len(content) >= max_bytes:
                break
        return self._reply(bytes(content[:max_bytes]))

    def _reply(self, content: bytes) -> HttpReply:
        return HttpReply(self.where, self.status, self.headers, content)


def bearer_headers(secret: str) -> dict[str, str]:
    """Show a secret as a bearer token."""
    return {"Authorization": f"Bearer {secret}"}


class HttpClient:
    """Sends requests for one user of one token.

    It belongs to the event loop that uses it, and is cheap to make. Without a `client` or `transport`, each request
    has its own connection and ignores proxies of the environment.
    """

    def __init__(
        self,
        *,
        client: httpx.AsyncClient | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        token: SecretToken | None = None,
        credential_headers: Callable[[str], Mapping[str, str]] = bearer_headers,
        policy: ReadPolicy = DEFAULT,
        renewals_max: int | None = None,
        before_try: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`renewals_max` bounds how often a refused token is fetched again; `before_try` runs before each request."""
        self._client = client
        self._transport = transport
        self._token = token
        self._credential_headers = credential_headers
        self._policy = policy
        self._renewals_left = renewals_max
        self._before_try = before_try
        self._fetching = asyncio.Lock()

    async def request(
        self,
        method: str,
        url: str,
        take: Callable[[HttpResponse], Awaitable[T]],
        *,
        params: Params = (),
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        where: str | None = None,
    ) -> T:
        """Return what `take` makes of the response; raises HttpError, or what `take` raises.

        A SourceError with `again` is retried by the policy, also one that `take` raises. When `take` raises the
        UNAUTHORIZED of `check_status`, the token is fetched again and the request is sent once more. `params` are not
        shown in errors. `where` replaces the URL in errors.
        """
        shown = self.display_url(url) if where is None else where
        wanted = {"User-Agent": USER_AGENT, "Accept": "*/*", "Accept-Encoding": IDENTITY, **(headers or {})}

        async def attempt() -> T:
            if self._before_try is not None:
                await self._before_try()
            secret = await self._secret(shown)
            try:
                return await self._send(self._build(method, url, params, wanted, content, secret), shown, take)
            except HttpError as refusal:
                if refusal.reason is not HttpFailure.UNAUTHORIZED or not await self._renew(secret):
                    raise
            secret = await self._secret(shown)
            return await self._send(self._build(method, url, params, wanted, content, secret), shown, take)

        try:
            return await with_retries(attempt, self._policy)
        except SourceError as error:
            # Servers quote what they received.
            error.args = (redact(str(error), self._token),)
            raise

    def display_url(self, url: str) -> str:
        """Format a URL for an error: without user, password and secrets, and not too long."""
        try:
            plain = str(httpx.URL(url).copy_with(username=None, password=None, fragment=None))
        except (httpx.InvalidURL, ValueError, TypeError):
            plain = "the given URL"
        return truncate(redact(plain, self._token), MAX_SHOWN_CHARS)

    async def _secret(self, where: str) -> str | None:
        if self._token is None:
            return None
        try:
            # Many requests run at the same time, and one of them fetches the token for all.
            async with self._fetching:
                secret = await self._token.value()
        except SourceError as error:
            raise HttpError(HttpFailure.CREDENTIAL, f"{where} was not called: {error}") from None
        if not _VISIBLE.fullmatch(secret):
            raise HttpError(
                HttpFailure.CREDENTIAL,
                f"{where} was not called: {self._token} has characters that a token cannot have; "
                "check that it is the token alone",
            )
        return secret

    async def _renew(self, refused: str | None) -> bool:
        """Return whether there is another token than the refused one; fetches it if necessary."""
        if self._token is None or refused is None:
            return False
        async with self._fetching:
            if await self._token.value() != refused:
                return True
            if self._renewals_left == 0:
                return False
            if self._renewals_left is not None:
                self._renewals_left -= 1
            return await self._token.renew(refused)

    def _build(
        self,
        method: str,
        url: str,
        params: Params,
        headers: Mapping[str, str],
        content: bytes | None,
        secret: str | None,
    ) -> httpx.Request:
        shown = dict(headers) if secret is None else {**headers, **self._credential_headers(secret)}
        limits = self._policy.limits
        timeout = httpx.Timeout(limits.timeout_s, connect=min(limits.timeout_s, limits.connect_s))
        try:
            target = httpx.URL(url, params=list(params)) if params else httpx.URL(url)
            if self._client is not None:
                return self._client.build_request(method, target, headers=shown, content=content, timeout=timeout)
            extensions = {"timeout": timeout.as_dict()}
            return httpx.Request(method, target, headers=shown, content=content, extensions=extensions)
        except (httpx.InvalidURL, ValueError, TypeError) as problem:
            raise HttpError(HttpFailure.ADDRESS, f"{self.display_url(url)} is not a valid URL: {problem}") from None

    async def _send(self, request: httpx.Request, where: str, take: Callable[[HttpResponse], Awaitable[T]]) -> T:
        limits = self._policy.limits
        try:
            async with asyncio.timeout(limits.timeout_s), self._connect(request) as response:
                return await take(HttpResponse(response, where, limits))
        except httpx.ConnectTimeout:
            raise HttpError(
                HttpFailure.TIMEOUT,
                f"{where} did not accept a connection (ConnectTimeout); check that it is up",
                again=True,
            ) from None
        except (TimeoutError, httpx.TimeoutException):
            raise HttpError(
                HttpFailure.TIMEOUT,
                f"{where} did not answer within {limits.timeout_s:g} s; check that it is up",
                again=True,
            ) from None
        except OutboundRefused as problem:
            raise HttpError(HttpFailure.ADDRESS, str(problem)) from problem
        except OutboundFailed as problem:
            raise HttpError(HttpFailure.CONNECTION, str(problem), again=True) from None
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as problem:
            raise HttpError(HttpFailure.ADDRESS, f"{where} cannot be called: {problem}") from None
        except (httpx.HTTPError, httpx.StreamError) as problem:
            cause = f"{type(problem).__name__} {truncate(str(problem), MAX_QUOTED_CHARS)}".strip()
            raise HttpError(
                HttpFailure.CONNECTION, f"{where} could not be called: {cause}; check that it is up", again=True
            ) from None

    @asynccontextmanager
    async def _connect(self, request: httpx.Request) -> AsyncIterator[httpx.Response]:
        """Send the request without following redirects, and close what it opened."""
        if self._client is not None:
            response = await self._client.send(request, stream=True, follow_redirects=False)
        elif self._transport is not None:
            response = await self._transport.handle_async_request(request)
        else:
            # Reading all certificates takes long enough to hold up every other task.
            tls = await asyncio.to_thread(tls_context, request.url.scheme)
            async with httpx.AsyncHTTPTransport(verify=tls, trust_env=False) as transport:
                response = await transport.handle_async_request(request)
                try:
                    yield response
                finally:
                    await response.aclose()
            return
        try:
            yield response
        finally:
            await response.aclose()


@cache
def tls_context(scheme: str) -> ssl.SSLContext:
    """The certificates that are trusted, read once: those of this system and those of certifi."""
    if scheme != "https":
        # Over plain http no certificate is checked, so none is read.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context = ssl.create_default_context()
    context.load_verify_locations(cafile=certifi.where())
    return context


def check_base_url(url: str) -> str:
    """Return a base URL unchanged; raises InvalidAddress for one that is not valid."""
    try:
        parsed = httpx.URL(url)
        port_fits = parsed.port is None or 0 < parsed.port <= MAX_PORT
    except (httpx.InvalidURL, ValueError, TypeError):
        raise InvalidAddress(AddressFault.SYNTAX, "this is not a valid URL; write https://host/path") from None
    if parsed.scheme not in PORTS or not parsed.host or not port_fits:
        raise InvalidAddress(
            AddressFault.SCHEME, "the URL must begin with http:// or https:// and name a host; write https://host/path"
        )
    if parsed.userinfo:
        raise InvalidAddress(
            AddressFault.CREDENTIALS,
            "the URL has a user or a password in it, which errors would show; use a token instead",
        )
    return url


def origin(url: httpx.URL) -> tuple[str, bytes, int | None]:
    """Return scheme, host and port; equal for URLs of one server."""
    return url.scheme, url.raw_host.lower(), url.port or PORTS.get(url.scheme)
