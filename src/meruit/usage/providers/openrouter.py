"""OpenRouter's record of each call, found by the id in its response."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from decimal import Decimal

from meruit.errors import FetchError, FetchFailed
from meruit.model.chat import MOST_TOKENS
from meruit.model.decoding import json_decoder
from meruit.model.metering import AttributionKind, Page, UsageAccount, UsageRow, Window
from meruit.model.record import Record
from meruit.model.usage import Count, Moment, Tokens
from meruit.registry import UsageProvider, usage_sources
from meruit.sources.http_replies import NOT_FOUND
from meruit.sources.retry import MAX_CONCURRENT
from meruit.usage.providers.support.http_client import ProviderResponse, UsageClient, UsageSourceContext, check_amount
from meruit.usage.providers.support.paging import DAY, no_pages, raise_when_read


class _Generation(Record, frozen=True):
    """Native counts are the model's own, which are billed; the others come from one tokenizer for all models."""

    id: str
    created_at: Moment
    native_tokens_prompt: Count | None = None
    native_tokens_completion: Count | None = None
    native_tokens_reasoning: Count | None = None
    native_tokens_cached: Count | None = None
    model: str | None = None
    total_cost: Decimal | None = None


class _GenerationReply(Record, frozen=True):
    data: _Generation


_GENERATION_REPLY = json_decoder(_GenerationReply)


@usage_sources.add("openrouter", base_url="https://openrouter.ai/api/v1", key_variable="OPENROUTER_API_KEY")
class OpenRouterUsage:
    """OpenRouter's record of each call, with its cost."""

    kinds = frozenset({AttributionKind.REQUESTS})
    bucket = 0 * DAY
    longest = DAY

    def __init__(self, provider: UsageProvider, account: UsageAccount, context: UsageSourceContext) -> None:
        self._client = UsageClient(provider, account, context)

    def usage(self, window: Window) -> AsyncIterator[Page]:
        """Raise FetchFailed: no page would mean that nothing was used."""
        message = f"OpenRouter counts by call id, not by time (from {window.start.isoformat()} on)"
        return raise_when_read(
            FetchFailed(FetchError.MALFORMED, f"{message}; record runs with the attribution key `requests`")
        )

    async def calls(self, ids: Sequence[str]) -> AsyncIterator[Page]:
        """Yield a page for each call; a call that is not recorded yet has no row. Raises FetchFailed."""
        wanted = [*dict.fromkeys(ids)]
        for first in range(0, len(wanted), MAX_CONCURRENT):
            several = [self._call(one) for one in wanted[first : first + MAX_CONCURRENT]]
            for found in await asyncio.gather(*several, return_exceptions=True):
                if isinstance(found, BaseException):
                    raise found
                yield found

    def costs(self, window: Window) -> AsyncIterator[Page]:
        """Yield nothing: each call's row has its cost."""
        return no_pages(window)

    async def _call(self, call_id: str) -> Page:
        try:
            response = await self._client.get("/generation", [("id", call_id)], may_lack=True)
            row = None if response.status == NOT_FOUND else _row(call_id, response)
        except FetchFailed as failure:
            failure.args = (f"{failure} (call {call_id})",)
            raise
        return Page(response.at, () if row is None else (row,), raw=response.raw)


def _row(call_id: str, response: ProviderResponse) -> UsageRow | None:
    """Read the call's row; None while its tokens are not counted."""
    found = response.decode(_GENERATION_REPLY).data
    if found.id != call_id:
        raise response.failure(FetchError.MALFORMED, f"returned another call, {found.id[:80]!r}")
    put_in, put_out = found.native_tokens_prompt, found.native_tokens_completion
    if put_in is None or put_out is None:
        return None
    reasoning = found.native_tokens_reasoning
    if reasoning is not None and reasoning > put_out:
        # Some hosts count reasoning separately from output.
        put_out = min(put_out + reasoning, MOST_TOKENS)
    cost = None if found.total_cost is None else check_amount(found.total_cost, response)
    tokens = Tokens(put_in, put_out, 1, found.native_tokens_cached, None, reasoning)
    return UsageRow(found.created_at, found.created_at, tokens, found.model or "", request_id=found.id, cost=cost)
