"""OpenAI's organisation usage and costs, read with an admin key."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Annotated

import msgspec

from meruit.errors import FetchError, InvalidAccount
from meruit.model.decoding import json_decoder
from meruit.model.metering import AttributionKind, CostRow, Page, UsageAccount, UsageRow, Window
from meruit.model.record import Record
from meruit.model.usage import Count, Tokens
from meruit.registry import UsageProvider, usage_sources
from meruit.suggestions import nearest
from meruit.usage.providers.support.account_settings import list_option, number_option
from meruit.usage.providers.support.http_client import ProviderResponse, UsageClient, UsageSourceContext, check_amount
from meruit.usage.providers.support.minute_buckets import AskWindow, MinuteBucketSource
from meruit.usage.providers.support.paging import (
    DAY,
    MINUTE,
    BucketValidator,
    GroupValidator,
    UsagePageContent,
    fetch_pages,
)

MAX_MINUTES = 1440
"""How many minutes one page may have."""
MAX_DAYS = 180
PAUSE_S = 12.0
"""Seconds between two requests; OpenAI does not document a rate limit of admin keys."""
MAX_PAUSE_S = 600.0
_LAST_SECOND = 253_402_300_799
_GROUP_BY = ("project_id", "api_key_id", "model")

Second = Annotated[int, msgspec.Meta(ge=0, le=_LAST_SECOND)]


class _Result(Record, frozen=True):
    """One group of one bucket; each kind of usage has some of the fields."""

    input_tokens: Count | None = None
    output_tokens: Count | None = None
    num_model_requests: Count | None = None
    input_cached_tokens: Count | None = None
    input_cache_write_tokens: Count | None = None
    project_id: str | None = None
    api_key_id: str | None = None
    model: str | None = None


class _Amount(Record, frozen=True):
    value: Decimal | None = None
    currency: str | None = None


class _OpenAICost(Record, frozen=True):
    amount: _Amount | None = None
    line_item: str | None = None
    project_id: str | None = None
    api_key_id: str | None = None


class _OpenAIBucket(Record, frozen=True):
    start_time: Second
    end_time: Second
    results: list[_Result]


class _OpenAICostBucket(Record, frozen=True):
    start_time: Second
    end_time: Second
    results: list[_OpenAICost]


class _OpenAIUsagePage(Record, frozen=True):
    data: list[_OpenAIBucket]
    has_more: bool
    next_page: str | None = None


class _OpenAICostPage(Record, frozen=True):
    data: list[_OpenAICostBucket]
    has_more: bool
    next_page: str | None = None


_USAGE = json_decoder(_OpenAIUsagePage)
_COSTS = json_decoder(_OpenAICostPage)


def _input_and_output(result: _Result) -> Tokens | None:
    """Read input and output; input includes cached tokens, and reasoning is not reported."""
    if result.input_tokens is None or result.output_tokens is None or result.num_model_requests is None:
        return None
    cached, written = result.input_cached_tokens, result.input_cache_write_tokens
    return Tokens(result.input_tokens, result.output_tokens, result.num_model_requests, cached, written)


def _only_input(result: _Result) -> Tokens | None:
    if result.input_tokens is None or result.num_model_requests is None:
        return None
    return Tokens(result.input_tokens, 0, result.num_model_requests)


def _only_requests(result: _Result) -> Tokens | None:
    return None if result.num_model_requests is None else Tokens(0, 0, result.num_model_requests)


class _UsageKind(Record, frozen=True):
    """How one kind of usage is requested and read."""

    tokens: Callable[[_Result], Tokens | None] | None = None
    """None for tools: their calls are part of requests that are counted already."""
    group_by: tuple[str, ...] = _GROUP_BY


KINDS: Mapping[str, _UsageKind] = {
    "completions": _UsageKind(_input_and_output),
    "embeddings": _UsageKind(_only_input),
    "moderations": _UsageKind(_only_input),
    "decisions": _UsageKind(_input_and_output),
    "images": _UsageKind(_only_requests),
    "audio_speeches": _UsageKind(_only_requests),
    "audio_transcriptions": _UsageKind(_only_requests),
    "vector_stores": _UsageKind(group_by=("project_id",)),
    "code_interpreter_sessions": _UsageKind(group_by=("project_id",)),
    "file_search_calls": _UsageKind(group_by=("project_id", "api_key_id")),
    "web_search_calls": _UsageKind(),
}
"""OpenAI's kinds of usage."""
DEFAULT_KINDS = ("completions", "embeddings")


@usage_sources.add(
    "openai",
    base_url="https://api.openai.com/v1",
    key_variable="OPENAI_ADMIN_KEY",
    options={
        "kinds": f"Kinds of usage to read, separated by commas (default: {','.join(DEFAULT_KINDS)}).",
        "project_ids": "Only these projects, separated by commas.",
        "api_key_ids": "Only the keys with these ids, separated by commas.",
        "pause_s": f"Seconds between two requests (default: {PAUSE_S:g}; 0 where base_url is given).",
    },
)
class OpenAIUsage(MinuteBucketSource):
    """OpenAI's usage by the minute, key, project and model, and its costs by the day; needs an admin key."""

    kinds = frozenset({AttributionKind.KEY, AttributionKind.PROJECT, AttributionKind.WINDOW})
    longest = MAX_MINUTES * MINUTE
    longest_costs = MAX_DAYS * DAY

    def __init__(self, provider: UsageProvider, account: UsageAccount, context: UsageSourceContext) -> None:
        pause_s = number_option(account, "pause_s", 0.0 if account.base_url else PAUSE_S, least=0, most=MAX_PAUSE_S)
        self._client = UsageClient(provider, account, context, pause_s=pause_s)
        self._kinds = list_option(account, "kinds") or [*DEFAULT_KINDS]
        for name in self._kinds:
            if name not in KINDS:
                message = f"OpenAI has no usage of kind {name!r}{nearest(name, KINDS)}; valid kinds: {', '.join(KINDS)}"
                raise InvalidAccount("kinds", message)
        self._only = [
            (f"{name}[]", value) for name in ("project_ids", "api_key_ids") for value in list_option(account, name)
        ]

    def _usage_queries(self) -> Iterator[AskWindow]:
        return (partial(self._usage, name) for name in dict.fromkeys(self._kinds))

    async def _usage(self, name: str, window: Window) -> list[Page]:
        kind = KINDS[name]
        only = [(name, value) for name, value in self._only if name.removesuffix("s[]") in kind.group_by]
        params = [
            *_window_params(window, "1m", MAX_MINUTES),
            *(("group_by[]", name) for name in kind.group_by),
            *only,
        ]
        spans = BucketValidator(window, MINUTE)
        return await fetch_pages(self._client, f"/organization/usage/{name}", params, partial(_read_usage, kind, spans))

    async def _costs(self, window: Window) -> list[Page]:
        groups = [("group_by[]", name) for name in ("project_id", "api_key_id", "line_item")]
        params = [*_window_params(window, "1d", MAX_DAYS), *groups, *self._only]
        return await fetch_pages(
            self._client, "/organization/costs", params, partial(_read_costs, BucketValidator(window, DAY))
        )


def _window_params(window: Window, width: str, limit: int) -> list[tuple[str, str]]:
    return [
        ("start_time", str(int(window.start.timestamp()))),
        ("end_time", str(int(window.end.timestamp()))),
        ("bucket_width", width),
        ("limit", str(limit)),
    ]


def _read_usage(kind: _UsageKind, spans: BucketValidator, response: ProviderResponse) -> UsagePageContent:
    page = response.decode(_USAGE)
    rows: list[UsageRow] = []
    for span in page.data:
        start, end = _from_unix_time(span.start_time), _from_unix_time(span.end_time)
        spans.check_next(response, start, end)
        rows += () if kind.tokens is None else _rows(kind.tokens, span.results, start, end, response)
    return UsagePageContent(
        rows, next_page=spans.next_page_name(response, has_more=page.has_more, next_page=page.next_page)
    )


def _rows(
    tokens_of: Callable[[_Result], Tokens | None],
    results: Sequence[_Result],
    start: datetime,
    end: datetime,
    response: ProviderResponse,
) -> list[UsageRow]:
    groups = GroupValidator()
    for one in results:
        groups.check(response, start, one.model, one.api_key_id, one.project_id)
    return [_row(tokens_of, one, start, end, response) for one in results]


def _row(
    tokens_of: Callable[[_Result], Tokens | None],
    one: _Result,
    start: datetime,
    end: datetime,
    response: ProviderResponse,
) -> UsageRow:
    tokens = tokens_of(one)
    if tokens is None:
        raise response.failure(FetchError.MALFORMED, f"has no count in the bucket from {start.isoformat()}")
    return UsageRow(
        start=start,
        end=end,
        tokens=tokens,
        model=one.model or "",
        key=one.api_key_id or "",
        project=one.project_id or "",
    )


def _read_costs(spans: BucketValidator, response: ProviderResponse) -> UsagePageContent:
    page = response.decode(_COSTS)
    costs: list[CostRow] = []
    for span in page.data:
        start, end = _from_unix_time(span.start_time), _from_unix_time(span.end_time)
        spans.check_next(response, start, end)
        groups = GroupValidator()
        for one in span.results:
            if one.amount is None or one.amount.value is None:
                raise response.failure(FetchError.MALFORMED, f"has no amount on {start:%Y-%m-%d}")
            amount, currency = check_amount(one.amount.value, response), (one.amount.currency or "usd").upper()
            groups.check(response, start, currency, one.api_key_id, one.project_id, one.line_item)
            keys = {"key": one.api_key_id or "", "project": one.project_id or ""}
            costs.append(CostRow(start, end, amount, currency, **keys, item=one.line_item or ""))
    return UsagePageContent(
        costs=costs, next_page=spans.next_page_name(response, has_more=page.has_more, next_page=page.next_page)
    )


def _from_unix_time(second: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second)
