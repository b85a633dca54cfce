"""The journal of a run: what the gate decided about its submissions, and the steps of a run that a worker drives.

There is one protocol with two implementations: `MemoryJournal` for a run that need not outlive its process, and
`StoreJournal` for a run in a store. A host's own loop (`Gate`) records submissions only. A driven run (`loop.py`)
also records each step under a key, so that a later worker repeats none of them.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from meruit.errors import AgentRunConflict, NotFound, RunCancelled
from meruit.gate.accounting import (
    AccountedSubmission,
    AnsweredSubmission,
    PriorAnswer,
    SubmissionResult,
    account,
    content_of,
    give_up,
    replay,
)
from meruit.gate.context import CriteriaJudgement
from meruit.gate.run import AgentRun, RunState
from meruit.gate.state import OpenDeferral, VerdictGiven, VerificationState, VerifierDeferred, advance
from meruit.gate.store import read as agent_reading
from meruit.gate.store.rows import prepend_submissions
from meruit.gate.store.runs import WAIT, QueueRun, RecordStep, ResumeRun
from meruit.gate.store.submissions import DEFERRED, DeferredCandidate, DeferSubmission, GiveUp, RecordedState, Submit
from meruit.gate.verdict import SystemErrorVerdict
from meruit.log.commitment import SALT_BYTES
from meruit.model.canonical import canonical
from meruit.model.chat import ModelAnswer, Usage
from meruit.outcomes.records import NewOutcome
from meruit.outcomes.service import draft_outcome
from meruit.store.store import Store

StepFunction = Callable[[], Awaitable[bytes]]
DescribeStart = Callable[[bytes], dict[str, Any] | None]
"""Given the result of a step, describe the verification that starts with it; None where none does."""
TIMED_OUT = b""
"""Recorded instead of an answer that did not come in time; no client can send it, because it is not JSON."""
GIVE_UP = "give_up"
"""Key of the step that ends a verification for lack of turns."""


class NewDeferral(msgspec.Struct, frozen=True):
    """A host's submission whose verifier needs an answer."""

    event: VerifierDeferred
    candidate: DeferredCandidate
    turn: int = 0
    usage: Usage | None = None


class Journal(Protocol):
    """Storage of one run's submissions and steps."""

    async def load_state(self) -> VerificationState | None:
        """Read the state where another process may have changed it; None where the caller's own is current."""
        ...

    async def find_answer(self, submission_id: str) -> PriorAnswer | None:
        """Find the answer to an earlier submission."""
        ...

    async def submit(
        self, state: VerificationState, submission: AnsweredSubmission, key: str | None = None
    ) -> AccountedSubmission:
        """Account for a submission exactly once.

        `state` is the caller's state before it. With a key, the result is a step: submitted again under the same key,
        it is replayed.
        """
        ...

    async def give_up(self, state: VerificationState) -> SubmissionResult:
        """End the verification of a run that has no turn left."""
        ...

    async def defer(self, state: VerificationState, deferred: NewDeferral) -> VerificationState:
        """Record that a host's submission waits for an answer; return the state with the open deferral."""
        ...

    async def answer(self, key: str, value: bytes) -> None:
        """Record the answer of a client: the same one twice counts once, another one raises AgentRunConflict."""
        ...

    async def find_answer_to(self, waiting: OpenDeferral) -> bytes | None:
        """Find the answer that a host's submission waits for: as JSON, TIMED_OUT, or None where none came yet."""
        ...

    async def find_deferred_candidate(self, key: str) -> DeferredCandidate | None:
        """Find the candidate that waits, or waited, for that answer."""
        ...

    def new_submission_id(self, state: VerificationState) -> str:
        """Make an id for a submission that its host does not name."""
        ...

    def find_step(self, key: str) -> bytes | None:
        """Find the recorded result of a step."""
        ...

    async def step(self, key: str, work: StepFunction, started: DescribeStart | None = None) -> bytes:
        """Return the result of a step: recorded earlier, or made and recorded now."""
        ...


class MemoryJournal:
    """A journal for a run that need not outlive its process."""

    def __init__(self, clock: Callable[[], float] = time.time, answers: dict[str, PriorAnswer] | None = None) -> None:
        self.answers: dict[str, PriorAnswer] = {} if answers is None else {**answers}
        """By submission id."""
        self._clock = clock
        self._steps: dict[str, bytes] = {}
        self._accounted: dict[str, AccountedSubmission] = {}
        self._deferred: dict[str, DeferredCandidate] = {}
        """Candidates that wait or waited for an answer, by its key."""

    async def load_state(self) -> VerificationState | None:
        """Return None: no other process submits to this run."""
        return None

    async def find_answer(self, submission_id: str) -> PriorAnswer | None:
        """Find the answer to an earlier submission."""
        return self.answers.get(submission_id)

    async def submit(
        self, state: VerificationState, submission: AnsweredSubmission, key: str | None = None
    ) -> AccountedSubmission:
        """Account for a submission, without a record."""
        known = None if key is None else self._accounted.get(key)
        if known is not None:
            return msgspec.structs.replace(known, is_new=False)
        event, verdict = submission.event, None
        if isinstance(event, VerdictGiven):
            event, verdict = event.with_time(self._clock()), event.said
        state, result = account(state, event, problems=submission.problems)
        # The caller has looked for an earlier answer before it called the verifier.
        assert result is not None  # noqa: S101
        if not isinstance(verdict, SystemErrorVerdict):
            content = content_of(event, submission.candidate)
            self.answers[result.submission_id] = PriorAnswer(done=result, verdict=verdict, content=content)
        accounted = AccountedSubmission(result, state)
        if key is not None:
            self._accounted[key] = accounted
        return accounted

    async def give_up(self, state: VerificationState) -> SubmissionResult:
        """End the verification of a run that has no turn left."""
        return give_up(state, self._clock())[1]

    async def defer(self, state: VerificationState, deferred: NewDeferral) -> VerificationState:
        """Keep the candidate until the answer comes."""
        state = advance(state, msgspec.structs.replace(deferred.event, at=self._clock()))[0]
        # The caller has looked for an earlier answer before it called the verifier.
        assert state.deferred is not None  # noqa: S101
        self._deferred[state.deferred.key] = deferred.candidate
        return state

    async def answer(self, key: str, value: bytes) -> None:
        """Keep the answer of a client, unless it has another."""
        if key not in self._deferred:
            raise AgentRunConflict(f"the run does not wait for {key!r}")
        if self._steps.setdefault(f"{WAIT}{key}", value) != value:
            raise AgentRunConflict(f"the run already has another value for {key!r}")

    async def find_answer_to(self, waiting: OpenDeferral) -> bytes | None:
        """Find the answer, or TIMED_OUT."""
        given = self._steps.get(f"{WAIT}{waiting.key}")
        if given is None and waiting.until is not None and self._clock() >= waiting.until:
            return TIMED_OUT
        return given

    async def find_deferred_candidate(self, key: str) -> DeferredCandidate | None:
        """Find the candidate that waits, or waited, for that answer."""
        return self._deferred.get(key)

    def new_submission_id(self, state: VerificationState) -> str:
        """Number the submissions of the run."""
        return f"#{len(state.submission_ids) + 1}"

    def find_step(self, key: str) -> bytes | None:
        """Find the result of a step."""
        return self._steps.get(key)

    async def step(self, key: str, work: StepFunction, started: DescribeStart | None = None) -> bytes:  # noqa: ARG002 - memory emits no events
        """Return the result of a step, made once."""
        if key not in self._steps:
            self._steps[key] = await work()
        return self._steps[key]


class StoreJournal:
    """A journal in our own tables, for a host's own loop or for a worker that drives the run."""

    def __init__(
        self, store: Store, tenant: str, run_id: str, *, owner: str | None = None, opens: QueueRun | None = None
    ) -> None:
        self.has_new_steps = False
        """Whether a step was recorded through this journal."""
        self.is_shared = False
        """Whether other processes may submit to the run as well."""
        self._store, self._tenant, self._run_id = store, tenant, run_id
        self._owner, self._opens = owner, opens
        self._steps: dict[str, bytes] = {}
        self._state = VerificationState()
        """As it was known last; its submissions are not read again."""

    @classmethod
    def for_host(cls, store: Store, opens: QueueRun, *, is_shared: bool) -> "StoreJournal":
        """Open the journal of a run that a host's own loop begins with its first submission."""
        journal = cls(store, opens.tenant, opens.id, opens=opens)
        journal.is_shared = is_shared
        return journal

    @classmethod
    def for_worker(cls, store: Store, tenant: str, run_id: str, owner: str) -> "StoreJournal":
        """Read the journal of a run that a worker has claimed with the token `owner`."""
        journal = cls(store, tenant, run_id, owner=owner)
        with store.database.reading() as connection:
            journal._steps = agent_reading.steps(connection, tenant, run_id)
        return journal

    async def load_state(self) -> VerificationState | None:
        """Read the state of a run that other processes may submit to."""
        if not self.is_shared:
            return None
        with self._store.database.reading() as connection:
            try:
                self._state = agent_reading.find_state(connection, self._tenant, self._run_id, self._state)
            except NotFound:
                return None
        return self._state

    async def find_answer(self, submission_id: str) -> PriorAnswer | None:
        """Find the answer to an earlier submission."""
        with self._store.database.reading() as connection:
            return agent_reading.find_answer(connection, self._tenant, self._run_id, submission_id)

    async def submit(
        self, state: VerificationState, submission: AnsweredSubmission, key: str | None = None
    ) -> AccountedSubmission:
        """Record submission, budget, feedback, events and outcome in one transaction, exactly once."""
        known = None if key is None else self._steps.get(key)
        if known is not None:
            result = SubmissionResult.from_json(known)
            return AccountedSubmission(result, replay(state, submission.event, result), is_new=False)
        judgement = submission.judgement
        write = Submit(
            tenant=self._tenant,
            run_id=self._run_id,
            event=submission.event,
            salt=self._store.surroundings.entropy(SALT_BYTES),
            owner=self._owner,
            key=key,
            turn=submission.turn,
            candidate=submission.candidate,
            verifier_version=submission.verifier_version,
            problems=submission.problems,
            # The step that recorded the model's answer has emitted it for a driven run.
            emit_started=self._owner is None,
            was_deferred=submission.was_deferred,
            usage=submission.usage,
            outcome=None if judgement is None else outcome_of(self._store, self._tenant, judgement),
            open=self._opens,
            known=state,
        )
        written = await self._store.recorder.record(write)
        if key is not None:
            self._remember(key, written.result.to_json())
        return AccountedSubmission(written.result, self._complete(state, written.recorded), is_new=written.is_new)

    async def give_up(self, state: VerificationState) -> SubmissionResult:  # noqa: ARG002 - the row has it
        """End the verification of a run that has no turn left."""
        result = await self._store.recorder.record(
            GiveUp(tenant=self._tenant, run_id=self._run_id, owner=self._owner, key=GIVE_UP)
        )
        self._remember(GIVE_UP, result.to_json())
        return result

    async def defer(self, state: VerificationState, deferred: NewDeferral) -> VerificationState:
        """Record the candidate, and let the run wait for the answer."""
        write = DeferSubmission(
            tenant=self._tenant,
            run_id=self._run_id,
            event=deferred.event,
            candidate=deferred.candidate,
            turn=deferred.turn,
            usage=deferred.usage,
            open=self._opens,
        )
        return self._complete(state, await self._store.recorder.record(write))

    async def answer(self, key: str, value: bytes) -> None:
        """Record the answer of a client and let the run continue."""
        await self._store.recorder.record(ResumeRun(tenant=self._tenant, id=self._run_id, key=key, value=value))

    async def find_answer_to(self, waiting: OpenDeferral) -> bytes | None:
        """Find the answer, or TIMED_OUT; raises RunCancelled."""
        with self._store.database.reading() as connection:
            run = agent_reading.find(connection, self._tenant, self._run_id)
            given = agent_reading.find_step(connection, self._tenant, self._run_id, f"{WAIT}{waiting.key}")
        if run.status is RunState.CANCELLED:
            raise RunCancelled(f"run {self._run_id} was cancelled")
        if (
            given is None
            and waiting.until is not None
            and self._store.surroundings.clock().timestamp() >= waiting.until
        ):
            return TIMED_OUT
        return given

    async def find_deferred_candidate(self, key: str) -> DeferredCandidate | None:
        """Find the candidate that waits, or waited, for that answer."""
        with self._store.database.reading() as connection:
            written = agent_reading.find_step(connection, self._tenant, self._run_id, f"{DEFERRED}{key}")
        return None if written is None else DeferredCandidate.from_json(written)

    def new_submission_id(self, state: VerificationState) -> str:  # noqa: ARG002 - see below
        """Make an id that no other process makes."""
        # Not the next number: another process on the same run would use it for a candidate of its own.
        return self._store.surroundings.new_id("sub")

    def find_step(self, key: str) -> bytes | None:
        """Find the recorded result of a step."""
        return self._steps.get(key)

    async def step(self, key: str, work: StepFunction, started: DescribeStart | None = None) -> bytes:
        """Return the result of a step; raises RunFenced where another worker drives the run by now."""
        known = self._steps.get(key)
        if known is not None:
            return known
        # Only a worker records steps, and it has a token.
        assert self._owner is not None  # noqa: S101
        made = await work()
        start = None if started is None else started(made)
        write = RecordStep(tenant=self._tenant, id=self._run_id, owner=self._owner, key=key, body=made, started=start)
        recorded = await self._store.recorder.record(write)
        self._remember(key, recorded)
        return recorded

    def usage_so_far(self, run: AgentRun) -> AgentRun:
        """Return the run with the usage and turns of the recorded answers of its model."""
        answers = [ModelAnswer.from_json(body) for key, body in self._steps.items() if key.startswith("turn:")]
        if not answers:
            return run
        usage = sum((one.usage for one in answers), Usage())
        return msgspec.structs.replace(run, usage=usage, turn=len(answers))

    def _complete(self, known: VerificationState, recorded: RecordedState) -> VerificationState:
        """Add the submissions before its transaction to a state: they are known here, unless others submit as well."""
        state, count = recorded.state, recorded.submissions
        if len(known.submission_ids) + len(state.submission_ids) == count:
            self._state = prepend_submissions(known, state)
            return self._state
        with self._store.database.reading() as connection:
            whole = agent_reading.extend_submissions(connection, self._tenant, self._run_id, known, count)
        self._state = msgspec.structs.replace(state, submission_ids=whole.submission_ids, rejected=whole.rejected)
        return self._state

    def _remember(self, key: str, body: bytes) -> None:
        self._steps[key] = body
        self.has_new_steps = True


def outcome_of(store: Store, tenant: str, judgement: CriteriaJudgement) -> NewOutcome:
    """Draft the outcome of a gate's criteria for the recorder."""
    work = (judgement.input, judgement.output, judgement.metadata)
    outcome_id = store.surroundings.new_id("out")
    return draft_outcome(store, tenant, outcome_id, work, judgement.result, canonical(judgement.criteria))
