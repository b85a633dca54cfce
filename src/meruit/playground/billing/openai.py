"""OpenAI's usage and costs, as an organisation's admin key reads them.

GET /v1/organization/usage/completions, and a sibling for each other kind of usage, of which there is none here
GET /v1/organization/costs
"""

from collections.abc import Callable, Collection, Iterable, Mapping
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
    bearer,
    bucket_page,
)
from meruit.playground.billing.calls import (
    MINUTE_S,
    CallCostLine,
    Counts,
    ProviderCall,
    bill_by_group,
    call_of,
    cost_lines,
    sort_key,
    sum_by_group,
)

ROOT = "/v1/organization"
COMPLETIONS = f"{ROOT}/usage/completions"
COSTS = f"{ROOT}/costs"

WIDTHS = {"1m": (MINUTE_S, 60, 1440), "1h": (HOUR_S, 24, 168), "1d": (DAY_S, 7, 31)}
"""In seconds, and how many buckets a page has by default and at most."""
COST_BUCKETS = (7, 180)
_PAGED = ("start_time", "end_time", "bucket_width", "limit", "page", "group_by")
_BY_USER = {"project_ids": "project_id", "user_ids": "user_id", "api_key_ids": "api_key_id"}
_BY_MODEL = {**_BY_USER, "models": "model"}
_ALL = {**_BY_MODEL, "batch": "batch"}
_MORE = ("service_tier", "api_source")


class OpenAIUsageKind:
    """One kind of usage: by what it can be narrowed, and by what grouped."""

    def __init__(self, filters: Mapping[str, str], *more_groups: str) -> None:
        self.filters = filters
        """Parameters, and what each of them is about."""
        self.groups = (*filters.values(), *more_groups)


KINDS = {
    "completions": OpenAIUsageKind(_ALL, *_MORE),
    "decisions": OpenAIUsageKind(_ALL, *_MORE),
    "embeddings": OpenAIUsageKind(_BY_MODEL),
    "moderations": OpenAIUsageKind(_BY_MODEL),
    "images": OpenAIUsageKind({**_BY_MODEL, "sizes": "size", "sources": "source"}),
    "audio_speeches": OpenAIUsageKind(_BY_MODEL),
    "audio_transcriptions": OpenAIUsageKind(_BY_MODEL),
    "vector_stores": OpenAIUsageKind({"project_ids": "project_id"}),
    "code_interpreter_sessions": OpenAIUsageKind({"project_ids": "project_id"}),
    "file_search_calls": OpenAIUsageKind({**_BY_USER, "vector_store_ids": "vector_store_id"}),
    "web_search_calls": OpenAIUsageKind({**_BY_MODEL, "context_levels": "context_level"}, "api_source"),
}
COST_KIND = OpenAIUsageKind(
    {"project_ids": "project_id", "api_key_ids": "api_key_id", "line_items": "line_item"}, "user_id", "api_source"
)


class OpenAI(ProviderApi):
    """OpenAI's usage APIs."""

    scope = "api.usage.read"

    def __init__(self) -> None:
        self._shelf = BucketCache()

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """One for each kind of usage, and the costs."""
        usage = {f"{ROOT}/usage/{name}": partial(self._usage, name) for name in KINDS}
        return {**usage, COSTS: self._costs}

    def key(self, headers: Mapping[str, str]) -> str:
        """As a bearer token."""
        return bearer(headers)

    def error_document(self, refused: ProviderRefusal) -> Json:
        """`error`, with four fields."""
        kind = {429: "requests", 500: "server_error", 503: "server_error"}.get(refused.status, "invalid_request_error")
        return {
            "error": {"message": refused.message, "type": kind, "param": refused.param, "code": refused.provider_code},
        }

    def no_key(self, shown: str) -> ProviderRefusal:
        """Refuse a missing or wrong key; part of a wrong one is quoted."""
        if not shown:
            return ProviderRefusal(401, "Missing bearer authentication in header")
        return ProviderRefusal(401, f"Incorrect API key provided: {shown[:3]}***{shown[-4:]}.", code="invalid_api_key")

    def no_scope(self) -> ProviderRefusal:
        """With the scope that is missing."""
        return ProviderRefusal(
            403,
            f"You have insufficient permissions for this operation. Missing scopes: {self.scope}. Check that you have "
            "the correct role in your organization, and if you're using a restricted API key, that it has the "
            "necessary scopes.",
        )

    def _usage(self, name: str, asked: BillingRequest) -> Json:
        kind = KINDS[name]
        query = _OpenAIQuery(asked, kind, WIDTHS)

        def write(span: TimeBucket, calls: Iterable[ProviderCall]) -> Json:
            sums = sum_by_group(filter(query.is_selected, calls), query.group)
            return _bucket(
                span, [_completion(query.label_group(group), sums[group]) for group in sorted(sums, key=sort_key)]
            )

        def bucket(span: TimeBucket) -> object:
            if name != "completions":
                return _bucket(span, [])
            return self._shelf.answer(asked, span, query.question, partial(write, span))

        return query.page(bucket)

    def _costs(self, asked: BillingRequest) -> Json:
        query = _OpenAIQuery(asked, COST_KIND, {"1d": (DAY_S, *COST_BUCKETS)})

        def bucket(span: TimeBucket) -> object:
            sums = bill_by_group(filter(query.is_selected, cost_lines(asked.visible_calls(*span))), query.group)
            return _bucket(
                span, [_cost(query.label_group(group), *sums[group]) for group in sorted(sums, key=sort_key)]
            )

        return query.page(bucket)


class _OpenAIQuery(CallSelection):
    """A request about a range of time, with OpenAI's validation."""

    def __init__(
        self, asked: BillingRequest, kind: OpenAIUsageKind, widths: Mapping[str, tuple[int, int, int]]
    ) -> None:
        super().__init__(asked, _FACTS, kind.filters)
        self._asked = asked
        known = {*_PAGED, *kind.filters}
        for name in asked.params:
            if name not in known:
                raise ProviderRefusal(400, f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")
        for name in self.groups:
            _require_supported("group_by", name, kind.groups)
        width = asked.param("bucket_width") or "1d"
        _require_supported("bucket_width", width, [*widths])
        self._width_s, default, most = widths[width]
        self._limit = self._between("limit", default, 1, most)
        self._whole = self._range()

    def page(self, bucket: Callable[[TimeBucket], object]) -> Json:
        """The buckets of the requested page."""
        page = bucket_page(self._asked, self._whole, self._width_s, self._limit, bucket)
        if page is None:
            raise ProviderRefusal(400, "Invalid 'page': it is not a cursor of this query.", param="page")
        return {"object": "page", **page}

    def _range(self) -> TimeBucket:
        start, end = self._number("start_time"), self._number("end_time")
        if start is None:
            message = "Missing required parameter: 'start_time'."
            raise ProviderRefusal(400, message, param="start_time", code="missing_required_parameter")
        if end is None:
            end = int(self._asked.now)
        elif end > self._asked.now:
            raise ProviderRefusal(400, "Invalid 'end_time': it must not be in the future.", param="end_time")
        elif end <= start:
            raise ProviderRefusal(400, "Invalid 'end_time': it must come after 'start_time'.", param="end_time")
        # Nothing is counted by less than a minute, so that a minute that is begun is in it.
        return TimeBucket(start - start % MINUTE_S, end + -end % MINUTE_S)

    def _between(self, name: str, default: int, least: int, most: int) -> int:
        number = self._number(name)
        if number is None:
            return default
        if not least <= number <= most:
            side = "below minimum" if number < least else "above maximum"
            message = (
                f"Invalid '{name}': integer {side} value. Expected from {least} to {most}, but got {number} instead."
            )
            raise ProviderRefusal(400, message, param=name, code=f"integer_{side.replace(' ', '_')}_value")
        return number

    def _number(self, name: str) -> int | None:
        text = self._asked.param(name)
        if text is None:
            return None
        if not text.isascii() or not text.isdigit() or len(text) > 12:
            message = f"Invalid type for '{name}': expected an integer, but got a string instead."
            raise ProviderRefusal(400, message, param=name, code="invalid_type")
        return int(text)


_FACTS: Facts = {
    "project_id": lambda one: call_of(one).project or None,
    "api_key_id": lambda one: call_of(one).key or None,
    "model": lambda one: call_of(one).model or None,
    "line_item": lambda one: f"{one.call.model}, {one.side}_tokens" if isinstance(one, CallCostLine) else None,
    # As for a service account: no user, standard processing.
    "batch": lambda _: "false",
    "service_tier": lambda _: "default",
    "api_source": lambda _: "unlabeled",
}


def _require_supported(param: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        listed = ", ".join(f"'{one}'" for one in known)
        message = f"Invalid value: '{value}'. Supported values are: {listed}."
        raise ProviderRefusal(400, message, param=param, code="invalid_value")


def _bucket(span: TimeBucket, results: list[Json]) -> Json:
    return {"object": "bucket", "start_time": span.start, "end_time": span.end, "results": results}


def _completion(group: Mapping[str, str | None], counts: Counts) -> Json:
    uncached = counts.input - counts.cached - counts.cache_write
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": counts.input,
        "output_tokens": counts.output,
        "num_model_requests": counts.requests,
        "project_id": group.get("project_id"),
        "user_id": group.get("user_id"),
        "api_key_id": group.get("api_key_id"),
        "model": group.get("model"),
        "batch": False if "batch" in group else None,
        "service_tier": group.get("service_tier"),
        "api_source": group.get("api_source"),
        "input_cached_tokens": counts.cached,
        "input_uncached_tokens": uncached,
        "input_cache_write_tokens": counts.cache_write,
        "input_cache_write_30m_tokens": counts.cache_write,
        "input_cache_write_12h_tokens": 0,
        "input_text_tokens": uncached,
        "output_text_tokens": counts.output,
        "input_cached_text_tokens": counts.cached,
        "input_audio_tokens": 0,
        "input_cached_audio_tokens": 0,
        "output_audio_tokens": 0,
        "input_image_tokens": 0,
        "input_cached_image_tokens": 0,
        "output_image_tokens": 0,
    }


def _cost(group: Mapping[str, str | None], amount: Decimal, quantity: int) -> Json:
    itemised = "line_item" in group
    return {
        "object": "organization.costs.result",
        "amount": {"value": float(amount), "currency": "usd"},
        "line_item": group.get("line_item"),
        "project_id": group.get("project_id"),
        "user_id": group.get("user_id"),
        "api_key_id": group.get("api_key_id"),
        "api_source": group.get("api_source"),
        "quantity": float(quantity) if itemised else None,
        "quantity_unit": "tokens" if itemised else None,
    }
