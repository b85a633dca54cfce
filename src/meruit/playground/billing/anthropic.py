"""Anthropic's reports of usage and cost, as an organisation's admin key reads them.

GET /v1/organizations/usage_report/messages, by bucket; it counts no requests
GET /v1/organizations/cost_report
GET /v1/organizations/analytics/usage and .../cost, by row, with the moment up to which is counted
GET /v1/organizations/analytics/usage_report, the older one, which keeps the largest hundred groups of each bucket
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial

from meruit.errors import ProviderRefusal
from meruit.playground.billing.base import (
    DAY_S,
    HOUR_S,
    BillingRequest,
    BucketCache,
    CallSelection,
    Endpoint,
    Facts,
    Json,
    ProviderApi,
    TimeBucket,
    bucket_page,
    moment,
    page_start,
    page_token,
    paging_fields,
    split_buckets,
)
from meruit.playground.billing.calls import (
    MINUTE_S,
    CallCostLine,
    Counts,
    Group,
    ProviderCall,
    bill_by_group,
    call_of,
    cost_lines,
    sort_key,
    sum_by_group,
)

ROOT = "/v1/organizations"
MESSAGES = f"{ROOT}/usage_report/messages"
COST_REPORT = f"{ROOT}/cost_report"
ANALYTICS_USAGE = f"{ROOT}/analytics/usage"
ANALYTICS_COST = f"{ROOT}/analytics/cost"
LEGACY = f"{ROOT}/analytics/usage_report"

WIDTHS = {"1m": (MINUTE_S, 60, 1440), "1h": (HOUR_S, 24, 168), "1d": (DAY_S, 7, 31)}
"""In seconds, and how many buckets a page has by default and at most."""
ROWS = (100, 1000)
"""How many rows a page of analytics has by default and at most."""
TOP_GROUPS = 100
"""How many groups of each bucket the older report has."""
MAX_GROUP_BY = 5
MAX_RANGE_S, MAX_MINUTES_S = 31 * DAY_S, DAY_S
"""The longest range of analytics, and that of its minutes."""
EARLIEST = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
"""The first day of analytics."""
HISTORY_S = 365 * DAY_S
CENTS = 100
INVALID_PAGE = "page: Invalid page token"

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}
_RANGE = ("starting_at", "ending_at", "group_by", "limit", "page")
_MESSAGE_FILTERS = {
    "api_key_ids": "api_key_id",
    "workspace_ids": "workspace_id",
    "models": "model",
    "service_tiers": "service_tier",
    "context_window": "context_window",
    "inference_geos": "inference_geo",
    "speeds": "speed",
    "account_ids": "account_id",
    "service_account_ids": "service_account_id",
}
_ANALYTICS_FILTERS = {
    "api_key_ids": "api_key_id",
    "session_ids": "session_id",
    "workspace_ids": "workspace_id",
    "models": "model",
    "service_tiers": "service_tier",
    "context_windows": "context_window",
    "inference_geos": "inference_geo",
    "speeds": "speed",
    "products": "product",
    "actor_ids": "actor",
    "agent_ids": "agent_id",
    "deployment_ids": "deployment_id",
    "environment_ids": "environment_id",
    "user_profile_ids": "user_profile_id",
    "rbac_group_ids": "rbac_group_id",
    "slack_channel_ids": "slack_channel_id",
}
_LEGACY_FILTERS = {"models": "model", "products": "product", "speeds": "speed", "context_windows": "context_window"}


_TOKEN_TYPES = {"input": "uncached_input_tokens", "output": "output_tokens"}
# Fields of other kinds of usage are missing here, and null.
_FACTS: Facts = {
    "api_key_id": lambda one: call_of(one).key or None,
    "workspace_id": lambda one: call_of(one).project or None,
    "session_id": lambda one: call_of(one).session or None,
    "model": lambda one: call_of(one).model or None,
    "service_tier": lambda _: "standard",
    "context_window": lambda _: "0-200k",
    "inference_geo": lambda _: "global",
    "speed": lambda _: "standard",
    "cost_type": lambda _: "tokens",
    "token_type": lambda one: _TOKEN_TYPES[one.side] if isinstance(one, CallCostLine) else None,
    "description": lambda one: (
        f"{one.call.model} Usage - {one.side.title()} Tokens" if isinstance(one, CallCostLine) else None
    ),
}


class Anthropic(ProviderApi):
    """Anthropic's usage APIs."""

    scope = "read:analytics"

    def __init__(self) -> None:
        self._shelf = BucketCache()

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """Two reports, the analytics, and the older of these."""
        return {
            MESSAGES: self._messages,
            COST_REPORT: self._cost_report,
            ANALYTICS_USAGE: self._usage,
            ANALYTICS_COST: self._cost,
            LEGACY: self._legacy,
        }

    def key(self, headers: Mapping[str, str]) -> str:
        """In a header of its own."""
        return headers.get("x-api-key", "").strip()

    def error_document(self, refused: ProviderRefusal) -> Json:
        """`error`, with its type and message."""
        kind = _KINDS.get(refused.status, "api_error")
        error = {"type": kind, "message": refused.message}
        return {"type": "error", "error": error, "request_id": "req_011CSHoEeqs5C35K2UUqR7Fy"}

    def no_key(self, shown: str) -> ProviderRefusal:
        """Missing, or wrong."""
        return ProviderRefusal(401, "invalid x-api-key" if shown else "x-api-key header is required")

    def no_scope(self) -> ProviderRefusal:
        """Refuse a key that is not an admin key."""
        return ProviderRefusal(403, "This API key does not have permission to use the specified resource.")

    def _messages(self, asked: BillingRequest) -> Json:
        query = _AnthropicQuery(asked, _MESSAGE_FILTERS, widths=WIDTHS)

        def write(span: TimeBucket, calls: Iterable[ProviderCall]) -> Json:
            sums = sum_by_group(filter(query.is_selected, calls), query.group)
            rows = [{**_counts(sums[group]), **query.with_all(group)} for group in sorted(sums, key=sort_key)]
            return _bucket(span, rows)

        return query.buckets(lambda span: self._shelf.answer(asked, span, query.question, partial(write, span)))

    def _cost_report(self, asked: BillingRequest) -> Json:
        query = _AnthropicQuery(asked, {}, ("workspace_id", "description"), widths={"1d": WIDTHS["1d"]})
        facts = ("context_window", "cost_type", "model", "service_tier", "token_type", "inference_geo")

        def group(line: CallCostLine) -> Group:
            described = [_FACTS[name](line) if "description" in query.groups else None for name in facts]
            return (*query.group(line), *described)

        def bucket(span: TimeBucket) -> object:
            sums = bill_by_group(cost_lines(asked.visible_calls(*span)), group)
            return _bucket(span, [row(one, sums[one][0]) for one in sorted(sums, key=sort_key)])

        def row(one: Group, amount: Decimal) -> Json:
            mine, described = one[: len(query.groups)], one[len(query.groups) :]
            return {
                "currency": "USD",
                "amount": _cents(amount),
                **query.with_all(mine),
                **dict(zip(facts, described, strict=True)),
            }

        return query.buckets(bucket)

    def _usage(self, asked: BillingRequest) -> Json:
        query = _AnthropicQuery(asked, _ANALYTICS_FILTERS, analytics=True)

        def rows(span: TimeBucket) -> list[Json]:
            sums = sum_by_group(filter(query.is_selected, asked.visible_calls(*span)), query.group)
            ranked = sorted(sums, key=lambda group: (-sums[group].input - sums[group].output, sort_key(group)))
            return [{**query.about(span, group), **_analytics_fields(sums[group])} for group in ranked]

        return query.rows(rows)

    def _cost(self, asked: BillingRequest) -> Json:
        query = _AnthropicQuery(asked, _ANALYTICS_FILTERS, ("cost_type", "token_type"), analytics=True)

        def rows(span: TimeBucket) -> list[Json]:
            sums = bill_by_group(filter(query.is_selected, cost_lines(asked.visible_calls(*span))), query.group)
            ranked = sorted(sums, key=lambda group: (-sums[group][0], sort_key(group)))
            return [{**query.about(span, group), **_price_fields(sums[group][0])} for group in ranked]

        return query.rows(rows)

    def _legacy(self, asked: BillingRequest) -> Json:
        query = _AnthropicQuery(asked, _LEGACY_FILTERS, ("inference_geo",), widths=WIDTHS)

        def bucket(span: TimeBucket) -> object:
            sums = sum_by_group(filter(query.is_selected, asked.visible_calls(*span)), query.group)
            # No row has the sum of the omitted groups.
            ranked = sorted(sums, key=lambda group: (-sums[group].input - sums[group].output, sort_key(group)))[
                :TOP_GROUPS
            ]
            rows = [{**_counts(sums[one]), "requests": sums[one].requests, **query.with_all(one)} for one in ranked]
            return _bucket(span, rows)

        return {**query.buckets(bucket), "data_refreshed_at": moment(asked.refreshed_at)}


class _AnthropicQuery(CallSelection):
    """A request about a range of time, with Anthropic's validation."""

    def __init__(
        self,
        asked: BillingRequest,
        filters: Mapping[str, str],
        more_groups: Collection[str] = (),
        *,
        widths: Mapping[str, tuple[int, int, int]] | None = None,
        analytics: bool = False,
    ) -> None:
        super().__init__(asked, _FACTS, filters)
        self._asked = asked
        if "anthropic-version" not in asked.headers:
            raise ProviderRefusal(400, "anthropic-version: header is required")
        self._dimensions = (*filters.values(), *more_groups)
        # Rows always come in the default order.
        self._reject_unknown_params(
            [*filters], ("time_bucket_width", "order_by", "order") if analytics else ("bucket_width",)
        )
        for name in self.groups:
            _require_supported("group_by", name, self._dimensions)
        if widths is not None:
            width = asked.param("bucket_width") or "1d"
            _require_supported("bucket_width", width, widths)
            self._width_s, default, most = widths[width]
            self._limit = self._up_to(default, most)
            self._whole = self._bucket_range()
        else:
            self._limit = self._up_to(*ROWS)
            self._whole = self._exact_range()
            self._width_s = self._width_of_rows()

    def with_all(self, group: Group) -> Mapping[str, str | None]:
        """A group with all possible names; the others are null."""
        return {**dict.fromkeys(self._dimensions), **self.label_group(group)}

    def about(self, span: TimeBucket, group: Group) -> Json:
        """What a row of analytics is about."""
        return {
            "starting_at": moment(span.start),
            "ending_at": moment(span.end),
            **self.with_all(group),
        }

    def buckets(self, bucket: Callable[[TimeBucket], object]) -> Json:
        """The requested page, bucket by bucket."""
        page = bucket_page(self._asked, self._whole, self._width_s, self._limit, bucket)
        if page is None:
            raise ProviderRefusal(400, INVALID_PAGE)
        return page

    def rows(self, write: Callable[[TimeBucket], list[Json]]) -> Json:
        """The requested page, row by row."""
        all_rows = [row for span in split_buckets(self._whole, self._width_s) for row in write(span)]
        page = self._asked.param("page")
        first = 0 if page is None else page_start(page)
        if first is None or (first and first >= len(all_rows)):
            raise ProviderRefusal(400, INVALID_PAGE)
        end = first + min(self._limit, self._asked.page_rows or self._limit)
        following = page_token(end) if end < len(all_rows) else None
        refreshed = moment(self._asked.refreshed_at)
        return {"data": all_rows[first:end], **paging_fields(self._asked, following), "data_refreshed_at": refreshed}

    def _reject_unknown_params(self, filters: Iterable[str], more: Iterable[str]) -> None:
        for name in self._asked.params:
            if name not in {*_RANGE, *more, *filters}:
                raise ProviderRefusal(400, f"{name}: Extra inputs are not permitted")

    def _up_to(self, default: int, most: int) -> int:
        text = self._asked.param("limit")
        if text is None:
            return default
        if not text.isascii() or not text.isdigit():
            raise ProviderRefusal(400, "limit: Input should be a valid integer, unable to parse string as an integer")
        if not 1 <= int(text) <= most:
            side = "greater than or equal to 1" if int(text) < 1 else f"less than or equal to {most}"
            raise ProviderRefusal(400, f"limit: Input should be {side}")
        return int(text)

    def _range(self) -> tuple[float, float | None]:
        start, end = self._moment("starting_at"), self._moment("ending_at")
        if start is None:
            raise ProviderRefusal(400, "starting_at: Field required")
        if end is not None and end <= start:
            raise ProviderRefusal(400, "ending_at: ending date must be after starting date")
        return start, end

    def _bucket_range(self) -> TimeBucket:
        """Whole buckets, up to the one that is under way."""
        start, end = self._range()
        latest = self._snap(self._asked.now) + self._width_s
        return TimeBucket(self._snap(start), latest if end is None else min(self._snap(end), latest))

    def _snap(self, seconds: float) -> int:
        return int(seconds) // self._width_s * self._width_s

    def _exact_range(self) -> TimeBucket:
        start, end = self._range()
        now = self._asked.now
        if start < EARLIEST or start < now - HISTORY_S:
            raise ProviderRefusal(
                400, "starting_at: must be within the last 365 days and no earlier than 2026-01-01T00:00:00Z"
            )
        if end is None:
            end = min(now, start + MAX_RANGE_S)
        if end - start > MAX_RANGE_S:
            raise ProviderRefusal(400, "ending_at: the range may span at most 31 days")
        if len(self.groups) > MAX_GROUP_BY:
            raise ProviderRefusal(400, f"group_by: at most {MAX_GROUP_BY} dimensions")
        return TimeBucket(int(start), int(end))

    def _width_of_rows(self) -> int:
        """The width of the whole range, where none is given."""
        width = self._asked.param("time_bucket_width")
        if width is None:
            # Larger than any time, so that no multiple of it lies within.
            return self._whole.end + 1
        _require_supported("time_bucket_width", width, WIDTHS)
        if width == "1m" and self._whole.end - self._whole.start > MAX_MINUTES_S:
            raise ProviderRefusal(400, "time_bucket_width: a range of minutes may span at most 24 hours")
        return WIDTHS[width][0]

    def _moment(self, name: str) -> float | None:
        text = self._asked.param(name)
        if text is None:
            return None
        try:
            read = datetime.fromisoformat(text)
        except ValueError:
            raise ProviderRefusal(400, f"{name}: Input should be a valid datetime") from None
        if read.tzinfo is None:
            raise ProviderRefusal(400, f"{name}: Input should have timezone info")
        return read.timestamp()


def _require_supported(param: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        listed = ", ".join(f"'{one}'" for one in known)
        raise ProviderRefusal(400, f"{param}: Input should be {listed}")


def _bucket(span: TimeBucket, results: list[Json]) -> Json:
    return {"starting_at": moment(span.start), "ending_at": moment(span.end), "results": results}


def _counts(counts: Counts) -> Json:
    return {
        "uncached_input_tokens": counts.input - counts.cached - counts.cache_write,
        "cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": counts.cache_write},
        "cache_read_input_tokens": counts.cached,
        "output_tokens": counts.output,
        "server_tool_use": {"web_search_requests": 0},
    }


def _analytics_fields(counts: Counts) -> Json:
    return {**_counts(counts), "requests": counts.requests, "total_tokens": counts.input + counts.output}


def _price_fields(amount: Decimal) -> Json:
    return {"amount": _cents(amount), "list_amount": _cents(amount), "currency": "USD"}


def _cents(amount: Decimal) -> str:
    return f"{(amount * CENTS).normalize():f}"
