"""LangGraph behind the gate: `graph.add_node("gate", gate_node(AgentOutput, back="model"))`."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec

from meruit.bridges.function import apart
from meruit.gate.accounting import Accounted, account
from meruit.gate.definition import AgentError
from meruit.gate.gate import Gate, Kept, Passed
from meruit.gate.journal import Answered
from meruit.gate.state import Decided, Ending, VerificationState
from meruit.gate.verdict import Breakage, VerificationExhausted
from meruit.model.record import Record

try:
    from langchain_core.messages import AnyMessage, BaseMessage
    from langchain_core.runnables import RunnableConfig, RunnableLambda
    from langgraph.graph import END
    from langgraph.graph.message import add_messages
    from langgraph.types import Command

    from meruit.bridges.langchain_messages import MARK, handed_in, replies
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError("this bridge is for LangGraph: pip install langgraph", name=missing.name) from None


class GateState(TypedDict, total=False):
    """What the gate keeps in a graph's state: a state of your own has these keys, or is a class of this one."""

    messages: Annotated[list[AnyMessage], add_messages]
    verification: dict[str, Any] | None
    """How far the verification has come, as JSON; None begins anew."""
    # Any: whatever the verifier returned.
    result: Any


class Carried(Record, frozen=True):
    """What a state carries from one visit of the gate to the next."""

    run_id: str = ""
    """Empty where nothing was submitted yet."""
    state: VerificationState = VerificationState()
    answers: dict[str, Kept] = msgspec.field(default_factory=dict)
    visits: int = 0
    """Of all that a thread does: they name submissions where no message does."""


# Any, here and below: states and final results are of the author's own types.
def gate_node(
    output_type: Any,
    *,
    back: str,
    done: str = END,
    read: Callable[[Any], Any] | None = None,
    exhausted: str | None = None,
    **settings: Any,
) -> RunnableLambda[Any, Any]:
    """A node that verifies what the last message hands in, and goes `back` with feedback or on to `done`.

    `read` finds the candidate in a state otherwise. A pass puts the final result in `result`. Without a pass in the
    end, the graph goes to `exhausted`, or raises VerificationExhausted; where the verifier breaks, CouldNotVerify, and
    the checkpoint stays as it was. Settings are those of `Gate`: `max_attempts`, and `store` for a record, among
    them. To see its ways in a drawing, add it with `destinations=(back, done)`.
    """
    if "run_id" in settings:
        raise AgentError("a gate is named by the thread of the graph: config={'configurable': {'thread_id': …}}")
    # What can never work is told where it is written.
    Gate(output_type, **settings)
    node = _Node(output_type, settings, (back, done, exhausted), read)
    # LangGraph calls the one from `invoke` and the other from `ainvoke`.
    return RunnableLambda(node.visit, afunc=node.avisit, name="gate")


class _Node(NamedTuple):
    output_type: Any
    settings: dict[str, Any]
    ways: tuple[str, str, str | None]
    read: Callable[[Any], Any] | None

    def visit(self, state: Any, config: RunnableConfig) -> Command[str]:
        found: Command[str] = apart(asyncio.run, self.avisit(state, config))
        return found

    async def avisit(self, state: Any, config: RunnableConfig) -> Command[str]:
        back, done, exhausted = self.ways
        said: list[BaseMessage] = [*(_held(state, "messages") or ())]
        before = _carried(state, said)
        named = said[-1].id if said else None
        submission_id = f"{len(said)}:{named}" if named else _Book(before).new_name()
        if before.state.ended is Ending.PASSED and submission_id not in before.state.submission_ids:
            # What comes after a pass is another piece of work.
            before = Carried(visits=before.visits)
        gate = _CarriedGate(self.output_type, self.settings, before, _run_id(config))
        candidate = self.read(state) if self.read is not None else handed_in(gate.output, said)
        try:
            answer = await gate.submit(candidate, submission_id=submission_id)
        except VerificationExhausted:
            if before.state.ended is not None:
                raise
            # The end is kept in a checkpoint first: whoever goes on from there hears the same.
            return Command(update=gate.update(), goto=exhausted or config["metadata"]["langgraph_node"])
        if isinstance(answer, Passed):
            return Command(update={**gate.update(), "result": answer.result}, goto=done)
        told = replies(gate.output, said, answer.feedback)
        return Command(update={**gate.update(), "messages": told}, goto=back)


class _CarriedGate(Gate):
    """A gate that goes on from what a graph's state carries, which is its ledger unless it has a store."""

    def __init__(self, output_type: Any, settings: dict[str, Any], before: Carried, fresh_id: str) -> None:
        super().__init__(output_type, **{"agent": "langgraph", **settings, "run_id": before.run_id or fresh_id})
        fresh = msgspec.structs.replace(before, run_id=self.run_id, state=self.state)
        self.book = _Book(before if before.run_id else fresh)
        if settings.get("store") is None:
            self._ledger, self._shared = self.book, True

    def update(self) -> dict[str, Any]:
        visits = self.book.carried.visits + 1
        kept = msgspec.structs.replace(self.book.carried, state=self.state, visits=visits)
        return {"verification": msgspec.json.decode(kept.to_json())}


class _Book:
    def __init__(self, carried: Carried) -> None:
        self.carried = carried

    async def state(self) -> VerificationState:
        return self.carried.state

    async def kept(self, submission_id: str) -> Kept | None:
        return self.carried.answers.get(submission_id)

    async def submit(self, answered: Answered) -> tuple[Accounted, VerificationState]:
        happening, said = answered.happening, None
        if isinstance(happening, Decided):
            happening, said = happening._replace(at=time.time()), happening.said
        state, done = account(self.carried.state, happening, problems=answered.problems)
        # The gate has looked for an earlier answer before it asked.
        assert done is not None  # noqa: S101
        answers = self.carried.answers
        if not isinstance(said, Breakage):
            answers = {**answers, done.submission_id: Kept(done, said)}
        self.carried = msgspec.structs.replace(self.carried, state=state, answers=answers)
        return done, state

    def new_name(self) -> str:
        return f"visit:{1 + self.carried.visits}"


def _carried(state: Any, said: list[BaseMessage]) -> Carried:
    written = _held(state, "verification")
    if written is None:
        if not _has(state, "verification") and any(MARK in one.additional_kwargs for one in said):
            raise AgentError(
                "the graph's state has no `verification`, so nothing would be counted; "
                "declare it: class State(GateState), or verification: dict | None"
            )
        return Carried()
    return msgspec.convert(written, Carried)


def _run_id(config: RunnableConfig) -> str:
    """Of a run that begins with this visit: the same when the visit is done again, and nobody else's."""
    thread = config.get("configurable", {}).get("thread_id", "graph")
    # LangGraph names each visit of a node by the checkpoint that it starts from; without a thread, by chance.
    return f"{thread}:{config['metadata']['langgraph_checkpoint_ns'].rpartition(':')[2]}"


def _has(state: Any, key: str) -> bool:
    return key in state if isinstance(state, Mapping) else hasattr(state, key)


def _held(state: Any, key: str) -> Any:
    return state.get(key) if isinstance(state, Mapping) else getattr(state, key, None)
