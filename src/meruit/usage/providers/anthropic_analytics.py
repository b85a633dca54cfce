"""Anthropic's analytics of usage and cost: by session too, and with the moment up to which is counted."""

from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Generic, TypeVar

import msgspec

from meruit.errors import AuthorError
from meruit.model.metering import CostRow, LaneKind, Page, UsageAccount, UsageRow, Window
from meruit.model.record import Record
from meruit.model.usage import Count, FetchError, Moment
from meruit.registry import UsageProvider, usage_sources
from meruit.usage.providers.anthropic import BASE_URL, KEY_VARIABLE, Result, dollars, shown_as, times
from meruit.usage.providers.asking import Answer, Moved, Surroundings, UsageAsker
from meruit.usage.providers.by_minutes import Ask, ByMinutes
from meruit.usage.providers.paging import (
    DAY,
    MINUTE,
    Groups,
    Leaf,
    Spans,
    following,
    walked,
)

MAX_ROWS = 1_000
"""On one page."""
MAX_DAYS = 31
LANES = ("api_key_id", "session_id", "workspace_id", "model")
LEGACY = ("usage_report", "cost_report")
"""The older reports, which keep the largest hundred groups of each span and leave out all others without a word."""


class _Row(Result, frozen=True, kw_only=True):
    starting_at: Moment
    ending_at: Moment
    session_id: str | None = None
    requests: Count | None = None
    total_tokens: Count | None = None


class _Cost(Record, frozen=True):
    starting_at: Moment
    ending_at: Moment
    amount: Decimal
    """After discounts."""
    currency: str = "USD"
    api_key_id: str | None = None
    session_id: str | None = None
    workspace_id: str | None = None
    model: str | None = None


R = TypeVar("R", _Row, _Cost)


class _Rows(Record, Generic[R], frozen=True):
    data: list[R]
    has_more: bool
    data_refreshed_at: Moment | None
    next_page: str | None = None


_USAGE = msgspec.json.Decoder(_Rows[_Row])
_COSTS = msgspec.json.Decoder(_Rows[_Cost])


@usage_sources.add(
    "anthropic_analytics",
    base_url=BASE_URL,
    key_variable=KEY_VARIABLE,
    options={"beta": "What is sent as anthropic-beta, while these endpoints need it."},
)
class AnthropicAnalytics(ByMinutes):
    """Anthropic's analytics by the minute, key, session, workspace and model; needs the scope read:analytics."""

    kinds = frozenset({LaneKind.KEY, LaneKind.PROJECT, LaneKind.SESSION, LaneKind.WINDOW})
    longest_costs = MAX_DAYS * DAY

    def __init__(self, provider: UsageProvider, account: UsageAccount, around: Surroundings) -> None:
        if any(report in (account.base_url or "") for report in LEGACY):
            raise AuthorError(
                "the older analytics reports keep the largest hundred groups of each span of time, so that their sums "
                "are silently short; leave them out of base_url"
            )
        beta = account.options.get("beta")
        more = {"anthropic-beta": beta} if beta else {}
        self._asker = UsageAsker(provider, account, around, shown_as=lambda secret: {**shown_as(secret), **more})

    def _counts(self) -> tuple[Ask]:
        return (self._usage,)

    async def _usage(self, window: Window) -> list[Page]:
        return await self._walked("usage", "1m", window, partial(_used, _Export(window, MINUTE)))

    async def _costs(self, window: Window) -> list[Page]:
        return await self._walked("cost", "1d", window, partial(_billed, _Export(window, DAY)))

    async def _walked(self, what: str, width: str, window: Window, read: Callable[[Answer], Leaf]) -> list[Page]:
        lanes = [("group_by[]", lane) for lane in LANES]
        params = [*times(window), ("time_bucket_width", width), ("limit", str(MAX_ROWS)), *lanes]
        return await walked(self._asker, f"/organizations/analytics/{what}", params, read)


class _Export:
    """The state of the data that the pages of one walk are served from: one and the same, each row of it once."""

    def __init__(self, window: Window, width: timedelta) -> None:
        self._window = window
        self._refreshed_at: datetime | None = None
        self._spans = Spans(window, width)
        self._groups = Groups()

    def check(self, answer: Answer, refreshed_at: datetime | None) -> datetime:
        """The watermark; raises FetchFailed where nothing is counted yet, or the data were refreshed meanwhile."""
        if refreshed_at is None or refreshed_at <= self._window.start:
            raise answer.failed(FetchError.NOT_READY, "has counted nothing of that time yet; ask again later")
        if self._refreshed_at not in (None, refreshed_at):
            raise Moved(f"{answer.where} refreshed its data while its pages were read", at=answer.at)
        self._refreshed_at = refreshed_at
        return refreshed_at

    def check_row(self, answer: Answer, row: _Row | _Cost, *group: str) -> None:
        """Raise FetchFailed for a row that cannot be, or was told of before."""
        self._spans.check(answer, row.starting_at, row.ending_at)
        self._groups.check(answer, row.starting_at, *group, row.model, *_lanes(row))


def _used(export: _Export, answer: Answer) -> Leaf:
    page = answer.read(_USAGE)
    watermark = export.check(answer, page.data_refreshed_at)
    rows: list[UsageRow] = []
    for one in page.data:
        export.check_row(answer, one)
        tokens = one.tokens(one.requests)
        if one.total_tokens not in (None, tokens.total):
            said = f"has a row whose total is {one.total_tokens:,} and whose parts come to {tokens.total:,}"
            raise answer.failed(FetchError.MALFORMED, said)
        rows.append(UsageRow(one.starting_at, one.ending_at, tokens, one.model or "", *_lanes(one)))
    return Leaf(rows, (), following(answer, has_more=page.has_more, next_page=page.next_page), watermark)


def _billed(export: _Export, answer: Answer) -> Leaf:
    page = answer.read(_COSTS)
    watermark = export.check(answer, page.data_refreshed_at)
    costs: list[CostRow] = []
    for one in page.data:
        export.check_row(answer, one, one.currency)
        amount = dollars(one.amount, answer)
        costs.append(
            CostRow(one.starting_at, one.ending_at, amount, one.currency.upper(), *_lanes(one), one.model or "")
        )
    return Leaf((), costs, following(answer, has_more=page.has_more, next_page=page.next_page), watermark)


def _lanes(one: _Row | _Cost) -> tuple[str, str, str]:
    return one.api_key_id or "", one.workspace_id or "", one.session_id or ""
