"""What the tests of usage sources share: a clock that stands, an account, and all pages of an answer."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from meruit.errors import FetchFailed
from meruit.model.metering import Page, UsageAccount, UsageRow, UsageSource, Window
from meruit.model.usage import Tokens, sum_tokens
from meruit.usage.providers.support.source_factory import open_source

NOW = datetime(2026, 9, 14, 12, 0, tzinfo=UTC)
KEY = "sk-admin-test"
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
PROVIDERS = ("openai", "anthropic", "anthropic_analytics", "litellm")
"""Those that are asked about a window."""


@dataclass
class Clock:
    """Stands still until somebody sleeps by it."""

    now: datetime = NOW
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> datetime:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += timedelta(seconds=seconds)
        await asyncio.sleep(0)


def opened(
    provider: str, url: str | None = None, *, clock: Clock | None = None, key: str = KEY, **options: str
) -> UsageSource:
    account = UsageAccount(provider=provider, base_url=url, key_variable="THE_KEY", options=options)
    clock = clock or Clock()
    return open_source(account, client=None, environment={"THE_KEY": key}, clock=clock, sleep=clock.sleep)


def all_of(pages: AsyncIterator[Page]) -> list[Page]:
    async def gathered() -> list[Page]:
        return [page async for page in pages]

    return asyncio.run(gathered())


def failure_of(pages: Callable[[], AsyncIterator[Page]]) -> FetchFailed:
    try:
        all_of(pages())
    except FetchFailed as failure:
        return failure
    raise AssertionError("all went well")


def rows_of(pages: list[Page]) -> list[UsageRow]:
    return [row for page in pages for row in page.rows]


def sum_of(pages: list[Page]) -> Tokens:
    return sum_tokens([row.tokens for row in rows_of(pages)])


def before(hours: float, now: datetime = NOW) -> Window:
    return Window(now - timedelta(hours=hours), now)
