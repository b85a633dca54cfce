"""Anthropic's usage report of messages and its cost report, read with an admin key."""

from decimal import Decimal
from functools import partial

from meruit.model.chat import MOST_TOKENS
from meruit.model.decoding import json_decoder
from meruit.model.metering import AttributionKind, CostRow, Page, UsageAccount, UsageRow, Window
from meruit.model.record import Record
from meruit.model.usage import Count, Moment, Tokens
from meruit.registry import UsageProvider, usage_sources
from meruit.usage.providers.support.account_settings import list_option
from meruit.usage.providers.support.http_client import ProviderResponse, UsageClient, UsageSourceContext, check_amount
from meruit.usage.providers.support.minute_buckets import AskWindow, MinuteBucketSource
from meruit.usage.providers.support.paging import (
    DAY,
    MINUTE,
    BucketValidator,
    GroupValidator,
    UsagePageContent,
    align,
    fetch_pages,
    rfc3339,
)

BASE_URL = "https://api.anthropic.com/v1"
KEY_VARIABLE = "ANTHROPIC_ADMIN_KEY"
VERSION = "2023-06-01"
MAX_MINUTES = 1440
"""How many minutes one page may have."""
MAX_DAYS = 31
CENTS = 100


class CacheCreation(Record, frozen=True):
    """Tokens written to a cache, by how long it lasts."""

    ephemeral_5m_input_tokens: Count = 0
    ephemeral_1h_input_tokens: Count = 0


class AnthropicUsageResult(Record, frozen=True):
    """One group of one bucket."""

    uncached_input_tokens: Count
    output_tokens: Count
    cache_read_input_tokens: Count = 0
    cache_creation: CacheCreation | None = None
    api_key_id: str | None = None
    workspace_id: str | None = None
    model: str | None = None

    def tokens(self, requests: int | None = None) -> Tokens:
        """Build the counts; input includes tokens read from and written to a cache."""
        made = self.cache_creation or CacheCreation()
        written = made.ephemeral_5m_input_tokens + made.ephemeral_1h_input_tokens
        cached = self.cache_read_input_tokens
        whole = min(self.uncached_input_tokens + cached + written, MOST_TOKENS)
        return Tokens(whole, self.output_tokens, requests, cached, min(written, MOST_TOKENS))


class _AnthropicBucket(Record, frozen=True):
    starting_at: Moment
    ending_at: Moment
    results: list[AnthropicUsageResult]


class _AnthropicUsagePage(Record, frozen=True):
    data: list[_AnthropicBucket]
    has_more: bool
    next_page: str | None = None


class _AnthropicCost(Record, frozen=True):
    amount: Decimal
    currency: str = "USD"
    workspace_id: str | None = None
    description: str | None = None
    model: str | None = None
    """This and the following fields are the parts of the description."""
    cost_type: str | None = None
    token_type: str | None = None
    service_tier: str | None = None
    context_window: str | None = None
    inference_geo: str | None = None

    @property
    def group(self) -> tuple[str | None, ...]:
        """What identifies the line among those of its day."""
        parts = (self.model, self.cost_type, self.token_type, self.service_tier, self.context_window)
        return (self.currency, self.workspace_id, self.description, *parts, self.inference_geo)


class _AnthropicCostBucket(Record, frozen=True):
    starting_at: Moment
    ending_at: Moment
    results: list[_AnthropicCost]


class _AnthropicCostPage(Record, frozen=True):
    data: list[_AnthropicCostBucket]
    has_more: bool
    next_page: str | None = None


_USAGE = json_decoder(_AnthropicUsagePage)
_COSTS = json_decoder(_AnthropicCostPage)


@usage_sources.add(
    "anthropic",
    base_url=BASE_URL,
    key_variable=KEY_VARIABLE,
    options={
        "api_key_ids": "Only the keys with these ids, separated by commas.",
        "workspace_ids": "Only these workspaces, separated by commas.",
    },
)
class AnthropicUsage(MinuteBucketSource):
    """Anthropic's usage by the minute, key, workspace and model, and its costs by the day; needs an admin key."""

    kinds = frozenset({AttributionKind.KEY, AttributionKind.PROJECT, AttributionKind.WINDOW})
    longest = MAX_MINUTES * MINUTE
    longest_costs = MAX_DAYS * DAY

    def __init__(self, provider: UsageProvider, account: UsageAccount, context: UsageSourceContext) -> None:
        self._client = UsageClient(provider, account, context, credential_headers=auth_headers)
        self._only = [
            (f"{name}[]", value) for name in ("api_key_ids", "workspace_ids") for value in list_option(account, name)
        ]

    def _usage_queries(self) -> tuple[AskWindow]:
        return (self._usage,)

    def _align_days(self, window: Window) -> Window:
        # The report has whole days, including today so far.
        return align(window, DAY, self._client.now() + DAY)

    async def _usage(self, window: Window) -> list[Page]:
        groups = [("group_by[]", name) for name in ("api_key_id", "workspace_id", "model")]
        params = [
            *window_params(window),
            ("bucket_width", "1m"),
            ("limit", str(MAX_MINUTES)),
            *groups,
            *self._only,
        ]
        spans = BucketValidator(window, MINUTE)
        return await fetch_pages(
            self._client, "/organizations/usage_report/messages", params, partial(_read_usage, spans)
        )

    async def _costs(self, window: Window) -> list[Page]:
        # The report does not include Priority Tier.
        lines = [("group_by[]", line) for line in ("workspace_id", "description")]
        params = [*window_params(window), ("bucket_width", "1d"), ("limit", str(MAX_DAYS)), *lines]
        return await fetch_pages(
            self._client, "/organizations/cost_report", params, partial(_read_costs, BucketValidator(window, DAY))
        )


def auth_headers(secret: str) -> dict[str, str]:
    """The headers with which Anthropic expects a key."""
    return {"x-api-key": secret, "anthropic-version": VERSION}


def window_params(window: Window) -> list[tuple[str, str]]:
    """The parameters of a window."""
    return [("starting_at", rfc3339(window.start)), ("ending_at", rfc3339(window.end))]


def _read_usage(spans: BucketValidator, response: ProviderResponse) -> UsagePageContent:
    page = response.decode(_USAGE)
    rows: list[UsageRow] = []
    for span in page.data:
        spans.check_next(response, span.starting_at, span.ending_at)
        groups = GroupValidator()
        for one in span.results:
            groups.check(response, span.starting_at, one.model, one.api_key_id, one.workspace_id)
            key, project = one.api_key_id or "", one.workspace_id or ""
            rows.append(
                UsageRow(
                    start=span.starting_at,
                    end=span.ending_at,
                    tokens=one.tokens(),
                    model=one.model or "",
                    key=key,
                    project=project,
                )
            )
    return UsagePageContent(
        rows, next_page=spans.next_page_name(response, has_more=page.has_more, next_page=page.next_page)
    )


def _read_costs(spans: BucketValidator, response: ProviderResponse) -> UsagePageContent:
    page = response.decode(_COSTS)
    costs: list[CostRow] = []
    for span in page.data:
        spans.check_next(response, span.starting_at, span.ending_at)
        groups = GroupValidator()
        for one in span.results:
            groups.check(response, span.starting_at, *one.group)
            about = {"project": one.workspace_id or "", "item": one.description or ""}
            amount = to_dollars(one.amount, response)
            costs.append(CostRow(span.starting_at, span.ending_at, amount, one.currency.upper(), **about))
    return UsagePageContent(
        costs=costs, next_page=spans.next_page_name(response, has_more=page.has_more, next_page=page.next_page)
    )


def to_dollars(cents: Decimal, response: ProviderResponse) -> Decimal:
    """Convert an amount in cents, as Anthropic reports it."""
    return check_amount(cents, response) / CENTS
