"""What a store keeps of a run in another framework: its query, its tokens and its turns."""

import asyncio
from typing import Any

import pytest
from agents import Agent as SdkAgent
from agents import set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message
from langchain_core.messages import AIMessage, AnyMessage
from langgraph.graph import START, StateGraph
from pydantic_ai import Agent, ImageUrl
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.bridges.outputs import AgentOutput

from meruit.bridges import gate
from meruit.bridges.langgraph import GateState, gate_node
from meruit.bridges.openai_agents import run_with_gate
from meruit.bridges.pydantic_ai import gate_output
from meruit.gate.run import AgentRun
from meruit.gate.store import read as agent_reading
from meruit.store.store import Store


@pytest.fixture(autouse=True, scope="module")
def _untraced() -> None:
    set_tracing_disabled(True)


def only_run(store: Store) -> AgentRun:
    with store.database.reading() as connection:
        (run,) = agent_reading.page(connection, "default")
        assert len(agent_reading.submissions(connection, "default", run.id)) == 3
    return run


@pytest.mark.parametrize("prompt", ["count to three", ["count", ImageUrl("https://x.invalid/a.png"), "to three"]])
def test_pydantic_ai(store: Store, prompt: Any) -> None:
    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = sum(isinstance(one, ModelResponse) for one in messages)
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, {"n": turn + 1}, f"c{turn}")])

    agent = Agent(FunctionModel(model), output_type=gate_output(AgentOutput, store=store), name="counter")
    result = asyncio.run(agent.run(prompt))
    run = only_run(store)
    assert (run.agent, run.request.query.replace("\n", " "), run.turn) == ("counter", "count to three", 3)
    used = (run.usage.input_tokens, run.usage.output_tokens, run.usage.requests)
    assert used == (result.usage.input_tokens, result.usage.output_tokens, 3)
    assert run.usage.input_tokens > 0


PARTS = [{"type": "input_text", "text": "count"}, {"type": "input_image"}, {"type": "input_text", "text": "to three"}]


@pytest.mark.parametrize(
    ("given", "query"),
    [
        ("count to three", "count to three"),
        ([{"role": "user", "content": "hello"}, {"role": "user", "content": "count to three"}], "count to three"),
        ([{"role": "user", "content": PARTS}], "count\nto three"),
        ([{"role": "assistant", "content": "hello"}], ""),
    ],
)
def test_openai_agents(store: Store, given: Any, query: str) -> None:
    model = ScriptedModel([[assistant_message(f'{{"n": {n}}}')] for n in (1, 2, 3)])
    asked = given if isinstance(given, str) else list(given)
    done = asyncio.run(run_with_gate(SdkAgent("counter", model=model, output_type=AgentOutput), asked, store=store))
    run = only_run(store)
    assert (run.agent, run.request.query) == ("counter", query)
    assert run.usage.requests == run.turn == done.usage.requests
    assert (run.usage.input_tokens, run.usage.output_tokens) == (done.usage.input_tokens, done.usage.output_tokens)


def test_langgraph(store: Store) -> None:
    def model(state: GateState) -> dict[str, list[AnyMessage]]:
        turn = sum(isinstance(one, AIMessage) for one in state["messages"])
        call = {"name": "agent_output", "args": {"n": turn + 1}, "id": f"call_{turn}"}
        counts: Any = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}
        # One of them does not report its tokens.
        return {"messages": [AIMessage("", tool_calls=[call], usage_metadata=counts if turn else None)]}

    graph = StateGraph(GateState)
    graph.add_node("model", model)
    graph.add_node("gate", gate_node(AgentOutput, back="model", store=store))
    graph.add_edge(START, "model")
    graph.add_edge("model", "gate")
    given: Any = {"messages": [("user", "count to three")]}
    asyncio.run(graph.compile().ainvoke(given))
    run = only_run(store)
    assert (run.agent, run.request.query, run.turn) == ("langgraph", "count to three", 3)
    assert (run.usage.input_tokens, run.usage.output_tokens, run.usage.requests) == (20, 4, 3)


def test_a_function(store: Store) -> None:
    numbers = iter((1, 2, 3))

    def count(text: str) -> AgentOutput:
        return AgentOutput(n=next(numbers))

    assert gate(count, store=store)("count to three").n == 3
    run = only_run(store)
    assert (run.agent, run.request.query) == ("count", "count to three")
