"""Whoever owns the loop, the gate says the same: every bridge ends a run as the bare gate does."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from agents import Agent as SdkAgent
from agents import set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AnyMessage
from langgraph.graph import START, StateGraph
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import UsageLimits
from tests.bridges.outputs import BROKEN, AgentOutput, FinalResult, at_once

from meruit.bridges import gate
from meruit.bridges.langgraph import GateState, gate_node
from meruit.bridges.openai_agents import run_with_gate
from meruit.bridges.pydantic_ai import gate_output
from meruit.errors import CouldNotVerify, VerificationExhausted
from meruit.gate.gate import Gate
from meruit.gate.verdict import Passed

LONGEST = 60
"""A script goes on with its last line; no gate lets it go on for so long."""

# Any, here and below: a candidate may be whatever a model says.
Script = Sequence[Any]
Host = Callable[[Script, int], Coroutine[Any, Any, FinalResult]]


def line(script: Script, turn: int) -> dict[str, Any]:
    assert turn < LONGEST
    return {"n": script[min(turn, len(script) - 1)]}


async def bare(script: Script, budget: int) -> FinalResult:
    held = Gate(AgentOutput, max_attempts=budget, sleep=at_once)
    for turn in range(LONGEST):
        answer = await held.submit(line(script, turn))
        if isinstance(answer, Passed):
            result: FinalResult = answer.result
            return result
    raise AssertionError("the gate never ended it")


async def plain(script: Script, budget: int) -> FinalResult:
    turns = iter(range(LONGEST))

    async def propose() -> Any:
        return line(script, next(turns))

    result: FinalResult = await gate(propose, AgentOutput, max_attempts=budget, sleep=at_once)()
    return result


async def in_pydantic_ai(script: Script, budget: int) -> FinalResult:
    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = sum(isinstance(one, ModelResponse) for one in messages)
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, line(script, turn))])

    agent = Agent(FunctionModel(model), output_type=gate_output(AgentOutput, max_attempts=budget, sleep=at_once))
    result: FinalResult = (await agent.run("go", usage_limits=UsageLimits(request_limit=LONGEST))).output
    return result


async def in_openai_agents(script: Script, budget: int) -> FinalResult:
    model = ScriptedModel([[assistant_message(json.dumps(line(script, turn)))] for turn in range(LONGEST)])
    agent = SdkAgent("a", model=model, output_type=AgentOutput)
    result: FinalResult = (await run_with_gate(agent, "go", max_attempts=budget, sleep=at_once)).output
    return result


async def in_langgraph(script: Script, budget: int) -> FinalResult:
    def model(state: GateState) -> dict[str, list[AnyMessage]]:
        turn = sum(isinstance(one, AIMessage) for one in state["messages"])
        call = {"name": "agent_output", "args": line(script, turn), "id": f"call_{turn}"}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    graph = StateGraph(GateState)
    graph.add_node("model", model)
    graph.add_node("gate", gate_node(AgentOutput, back="model", max_attempts=budget, sleep=at_once))
    graph.add_edge(START, "model")
    graph.add_edge("model", "gate")
    given: Any = {"messages": [("user", "go")]}
    ended = await graph.compile().ainvoke(given, {"recursion_limit": 3 * LONGEST})
    result: FinalResult = ended["result"]
    return result


def ending(host: Host, script: Script, budget: int) -> tuple[Any, ...]:
    try:
        passed = asyncio.run(host(script, budget))
    except VerificationExhausted as over:
        return over.reason, over.attempts_used, over.code
    except CouldNotVerify as broken:
        return "broken", str(broken)
    return "passed", passed


@pytest.fixture(autouse=True, scope="module")
def _untraced() -> None:
    set_tracing_disabled(True)


scripts = st.lists(st.one_of(st.integers(0, 3), st.sampled_from(["x", BROKEN])), min_size=1, max_size=8)


@pytest.mark.parametrize(
    "host", [plain, in_pydantic_ai, in_openai_agents, in_langgraph], ids=lambda host: host.__name__
)
@settings(max_examples=15)
@given(script=scripts, budget=st.integers(1, 4))
def test_a_run_ends_as_it_would_at_the_bare_gate(host: Host, script: Script, budget: int) -> None:
    assert ending(host, script, budget) == ending(bare, script, budget)


@pytest.mark.parametrize(
    "host", [plain, in_pydantic_ai, in_openai_agents, in_langgraph], ids=lambda host: host.__name__
)
@pytest.mark.parametrize(
    ("script", "budget", "expected"),
    [
        ([1, 2, 3], 3, ("passed", FinalResult(n=3, attempt=3))),
        ([1, 2, 3], 2, ("attempts", 2, "too_small")),
        ([1], 1, ("attempts", 1, "too_small")),
        ([1, 2, 1, 2], 4, ("attempts", 4, "too_small")),
        ([1], 5, ("no_progress", 1, "too_small")),
        (["x"], 5, ("schema_errors", 0, None)),
        (["x", 1, "x", "x", 3], 2, ("passed", FinalResult(n=3, attempt=2))),
        ([1, BROKEN], 5, ("broken", "OSError: verifier down")),
    ],
)
def test_the_cases_a_person_would_argue_about(
    host: Host, script: Script, budget: int, expected: tuple[Any, ...]
) -> None:
    assert ending(host, script, budget) == expected
