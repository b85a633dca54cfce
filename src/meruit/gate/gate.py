"""A gate for a loop that somebody else owns: submit a candidate, hear whether it is the last."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

import msgspec

from meruit.documents.sanitize import text_of
from meruit.errors import AgentError, CouldNotVerify, NotFound, VerificationExhausted
from meruit.gate.accounting import SubmissionResult, account
from meruit.gate.ask_verifier import MAX_MESSAGE_CHARS, VerifierReport, ask_verifier
from meruit.gate.context import AgentContext, ExecutionContext
from meruit.gate.definition import VERIFY_TIMEOUT_S, Candidate, SchemaMismatch, output_type_of
from meruit.gate.journal import AnsweredSubmission, outcome_of
from meruit.gate.limits import GateLimits, budget, validate_count, validate_seconds
from meruit.gate.run import RunRequest
from meruit.gate.state import (
    CandidateSubmitted,
    RecallRejection,
    SchemaErrorFound,
    VerdictGiven,
    VerificationEnding,
    VerificationState,
)
from meruit.gate.state import advance as after
from meruit.gate.store import read as agent_reading
from meruit.gate.store.runs import QueueRun
from meruit.gate.store.submissions import HostSubmit, Submit
from meruit.gate.verdict import Acceptance, Rejection, SystemErrorVerdict, VerifierVerdict
from meruit.log.commitment import SALT_BYTES
from meruit.model.access import DEFAULT_TENANT
from meruit.store.store import Store

MAX_NAME = 200
"""Characters of a submission's name."""
SCHEMA_ERROR = "the output is not of its shape"
"""What is known of such a payload once it was answered."""


class Passed(NamedTuple):
    """The candidate is good enough, and this is the final result."""

    result: Any
    attempt: int
    replayed: bool = False


class Rejected(NamedTuple):
    """It is not; the feedback is for the model."""

    feedback: str
    attempt: int
    attempts_used: int
    counted: bool
    code: str | None = None
    replayed: bool = False


class PriorAnswer(NamedTuple):
    """An answer that was given before."""

    done: SubmissionResult
    said: VerifierVerdict | None


class SubmissionLog(Protocol):
    """Where a gate keeps what it decided."""

    async def state(self) -> VerificationState | None:
        """How far the run has come; None for a new one."""
        ...

    async def find_answer(self, submission_id: str) -> PriorAnswer | None:
        """What a submission was answered before."""
        ...

    async def submit(self, answered: AnsweredSubmission) -> tuple[SubmissionResult, VerificationState]:
        """Account for a submission, once; answers also where the run stands now, whoever else submits to it."""
        ...

    def new_submission_id(self) -> str:
        """For a submission that its host does not name."""
        ...


class Gate:
    """Judges the submissions of one run: rejections are counted exactly once, and a pass is for good."""

    def __init__(  # noqa: PLR0913 - one a thing that a host may say
        self,
        output_type: Any,
        *,
        verify: Callable[..., Any] | None = None,
        max_attempts: int | None = None,
        no_progress_limit: int = 3,
        schema_error_limit: int = 3,
        system_error_limit: int = 5,
        timeout_s: float | None = VERIFY_TIMEOUT_S,
        run_id: str | None = None,
        agent: str = "gate",
        store: Store | None = None,
        tenant: str = DEFAULT_TENANT,
        deps: Any = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if store is not None and not isinstance(store, Store):
            raise AgentError(
                f"the store is of type {type(store).__name__}; open one: store=meruit.open_records({store!r})"
            )
        self.output = output_type_of(output_type, verify)
        if self.output.verifier is None:
            raise AgentError(
                f"{self.output.name} has no verify, so there is nothing to be held to; "
                "give the model a verify method, or the gate a function"
            )
        self.verifier = self.output.verifier
        limits = GateLimits(
            budget(max_attempts, None, self.output.budget),
            validate_count(no_progress_limit, "no_progress_limit"),
            validate_count(schema_error_limit, "schema_error_limit"),
            validate_count(system_error_limit, "system_error_limit"),
        )
        self.state = VerificationState(limits=limits)
        self.run_id = run_id or ("run" if store is None else store.surroundings.new_id("run"))
        self._submission_log: SubmissionLog = (
            _MemorySubmissionLog(limits)
            if store is None
            else _StoreSubmissionLog(store, tenant, self.run_id, agent, limits)
        )
        self._context = AgentContext(run_id=self.run_id, agent=agent)
        self._timeout_s, self._deps, self._sleep = validate_seconds(timeout_s, "timeout_s"), deps, sleep
        # Nobody else can have a run whose name was made here; one with a name of its own may be somebody else's too.
        self._shared = store is not None and run_id is not None
        self._turn = asyncio.Lock()

    async def submit(
        self, candidate: Any, *, submission_id: str | None = None, agent_ctx: AgentContext | None = None
    ) -> Passed | Rejected:
        """The verdict on a candidate: an instance of the output type, or data that makes one.

        The same `submission_id` twice is one submission, answered alike. Raises VerificationExhausted once the run is
        over without a pass, and CouldNotVerify where the verifier broke too often; neither counts as an attempt.
        """
        # One after the other: an attempt is counted before the next one is judged.
        async with self._turn:
            if self._shared:
                self.state = await self._submission_log.state() or self.state
            named = (
                self._submission_log.new_submission_id()
                if submission_id is None
                else _normalize_submission_id(submission_id)
            )
            kept = await self._find_prior_answer(named)
            if kept is not None:
                return kept
            read = self.output.candidate(candidate)
            if isinstance(read, SchemaMismatch):
                plain = msgspec.json.encode(text_of(candidate)[:MAX_MESSAGE_CHARS])
                done = await self._account(
                    AnsweredSubmission(SchemaErrorFound(named), 0, plain, problems=read.problems)
                )
                if done is None:
                    return await self._answer_from_elsewhere(named)
                return self._answer(done, None, None, problems=read.problems)
            return await self._judge(named, read, agent_ctx or self._context)

    async def _find_prior_answer(self, submission_id: str) -> Passed | Rejected | None:
        """What was answered before; None for a submission that is new. Raises where the run is over without a pass."""
        kept = await self._submission_log.find_answer(submission_id)
        if kept is None and self.state.ended is VerificationEnding.PASSED:
            # Nothing comes after a pass, so that one is the last.
            kept = await self._submission_log.find_answer(self.state.submission_ids[-1])
        if kept is not None:
            return self._answer(kept.done, kept.said, self._restore_result(kept.said), replayed=True)
        if self.state.ended is not None:
            raise self._exhaustion_error(self.state.ended, "the run is over")
        return None

    async def _judge(self, submission_id: str, read: Candidate, context: AgentContext) -> Passed | Rejected:
        new = CandidateSubmitted(
            submission_id, read.hash, self.verifier.version, self.verifier.deterministic and read.is_lossless
        )
        self.state, actions = after(self.state, new)
        while True:
            returned = None
            recalled = (
                await self._submission_log.find_answer(actions[0].submission_id)
                if isinstance(actions[0], RecallRejection)
                else None
            )
            if recalled is not None and isinstance(recalled.said, Rejection):
                verdict = VerifierReport(recalled.said)
            else:
                verdict, returned = await ask_verifier(
                    read, self.verifier, self._supply(submission_id, context), self._timeout_s
                )
            happening = VerdictGiven(submission_id, read.hash, verdict.said, 0.0, self.verifier.version)
            written = msgspec.json.encode(read.plain)
            answered = AnsweredSubmission(happening, 0, written, self.verifier.version, judgement=verdict.judgement)
            done = await self._account(answered)
            if done is None:
                return await self._answer_from_elsewhere(submission_id)
            if done.pause_s is None:
                return self._answer(done, verdict.said, returned)
            await self._sleep(done.pause_s)

    async def _account(self, answered: AnsweredSubmission) -> SubmissionResult | None:
        """What becomes of a submission; None where another process has answered it, or ended the run, meanwhile."""
        done, self.state = await self._submission_log.submit(answered)
        return None if done.replayed else done

    async def _answer_from_elsewhere(self, submission_id: str) -> Passed | Rejected:
        before = await self._find_prior_answer(submission_id)
        # It was answered, or the run is over: else it would be counted now.
        assert before is not None  # noqa: S101
        return before

    def _supply(self, submission_id: str, context: AgentContext) -> dict[str, Any]:
        context.verification = self.state
        return {
            "agent_ctx": context,
            "execution_ctx": ExecutionContext(run_id=self.run_id, deps=self._deps),
            "attempt": self.state.attempts_used + 1,
            "max_attempts": self.state.limits.max_attempts,
            "submission_id": f"{self.run_id}:{submission_id}",
            "deps": self._deps,
        }

    def _answer(
        self,
        done: SubmissionResult,
        said: VerifierVerdict | None,
        returned: Any,
        *,
        problems: str = SCHEMA_ERROR,
        replayed: bool = False,
    ) -> Passed | Rejected:
        replayed = replayed or done.replayed
        if done.is_pass:
            return Passed(returned, done.attempt, replayed)
        if isinstance(said, SystemErrorVerdict):
            raise CouldNotVerify(said.error)
        code = said.code if isinstance(said, Rejection) else None
        if done.ending is not None:
            raise self._exhaustion_error(done.ending, said.message if isinstance(said, Rejection) else problems, code)
        return Rejected(done.feedback or "", done.attempt, done.attempts_used, done.counted, code, replayed)

    def _exhaustion_error(self, ending: VerificationEnding, message: str, code: str | None = None) -> Exception:
        if ending is VerificationEnding.SYSTEM_ERROR:
            return CouldNotVerify(message)
        return VerificationExhausted(ending.value, self.state.attempts_used, message, code)

    def _restore_result(self, said: VerifierVerdict | None) -> Any:
        return self.output.final(said.result) if isinstance(said, Acceptance) else None


class _MemorySubmissionLog:
    def __init__(self, limits: GateLimits) -> None:
        self._state = VerificationState(limits=limits)
        self._answers: dict[str, PriorAnswer] = {}

    async def state(self) -> VerificationState:
        return self._state

    async def find_answer(self, submission_id: str) -> PriorAnswer | None:
        return self._answers.get(submission_id)

    async def submit(self, answered: AnsweredSubmission) -> tuple[SubmissionResult, VerificationState]:
        happening, said = answered.event, None
        if isinstance(happening, VerdictGiven):
            happening, said = happening.with_time(time.time()), happening.said
        self._state, done = account(self._state, happening, problems=answered.problems)
        # The gate has looked for an earlier answer before it asked.
        assert done is not None  # noqa: S101
        if not isinstance(said, SystemErrorVerdict):
            self._answers[done.submission_id] = PriorAnswer(done, said)
        return done, self._state

    def new_submission_id(self) -> str:
        return f"#{len(self._state.submission_ids) + 1}"


class _StoreSubmissionLog:
    def __init__(self, store: Store, tenant: str, run_id: str, agent: str, limits: GateLimits) -> None:
        self._store, self._tenant, self._run_id = store, tenant, run_id
        self._open = QueueRun(tenant, agent, run_id, agent, RunRequest(""), limits, owner=f"host:{run_id}")
        self._decided: frozenset[str] = frozenset()

    async def state(self) -> VerificationState | None:
        with self._store.database.reading() as connection:
            try:
                found = agent_reading.find(connection, self._tenant, self._run_id).verification
            except NotFound:
                return None
        self._decided = frozenset(found.submission_ids)
        return found

    async def find_answer(self, submission_id: str) -> PriorAnswer | None:
        if submission_id not in self._decided:
            return None
        with self._store.database.reading() as connection:
            done = agent_reading.find_submission_result(connection, self._tenant, self._run_id, submission_id)
            said = agent_reading.find_verdict(connection, self._tenant, self._run_id, submission_id)
        return None if done is None else PriorAnswer(done, said)

    async def submit(self, answered: AnsweredSubmission) -> tuple[SubmissionResult, VerificationState]:
        judgement = answered.judgement
        write = Submit(
            *(self._tenant, self._run_id, answered.event, self._store.surroundings.entropy(SALT_BYTES)),
            candidate=answered.candidate,
            verifier_version=answered.verifier_version,
            problems=answered.problems,
            emit_started=True,
            outcome=None if judgement is None else outcome_of(self._store, self._tenant, judgement),
            open=self._open,
        )
        done, state = await self._store.recorder.record(HostSubmit(self._tenant, self._run_id, write))
        self._decided = frozenset(state.submission_ids)
        return done, state

    def new_submission_id(self) -> str:
        # Not the next number: another process that submits to the run would give the same to a candidate of its own.
        return self._store.surroundings.new_id("sub")


def _normalize_submission_id(submission_id: str) -> str:
    """A host's name for a submission, as a database keeps it; some providers' ids of calls are very long."""
    if not isinstance(submission_id, str):
        raise AgentError(f"submission_id is of type {type(submission_id).__name__}; give text")
    if len(submission_id) <= MAX_NAME and submission_id.isprintable():
        return submission_id
    return f"sha256:{sha256(submission_id.encode(errors='backslashreplace')).hexdigest()}"
