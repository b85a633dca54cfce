"""An agent over real HTTP, behind the gate: what its model hands in is rejected, revised and passed, come what may."""

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel, RootModel
from tests.servers.chat import Break, Breaks, Call, ChatServer, Fails, Json, Play, Says, Script, TooMany

from meruit.errors import AgentError, VerificationRejected
from meruit.events.store import outbox
from meruit.gate.agent import Agent
from meruit.gate.chat.endpoint import ChatEndpoint
from meruit.gate.context import AgentContext
from meruit.gate.definition import OUTPUT_TOOL
from meruit.gate.loop import NUDGE, SECOND_OUTPUT
from meruit.gate.run import AgentRun, GateSubmission, RunRequest, RunState
from meruit.gate.runner import engine as durable
from meruit.gate.runner.engine import MAX_ERRORS, AgentRoster
from meruit.gate.runner.local import InlineEngine
from meruit.gate.store import read as agent_reading
from meruit.gate.store.runs import QueueRun
from meruit.model.chat import Usage
from meruit.model.events import EventType
from meruit.store.location import Location
from meruit.store.store import Store

TENANT = "default"
KEY = "sk-end-to-end-0123456789"
WORKING_S = 60.0
"""Far more than any of it takes: a run that hangs is told, not waited for."""


class Bill(BaseModel):
    """What the verifier makes of a right answer."""

    total: int
    paid: bool = False


class Answer(BaseModel):
    """The sum of the two amounts."""

    total: int

    async def verify(self, agent_ctx: AgentContext) -> Bill:
        if self.total < 0:
            raise VerificationRejected("no amount is negative", code="negative", retryable=False)
        if self.total != agent_ctx.payload.get("sum", 5):
            raise VerificationRejected(f"{self.total} is wrong", code="wrong_sum", metadata={"off": ["total"]})
        return Bill(total=self.total)


def add(a: int, b: int, agent_ctx: AgentContext) -> int:
    """Adds two amounts."""
    agent_ctx.payload["sum"] = a + b
    return a + b


class Line(BaseModel):
    """One line of a list, which is an output that is no object."""

    amount: int


class Tree(BaseModel):
    """An output that holds others of its kind."""

    branches: "list[Tree]" = []


class Amounts(RootModel[list[int]]):
    """A model that is no object."""


class Worked(NamedTuple):
    """A run that a worker has taken to its end."""

    run: AgentRun
    submissions: list[GateSubmission]
    events: list[str]
    server: ChatServer
    pauses: list[int]
    """Of the worker's, by how many errors had come in a row."""

    def replies(self, of: int = -1) -> dict[str, str]:
        """What each call of a conversation was answered, by its id."""
        said = self.server.asked[of]["messages"]
        return {one["tool_call_id"]: one["content"] for one in said if one["role"] == "tool"}


Work = Callable[..., Worked]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The worker's pauses, which take no time here."""
    taken: list[int] = []

    def pause_s(errors: int) -> float:
        taken.append(errors)
        return 0.0

    monkeypatch.setattr(durable, "pause_s", pause_s)
    return taken


async def _no_nap(_seconds: float) -> None:
    pass


def agent_of(server: ChatServer, *, stream: bool = False, retries: int = 2, **others: Any) -> Agent:
    model = ChatEndpoint(server.url, "scripted", api_key=KEY, stream=stream, retries=retries, sleep=_no_nap)
    return Agent("adder", "Add the amounts.", model, [add], Answer, **others)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = Store.open(Location(tmp_path_factory.mktemp("gate")))
    yield opened
    opened.close()


@pytest.fixture
def work(store: Store, pauses: list[int]) -> Work:
    """Queues a run, and lets a worker take it to its end."""

    async def worked(server: ChatServer, run_id: str, others: dict[str, Any]) -> None:
        agent = agent_of(server, **others)
        asked = QueueRun(TENANT, "somebody", run_id, agent.name, RunRequest("2 and 3"), agent.limits())
        await store.recorder.record(asked)
        async with asyncio.timeout(WORKING_S):
            await InlineEngine(store, AgentRoster([agent])).serve(asyncio.Event(), until_idle=True)

    def work(script: Script, **others: Any) -> Worked:
        run_id = store.surroundings.new_id("run")
        with ChatServer(script, key=KEY) as server:
            asyncio.run(worked(server, run_id, others))
        with store.database.reading() as connection:
            run = agent_reading.find(connection, TENANT, run_id)
            submitted = agent_reading.submissions(connection, TENANT, run_id)
            told = outbox.events_after(connection, 0, tenant=TENANT, subjects=frozenset({run_id}))
        # Whatever happens, each call was answered, and every request was one that OpenAI takes.
        assert server.refused == []
        return Worked(run, submitted, [one.event.event_type for one in told], server, pauses)

    return work


def hands_in(total: Any, *more: Call, **others: Any) -> Says:
    return Says("here it is", [Call(OUTPUT_TOOL, {"total": total}), *more], **others)


ADDS = Says("", [Call("add", {"a": 2, "b": 3})])
BOTH = Says("both at once", [Call("add", {"a": 1, "b": 1}), Call("add", {"a": 2, "b": 3})])


@pytest.mark.parametrize("stream", [False, True])
def test_rejected_revised_passed_over_http(work: Work, stream: bool) -> None:
    worked = work([BOTH, hands_in(4), ADDS, hands_in(5)], stream=stream)
    run = worked.run
    assert (run.status, run.result, run.turn) == (RunState.COMPLETED, {"total": 5, "paid": False}, 4)
    assert run.verification.attempts_used == 1
    assert run.usage == Usage(40, 20, 8, 4)
    assert [(one.outcome, one.code) for one in worked.submissions] == [("rejected", "wrong_sum"), ("passed", None)]
    assert [event for event in worked.events if event.startswith("verification")] == [
        EventType.VERIFICATION_STARTED,
        EventType.VERIFICATION_REJECTED,
        EventType.VERIFICATION_ATTEMPT_COUNTED,
        EventType.VERIFICATION_STARTED,
        EventType.VERIFICATION_PASSED,
    ]
    assert all(request.get("stream", False) is stream for request in worked.server.asked)


@pytest.mark.parametrize("stream", [False, True])
def test_a_rejection_is_the_reply_to_the_call_that_handed_in(work: Work, stream: bool) -> None:
    worked = work([hands_in(4), hands_in(5)], stream=stream)
    said, replied = worked.server.asked[1]["messages"][-2:]
    assert said["tool_calls"][0]["function"]["name"] == OUTPUT_TOOL
    assert (replied["role"], replied["tool_call_id"]) == ("tool", said["tool_calls"][0]["id"])
    assert replied["content"] == worked.submissions[0].feedback
    assert replied["content"].splitlines() == [
        '<verification_rejected code="wrong_sum" retryable="true">',
        "Summary: 4 is wrong",
        "Off:",
        "- total",
        "Attempt 1 was rejected; 4 are left.",
        "</verification_rejected>",
    ]


@pytest.mark.parametrize("how", Break)
def test_trouble_on_the_way_costs_nothing_and_changes_nothing(work: Work, how: Break) -> None:
    hurdles: list[Play] = [TooMany(), Breaks(ADDS, how), ADDS, Fails(500), hands_in(4)]
    worked = work([*hurdles, Breaks(hands_in(5), how), TooMany("1"), hands_in(5)], stream=True)
    assert (worked.run.status, worked.run.verification.attempts_used) == (RunState.COMPLETED, 1)
    # What broke off was never an answer: only whole ones are paid for, and none came to the gate by halves.
    assert worked.run.usage == Usage(30, 15, 6, 3)
    assert len(worked.submissions) == 2
    assert worked.pauses == []


def test_more_trouble_than_one_question_bears_lets_the_run_rest_and_go_on(work: Work) -> None:
    worked = work([hands_in(4), TooMany(), TooMany(), Breaks(ADDS), hands_in(5)], retries=1)
    assert (worked.run.status, worked.run.verification.attempts_used) == (RunState.COMPLETED, 1)
    assert worked.run.usage == Usage(20, 10, 4, 2)
    assert worked.pauses == [1]


def test_as_many_rejections_as_the_budget_has_end_the_run(work: Work) -> None:
    worked = work([hands_in(1), hands_in(2), hands_in(3)], verify_max_attempts=3)
    assert (worked.run.status, worked.run.ending) == (RunState.FAILED, "attempts")
    assert worked.run.verification.attempts_used == 3
    assert worked.run.usage == Usage(30, 15, 6, 3)
    assert worked.events[-2:] == [EventType.VERIFICATION_EXHAUSTED, EventType.AGENT_RUN_FAILED]
    assert "2 is wrong" in [*worked.replies().values()][-1]


def test_the_same_again_and_again_ends_the_run_without_a_budget_used(work: Work) -> None:
    worked = work(lambda _request: hands_in(4))
    assert (worked.run.status, worked.run.ending) == (RunState.FAILED, "no_progress")
    assert (worked.run.verification.attempts_used, len(worked.server.asked)) == (1, 4)


def test_a_rejection_that_no_revision_mends_ends_the_run(work: Work) -> None:
    worked = work([hands_in(-1)])
    assert (worked.run.ending, worked.run.verification.attempts_used) == ("rejected_final", 1)


@pytest.mark.parametrize("stream", [False, True])
def test_a_payload_of_another_shape_is_repaired_without_an_attempt(work: Work, stream: bool) -> None:
    cut_off = Says("", [Call(OUTPUT_TOOL, '{"total": ')], finish="length")
    worked = work([hands_in("five"), cut_off, hands_in(5)], stream=stream)
    assert (worked.run.status, worked.run.verification.attempts_used) == (RunState.COMPLETED, 0)
    assert [one.outcome for one in worked.submissions] == ["schema_error", "schema_error", "passed"]
    shape, json_text = worked.replies().values()
    assert re.search(r"total: .*integer", shape)
    assert "Invalid JSON" in json_text


def test_payload_after_payload_of_another_shape_ends_the_run(work: Work) -> None:
    worked = work(lambda _request: hands_in("five"))
    assert (worked.run.ending, len(worked.server.asked)) == ("schema_errors", 3)


def test_on_its_last_turn_the_model_can_only_hand_in(work: Work) -> None:
    def obeys(request: Json) -> Says:
        return hands_in(5) if "tool_choice" in request else Says("I think it is five.")

    worked = work(obeys, max_turns=3)
    assert worked.run.status is RunState.COMPLETED
    forced = {"type": "function", "function": {"name": OUTPUT_TOOL}}
    assert [request.get("tool_choice") for request in worked.server.asked] == [None, None, forced]
    assert worked.server.asked[1]["messages"][-1] == {"role": "user", "content": NUDGE.format("agent_output")}


def test_rejected_on_the_last_turn_no_turn_is_left(work: Work) -> None:
    worked = work([ADDS, hands_in(4)], max_turns=2)
    assert (worked.run.ending, worked.run.verification.attempts_used) == ("turns", 1)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_with_nothing_in_it_does_not_spoil_the_conversation(work: Work, stream: bool) -> None:
    worked = work([Says("", finish="content_filter"), hands_in(5)], stream=stream)
    assert worked.run.status is RunState.COMPLETED


def test_the_first_of_two_outputs_counts_and_both_are_answered(work: Work) -> None:
    twice = hands_in(4, Call(OUTPUT_TOOL, {"total": 5}, id=""), Call("subtract", {"a": 1}, id=""))
    worked = work([twice, hands_in(5)])
    assert [one.outcome for one in worked.submissions] == ["rejected", "passed"]
    first, second, third = (call["id"] for call in worked.server.asked[1]["messages"][-4]["tool_calls"])
    replies = worked.replies()
    assert replies[first] == worked.submissions[0].feedback
    assert replies[second] == SECOND_OUTPUT.format("agent_output")
    assert all(part in replies[third] for part in ("error: ", "'subtract'", "add, agent_output"))


@pytest.mark.parametrize("trouble", [Fails(503), TooMany("0"), Breaks(hands_in(5))])
def test_a_model_that_stays_away_is_asked_with_longer_and_longer_pauses_and_then_given_up(
    work: Work, trouble: Play
) -> None:
    worked = work(lambda _request: trouble, stream=True, retries=1)
    assert (worked.run.status, worked.run.ending) == (RunState.FAILED, "error")
    assert worked.run.error is not None
    assert worked.run.error.startswith("Unreachable: http://127.0.0.1")
    assert worked.pauses == [*range(1, MAX_ERRORS + 1)]
    assert len(worked.server.asked) == 2 * (MAX_ERRORS + 1)
    assert worked.run.verification.attempts_used == 0


def test_what_was_used_before_the_model_stayed_away_is_on_the_bill(work: Work) -> None:
    def once(request: Json) -> Play:
        return hands_in(4) if len(request["messages"]) == 2 else Fails(503)

    worked = work(once, retries=0)
    assert (worked.run.status, worked.run.ending) == (RunState.FAILED, "error")
    assert (worked.run.turn, worked.run.usage) == (1, Usage(10, 5, 2, 1))


@pytest.mark.parametrize("refusal", [Fails(400, "No."), Fails(401, "No."), Fails(404, "No.")])
def test_a_model_that_refuses_is_not_asked_again(work: Work, refusal: Fails) -> None:
    worked = work(lambda _request: refusal)
    assert (worked.run.status, worked.run.ending) == (RunState.FAILED, "error")
    assert worked.run.error is not None
    assert f"status {refusal.status}" in worked.run.error
    assert KEY not in worked.run.error
    assert (len(worked.server.asked), worked.pauses) == (1, [])


def test_the_same_agent_without_a_worker() -> None:
    with ChatServer([hands_in(4), hands_in(5)], key=KEY) as server:
        result = agent_of(server, stream=True).run_sync("2 and 3")
    assert (result.output, result.attempts_used, result.usage) == (Bill(total=5), 1, Usage(20, 10, 4, 2))
    with (
        ChatServer([Fails(404, "No such model.")], key=KEY) as server,
        pytest.raises(AgentError, match="No such model"),
    ):
        agent_of(server).run_sync("2 and 3")


@pytest.mark.parametrize(
    ("kind", "handed_in", "output"),
    [
        (list[Line], {"output": [{"amount": 5}]}, [Line(amount=5)]),
        (Tree, {"branches": [{}]}, Tree(branches=[Tree()])),
        (Amounts, {"output": [5]}, Amounts([5])),
        (int, {"output": 5}, 5),
    ],
)
def test_every_kind_of_output_is_told_in_a_schema_that_endpoints_take(kind: Any, handed_in: Json, output: Any) -> None:
    with ChatServer([Says(calls=[Call(OUTPUT_TOOL, handed_in)])]) as server:
        agent = Agent("lister", "", ChatEndpoint(server.url, "scripted", sleep=_no_nap), output_type=kind)
        assert agent.run_sync("2 and 3").output == output
