"""The spend logs of a LiteLLM proxy: a row for each call."""

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

# Any: the metadata that a proxy stores with a call.
from typing import Any

from meruit.errors import AuthorError, FetchError, FetchFailed, InvalidAccount, PagesChanged, ResponseTooLarge
from meruit.model.decoding import json_decoder
from meruit.model.metering import AttributionKind, Page, UsageAccount, UsageRow, Window
from meruit.model.record import Record
from meruit.model.usage import Count, Tokens
from meruit.registry import UsageProvider, usage_sources
from meruit.usage.providers.support.account_settings import number_option
from meruit.usage.providers.support.http_client import ProviderResponse, UsageClient, UsageSourceContext, check_amount
from meruit.usage.providers.support.paging import DAY, align, ceiling, fetch_window, no_pages
from meruit.usage.providers.support.usage_blocks import tokens_of

PATH = "/spend/logs/v2"
PAGE_ROWS = 100
MAX_PAGE_ROWS = 1_000
"""The limit of the newest proxies."""
SECOND = timedelta(seconds=1)
_TIME_FORMAT = "%Y-%m-%d %H:%M:%S"
_BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)
_FAILED = "failure"


class _Log(Record, frozen=True):
    request_id: str
    startTime: datetime  # noqa: N815 - the name in the log
    prompt_tokens: Count
    completion_tokens: Count
    api_key: str | None = None
    """A hash of the key."""
    spend: Decimal | None = None
    model: str | None = None
    team_id: str | None = None
    session_id: str | None = None
    status: str | None = None
    metadata: Any = None


class _Logs(Record, frozen=True):
    data: list[_Log]
    total: Count
    page: Count
    total_pages: Count
    total_is_capped: bool = False


_LOGS = json_decoder(_Logs)


@usage_sources.add(
    "litellm",
    key_variable="LITELLM_API_KEY",
    options={"page_size": f"Rows per page, up to {MAX_PAGE_ROWS} (default: {PAGE_ROWS}, the limit of older proxies)."},
)
class LiteLLMUsage:
    """The spend logs of your own LiteLLM proxy, by call, key, team and session; needs its base_url and an admin key."""

    kinds = frozenset(
        {
            AttributionKind.KEY,
            AttributionKind.PROJECT,
            AttributionKind.SESSION,
            AttributionKind.REQUESTS,
            AttributionKind.WINDOW,
        }
    )
    bucket = 0 * DAY
    longest = DAY

    def __init__(self, provider: UsageProvider, account: UsageAccount, context: UsageSourceContext) -> None:
        self._client = UsageClient(provider, account, context)
        rows = number_option(account, "page_size", PAGE_ROWS, least=1, most=MAX_PAGE_ROWS)
        if rows != int(rows):
            raise InvalidAccount("page_size", f"the option page_size must be a whole number, not {rows:g}")
        self._rows = int(rows)

    async def usage(self, window: Window) -> AsyncIterator[Page]:
        """Yield the calls that were logged in a window, page by page; raises FetchFailed."""

        async def ask(piece: Window) -> list[Page]:
            return await self._fetch_logs(piece, window)

        known: dict[str, UsageRow] = {}
        async for page in fetch_window(window, ask, longest=DAY, narrowest=SECOND, fit=self._align_seconds):
            for row in page.rows:
                # Copies within one piece of time are removed before; a copy of another time is another row.
                if known.setdefault(row.request_id, row) is not row:
                    message = f"the call {row.request_id[:80]!r} was logged twice, at different times"
                    raise FetchFailed(FetchError.MALFORMED, message, at=page.at)
            yield page

    async def calls(self, ids: Sequence[str]) -> AsyncIterator[Page]:
        """Yield a page for each call; a call that is not logged yet has no row. Raises FetchFailed."""
        ever = Window(_BEGINNING, ceiling(self._client.now(), DAY) + DAY)
        for one in dict.fromkeys(ids):
            response = await self._client.get(PATH, [*self._page_params(ever, 1), ("request_id", one)])
            rows = [_row(log, response) for log in response.decode(_LOGS).data if log.request_id == one]
            yield Page(response.at, tuple(_new_rows(rows, {}, response)), raw=response.raw)

    def costs(self, window: Window) -> AsyncIterator[Page]:
        """Yield nothing: each call's row has its cost."""
        return no_pages(window)

    def _align_seconds(self, window: Window) -> Window:
        return align(window, SECOND, self._client.now())

    def _page_params(self, window: Window, page: int) -> list[tuple[str, str]]:
        return [
            ("start_date", window.start.strftime(_TIME_FORMAT)),
            ("end_date", window.end.strftime(_TIME_FORMAT)),
            ("page", str(page)),
            ("page_size", str(self._rows)),
            # Calls that are logged meanwhile come last.
            ("sort_by", "startTime"),
            ("sort_order", "asc"),
        ]

    async def _fetch_logs(self, piece: Window, wanted: Window) -> list[Page]:
        """Read all pages of a piece of time, and compare their rows with the total that the proxy reports."""
        pages: list[Page] = []
        seen: dict[str, UsageRow] = {}
        total, taken_bytes = None, 0
        while True:
            response = await self._client.get(PATH, self._page_params(piece, len(pages) + 1))
            logs = response.decode(_LOGS)
            taken_bytes += len(response.raw)
            if logs.total_is_capped or logs.total_pages > self._client.limits.pages:
                raise ResponseTooLarge(
                    f"{response.where} has more rows than it counts; request a shorter time", at=response.at
                )
            if taken_bytes > self._client.limits.bytes_total:
                raise ResponseTooLarge(
                    f"{response.where} sent more than {taken_bytes:,} bytes; request a shorter time", at=response.at
                )
            if logs.page != len(pages) + 1 or total not in (None, logs.total):
                raise PagesChanged(f"{response.where} logged more calls while its pages were read", at=response.at)
            total = logs.total
            rows = [_check_time(_row(log, response), piece, response) for log in logs.data]
            new = _new_rows(rows, seen, response)
            inside = [row for row in new if wanted.start <= row.start < min(wanted.end, piece.end)]
            pages.append(Page(response.at, tuple(inside), raw=response.raw))
            if len(pages) >= logs.total_pages:
                break
        if len(seen) != total:
            raise PagesChanged(f"{response.where} reports {total:,} rows and sent {len(seen):,}", at=response.at)
        return pages


def _new_rows(rows: Sequence[UsageRow], seen: dict[str, UsageRow], response: ProviderResponse) -> list[UsageRow]:
    """Return the new rows, and remember them; raises FetchFailed for a call with two different rows."""
    new = [row for row in rows if seen.setdefault(row.request_id, row) is row]
    for row in rows:
        if seen[row.request_id] != row:
            raise response.failure(FetchError.MALFORMED, f"has two different rows of the call {row.request_id[:80]!r}")
    return new


def _check_time(row: UsageRow, piece: Window, response: ProviderResponse) -> UsageRow:
    # The proxy includes the end of the requested time.
    if not piece.start <= row.start <= piece.end:
        message = f"has a row of {row.start.isoformat()}, outside of the requested time"
        raise response.failure(FetchError.CLOCK, message)
    return row


def _row(log: _Log, response: ProviderResponse) -> UsageRow:
    # Times without a zone come from a column in UTC.
    at = log.startTime if log.startTime.tzinfo is not None else log.startTime.replace(tzinfo=UTC)
    cost = None if log.spend is None else check_amount(log.spend, response)
    keys = {"key": log.api_key or "", "project": log.team_id or "", "session": log.session_id or ""}
    return UsageRow(at, at, _tokens(log), log.model or "", **keys, request_id=log.request_id, cost=cost)


def _tokens(log: _Log) -> Tokens:
    """Read the row's counts, which the proxy bills by; the usage block of the response has their parts."""
    used = log.prompt_tokens or log.completion_tokens
    requests = 1 if used or log.status != _FAILED else 0
    plain = Tokens(log.prompt_tokens, log.completion_tokens, requests)
    block = log.metadata.get("usage_object") if isinstance(log.metadata, dict) else None
    try:
        known = tokens_of(block, "litellm")
    except AuthorError:
        known = None
    if known is None or (known.input, known.output) != (plain.input, plain.output):
        return plain
    return Tokens(plain.input, plain.output, requests, known.cached, known.cache_write, known.reasoning)
