"""Providers that count by the minute, bill by the day, and tell of no single call."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from datetime import timedelta

from meruit.model.metering import Page, Window
from meruit.usage.providers.support.http_client import UsageClient
from meruit.usage.providers.support.paging import DAY, MINUTE, align, fetch_window, no_pages

AskWindow = Callable[[Window], Awaitable[list[Page]]]


class MinuteBucketSource(ABC):
    """A source that is asked for whole minutes and whole days; how, each says for itself."""

    bucket = MINUTE
    longest: timedelta = DAY
    longest_costs: timedelta
    """As `longest`, for what is billed."""
    _client: UsageClient

    async def usage(self, window: Window) -> AsyncIterator[Page]:
        """All that was counted in a window, page by page; raises FetchFailed."""
        for ask in self._usage_queries():
            async for page in fetch_window(
                window, ask, longest=self.longest, narrowest=MINUTE, fit=self._align_minutes
            ):
                yield page

    def calls(self, ids: Sequence[str]) -> AsyncIterator[Page]:
        """Nothing."""
        return no_pages(ids)

    async def costs(self, window: Window) -> AsyncIterator[Page]:
        """What is billed for the days of a window; raises FetchFailed."""
        async for page in fetch_window(
            window, self._costs, longest=self.longest_costs, narrowest=DAY, fit=self._align_days
        ):
            yield page

    def _align_minutes(self, window: Window) -> Window:
        # A future end makes the whole question fail.
        return align(window, MINUTE, self._client.now())

    def _align_days(self, window: Window) -> Window:
        return align(window, DAY, self._client.now(), unfinished=True)

    @abstractmethod
    def _usage_queries(self) -> Iterable[AskWindow]:
        """What must be asked, one after the other, for all that was counted."""

    @abstractmethod
    async def _costs(self, window: Window) -> list[Page]:
        """What is billed for whole days."""
