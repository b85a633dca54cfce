"""Read the usage block of a response, whichever provider or SDK it comes from.

In the result, input includes cached tokens and output includes reasoning. A response without usage is None, and so is
one with an input of 0: no model answers an empty input, so its host has not counted. A value that is not a valid count
(negative, a fraction, a text) raises AuthorError.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from meruit.errors import AuthorError, UnknownName
from meruit.model.chat import MOST_TOKENS
from meruit.model.usage import Tokens
from meruit.suggestions import nearest

MAX_DEPTH = 8
"""How deep the usage block may lie in a response."""

# Any: a block may hold any value of an SDK or a provider.
Block = Mapping[str, Any]
_WRAPPINGS = ("usage", "usage_metadata", "usageMetadata", "usage_details", "usageDetails", "message", "response")
"""Fields that hold the block in responses and stream events."""
_OTEL = "gen_ai.usage."


def tokens_of(block: object, provider: str | None = None) -> Tokens | None:
    """Read a usage block, or a response or stream event that has one; None without counts.

    A block is a dict or an SDK's object. Its fields show the provider, unless `provider` is given.
    """
    return _read(_find_block(block), provider)


def last_tokens_of(blocks: Iterable[object], provider: str | None = None) -> Tokens | None:
    """Read the final counts of a stream: each block includes those before it, so they are not added.

    Some events have only some of the counts: the last value of each counts.
    """
    merged_blocks: Block | None = None
    for one in blocks:
        found = _find_block(one)
        merged_blocks = merged_blocks if found is None else _merge(merged_blocks or {}, found)
    return _read(merged_blocks, provider)


def _read(block: Block | None, provider: str | None) -> Tokens | None:
    if provider is not None and provider not in NORMALISERS:
        known = ", ".join(sorted(NORMALISERS))
        raise UnknownName(
            f"{provider!r} is not a known kind of usage block{nearest(provider, NORMALISERS)}; known: {known}"
        )
    if block is None:
        return None
    normalise = NORMALISERS[provider] if provider is not None else _find_normaliser(block)
    tokens = None if normalise is None else normalise(block)
    return None if tokens is None or (not tokens.input and tokens.requests != 0) else tokens


def _merge(earlier: Block, later: Block) -> Block:
    merged = dict(earlier)
    for name, value in later.items():
        if isinstance(value, Mapping) and isinstance(merged.get(name), Mapping):
            merged[name] = _merge(merged[name], value)
        elif value is not None:
            merged[name] = value
    return merged


def _find_block(value: object) -> Block | None:
    """Find the usage block in a value; None where it has none; raises AuthorError for a type that cannot have one."""
    if isinstance(value, (str, bytes, int, float, list, tuple, set)):
        raise AuthorError(f"a usage block must be a dict or an SDK's object, not a {type(value).__name__}")
    for _ in range(MAX_DEPTH):
        fields = _fields_of(value)
        if fields is None:
            return None
        wrappings = [fields[name] for name in _WRAPPINGS if name in fields]
        if not wrappings:
            return {name: one if _fields_of(one) is None else _fields_of(one) for name, one in fields.items()}
        value = next((one for one in wrappings if one is not None), None)
    return None


def _fields_of(value: object) -> Block | None:
    """The fields of a dict or an SDK's object; None for other values."""
    if isinstance(value, Mapping):
        return {str(name): one for name, one in value.items()}
    if value is None or isinstance(value, (str, bytes, int, float, list, tuple, set)):
        return None
    found = {name: getattr(value, name, None) for name in _NAMES}
    return {name: one for name, one in found.items() if one is not None and not callable(one)}


def _find_normaliser(block: Block) -> Callable[[Block], Tokens | None] | None:
    """Find the reader for a block by its fields; None for an unknown block."""
    known = {name for name, value in block.items() if value is not None}
    if any(name.startswith(_OTEL) for name in known):
        return _otel
    # These names may mean anything, except in a dict of counts.
    if {"input", "output"} & known and all(isinstance(value, (int, float, type(None))) for value in block.values()):
        return _langfuse
    return next((normalise for names, normalise in _SHAPES if known & names), None)


def _chat(block: Block) -> Tokens | None:
    """Chat completions of OpenAI and compatible hosts: input includes cached tokens."""
    put_in, put_out = _count(block, "prompt_tokens"), _count(block, "completion_tokens")
    details = _details(block, "prompt_tokens_details")
    reasoning = _count(_details(block, "completion_tokens_details"), "reasoning_tokens", "completion_tokens_details.")
    cached = _first(
        _count(details, "cached_tokens", "prompt_tokens_details."),
        # Names that hosts of other models use.
        _count(block, "cache_read_input_tokens"),
        _count(block, "prompt_cache_hit_tokens"),
    )
    written = _first(
        _count(details, "cache_write_tokens", "prompt_tokens_details."),
        _count(details, "cache_creation_tokens", "prompt_tokens_details."),
        _count(block, "cache_creation_input_tokens"),
    )
    return _inclusive(block, put_in, put_out, total="total_tokens", cached=cached, written=written, reasoning=reasoning)


def _responses(block: Block) -> Tokens | None:
    """OpenAI's responses, and SDKs with the same names (OpenAI Agents, LangChain): input includes cached tokens."""
    inputs = {**_details(block, "input_token_details"), **_details(block, "input_tokens_details")}
    outputs = {**_details(block, "output_token_details"), **_details(block, "output_tokens_details")}
    cached = _first(_count(inputs, "cached_tokens"), _count(inputs, "cache_read"))
    written = _first(_count(inputs, "cache_write_tokens"), _count(inputs, "cache_creation"))
    reasoning = _first(_count(outputs, "reasoning_tokens"), _count(outputs, "reasoning"))
    put_in, put_out = _count(block, "input_tokens"), _count(block, "output_tokens")
    return _inclusive(block, put_in, put_out, total="total_tokens", cached=cached, written=written, reasoning=reasoning)


def _anthropic(block: Block) -> Tokens | None:
    """Anthropic's messages: input excludes tokens read from or written to a cache."""
    fresh, put_out = _count(block, "input_tokens"), _count(block, "output_tokens")
    cached = _count(block, "cache_read_input_tokens")
    by_age = _details(block, "cache_creation")
    ages = [_count(by_age, name, "cache_creation.") for name in by_age if name.endswith("_input_tokens")]
    written = _first(_count(block, "cache_creation_input_tokens"), _sum(*ages) if ages else None)
    return _exclusive(fresh, put_out, cached, written)


def _bedrock(block: Block) -> Tokens | None:
    """Bedrock's Converse: as Anthropic's, with other names."""
    cached, written = _count(block, "cacheReadInputTokens"), _count(block, "cacheWriteInputTokens")
    return _exclusive(_count(block, "inputTokens"), _count(block, "outputTokens"), cached, written)


def _gemini(block: Block) -> Tokens | None:
    """Gemini and Vertex: input includes cached tokens, output excludes reasoning."""
    counts = {snake: _first(_count(block, snake), _count(block, _camel(snake))) for snake in _GEMINI}
    prompt, total = counts["prompt_token_count"], counts["total_token_count"]
    if prompt is None:
        return None
    put_in = _sum(prompt, counts["tool_use_prompt_token_count"])
    put_out, reasoning = counts["candidates_token_count"], counts["thoughts_token_count"]
    if put_out is None and total is not None:
        # A count of 0 is omitted.
        put_out = max(total - put_in - (reasoning or 0), 0)
    if put_out is None:
        return None
    separate = total is None or total != put_in + put_out
    output = _sum(put_out, reasoning if separate else None)
    return _build_tokens(put_in, output, cached=counts["cached_content_token_count"], reasoning=reasoning)


def _langfuse(block: Block) -> Tokens | None:
    """Langfuse: each key with `input` or `output` is a separate part, unless the total shows otherwise."""
    counts = {name: _count(block, name) for name in block if name == "total" or "input" in name or "output" in name}
    put_in = {name: count for name, count in counts.items() if "input" in name and count is not None}
    put_out = {name: count for name, count in counts.items() if "input" not in name and "output" in name}
    known = {name: count for name, count in put_out.items() if count is not None}
    if "input" not in put_in or "output" not in known:
        return None
    cached = [count for name, count in put_in.items() if "cached" in name or "cache_read" in name]
    written = [count for name, count in put_in.items() if "cache_creation" in name or "cache_write" in name]
    reasoning = [count for name, count in known.items() if "reasoning" in name]
    parts_of_whole = counts.get("total") == put_in["input"] + known["output"]
    return _build_tokens(
        put_in["input"] if parts_of_whole else _sum(*put_in.values()),
        known["output"] if parts_of_whole else _sum(*known.values()),
        cached=_sum(*cached) if cached else None,
        written=_sum(*written) if written else None,
        reasoning=_sum(*reasoning) if reasoning else None,
    )


def _otel(block: Block) -> Tokens | None:
    """Attributes of GenAI spans: input includes tokens read from and written to a cache."""
    counts = {name.removeprefix(_OTEL): _count(block, name) for name in block if name.startswith(_OTEL)}
    put_in = _first(counts.get("input_tokens"), counts.get("prompt_tokens"))
    put_out = _first(counts.get("output_tokens"), counts.get("completion_tokens"))
    if put_in is None:
        return None
    return _build_tokens(
        # Embeddings have no output.
        put_in,
        put_out or 0,
        cached=_first(counts.get("cache_read.input_tokens"), counts.get("cache_read_input_tokens")),
        written=_first(counts.get("cache_creation.input_tokens"), counts.get("cache_creation_input_tokens")),
        reasoning=_first(counts.get("reasoning.output_tokens"), counts.get("reasoning_tokens")),
    )


def _pydantic_ai(block: Block) -> Tokens | None:
    """Pydantic AI's sum of a request or a run: both include all tokens, and an unmeasured count is 0."""
    if _count(block, "unmeasured_requests"):
        return None
    return _build_tokens(
        _count(block, "input_tokens") or 0,
        _count(block, "output_tokens") or 0,
        requests=_count(block, "requests"),
        cached=_count(block, "cache_read_tokens"),
        written=_count(block, "cache_write_tokens"),
        reasoning=_count(block, "output_reasoning_tokens"),
    )


def _openai(block: Block) -> Tokens | None:
    return _chat(block) if "prompt_tokens" in block else _responses(block)


_GEMINI = (
    "prompt_token_count",
    "candidates_token_count",
    "thoughts_token_count",
    "tool_use_prompt_token_count",
    "cached_content_token_count",
    "total_token_count",
)
_SHAPES: tuple[tuple[set[str], Callable[[Block], Tokens | None]], ...] = (
    ({"promptTokenCount", "prompt_token_count"}, _gemini),
    ({"prompt_tokens", "completion_tokens"}, _chat),
    ({"inputTokens", "outputTokens"}, _bedrock),
    ({"cache_read_input_tokens", "cache_creation_input_tokens", "cache_creation"}, _anthropic),
    ({"cache_read_tokens", "cache_write_tokens", "unmeasured_requests"}, _pydantic_ai),
    ({"input_tokens", "output_tokens"}, _responses),
)
"""The names that identify a block; the first match counts."""
NORMALISERS: Mapping[str, Callable[[Block], Tokens | None]] = {
    "openai": _openai,
    "openrouter": _chat,
    "litellm": _openai,
    "openai_agents": _responses,
    "langchain": _responses,
    "anthropic": _anthropic,
    "anthropic_analytics": _anthropic,
    "gemini": _gemini,
    "google": _gemini,
    "vertex": _gemini,
    "bedrock": _bedrock,
    "langfuse": _langfuse,
    "otel": _otel,
    "pydantic_ai": _pydantic_ai,
}
"""The reader for each kind of usage block."""
_NAMES = (
    *_WRAPPINGS,
    *(name for names, _ in _SHAPES for name in sorted(names)),
    *_GEMINI,
    *("total_tokens", "requests", "output_reasoning_tokens", "prompt_cache_hit_tokens"),
    *("prompt_tokens_details", "completion_tokens_details", "input_tokens_details", "output_tokens_details"),
    *("input_token_details", "output_token_details", "reasoning", "cache_read", "cache_creation"),
    *("cached_tokens", "cache_write_tokens", "cache_creation_tokens", "reasoning_tokens"),
    *("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens", "cacheReadInputTokens", "cacheWriteInputTokens"),
)
"""The attributes that are read from an SDK's object."""


def _inclusive(
    block: Block,
    put_in: int | None,
    put_out: int | None,
    *,
    total: str,
    cached: int | None,
    written: int | None,
    reasoning: int | None,
) -> Tokens | None:
    """Build counts whose input includes cached tokens; the total shows what the host left out."""
    whole = _count(block, total)
    if put_in is None:
        return None
    if put_out is None:
        # Embeddings have no output.
        put_out = None if whole is None else max(whole - put_in, 0)
    if put_out is None:
        return None
    if (cached or 0) > put_in:
        # Some hosts exclude cached tokens from input.
        put_in = _sum(put_in, cached, written)
    return _build_tokens(
        put_in,
        _with_thoughts(put_in, put_out, reasoning, whole),
        requests=_count(block, "requests"),
        cached=cached,
        written=written,
        reasoning=reasoning,
    )


def _with_thoughts(put_in: int, put_out: int, reasoning: int | None, whole: int | None) -> int:
    """Add reasoning to the output where the host counts it separately, as the total or a larger value shows."""
    if reasoning and (whole == put_in + put_out + reasoning or reasoning > put_out):
        return _sum(put_out, reasoning)
    return put_out


def _exclusive(fresh: int | None, put_out: int | None, cached: int | None, written: int | None) -> Tokens | None:
    if fresh is None or put_out is None:
        return None
    return _build_tokens(_sum(fresh, cached, written), put_out, cached=cached, written=written)


def _build_tokens(
    put_in: int,
    put_out: int,
    *,
    requests: int | None = None,
    cached: int | None = None,
    written: int | None = None,
    reasoning: int | None = None,
) -> Tokens:
    # A block is of one call, unless it has a number of requests.
    return Tokens(put_in, put_out, 1 if requests is None else requests, cached, written, reasoning)


def _details(block: Block, name: str) -> Block:
    found = block.get(name)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise AuthorError(f"{name} of a usage block must be a dict of counts, not a {type(found).__name__}")
    return found


def _count(block: Block, name: str, place: str = "") -> int | None:
    """Read a count; None where it is missing; raises AuthorError for a value that is not a valid count."""
    value = block.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_TOKENS:
        shown = repr(value)[:40]
        raise AuthorError(
            f"{place}{name} of a usage block is {shown}; it must be a whole number from 0 to {MOST_TOKENS:,}"
        )
    return value


def _sum(*counts: int | None) -> int:
    return min(sum(count or 0 for count in counts), MOST_TOKENS)


def _first(*counts: int | None) -> int | None:
    return next((count for count in counts if count is not None), None)


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)
