"""LangGraph behind the gate: `graph.add_node("gate", gate_node(AgentOutput, back="model"))`."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypedDict

import msgspec

from meruit.bridges.function import call_off_event_loop
from meruit.errors import AgentError, VerificationExhausted, VerificationWaiting
from meruit.gate.accounting import PriorAnswer
from meruit.gate.context import AgentContext
from meruit.gate.gate import Gate
from meruit.gate.journal import MemoryJournal
from meruit.gate.state import VerificationEnding, VerificationState
from meruit.gate.verdict import Passed, Rejected
from meruit.model.chat import Usage
from meruit.model.decoding import convert_to
from meruit.model.record import Record

try:
    from langchain_core.messages import AnyMessage, BaseMessage
    from langchain_core.runnables import RunnableConfig, RunnableLambda
    from langgraph.graph import END
    from langgraph.graph.message import add_messages
    from langgraph.types import Command, interrupt

    from meruit.bridges.langchain_messages import MARK, extract_candidate, query_in, replies, usage_of
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError("this bridge is for LangGraph: pip install langgraph", name=missing.name) from None


class GateState(TypedDict, total=False):
    """The keys of the gate in a graph's state; your own state has these keys, or inherits from this class."""

    messages: Annotated[list[AnyMessage], add_messages]
    verification: dict[str, Any] | None
    """Progress of the verification, as JSON; None to start again."""
    # Any: the return value of the verifier.
    result: Any


class GateProgress(Record, frozen=True):
    """Progress of a verification between two visits of the gate."""

    run_id: str = ""
    """Empty before the first submission."""
    state: VerificationState = VerificationState()
    answers: dict[str, PriorAnswer] = msgspec.field(default_factory=dict)
    visits: int = 0
    """Visits of the gate in the thread; they name submissions where messages have no id."""


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
    """A node that verifies the output in the last message, and goes `back` with feedback or on to `done`.

    `read` finds the candidate elsewhere in the state. A pass puts the final result in `result`. Once the budget is
    used up, the graph goes to `exhausted`, or raises VerificationExhausted. Where the verifier breaks, it raises
    CouldNotVerify and the checkpoint stays as it was. Settings are those of `Gate`, for example `max_attempts`, or
    `store` for a record. Where the verifier waits for an answer, the graph is interrupted (it needs a checkpointer):
    continue it with `Command(resume=answer)`. To show its edges in a drawing, add it with `destinations=(back, done)`.
    """
    if "run_id" in settings:
        raise AgentError("the thread of the graph names the run: config={'configurable': {'thread_id': …}}")
    # Wrong settings are an error here, not at the first visit.
    Gate(output_type, **settings)
    node = _GateNode(output_type=output_type, settings=settings, ways=(back, done, exhausted), read=read)
    # LangGraph calls the one from `invoke` and the other from `ainvoke`.
    return RunnableLambda(node.visit, afunc=node.avisit, name="gate")


class _GateNode(msgspec.Struct, frozen=True):
    output_type: Any
    settings: dict[str, Any]
    ways: tuple[str, str, str | None]
    read: Callable[[Any], Any] | None

    def visit(self, state: Any, config: RunnableConfig) -> Command[str]:
        found: Command[str] = call_off_event_loop(asyncio.run, self.avisit(state, config))
        return found

    async def avisit(self, state: Any, config: RunnableConfig) -> Command[str]:
        back, done, exhausted = self.ways
        history: list[BaseMessage] = [*(_get_value(state, "messages") or ())]
        before = _load_progress(state, history)
        named = history[-1].id if history else None
        submission_id = f"{len(history)}:{named}" if named else f"visit:{1 + before.visits}"
        if before.state.ended is VerificationEnding.PASSED and submission_id not in before.state.submission_ids:
            # A submission after a pass starts a new run.
            before = GateProgress(visits=before.visits)
        query = query_in(history)
        gate = _GraphGate(self.output_type, {"query": query, **self.settings}, before, _run_id(config))
        candidate = self.read(state) if self.read is not None else extract_candidate(gate.output, history)
        usage = usage_of(history)
        context = AgentContext(run_id=gate.run_id, agent=gate.agent, query=query, turn=usage.requests)
        try:
            answer = await _Visit(gate=gate, context=context, deferrals_before=before.state.deferrals).submit(
                candidate, submission_id, usage
            )
        except VerificationExhausted:
            if before.state.ended is not None:
                raise
            # The checkpoint gets the end first, so that a graph resumed from there raises the same error.
            return Command(update=gate.update(), goto=exhausted or config["metadata"]["langgraph_node"])
        if isinstance(answer, Passed):
            return Command(update={**gate.update(), "result": answer.result}, goto=done)
        messages = replies(gate.output, history, answer.feedback)
        return Command(update={**gate.update(), "messages": messages}, goto=back)


class _Visit(msgspec.Struct, frozen=True):
    """One visit of the gate, which LangGraph may repeat from its start."""

    gate: Gate
    context: AgentContext
    deferrals_before: int
    """Questions of the verifier in earlier visits."""

    # Any: a candidate of the author's own type.
    async def submit(self, candidate: Any, submission_id: str, usage: Usage) -> Passed | Rejected:
        """Submit the candidate. While the verifier waits for an answer, the graph is interrupted."""
        gate, context, interruptions = self.gate, self.context, 0
        try:
            return await gate.submit(candidate, submission_id=submission_id, agent_ctx=context, usage=usage)
        except VerificationWaiting as waits:
            waiting = waits
        while True:
            value = None
            # LangGraph repeats a visit from its start and gives the values of earlier interruptions again, in order.
            while interruptions < gate.state.deferrals - self.deferrals_before:
                value = interrupt({"run_id": waiting.run_id, "key": waiting.key, "note": waiting.note})
                interruptions += 1
            try:
                return await gate.resume(value, key=waiting.key, agent_ctx=context)
            except VerificationWaiting as waits:
                waiting = waits


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


def _load_progress(state: Any, messages: list[BaseMessage]) -> GateProgress:
    written = _get_value(state, "verification")
    if written is None:
        if not _has_key(state, "verification") and any(MARK in one.additional_kwargs for one in messages):
            raise AgentError(
                "the graph's state has no `verification`, so nothing would be counted; "
                "declare it: class State(GateState), or verification: dict | None"
            )
        return GateProgress()
    return convert_to(written, GateProgress)


def _run_id(config: RunnableConfig) -> str:
    """Make the id of a run that starts with this visit: unique, and the same when the visit is repeated."""
    thread = config.get("configurable", {}).get("thread_id", "graph")
    # LangGraph names each visit of a node by its checkpoint, or at random without a thread.
    return f"{thread}:{config['metadata']['langgraph_checkpoint_ns'].rpartition(':')[2]}"


def _has_key(state: Any, key: str) -> bool:
    return key in state if isinstance(state, Mapping) else hasattr(state, key)


def _get_value(state: Any, key: str) -> Any:
    return state.get(key) if isinstance(state, Mapping) else getattr(state, key, None)
