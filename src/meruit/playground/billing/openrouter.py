"""OpenRouter's record of one call, which is not there at once.

GET /api/v1/generation?id=
"""

from collections.abc import Mapping
from datetime import UTC, datetime

from meruit.errors import ProviderRefusal
from meruit.playground.billing.base import BillingRequest, Endpoint, Json, ProviderApi, bearer
from meruit.playground.billing.calls import ProviderCall

GENERATION = "/api/v1/generation"
NORMALISED = 0.9
"""How much the count of the common tokenizer differs from the model's own."""


class OpenRouter(ProviderApi):
    """OpenRouter's API; any key of an account reads its calls."""

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """One call at a time."""
        return {GENERATION: self._generation}

    def key(self, headers: Mapping[str, str]) -> str:
        """As a bearer token."""
        return bearer(headers)

    def error_document(self, refused: ProviderRefusal) -> Json:
        """`error`, with the status again."""
        return {"error": {"message": refused.message, "code": refused.status}}

    def no_key(self, shown: str) -> ProviderRefusal:
        """Refuse a missing or unknown key."""
        return ProviderRefusal(401, "User not found." if shown else "No auth credentials found")

    def _generation(self, asked: BillingRequest) -> Json:
        wanted = asked.param("id")
        if not wanted:
            raise ProviderRefusal(400, "Missing required query parameter: id")
        found = asked.ledger.find(wanted)
        if found is None or not asked.sight.shows(found):
            raise ProviderRefusal(404, f"Generation {wanted} not found")
        return {"data": _data(found)}


def _data(call: ProviderCall) -> Json:
    counts, cost = call.counts, float(call.cost or 0)
    return {
        "id": call.id,
        "upstream_id": f"chatcmpl-{call.id}",
        "total_cost": cost,
        "cache_discount": None,
        "upstream_inference_cost": None,
        "created_at": datetime.fromtimestamp(call.at, UTC).isoformat(),
        "model": call.model,
        "app_id": None,
        "streamed": True,
        "cancelled": False,
        "provider_name": "OpenAI",
        "latency": 1250,
        "moderation_latency": None,
        "generation_time": 1200,
        "finish_reason": "stop",
        "native_finish_reason": "stop",
        "tokens_prompt": int(counts.input * NORMALISED),
        "tokens_completion": int(counts.output * NORMALISED),
        "native_tokens_prompt": counts.input,
        "native_tokens_completion": counts.output,
        "native_tokens_completion_images": 0,
        "native_tokens_reasoning": counts.reasoning,
        "native_tokens_cached": counts.cached,
        "num_media_prompt": None,
        "num_input_audio_prompt": None,
        "num_media_completion": 0,
        "num_search_results": None,
        "origin": "",
        "usage": cost,
        "is_byok": False,
        "external_user": call.session or None,
        "api_type": "completions",
        "router": None,
    }
