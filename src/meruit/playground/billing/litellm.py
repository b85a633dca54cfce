"""The spend logs of a LiteLLM proxy, a row a call.

GET /spend/logs/v2?start_date=2026-09-01 00:00:00&end_date=...&page=1&page_size=100, the latest first
GET /spend/logs?request_id=
"""

from collections.abc import Mapping
from datetime import UTC, datetime

from meruit.errors import ProviderRefusal
from meruit.playground.billing.base import BillingRequest, Endpoint, Json, ProviderApi, bearer
from meruit.playground.billing.calls import ProviderCall

LOGS = "/spend/logs"
LOGS_V2 = "/spend/logs/v2"
DATE = "%Y-%m-%d %H:%M:%S"
PAGE_SIZE = (50, 100)
"""By default, and at most."""
TOOK_S = 1.0
"""How long each call took."""
_FILTERS = {"api_key": "key", "team_id": "project", "request_id": "id", "model": "model"}
_KINDS = {400: "bad_request", 401: "token_not_found_in_db", 403: "auth_error", 429: "throttling_error"}
INVALID = 422


class LiteLLM(ProviderApi):
    """The API of a LiteLLM proxy; its master key reads all."""

    scope = "proxy_admin"

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """By range, and by id."""
        return {LOGS_V2: self._range, LOGS: self._one}

    def key(self, headers: Mapping[str, str]) -> str:
        """As a bearer token."""
        return bearer(headers)

    def error_document(self, refused: ProviderRefusal) -> Json:
        """Build an error as the proxy does; validation errors come from its framework."""
        if refused.status == INVALID:
            return {"detail": [{"type": "value_error", "loc": ["query", refused.param], "msg": refused.message}]}
        kind = _KINDS.get(refused.status, "internal_server_error")
        return {"error": {"message": refused.message, "type": kind, "param": "None", "code": str(refused.status)}}

    def no_key(self, shown: str) -> ProviderRefusal:
        """Refuse a missing or unknown key."""
        if not shown:
            return ProviderRefusal(401, "Authentication Error, No api key passed in.")
        return ProviderRefusal(
            401, "Authentication Error, Invalid proxy server token passed. Unable to find token in cache or DB"
        )

    def _range(self, asked: BillingRequest) -> Json:
        page = _number(asked, "page", 1)
        size = _number(asked, "page_size", *PAGE_SIZE)
        size = min(size, asked.page_rows or size)
        latest_first = asked.param("sort_order") != "asc"
        found = sorted(_matching_calls(asked), key=lambda call: (call.at, call.id), reverse=latest_first)
        total = len(found) + (size if asked.unfinished else 0)
        return {
            "data": [_row(call) for call in found[(page - 1) * size : page * size]],
            "total": total,
            "page": page,
            "page_size": size,
            "total_pages": -(-total // size),
        }

    def _one(self, asked: BillingRequest) -> list[Json | None]:
        found = asked.ledger.find(asked.param("request_id") or "")
        # An unknown call is a null in the list.
        return [_row(found) if found is not None and asked.sight.shows(found) else None]


def _matching_calls(asked: BillingRequest) -> list[ProviderCall]:
    start, end = _date(asked, "start_date"), _date(asked, "end_date")
    wanted = {name: asked.param(param) for param, name in _FILTERS.items() if param in asked.params}
    # The end is inclusive: requests hour by hour return a call at the full hour twice.
    calls = [call for call in asked.visible_calls(start, end + 1) if call.at <= end]
    return [call for call in calls if all(getattr(call, name) == value for name, value in wanted.items())]


def _date(asked: BillingRequest, name: str) -> float:
    text = asked.param(name)
    if text is None:
        raise ProviderRefusal(400, "Start date and end date are required")
    try:
        return datetime.strptime(text, DATE).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise ProviderRefusal(500, f"time data '{text}' does not match format '{DATE}'") from None


def _number(asked: BillingRequest, name: str, default: int, most: int | None = None) -> int:
    text = asked.param(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit():
        raise ProviderRefusal(INVALID, "Input should be a valid integer", param=name)
    if int(text) < 1:
        raise ProviderRefusal(INVALID, "Input should be greater than or equal to 1", param=name)
    if most is not None and int(text) > most:
        raise ProviderRefusal(INVALID, f"Input should be less than or equal to {most}", param=name)
    return int(text)


def _row(call: ProviderCall) -> Json:
    counts = call.counts
    return {
        "request_id": call.id or f"chatcmpl-{call.turn}-{call.at:.6f}",
        "litellm_call_id": call.id or None,
        "call_type": "acompletion",
        "api_key": call.key,
        "spend": float(call.cost or 0),
        "total_tokens": counts.input + counts.output,
        "prompt_tokens": counts.input,
        "completion_tokens": counts.output,
        "startTime": _stamp(call.at),
        "endTime": _stamp(call.at + TOOK_S),
        "completionStartTime": _stamp(call.at + TOOK_S / 2),
        "request_duration_ms": int(TOOK_S * 1000),
        "model": call.model,
        "model_id": "",
        "model_group": call.model,
        "custom_llm_provider": "openai",
        "api_base": "",
        "user": "",
        "end_user": "",
        "team_id": call.project or None,
        "organization_id": None,
        "agent_id": None,
        "session_id": call.session or None,
        "metadata": {"status": "success", "usage_object": _usage(call)},
        "request_tags": [],
        "cache_hit": "False",
        "cache_key": "Cache OFF",
        "status": "success",
    }


def _usage(call: ProviderCall) -> Json:
    counts = call.counts
    return {
        "prompt_tokens": counts.input,
        "completion_tokens": counts.output,
        "total_tokens": counts.input + counts.output,
        "prompt_tokens_details": {"cached_tokens": counts.cached, "cache_creation_tokens": counts.cache_write},
        "completion_tokens_details": {"reasoning_tokens": counts.reasoning},
    }


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
