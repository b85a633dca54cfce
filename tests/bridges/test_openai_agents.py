"""The OpenAI Agents SDK: what is its own about being behind the gate."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from agents import (
    Agent,
    AgentOutputSchema,
    AgentOutputSchemaBase,
    MaxTurnsExceeded,
    SQLiteSession,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from pydantic import BaseModel
from tests.bridges.outputs import AgentOutput, FinalResult

from meruit.bridges.openai_agents import GatedRun, run_with_gate
from meruit.errors import AgentError, VerificationExhausted, VerificationRejected
from meruit.gate.run import RunState
from meruit.gate.store import read as agent_reading
from meruit.store.store import Store


@pytest.fixture(autouse=True, scope="module")
def _untraced() -> None:
    set_tracing_disabled(True)


def saying(*texts: str) -> ScriptedModel:
    """All with one id of the response, and so of no use to tell submissions apart."""
    usage = Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
    return ScriptedModel([ModelStep([assistant_message(text)], usage) for text in texts])


def ran(agent: Agent[Any], **named: Any) -> GatedRun:
    return asyncio.run(run_with_gate(agent, "go", **named))


# Any: the SDK's items are a union of typed dicts.
def contents(model: ScriptedModel) -> list[Any]:
    """What each call was told by users."""
    found = []
    for call in model.calls:
        items: Any = call.input
        said = [one["content"] for one in items if isinstance(one, Mapping) and one.get("role") == "user"]
        found.append(said)
    return found


def test_feedback_follows_the_answer_and_usage_counts_all_attempts() -> None:
    model = saying('{"n": 1}', '{"n": 2}', '{"n": 3}')
    ended = ran(Agent("a", model=model, output_type=AgentOutput), max_attempts=3)
    assert ended.output == FinalResult(n=3, attempt=3)
    assert (ended.attempts_used, ended.usage.requests, ended.usage.total_tokens) == (2, 3, 45)
    assert ended.run.final_output == AgentOutput(n=3)
    assert [len(one) for one in contents(model)] == [1, 2, 3]
    assert "2 is too small" in contents(model)[2][-1]


def test_the_model_is_asked_for_the_agents_own_output_type() -> None:
    model = saying('{"n": 3}')
    ran(Agent("a", model=model, output_type=AgentOutput))
    (call,) = model.calls
    assert call.output_schema is not None
    assert call.output_schema.json_schema()["required"] == ["n"]
    assert call.output_schema.is_strict_json_schema()


@pytest.mark.parametrize("output_type", [AgentOutput, None])
def test_plain_text_does_not_get_past_the_gate_and_costs_no_attempt(output_type: Any) -> None:
    model = saying("I am done.", '{"n": 3}')
    ended = ran(Agent("a", model=model, output_type=output_type), output_type=AgentOutput, max_attempts=1)
    assert ended.output == FinalResult(n=3, attempt=1)
    assert "<output_invalid" in contents(model)[1][-1]


def test_an_agent_that_others_hand_over_to_is_held_to_the_same() -> None:
    other = Agent("other", model=saying("Done!", "Done!"), handoff_description="does it all")
    call = [function_call("transfer_to_other", "{}", call_id="c")]
    first = Agent("first", model=ScriptedModel([call, [assistant_message('{"n": 3}')]]), handoffs=[other])
    ended = ran(first, output_type=AgentOutput)
    assert ended.output == FinalResult(n=3, attempt=1)


def test_a_schema_that_need_not_be_strict_stays_so() -> None:
    model = saying('{"n": 3}')
    loose = AgentOutputSchema(AgentOutput, strict_json_schema=False)
    assert ran(Agent("a", model=model, output_type=loose)).output.n == 3
    assert model.calls[0].output_schema is not None
    assert not model.calls[0].output_schema.is_strict_json_schema()


def test_an_output_that_is_not_a_model_is_verified_by_a_function() -> None:
    def enough(numbers: list[int]) -> int:
        if len(numbers) < 2:
            raise VerificationRejected("more")
        return sum(numbers)

    model = saying('{"response": [1]}', '{"response": [1, 1]}')
    assert ran(Agent("a", model=model, output_type=list[int]), verify=enough).output == 2


def test_plain_text_is_verified_where_it_is_what_is_wanted() -> None:
    def short(text: str) -> int:
        if len(text) > 5:
            raise VerificationRejected("too long")
        return len(text)

    ended = ran(Agent("a", model=saying("much too long", "short")), verify=short)
    assert (ended.output, ended.attempts_used) == (5, 1)


def test_a_session_gets_only_new_messages() -> None:
    model = saying('{"n": 1}', '{"n": 3}')
    session = SQLiteSession("s")
    ran(Agent("a", model=model, output_type=AgentOutput), run={"session": session})
    remembered: Any = asyncio.run(session.get_items())
    assert [one.get("role") for one in remembered] == ["user", "assistant"] * 2
    assert len(contents(model)[1]) == 2
    session.close()


def test_tools_are_run_between_attempts_and_given_the_context() -> None:
    class Output(BaseModel):
        n: int

        def verify(self, deps: list[int]) -> int:
            if not deps:
                raise VerificationRejected("look first")
            return self.n

    looked: list[int] = []

    @function_tool
    def look() -> str:
        looked.append(1)
        return "seen"

    model = ScriptedModel(
        [[assistant_message('{"n": 1}')], [function_call("look", "{}", call_id="c")], [assistant_message('{"n": 1}')]]
    )
    ended = ran(Agent("a", model=model, tools=[look], output_type=Output), run={"context": looked})
    assert (ended.output, looked) == (1, [1])


def test_the_hosts_own_limits_are_the_hosts() -> None:
    @function_tool
    def look() -> str:
        return "seen"

    model = ScriptedModel([[function_call("look", "{}", call_id=f"c{n}")] for n in range(3)])
    with pytest.raises(MaxTurnsExceeded):
        ran(Agent("a", model=model, tools=[look], output_type=AgentOutput), run={"max_turns": 2})


def test_a_run_that_waits_for_an_approval_is_refused() -> None:
    @function_tool(needs_approval=True)
    def pay() -> str:
        return "paid"

    model = ScriptedModel([[function_call("pay", "{}", call_id="c")]])
    with pytest.raises(AgentError, match="approval"):
        ran(Agent("a", model=model, tools=[pay], output_type=AgentOutput))


class Own(AgentOutputSchemaBase):
    """A schema that says nothing of its type."""

    def is_plain_text(self) -> bool:
        return False

    def name(self) -> str:
        return "own"

    def json_schema(self) -> dict[str, Any]:
        return {}

    def is_strict_json_schema(self) -> bool:
        return False

    def validate_json(self, json_str: str) -> Any:
        return json_str


def test_an_agent_that_does_not_say_what_it_is_held_to_is_refused() -> None:
    for output_type in (None, Own()):
        with pytest.raises(AgentError, match="output_type"):
            ran(Agent("a", model=saying(), output_type=output_type))
    with pytest.raises(AgentError, match="str"):
        ran(Agent("a", model=saying(), output_type=str))


def test_with_a_store_the_run_is_on_record(store: Store) -> None:
    agent = Agent("ada", model=saying('{"n": 1}', '{"n": 2}'), output_type=AgentOutput)
    with pytest.raises(VerificationExhausted):
        ran(agent, store=store, run_id="r", max_attempts=2)
    with store.database.reading() as connection:
        run = agent_reading.find(connection, "default", "r")
        submitted = agent_reading.submissions(connection, "default", "r")
    assert (run.agent, run.status, run.ending) == ("ada", RunState.FAILED, "attempts")
    assert [one.counted for one in submitted] == [True, True]
