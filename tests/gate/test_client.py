"""Durable runs from Python: queued, read, answered and cancelled."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from meruit.errors import AgentError, AgentRunConflict, BudgetError, NotFound
from meruit.gate import (
    Agent,
    AgentRoster,
    Deferred,
    Team,
    WorkItem,
    cancel_run,
    queue_run,
    read_run,
    resume_run,
    run_worker,
)
from meruit.store.store import Store
from meruit.testing import ScriptedModel, calls, says, submits


class Out(BaseModel):
    n: int

    def verify(self, answer: Any = None) -> int | Deferred:
        return Deferred("may it?") if answer is None else self.n


def writer(**more: Any) -> Agent:
    return Agent("writer", "", ScriptedModel([submits(n=3)]), output_type=Out, **more)


def work(store: Store, agent: Agent) -> None:
    asyncio.run(run_worker(store, AgentRoster([agent]), until_idle=True))


def test_a_run_is_queued_driven_answered_and_read(store: Store) -> None:
    agent = writer(verify_max_attempts=4)
    run = queue_run(store, agent, "count", payload={"a": {1, 2}}, max_seconds=60, labels={"case": "7"})
    assert (run.status, run.verification.limits.max_attempts) == ("queued", 4)
    assert (run.request.payload, run.request.labels) == ({"a": [1, 2]}, {"case": "7"})
    work(store, agent)
    waits = read_run(store, run.id)
    assert (waits.status, waits.waiting_for) == ("waiting", "verify:1:0")
    assert resume_run(store, run.id, "yes").status == "queued"
    assert resume_run(store, run.id, "yes", key="verify:1:0").status == "queued"
    with pytest.raises(AgentRunConflict):
        resume_run(store, run.id, "no", key="verify:1:0")
    work(store, agent)
    assert (read_run(store, run.id).status, read_run(store, run.id).result) == ("completed", 3)
    with pytest.raises(AgentRunConflict):
        resume_run(store, run.id, "yes")


def test_a_run_may_be_queued_by_the_name_of_its_agent(store: Store) -> None:
    run = queue_run(store, "writer", "count")
    work(store, writer(verify_max_attempts=2))
    assert read_run(store, run.id).verification.limits.max_attempts == 2


def test_a_team_is_queued_like_an_agent(store: Store) -> None:
    team = Team("crew", [WorkItem("one", writer(), "{query}")])
    assert queue_run(store, team, "count").agent == "crew"


def test_the_same_request_under_one_id_is_one_run(store: Store) -> None:
    first, again = (queue_run(store, "writer", "count", run_id="ticket-7") for _ in range(2))
    assert first == again
    for other in ({"query": "other"}, {"agent": "reader"}, {"payload": {"a": 1}}):
        with pytest.raises(AgentRunConflict):
            queue_run(store, **{"agent": "writer", "query": "count", **other}, run_id="ticket-7")  # type: ignore[arg-type]


def test_a_run_is_cancelled(store: Store) -> None:
    run = queue_run(store, "writer", "count")
    assert cancel_run(store, run.id).status == "cancelled"
    assert cancel_run(store, run.id).status == "cancelled"


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"query": ""}, AgentError),
        ({"query": "  "}, AgentError),
        ({"query": None}, AgentError),
        ({"payload": [1]}, AgentError),
        ({"payload": {"a": object()}}, AgentError),
        ({"payload": {"a": float("nan")}}, AgentError),
        ({"run_id": "../x"}, AgentError),
        ({"run_id": ""}, AgentError),
        ({"run_id": "x" * 121}, AgentError),
        ({"verify_max_attempts": 0}, BudgetError),
        ({"verify_max_attempts": True}, BudgetError),
        ({"max_seconds": float("nan")}, BudgetError),
        ({"max_seconds": -1}, BudgetError),
    ],
)
def test_a_wrong_request_is_refused(store: Store, wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        queue_run(store, **{"agent": "writer", "query": "count", **wrong})


def test_an_unknown_run_is_not_found(store: Store) -> None:
    for act in (read_run, cancel_run):
        with pytest.raises(NotFound):
            act(store, "nowhere")
    with pytest.raises(NotFound):
        resume_run(store, "nowhere", 1)


def test_a_value_that_json_cannot_hold_is_refused(store: Store) -> None:
    with pytest.raises(AgentError):
        resume_run(store, "nowhere", object())


# An agent that still uses final_output.


class Plain(BaseModel):
    n: int


def handed(name: str, n: int) -> Any:
    return says("", calls(name, n=n))


def test_an_agent_may_keep_the_old_name_of_its_output_tool() -> None:
    script = ScriptedModel([says("done"), handed("final_output", 1)])
    agent = Agent("old", "Call final_output.", script, output_type=Plain, output_tool="final_output", max_turns=2)
    assert agent.run_sync("count").output == Plain(n=1)
    assert [spec.name for spec in agent.specs()] == ["final_output"]
    assert "final_output" in script.asked[1][-1]["content"]
    assert script.forced == [None, "final_output"]


def test_the_new_name_is_not_a_tool_of_an_agent_with_the_old_one() -> None:
    script = ScriptedModel([handed("agent_output", 1), handed("final_output", 2)])
    agent = Agent("old", "", script, output_type=Plain, output_tool="final_output")
    assert agent.run_sync("count").output == Plain(n=2)
    assert "final_output" in script.asked[1][-1]["content"]


def final_output(n: int) -> int:
    return n


@pytest.mark.parametrize("wrong", ["", "final output", "x" * 65, None, 3.5])
def test_a_name_that_endpoints_refuse_is_refused(wrong: Any) -> None:
    with pytest.raises(AgentError):
        Agent("old", output_type=Plain, output_tool=wrong)


def test_a_tool_may_not_have_the_name_of_the_output_tool() -> None:
    with pytest.raises(AgentError):
        Agent("old", tools=[final_output], output_type=Plain, output_tool="final_output")
    assert Agent("new", tools=[final_output], output_type=Plain).tools.keys() == {"final_output"}


def test_a_deferred_verifier_needs_a_record() -> None:
    with pytest.raises(AgentError, match="queue_run"):
        writer().run_sync("count")
