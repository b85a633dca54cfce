"""Requests to a provider's usage API: `sources.http` with the provider's clock and one kind for each failure."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import parsedate_to_datetime
from typing import TypeVar

import httpx
import msgspec

from meruit.errors import (
    FetchError,
    FetchFailed,
    HttpError,
    HttpFailure,
    PagesChanged,
    ProviderRefused,
    ResponseFailed,
    ResponseTooLarge,
)
from meruit.model.metering import UsageAccount
from meruit.registry import UsageProvider
from meruit.sources.credentials import redact
from meruit.sources.http import HttpClient, HttpResponse, Params, bearer_headers
from meruit.sources.http_replies import (
    CLIENT_ERRORS,
    FORBIDDEN,
    NOT_FOUND,
    OK,
    TIMED_OUT,
    TOO_MANY,
    UNAUTHORIZED,
    HttpReply,
    check_status,
    quote_of,
)
from meruit.sources.retry import BackoffSchedule, ReadLimits, ReadPolicy, Sleep
from meruit.usage.providers.support.account_settings import base_url_of, token_of

T = TypeVar("T")

RETRY = BackoffSchedule(tries=4, first_wait_s=1.0, factor=2.0)
"""Retries of one request; the reconciler has a schedule of its own."""
MAX_SKEW = timedelta(hours=1)
"""How far a provider's clock may be from ours before its times cannot be used."""
NOISE = timedelta(seconds=5)
"""A difference of clocks that is ignored."""
MOST_MONEY = Decimal(10) ** 15
GONE = 410
_BUSY_KINDS = {TOO_MANY: FetchError.RATE_LIMITED, TIMED_OUT: FetchError.TIMEOUT, 425: FetchError.MALFORMED}
"""Statuses that ask to try again later; those from 500 on are SERVER."""
_KINDS = {
    HttpFailure.ADDRESS: FetchError.SERVER,
    HttpFailure.CREDENTIAL: FetchError.AUTH,
    HttpFailure.CONNECTION: FetchError.SERVER,
    HttpFailure.TIMEOUT: FetchError.TIMEOUT,
    HttpFailure.BROKEN_OFF: FetchError.PARTIAL_PAGE,
    HttpFailure.TOO_LARGE: FetchError.PARTIAL_PAGE,
    HttpFailure.ENCODED: FetchError.MALFORMED,
    HttpFailure.UNAUTHORIZED: FetchError.AUTH,
    HttpFailure.REDIRECT: FetchError.MALFORMED,
    HttpFailure.BUSY: FetchError.SERVER,
}


class UsageSourceContext(msgspec.Struct, frozen=True):
    """What a source gets from outside: an HTTP client, the environment, the clock and the way to wait."""

    client: httpx.AsyncClient | None
    environment: Mapping[str, str]
    clock: Callable[[], datetime]
    sleep: Sleep


class ProviderResponse(msgspec.Struct, frozen=True):
    """One response of a provider."""

    where: str
    """The URL, safe to show."""
    status: int
    at: datetime
    """By the provider's clock, where the response has a date."""
    raw: bytes
    hide: Callable[[str], str]
    """Removes secrets from a text: servers quote what they received."""

    def decode(self, decoder: msgspec.json.Decoder[T]) -> T:
        """Decode the response; raises FetchFailed for half a response and for one of another shape."""
        try:
            return decoder.decode(self.raw)
        except msgspec.ValidationError as problem:
            raise self.failure(FetchError.MALFORMED, f"has another shape than expected: {problem}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            if "truncated" in str(problem):
                raise self.failure(FetchError.PARTIAL_PAGE, "broke off in the middle of its answer") from None
            raise self.failure(FetchError.MALFORMED, f"sent invalid JSON: {problem}") from None

    def failure(self, kind: FetchError, what: str) -> FetchFailed:
        """Build the failure that this response is."""
        return FetchFailed(kind, self.hide(f"{self.where} {what}"), at=self.at)


class UsageClient:
    """Sends the requests of one account to its provider."""

    def __init__(
        self,
        provider: UsageProvider,
        account: UsageAccount,
        context: UsageSourceContext,
        *,
        credential_headers: Callable[[str], Mapping[str, str]] = bearer_headers,
        limits: ReadLimits | None = None,
        pause_s: float = 0.0,
    ) -> None:
        """Raises AuthorError for an invalid address. `pause_s` is the least time between two requests."""
        self._base = base_url_of(provider, account)
        self._context = context
        self._token = token_of(provider, account, context.environment)
        self._credential_headers = credential_headers
        self.limits = limits or ReadLimits()
        self._pause_s = pause_s
        self._requested_at: datetime | None = None
        self._behind = timedelta()

    def now(self) -> datetime:
        """The time by the provider's clock where that is behind ours: a provider may refuse a window in its future."""
        return self._context.clock() - self._behind

    async def get(self, path: str, params: Params = (), *, may_lack: bool = False) -> ProviderResponse:
        """Get a response, whole; raises FetchFailed. With `may_lack`, a response with status 404 is returned too."""

        async def take(response: HttpResponse) -> ProviderResponse:
            return await self._read_response(response, may_lack=may_lack)

        # A client for each request: it belongs to the event loop of its caller.
        http = HttpClient(
            client=self._context.client,
            token=self._token,
            credential_headers=self._credential_headers,
            policy=ReadPolicy(retry=RETRY, limits=self.limits, sleep=self._context.sleep),
            before_try=self._pace,
        )
        headers = {"Accept": "application/json"}
        try:
            return await http.request("GET", self._base + path, take, params=params, headers=headers)
        except ResponseFailed as caught:
            caught.failure.args = (self._hide(str(caught.failure)),)
            raise caught.failure from None
        except HttpError as error:
            raise FetchFailed(_KINDS[error.reason], str(error)) from None

    def _hide(self, text: str) -> str:
        return redact(text, self._token)

    async def _pace(self) -> None:
        """Wait until the pause since the last request is over."""
        now = self._context.clock()
        if self._pause_s and self._requested_at is not None:
            left_s = self._pause_s - (now - self._requested_at).total_seconds()
            if 0 < left_s <= self._pause_s:
                await self._context.sleep(left_s)
        self._requested_at = self._context.clock()

    async def _read_response(self, response: HttpResponse, *, may_lack: bool) -> ProviderResponse:
        at = self._provider_time(response)
        try:
            reply = await response.read()
            if reply.status == OK or (may_lack and reply.status == NOT_FOUND):
                return ProviderResponse(
                    where=reply.where, status=reply.status, at=at, raw=reply.content, hide=self._hide
                )
            raise self._refusal(reply, at)
        except HttpError as error:
            raise ResponseFailed(
                _to_fetch_failed(error, response.status, at), again=error.again, wait_s=error.wait_s
            ) from None

    def _provider_time(self, response: HttpResponse) -> datetime:
        """The provider's clock; raises where it is too far from ours."""
        ours = self._context.clock()
        try:
            theirs = parsedate_to_datetime(response.headers.get("date", ""))
        except (ValueError, TypeError):
            return ours
        theirs = theirs.replace(tzinfo=UTC) if theirs.tzinfo is None else theirs.astimezone(UTC)
        if abs(ours - theirs) > MAX_SKEW:
            message = (
                f"the clock of {response.where} is at {theirs:%Y-%m-%d %H:%M:%S} UTC, {abs(ours - theirs)} from ours; "
                "check which clock is wrong"
            )
            raise ResponseFailed(FetchFailed(FetchError.CLOCK, message, at=theirs))
        self._behind = ours - theirs if ours - theirs > NOISE else timedelta()
        return theirs

    def _refusal(self, reply: HttpReply, at: datetime) -> ResponseFailed:
        """Build the failure of a status other than 200; raises HttpError for a status that all callers handle alike."""
        status = reply.status
        answer = f"{reply.where} answered with status {status}{quote_of(reply)}"
        if status in (UNAUTHORIZED, FORBIDDEN):
            advice = f"check that {self._token} is valid and may read usage" if self._token else "give it a key"
            return ResponseFailed(FetchFailed(FetchError.AUTH, f"{answer}; {advice}", at=at))
        if status == GONE:
            return ResponseFailed(PagesChanged(f"{answer}; its pages changed while they were read", at=at))
        check_status(reply)
        if status in CLIENT_ERRORS:
            advice = "check the address, and that the key belongs to this account"
            return ResponseFailed(ProviderRefused(f"{answer}; {advice}", at=at))
        return ResponseFailed(FetchFailed(FetchError.MALFORMED, f"{answer}; check the address", at=at))


def _to_fetch_failed(error: HttpError, status: int, at: datetime) -> FetchFailed:
    if error.reason is HttpFailure.TOO_LARGE:
        return ResponseTooLarge(str(error), at=at)
    kind = _BUSY_KINDS.get(status) if error.reason is HttpFailure.BUSY else None
    return FetchFailed(kind or _KINDS[error.reason], str(error), at=at)


def check_amount(amount: Decimal, response: ProviderResponse) -> Decimal:
    """Return an amount that can be calculated with; raises FetchFailed for any other."""
    if not amount.is_finite() or abs(amount) > MOST_MONEY:
        raise response.failure(FetchError.MALFORMED, f"has an amount out of range: {str(amount)[:40]}")
    return amount
