"""Providers that count by the minute, bill by the day, and tell of no single call."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from datetime import timedelta

from meruit.model.metering import Page, Window
from meruit.usage.providers.asking import UsageAsker
from meruit.usage.providers.paging import DAY, MINUTE, aligned, gathered, nothing

Ask = Callable[[Window], Awaitable[list[Page]]]


class ByMinutes(ABC):
    """A source that is asked for whole minutes and whole days; how, each says for itself."""

    bucket = MINUTE
    longest: timedelta = DAY
    longest_costs: timedelta
    """As `longest`, for what is billed."""
    _asker: UsageAsker

    async def usage(self, window: Window) -> AsyncIterator[Page]:
        """All that was counted in a window, page by page; raises FetchFailed."""
        for ask in self._counts():
            async for page in gathered(window, ask, longest=self.longest, narrowest=MINUTE, fit=self._minutes):
                yield page

    def calls(self, ids: Sequence[str]) -> AsyncIterator[Page]:
        """Nothing."""
        return nothing(ids)

    async def costs(self, window: Window) -> AsyncIterator[Page]:
        """What is billed for the days of a window; raises FetchFailed."""
        async for page in gathered(window, self._costs, longest=self.longest_costs, narrowest=DAY, fit=self._days):
            yield page

    def _minutes(self, window: Window) -> Window:
        # A future end makes the whole question fail.
        return aligned(window, MINUTE, self._asker.now())

    def _days(self, window: Window) -> Window:
        return aligned(window, DAY, self._asker.now(), unfinished=True)

    @abstractmethod
    def _counts(self) -> Iterable[Ask]:
        """What must be asked, one after the other, for all that was counted."""

    @abstractmethod
    async def _costs(self, window: Window) -> list[Page]:
        """What is billed for whole days."""
