"""Anthropic's analytics of usage and cost: also by session, and with the time up to which it has counted."""

from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Generic, TypeVar

from meruit.errors import FetchError, InvalidAccount, PagesChanged
from meruit.model.decoding import json_decoder
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
"""Rows on one page."""
MAX_DAYS = 31
GROUP_BY = ("api_key_id", "session_id", "workspace_id", "model")
LEGACY = ("usage_report", "cost_report")
"""The older reports, which have only the hundred largest groups of each span."""


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


_USAGE = json_decoder(_AnalyticsPage[_AnalyticsRow])
_COSTS = json_decoder(_AnalyticsPage[_AnalyticsCost])


@usage_sources.add(
    "anthropic_analytics",
    base_url=BASE_URL,
    key_variable=KEY_VARIABLE,
    options={"beta": "The value of the anthropic-beta header, while these endpoints need it."},
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
        groups = [("group_by[]", name) for name in GROUP_BY]
        params = [*window_params(window), ("time_bucket_width", width), ("limit", str(MAX_ROWS)), *groups]
        return await fetch_pages(self._client, f"/organizations/analytics/{what}", params, read)


class _Export:
    """Checks that all pages of one request come from the same state of the data, with each row once."""

    def __init__(self, window: Window, width: timedelta) -> None:
        self._window = window
        self._refreshed_at: datetime | None = None
        self._spans = BucketValidator(window, width)
        self._groups = GroupValidator()

    def check(self, response: ProviderResponse, refreshed_at: datetime | None) -> datetime:
        """Return the watermark; raises FetchFailed where nothing is counted yet, or the data changed meanwhile."""
        if refreshed_at is None or refreshed_at <= self._window.start:
            raise response.failure(FetchError.NOT_READY, "has not counted that time yet; try again later")
        if self._refreshed_at not in (None, refreshed_at):
            raise PagesChanged(f"{response.where} refreshed its data while its pages were read", at=response.at)
        self._refreshed_at = refreshed_at
        return refreshed_at

    def check_row(self, response: ProviderResponse, row: _AnalyticsRow | _AnalyticsCost, *group: str) -> None:
        """Raise FetchFailed for a row that is not valid or repeated."""
        self._spans.check(response, row.starting_at, row.ending_at)
        self._groups.check(response, row.starting_at, *group, row.model, *_attribution_keys(row))


def _read_usage(export: _Export, response: ProviderResponse) -> UsagePageContent:
    page = response.decode(_USAGE)
    watermark = export.check(response, page.data_refreshed_at)
    rows: list[UsageRow] = []
    for one in page.data:
        export.check_row(response, one)
        tokens = one.tokens(one.requests)
        if one.total_tokens not in (None, tokens.total):
            message = f"has a row with a total of {one.total_tokens:,} whose parts add up to {tokens.total:,}"
            raise response.failure(FetchError.MALFORMED, message)
        rows.append(UsageRow(one.starting_at, one.ending_at, tokens, one.model or "", *_attribution_keys(one)))
    return UsagePageContent(
        rows=rows,
        costs=(),
        next_page=next_page_name(response, has_more=page.has_more, next_page=page.next_page),
        watermark=watermark,
    )


def _read_costs(export: _Export, response: ProviderResponse) -> UsagePageContent:
    page = response.decode(_COSTS)
    watermark = export.check(response, page.data_refreshed_at)
    costs: list[CostRow] = []
    for one in page.data:
        export.check_row(response, one, one.currency)
        amount = to_dollars(one.amount, response)
        costs.append(
            CostRow(
                one.starting_at, one.ending_at, amount, one.currency.upper(), *_attribution_keys(one), one.model or ""
            )
        )
    return UsagePageContent(
        rows=(),
        costs=costs,
        next_page=next_page_name(response, has_more=page.has_more, next_page=page.next_page),
        watermark=watermark,
    )


def _attribution_keys(one: _AnalyticsRow | _AnalyticsCost) -> tuple[str, str, str]:
    return one.api_key_id or "", one.workspace_id or "", one.session_id or ""
