"""Anthropic's analytics of usage and cost: by session too, and with the moment up to which is counted."""

from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Generic, TypeVar

import msgspec

from meruit.errors import FetchError, InvalidAccount, PagesChanged
from meruit.model.metering import AttributionKind, CostRow, Page, UsageAccount, UsageRow, Window
from meruit.model.record import Record
from meruit.model.usage import Count, Moment
from meruit.registry import UsageProvider, usage_sources
from meruit.usage.providers.anthropic import (
    BASE_URL,
    KEY_VARIABLE,
    AnthropicUsageResult,
    auth_headers,
    to_dollars,
    window_params,
)
from meruit.usage.providers.support.http_client import ProviderResponse, UsageClient, UsageSourceContext
from meruit.usage.providers.support.minute_buckets import AskWindow, MinuteBucketSource
from meruit.usage.providers.support.paging import (
    DAY,
    MINUTE,
    BucketValidator,
    GroupValidator,
    UsagePageContent,
    fetch_pages,
    next_page_name,
)

MAX_ROWS = 1_000
"""On one page."""
MAX_DAYS = 31
GROUP_BY = ("api_key_id", "session_id", "workspace_id", "model")
LEGACY = ("usage_report", "cost_report")
"""The older reports, which keep the largest hundred groups of each span and leave out all others without a word."""


class _AnalyticsRow(AnthropicUsageResult, frozen=True, kw_only=True):
    starting_at: Moment
    ending_at: Moment
    session_id: str | None = None
    requests: Count | None = None
    total_tokens: Count | None = None


class _AnalyticsCost(Record, frozen=True):
    starting_at: Moment
    ending_at: Moment
    amount: Decimal
    """After discounts."""
    currency: str = "USD"
    api_key_id: str | None = None
    session_id: str | None = None
    workspace_id: str | None = None
    model: str | None = None


R = TypeVar("R", _AnalyticsRow, _AnalyticsCost)


class _AnalyticsPage(Record, Generic[R], frozen=True):
    data: list[R]
    has_more: bool
    data_refreshed_at: Moment | None
    next_page: str | None = None


_USAGE = msgspec.json.Decoder(_AnalyticsPage[_AnalyticsRow])
_COSTS = msgspec.json.Decoder(_AnalyticsPage[_AnalyticsCost])


@usage_sources.add(
    "anthropic_analytics",
    base_url=BASE_URL,
    key_variable=KEY_VARIABLE,
    options={"beta": "What is sent as anthropic-beta, while these endpoints need it."},
)
class AnthropicAnalytics(MinuteBucketSource):
    """Anthropic's analytics by the minute, key, session, workspace and model; needs the scope read:analytics."""

    kinds = frozenset({AttributionKind.KEY, AttributionKind.PROJECT, AttributionKind.SESSION, AttributionKind.WINDOW})
    longest_costs = MAX_DAYS * DAY

    def __init__(self, provider: UsageProvider, account: UsageAccount, context: UsageSourceContext) -> None:
        if any(report in (account.base_url or "") for report in LEGACY):
            raise InvalidAccount(
                "base_url",
                "the older analytics reports have only the hundred largest groups of each span of time, so their sums "
                "are too small; remove the report from base_url",
            )
        beta = account.options.get("beta")
        more = {"anthropic-beta": beta} if beta else {}
        self._client = UsageClient(
            provider, account, context, credential_headers=lambda secret: {**auth_headers(secret), **more}
        )

    def _usage_queries(self) -> tuple[AskWindow]:
        return (self._usage,)

    async def _usage(self, window: Window) -> list[Page]:
        return await self._fetch_report("usage", "1m", window, partial(_read_usage, _Export(window, MINUTE)))

    async def _costs(self, window: Window) -> list[Page]:
        return await self._fetch_report("cost", "1d", window, partial(_read_costs, _Export(window, DAY)))

    async def _fetch_report(
        self, what: str, width: str, window: Window, read: Callable[[ProviderResponse], UsagePageContent]
    ) -> list[Page]:
        attribution_keys = [("group_by[]", attribution_key) for attribution_key in GROUP_BY]
        params = [*window_params(window), ("time_bucket_width", width), ("limit", str(MAX_ROWS)), *attribution_keys]
        return await fetch_pages(self._client, f"/organizations/analytics/{what}", params, read)


class _Export:
    """The state of the data that the pages of one walk are served from: one and the same, each row of it once."""

    def __init__(self, window: Window, width: timedelta) -> None:
        self._window = window
        self._refreshed_at: datetime | None = None
        self._spans = BucketValidator(window, width)
        self._groups = GroupValidator()

    def check(self, answer: ProviderResponse, refreshed_at: datetime | None) -> datetime:
        """The watermark; raises FetchFailed where nothing is counted yet, or the data were refreshed meanwhile."""
        if refreshed_at is None or refreshed_at <= self._window.start:
            raise answer.failure(FetchError.NOT_READY, "has counted nothing of that time yet; ask again later")
        if self._refreshed_at not in (None, refreshed_at):
            raise PagesChanged(f"{answer.where} refreshed its data while its pages were read", at=answer.at)
        self._refreshed_at = refreshed_at
        return refreshed_at

    def check_row(self, answer: ProviderResponse, row: _AnalyticsRow | _AnalyticsCost, *group: str) -> None:
        """Raise FetchFailed for a row that cannot be, or was told of before."""
        self._spans.check(answer, row.starting_at, row.ending_at)
        self._groups.check(answer, row.starting_at, *group, row.model, *_attribution_keys(row))


def _read_usage(export: _Export, answer: ProviderResponse) -> UsagePageContent:
    page = answer.decode(_USAGE)
    watermark = export.check(answer, page.data_refreshed_at)
    rows: list[UsageRow] = []
    for one in page.data:
        export.check_row(answer, one)
        tokens = one.tokens(one.requests)
        if one.total_tokens not in (None, tokens.total):
            said = f"has a row whose total is {one.total_tokens:,} and whose parts come to {tokens.total:,}"
            raise answer.failure(FetchError.MALFORMED, said)
        rows.append(UsageRow(one.starting_at, one.ending_at, tokens, one.model or "", *_attribution_keys(one)))
    return UsagePageContent(
        rows, (), next_page_name(answer, has_more=page.has_more, next_page=page.next_page), watermark
    )


def _read_costs(export: _Export, answer: ProviderResponse) -> UsagePageContent:
    page = answer.decode(_COSTS)
    watermark = export.check(answer, page.data_refreshed_at)
    costs: list[CostRow] = []
    for one in page.data:
        export.check_row(answer, one, one.currency)
        amount = to_dollars(one.amount, answer)
        costs.append(
            CostRow(
                one.starting_at, one.ending_at, amount, one.currency.upper(), *_attribution_keys(one), one.model or ""
            )
        )
    return UsagePageContent(
        (), costs, next_page_name(answer, has_more=page.has_more, next_page=page.next_page), watermark
    )


def _attribution_keys(one: _AnalyticsRow | _AnalyticsCost) -> tuple[str, str, str]:
    return one.api_key_id or "", one.workspace_id or "", one.session_id or ""
