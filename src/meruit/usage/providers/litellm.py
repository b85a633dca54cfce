"""The spend logs of a LiteLLM proxy: a row for each call, in its own database."""

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

# Any: what else a proxy keeps with a call.
from typing import Any

import msgspec

from meruit.errors import AuthorError, FetchError, FetchFailed, InvalidAccount, PagesChanged, ResponseTooLarge
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
"""What the newest proxies allow."""
SECOND = timedelta(seconds=1)
_TIME_FORMAT = "%Y-%m-%d %H:%M:%S"
_BEGINNING = datetime(2000, 1, 1, tzinfo=UTC)
_FAILED = "failure"


class _Log(Record, frozen=True):
    request_id: str
    startTime: datetime  # noqa: N815 - as it is called there
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


_LOGS = msgspec.json.Decoder(_Logs)


@usage_sources.add(
    "litellm",
    key_variable="LITELLM_API_KEY",
    options={
        "page_size": f"Rows a page, up to {MAX_PAGE_ROWS}; usually {PAGE_ROWS}, the most that older proxies allow."
    },
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
        """All that was logged in a window, page by page; raises FetchFailed."""

        async def ask(piece: Window) -> list[Page]:
            return await self._fetch_logs(piece, window)

        told: dict[str, UsageRow] = {}
        async for page in fetch_window(window, ask, longest=DAY, narrowest=SECOND, fit=self._align_seconds):
            for row in page.rows:
                # A second copy within one piece of time is gone by now; one of another time is another row.
                if told.setdefault(row.request_id, row) is not row:
                    said = f"the call {row.request_id[:80]!r} was logged twice, at different times"
                    raise FetchFailed(FetchError.MALFORMED, said, at=page.at)
            yield page

    async def calls(self, ids: Sequence[str]) -> AsyncIterator[Page]:
        """What is known of these calls, a page each; one that is not known yet has no row. Raises FetchFailed."""
        ever = Window(_BEGINNING, ceiling(self._client.now(), DAY) + DAY)
        for one in dict.fromkeys(ids):
            answer = await self._client.get(PATH, [*self._page_params(ever, 1), ("request_id", one)])
            rows = [_row(log, answer) for log in answer.decode(_LOGS).data if log.request_id == one]
            yield Page(answer.at, tuple(_new_rows(rows, {}, answer)), raw=answer.raw)

    def costs(self, window: Window) -> AsyncIterator[Page]:
        """Nothing: each call's row has its cost."""
        return no_pages(window)

    def _align_seconds(self, window: Window) -> Window:
        return align(window, SECOND, self._client.now())

    def _page_params(self, window: Window, page: int) -> list[tuple[str, str]]:
        return [
            ("start_date", window.start.strftime(_TIME_FORMAT)),
            ("end_date", window.end.strftime(_TIME_FORMAT)),
            ("page", str(page)),
            ("page_size", str(self._rows)),
            # What is logged meanwhile comes last.
            ("sort_by", "startTime"),
            ("sort_order", "asc"),
        ]

    async def _fetch_logs(self, piece: Window, wanted: Window) -> list[Page]:
        """All pages of a piece of time, of which the proxy says itself how many rows they hold."""
        pages: list[Page] = []
        seen: dict[str, UsageRow] = {}
        total, taken_bytes = None, 0
        while True:
            answer = await self._client.get(PATH, self._page_params(piece, len(pages) + 1))
            logs = answer.decode(_LOGS)
            taken_bytes += len(answer.raw)
            if logs.total_is_capped or logs.total_pages > self._client.limits.pages:
                raise ResponseTooLarge(f"{answer.where} has more rows than it counts; ask for less time", at=answer.at)
            if taken_bytes > self._client.limits.bytes_total:
                raise ResponseTooLarge(
                    f"{answer.where} sent more than {taken_bytes:,} bytes; ask for less time", at=answer.at
                )
            if logs.page != len(pages) + 1 or total not in (None, logs.total):
                raise PagesChanged(f"{answer.where} logged more calls while its pages were read", at=answer.at)
            total = logs.total
            rows = [_check_time(_row(log, answer), piece, answer) for log in logs.data]
            new = _new_rows(rows, seen, answer)
            inside = [row for row in new if wanted.start <= row.start < min(wanted.end, piece.end)]
            pages.append(Page(answer.at, tuple(inside), raw=answer.raw))
            if len(pages) >= logs.total_pages:
                break
        if len(seen) != total:
            raise PagesChanged(
                f"{answer.where} says that there are {total:,} rows, and sent {len(seen):,}", at=answer.at
            )
        return pages


def _new_rows(rows: Sequence[UsageRow], seen: dict[str, UsageRow], answer: ProviderResponse) -> list[UsageRow]:
    """Those that were not seen yet, which are seen now; raises FetchFailed for a call that is told in two ways."""
    new = [row for row in rows if seen.setdefault(row.request_id, row) is row]
    for row in rows:
        if seen[row.request_id] != row:
            raise answer.failure(FetchError.MALFORMED, f"tells of the call {row.request_id[:80]!r} in two ways")
    return new


def _check_time(row: UsageRow, piece: Window, answer: ProviderResponse) -> UsageRow:
    # The end that is asked for is included there.
    if not piece.start <= row.start <= piece.end:
        said = f"tells of {row.start.isoformat()}, which lies outside of the time that it was asked for"
        raise answer.failure(FetchError.CLOCK, said)
    return row


def _row(log: _Log, answer: ProviderResponse) -> UsageRow:
    # Times without a zone are of a column that is in UTC.
    at = log.startTime if log.startTime.tzinfo is not None else log.startTime.replace(tzinfo=UTC)
    cost = None if log.spend is None else check_amount(log.spend, answer)
    attribution_key = {"key": log.api_key or "", "project": log.team_id or "", "session": log.session_id or ""}
    return UsageRow(at, at, _tokens(log), log.model or "", **attribution_key, request_id=log.request_id, cost=cost)


def _tokens(log: _Log) -> Tokens:
    """The row's counts, which are what the proxy bills by; the response's own block tells how they split."""
    used = log.prompt_tokens or log.completion_tokens
    requests = 1 if used or log.status != _FAILED else 0
    plain = Tokens(log.prompt_tokens, log.completion_tokens, requests)
    block = log.metadata.get("usage_object") if isinstance(log.metadata, dict) else None
    try:
        told = tokens_of(block, "litellm")
    except AuthorError:
        told = None
    if told is None or (told.input, told.output) != (plain.input, plain.output):
        return plain
    return Tokens(plain.input, plain.output, requests, told.cached, told.cache_write, told.reasoning)
