"""Usage blocks: one vocabulary for what every provider counts in its own way."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from agents.usage import Usage as AgentsUsage
from hypothesis import given
from hypothesis import strategies as st
from openai.types import CompletionUsage, CreateEmbeddingResponse
from openai.types.create_embedding_response import Usage as EmbeddingUsage
from openai.types.responses import ResponseUsage
from pydantic_ai.usage import RequestUsage, RunUsage

from meruit.errors import AuthorError, UnknownName
from meruit.model.chat import MOST_TOKENS
from meruit.model.usage import Tokens
from meruit.usage.providers.support.usage_blocks import NORMALISERS, last_tokens_of, tokens_of

Block = dict[str, Any]

CHAT = {
    "prompt_tokens": 1000,
    "completion_tokens": 300,
    "total_tokens": 1300,
    "prompt_tokens_details": {"cached_tokens": 600, "cache_write_tokens": 50},
    "completion_tokens_details": {"reasoning_tokens": 200},
}
RESPONSES = {
    "input_tokens": 1000,
    "output_tokens": 300,
    "total_tokens": 1300,
    "input_tokens_details": {"cached_tokens": 600, "cache_write_tokens": 50},
    "output_tokens_details": {"reasoning_tokens": 200},
}
ANTHROPIC = {
    "input_tokens": 350,
    "output_tokens": 300,
    "cache_read_input_tokens": 600,
    "cache_creation_input_tokens": 50,
    "cache_creation": {"ephemeral_5m_input_tokens": 40, "ephemeral_1h_input_tokens": 10},
    "server_tool_use": {"web_search_requests": 1},
    "service_tier": "standard",
}
ALL = Tokens(1000, 300, 1, 600, 50, 200)
counts = st.integers(0, 10**9)


@st.composite
def one_call(draw: st.DrawFn) -> Tokens:
    cached, written, fresh = draw(counts), draw(counts), draw(st.integers(1, 10**9))
    thoughts, spoken = draw(counts), draw(counts)
    return Tokens(cached + written + fresh, thoughts + spoken, 1, cached, written, thoughts)


def in_chat(one: Tokens) -> Block:
    return {
        "prompt_tokens": one.input,
        "completion_tokens": one.output,
        "total_tokens": one.total,
        "prompt_tokens_details": {"cached_tokens": one.cached, "cache_write_tokens": one.cache_write},
        "completion_tokens_details": {"reasoning_tokens": one.reasoning},
    }


def in_responses(one: Tokens) -> Block:
    return {
        "input_tokens": one.input,
        "output_tokens": one.output,
        "total_tokens": one.total,
        "input_tokens_details": {"cached_tokens": one.cached, "cache_write_tokens": one.cache_write},
        "output_tokens_details": {"reasoning_tokens": one.reasoning},
    }


def in_langfuse(one: Tokens) -> Block:
    return {
        "input": one.input - (one.cached or 0) - (one.cache_write or 0),
        "input_cached_tokens": one.cached,
        "input_cache_creation": one.cache_write,
        "output": one.output - (one.reasoning or 0),
        "output_reasoning_tokens": one.reasoning,
        "total": one.total,
    }


def in_otel(one: Tokens) -> Block:
    return {
        "gen_ai.usage.input_tokens": one.input,
        "gen_ai.usage.output_tokens": one.output,
        "gen_ai.usage.cache_read.input_tokens": one.cached,
        "gen_ai.usage.cache_creation.input_tokens": one.cache_write,
        "gen_ai.usage.reasoning.output_tokens": one.reasoning,
    }


def in_pydantic_ai(one: Tokens) -> RequestUsage:
    return RequestUsage(
        input_tokens=one.input,
        output_tokens=one.output,
        cache_read_tokens=one.cached or 0,
        cache_write_tokens=one.cache_write or 0,
        output_reasoning_tokens=one.reasoning or 0,
    )


@given(one_call())
def test_a_call_reads_the_same_in_every_vocabulary_that_can_say_all_of_it(one: Tokens) -> None:
    for written in (in_chat, in_responses, in_langfuse, in_otel, in_pydantic_ai):
        assert tokens_of(written(one)) == one, written.__name__


@given(one_call())
def test_what_a_vocabulary_does_not_say_is_unknown_and_the_sums_are_the_same(one: Tokens) -> None:
    fresh = one.input - (one.cached or 0) - (one.cache_write or 0)
    anthropic = {
        "input_tokens": fresh,
        "output_tokens": one.output,
        "cache_read_input_tokens": one.cached,
        "cache_creation_input_tokens": one.cache_write,
    }
    bedrock = {
        "inputTokens": fresh,
        "outputTokens": one.output,
        "totalTokens": fresh + one.output,
        "cacheReadInputTokens": one.cached,
        "cacheWriteInputTokens": one.cache_write,
    }
    gemini = {
        "promptTokenCount": one.input,
        "candidatesTokenCount": one.output - (one.reasoning or 0),
        "thoughtsTokenCount": one.reasoning,
        "cachedContentTokenCount": one.cached,
        "totalTokenCount": one.total,
    }
    without_thoughts = Tokens(one.input, one.output, 1, one.cached, one.cache_write)
    assert tokens_of(anthropic) == tokens_of(bedrock) == without_thoughts
    found = tokens_of(gemini)
    assert found == Tokens(one.input, one.output, 1, one.cached, None, one.reasoning)


@given(st.lists(one_call(), min_size=1, max_size=5))
def test_a_stream_says_what_its_last_block_says_however_often_it_repeats_itself(several: list[Tokens]) -> None:
    growing = [in_chat(one) for one in several]
    assert last_tokens_of([None, *growing, *growing[-1:], None]) == several[-1]


@given(
    st.sampled_from(sorted(NORMALISERS)),
    st.dictionaries(st.sampled_from(sorted({*CHAT, *RESPONSES, *ANTHROPIC, "input", "output", "inputTokens"})), counts),
)
def test_any_counts_make_tokens_or_nothing_and_only_authors_err(provider: str, block: Block) -> None:
    try:
        found = tokens_of(block, provider)
    except AuthorError:
        return
    assert found is None or found.input > 0 or found.requests == 0


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (CHAT, ALL),
        (RESPONSES, ALL),
        # Anthropic's input leaves out what was cached.
        (ANTHROPIC, Tokens(1000, 300, 1, 600, 50)),
        ({**ANTHROPIC, "cache_creation_input_tokens": None}, Tokens(1000, 300, 1, 600, 50)),
        ({"input_tokens": 0, "output_tokens": 3, "cache_read_input_tokens": 9}, Tokens(9, 3, 1, 9)),
        ({"input_tokens": 12, "output_tokens": 3}, Tokens(12, 3, 1)),
        # Embeddings have no output, and name none.
        ({"prompt_tokens": 8, "total_tokens": 8}, Tokens(8, 0, 1)),
        # Gemini's thoughts are apart, but for hosts whose total shows that they are not.
        (
            {"promptTokenCount": 10, "candidatesTokenCount": 5, "thoughtsTokenCount": 7, "totalTokenCount": 22},
            Tokens(10, 12, 1, None, None, 7),
        ),
        (
            {"promptTokenCount": 10, "candidatesTokenCount": 12, "thoughtsTokenCount": 7, "totalTokenCount": 22},
            Tokens(10, 12, 1, None, None, 7),
        ),
        ({"promptTokenCount": 10, "thoughtsTokenCount": 7, "totalTokenCount": 17}, Tokens(10, 7, 1, None, None, 7)),
        ({"prompt_token_count": 10, "total_token_count": 10}, Tokens(10, 0, 1)),
        (
            {
                "prompt_token_count": 10,
                "tool_use_prompt_token_count": 4,
                "candidates_token_count": 5,
                "total_token_count": 19,
            },
            Tokens(14, 5, 1),
        ),
        # Reasoning is a part of the output at OpenAI, and beside it at some of OpenRouter's hosts.
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "total_tokens": 115,
                "completion_tokens_details": {"reasoning_tokens": 100},
            },
            Tokens(10, 105, 1, None, None, 100),
        ),
        (
            {"prompt_tokens": 10, "completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 100}},
            Tokens(10, 105, 1, None, None, 100),
        ),
        # LiteLLM: the words of OpenAI, with Anthropic's caches, which its prompt includes.
        (
            {
                "prompt_tokens": 1000,
                "completion_tokens": 300,
                "total_tokens": 1300,
                "cache_read_input_tokens": 600,
                "cache_creation_input_tokens": 50,
            },
            Tokens(1000, 300, 1, 600, 50),
        ),
        # A host that speaks as OpenAI does and leaves out what was cached: more than all cannot be.
        (
            {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 90}},
            Tokens(100, 5, 1, 90),
        ),
        # Bedrock's input leaves out what was cached.
        (
            {"inputTokens": 350, "outputTokens": 300, "cacheReadInputTokens": 600, "cacheWriteInputTokens": 50},
            Tokens(1000, 300, 1, 600, 50),
        ),
        # Langfuse's does too, unless its total says otherwise.
        ({"input": 350, "output": 300, "cache_read_input_tokens": 650, "total": 1300}, Tokens(1000, 300, 1, 650)),
        ({"input": 1000, "output": 300, "input_cached_tokens": 650, "total": 1300}, Tokens(1000, 300, 1, 650)),
        # Spans of older conventions.
        ({"gen_ai.usage.prompt_tokens": 10, "gen_ai.usage.completion_tokens": 5}, Tokens(10, 5, 1)),
        ({"gen_ai.usage.input_tokens": 10}, Tokens(10, 0, 1)),
        # LangChain.
        (
            {
                "input_tokens": 1000,
                "output_tokens": 300,
                "total_tokens": 1300,
                "input_token_details": {"cache_read": 600, "cache_creation": 50},
                "output_token_details": {"reasoning": 200},
            },
            ALL,
        ),
    ],
)
def test_each_providers_habit_is_known(block: Block, expected: Tokens) -> None:
    assert tokens_of(block) == expected
    assert tokens_of(SimpleNamespace(usage=block)) == tokens_of({"id": "x", "usage": block}) == expected


@pytest.mark.parametrize(
    "block",
    [
        None,
        {},
        {"usage": None},
        {"usage": None, "output": [{"type": "message"}]},
        {"id": "gen-1", "choices": []},
        {"input": "a question", "output": "an answer"},
        {"message": "overloaded"},
        {"output_tokens": 5},
        {"prompt_tokens": 5},
        {"promptTokenCount": 5},
        {"thoughtsTokenCount": 5, "prompt_token_count": None},
        {"inputTokens": 5},
        {"input": 5, "total": 5},
        {"gen_ai.usage.output_tokens": 5},
        SimpleNamespace(),
        RequestUsage(),
        RunUsage(requests=2),
        RunUsage(requests=2, input_tokens=5, output_tokens=5, unmeasured_requests=1),
        # Hosts that do not count say 0: no model answers an empty input.
        {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        {"prompt_tokens": 0, "completion_tokens": 57, "total_tokens": 57},
        AgentsUsage(requests=1),
    ],
)
def test_what_is_not_said_is_none_and_never_zero(block: object) -> None:
    assert tokens_of(block) is None
    assert last_tokens_of([block, None]) is None


def test_a_run_without_a_request_used_nothing() -> None:
    assert tokens_of(RunUsage()) == Tokens(0, 0, 0, 0, 0, 0)
    assert tokens_of(AgentsUsage()) == Tokens(0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("wrong", [-1, True, 1.0, float("nan"), "12", MOST_TOKENS + 1, [1], b"1"])
@pytest.mark.parametrize(
    "place",
    [
        ("prompt_tokens",),
        ("completion_tokens",),
        ("total_tokens",),
        ("prompt_tokens_details", "cached_tokens"),
        ("completion_tokens_details", "reasoning_tokens"),
    ],
)
def test_a_value_that_is_not_a_count_is_refused_by_name(wrong: object, place: tuple[str, ...]) -> None:
    block: Block = {**CHAT, place[0]: wrong if len(place) == 1 else {place[1]: wrong}}
    with pytest.raises(AuthorError, match=rf"^{'.'.join(place)} .*9,007,199,254,740,992"):
        tokens_of(block)


@pytest.mark.parametrize("wrong", ["usage", 5, True, [CHAT], (1, 2)])
def test_a_type_that_cannot_hold_counts_is_refused(wrong: object) -> None:
    with pytest.raises(AuthorError, match=type(wrong).__name__):
        tokens_of(wrong)
    with pytest.raises(AuthorError, match=f"prompt_tokens_details.*{type(wrong).__name__}"):
        tokens_of({**CHAT, "prompt_tokens_details": wrong})


def test_an_unknown_provider_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"'anthropc'.*'anthropic'"):
        tokens_of(ANTHROPIC, "anthropc")
    with pytest.raises(UnknownName):
        tokens_of(None, "anthropc")


def test_objects_of_sdks_are_read_by_their_attributes() -> None:
    assert tokens_of(CompletionUsage.model_validate(CHAT)) == ALL
    assert tokens_of(ResponseUsage.model_validate(RESPONSES)) == ALL
    embedding = CreateEmbeddingResponse(
        data=[], model="m", object="list", usage=EmbeddingUsage(prompt_tokens=8, total_tokens=8)
    )
    assert tokens_of(embedding) == Tokens(8, 0, 1)
    agents = AgentsUsage(
        requests=3,
        input_tokens=1000,
        output_tokens=300,
        total_tokens=1300,
        input_tokens_details=ResponseUsage.model_validate(RESPONSES).input_tokens_details,
        output_tokens_details=ResponseUsage.model_validate(RESPONSES).output_tokens_details,
    )
    assert tokens_of(agents) == Tokens(1000, 300, 3, 600, 50, 200)
    assert tokens_of(RunUsage(requests=3, input_tokens=1000, output_tokens=300)) == Tokens(1000, 300, 3, 0, 0, 0)


def test_objects_of_any_make_are_read() -> None:
    @dataclass(slots=True)
    class Details:
        cached_tokens: int

    class Counted:
        @property
        def prompt_tokens(self) -> int:
            return 10

        completion_tokens = 5

        @property
        def prompt_tokens_details(self) -> Details:
            return Details(4)

        def usage(self) -> None:
            """A method is no block."""

    assert tokens_of(Counted()) == Tokens(10, 5, 1, 4)


def test_events_of_streams_are_put_together() -> None:
    began = {"type": "message_start", "message": {"usage": {**ANTHROPIC, "output_tokens": 1}}}
    ended = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 300, "input_tokens": None}}
    assert last_tokens_of([began, {"type": "content_block_delta"}, ended, ended]) == Tokens(1000, 300, 1, 600, 50)
    completed = {"type": "response.completed", "response": {"output": [], "usage": RESPONSES}}
    assert last_tokens_of([{"type": "response.created", "response": {"usage": None}}, completed]) == ALL
    broken_off: list[Block] = [{"choices": [{}], "usage": None}] * 3
    assert last_tokens_of(broken_off) is None
    assert last_tokens_of([]) is None


def test_a_block_that_is_wrapped_without_end_is_none() -> None:
    endless: Block = {}
    endless["usage"] = endless
    assert tokens_of(endless) is None


def test_a_provider_that_is_named_decides() -> None:
    plain = {"input_tokens": 350, "output_tokens": 300, "cache_read_input_tokens": 650}
    assert tokens_of(plain, "anthropic") == Tokens(1000, 300, 1, 650)
    assert tokens_of(plain, "openai") == Tokens(350, 300, 1)
