"""A verifier that waits for an answer, in every bridge: in memory, in a store, and after a restart."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, ClassVar

import pytest
from agents import Agent as SdkAgent
from agents import set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message
from langchain_core.messages import AIMessage, AnyMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from meruit.bridges import gate
from meruit.bridges.langgraph import GateState, gate_node
from meruit.bridges.openai_agents import run_with_gate
from meruit.bridges.pydantic_ai import gate_output
from meruit.errors import VerificationRejected, VerificationWaiting
from meruit.gate import Deferred, Gate, read_run, resume_run
from meruit.gate.verdict import Passed
from meruit.store.location import Location
from meruit.store.store import Store


class Refund(BaseModel):
    """Up to 10 passes at once; more needs an answer, and more than 90 two of them."""

    asked: ClassVar[list[Any]] = []
    amount: int

    def verify(self, answer: Any = None) -> int | Deferred:
        Refund.asked.append(answer)
        if self.amount > 10 and answer is None:
            return Deferred(f"may {self.amount} be paid back?")
        if self.amount > 90 and answer == "yes":
            return Deferred("and the second one?")
        if answer == "no":
            raise VerificationRejected("The operator refused.", code="refused")
        return self.amount


@pytest.fixture(autouse=True)
def _no_one_was_asked() -> None:
    set_tracing_disabled(True)
    Refund.asked.clear()


SCRIPT = (40, 5)
"""What every model proposes: the first needs an answer, the second none."""
# Any, here and below: settings of a gate.
Host = Callable[..., Coroutine[Any, Any, int]]


async def plain(script: tuple[int, ...] = SCRIPT, **settings: Any) -> int:
    turns = iter(script)

    async def propose() -> Refund:
        return Refund(amount=next(turns))

    result: int = await gate(propose, **settings)()
    return result


async def in_pydantic_ai(script: tuple[int, ...] = SCRIPT, run_id: str = "r", **settings: Any) -> int:
    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = sum(isinstance(one, ModelResponse) for one in messages)
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, {"amount": script[turn]}, f"c{turn}")])

    agent = Agent(FunctionModel(model), output_type=gate_output(Refund, **settings))
    result: int = (await agent.run("pay back A7", run_id=run_id)).output
    return result


async def in_openai_agents(script: tuple[int, ...] = SCRIPT, **settings: Any) -> int:
    model = ScriptedModel([[assistant_message(json.dumps({"amount": amount}))] for amount in script])
    agent = SdkAgent("a", model=model, output_type=Refund)
    result: int = (await run_with_gate(agent, "pay back A7", **settings)).output
    return result


HOSTS = [plain, in_pydantic_ai, in_openai_agents]


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.__name__)
@pytest.mark.parametrize("kept", [False, True])
def test_a_host_is_told_and_the_answer_is_judged(host: Host, store: Store, *, kept: bool) -> None:
    with pytest.raises(VerificationWaiting) as waits:
        asyncio.run(host(**({"store": store} if kept else {})))
    assert (waits.value.key, waits.value.note) == ("verify:1", "may 40 be paid back?")
    assert asyncio.run(waits.value.gate.resume("yes")) == Passed(40, 1)
    assert Refund.asked == [None, "yes"]


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.__name__)
def test_the_record_alone_is_enough_to_answer(host: Host, store: Store, tmp_path: Path) -> None:
    with pytest.raises(VerificationWaiting) as waits:
        asyncio.run(host(store=store))
    run_id = waits.value.run_id
    run = read_run(store, run_id)
    assert (run.status, run.waiting_for, run.note) == ("waiting", "verify:1", "may 40 be paid back?")
    # The host is gone; an operator answers by HTTP or the command line, and another process judges.
    elsewhere = Store.open(Location(tmp_path / "data"))
    try:
        resume_run(elsewhere, run_id, "yes")
        resume_run(elsewhere, run_id, "yes", key="verify:1")
        assert asyncio.run(Gate(Refund, store=elsewhere, run_id=run_id).resume()) == Passed(40, 1)
    finally:
        elsewhere.close()
    assert (read_run(store, run_id).status, read_run(store, run_id).result) == ("completed", 40)


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.__name__)
def test_a_host_may_wait_in_place_and_go_on_with_the_feedback(host: Host, store: Store) -> None:
    async def answer(_seconds: float) -> None:
        with store.database.reading() as connection:
            (run_id,) = [row[0] for row in connection.exec_driver_sql("SELECT id FROM agent_runs")]
        resume_run(store, run_id, "no")

    assert asyncio.run(host(store=store, wait_s=60, sleep=answer)) == 5
    assert Refund.asked == [None, "no", None]


@pytest.mark.parametrize("host", [in_pydantic_ai, in_openai_agents], ids=lambda host: host.__name__)
@pytest.mark.parametrize(("answer", "result"), [("yes", 40), ("no", 5)])
def test_a_host_that_was_killed_goes_on_with_the_answer(host: Host, store: Store, answer: str, result: int) -> None:
    with pytest.raises(VerificationWaiting):
        asyncio.run(host(store=store, run_id="r"))
    resume_run(store, "r", answer)
    assert asyncio.run(host(store=store, run_id="r")) == result
    assert Refund.asked[:2] == [None, answer]


# LangGraph waits by itself.


def graph_of(script: tuple[int, ...], **settings: Any) -> Any:
    def model(state: GateState) -> dict[str, list[AnyMessage]]:
        turn = sum(isinstance(one, AIMessage) for one in state["messages"])
        call = {"name": "agent_output", "args": {"amount": script[turn]}, "id": f"call_{turn}"}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    graph = StateGraph(GateState)
    graph.add_node("model", model)
    graph.add_node("gate", gate_node(Refund, back="model", **settings))
    graph.add_edge(START, "model")
    graph.add_edge("model", "gate")
    return graph.compile(checkpointer=InMemorySaver())


CONFIG = {"configurable": {"thread_id": "t"}}


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(("answer", "result", "used"), [("yes", 40, 0), ("no", 5, 1)])
def test_a_graph_is_interrupted_and_continues_with_the_answer(
    store: Store, answer: str, result: int, used: int, *, kept: bool
) -> None:
    graph = graph_of(SCRIPT, **({"store": store} if kept else {}))

    async def run() -> tuple[Any, Any]:
        stopped = await graph.ainvoke({"messages": [("user", "pay back A7")]}, CONFIG)
        return stopped, await graph.ainvoke(Command(resume=answer), CONFIG)

    stopped, ended = asyncio.run(run())
    (interrupted,) = stopped["__interrupt__"]
    assert (interrupted.value["key"], interrupted.value["note"]) == ("verify:1", "may 40 be paid back?")
    assert (ended["result"], ended["verification"]["state"]["attempts_used"]) == (result, used)


@pytest.mark.parametrize("kept", [False, True])
def test_a_graph_may_be_asked_twice_without_async(store: Store, *, kept: bool) -> None:
    graph = graph_of((99,), **({"store": store} if kept else {}))
    first = graph.invoke({"messages": [("user", "pay back A7")]}, CONFIG)
    second = graph.invoke(Command(resume="yes"), CONFIG)
    assert [one["__interrupt__"][0].value["key"] for one in (first, second)] == ["verify:1", "verify:2"]
    assert graph.invoke(Command(resume="fine"), CONFIG)["result"] == 99


def test_a_graph_takes_an_answer_from_the_record_for_its_own_question_only(store: Store) -> None:
    graph = graph_of((99,), store=store)
    (stopped,) = graph.invoke({"messages": [("user", "pay back A7")]}, CONFIG)["__interrupt__"]
    resume_run(store, stopped.value["run_id"], "yes")
    # What only wakes the graph is not the answer to the next question.
    (again,) = graph.invoke(Command(resume="wake up"), CONFIG)["__interrupt__"]
    assert again.value["key"] == "verify:2"
    assert graph.invoke(Command(resume="fine"), CONFIG)["result"] == 99
    assert Refund.asked == [None, "yes", "fine"]
