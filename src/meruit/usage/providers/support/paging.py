"""Responses in pages: read to the end and checked, or refused as a whole."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from meruit.errors import FetchError, FetchFailed, PagesChanged, ProviderRefused, ResponseTooLarge
from meruit.model.metering import CostRow, Page, UsageRow, Window
from meruit.sources.http import Params
from meruit.usage.providers.support.http_client import ProviderResponse, UsageClient

MAX_RESTARTS = 2
"""How often pages that changed while they were read are read again."""
MAX_CHUNKS = 1_000
"""How many requests one window may take."""
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class UsagePageContent(msgspec.Struct, frozen=True):
    """The contents of one page."""

    rows: Sequence[UsageRow] = ()
    costs: Sequence[CostRow] = ()
    next_page: str | None = None
    """The name of the next page."""
    watermark: datetime | None = None


async def fetch_pages(
    client: UsageClient, path: str, params: Params, read: Callable[[ProviderResponse], UsagePageContent]
) -> list[Page]:
    """Read all pages of one request; raises FetchFailed where they do not end."""
    pages: list[Page] = []
    visited: set[str] = set()
    taken_bytes = 0
    page: list[tuple[str, str]] = []
    while True:
        response = await client.get(path, [*params, *page])
        content = read(response)
        pages.append(
            Page(
                at=response.at,
                rows=tuple(content.rows),
                costs=tuple(content.costs),
                watermark=content.watermark,
                raw=response.raw,
            )
        )
        taken_bytes += len(response.raw)
        if content.next_page is None:
            return pages
        if content.next_page in visited:
            raise response.failure(
                FetchError.PARTIAL_PAGE, "has a next page that was read before, so its pages never end"
            )
        if len(pages) >= client.limits.pages or taken_bytes > client.limits.bytes_total:
            raise ResponseTooLarge(
                f"{response.where} has more than {len(pages):,} pages; request a shorter time", at=response.at
            )
        visited.add(content.next_page)
        page = [("page", content.next_page)]


def next_page_name(response: ProviderResponse, *, has_more: bool, next_page: str | None) -> str | None:
    """Return the name of the next page; raises FetchFailed where the page contradicts itself."""
    if has_more != bool(next_page):
        message = "has has_more without next_page" if has_more else "has next_page without has_more"
        raise response.failure(FetchError.PARTIAL_PAGE, message)
    return next_page or None


class GroupValidator:
    """Checks that each group of a bucket comes once, because a repeated one would be counted twice."""

    def __init__(self) -> None:
        self._seen: set[tuple[datetime, *tuple[str | None, ...]]] = set()

    def check(self, response: ProviderResponse, start: datetime, *group: str | None) -> None:
        """Raise FetchFailed for a repeated group."""
        if (start, *group) in self._seen:
            message = f"has one group twice in the bucket from {start.isoformat()}"
            raise response.failure(FetchError.MALFORMED, message)
        self._seen.add((start, *group))


class BucketValidator:
    """Checks that buckets lie in the requested time, have the requested width, and leave no gap."""

    def __init__(self, window: Window, width: timedelta) -> None:
        self._window = window
        self._width = width
        self._covered_until = window.start

    def check(self, response: ProviderResponse, start: datetime, end: datetime) -> None:
        """Raise FetchFailed for a bucket that is not valid."""
        if not self._window.start <= start < self._window.end:
            message = f"has a bucket at {start.isoformat()}, outside of the requested time"
            raise response.failure(FetchError.CLOCK, message)
        whole = floor(start, self._width) + self._width
        # The last bucket may end at the requested end, or at the provider's present time.
        is_cut = min(self._window.end, response.at) <= end < whole and start < end
        if (end != whole and not is_cut) or start not in (whole - self._width, self._window.start):
            raise response.failure(
                FetchError.MALFORMED, f"has a bucket of another width, from {start.isoformat()} to {end.isoformat()}"
            )

    def check_next(self, response: ProviderResponse, start: datetime, end: datetime) -> None:
        """Check a bucket where empty ones are listed too: raise FetchFailed also for a missing or repeated one."""
        self.check(response, start, end)
        if start < self._covered_until:
            raise response.failure(
                FetchError.PARTIAL_PAGE, f"has the bucket {start.isoformat()} twice, or out of order"
            )
        if start > self._covered_until:
            raise response.failure(
                FetchError.PARTIAL_PAGE, f"has no bucket for the time from {self._covered_until.isoformat()} on"
            )
        self._covered_until = end

    def next_page_name(self, response: ProviderResponse, *, has_more: bool, next_page: str | None) -> str | None:
        """Return the name of the next page; raises FetchFailed where the last page ends too early."""
        name = next_page_name(response, has_more=has_more, next_page=next_page)
        # A bucket that has not ended by the provider's clock may be missing.
        if name is None and self._covered_until < min(self._window.end, floor(response.at, self._width)):
            raise response.failure(
                FetchError.PARTIAL_PAGE, f"has no bucket for the time from {self._covered_until.isoformat()} on"
            )
        return name


async def fetch_window(
    window: Window,
    fetch: Callable[[Window], Awaitable[list[Page]]],
    *,
    longest: timedelta,
    narrowest: timedelta,
    fit: Callable[[Window], Window],
) -> AsyncIterator[Page]:
    """Read the pages of a window in pieces: shorter ones where a response is too large, again where it changed.

    `fit` limits a window to what may be requested now.
    """
    waiting = list(split_window(fit(window), longest))[::-1]
    for _ in range(MAX_CHUNKS):
        if not waiting:
            return
        piece = waiting.pop()
        try:
            pages = await _fetch_piece(piece, fetch, fit)
        except ResponseTooLarge:
            if piece.end - piece.start <= narrowest:
                raise
            middle = piece.start + max((piece.end - piece.start) // 2 // narrowest, 1) * narrowest
            waiting += [Window(middle, piece.end), Window(piece.start, middle)]
            continue
        for page in pages:
            yield page
    raise FetchFailed(
        FetchError.PARTIAL_PAGE, f"the window needs {len(waiting):,} more requests; request a shorter time"
    )


async def _fetch_piece(
    piece: Window, fetch: Callable[[Window], Awaitable[list[Page]]], fit: Callable[[Window], Window]
) -> list[Page]:
    for _ in range(MAX_RESTARTS):
        try:
            return await fetch(piece)
        except PagesChanged:
            continue
        except ProviderRefused:
            # The response has the provider's time; the next request leaves out what is in its future.
            fitting = fit(piece)
            if fitting.end >= piece.end:
                raise
            piece = fitting
    return await fetch(piece)


async def no_pages(_request: object) -> AsyncIterator[Page]:
    """Yield no page, for sources that have no such data."""
    none: tuple[Page, ...] = ()
    for page in none:
        yield page


async def raise_when_read(failure: FetchFailed) -> AsyncIterator[Page]:
    """Raise the failure when the pages are read."""
    async for page in no_pages(failure):
        yield page
    raise failure


def split_window(window: Window, longest: timedelta) -> Iterator[Window]:
    """Split a window into parts of at most this length."""
    start = window.start
    while start < window.end:
        end = min(start + longest, window.end)
        yield Window(start, end)
        start = end


def align(window: Window, width: timedelta, now: datetime, *, unfinished: bool = False) -> Window:
    """Round a window to whole buckets that have ended; raises FetchFailed where none is left.

    With `unfinished`, the present bucket is included up to now.
    """
    start = floor(window.start, width)
    latest = floor(now, timedelta(seconds=1)) if unfinished else floor(now, width)
    end = min(ceiling(window.end, width), latest)
    if end <= start:
        raise FetchFailed(
            FetchError.NOT_READY,
            f"the time from {window.start.isoformat()} on is not over yet; try again later",
            at=now,
        )
    return Window(start, end)


def floor(moment: datetime, width: timedelta) -> datetime:
    """Round a time down to the start of a bucket, in UTC."""
    return moment.astimezone(UTC) - (moment - _EPOCH) % width


def ceiling(moment: datetime, width: timedelta) -> datetime:
    """Round a time up to the start of a bucket, in UTC."""
    return moment.astimezone(UTC) + (_EPOCH - moment) % width


def rfc3339(moment: datetime) -> str:
    """Format a time in UTC, with a Z."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
