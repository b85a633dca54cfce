"""Submit a candidate: ask the verifier, account for its verdict, and ask again where it broke or was deferred.

`Gate` and the loop of a driven run both submit here. They differ in what a pause means (a host sleeps, a worker lets
go of the run), in how they wait for an answer, and in whether the verdict is a step of a journal (`key`).
"""

from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import msgspec

from meruit.gate.accounting import AnsweredSubmission, SubmissionResult
from meruit.gate.ask_verifier import VerifierCallResult, VerifierReport, ask_verifier
from meruit.gate.context import AgentContext, ExecutionContext
from meruit.gate.definition import Candidate, OutputType, SchemaMismatch
from meruit.gate.journal import TIMED_OUT, Journal
from meruit.gate.state import (
    VERIFIER_WAIT,
    CandidateSubmitted,
    GateAction,
    RecallRejection,
    SchemaErrorFound,
    VerdictGiven,
    VerificationState,
    advance,
)
from meruit.gate.verdict import Deferral, Rejection, SystemErrorVerdict, VerifierVerdict, failure_message
from meruit.gate.verifier import ANSWER, Verifier
from meruit.model.chat import Usage

PauseFunction = Callable[[float, str | None], Awaitable[None]]
"""Wait so many seconds before the verifier is asked again, or raise; the second argument is its error."""
MAX_DEFERRALS = 1_000
"""Times that the verifier of one submission may ask for an answer or a pause."""


class CandidateSubmission(msgspec.Struct, frozen=True):
    """A candidate, or a payload that is not one, as a host or a model submits it."""

    id: str
    read: Candidate | SchemaMismatch
    context: AgentContext
    payload: bytes = b"null"
    """What was submitted instead of a candidate, as JSON."""
    turn: int = 0
    key: str | None = None
    """Part of the keys under which the journal records verdict and result; None to record the result only."""
    answer: bytes | None = None
    """What a client answered to the verifier, as JSON; None at first."""
    usage: Usage | None = None
    """Tokens of the run so far, where its host counts them."""


class DeferredSubmission(msgspec.Struct, frozen=True):
    """A submission that cannot be judged yet."""

    submission: CandidateSubmission
    candidate: Candidate
    verifier_version: str
    deferral: Deferral
    key: str
    """Names the answer, in a run that a worker drives."""
    is_new: bool
    """False where the journal replays the deferral."""


WaitFunction = Callable[[DeferredSubmission], Awaitable[bytes | None]]
"""Return the answer of a client, TIMED_OUT, or after a pause the answer so far; or raise where the run must wait."""


class SubmissionDecision(msgspec.Struct, frozen=True):
    """The result of a submission, with what the verifier said of it."""

    result: SubmissionResult
    verdict: VerifierVerdict | None = None
    """None where the verifier was not asked, because the payload is not a valid candidate."""
    # Any: the verifier's own type.
    returned: Any = None
    """What the verifier returned, where it was called just now."""
    problems: str = ""
    is_new: bool = True
    """False where the journal replays it."""

    @property
    def error(self) -> str | None:
        """Why it is not a pass, in words for people."""
        return self.problems if self.verdict is None else failure_message(self.verdict)

    @property
    def code(self) -> str | None:
        """Code of the rejection."""
        return self.verdict.code if isinstance(self.verdict, Rejection) else None


class Submitter:
    """Submits the candidates of one run, one after the other."""

    def __init__(
        self,
        journal: Journal,
        output: OutputType,
        state: VerificationState,
        execution: ExecutionContext,
        *,
        timeout_s: float | None,
        pause: PauseFunction,
        watch: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.journal, self.output, self.state = journal, output, state
        self._execution, self._timeout_s, self._watch = execution, timeout_s, watch
        self._pause = pause

    async def submit(self, submission: CandidateSubmission, wait: WaitFunction) -> SubmissionDecision:
        """Decide a submission; nothing is counted twice, and a verifier that breaks is asked again after a pause."""
        if isinstance(submission.read, SchemaMismatch):
            return await self._submit_mismatch(submission, submission.read)
        # A candidate of an output without a verifier is accepted before it gets here.
        assert self.output.verifier is not None  # noqa: S101
        return await self._submit_candidate(submission, submission.read, self.output.verifier, wait)

    async def _submit_mismatch(self, submission: CandidateSubmission, mismatch: SchemaMismatch) -> SubmissionDecision:
        problems = mismatch.problems
        answered = AnsweredSubmission(
            event=SchemaErrorFound(submission.id),
            turn=submission.turn,
            candidate=submission.payload,
            problems=problems,
            usage=submission.usage,
        )
        key = None if submission.key is None else f"account:{submission.key}"
        accounted = await self.journal.submit(self.state, answered, key)
        self._set_state(submission.context, accounted.state)
        return SubmissionDecision(accounted.result, problems=problems, is_new=accounted.is_new)

    async def _submit_candidate(
        self, submission: CandidateSubmission, candidate: Candidate, verifier: Verifier, wait: WaitFunction
    ) -> SubmissionDecision:
        is_deterministic = verifier.deterministic and candidate.is_lossless
        state, actions = advance(
            self.state,
            CandidateSubmitted(
                submission_id=submission.id,
                candidate_hash=candidate.hash,
                verifier_version=verifier.version,
                deterministic=is_deterministic,
            ),
        )
        self._set_state(submission.context, state)
        written = msgspec.json.encode(candidate.plain)
        for again in count():
            key = None if submission.key is None else f"{submission.key}:{again}"
            called = await self._get_report(submission, candidate, verifier, actions[0], key)
            reply = called.verdict.said
            if isinstance(reply, Deferral):
                waiting = DeferredSubmission(
                    submission=submission,
                    candidate=candidate,
                    verifier_version=verifier.version,
                    deferral=reply,
                    key=f"{VERIFIER_WAIT}{key or ''}",
                    is_new=called.is_new,
                )
                if again < MAX_DEFERRALS and (answer := await wait(waiting)) != TIMED_OUT:
                    submission = msgspec.structs.replace(submission, answer=answer)
                    continue
                reply = _give_up_waiting(reply)
            answered = AnsweredSubmission(
                event=VerdictGiven(
                    submission_id=submission.id,
                    candidate_hash=candidate.hash,
                    said=reply,
                    at=0.0,
                    verifier_version=verifier.version,
                ),
                turn=submission.turn,
                candidate=written,
                verifier_version=verifier.version,
                judgement=called.verdict.judgement,
                was_deferred=submission.answer is not None,
                usage=submission.usage,
            )
            accounted = await self.journal.submit(self.state, answered, None if key is None else f"account:{key}")
            self._set_state(submission.context, accounted.state)
            pause_s = accounted.result.pause_s
            if pause_s is None:
                return SubmissionDecision(
                    result=accounted.result, verdict=reply, returned=called.returned, is_new=accounted.is_new
                )
            if accounted.is_new:
                await self._pause(pause_s, failure_message(reply))
        raise AssertionError  # pragma: no cover - the count has no end

    async def _get_report(
        self,
        submission: CandidateSubmission,
        candidate: Candidate,
        verifier: Verifier,
        action: GateAction,
        key: str | None,
    ) -> VerifierCallResult:
        """Return the verifier's report: from the journal, recalled from an equal candidate, or asked for now."""
        if key is None:
            return await self._ask(submission, candidate, verifier, action)
        called: VerifierCallResult | None = None

        async def ask() -> bytes:
            nonlocal called
            self._watch(f"turn {submission.turn}: verify, attempt {self.state.attempts_used + 1}")
            called = await self._ask(submission, candidate, verifier, action)
            return called.verdict.to_json()

        recorded = VerifierReport.from_json(await self.journal.step(f"verify:{key}", ask))
        return VerifierCallResult(recorded, None if called is None else called.returned, is_new=called is not None)

    async def _ask(
        self, submission: CandidateSubmission, candidate: Candidate, verifier: Verifier, action: GateAction
    ) -> VerifierCallResult:
        if isinstance(action, RecallRejection):
            earlier = await self.journal.find_answer(action.submission_id)
            if earlier is not None and isinstance(earlier.verdict, Rejection):
                return VerifierCallResult(VerifierReport(earlier.verdict))
        if submission.answer == TIMED_OUT:
            return VerifierCallResult(VerifierReport(SystemErrorVerdict("no answer came in time", permanent=True)))
        supply = {
            "agent_ctx": submission.context,
            "execution_ctx": self._execution,
            "attempt": self.state.attempts_used + 1,
            "max_attempts": self.state.limits.max_attempts,
            "submission_id": f"{self._execution.run_id}:{submission.id}",
            "deps": self._execution.deps,
            ANSWER: None if submission.answer is None else msgspec.json.decode(submission.answer),
        }
        return await ask_verifier(candidate, verifier, supply, self._timeout_s)

    def _set_state(self, context: AgentContext, state: VerificationState) -> None:
        self.state = context.verification = state


def _give_up_waiting(deferral: Deferral) -> SystemErrorVerdict:
    """The candidate was not judged; nothing is counted, and a retry cannot help."""
    if deferral.pause_s is None and deferral.timeout_s is not None:
        about = f": {deferral.note}" if deferral.note else ""
        return SystemErrorVerdict(f"no answer came within {deferral.timeout_s:g} s{about}", permanent=True)
    return SystemErrorVerdict(f"verify was deferred {MAX_DEFERRALS:,} times for one submission", permanent=True)
