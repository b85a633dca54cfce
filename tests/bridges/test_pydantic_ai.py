"""pydantic-ai: what is its own about being behind the gate."""

import asyncio
import gc
import time
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, RunContext
from pydantic_ai.exceptions import UnexpectedModelBehavior, UsageLimitExceeded
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import UsageLimits
from tests.bridges.outputs import AgentOutput, FinalResult

from meruit.bridges import pydantic_ai as bridge
from meruit.bridges.pydantic_ai import gate_output, gate_validator, most_retries
from meruit.errors import AgentError, VerificationExhausted, VerificationRejected
from meruit.gate.context import AgentContext
from meruit.gate.gate import Gate
from meruit.gate.limits import GateLimits
from meruit.gate.run import RunState
from meruit.gate.store import read as agent_reading
from meruit.store.store import Store

Says = Callable[[int], dict[str, Any]]


def ran(agent: Agent[Any, Any], **named: Any) -> Any:
    """The run's result; not with run_sync, which leaves an event loop open."""
    return asyncio.run(agent.run("go", **named))


def turns(messages: list[ModelMessage]) -> int:
    return sum(isinstance(one, ModelResponse) for one in messages)


def scripted(says: Says, call_id: str = "call") -> FunctionModel:
    """Hands in what is said for the turn, under the same id each time: providers may repeat theirs."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, says(turns(messages)), call_id)])

    return FunctionModel(answer)


def more(turn: int) -> dict[str, Any]:
    return {"n": turn + 1}


def test_the_rejection_is_the_reply_to_the_models_call() -> None:
    result = ran(Agent(scripted(more), output_type=gate_output(AgentOutput)))
    assert result.output == FinalResult(n=3, attempt=3)
    replies = [
        part
        for message in result.all_messages()
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]
    assert [part.tool_name for part in replies] == ["agent_output"] * 3
    assert str(replies[0].content).startswith('<verification_rejected code="too_small" retryable="true">')


def test_the_model_is_asked_for_the_output_model_itself() -> None:
    model = TestModel(custom_output_args={"n": 3})
    ran(Agent(model, output_type=gate_output(AgentOutput)))
    assert model.last_model_request_parameters is not None
    (tool,) = model.last_model_request_parameters.output_tools
    assert tool.parameters_json_schema["required"] == ["n"]


def test_plain_text_does_not_get_past_the_gate() -> None:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if not turns(messages):
            return ModelResponse(parts=[TextPart('{"n": 1}')])
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, {"n": 3})])

    result = ran(Agent(FunctionModel(answer), output_type=gate_output(AgentOutput)))
    assert result.output == FinalResult(n=3, attempt=1)


def test_runs_at_the_same_time_do_not_share_a_budget() -> None:
    agent = Agent(scripted(more), output_type=gate_output(AgentOutput, max_attempts=3))

    async def main() -> list[FinalResult]:
        return [one.output for one in await asyncio.gather(*(agent.run("go") for _ in range(5)))]

    assert asyncio.run(main()) == [FinalResult(n=3, attempt=3)] * 5


def test_a_gate_is_gone_when_its_run_is(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[weakref.ref[Gate]] = []

    class Seen(Gate):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            seen.append(weakref.ref(self))

    # What earlier tests left behind need not be walked over again.
    gc.freeze()
    monkeypatch.setattr(bridge, "Gate", Seen)
    agent = Agent(scripted(more), output_type=gate_output(AgentOutput))
    ran(agent)
    with suppress(UsageLimitExceeded):
        ran(agent, usage_limits=UsageLimits(request_limit=2))

    def kept() -> int:
        gc.collect()
        return sum(one() is not None for one in seen)

    # Threads of the framework let go of what they were given a moment after its run.
    for _ in range(500):
        if kept() == 1:
            break
        time.sleep(0.01)
    assert (len(seen), kept()) == (3, 1), "the one that is left was made where the gate was written"


def test_a_verifier_is_given_the_runs_deps_and_query() -> None:
    class Output(BaseModel):
        n: int

        def verify(self, deps: str, agent_ctx: AgentContext, submission_id: str) -> list[str]:
            return [deps, agent_ctx.query, agent_ctx.agent, submission_id]

    agent = Agent(scripted(more), output_type=gate_output(Output), deps_type=str, name="ada")
    assert ran(agent, deps="mine", run_id="r").output == ["mine", "go", "ada", "r:1:call"]


def test_an_output_that_is_not_a_model_is_verified_by_a_function() -> None:
    def enough(numbers: list[int]) -> int:
        if len(numbers) < 2:
            raise VerificationRejected("more")
        return sum(numbers)

    agent = Agent(
        scripted(lambda turn: {"output": [1] * (turn + 1)}), output_type=gate_output(list[int], verify=enough)
    )
    assert ran(agent).output == 2


def test_the_agents_own_budget_is_never_the_smaller_one() -> None:
    """Each meter on its own bound: as many as there can be before the gate ends the run itself."""
    limits = GateLimits(max_attempts=3, no_progress=2, schema_errors=2)
    assert most_retries(limits) == 4 + 5
    assert gate_output(AgentOutput, max_attempts=3, no_progress_limit=2, schema_error_limit=2).max_retries == 9
    # A misfit before each of the rejections, each rejection repeated once, as late as can be.
    script = ["x", 1, "x", 1, "x", 2, "x", 2, "x", 0]
    agent = Agent(
        scripted(lambda turn: {"n": script[turn]}),
        output_type=gate_output(AgentOutput, max_attempts=3, no_progress_limit=2, schema_error_limit=2),
        retries=0,
    )
    with pytest.raises(VerificationExhausted, match=r"attempts, 3 counted"):
        ran(agent)


def test_a_run_that_is_taken_up_again_goes_on_counting_in_the_store(store: Store) -> None:
    verified: list[int] = []

    class Output(BaseModel):
        n: int

        def verify(self) -> None:
            verified.append(self.n)
            raise VerificationRejected("never")

    output = gate_output(Output, max_attempts=3, store=store)
    agent = Agent(scripted(more), output_type=output, name="ada")
    with pytest.raises(UsageLimitExceeded):
        ran(agent, run_id="r", usage_limits=UsageLimits(request_limit=2))
    # Another process has the same answers of the model from its host's journal.
    again = Agent(scripted(more), output_type=gate_output(Output, max_attempts=3, store=store), name="ada")
    with pytest.raises(VerificationExhausted, match="3 counted"):
        ran(again, run_id="r")
    assert verified == [1, 2, 3]
    with store.database.reading() as connection:
        run = agent_reading.find(connection, "default", "r")
        submitted = agent_reading.submissions(connection, "default", "r")
    assert (run.agent, run.status, run.ending) == ("ada", RunState.FAILED, "attempts")
    assert [one.submission_id for one in submitted] == ["1:call", "2:call", "3:call"]


def streamed(script: list[int]) -> FunctionModel:
    async def answer(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[dict[int, DeltaToolCall]]:
        text = f'{{"n": {script[turns(messages)]}}}'
        yield {0: DeltaToolCall(info.output_tools[0].name, text[:4], tool_call_id="call")}
        yield {0: DeltaToolCall(json_args=text[4:])}

    return FunctionModel(stream_function=answer)


def counting(asked: list[int]) -> type[BaseModel]:
    class Output(BaseModel):
        n: int

        def verify(self) -> int:
            asked.append(self.n)
            if self.n < 3:
                raise VerificationRejected("too small")
            return self.n

    return Output


def test_a_streamed_run_is_verified_once_an_output_and_never_by_halves() -> None:
    asked: list[int] = []
    agent = Agent(streamed([1, 3]), output_type=gate_output(counting(asked)))

    async def watch(_context: RunContext[Any], events: Any) -> None:
        async for _ in events:
            pass

    assert asyncio.run(agent.run("go", event_stream_handler=watch)).output == 3
    assert asked == [1, 3]


def test_run_stream_gives_what_passed_and_nothing_that_did_not() -> None:
    async def main(script: list[int], asked: list[int]) -> Any:
        agent = Agent(streamed(script), output_type=gate_output(counting(asked)))
        async with agent.run_stream("go") as result:
            seen = [one async for one in result.stream_output(debounce_by=None)]
            return [seen[-1], await result.get_output()]

    passed: list[int] = []
    assert asyncio.run(main([3], passed)) == [3, 3]
    assert passed == [3]
    with pytest.raises(UnexpectedModelBehavior):
        asyncio.run(main([1], []))


async def long_enough(text: str) -> int:
    if len(text) < 3:
        raise VerificationRejected(f"{text} is too short", code="short")
    return len(text)


def text_agent(**more: Any) -> Agent[object, Any]:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart("x" * (turns(messages) + 1))])

    return Agent(FunctionModel(answer), **more)


def test_a_validator_holds_plain_text_to_a_verifier() -> None:
    agent = text_agent(retries={"output": 6})
    agent.output_validator(gate_validator(str, verify=long_enough, max_attempts=3))
    assert ran(agent).output == 3
    strict = text_agent(retries={"output": 3})
    strict.output_validator(gate_validator(str, verify=long_enough, max_attempts=2))
    with pytest.raises(VerificationExhausted):
        ran(strict)


def test_a_validator_refuses_an_agent_that_would_give_up_before_it() -> None:
    agent = text_agent()
    agent.output_validator(gate_validator(str, verify=long_enough, max_attempts=3))
    with pytest.raises(AgentError, match=r'\b1\b.*retries=\{"output": 6\}'):
        ran(agent)


def test_a_validator_skips_partial_outputs_and_refuses_run_stream() -> None:
    async def answer(_messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
        for part in ("long ", "enough"):
            yield part

    halves: list[Any] = []

    async def main() -> None:
        agent: Agent[object, Any] = Agent(FunctionModel(stream_function=answer), retries=12)
        agent.output_validator(gate_validator(str, verify=long_enough))
        async with agent.run_stream("go") as result:
            async for one in result.stream_output(debounce_by=None):
                halves.append(one)  # noqa: PERF401 - what came before the refusal counts

    with pytest.raises(AgentError, match="run_stream"):
        asyncio.run(main())
    assert halves[0] == "long "


class Tree(BaseModel):
    under: "list[Tree]"

    def verify(self) -> int:
        return 1


def test_wrong_settings_are_refused_at_the_definition() -> None:
    with pytest.raises(AgentError, match="BaseModel"):
        gate_output(BaseModel)
    with pytest.raises(AgentError, match="run_id"):
        gate_output(AgentOutput, run_id="r")
    with pytest.raises(AgentError, match="Tree"):
        gate_output(Tree)


# Several outputs in one turn.


def twice(first: int, second: int, ids: tuple[str, str] = ("one", "two")) -> FunctionModel:
    """Submits two outputs in its first turn, and a good one after that."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        name = info.output_tools[0].name
        said = [(first, ids[0]), (second, ids[1])] if not turns(messages) else [(3, "three")]
        return ModelResponse(parts=[ToolCallPart(name, {"n": n}, call_id) for n, call_id in said])

    return FunctionModel(answer)


@pytest.mark.parametrize("strategy", ["early", "graceful", "exhaustive"])
@pytest.mark.parametrize("ids", [("one", "two"), ("same", "same")])
def test_only_the_first_output_of_a_turn_is_judged(strategy: Any, ids: tuple[str, str], store: Store) -> None:
    asked: list[int] = []
    agent = Agent(twice(1, 3, ids), output_type=gate_output(counting(asked), store=store), end_strategy=strategy)
    result = ran(agent, run_id="r")
    assert asked == [1, 3]
    assert result.usage.requests == 2
    replies = [
        str(part.content)
        for message in result.all_messages()
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]
    assert any("Only the first agent_output call of a turn counts" in reply for reply in replies)
    with store.database.reading() as connection:
        run = agent_reading.find(connection, "default", "r")
    assert (run.verification.attempts_used, len(run.verification.submission_ids)) == (1, 2)


@pytest.mark.parametrize("strategy", ["early", "graceful", "exhaustive"])
def test_a_first_output_that_passes_ends_the_run(strategy: Any) -> None:
    asked: list[int] = []
    agent = Agent(twice(3, 1), output_type=gate_output(counting(asked)), end_strategy=strategy)
    assert (ran(agent).output, asked) == (3, [3])


def test_ignored_outputs_use_up_neither_attempts_nor_retries() -> None:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        name, turn = info.output_tools[0].name, turns(messages)
        said = [turn, *range(50, 90)]
        return ModelResponse(parts=[ToolCallPart(name, {"n": n}, f"{turn}-{n}") for n in said])

    agent = Agent(FunctionModel(answer), output_type=gate_output(AgentOutput, max_attempts=4))
    assert ran(agent).output == FinalResult(n=3, attempt=4)
