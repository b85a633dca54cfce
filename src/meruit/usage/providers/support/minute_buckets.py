"""Providers that count by the minute, bill by the day, and have no records of single calls."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from datetime import timedelta

from meruit.model.metering import Page, Window
from meruit.usage.providers.support.http_client import UsageClient
from meruit.usage.providers.support.paging import DAY, MINUTE, align, fetch_window, no_pages

AskWindow = Callable[[Window], Awaitable[list[Page]]]


class MinuteBucketSource(ABC):
    """Requests whole minutes and whole days; each provider says how."""

    bucket = MINUTE
    longest: timedelta = DAY
    longest_costs: timedelta
    """As `longest`, for costs."""
    _client: UsageClient

    async def usage(self, window: Window) -> AsyncIterator[Page]:
        """Yield all counts of a window, page by page; raises FetchFailed."""
        for ask in self._usage_queries():
            async for page in fetch_window(
                window, ask, longest=self.longest, narrowest=MINUTE, fit=self._align_minutes
            ):
                yield page

    def calls(self, ids: Sequence[str]) -> AsyncIterator[Page]:
        """Yield nothing: there are no records of single calls."""
        return no_pages(ids)

    async def costs(self, window: Window) -> AsyncIterator[Page]:
        """Yield the costs of the days of a window; raises FetchFailed."""
        async for page in fetch_window(
            window, self._costs, longest=self.longest_costs, narrowest=DAY, fit=self._align_days
        ):
            yield page

    def _align_minutes(self, window: Window) -> Window:
        # A provider refuses a window that ends in the future.
        return align(window, MINUTE, self._client.now())

    def _align_days(self, window: Window) -> Window:
        return align(window, DAY, self._client.now(), unfinished=True)

    @abstractmethod
    def _usage_queries(self) -> Iterable[AskWindow]:
        """The requests for all counts of a window, in order."""

    @abstractmethod
    async def _costs(self, window: Window) -> list[Page]:
        """Request the costs of whole days."""
