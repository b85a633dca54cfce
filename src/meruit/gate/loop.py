"""Drive one run from its first turn to its end or its next pause; recorded steps are not repeated after a crash."""

from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec

from meruit.documents.sanitize import escape_unencodable
from meruit.errors import AgentError, MeruitError, SuspendRun, Unreachable
from meruit.gate.context import AgentContext, ExecutionContext
from meruit.gate.definition import AgentDefinition, Candidate, OutputType, dump_context
from meruit.gate.interpret import MAX_NOTE
from meruit.gate.journal import Journal
from meruit.gate.run import AgentRun, RunFailureReason
from meruit.gate.state import VerificationState
from meruit.gate.store.runs import WAIT
from meruit.gate.store.submissions import describe_verification_start
from meruit.gate.submission import CandidateSubmission, DeferredSubmission, SubmissionDecision, Submitter
from meruit.gate.tools import Deferred, Pause
from meruit.gate.verdict import Acceptance, Rejection
from meruit.model.chat import ModelAnswer, ToolCall, Usage
from meruit.model.record import Record

NUDGE = "Call the tool {} to submit the final output; a text answer does not end the run."
SECOND_OUTPUT = "Only the first {} call of a turn counts; this one was ignored."
MAX_LINE = 500
"""Characters of one line of progress."""


class RunDone(msgspec.Struct, frozen=True):
    """The run is over with a result."""

    result: bytes | None
    """As JSON; None where the submission that passed has it."""
    usage: Usage
    turn: int
    attempts_used: int = 0
    returned: Any = None
    """The verifier's return value itself, where it was called in this process."""


class RunFailed(msgspec.Struct, frozen=True):
    """The run is over without a result."""

    ending: str
    error: str
    usage: Usage
    turn: int
    attempts_used: int = 0
    code: str | None = None
    """Of the rejection that ended it."""


class RunSuspended(msgspec.Struct, frozen=True):
    """The run continues later."""

    pause_s: float | None
    """Seconds until it continues at the latest; None for no limit."""
    waiting_for: str | None
    usage: Usage
    turn: int
    error: str | None = None
    """The error that it pauses after, if any."""
    note: str | None = None
    """What it waits for, in the words of the tool."""


DriveResult = RunDone | RunFailed | RunSuspended


class _ToolReply(Record, frozen=True):
    """The reply of a tool, with the context as the tool left it where it changed the context."""

    reply: str = ""
    carried: dict[str, Any] = msgspec.field(default_factory=dict)
    waits: bool = False
    pause_s: float | None = None


async def drive(
    agent: AgentDefinition,
    run: AgentRun,
    journal: Journal,
    execution: ExecutionContext,
    watch: Callable[[str], None] = lambda _text: None,
) -> DriveResult:
    """Take the run as far as it goes; steps that its journal holds are not repeated."""
    return await _RunDriver(agent, run, journal, execution, watch).drive()


class _RunDriver:
    def __init__(
        self,
        agent: AgentDefinition,
        run: AgentRun,
        journal: Journal,
        execution: ExecutionContext,
        watch: Callable[[str], None],
    ) -> None:
        self.agent, self.journal, self.execution, self.watch = agent, journal, execution, watch
        self.context: AgentContext = agent.context(run)
        self.carried = _encode_sorted(dump_context(self.context))
        """The context as a replay of the recorded steps leaves it."""
        # From the start: the state in the row of the run is where the recorded steps will have led.
        self.context.verification = VerificationState(limits=run.verification.limits)
        self.submitter = None if agent.output is None else self._submitter(agent.output)
        self.usage = Usage()

    @property
    def state(self) -> VerificationState:
        return self.context.verification

    def _submitter(self, output: OutputType) -> Submitter:
        async def pause(seconds: float, error: str | None) -> None:
            raise SuspendRun(seconds, error=error)

        return Submitter(
            self.journal,
            output,
            self.state,
            self.execution,
            timeout_s=self.agent.verify_timeout_s,
            pause=pause,
            watch=self.watch,
        )

    async def _wait_for_answer(self, deferred: DeferredSubmission) -> bytes | None:
        deferral = deferred.deferral
        if deferral.pause_s is not None:
            if deferred.is_new:
                raise SuspendRun(deferral.pause_s)
            return deferred.submission.answer
        given = self.journal.find_step(f"{WAIT}{deferred.key}")
        if given is None:
            raise SuspendRun(deferral.timeout_s, deferred.key, note=deferral.note or None)
        return given

    async def drive(self) -> DriveResult:
        for turn in count(1):
            if turn > self.agent.max_turns:
                return await self._out_of_turns(turn - 1)
            try:
                end = await self._turn(turn)
            except SuspendRun as rest:
                return RunSuspended(
                    pause_s=rest.pause_s,
                    waiting_for=rest.waiting_for,
                    usage=self.usage,
                    turn=turn,
                    error=rest.error,
                    note=rest.note,
                )
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
            self._reply(extra, SECOND_OUTPUT.format(extra.name))
        if outputs:
            return await self._submit(turn, outputs[0])
        if answer.calls:
            return None
        if self.agent.output is None:
            return RunDone(result=msgspec.json.encode(answer.text), usage=self.usage, turn=turn)
        self.context.messages.append({"role": "user", "content": NUDGE.format(self.agent.output.tool_name)})
        if new:
            self.watch(f"turn {turn}: answered in text; asked to submit")
        return None

    def _is_submission(self, call: ToolCall) -> bool:
        return self.agent.output is not None and call.name == self.agent.output.tool_name

    async def _answer(self, turn: int) -> ModelAnswer:
        model = self.agent.model
        if model is None:
            raise AgentError(f"agent {self.agent.name!r} has no model; pass one: model=ChatEndpoint(url, model)")
        # On its last turn the model can only submit.
        output = self.agent.output
        force = output.tool_name if output is not None and turn == self.agent.max_turns else None

        async def ask() -> bytes:
            self.watch(f"turn {turn}")
            try:
                return (await model.answer(self.context.messages, self.agent.specs(), force)).to_json()
            except Unreachable:
                raise
            except MeruitError as refused:
                # A retry can help only after Unreachable.
                raise AgentError(f"the model of agent {self.agent.name!r} failed: {refused}") from refused

        return ModelAnswer.from_json(
            await self.journal.step(f"turn:{turn}", ask, lambda gave: self._verification_start(turn, gave))
        )

    def _verification_start(self, turn: int, gave: bytes) -> dict[str, Any] | None:
        """Describe the verification that starts with an answer of the model, if any."""
        output = self.agent.output
        if output is None or output.verifier is None:
            return None
        calls = [call for call in ModelAnswer.from_json(gave).calls if self._is_submission(call)]
        read = output.read(calls[0].arguments) if calls else None
        if not isinstance(read, Candidate):
            return None
        return describe_verification_start(
            _submission_id(turn, calls[0]), read.hash, self.state.attempts_used + 1, self.state.limits.max_attempts
        )

    async def _tool(self, turn: int, place: int, call: ToolCall) -> str:
        found = self.agent.tools.get(call.name)
        if found is None:
            return f"error: {call.name!r} is not a tool; the tools are {', '.join(self._tool_names())}"
        key = f"{turn}.{place}"

        async def run() -> bytes:
            self.watch(f"turn {turn}: {call.name}")
            supply = {"agent_ctx": self.context, "execution_ctx": self.execution, "deps": self.execution.deps}
            gave = await found.run(call, supply | {"submission_id": f"{self.context.run_id}:{key}"})
            left = dump_context(self.context)
            changes = {} if _encode_sorted(left) == self.carried else left
            match gave:
                case Deferred():
                    return _ToolReply(gave.note, changes, waits=True, pause_s=gave.timeout_s).to_json()
                case Pause():
                    return _ToolReply(gave.reply, changes, pause_s=gave.seconds).to_json()
                case _:
                    return _ToolReply(gave, changes).to_json()

        new = self.journal.find_step(f"tool:{key}") is None
        replied = _ToolReply.from_json(await self.journal.step(f"tool:{key}", run))
        self._restore_context(replied.carried)
        if not replied.waits:
            if new and replied.pause_s is not None:
                raise SuspendRun(replied.pause_s)
            return replied.reply
        given = self.journal.find_step(f"{WAIT}{key}")
        if given is None:
            raise SuspendRun(replied.pause_s, key, note=escape_unencodable(replied.reply)[:MAX_NOTE] or None)
        result = msgspec.json.decode(given)
        return result if isinstance(result, str) else given.decode()

    def _tool_names(self) -> list[str]:
        return [spec.name for spec in self.agent.specs()]

    def _restore_context(self, carried: dict[str, Any]) -> None:
        """Apply what the tool left in the context, also where it ran in another process."""
        if not carried:
            return
        self.carried = _encode_sorted(carried)
        restored = type(self.context).model_validate({**self.context.model_dump(exclude={"messages"}), **carried})
        for name in carried:
            setattr(self.context, name, getattr(restored, name))

    async def _submit(self, turn: int, call: ToolCall) -> DriveResult | None:
        assert self.submitter is not None  # noqa: S101 - only then is a call taken for a submission
        output = self.submitter.output
        read = output.read(call.arguments)
        if isinstance(read, Candidate) and output.verifier is None:
            self._reply(call, "accepted")
            return RunDone(result=msgspec.json.encode(read.plain), usage=self.usage, turn=turn)
        payload = msgspec.json.encode(call.arguments)
        decision = await self.submitter.submit(
            CandidateSubmission(
                id=_submission_id(turn, call),
                read=read,
                context=self.context,
                payload=payload,
                turn=turn,
                key=str(turn),
            ),
            self._wait_for_answer,
        )
        if decision.is_new:
            self._report(turn, decision)
        result, used = decision.result, self.state.attempts_used
        if result.is_pass:
            self._reply(call, "verified")
            return RunDone(result=None, usage=self.usage, turn=turn, attempts_used=used, returned=decision.returned)
        if result.ending is not None:
            error = decision.error or f"verification ended: {result.ending}"
            return RunFailed(
                ending=result.ending.value,
                error=error,
                usage=self.usage,
                turn=turn,
                attempts_used=used,
                code=decision.code,
            )
        self._reply(call, result.feedback or "")
        return None

    def _report(self, turn: int, decision: SubmissionDecision) -> None:
        verdict, limits = decision.verdict, self.state.limits
        if verdict is None:
            left = max(0, limits.schema_errors - self.state.schema_errors)
            problems = _to_one_line(decision.problems)
            self.watch(f"turn {turn}: schema error, {_tries(left)} left: {problems}")
        elif isinstance(verdict, Acceptance):
            self.watch(f"verified, at attempt {decision.result.attempt}")
        elif isinstance(verdict, Rejection):
            code = f" [{verdict.code}]" if verdict.code else ""
            used = f"{decision.result.attempts_used} of {limits.max_attempts} attempts used"
            self.watch(f"rejected, {used}{code}: {_to_one_line(verdict.message)}")

    async def _out_of_turns(self, turn: int) -> RunFailed:
        error = f"all {self.agent.max_turns} turns are used"
        if self.agent.output is None or self.agent.output.verifier is None:
            return RunFailed(ending=RunFailureReason.TURNS.value, error=error, usage=self.usage, turn=turn)
        result = await self.journal.give_up(self.state)
        ending = (result.ending or RunFailureReason.TURNS).value
        return RunFailed(
            ending=ending, error=error, usage=self.usage, turn=turn, attempts_used=self.state.attempts_used
        )

    def _reply(self, call: ToolCall, text: str) -> None:
        """Answer a call: a chat endpoint refuses a conversation with an unanswered one."""
        self.context.messages.append({"role": "tool", "tool_call_id": call.id, "content": text})


def _encode_sorted(context: dict[str, Any]) -> bytes:
    """Encode for comparison: a recorded context comes back in another order."""
    return msgspec.json.encode(context, order="sorted")


def _tries(number: int) -> str:
    return "1 try" if number == 1 else f"{number} tries"


def _to_one_line(text: str) -> str:
    """Shorten text to one line of a log."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 1]}…"


def _submission_id(turn: int, call: ToolCall) -> str:
    """Name a submission by turn and call, so that a replay has the same id; some servers reuse ids of calls."""
    # A database cannot store a null character.
    return f"{turn}:{call.id}".replace("\0", "")[:200]


def _as_message(answer: ModelAnswer) -> dict[str, Any]:
    # An answer may have neither text nor calls, but endpoints refuse a message without both.
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or (None if answer.calls else "")}
    if answer.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.calls
        ]
    return message
