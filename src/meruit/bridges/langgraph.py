"""LangGraph behind the gate: `graph.add_node("gate", gate_node(AgentOutput, back="model"))`."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec

from meruit.bridges.function import call_off_event_loop
from meruit.errors import AgentError, VerificationExhausted
from meruit.gate.accounting import PriorAnswer
from meruit.gate.gate import Gate, Passed
from meruit.gate.journal import MemoryJournal
from meruit.gate.state import VerificationEnding, VerificationState
from meruit.model.record import Record

try:
    from langchain_core.messages import AnyMessage, BaseMessage
    from langchain_core.runnables import RunnableConfig, RunnableLambda
    from langgraph.graph import END
    from langgraph.graph.message import add_messages
    from langgraph.types import Command

    from meruit.bridges.langchain_messages import MARK, extract_candidate, replies
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError("this bridge is for LangGraph: pip install langgraph", name=missing.name) from None


class GateState(TypedDict, total=False):
    """What the gate keeps in a graph's state: a state of your own has these keys, or is a class of this one."""

    messages: Annotated[list[AnyMessage], add_messages]
    verification: dict[str, Any] | None
    """How far the verification has come, as JSON; None begins anew."""
    # Any: whatever the verifier returned.
    result: Any


class GateProgress(Record, frozen=True):
    """What a state carries from one visit of the gate to the next."""

    run_id: str = ""
    """Empty where nothing was submitted yet."""
    state: VerificationState = VerificationState()
    answers: dict[str, PriorAnswer] = msgspec.field(default_factory=dict)
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
    node = _GateNode(output_type, settings, (back, done, exhausted), read)
    # LangGraph calls the one from `invoke` and the other from `ainvoke`.
    return RunnableLambda(node.visit, afunc=node.avisit, name="gate")


class _GateNode(NamedTuple):
    output_type: Any
    settings: dict[str, Any]
    ways: tuple[str, str, str | None]
    read: Callable[[Any], Any] | None

    def visit(self, state: Any, config: RunnableConfig) -> Command[str]:
        found: Command[str] = call_off_event_loop(asyncio.run, self.avisit(state, config))
        return found

    async def avisit(self, state: Any, config: RunnableConfig) -> Command[str]:
        back, done, exhausted = self.ways
        said: list[BaseMessage] = [*(_get_value(state, "messages") or ())]
        before = _load_progress(state, said)
        named = said[-1].id if said else None
        submission_id = f"{len(said)}:{named}" if named else f"visit:{1 + before.visits}"
        if before.state.ended is VerificationEnding.PASSED and submission_id not in before.state.submission_ids:
            # What comes after a pass is another piece of work.
            before = GateProgress(visits=before.visits)
        gate = _GraphGate(self.output_type, self.settings, before, _run_id(config))
        candidate = self.read(state) if self.read is not None else extract_candidate(gate.output, said)
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


class _GraphGate(Gate):
    """A gate that continues from the progress in a graph's state; without a store, that progress is its record."""

    def __init__(self, output_type: Any, settings: dict[str, Any], before: GateProgress, new_run_id: str) -> None:
        super().__init__(output_type, **{"agent": "langgraph", **settings, "run_id": before.run_id or new_run_id})
        self._before = before
        self._journal = MemoryJournal(answers=before.answers)
        if settings.get("store") is None:
            self._submitter.journal = self._journal
            if before.run_id:
                self._submitter.state = before.state

    def update(self) -> dict[str, Any]:
        progress = GateProgress(self.run_id, self.state, self._journal.answers, self._before.visits + 1)
        return {"verification": msgspec.json.decode(progress.to_json())}


def _load_progress(state: Any, said: list[BaseMessage]) -> GateProgress:
    written = _get_value(state, "verification")
    if written is None:
        if not _has_key(state, "verification") and any(MARK in one.additional_kwargs for one in said):
            raise AgentError(
                "the graph's state has no `verification`, so nothing would be counted; "
                "declare it: class State(GateState), or verification: dict | None"
            )
        return GateProgress()
    return msgspec.convert(written, GateProgress)


def _run_id(config: RunnableConfig) -> str:
    """Of a run that begins with this visit: the same when the visit is done again, and nobody else's."""
    thread = config.get("configurable", {}).get("thread_id", "graph")
    # LangGraph names each visit of a node by the checkpoint that it starts from; without a thread, by chance.
    return f"{thread}:{config['metadata']['langgraph_checkpoint_ns'].rpartition(':')[2]}"


def _has_key(state: Any, key: str) -> bool:
    return key in state if isinstance(state, Mapping) else hasattr(state, key)


def _get_value(state: Any, key: str) -> Any:
    return state.get(key) if isinstance(state, Mapping) else getattr(state, key, None)
