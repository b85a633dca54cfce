"""One run from its first turn to its end or its next rest: the same steps, however often it crashes."""

from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

import msgspec

from meruit.errors import MeruitError, Unreachable
from meruit.gate.accounting import Accounted, account
from meruit.gate.ask_verifier import Verdict, verdict_on
from meruit.gate.context import AgentContext, ExecutionContext
from meruit.gate.definition import OUTPUT_TOOL, AgentError, Candidate, Definition, Misfit, OutputType, carried
from meruit.gate.journal import Answered, Journal
from meruit.gate.run import FailedFor
from meruit.gate.state import Decided, Misshapen, Recall, Submitted, VerificationState
from meruit.gate.state import next as after
from meruit.gate.store.runs import WAIT
from meruit.gate.store.submissions import started, why
from meruit.gate.tools import Deferred, Pause
from meruit.gate.verdict import Accepted, Breakage, Rejection, Said
from meruit.model.chat import ModelAnswer, ToolCall, Usage
from meruit.model.record import Record
from meruit.verify.sanitize import writable

NUDGE = f"Call the tool {OUTPUT_TOOL} to hand in the final output; text alone ends nothing."
SECOND_OUTPUT = f"Only the first {OUTPUT_TOOL} of a turn counts; this one was not looked at."

MAX_NOTE = 1_000
"""Characters of what a tool says that it waits for."""
MAX_LINE = 500
"""Characters of a line that whoever watches is told."""


class Done(NamedTuple):
    """The run has its result."""

    result: bytes | None
    """As JSON; None where it is kept with the submission that passed."""
    usage: Usage
    turn: int
    returned: Any = None
    """What the verifier returned as it is, where it was asked in this process."""


class Failed(NamedTuple):
    """The run is over without one."""

    ending: str
    error: str
    usage: Usage
    turn: int
    code: str | None = None
    """Of the rejection that ended it."""


class Resting(NamedTuple):
    """The run goes on later."""

    pause_s: float | None
    """After so long at the latest; None for as long as it takes."""
    waiting_for: str | None
    usage: Usage
    turn: int
    error: str | None = None
    """What went wrong, where it rests because of that."""
    note: str | None = None
    """What it waits for, in the words of the tool that asks for it."""


End = Done | Failed | Resting


class _Replied(Record, frozen=True):
    """What a tool's call gave, with the context as the tool left it, where that is not as it was kept before."""

    reply: str = ""
    carried: dict[str, Any] = msgspec.field(default_factory=dict)
    waits: bool = False
    pause_s: float | None = None


class _Rest(Exception):
    # No error: the way out of a turn that cannot go on now.
    def __init__(
        self,
        pause_s: float | None,
        waiting_for: str | None = None,
        *,
        error: str | None = None,
        note: str | None = None,
    ) -> None:
        self.pause_s, self.waiting_for, self.error, self.note = pause_s, waiting_for, error, note


async def drive(
    agent: Definition, journal: Journal, execution: ExecutionContext, watch: Callable[[str], None] = lambda _text: None
) -> End:
    """Take the run as far as it goes; what is kept in its journal is not done again."""
    return await _Drive(agent, journal, execution, watch).whole()


class _Drive:
    def __init__(
        self, agent: Definition, journal: Journal, execution: ExecutionContext, watch: Callable[[str], None]
    ) -> None:
        self.agent, self.journal, self.execution, self.watch = agent, journal, execution, watch
        self.context: AgentContext = agent.context(journal.run)
        self.carried = _sorted(carried(self.context))
        """The context as a replay of what is kept leaves it."""
        # From the start: the state that the row holds is where all these steps will have led.
        self._now(VerificationState(limits=journal.run.verification.limits))
        self.usage = Usage()
        self.returned: Any = None

    async def whole(self) -> End:
        for turn in count(1):
            if turn > self.agent.max_turns:
                return await self._out_of_turns(turn - 1)
            try:
                end = await self._turn(turn)
            except _Rest as rest:
                return Resting(rest.pause_s, rest.waiting_for, self.usage, turn, rest.error, rest.note)
            if end is not None:
                return end
        raise AssertionError  # pragma: no cover - the count has no end

    async def _turn(self, turn: int) -> End | None:
        new = self.journal.kept(f"turn:{turn}") is None
        answer = await self._answer(turn)
        self.usage += answer.usage
        self.context.turn = turn
        self.context.messages.append(_as_message(answer))
        outputs = [call for call in answer.calls if self._hands_in(call)]
        for place, call in enumerate(answer.calls):
            if not self._hands_in(call):
                self._reply(call, await self._tool(turn, place, call))
        for extra in outputs[1:]:
            self._reply(extra, SECOND_OUTPUT)
        if outputs:
            return await self._submitted(turn, outputs[0])
        if answer.calls:
            return None
        if self.agent.output is None:
            return Done(msgspec.json.encode(answer.text), self.usage, turn)
        self.context.messages.append({"role": "user", "content": NUDGE})
        if new:
            self.watch(f"turn {turn}: answered in text; asked to hand in")
        return None

    def _hands_in(self, call: ToolCall) -> bool:
        return call.name == OUTPUT_TOOL and self.agent.output is not None

    async def _answer(self, turn: int) -> ModelAnswer:
        model = self.agent.model
        if model is None:
            raise AgentError(f"agent {self.agent.name!r} has no model; give it one, as ChatEndpoint(url, model)")
        # On its last turn the model can only hand in.
        force = OUTPUT_TOOL if self.agent.output is not None and turn == self.agent.max_turns else None

        async def ask() -> bytes:
            self.watch(f"turn {turn}")
            try:
                return (await model.answer(self.context.messages, self.agent.specs(), force)).to_json()
            except Unreachable:
                raise
            except MeruitError as refused:
                # Only where it says Unreachable may trying again help.
                raise AgentError(f"the model of agent {self.agent.name!r} refuses: {refused}") from refused

        return ModelAnswer.from_json(await self.journal.step(f"turn:{turn}", ask, lambda gave: self._begun(turn, gave)))

    def _begun(self, turn: int, gave: bytes) -> dict[str, Any] | None:
        """The verification that begins with an answer of the model."""
        output = self.agent.output
        if output is None or output.verifier is None:
            return None
        calls = [call for call in ModelAnswer.from_json(gave).calls if call.name == OUTPUT_TOOL]
        read = output.read(calls[0].arguments) if calls else None
        if not isinstance(read, Candidate):
            return None
        happening = Decided(_submission_id(turn, calls[0]), read.hash, Breakage(""), 0.0)
        return started(happening, self.state.attempts_used + 1, self.state.limits.max_attempts)

    async def _tool(self, turn: int, place: int, call: ToolCall) -> str:
        found = self.agent.tools.get(call.name)
        if found is None:
            return f"error: there is no tool {call.name!r}; there are {', '.join(self._tool_names())}"
        key = f"{turn}.{place}"

        async def run() -> bytes:
            self.watch(f"turn {turn}: {call.name}")
            supply = {"agent_ctx": self.context, "execution_ctx": self.execution, "deps": self.execution.deps}
            gave = await found.run(call, supply | {"submission_id": f"{self.context.run_id}:{key}"})
            left = carried(self.context)
            kept = {} if _sorted(left) == self.carried else left
            match gave:
                case Deferred():
                    return _Replied(gave.note, kept, waits=True, pause_s=gave.timeout_s).to_json()
                case Pause():
                    return _Replied(gave.reply, kept, pause_s=gave.seconds).to_json()
                case _:
                    return _Replied(gave, kept).to_json()

        new = self.journal.kept(f"tool:{key}") is None
        replied = _Replied.from_json(await self.journal.step(f"tool:{key}", run))
        self._carry(replied.carried)
        if not replied.waits:
            if new and replied.pause_s is not None:
                raise _Rest(replied.pause_s)
            return replied.reply
        given = self.journal.kept(f"{WAIT}{key}")
        if given is None:
            raise _Rest(replied.pause_s, key, note=writable(replied.reply)[:MAX_NOTE] or None)
        said = msgspec.json.decode(given)
        return said if isinstance(said, str) else given.decode()

    def _tool_names(self) -> list[str]:
        return [spec.name for spec in self.agent.specs()]

    def _carry(self, kept: dict[str, Any]) -> None:
        """What the tool left in the context, also where it ran in another process."""
        if not kept:
            return
        self.carried = _sorted(kept)
        restored = type(self.context).model_validate({**self.context.model_dump(exclude={"messages"}), **kept})
        for name in kept:
            setattr(self.context, name, getattr(restored, name))

    async def _submitted(self, turn: int, call: ToolCall) -> End | None:
        output = self.agent.output
        assert output is not None  # noqa: S101 - only then is a call taken for a submission
        read = output.read(call.arguments)
        if isinstance(read, Misfit):
            return await self._misshapen(turn, call, read)
        if output.verifier is None:
            self._reply(call, "accepted")
            return Done(msgspec.json.encode(read.plain), self.usage, turn)
        return await self._verified(turn, call, output, read)

    async def _verified(self, turn: int, call: ToolCall, output: OutputType, read: Candidate) -> End | None:
        verifier = output.verifier
        assert verifier is not None  # noqa: S101 - the caller has looked
        submission_id = _submission_id(turn, call)
        new = Submitted(submission_id, read.hash, verifier.version, verifier.deterministic and read.is_whole)
        state, actions = after(self.state, new)
        self._now(state)
        written = msgspec.json.encode(read.plain)
        for again in count():

            async def verify() -> bytes:
                self.watch(f"turn {turn}: verify, attempt {self.state.attempts_used + 1}")
                if isinstance(actions[0], Recall):
                    before = await self.journal.said(actions[0].submission_id)
                    if isinstance(before, Rejection):
                        return Verdict(before).to_json()
                supply = {
                    "agent_ctx": self.context,
                    "execution_ctx": self.execution,
                    "attempt": self.state.attempts_used + 1,
                    "max_attempts": self.state.limits.max_attempts,
                    "submission_id": f"{self.context.run_id}:{submission_id}",
                    "deps": self.execution.deps,
                }
                told = await verdict_on(read, verifier, supply, self.agent.verify_timeout_s)
                self.returned = told.returned
                return told.verdict.to_json()

            verdict = Verdict.from_json(await self.journal.step(f"verify:{turn}:{again}", verify))
            happening = Decided(submission_id, read.hash, verdict.said, 0.0, verifier.version)
            answered = Answered(happening, turn, written, verifier.version, judgement=verdict.judgement)
            done, now = await self.journal.account(f"account:{turn}:{again}", answered)
            self._now(account(self.state, happening._replace(at=done.at))[0])
            error = why(verdict.said)
            if now:
                self._tell(verdict.said, done)
            if done.pause_s is None:
                code = verdict.said.code if isinstance(verdict.said, Rejection) else None
                return self._answered(turn, call, done, error, code)
            if now:
                raise _Rest(done.pause_s, error=error)
        raise AssertionError  # pragma: no cover - the count has no end

    async def _misshapen(self, turn: int, call: ToolCall, misfit: Misfit) -> End | None:
        happening = Misshapen(_submission_id(turn, call))
        answered = Answered(happening, turn, msgspec.json.encode(call.arguments), problems=misfit.problems)
        done, now = await self.journal.account(f"account:{turn}", answered)
        self._now(account(self.state, happening, problems=misfit.problems)[0])
        if now:
            left = max(0, self.state.limits.schema_errors - self.state.schema_errors)
            self.watch(f"turn {turn}: not of the output's shape, {_tries(left)} left: {_line(misfit.problems)}")
        return self._answered(turn, call, done, misfit.problems)

    def _tell(self, said: Said, done: Accounted) -> None:
        if isinstance(said, Accepted):
            self.watch(f"verified, at attempt {done.attempt}")
        elif isinstance(said, Rejection):
            code = f" [{said.code}]" if said.code else ""
            used = f"{done.attempts_used} of {self.state.limits.max_attempts} attempts used"
            self.watch(f"rejected, {used}{code}: {_line(said.message)}")

    def _now(self, state: VerificationState) -> None:
        self.state = self.context.verification = state

    def _answered(
        self, turn: int, call: ToolCall, done: Accounted, error: str | None, code: str | None = None
    ) -> End | None:
        if done.passed:
            self._reply(call, "verified")
            return Done(None, self.usage, turn, self.returned)
        if done.ending is not None:
            said = error or f"verification ended: {done.ending}"
            return Failed(done.ending.value, said, self.usage, turn, code)
        self._reply(call, done.feedback or "")
        return None

    async def _out_of_turns(self, turn: int) -> Failed:
        used = f"all {self.agent.max_turns} turns are used"
        if self.agent.output is None or self.agent.output.verifier is None:
            return Failed(FailedFor.TURNS.value, used, self.usage, turn)
        done = await self.journal.give_up()
        return Failed((done.ending or FailedFor.TURNS).value, used, self.usage, turn)

    def _reply(self, call: ToolCall, text: str) -> None:
        """Every call is answered: a chat endpoint refuses a conversation in which one is not."""
        self.context.messages.append({"role": "tool", "tool_call_id": call.id, "content": text})


def _sorted(context: dict[str, Any]) -> bytes:
    """To be compared: what was kept comes back in another order."""
    return msgspec.json.encode(context, order="sorted")


def _tries(number: int) -> str:
    return "1 try" if number == 1 else f"{number} tries"


def _line(text: str) -> str:
    """What fits into one line of a log."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 1]}…"


def _submission_id(turn: int, call: ToolCall) -> str:
    """Of the checkpointed answer, so that a replay is known; with the turn, because some servers number anew."""
    # No database keeps a null character.
    return f"{turn}:{call.id}".replace("\0", "")[:200]


def _as_message(answer: ModelAnswer) -> dict[str, Any]:
    # An answer may hold neither text nor calls, and no endpoint takes a message without either.
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or (None if answer.calls else "")}
    if answer.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.calls
        ]
    return message
