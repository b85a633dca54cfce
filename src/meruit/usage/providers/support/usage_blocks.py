"""What a response says of its own tokens, in one vocabulary: input with all that was cached, output with all thoughts.

A response that says nothing is None, and so is one that says what cannot be: no model answers an empty input, so that a
host that counts 0 has not counted. A count that is no count (negative, a fraction, a text) is somebody's mistake, and
raises AuthorError.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from meruit.errors import AuthorError, UnknownName, nearest
from meruit.model.chat import MOST_TOKENS
from meruit.model.usage import Tokens

MAX_DEPTH = 8
"""How deep a response is looked into."""

# Any: a block is whatever an SDK or a provider makes of it.
Block = Mapping[str, Any]
_WRAPPINGS = ("usage", "usage_metadata", "usageMetadata", "usage_details", "usageDetails", "message", "response")
"""Where responses and the events of streams keep their block."""
_OTEL = "gen_ai.usage."


def tokens_of(block: object, provider: str | None = None) -> Tokens | None:
    """What a usage block says, or a whole response or event of a stream that holds one; None where nothing is said.

    A block is a dict or an SDK's object. Its shape tells whose it is, unless `provider` does.
    """
    return _read(_find_block(block), provider)


def last_tokens_of(blocks: Iterable[object], provider: str | None = None) -> Tokens | None:
    """What a stream says in the end: its blocks are each a sum of all before, and never summed.

    Some events tell but a part: of each count, the last that was told stands.
    """
    together: Block | None = None
    for one in blocks:
        found = _find_block(one)
        together = together if found is None else _merge(together or {}, found)
    return _read(together, provider)


def _read(block: Block | None, provider: str | None) -> Tokens | None:
    if provider is not None and provider not in NORMALISERS:
        known = ", ".join(sorted(NORMALISERS))
        raise UnknownName(f"nobody reads usage blocks of {provider!r}{nearest(provider, NORMALISERS)}; give {known}")
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
    """The usage block in what was given; None where it holds none, AuthorError for what can hold none."""
    if isinstance(value, (str, bytes, int, float, list, tuple, set)):
        raise AuthorError(f"a usage block is a dict or an SDK's object, not a {type(value).__name__}")
    for _ in range(MAX_DEPTH):
        held = _fields_of(value)
        if held is None:
            return None
        wrappings = [held[name] for name in _WRAPPINGS if name in held]
        if not wrappings:
            return {name: one if _fields_of(one) is None else _fields_of(one) for name, one in held.items()}
        value = next((one for one in wrappings if one is not None), None)
    return None


def _fields_of(value: object) -> Block | None:
    """The named things that a dict or an SDK's object holds; None for what has none."""
    if isinstance(value, Mapping):
        return {str(name): one for name, one in value.items()}
    if value is None or isinstance(value, (str, bytes, int, float, list, tuple, set)):
        return None
    found = {name: getattr(value, name, None) for name in _NAMES}
    return {name: one for name, one in found.items() if one is not None and not callable(one)}


def _find_normaliser(block: Block) -> Callable[[Block], Tokens | None] | None:
    """Whose shape a block has; None for nobody's that we know."""
    told = {name for name, value in block.items() if value is not None}
    if any(name.startswith(_OTEL) for name in told):
        return _otel
    # Such words name anything at all, except in a list of counts.
    if {"input", "output"} & told and all(isinstance(value, (int, float, type(None))) for value in block.values()):
        return _langfuse
    return next((normalise for names, normalise in _SHAPES if told & names), None)


def _chat(block: Block) -> Tokens | None:
    """Chat completions, of OpenAI and of all who speak as it does: input includes what was cached."""
    asked, answered = _count(block, "prompt_tokens"), _count(block, "completion_tokens")
    details = _details(block, "prompt_tokens_details")
    thoughts = _count(_details(block, "completion_tokens_details"), "reasoning_tokens", "completion_tokens_details.")
    cached = _first(
        _count(details, "cached_tokens", "prompt_tokens_details."),
        # As hosts of other makers' models say it.
        _count(block, "cache_read_input_tokens"),
        _count(block, "prompt_cache_hit_tokens"),
    )
    written = _first(
        _count(details, "cache_write_tokens", "prompt_tokens_details."),
        _count(details, "cache_creation_tokens", "prompt_tokens_details."),
        _count(block, "cache_creation_input_tokens"),
    )
    return _inclusive(block, asked, answered, total="total_tokens", cached=cached, written=written, thoughts=thoughts)


def _responses(block: Block) -> Tokens | None:
    """OpenAI's responses, and those who count in its words (its agents, LangChain): input includes what was cached."""
    inputs = {**_details(block, "input_token_details"), **_details(block, "input_tokens_details")}
    outputs = {**_details(block, "output_token_details"), **_details(block, "output_tokens_details")}
    cached = _first(_count(inputs, "cached_tokens"), _count(inputs, "cache_read"))
    written = _first(_count(inputs, "cache_write_tokens"), _count(inputs, "cache_creation"))
    thoughts = _first(_count(outputs, "reasoning_tokens"), _count(outputs, "reasoning"))
    asked, answered = _count(block, "input_tokens"), _count(block, "output_tokens")
    return _inclusive(block, asked, answered, total="total_tokens", cached=cached, written=written, thoughts=thoughts)


def _anthropic(block: Block) -> Tokens | None:
    """Messages: input is only what was neither read from a cache nor written to one."""
    fresh, answered = _count(block, "input_tokens"), _count(block, "output_tokens")
    cached = _count(block, "cache_read_input_tokens")
    by_age = _details(block, "cache_creation")
    ages = [_count(by_age, name, "cache_creation.") for name in by_age if name.endswith("_input_tokens")]
    written = _first(_count(block, "cache_creation_input_tokens"), _sum(*ages) if ages else None)
    return _exclusive(fresh, answered, cached, written)


def _bedrock(block: Block) -> Tokens | None:
    """Converse: as Anthropic's, in other words."""
    cached, written = _count(block, "cacheReadInputTokens"), _count(block, "cacheWriteInputTokens")
    return _exclusive(_count(block, "inputTokens"), _count(block, "outputTokens"), cached, written)


def _gemini(block: Block) -> Tokens | None:
    """Gemini and Vertex: input includes what was cached, output leaves out the thoughts."""
    counts = {snake: _first(_count(block, snake), _count(block, _camel(snake))) for snake in _GEMINI}
    prompt, total = counts["prompt_token_count"], counts["total_token_count"]
    if prompt is None:
        return None
    asked = _sum(prompt, counts["tool_use_prompt_token_count"])
    answered, thoughts = counts["candidates_token_count"], counts["thoughts_token_count"]
    if answered is None and total is not None:
        # What is 0 is left out.
        answered = max(total - asked - (thoughts or 0), 0)
    if answered is None:
        return None
    separate = total is None or total != asked + answered
    output = _sum(answered, thoughts if separate else None)
    return _build_tokens(asked, output, cached=counts["cached_content_token_count"], thoughts=thoughts)


def _langfuse(block: Block) -> Tokens | None:
    """Observations: every key that begins as `input` or `output` is a part of its own, unless the total says not."""
    counts = {name: _count(block, name) for name in block if name == "total" or "input" in name or "output" in name}
    asked = {name: count for name, count in counts.items() if "input" in name and count is not None}
    answered = {name: count for name, count in counts.items() if "input" not in name and "output" in name}
    told = {name: count for name, count in answered.items() if count is not None}
    if "input" not in asked or "output" not in told:
        return None
    cached = [count for name, count in asked.items() if "cached" in name or "cache_read" in name]
    written = [count for name, count in asked.items() if "cache_creation" in name or "cache_write" in name]
    thoughts = [count for name, count in told.items() if "reasoning" in name]
    parts_of_whole = counts.get("total") == asked["input"] + told["output"]
    return _build_tokens(
        asked["input"] if parts_of_whole else _sum(*asked.values()),
        told["output"] if parts_of_whole else _sum(*told.values()),
        cached=_sum(*cached) if cached else None,
        written=_sum(*written) if written else None,
        thoughts=_sum(*thoughts) if thoughts else None,
    )


def _otel(block: Block) -> Tokens | None:
    """Attributes of GenAI spans: input must include what was read from a cache and written to one."""
    counts = {name.removeprefix(_OTEL): _count(block, name) for name in block if name.startswith(_OTEL)}
    asked = _first(counts.get("input_tokens"), counts.get("prompt_tokens"))
    answered = _first(counts.get("output_tokens"), counts.get("completion_tokens"))
    if asked is None:
        return None
    return _build_tokens(
        # Embeddings have no output, and name none.
        asked,
        answered or 0,
        cached=_first(counts.get("cache_read.input_tokens"), counts.get("cache_read_input_tokens")),
        written=_first(counts.get("cache_creation.input_tokens"), counts.get("cache_creation_input_tokens")),
        thoughts=_first(counts.get("reasoning.output_tokens"), counts.get("reasoning_tokens")),
    )


def _pydantic_ai(block: Block) -> Tokens | None:
    """Pydantic AI's own sum of one request or of a run: both include all; what is not measured is 0 there."""
    if _count(block, "unmeasured_requests"):
        return None
    return _build_tokens(
        _count(block, "input_tokens") or 0,
        _count(block, "output_tokens") or 0,
        requests=_count(block, "requests"),
        cached=_count(block, "cache_read_tokens"),
        written=_count(block, "cache_write_tokens"),
        thoughts=_count(block, "output_reasoning_tokens"),
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
"""By which names a block is known: the first that fits."""
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
"""Whose blocks are read, and how."""
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
"""By which counts are looked for in an object."""


def _inclusive(
    block: Block,
    asked: int | None,
    answered: int | None,
    *,
    total: str,
    cached: int | None,
    written: int | None,
    thoughts: int | None,
) -> Tokens | None:
    """Of those whose input includes what was cached; their total tells what their host has left out."""
    whole = _count(block, total)
    if asked is None:
        return None
    if answered is None:
        # Embeddings have no output, and name none.
        answered = None if whole is None else max(whole - asked, 0)
    if answered is None:
        return None
    if (cached or 0) > asked:
        # Some hosts take what was cached out of the input all the same.
        asked = _sum(asked, cached, written)
    return _build_tokens(
        asked,
        _with_thoughts(asked, answered, thoughts, whole),
        requests=_count(block, "requests"),
        cached=cached,
        written=written,
        thoughts=thoughts,
    )


def _with_thoughts(asked: int, answered: int, thoughts: int | None, whole: int | None) -> int:
    """The output with its thoughts: some hosts count them apart, which their total shows, or that there are more."""
    if thoughts and (whole == asked + answered + thoughts or thoughts > answered):
        return _sum(answered, thoughts)
    return answered


def _exclusive(fresh: int | None, answered: int | None, cached: int | None, written: int | None) -> Tokens | None:
    if fresh is None or answered is None:
        return None
    return _build_tokens(_sum(fresh, cached, written), answered, cached=cached, written=written)


def _build_tokens(
    asked: int,
    answered: int,
    *,
    requests: int | None = None,
    cached: int | None = None,
    written: int | None = None,
    thoughts: int | None = None,
) -> Tokens:
    # One block is of one call, unless it says of how many.
    return Tokens(asked, answered, 1 if requests is None else requests, cached, written, thoughts)


def _details(block: Block, name: str) -> Block:
    found = block.get(name)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise AuthorError(f"{name} of a usage block holds counts by name, not a {type(found).__name__}")
    return found


def _count(block: Block, name: str, place: str = "") -> int | None:
    """A count, or None where it is not told; AuthorError for what is no count."""
    value = block.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_TOKENS:
        shown = repr(value)[:40]
        raise AuthorError(
            f"{place}{name} of a usage block is {shown}; a count of tokens is a whole number from 0 to {MOST_TOKENS:,}"
        )
    return value


def _sum(*counts: int | None) -> int:
    return min(sum(count or 0 for count in counts), MOST_TOKENS)


def _first(*counts: int | None) -> int | None:
    return next((count for count in counts if count is not None), None)


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)
