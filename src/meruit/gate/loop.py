"""One run from its first turn to its end or its next rest: the same steps, however often it crashes."""

from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

import msgspec

from meruit.documents.sanitize import escape_unencodable
from meruit.errors import AgentError, MeruitError, Unreachable
from meruit.gate.accounting import SubmissionResult, account
from meruit.gate.ask_verifier import VerifierReport, ask_verifier
from meruit.gate.context import AgentContext, ExecutionContext
from meruit.gate.definition import OUTPUT_TOOL, AgentDefinition, Candidate, OutputType, SchemaMismatch, dump_context
from meruit.gate.journal import AnsweredSubmission, Journal
from meruit.gate.run import RunFailureReason
from meruit.gate.state import CandidateSubmitted, RecallRejection, SchemaErrorFound, VerdictGiven, VerificationState
from meruit.gate.state import advance as after
from meruit.gate.store.runs import WAIT
from meruit.gate.store.submissions import describe_verification_start, failure_message
from meruit.gate.tools import Deferred, Pause
from meruit.gate.verdict import Acceptance, Rejection, SystemErrorVerdict, VerifierVerdict
from meruit.model.chat import ModelAnswer, ToolCall, Usage
from meruit.model.record import Record

NUDGE = f"Call the tool {OUTPUT_TOOL} to hand in the final output; text alone ends nothing."
SECOND_OUTPUT = f"Only the first {OUTPUT_TOOL} of a turn counts; this one was not looked at."

MAX_NOTE = 1_000
"""Characters of what a tool says that it waits for."""
MAX_LINE = 500
"""Characters of a line that whoever watches is told."""


class RunDone(NamedTuple):
    """The run has its result."""

    result: bytes | None
    """As JSON; None where it is kept with the submission that passed."""
    usage: Usage
    turn: int
    returned: Any = None
    """What the verifier returned as it is, where it was asked in this process."""


class RunFailed(NamedTuple):
    """The run is over without one."""

    ending: str
    error: str
    usage: Usage
    turn: int
    code: str | None = None
    """Of the rejection that ended it."""


class RunSuspended(NamedTuple):
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


DriveResult = RunDone | RunFailed | RunSuspended


class _ToolReply(Record, frozen=True):
    """What a tool's call gave, with the context as the tool left it, where that is not as it was kept before."""

    reply: str = ""
    carried: dict[str, Any] = msgspec.field(default_factory=dict)
    waits: bool = False
    pause_s: float | None = None


class _SuspendRun(Exception):
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
    agent: AgentDefinition,
    journal: Journal,
    execution: ExecutionContext,
    watch: Callable[[str], None] = lambda _text: None,
) -> DriveResult:
    """Take the run as far as it goes; what is kept in its journal is not done again."""
    return await _RunDriver(agent, journal, execution, watch).drive()


class _RunDriver:
    def __init__(
        self, agent: AgentDefinition, journal: Journal, execution: ExecutionContext, watch: Callable[[str], None]
    ) -> None:
        self.agent, self.journal, self.execution, self.watch = agent, journal, execution, watch
        self.context: AgentContext = agent.context(journal.run)
        self.carried = _encode_sorted(dump_context(self.context))
        """The context as a replay of what is kept leaves it."""
        # From the start: the state that the row holds is where all these steps will have led.
        self._set_state(VerificationState(limits=journal.run.verification.limits))
        self.usage = Usage()
        self.returned: Any = None

    async def drive(self) -> DriveResult:
        for turn in count(1):
            if turn > self.agent.max_turns:
                return await self._out_of_turns(turn - 1)
            try:
                end = await self._turn(turn)
            except _SuspendRun as rest:
                return RunSuspended(rest.pause_s, rest.waiting_for, self.usage, turn, rest.error, rest.note)
            if end is not None:
                return end
        raise AssertionError  # pragma: no cover - the count has no end

    async def _turn(self, turn: int) -> DriveResult | None:
        new = self.journal.find_step(f"turn:{turn}") is None
        answer = await self._answer(turn)
        self.usage += answer.usage
        self.context.turn = turn
        self.context.messages.append(_as_message(answer))
        outputs = [call for call in answer.calls if self._is_submission(call)]
        for place, call in enumerate(answer.calls):
            if not self._is_submission(call):
                self._reply(call, await self._tool(turn, place, call))
        for extra in outputs[1:]:
            self._reply(extra, SECOND_OUTPUT)
        if outputs:
            return await self._submit(turn, outputs[0])
        if answer.calls:
            return None
        if self.agent.output is None:
            return RunDone(msgspec.json.encode(answer.text), self.usage, turn)
        self.context.messages.append({"role": "user", "content": NUDGE})
        if new:
            self.watch(f"turn {turn}: answered in text; asked to hand in")
        return None

    def _is_submission(self, call: ToolCall) -> bool:
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

        return ModelAnswer.from_json(
            await self.journal.step(f"turn:{turn}", ask, lambda gave: self._verification_start(turn, gave))
        )

    def _verification_start(self, turn: int, gave: bytes) -> dict[str, Any] | None:
        """The verification that begins with an answer of the model."""
        output = self.agent.output
        if output is None or output.verifier is None:
            return None
        calls = [call for call in ModelAnswer.from_json(gave).calls if call.name == OUTPUT_TOOL]
        read = output.read(calls[0].arguments) if calls else None
        if not isinstance(read, Candidate):
            return None
        happening = VerdictGiven(_submission_id(turn, calls[0]), read.hash, SystemErrorVerdict(""), 0.0)
        return describe_verification_start(happening, self.state.attempts_used + 1, self.state.limits.max_attempts)

    async def _tool(self, turn: int, place: int, call: ToolCall) -> str:
        found = self.agent.tools.get(call.name)
        if found is None:
            return f"error: there is no tool {call.name!r}; there are {', '.join(self._tool_names())}"
        key = f"{turn}.{place}"

        async def run() -> bytes:
            self.watch(f"turn {turn}: {call.name}")
            supply = {"agent_ctx": self.context, "execution_ctx": self.execution, "deps": self.execution.deps}
            gave = await found.run(call, supply | {"submission_id": f"{self.context.run_id}:{key}"})
            left = dump_context(self.context)
            kept = {} if _encode_sorted(left) == self.carried else left
            match gave:
                case Deferred():
                    return _ToolReply(gave.note, kept, waits=True, pause_s=gave.timeout_s).to_json()
                case Pause():
                    return _ToolReply(gave.reply, kept, pause_s=gave.seconds).to_json()
                case _:
                    return _ToolReply(gave, kept).to_json()

        new = self.journal.find_step(f"tool:{key}") is None
        replied = _ToolReply.from_json(await self.journal.step(f"tool:{key}", run))
        self._restore_context(replied.carried)
        if not replied.waits:
            if new and replied.pause_s is not None:
                raise _SuspendRun(replied.pause_s)
            return replied.reply
        given = self.journal.find_step(f"{WAIT}{key}")
        if given is None:
            raise _SuspendRun(replied.pause_s, key, note=escape_unencodable(replied.reply)[:MAX_NOTE] or None)
        said = msgspec.json.decode(given)
        return said if isinstance(said, str) else given.decode()

    def _tool_names(self) -> list[str]:
        return [spec.name for spec in self.agent.specs()]

    def _restore_context(self, kept: dict[str, Any]) -> None:
        """What the tool left in the context, also where it ran in another process."""
        if not kept:
            return
        self.carried = _encode_sorted(kept)
        restored = type(self.context).model_validate({**self.context.model_dump(exclude={"messages"}), **kept})
        for name in kept:
            setattr(self.context, name, getattr(restored, name))

    async def _submit(self, turn: int, call: ToolCall) -> DriveResult | None:
        output = self.agent.output
        assert output is not None  # noqa: S101 - only then is a call taken for a submission
        read = output.read(call.arguments)
        if isinstance(read, SchemaMismatch):
            return await self._handle_schema_error(turn, call, read)
        if output.verifier is None:
            self._reply(call, "accepted")
            return RunDone(msgspec.json.encode(read.plain), self.usage, turn)
        return await self._verify(turn, call, output, read)

    async def _verify(self, turn: int, call: ToolCall, output: OutputType, read: Candidate) -> DriveResult | None:
        verifier = output.verifier
        assert verifier is not None  # noqa: S101 - the caller has looked
        submission_id = _submission_id(turn, call)
        new = CandidateSubmitted(
            submission_id, read.hash, verifier.version, verifier.deterministic and read.is_lossless
        )
        state, actions = after(self.state, new)
        self._set_state(state)
        written = msgspec.json.encode(read.plain)
        for again in count():

            async def verify() -> bytes:
                self.watch(f"turn {turn}: verify, attempt {self.state.attempts_used + 1}")
                if isinstance(actions[0], RecallRejection):
                    before = await self.journal.find_verdict(actions[0].submission_id)
                    if isinstance(before, Rejection):
                        return VerifierReport(before).to_json()
                supply = {
                    "agent_ctx": self.context,
                    "execution_ctx": self.execution,
                    "attempt": self.state.attempts_used + 1,
                    "max_attempts": self.state.limits.max_attempts,
                    "submission_id": f"{self.context.run_id}:{submission_id}",
                    "deps": self.execution.deps,
                }
                told = await ask_verifier(read, verifier, supply, self.agent.verify_timeout_s)
                self.returned = told.returned
                return told.verdict.to_json()

            verdict = VerifierReport.from_json(await self.journal.step(f"verify:{turn}:{again}", verify))
            happening = VerdictGiven(submission_id, read.hash, verdict.said, 0.0, verifier.version)
            answered = AnsweredSubmission(happening, turn, written, verifier.version, judgement=verdict.judgement)
            done, now = await self.journal.account(f"account:{turn}:{again}", answered)
            self._set_state(account(self.state, happening._replace(at=done.at))[0])
            error = failure_message(verdict.said)
            if now:
                self._report_verdict(verdict.said, done)
            if done.pause_s is None:
                code = verdict.said.code if isinstance(verdict.said, Rejection) else None
                return self._finish_submission(turn, call, done, error, code)
            if now:
                raise _SuspendRun(done.pause_s, error=error)
        raise AssertionError  # pragma: no cover - the count has no end

    async def _handle_schema_error(self, turn: int, call: ToolCall, misfit: SchemaMismatch) -> DriveResult | None:
        happening = SchemaErrorFound(_submission_id(turn, call))
        answered = AnsweredSubmission(happening, turn, msgspec.json.encode(call.arguments), problems=misfit.problems)
        done, now = await self.journal.account(f"account:{turn}", answered)
        self._set_state(account(self.state, happening, problems=misfit.problems)[0])
        if now:
            left = max(0, self.state.limits.schema_errors - self.state.schema_errors)
            self.watch(f"turn {turn}: not of the output's shape, {_tries(left)} left: {_to_one_line(misfit.problems)}")
        return self._finish_submission(turn, call, done, misfit.problems)

    def _report_verdict(self, said: VerifierVerdict, done: SubmissionResult) -> None:
        if isinstance(said, Acceptance):
            self.watch(f"verified, at attempt {done.attempt}")
        elif isinstance(said, Rejection):
            code = f" [{said.code}]" if said.code else ""
            used = f"{done.attempts_used} of {self.state.limits.max_attempts} attempts used"
            self.watch(f"rejected, {used}{code}: {_to_one_line(said.message)}")

    def _set_state(self, state: VerificationState) -> None:
        self.state = self.context.verification = state

    def _finish_submission(
        self, turn: int, call: ToolCall, done: SubmissionResult, error: str | None, code: str | None = None
    ) -> DriveResult | None:
        if done.is_pass:
            self._reply(call, "verified")
            return RunDone(None, self.usage, turn, self.returned)
        if done.ending is not None:
            said = error or f"verification ended: {done.ending}"
            return RunFailed(done.ending.value, said, self.usage, turn, code)
        self._reply(call, done.feedback or "")
        return None

    async def _out_of_turns(self, turn: int) -> RunFailed:
        used = f"all {self.agent.max_turns} turns are used"
        if self.agent.output is None or self.agent.output.verifier is None:
            return RunFailed(RunFailureReason.TURNS.value, used, self.usage, turn)
        done = await self.journal.give_up()
        return RunFailed((done.ending or RunFailureReason.TURNS).value, used, self.usage, turn)

    def _reply(self, call: ToolCall, text: str) -> None:
        """Every call is answered: a chat endpoint refuses a conversation in which one is not."""
        self.context.messages.append({"role": "tool", "tool_call_id": call.id, "content": text})


def _encode_sorted(context: dict[str, Any]) -> bytes:
    """To be compared: what was kept comes back in another order."""
    return msgspec.json.encode(context, order="sorted")


def _tries(number: int) -> str:
    return "1 try" if number == 1 else f"{number} tries"


def _to_one_line(text: str) -> str:
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
