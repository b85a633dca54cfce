"""LangGraph: what is its own about being behind the gate; the count lives in its checkpoints."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from pydantic import BaseModel
from tests.bridges.outputs import AgentOutput, FinalResult

from meruit.bridges.langchain_messages import ONE_ONLY
from meruit.bridges.langgraph import GateState, gate_node
from meruit.errors import AgentError, CouldNotVerify, VerificationExhausted, VerificationRejected
from meruit.gate.run import RunState
from meruit.gate.store import read as agent_reading
from meruit.store.store import Store

# Any, here and below: LangGraph's states are mappings, and its graphs generic over four of them.
Graph = CompiledStateGraph[Any, Any, Any, Any]
Says = Callable[[int], AIMessage]
GO: Any = {"messages": [("user", "go")]}
RESUME: Any = None


def submits(*several: Any, name: str = "agent_output") -> AIMessage:
    calls = [{"name": name, "args": {"n": n}, "id": f"call_{n}_{place}"} for place, n in enumerate(several)]
    return AIMessage("", tool_calls=calls)


def more(turn: int) -> AIMessage:
    return submits(turn + 1)


def built(
    says: Says = more, state: Any = GateState, saver: Any = None, output: Any = AgentOutput, **gate: Any
) -> Graph:
    def model(now: Any) -> dict[str, list[AnyMessage]]:
        return {"messages": [says(sum(isinstance(one, AIMessage) for one in now["messages"]))]}

    # Any: the node's input is whatever state a test has.
    node: Any = model
    graph = StateGraph(state)
    graph.add_node("model", node)
    graph.add_node("gate", gate_node(output, back="model", **gate), destinations=("model", END))
    graph.add_edge(START, "model")
    graph.add_edge("model", "gate")
    if "exhausted" in gate:
        graph.add_node(gate["exhausted"], lambda now: {"result": "nothing"})
    return graph.compile(checkpointer=saver)


def thread(name: str = "t") -> Any:
    return {"configurable": {"thread_id": name}}


def test_a_graph_goes_back_with_feedback_until_a_pass() -> None:
    ended = built().invoke(GO)
    assert ended["result"] == FinalResult(n=3, attempt=3)
    replies = [one for one in ended["messages"] if isinstance(one, ToolMessage)]
    assert [one.tool_call_id for one in replies] == ["call_1_0", "call_2_0"]
    assert "2 is too small" in replies[1].text
    json.dumps(ended["verification"])
    assert ended["verification"]["state"]["attempts_used"] == 2


def test_it_may_be_invoked_from_inside_a_running_loop() -> None:
    async def main() -> Any:
        return built().invoke(GO)["result"], (await built().ainvoke(GO))["result"]

    assert asyncio.run(main()) == (FinalResult(n=3, attempt=3),) * 2


def test_an_output_in_plain_text_is_held_to_the_same() -> None:
    ended = built(lambda turn: AIMessage(["done", '{"n": 1}', '{"n": 3}'][turn]), max_attempts=2).invoke(GO)
    assert ended["result"] == FinalResult(n=3, attempt=2)
    told = [one.text for one in ended["messages"] if isinstance(one, HumanMessage)]
    assert told[1].startswith("<output_invalid")
    assert told[2].startswith("<verification_rejected")


def test_text_may_be_what_is_wanted() -> None:
    def short(text: str) -> int:
        if len(text) > 5:
            raise VerificationRejected("too long")
        return len(text)

    texts = ["much too long", "short"]
    assert built(lambda turn: AIMessage(texts[turn]), output=str, verify=short).invoke(GO)["result"] == 5


def test_the_tool_may_have_the_output_models_name() -> None:
    assert built(lambda turn: submits(3, name="AgentOutput")).invoke(GO)["result"].n == 3


def test_every_call_is_answered_and_only_the_first_counts() -> None:
    ended = built(lambda turn: submits(3) if turn else submits(1, 3)).invoke(GO)
    assert ended["result"] == FinalResult(n=3, attempt=2)
    replies = {one.tool_call_id: one.text for one in ended["messages"] if isinstance(one, ToolMessage)}
    assert "1 is too small" in replies["call_1_0"]
    assert replies["call_3_1"] == ONE_ONLY


def test_arguments_that_are_no_json_cost_no_attempt() -> None:
    broken = {"name": "agent_output", "args": '{"n": ', "id": "call_x", "error": "no JSON"}
    says = [AIMessage("", invalid_tool_calls=[broken]), submits(3)]
    ended = built(lambda turn: says[turn], max_attempts=1).invoke(GO)
    assert ended["result"].attempt == 1
    assert [one.tool_call_id for one in ended["messages"] if isinstance(one, ToolMessage)] == ["call_x"]


def test_the_count_goes_on_from_a_checkpoint_in_another_process() -> None:
    saver = InMemorySaver()
    first = built(saver=saver, max_attempts=3)
    first.invoke(GO, thread(), interrupt_after=["gate"])
    # Nothing of the first graph is used any more but what its checkpointer kept.
    ended = built(saver=saver, max_attempts=3).invoke(RESUME, thread())
    assert ended["result"] == FinalResult(n=3, attempt=3)


def test_a_gate_that_is_visited_again_from_the_same_checkpoint_counts_once() -> None:
    verified: list[int] = []

    class Output(BaseModel):
        n: int

        def verify(self, attempt: int) -> int:
            verified.append(self.n)
            if self.n < 3:
                raise VerificationRejected("too small")
            return attempt

    saver = InMemorySaver()
    graph = built(saver=saver, output=Output)
    graph.invoke(GO, thread())
    states = [one for one in graph.get_state_history(thread()) if one.next == ("gate",)]
    for state in states:
        assert graph.invoke(RESUME, state.config)["result"] == 3
    assert verified == [1, 2, 3, *[3], *[2, 3], *[1, 2, 3]]


def test_with_a_store_the_same_visit_is_answered_from_it(store: Store) -> None:
    verified: list[int] = []

    class Output(BaseModel):
        n: int

        def verify(self, attempt: int) -> int:
            verified.append(self.n)
            if self.n < 3:
                raise VerificationRejected("too small")
            return attempt

    saver = InMemorySaver()
    graph = built(saver=saver, output=Output, store=store)
    graph.invoke(GO, thread())
    last, *_ = [one for one in graph.get_state_history(thread()) if one.next == ("gate",)]
    assert graph.invoke(RESUME, last.config)["result"] == 3
    assert verified == [1, 2, 3]
    with store.database.reading() as connection:
        (run,) = agent_reading.page(connection, "default")
    assert (run.agent, run.status, run.verification.attempts_used) == ("langgraph", RunState.COMPLETED, 2)
    assert run.id.startswith("t:")


@pytest.mark.parametrize("config", [None, {"configurable": {"thread_id": "t"}}], ids=["no thread", "one thread"])
def test_no_invocation_is_answered_for_another(store: Store, config: Any) -> None:
    class Draft(BaseModel):
        city: str

        def verify(self) -> str:
            if self.city != "Canberra":
                raise VerificationRejected(f"{self.city} is wrong", retryable=False)
            return f"{self.city} verified"

    class State(TypedDict, total=False):
        draft: dict[str, Any]
        verification: dict[str, Any] | None
        result: Any

    # Nothing keeps the state between two invocations, whatever their thread is called.
    graph = StateGraph(State)
    graph.add_node("gate", gate_node(Draft, back="gate", read=lambda state: state["draft"], store=store))
    graph.add_edge(START, "gate")
    made = graph.compile()
    for _ in range(2):
        assert made.invoke({"draft": {"city": "Canberra"}}, config)["result"] == "Canberra verified"
        with pytest.raises(VerificationExhausted) as over:
            made.invoke({"draft": {"city": "Sydney"}}, config)
        assert (over.value.reason, over.value.attempts_used) == ("rejected_final", 1)
    with store.database.reading() as connection:
        assert len(agent_reading.page(connection, "default")) == 4


@pytest.mark.parametrize("stored", [False, True])
def test_the_end_is_in_the_checkpoint_and_stays_the_end(stored: bool, store: Store) -> None:
    graph = built(saver=InMemorySaver(), max_attempts=2, store=store if stored else None)
    for given in (GO, RESUME):
        with pytest.raises(VerificationExhausted) as over:
            graph.invoke(given, thread())
        assert (over.value.reason, over.value.attempts_used, over.value.code) == ("attempts", 2, "too_small")
    assert graph.get_state(thread()).values["verification"]["state"]["ended"] == "attempts"
    # Only who says so begins anew.
    with pytest.raises(VerificationExhausted):
        graph.invoke(GO, thread())
    assert graph.invoke({**GO, "verification": None}, thread())["result"].attempt == 1


def test_the_end_may_be_a_way_of_the_graph() -> None:
    ended = built(max_attempts=1, exhausted="apologise").invoke(GO)
    assert ended["result"] == "nothing"
    assert ended["verification"]["state"]["ended"] == "attempts"


def test_a_verifier_that_breaks_leaves_the_checkpoint_as_it_was() -> None:
    down = True

    class Output(BaseModel):
        n: int

        def verify(self, attempt: int) -> int:
            if self.n == 2 and down:
                raise OSError("down")
            if self.n < 3:
                raise VerificationRejected("too small")
            return attempt

    graph = built(saver=InMemorySaver(), output=Output, system_error_limit=1)
    with pytest.raises(CouldNotVerify, match="down"):
        graph.invoke(GO, thread())
    assert graph.get_state(thread()).next == ("gate",)
    down = False
    assert graph.invoke(RESUME, thread())["result"] == 3


@pytest.mark.parametrize("stored", [False, True])
def test_what_comes_after_a_pass_is_another_piece_of_work(stored: bool, store: Store) -> None:
    graph = built(lambda turn: submits(1 + turn % 3), saver=InMemorySaver(), store=store if stored else None)
    for _ in range(2):
        assert graph.invoke(GO, thread())["result"] == FinalResult(n=3, attempt=3)


class Bare(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def test_a_state_that_cannot_carry_the_count_is_refused() -> None:
    with pytest.raises(AgentError, match="`verification`"):
        built(state=Bare).invoke(GO)


class Draft(BaseModel):
    draft: int = 0
    verification: dict[str, Any] | None = None
    messages: Annotated[list[AnyMessage], add_messages] = []
    result: Any = None


def test_the_candidate_may_stand_anywhere_in_a_state_of_any_make() -> None:
    graph = StateGraph(Draft)
    graph.add_node("write", lambda now: {"draft": now.draft + 1})
    graph.add_node("gate", gate_node(AgentOutput, back="write", read=lambda now: {"n": now.draft}))
    graph.add_edge(START, "write")
    graph.add_edge("write", "gate")
    assert graph.compile().invoke(Draft())["result"] == FinalResult(n=3, attempt=3)


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ([AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "1"}])], "look"),
        ([HumanMessage("hello")], "message"),
        ([], "message"),
    ],
)
def test_a_graph_that_routes_other_messages_to_the_gate_is_refused(said: Sequence[AnyMessage], wrong: str) -> None:
    graph = StateGraph(GateState)
    graph.add_node("gate", gate_node(AgentOutput, back="gate"))
    graph.add_edge(START, "gate")
    with pytest.raises(AgentError, match=wrong):
        graph.compile().invoke({"messages": [*said]})


def test_wrong_settings_are_refused_at_the_definition() -> None:
    with pytest.raises(AgentError, match="BaseModel"):
        gate_node(BaseModel, back="model")
    with pytest.raises(AgentError, match="thread_id"):
        gate_node(AgentOutput, back="model", run_id="r")
