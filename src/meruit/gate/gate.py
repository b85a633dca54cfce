"""A gate for a loop that its host owns: submit a candidate, get the final result or feedback for the model."""

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any

import msgspec

from meruit.documents.sanitize import text_of
from meruit.errors import (
    AgentError,
    AgentRunConflict,
    CouldNotVerify,
    NotJsonSerializable,
    SubmissionConflict,
    VerificationExhausted,
    VerificationWaiting,
)
from meruit.gate.accounting import PriorAnswer, payload_hash
from meruit.gate.candidate import to_json_value
from meruit.gate.context import AgentContext, ExecutionContext
from meruit.gate.definition import VERIFY_TIMEOUT_S, Candidate, SchemaMismatch, output_type_of
from meruit.gate.interpret import MAX_MESSAGE_CHARS
from meruit.gate.journal import Journal, MemoryJournal, NewDeferral, StoreJournal
from meruit.gate.limits import GateLimits, budget, validate_count, validate_seconds
from meruit.gate.run import RunRequest
from meruit.gate.state import OpenDeferral, VerificationEnding, VerificationState, VerifierDeferred
from meruit.gate.store.runs import QueueRun
from meruit.gate.store.submissions import DeferredCandidate
from meruit.gate.submission import CandidateSubmission, DeferredSubmission, SubmissionDecision, Submitter
from meruit.gate.verdict import Acceptance, Passed, Rejected, SystemErrorVerdict
from meruit.model.access import DEFAULT_TENANT
from meruit.model.chat import Usage
from meruit.store.store import Store

MAX_NAME = 200
"""Characters of a submission id."""
SCHEMA_ERROR = "the output does not match its schema"
"""Message of a schema error that was answered before: its problems are not stored."""
POLL_S = 1.0
"""Pause between two polls for an answer, where `submit` itself waits for it."""
# Any: stands for a value that is not given; None is a valid answer.
_NOT_GIVEN: Any = object()


class Gate:
    """Judges the submissions of one run: each rejection is counted exactly once, and a pass is final."""

    def __init__(  # noqa: PLR0913 - one for each setting of a host
        self,
        output_type: Any,
        *,
        verify: Callable[..., Any] | None = None,
        reject_on: tuple[type[Exception], ...] = (),
        max_attempts: int | None = None,
        no_progress_limit: int = 3,
        schema_error_limit: int = 3,
        system_error_limit: int = 5,
        timeout_s: float | None = VERIFY_TIMEOUT_S,
        wait_s: float | None = None,
        run_id: str | None = None,
        agent: str = "gate",
        query: str = "",
        store: Store | None = None,
        tenant: str = DEFAULT_TENANT,
        deps: Any = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if store is not None and not isinstance(store, Store):
            raise AgentError(
                f"the store is of type {type(store).__name__}; open one: store=meruit.open_records({store!r})"
            )
        self.output = output_type_of(output_type, verify, reject_on)
        if self.output.verifier is None:
            raise AgentError(
                f"{self.output.name} has no verify method; add one, or pass a function to the gate as verify=…"
            )
        self.verifier = self.output.verifier
        limits = GateLimits(
            budget(max_attempts, None, self.output.budget),
            validate_count(no_progress_limit, "no_progress_limit"),
            validate_count(schema_error_limit, "schema_error_limit"),
            validate_count(system_error_limit, "system_error_limit"),
        )
        self.run_id = run_id or ("run" if store is None else store.surroundings.new_id("run"))
        self.agent = agent
        self._context = AgentContext(run_id=self.run_id, agent=agent, query=query)
        self._turn = asyncio.Lock()
        self._sleep, self._wait_s = sleep, validate_seconds(wait_s, "wait_s") or 0.0

        async def pause(seconds: float, _error: str | None) -> None:
            await sleep(seconds)

        journal: Journal
        if store is None:
            journal = MemoryJournal()
        else:
            request, owner = RunRequest(query), f"host:{self.run_id}"
            opens = QueueRun(
                tenant=tenant, by=agent, id=self.run_id, agent=agent, request=request, limits=limits, owner=owner
            )
            # No other process has a run whose id was made here; one with an id of the host's may be shared.
            journal = StoreJournal.for_host(store, opens, is_shared=run_id is not None)
        self._submitter = Submitter(
            journal,
            self.output,
            VerificationState(limits=limits),
            ExecutionContext(run_id=self.run_id, deps=deps),
            timeout_s=validate_seconds(timeout_s, "timeout_s"),
            pause=pause,
        )

    @property
    def state(self) -> VerificationState:
        """How far the run has come with its verifier."""
        return self._submitter.state

    async def submit(
        self,
        candidate: Any,
        *,
        submission_id: str | None = None,
        agent_ctx: AgentContext | None = None,
        usage: Usage | None = None,
    ) -> Passed | Rejected:
        """Judge a candidate: an instance of the output type, or data that makes one.

        The same `submission_id` twice is one submission, with one answer; with another candidate it raises
        SubmissionConflict. Raises VerificationExhausted once the run is over without a pass, CouldNotVerify where the
        verifier broke too often, and VerificationWaiting where it waits for an answer; neither of the last two counts
        as an attempt. `usage` has the tokens of the run so far, for the record.
        """
        read = self.output.candidate(candidate)
        payload = b"null"
        if isinstance(read, SchemaMismatch):
            payload = msgspec.json.encode(text_of(candidate)[:MAX_MESSAGE_CHARS])
        # One after the other: an attempt is counted before the next one is judged.
        async with self._turn:
            await self._load_state()
            name = self._name_submission(submission_id, read)
            context = agent_ctx or self._context
            return await self._submit(
                CandidateSubmission(
                    id=name, read=read, context=context, payload=payload, turn=context.turn, usage=usage
                )
            )

    # Any: JSON of the client's own.
    async def resume(
        self, value: Any = _NOT_GIVEN, *, key: str | None = None, agent_ctx: AgentContext | None = None
    ) -> Passed | Rejected:
        """Answer the verifier of the submission that waits, and judge that submission.

        Without a value, the answer that another client has given is used. `key` is that of VerificationWaiting: with
        it, the same value again changes nothing, and another value raises AgentRunConflict.
        """
        await self._load_state()
        waiting = self.state.deferred
        named = key or (None if waiting is None else waiting.key)
        if named is None:
            raise AgentRunConflict(f"run {self.run_id} does not wait for an answer")
        if value is not _NOT_GIVEN:
            await self._submitter.journal.answer(named, _encode_answer(value))
        async with self._turn:
            await self._load_state()
            return await self._submit(await self._restore_deferred(named, agent_ctx or self._context))

    async def _restore_deferred(self, key: str, context: AgentContext) -> CandidateSubmission:
        """Rebuild the submission that waits, or waited, for that answer; raises AgentRunConflict."""
        found = await self._submitter.journal.find_deferred_candidate(key)
        if found is None:
            raise AgentRunConflict(f"run {self.run_id} does not wait for {key!r}")
        if not found.is_lossless:
            raise AgentRunConflict(
                f"the record of run {self.run_id} does not show all of the candidate that waits (a secret, an "
                "excluded field); submit the same candidate again"
            )
        read = self.output.candidate(self.output.restore(msgspec.json.decode(found.candidate)))
        return CandidateSubmission(id=found.submission_id, read=read, context=context)

    async def _submit(self, submission: CandidateSubmission) -> Passed | Rejected:
        prior = await self._find_prior_answer(submission)
        if prior is not None:
            return prior
        waiting = self.state.deferred
        if waiting is not None and submission.id != waiting.submission_id:
            # The host has lost the candidate that waits; its answer is due first.
            await self._poll_answer(waiting)
            await self._submit(await self._restore_deferred(waiting.key, submission.context))
            return await self._submit(submission)
        if waiting is not None:
            if _content_of(submission) != waiting.candidate_hash:
                raise SubmissionConflict(submission.id)
            submission = msgspec.structs.replace(submission, answer=await self._poll_answer(waiting))
        decision = await self._submitter.submit(submission, self._wait_for_answer)
        if not decision.result.replayed:
            return self._answer(decision)
        # Another process has answered it, or ended the run, since this one looked.
        prior = await self._find_prior_answer(submission)
        assert prior is not None  # noqa: S101
        return prior

    async def _load_state(self) -> None:
        self._submitter.state = await self._submitter.journal.load_state() or self._submitter.state

    def _name_submission(self, submission_id: str | None, read: Candidate | SchemaMismatch) -> str:
        """Name the submission. A candidate that waits for an answer keeps its id."""
        waiting = self.state.deferred
        named = None if submission_id is None else _normalize_submission_id(submission_id)
        if waiting is not None and isinstance(read, Candidate) and read.hash == waiting.candidate_hash:
            return named if named in self.state.submission_ids else waiting.submission_id
        return self._submitter.journal.new_submission_id(self.state) if named is None else named

    async def _find_prior_answer(self, submission: CandidateSubmission) -> Passed | Rejected | None:
        """Find the earlier answer to a submission; None for a new one. Raises where the run is over without a pass."""
        state, submission_id = self.state, submission.id
        is_known = submission_id in state.submission_ids
        if not is_known and state.ended is VerificationEnding.PASSED:
            # Nothing comes after a pass, so the last submission is the one that passed.
            submission_id = state.submission_ids[-1]
        if submission_id in state.submission_ids:
            prior = await self._submitter.journal.find_answer(submission_id)
            if prior is not None:
                if is_known and prior.content != _content_of(submission):
                    raise SubmissionConflict(submission_id)
                return self._replay(prior)
        if state.ended is not None:
            raise self._exhaustion_error(state.ended, "the run is over")
        return None

    async def _poll_answer(self, waiting: OpenDeferral) -> bytes:
        """Wait for the answer as long as the host allows; raises VerificationWaiting."""
        left_s = self._wait_s
        while (given := await self._submitter.journal.find_answer_to(waiting)) is None:
            if left_s <= 0:
                raise self._waiting_error(waiting)
            await self._sleep(min(POLL_S, left_s))
            left_s -= POLL_S
        return given

    async def _wait_for_answer(self, deferred: DeferredSubmission) -> bytes | None:
        """Record that the submission waits, and wait as long as the host allows; a pause is slept."""
        submission, candidate, deferral = deferred.submission, deferred.candidate, deferred.deferral
        if deferral.pause_s is not None:
            await self._sleep(deferral.pause_s)
            return submission.answer
        event = VerifierDeferred(
            submission_id=submission.id,
            candidate_hash=candidate.hash,
            deferral=deferral,
            at=0.0,
            verifier_version=deferred.verifier_version,
        )
        stored = DeferredCandidate(submission.id, msgspec.json.encode(candidate.plain), candidate.is_lossless)
        new = NewDeferral(event=event, candidate=stored, turn=submission.turn, usage=submission.usage)
        submitter = self._submitter
        submitter.state = submission.context.verification = await submitter.journal.defer(submitter.state, new)
        # The journal has just recorded it.
        assert submitter.state.deferred is not None  # noqa: S101
        return await self._poll_answer(submitter.state.deferred)

    def _waiting_error(self, waiting: OpenDeferral) -> VerificationWaiting:
        return VerificationWaiting(self.run_id, waiting.key, waiting.note, self)

    def _replay(self, prior: PriorAnswer) -> Passed | Rejected:
        returned = self.output.final(prior.verdict.result) if isinstance(prior.verdict, Acceptance) else None
        return self._answer(
            SubmissionDecision(result=prior.done, verdict=prior.verdict, returned=returned, problems=SCHEMA_ERROR),
            replayed=True,
        )

    def _answer(self, decision: SubmissionDecision, *, replayed: bool = False) -> Passed | Rejected:
        result = decision.result
        if result.is_pass:
            return Passed(result=decision.returned, attempt=result.attempt, replayed=replayed)
        if isinstance(decision.verdict, SystemErrorVerdict):
            raise CouldNotVerify(decision.verdict.error)
        if result.ending is not None:
            raise self._exhaustion_error(result.ending, decision.error or "", decision.code)
        return Rejected(
            feedback=result.feedback or "",
            attempt=result.attempt,
            attempts_used=result.attempts_used,
            counted=result.counted,
            code=decision.code,
            replayed=replayed,
        )

    def _exhaustion_error(self, ending: VerificationEnding, message: str, code: str | None = None) -> Exception:
        if ending is VerificationEnding.SYSTEM_ERROR:
            return CouldNotVerify(message)
        return VerificationExhausted(ending.value, self.state.attempts_used, message, code)


def _content_of(submission: CandidateSubmission) -> str:
    read = submission.read
    return read.hash if isinstance(read, Candidate) else payload_hash(submission.payload)


# Any: JSON of the client's own.
def _encode_answer(value: Any) -> bytes:
    try:
        return msgspec.json.encode(to_json_value(value))
    except NotJsonSerializable as problem:
        raise AgentError(f"the answer is not JSON serializable: {problem}") from None


def _normalize_submission_id(submission_id: str) -> str:
    """Shorten an id that is too long or not printable: some providers' ids of tool calls are very long."""
    if not isinstance(submission_id, str):
        raise AgentError(f"submission_id is of type {type(submission_id).__name__}; pass text")
    if len(submission_id) <= MAX_NAME and submission_id.isprintable():
        return submission_id
    return f"sha256:{sha256(submission_id.encode(errors='backslashreplace')).hexdigest()}"
