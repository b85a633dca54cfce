"""Answers in pages: walked to the end, or not believed at all."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from meruit.errors import FetchError, FetchFailed, PagesChanged, ProviderRefused, ResponseTooLarge
from meruit.model.metering import CostRow, Page, UsageRow, Window
from meruit.sources.http import Params
from meruit.usage.providers.support.http_client import ProviderResponse, UsageClient

MAX_RESTARTS = 2
"""How often pages that changed while they were read are begun anew."""
MAX_CHUNKS = 1_000
"""How many questions one window may become."""
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class UsagePageContent(NamedTuple):
    """What one page says."""

    rows: Sequence[UsageRow] = ()
    costs: Sequence[CostRow] = ()
    next_page: str | None = None
    """The name of the next page."""
    watermark: datetime | None = None


async def fetch_pages(
    client: UsageClient, path: str, params: Params, read: Callable[[ProviderResponse], UsagePageContent]
) -> list[Page]:
    """All pages of one question; raises FetchFailed where they do not come to an end."""
    pages: list[Page] = []
    visited: set[str] = set()
    taken_bytes = 0
    page: list[tuple[str, str]] = []
    while True:
        answer = await client.get(path, [*params, *page])
        leaf = read(answer)
        pages.append(Page(answer.at, tuple(leaf.rows), tuple(leaf.costs), leaf.watermark, answer.raw))
        taken_bytes += len(answer.raw)
        if leaf.next_page is None:
            return pages
        if leaf.next_page in visited:
            raise answer.failure(FetchError.PARTIAL_PAGE, "names a next page that was read before; its pages never end")
        if len(pages) >= client.limits.pages or taken_bytes > client.limits.bytes_total:
            raise ResponseTooLarge(
                f"{answer.where} has more than {len(pages):,} pages; ask for less of it", at=answer.at
            )
        visited.add(leaf.next_page)
        page = [("page", leaf.next_page)]


def next_page_name(answer: ProviderResponse, *, has_more: bool, next_page: str | None) -> str | None:
    """The next page's name; raises FetchFailed where the page contradicts itself."""
    if has_more != bool(next_page):
        said = "says that there is more, and not where" if has_more else "says both that there is more and that not"
        raise answer.failure(FetchError.PARTIAL_PAGE, said)
    return next_page or None


class GroupValidator:
    """What a walk has told of already: each group of each span once, or its sum is too large."""

    def __init__(self) -> None:
        self._seen: set[tuple[datetime, *tuple[str | None, ...]]] = set()

    def check(self, answer: ProviderResponse, start: datetime, *group: str | None) -> None:
        """Raise FetchFailed for a group that was told of before."""
        if (start, *group) in self._seen:
            said = f"tells twice of one group in the span from {start.isoformat()}"
            raise answer.failure(FetchError.MALFORMED, said)
        self._seen.add((start, *group))


class BucketValidator:
    """The spans of time that a walk has seen: none outside of what was asked, and none of another width."""

    def __init__(self, window: Window, width: timedelta) -> None:
        self._window = window
        self._width = width
        self._covered_until = window.start

    def check(self, answer: ProviderResponse, start: datetime, end: datetime) -> None:
        """Raise FetchFailed for a span that cannot be."""
        if not self._window.start <= start < self._window.end:
            said = f"tells of {start.isoformat()}, which lies outside of the time that it was asked for"
            raise answer.failure(FetchError.CLOCK, said)
        whole = floor(start, self._width) + self._width
        # The last one may be told as far as it was asked for, or has come by their clock.
        is_cut = min(self._window.end, answer.at) <= end < whole and start < end
        if (end != whole and not is_cut) or start not in (whole - self._width, self._window.start):
            raise answer.failure(FetchError.MALFORMED, f"has a span from {start.isoformat()} to {end.isoformat()}")

    def check_next(self, answer: ProviderResponse, start: datetime, end: datetime) -> None:
        """The same where empty spans are told as well: raise FetchFailed also for one that is left out, or repeated."""
        self.check(answer, start, end)
        if start < self._covered_until:
            raise answer.failure(FetchError.PARTIAL_PAGE, f"tells of {start.isoformat()} twice, or out of order")
        if start > self._covered_until:
            raise answer.failure(
                FetchError.PARTIAL_PAGE, f"leaves out the time from {self._covered_until.isoformat()} on"
            )
        self._covered_until = end

    def next_page_name(self, answer: ProviderResponse, *, has_more: bool, next_page: str | None) -> str | None:
        """The next page's name; raises FetchFailed where there is none, and something was left out at the end."""
        name = next_page_name(answer, has_more=has_more, next_page=next_page)
        # What is not over by their clock need not be told.
        if name is None and self._covered_until < min(self._window.end, floor(answer.at, self._width)):
            raise answer.failure(
                FetchError.PARTIAL_PAGE, f"leaves out the time from {self._covered_until.isoformat()} on"
            )
        return name


async def fetch_window(
    window: Window,
    ask: Callable[[Window], Awaitable[list[Page]]],
    *,
    longest: timedelta,
    narrowest: timedelta,
    fit: Callable[[Window], Window],
) -> AsyncIterator[Page]:
    """The pages of a window, asked in pieces: shorter ones where an answer is too large, anew where it moved.

    `fit` makes of a window what may be asked now.
    """
    waiting = list(split_window(fit(window), longest))[::-1]
    for _ in range(MAX_CHUNKS):
        if not waiting:
            return
        piece = waiting.pop()
        try:
            pages = await _fetch_piece(piece, ask, fit)
        except ResponseTooLarge:
            if piece.end - piece.start <= narrowest:
                raise
            middle = piece.start + max((piece.end - piece.start) // 2 // narrowest, 1) * narrowest
            waiting += [Window(middle, piece.end), Window(piece.start, middle)]
            continue
        for page in pages:
            yield page
    raise FetchFailed(FetchError.PARTIAL_PAGE, f"a window of {len(waiting):,} questions more is too long; ask for less")


async def _fetch_piece(
    piece: Window, ask: Callable[[Window], Awaitable[list[Page]]], fit: Callable[[Window], Window]
) -> list[Page]:
    for _ in range(MAX_RESTARTS):
        try:
            return await ask(piece)
        except PagesChanged:
            continue
        except ProviderRefused:
            # The answer told the provider's own time; what it takes for the future is not asked for again.
            fitting = fit(piece)
            if fitting.end >= piece.end:
                raise
            piece = fitting
    return await ask(piece)


async def no_pages(_asked: object) -> AsyncIterator[Page]:
    """No page, whatever was asked: of those who do not tell of such things."""
    none: tuple[Page, ...] = ()
    for page in none:
        yield page


async def raise_when_read(failure: FetchFailed) -> AsyncIterator[Page]:
    """No page, and why."""
    async for page in no_pages(failure):
        yield page
    raise failure


def split_window(window: Window, longest: timedelta) -> Iterator[Window]:
    """The window, in parts no longer than that."""
    start = window.start
    while start < window.end:
        end = min(start + longest, window.end)
        yield Window(start, end)
        start = end


def align(window: Window, width: timedelta, now: datetime, *, unfinished: bool = False) -> Window:
    """The window in whole spans, and none of the future; raises FetchFailed where none is left.

    With `unfinished`, the span that has begun may be asked for up to now.
    """
    start = floor(window.start, width)
    latest = floor(now, timedelta(seconds=1)) if unfinished else floor(now, width)
    end = min(ceiling(window.end, width), latest)
    if end <= start:
        raise FetchFailed(
            FetchError.NOT_READY,
            f"the time from {window.start.isoformat()} on is not over yet; ask again later",
            at=now,
        )
    return Window(start, end)


def floor(moment: datetime, width: timedelta) -> datetime:
    """The moment, or the last one before it that begins a span of that width, in UTC."""
    return moment.astimezone(UTC) - (moment - _EPOCH) % width


def ceiling(moment: datetime, width: timedelta) -> datetime:
    """The moment, or the first one after it that begins a span of that width, in UTC."""
    return moment.astimezone(UTC) + (_EPOCH - moment) % width


def rfc3339(moment: datetime) -> str:
    """As most write a time: UTC, with a Z."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
