"""Questions to those who count tokens: patient within limits, each failure of its own kind, no secret in any."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import parsedate_to_datetime
from typing import NamedTuple, TypeVar

import httpx
import msgspec

from meruit.errors import (
    AuthorError,
    FetchError,
    FetchFailed,
    PagesChanged,
    ProviderRefused,
    ResponseTooLarge,
    SourceError,
    nearest,
)
from meruit.model.metering import UsageAccount
from meruit.registry import UsageProvider
from meruit.sources.credentials import SecretToken, redact
from meruit.sources.http import NOT_FOUND, NOT_IMPLEMENTED, OK, SourceReply, check_base_url, check_status, quote_of
from meruit.sources.retry import BackoffSchedule, ReadLimits, ReadPolicy, Sleep, with_retries

T = TypeVar("T")
Params = Sequence[tuple[str, str]]

RETRY = BackoffSchedule(tries=4, first_wait_s=1.0, factor=2.0)
"""Within one question; whoever looks at runs has a patience of its own."""
MAX_SKEW = timedelta(hours=1)
"""How far a provider's clock may be from ours before its times mean nothing to us."""
NOISE = timedelta(seconds=5)
"""How far it may be without meaning anything."""
MOST_MONEY = Decimal(10) ** 15
CLOSED = 410
TIMED_OUT = 408
_UNAUTHORIZED, _FORBIDDEN, _TOO_MANY = 401, 403, 429
_CLIENT_ERRORS = range(400, 500)
_SERVER_ERRORS = range(500, 600)


class UsageSourceContext(NamedTuple):
    """What a source needs of the world."""

    client: httpx.AsyncClient | None
    environment: Mapping[str, str]
    clock: Callable[[], datetime]
    sleep: Sleep


class ProviderResponse(NamedTuple):
    """What a provider answered."""

    where: str
    """The address, fit to be shown."""
    status: int
    at: datetime
    """By the provider's clock, where it says."""
    raw: bytes
    hide: Callable[[str], str]
    """Takes secrets out of a text: servers quote what they were sent."""

    def decode(self, decoder: msgspec.json.Decoder[T]) -> T:
        """What it says, by type; raises FetchFailed for half an answer and for one of another shape."""
        try:
            return decoder.decode(self.raw)
        except msgspec.ValidationError as problem:
            raise self.failure(FetchError.MALFORMED, f"has another shape than expected: {problem}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            if "truncated" in str(problem):
                raise self.failure(FetchError.PARTIAL_PAGE, "broke off in the middle of its answer") from None
            raise self.failure(FetchError.MALFORMED, f"sent what is no JSON: {problem}") from None

    def failure(self, kind: FetchError, what: str) -> FetchFailed:
        """The failure that this answer is."""
        return FetchFailed(kind, self.hide(f"{self.where} {what}"), at=self.at)


class _RequestFailure(SourceError):
    """A try that failed, and what it is when the last one did."""

    def __init__(self, failure: FetchFailed, *, again: bool = False, wait_s: float | None = None) -> None:
        super().__init__(str(failure), again=again, wait_s=wait_s)
        self.failure = failure


def bearer_headers(secret: str) -> dict[str, str]:
    """As most want to be shown a key."""
    return {"Authorization": f"Bearer {secret}"}


class UsageClient:
    """Asks one account at one provider."""

    def __init__(
        self,
        provider: UsageProvider,
        account: UsageAccount,
        around: UsageSourceContext,
        *,
        shown_as: Callable[[str], Mapping[str, str]] = bearer_headers,
        limits: ReadLimits | None = None,
        pause_s: float = 0.0,
    ) -> None:
        """AuthorError for an address that is none. `pause_s` lies between two questions at the usual address."""
        self._base = base_url_of(provider, account)
        self._around = around
        self._token = token(provider, account, around.environment)
        self._shown_as = shown_as
        self.limits = limits or ReadLimits()
        self._policy = ReadPolicy(retry=RETRY, limits=self.limits, sleep=around.sleep)
        self._pause_s = pause_s
        self._asked_at: datetime | None = None
        self._behind = timedelta()
        self._tls: ssl.SSLContext | None = None

    def now(self) -> datetime:
        """The time, by the provider's clock where that is behind ours: it may refuse what it takes for the future."""
        return self._around.clock() - self._behind

    async def get(self, path: str, params: Params = (), *, may_lack: bool = False) -> ProviderResponse:
        """The answer, whole; raises FetchFailed. With `may_lack`, also the answer that there is no such thing."""
        try:
            return await with_retries(lambda: self._try_once(path, params, may_lack=may_lack), self._policy)
        except _RequestFailure as trouble:
            failure = trouble.failure
            failure.args = (self._hide(str(failure)),)
            raise failure from None

    def _hide(self, text: str) -> str:
        return redact(text, self._token)

    async def _try_once(self, path: str, params: Params, *, may_lack: bool) -> ProviderResponse:
        await self._pace()
        where = self._base + path
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", **await self._credentials(where)}
        try:
            async with asyncio.timeout(self.limits.timeout_s), self._connect() as client:
                url = httpx.URL(where, params=list(params)) if params else httpx.URL(where)
                request = client.build_request("GET", url, headers=headers, timeout=self.limits.timeout_s)
                response = await client.send(request, stream=True, follow_redirects=False)
                try:
                    return await self._read_response(response, where, may_lack=may_lack)
                finally:
                    await response.aclose()
        except (TimeoutError, httpx.TimeoutException):
            said = f"{where} did not answer within {self.limits.timeout_s:g} s; see whether it is up"
            raise _RequestFailure(FetchFailed(FetchError.TIMEOUT, said), again=True) from None
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL) as problem:
            said = f"{where} could not be asked: {type(problem).__name__} {problem}".strip()
            raise _RequestFailure(FetchFailed(FetchError.SERVER, f"{said}; see whether it is up"), again=True) from None

    async def _pace(self) -> None:
        """Wait until the next question is welcome."""
        now = self._around.clock()
        if self._pause_s and self._asked_at is not None:
            left_s = self._pause_s - (now - self._asked_at).total_seconds()
            if 0 < left_s <= self._pause_s:
                await self._around.sleep(left_s)
        self._asked_at = self._around.clock()

    async def _credentials(self, where: str) -> Mapping[str, str]:
        if self._token is None:
            return {}
        try:
            secret = await self._token.value()
        except SourceError as trouble:
            raise _RequestFailure(FetchFailed(FetchError.AUTH, f"{where} was not asked: {trouble}")) from None
        if not secret.isascii() or not secret.isprintable() or " " in secret:
            said = f"{where} was not asked: {self._token} holds signs that no key has; see that it is the key alone"
            raise _RequestFailure(FetchFailed(FetchError.AUTH, said))
        return self._shown_as(secret)

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[httpx.AsyncClient]:
        if self._around.client is not None:
            yield self._around.client
            return
        if self._tls is None:
            # Reading all certificates takes long enough to hold up everybody else; over http nobody is to be trusted.
            over_http = self._base.startswith("http:")
            self._tls = await asyncio.to_thread(_tls_without_certificates if over_http else ssl.create_default_context)
        # A client for each question: it belongs to the event loop of whoever asks.
        async with httpx.AsyncClient(verify=self._tls, trust_env=False) as client:
            yield client

    async def _read_response(self, response: httpx.Response, where: str, *, may_lack: bool) -> ProviderResponse:
        at = self._provider_time(response, where)
        packed = response.headers.get("content-encoding", "identity").strip().lower()
        if packed not in ("", "identity"):
            # A few bytes could unpack to gigabytes.
            said = f"{where} packed its answer ({packed[:40]}), which nobody asked for; see what stands before it"
            raise _RequestFailure(FetchFailed(FetchError.MALFORMED, said, at=at))
        content = await self._read_content(response, where, at)
        answer = ProviderResponse(where, response.status_code, at, content, self._hide)
        if answer.status == OK or (may_lack and answer.status == NOT_FOUND):
            return answer
        raise self._refusal(SourceReply(where, answer.status, response.headers, content), at)

    def _provider_time(self, response: httpx.Response, where: str) -> datetime:
        """The provider's clock; raises where its times mean nothing to us."""
        ours = self._around.clock()
        try:
            theirs = parsedate_to_datetime(response.headers.get("date", ""))
        except (ValueError, TypeError):
            return ours
        theirs = theirs.replace(tzinfo=UTC) if theirs.tzinfo is None else theirs.astimezone(UTC)
        if abs(ours - theirs) > MAX_SKEW:
            said = f"{where} says that it is {theirs:%Y-%m-%d %H:%M:%S} UTC, {abs(ours - theirs)} from our time; "
            raise _RequestFailure(FetchFailed(FetchError.CLOCK, said + "see which of both clocks is wrong", at=theirs))
        self._behind = ours - theirs if ours - theirs > NOISE else timedelta()
        return theirs

    async def _read_content(self, response: httpx.Response, where: str, at: datetime) -> bytes:
        content = bytearray()
        try:
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > self.limits.reply_bytes:
                    said = f"{where} sent more than {self.limits.reply_bytes:,} bytes in one answer; ask for less of it"
                    raise _RequestFailure(ResponseTooLarge(said, at=at))
        except (httpx.ReadError, httpx.RemoteProtocolError):
            said = f"{where} broke off in the middle of its answer"
            raise _RequestFailure(FetchFailed(FetchError.PARTIAL_PAGE, said, at=at), again=True) from None
        return bytes(content)

    def _refusal(self, reply: SourceReply, at: datetime) -> _RequestFailure:
        """Why there is no answer, and whether there may be one soon."""
        status = reply.status
        said = f"{reply.where} answered with status {status}{quote_of(reply)}"
        if status in (_UNAUTHORIZED, _FORBIDDEN):
            key = f"see whether {self._token} is valid and may read usage" if self._token else "give it a key"
            return _RequestFailure(FetchFailed(FetchError.AUTH, f"{said}; {key}", at=at))
        if status == CLOSED:
            return _RequestFailure(PagesChanged(f"{said}; its pages changed while they were read", at=at))
        try:
            check_status(reply)
        except SourceError as trouble:
            failure = FetchFailed(_error_kind(status), str(trouble), at=at)
            return _RequestFailure(failure, again=trouble.again, wait_s=trouble.wait_s)
        if status in _CLIENT_ERRORS:
            return _RequestFailure(
                ProviderRefused(f"{said}; see whether it is the right address and the key's own account", at=at)
            )
        return _RequestFailure(FetchFailed(_error_kind(status), f"{said}; see whether it is the right address", at=at))


def _tls_without_certificates() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _error_kind(status: int) -> FetchError:
    if status == _TOO_MANY:
        return FetchError.RATE_LIMITED
    if status == TIMED_OUT:
        return FetchError.TIMEOUT
    return FetchError.SERVER if status in _SERVER_ERRORS and status != NOT_IMPLEMENTED else FetchError.MALFORMED


def base_url_of(provider: UsageProvider, account: UsageAccount) -> str:
    """Where an account is, without a slash at its end; an address of only a host takes the usual path."""
    given = account.base_url or provider.base_url
    if not given:
        raise AuthorError(f"an account at {provider.name} needs its base_url; write https://host")
    try:
        url = httpx.URL(check_base_url(given))
    except AuthorError as problem:
        raise AuthorError(f"the base_url of an account at {provider.name} cannot be used: {problem}") from None
    if url.query or url.fragment:
        raise AuthorError(f"the base_url of an account at {provider.name} ends with its path; leave out ? and #")
    path = url.path.rstrip("/") or (httpx.URL(provider.base_url).path if provider.base_url else "")
    return str(url.copy_with(path=path or "/")).rstrip("/")


def key_variable_of(provider: UsageProvider, account: UsageAccount) -> str:
    """The environment variable that holds the account's key; empty where there is none."""
    return account.key_variable or provider.key_variable


def token(provider: UsageProvider, account: UsageAccount, environment: Mapping[str, str]) -> SecretToken | None:
    """The account's key, fetched when it is needed."""
    name = key_variable_of(provider, account)
    return SecretToken.from_environment(name, environment) if name else None


def check_options(provider: UsageProvider, account: UsageAccount) -> None:
    """Raise AuthorError for an option that this kind of account does not have."""
    for name in account.options:
        if name not in provider.options:
            known = ", ".join(sorted(provider.options)) or "none"
            hint = nearest(name, provider.options)
            raise AuthorError(f"an account at {provider.name} has no option {name!r}{hint}; it has {known}")


def list_option(account: UsageAccount, name: str) -> list[str]:
    """The values of an option that is a list, with commas."""
    return [part.strip() for part in account.options.get(name, "").split(",") if part.strip()]


def number_option(account: UsageAccount, name: str, usual: float, *, least: float, most: float) -> float:
    """The value of an option that is a number; AuthorError for one that is none or lies elsewhere."""
    text = account.options.get(name)
    if text is None:
        return usual
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise AuthorError(f"the option {name} is a number from {least:g} to {most:g}, not {text!r}")
    return value


def check_amount(amount: Decimal, answer: ProviderResponse) -> Decimal:
    """An amount that can be reckoned with; raises FetchFailed for any other."""
    if not amount.is_finite() or abs(amount) > MOST_MONEY:
        raise answer.failure(FetchError.MALFORMED, f"names an amount that nobody owes: {str(amount)[:40]}")
    return amount
