"""A gate for a loop that its host owns: submit a candidate, get the final result or feedback for the model."""

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from meruit.documents.sanitize import text_of
from meruit.errors import AgentError, CouldNotVerify, VerificationExhausted
from meruit.gate.accounting import PriorAnswer
from meruit.gate.ask_verifier import MAX_MESSAGE_CHARS
from meruit.gate.context import AgentContext, ExecutionContext
from meruit.gate.definition import VERIFY_TIMEOUT_S, SchemaMismatch, output_type_of
from meruit.gate.journal import Journal, MemoryJournal, StoreJournal
from meruit.gate.limits import GateLimits, budget, validate_count, validate_seconds
from meruit.gate.run import RunRequest
from meruit.gate.state import VerificationEnding, VerificationState
from meruit.gate.store.runs import QueueRun
from meruit.gate.submission import CandidateSubmission, SubmissionDecision, Submitter
from meruit.gate.verdict import Acceptance, SystemErrorVerdict
from meruit.model.access import DEFAULT_TENANT
from meruit.store.store import Store

MAX_NAME = 200
"""Characters of a submission id."""
SCHEMA_ERROR = "the output does not match its schema"
"""Message of a schema error that was answered before: its problems are not stored."""


class Passed(NamedTuple):
    """The candidate passed; `result` is the final result."""

    result: Any
    attempt: int
    replayed: bool = False


class Rejected(NamedTuple):
    """The candidate was rejected; `feedback` is for the model."""

    feedback: str
    attempt: int
    attempts_used: int
    counted: bool
    code: str | None = None
    replayed: bool = False


class Gate:
    """Judges the submissions of one run: each rejection is counted exactly once, and a pass is final."""

    def __init__(  # noqa: PLR0913 - one for each setting of a host
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
        self._context = AgentContext(run_id=self.run_id, agent=agent)
        self._turn = asyncio.Lock()

        async def pause(seconds: float, _error: str | None) -> None:
            await sleep(seconds)

        journal: Journal = MemoryJournal()
        if store is not None:
            request, owner = RunRequest(""), f"host:{self.run_id}"
            opens = QueueRun(tenant, agent, self.run_id, agent, request, limits, owner=owner)
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
        self, candidate: Any, *, submission_id: str | None = None, agent_ctx: AgentContext | None = None
    ) -> Passed | Rejected:
        """Judge a candidate: an instance of the output type, or data that makes one.

        The same `submission_id` twice is one submission, with one answer. Raises VerificationExhausted once the run is
        over without a pass, and CouldNotVerify where the verifier broke too often; neither counts as an attempt.
        """
        submitter = self._submitter
        # One after the other: an attempt is counted before the next one is judged.
        async with self._turn:
            submitter.state = await submitter.journal.load_state() or submitter.state
            name = (
                submitter.journal.new_submission_id(submitter.state)
                if submission_id is None
                else _normalize_submission_id(submission_id)
            )
            prior = await self._find_prior_answer(name)
            if prior is not None:
                return prior
            read = self.output.candidate(candidate)
            submission = CandidateSubmission(name, read, agent_ctx or self._context)
            if isinstance(read, SchemaMismatch):
                shown = msgspec.json.encode(text_of(candidate)[:MAX_MESSAGE_CHARS])
                submission = submission._replace(payload=shown)
            decision = await submitter.submit(submission)
            if not decision.result.replayed:
                return self._answer(decision)
            # Another process has answered it, or ended the run, since this one looked.
            prior = await self._find_prior_answer(name)
            assert prior is not None  # noqa: S101
            return prior

    async def _find_prior_answer(self, submission_id: str) -> Passed | Rejected | None:
        """Find the earlier answer to a submission; None for a new one. Raises where the run is over without a pass."""
        state = self.state
        if submission_id not in state.submission_ids and state.ended is VerificationEnding.PASSED:
            # Nothing comes after a pass, so the last submission is the one that passed.
            submission_id = state.submission_ids[-1]
        if submission_id in state.submission_ids:
            prior = await self._submitter.journal.find_answer(submission_id)
            if prior is not None:
                return self._replay(prior)
        if state.ended is not None:
            raise self._exhaustion_error(state.ended, "the run is over")
        return None

    def _replay(self, prior: PriorAnswer) -> Passed | Rejected:
        returned = self.output.final(prior.said.result) if isinstance(prior.said, Acceptance) else None
        return self._answer(SubmissionDecision(prior.done, prior.said, returned, SCHEMA_ERROR), replayed=True)

    def _answer(self, decision: SubmissionDecision, *, replayed: bool = False) -> Passed | Rejected:
        result = decision.result
        if result.is_pass:
            return Passed(decision.returned, result.attempt, replayed)
        if isinstance(decision.verdict, SystemErrorVerdict):
            raise CouldNotVerify(decision.verdict.error)
        if result.ending is not None:
            raise self._exhaustion_error(result.ending, decision.error or "", decision.code)
        return Rejected(
            result.feedback or "", result.attempt, result.attempts_used, result.counted, decision.code, replayed
        )

    def _exhaustion_error(self, ending: VerificationEnding, message: str, code: str | None = None) -> Exception:
        if ending is VerificationEnding.SYSTEM_ERROR:
            return CouldNotVerify(message)
        return VerificationExhausted(ending.value, self.state.attempts_used, message, code)


def _normalize_submission_id(submission_id: str) -> str:
    """Shorten an id that is too long or not printable: some providers' ids of tool calls are very long."""
    if not isinstance(submission_id, str):
        raise AgentError(f"submission_id is of type {type(submission_id).__name__}; pass text")
    if len(submission_id) <= MAX_NAME and submission_id.isprintable():
        return submission_id
    return f"sha256:{sha256(submission_id.encode(errors='backslashreplace')).hexdigest()}"
