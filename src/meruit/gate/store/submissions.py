"""The writes of a submission: its row, the budget, feedback, events and audit log, in one transaction."""

from typing import Any

import msgspec

from meruit.errors import AgentRunConflict, RunCancelled, RunFenced, SubmissionConflict
from meruit.gate.accounting import (
    SubmissionResult,
    account,
    content_of,
    give_up,
    payload_hash,
)
from meruit.gate.run import FINAL_STATES, AgentRun, GateSubmission, RunState, SubmissionOutcome
from meruit.gate.state import (
    AwaitAnswer,
    SchemaErrorFound,
    VerdictGiven,
    VerificationEnding,
    VerificationState,
    VerifierDeferred,
    advance,
)
from meruit.gate.store.rows import (
    AgentRunRow,
    batch_reads,
    find_run_row,
    find_step,
    insert_step,
    learn_pass,
    load_run_row,
    look_up_submission,
    save,
    save_verification,
)
from meruit.gate.store.runs import (
    QueueRun,
    RunFailure,
    check_owner,
    clear_errors,
    emit_run_event,
    emit_verification_started,
    end_run,
    has_start_event,
)
from meruit.gate.verdict import Acceptance, Rejection, SystemErrorVerdict, failure_message
from meruit.log.commitment import commitment
from meruit.log.entries import GateEntry
from meruit.model.chat import Usage
from meruit.model.events import EventType
from meruit.model.record import Record
from meruit.model.time import from_micros
from meruit.outcomes.records import NewOutcome
from meruit.store import tables
from meruit.store.rows import Rows
from meruit.store.transaction import WriteTransaction

DEFERRED = "deferred:"
"""Prefix of the keys of steps that hold a candidate whose verifier waits for an answer."""


@batch_reads
class Submit(msgspec.Struct, frozen=True):
    """Account for a submission and the verifier's answer to it."""

    tenant: str
    run_id: str
    event: VerdictGiven | SchemaErrorFound
    salt: bytes
    owner: str | None = None
    """Token of the worker that drives the run; None for a host's own loop."""
    turn: int = 0
    candidate: bytes = b"null"
    """As JSON."""
    verifier_version: str | None = None
    problems: str = ""
    """Schema problems of a payload that is not a valid candidate."""
    emit_started: bool = False
    """Whether the event that its verification started is still to be emitted."""
    outcome: NewOutcome | None = None
    """Result of the criteria that verified it, to be recorded with it."""
    open: QueueRun | None = None
    """The run, where a host's own loop begins it with its first submission."""
    key: str | None = None
    """Step of the journal under which the result is recorded; None for a host's own loop."""
    was_deferred: bool = False
    """Whether it waited for an answer; then the event that its verification started was emitted."""
    usage: Usage | None = None
    """Tokens of the run so far, where its host counts them."""
    known: VerificationState | None = None
    """The state of the run before it, as far as the caller knows its submissions."""

    def __call__(self, writing: WriteTransaction) -> "RecordedSubmission":
        """Count it once by the rules of the gate and emit its events; return also the state of the run afterwards.

        Other processes may submit to the run of a host, so only this transaction knows that state.
        """
        row = self._load_run(writing)
        if self.owner is not None:
            check_owner(row, self.owner)
        else:
            _check_host(row)
        recorded = None if self.key is None else find_step(writing, self.tenant, self.run_id, self.key)
        if recorded is not None:
            result = SubmissionResult.from_json(recorded)
            return RecordedSubmission(result, recorded_state_of(row), is_new=False)
        result = self._account(writing, row)
        if self.key is not None:
            record_result(writing, self.tenant, self.run_id, self.key, result)
        row = load_run_row(writing, self.tenant, self.run_id)
        return RecordedSubmission(result, recorded_state_of(row))

    def _account(self, writing: WriteTransaction, row: AgentRunRow) -> SubmissionResult:
        event = self.event
        if isinstance(event, VerdictGiven):
            event = event.with_time(writing.now.micros / 1_000_000)
        is_rejection = isinstance(event, VerdictGiven) and isinstance(event.said, Rejection)
        candidate_hash = event.candidate_hash if isinstance(event, VerdictGiven) and is_rejection else None
        before = look_up_submission(writing, self.tenant, row, event.submission_id, candidate_hash, self.known)
        if self.verifier_version is not None:
            before = msgspec.structs.replace(before, verifier_version=self.verifier_version)
        state, result = account(before, event, problems=self.problems)
        if result is None:
            return self._first_result(writing, row)
        if result.replayed:
            return result
        usage = row.run.usage if self.usage is None else self.usage
        run = msgspec.structs.replace(row.run, verification=state, turn=max(row.run.turn, self.turn), usage=usage)
        if result.counted and run.parent_id is not None:
            run, result = _charge_team(writing, self.tenant, run, result)
        if self.emit_started and isinstance(event, VerdictGiven) and not self._has_start_event(writing, before):
            about = describe_verification_start(
                event.submission_id, event.candidate_hash, before.attempts_used + 1, before.limits.max_attempts
            )
            emit_verification_started(writing, self.tenant, row.run, about)
        is_judged = not (isinstance(event, VerdictGiven) and isinstance(event.said, SystemErrorVerdict))
        row = msgspec.structs.replace(row, run=run, submissions=row.submissions + is_judged)
        ends = self.owner is None and state.ended is not None
        if not ends:
            (save_verification if self.usage is None else save)(writing, self.tenant, row)
        if is_judged:
            self._write(writing, row, event, result)
            _emit_events(writing, self.tenant, run, event, result)
            accounted = _AccountedContent(result, content_of(event, self.candidate))
            _RESULTS.put(writing, accounted, self.tenant, self.run_id, result.submission_id)
        if ends:
            self._end(writing, row, event)
        return result

    def _end(self, writing: WriteTransaction, row: AgentRunRow, event: VerdictGiven | SchemaErrorFound) -> None:
        """End the run: a host's own loop has no later step that would do it."""
        verdict = event.said if isinstance(event, VerdictGiven) else None
        if isinstance(verdict, Acceptance):
            end_run(writing, self.tenant, row, RunState.COMPLETED, None, msgspec.json.encode(verdict.result))
            return
        error = self.problems if verdict is None else failure_message(verdict) or ""
        failure = RunFailure(str(row.run.verification.ended), error)
        end_run(writing, self.tenant, row, RunState.FAILED, failure)

    def _has_start_event(self, writing: WriteTransaction, before: VerificationState) -> bool:
        """Whether an earlier call of the verifier, which broke or was deferred, has emitted the event."""
        about = (self.tenant, self.run_id, self.event.submission_id)
        return self.was_deferred or (before.system_errors > 0 and has_start_event(writing, *about))

    def _load_run(self, writing: WriteTransaction) -> AgentRunRow:
        return _load_or_open_run(writing, self.tenant, self.run_id, self.open)

    def _first_result(self, writing: WriteTransaction, row: AgentRunRow) -> SubmissionResult:
        """Find the first result of the submission; raises SubmissionConflict where it had another content."""
        submission_id = self.event.submission_id
        known = _RESULTS.get(writing, self.tenant, row.run.id, submission_id)
        if known is None:
            rows = writing.ask(_SUBMISSION_ROW, self.tenant, row.run.id, submission_id)
            content = rows[0].candidate_hash or payload_hash(bytes(rows[0].candidate))
            known = _AccountedContent(submission_result_of(rows[0]), content)
        if known.content != content_of(self.event, self.candidate):
            raise SubmissionConflict(submission_id)
        return msgspec.structs.replace(known.result, replayed=True)

    def _write(
        self,
        writing: WriteTransaction,
        row: AgentRunRow,
        event: VerdictGiven | SchemaErrorFound,
        result: SubmissionResult,
    ) -> None:
        number = row.submissions
        candidate_hash, code, retryable, version = None, None, True, self.verifier_version
        verdict_json = msgspec.json.encode(self.problems)
        if isinstance(event, VerdictGiven):
            candidate_hash, verdict_json = event.candidate_hash, event.said.to_json()
            # As the rules of the gate know it: a later submission of the same candidate is compared with it.
            version = row.run.verification.verifier_version
            if isinstance(event.said, Rejection):
                code, retryable = event.said.code, event.said.retryable
            if isinstance(event.said, Acceptance):
                learn_pass(writing, self.tenant, self.run_id, msgspec.json.encode(event.said.result))
        leaf = writing.append(
            GateEntry(
                writing.now.written,
                self.tenant,
                self.run_id,
                number,
                result.outcome,
                result.counted,
                attempts_used=result.attempts_used,
                submission=commitment(self.salt, commitment_content(self.candidate, verdict_json)),
            ),
            self.tenant,
            self.run_id,
            number,
        )
        outcome_id = None if self.outcome is None else self.outcome.write(writing).outcome_id
        writing.insert(
            tables.submissions,
            tenant=self.tenant,
            run_id=self.run_id,
            submission_id=result.submission_id,
            number=number,
            turn=self.turn,
            candidate_hash=candidate_hash,
            candidate=self.candidate,
            outcome=result.outcome,
            counted=int(result.counted),
            attempt=result.attempt,
            code=code,
            retryable=int(retryable),
            ending=None if result.ending is None else result.ending.value,
            said=verdict_json,
            feedback=result.feedback,
            verifier_version=version,
            outcome_id=outcome_id,
            salt=self.salt,
            leaf=leaf,
            at=writing.now.micros,
        )


class RecordedState(msgspec.Struct, frozen=True):
    """The state of a run after a transaction."""

    state: VerificationState
    """With the submissions that the transaction has added, and without the earlier ones."""
    submissions: int
    """How many there are in all."""


class RecordedSubmission(msgspec.Struct, frozen=True):
    """The result of a submission and the state of its run afterwards."""

    result: SubmissionResult
    recorded: RecordedState
    is_new: bool = True
    """Whether it was accounted for just now."""


class DeferredCandidate(Record, frozen=True):
    """A candidate whose verifier waits for an answer."""

    submission_id: str
    candidate: bytes
    """As JSON."""
    is_lossless: bool
    """Whether the JSON shows all of it; else only its host can submit it again."""


@batch_reads
class DeferSubmission(msgspec.Struct, frozen=True):
    """Let the run of a host's own loop wait for the answer that its verifier needs."""

    tenant: str
    run_id: str
    event: VerifierDeferred
    candidate: DeferredCandidate
    turn: int = 0
    usage: Usage | None = None
    open: QueueRun | None = None
    """The run, where it begins with this submission."""

    def __call__(self, writing: WriteTransaction) -> RecordedState:
        """Record the candidate, count nothing, and emit that the run waits; return the state afterwards."""
        row = _load_or_open_run(writing, self.tenant, self.run_id, self.open)
        _check_host(row)
        before = look_up_submission(writing, self.tenant, row, self.event.submission_id)
        waits = before.deferred
        if waits is not None and row.run.waiting_for == waits.key:
            if waits.submission_id == self.event.submission_id:
                # Another process has recorded it.
                return recorded_state_of(row)
            raise AgentRunConflict(f"run {self.run_id} already waits for {waits.key!r}; answer that first")
        event = msgspec.structs.replace(self.event, at=writing.now.micros / 1_000_000)
        state, actions = advance(before, event)
        waiting = state.deferred
        if waiting is None or not isinstance(actions[0], AwaitAnswer):
            raise AgentRunConflict(f"run {self.run_id} is over, or the submission has a verdict by now; submit again")
        insert_step(writing, self.tenant, self.run_id, f"{DEFERRED}{waiting.key}", self.candidate.to_json())
        run = msgspec.structs.replace(
            row.run,
            status=RunState.WAITING,
            verification=state,
            turn=max(row.run.turn, self.turn),
            usage=row.run.usage if self.usage is None else self.usage,
            waiting_for=waiting.key,
            note=waiting.note or None,
            wake_at=None if waiting.until is None else from_micros(int(waiting.until * 1_000_000)),
        )
        row = msgspec.structs.replace(row, run=run)
        save(writing, self.tenant, row)
        if not has_start_event(writing, self.tenant, self.run_id, event.submission_id):
            about = describe_verification_start(
                event.submission_id, event.candidate_hash, before.attempts_used + 1, before.limits.max_attempts
            )
            emit_verification_started(writing, self.tenant, run, about)
        emit_run_event(writing, self.tenant, EventType.AGENT_RUN_WAITING, run, f"waiting:{waiting.key}")
        return recorded_state_of(row)


@batch_reads
class GiveUp(msgspec.Struct, frozen=True):
    """End the verification of a run that has no turn left for another submission."""

    tenant: str
    run_id: str
    owner: str | None
    key: str | None = None
    """Step of the journal under which the result is recorded."""

    def __call__(self, writing: WriteTransaction) -> SubmissionResult:
        """End it once, for that reason."""
        row = load_run_row(writing, self.tenant, self.run_id)
        if self.owner is not None:
            check_owner(row, self.owner)
        recorded = None if self.key is None else find_step(writing, self.tenant, self.run_id, self.key)
        if recorded is not None:
            return SubmissionResult.from_json(recorded)
        is_open = row.run.verification.ended is None
        state, result = give_up(row.run.verification, writing.now.micros / 1_000_000)
        if is_open:
            run = msgspec.structs.replace(row.run, verification=state)
            save_verification(writing, self.tenant, msgspec.structs.replace(row, run=run))
            _emit_exhausted(writing, self.tenant, run, _event_body(result), result)
        if self.key is not None:
            record_result(writing, self.tenant, self.run_id, self.key, result)
        return result


def record_result(writing: WriteTransaction, tenant: str, run_id: str, key: str, result: SubmissionResult) -> None:
    """Record a result as a step of the journal, for the next worker that drives the run."""
    insert_step(writing, tenant, run_id, key, result.to_json())
    clear_errors(writing, tenant, load_run_row(writing, tenant, run_id))


def _load_or_open_run(writing: WriteTransaction, tenant: str, run_id: str, opens: QueueRun | None) -> AgentRunRow:
    held = None if opens is None else find_run_row(writing, tenant, run_id)
    if held is not None:
        return held
    if opens is not None:
        opens.write(writing)
    return load_run_row(writing, tenant, run_id)


def recorded_state_of(row: AgentRunRow) -> RecordedState:
    """Build what a transaction knows of the state of a run."""
    return RecordedState(row.run.verification, row.submissions)


def _check_host(row: AgentRunRow) -> None:
    """Check that the host's own loop has the run; raises RunFenced, AgentRunConflict or RunCancelled."""
    if row.run.status is RunState.CANCELLED:
        raise RunCancelled(f"run {row.run.id} was cancelled")
    if row.run.status in FINAL_STATES and row.run.verification.ended is None:
        raise AgentRunConflict(f"run {row.run.id} is {row.run.status}; pass another run_id to the gate")
    if row.run.status not in FINAL_STATES and not row.is_hosted:
        raise RunFenced(f"run {row.run.id} belongs to a worker; pass another run_id to the gate")


def commitment_content(candidate: bytes, verdict: bytes) -> bytes:
    """Build the content that the audit log commits to for a submission."""
    return b"\n".join((candidate, verdict))


def describe_verification_start(
    submission_id: str, candidate_hash: str, attempt: int, max_attempts: int
) -> dict[str, Any]:
    """Build the body of the event that a verification starts."""
    return {
        "submission_id": submission_id,
        "candidate_hash": candidate_hash,
        "attempt": attempt,
        "max_attempts": max_attempts,
    }


def _charge_team(
    writing: WriteTransaction, tenant: str, run: AgentRun, result: SubmissionResult
) -> tuple[AgentRun, SubmissionResult]:
    """Count the attempt for the team too; its last attempt ends the member's verification."""
    team = load_run_row(writing, tenant, run.parent_id or "")
    budget = team.run.verification
    # Members that are verified at the same time may all be rejected with the last attempt: it counts once.
    count = min(budget.attempts_used + 1, budget.limits.max_attempts)
    used = msgspec.structs.replace(budget, attempts_used=count)
    save_verification(
        writing, tenant, msgspec.structs.replace(team, run=msgspec.structs.replace(team.run, verification=used))
    )
    if used.attempts_used < used.limits.max_attempts or result.ending is not None:
        return run, result
    state = msgspec.structs.replace(run.verification, ended=VerificationEnding.TEAM_BUDGET)
    return msgspec.structs.replace(run, verification=state), msgspec.structs.replace(
        result, ending=VerificationEnding.TEAM_BUDGET
    )


def _event_body(result: SubmissionResult) -> dict[str, Any]:
    return {"submission_id": result.submission_id, "candidate_hash": None, "attempt": result.attempt, "code": None}


def _emit_events(
    writing: WriteTransaction,
    tenant: str,
    run: AgentRun,
    event: VerdictGiven | SchemaErrorFound,
    result: SubmissionResult,
) -> None:
    about = _event_body(result)
    if isinstance(event, VerdictGiven):
        about["candidate_hash"] = event.candidate_hash
        if isinstance(event.said, Acceptance):
            _emit(writing, tenant, EventType.VERIFICATION_PASSED, run, about)
        elif isinstance(event.said, Rejection):
            about |= {"code": event.said.code, "retryable": event.said.retryable}
            # Its secrets were removed when the verifier answered.
            more = {"metadata": event.said.metadata}
            _emit(writing, tenant, EventType.VERIFICATION_REJECTED, run, about | more)
    if result.counted:
        _emit(writing, tenant, EventType.VERIFICATION_ATTEMPT_COUNTED, run, about)
    if result.ending is not None:
        _emit_exhausted(writing, tenant, run, about, result)


def _emit_exhausted(
    writing: WriteTransaction, tenant: str, run: AgentRun, about: dict[str, Any], result: SubmissionResult
) -> None:
    _emit(writing, tenant, EventType.VERIFICATION_EXHAUSTED, run, about | {"reason": result.ending})


def _emit(writing: WriteTransaction, tenant: str, kind: EventType, run: AgentRun, about: dict[str, Any]) -> None:
    data = {
        "run_id": run.id,
        "agent": run.agent,
        **about,
        "attempts_used": run.verification.attempts_used,
        "max_attempts": run.verification.limits.max_attempts,
    }
    writing.emit(tenant, kind, run.id, f"{run.id}:{about['submission_id']}:{kind.removeprefix('verification_')}", data)


class _AccountedContent(msgspec.Struct, frozen=True):
    """The result of a submission, and what identifies its content."""

    result: SubmissionResult
    content: str


_RESULTS = Rows[_AccountedContent]("submission")


# Any, here and below: the columns of a SQLAlchemy row are attributes without types.
def submission_result_of(row: Any) -> SubmissionResult:
    """Build the result of a submission from its row."""
    used = row.attempt - (row.outcome == SubmissionOutcome.PASSED)
    return SubmissionResult(
        submission_id=row.submission_id,
        outcome=row.outcome,
        attempt=row.attempt,
        attempts_used=used,
        at=row.at / 1_000_000,
        counted=bool(row.counted),
        feedback=row.feedback,
        ending=None if row.ending is None else VerificationEnding(row.ending),
    )


def submission_of(row: Any) -> GateSubmission:
    """Build a submission from its row."""
    return GateSubmission(
        submission_id=row.submission_id,
        number=row.number,
        turn=row.turn,
        candidate_hash=row.candidate_hash,
        outcome=SubmissionOutcome(row.outcome),
        counted=bool(row.counted),
        attempt=row.attempt,
        at=from_micros(row.at),
        code=row.code,
        retryable=bool(row.retryable),
        ending=None if row.ending is None else VerificationEnding(row.ending),
        feedback=row.feedback,
        verifier_version=row.verifier_version,
        outcome_id=row.outcome_id,
    )


_SUBMISSION_ROW = "SELECT * FROM submissions WHERE tenant = ? AND run_id = ? AND submission_id = ?"
