"""The accounting of submissions: what was said, what it cost, what the model is told, all of it or nothing."""

from typing import Any, NamedTuple

import msgspec

from meruit.errors import AgentRunConflict, MeruitError, RunCancelled, RunFenced
from meruit.gate.accounting import SubmissionResult, account, give_up
from meruit.gate.run import FINAL_STATES, AgentRun, GateSubmission, RunState, SubmissionOutcome
from meruit.gate.state import SchemaErrorFound, VerdictGiven, VerificationEnding, VerificationState
from meruit.gate.store.rows import AgentRunRow, batch_reads, find_run_row, learn_pass, load_run_row, save_verification
from meruit.gate.store.runs import (
    QueueRun,
    RunFailure,
    check_owner,
    emit_verification_started,
    end_run,
    has_start_event,
)
from meruit.gate.verdict import Acceptance, Rejection, SystemErrorVerdict, VerifierVerdict
from meruit.log.commitment import commitment
from meruit.log.entries import GateEntry
from meruit.model.events import EventType
from meruit.model.time import from_micros
from meruit.outcomes.store.write import NewOutcome
from meruit.store import tables
from meruit.store.transaction import WriteTransaction


@batch_reads
class Submit(NamedTuple):
    """A submission with what was said of it, to be accounted for."""

    tenant: str
    run_id: str
    event: VerdictGiven | SchemaErrorFound
    salt: bytes
    owner: str | None = None
    """None where the host's own loop owns the run."""
    turn: int = 0
    candidate: bytes = b"null"
    """As JSON."""
    verifier_version: str | None = None
    problems: str = ""
    """What is wrong with a payload that is not of the output's shape."""
    emit_started: bool = False
    """Whether nobody was told of its beginning yet."""
    outcome: NewOutcome | None = None
    """What the criteria that verified it have to say for the record."""
    open: QueueRun | None = None
    """The run, where the host's loop begins it with its first submission."""

    def __call__(self, writing: WriteTransaction) -> SubmissionResult:
        """Count it once, by the rules of the gate, and tell whoever listens."""
        held = self._load_run(writing)
        if self.owner is not None:
            check_owner(held, self.owner)
        else:
            _check_host(held)
        happening = self.event
        if isinstance(happening, VerdictGiven):
            happening = happening.with_time(writing.now.micros / 1_000_000)
        before = held.run.verification
        if self.verifier_version is not None:
            before = msgspec.structs.replace(before, verifier_version=self.verifier_version)
        state, done = account(before, happening, problems=self.problems)
        if done is None:
            return _first_result(writing, self.tenant, held, happening.submission_id)
        if done.replayed:
            return done
        run = msgspec.structs.replace(held.run, verification=state, turn=max(held.run.turn, self.turn))
        if done.counted and run.parent_id is not None:
            run, done = _charge_team(writing, self.tenant, run, done)
        if self.emit_started and isinstance(happening, VerdictGiven) and not self._has_start_event(writing, before):
            about = describe_verification_start(happening, before.attempts_used + 1, before.limits.max_attempts)
            emit_verification_started(writing, self.tenant, held.run, about)
        answered = not (isinstance(happening, VerdictGiven) and isinstance(happening.said, SystemErrorVerdict))
        held = held._replace(run=run)
        save_verification(writing, self.tenant, held)
        if answered:
            self._write(writing, len(state.submission_ids), happening, done)
            _emit_events(writing, self.tenant, run, happening, done)
            writing.remember(_row_key(self.tenant, self.run_id, done.submission_id), done)
        if self.owner is None and state.ended is not None:
            self._end(writing, held, happening)
        return done

    def _end(self, writing: WriteTransaction, held: AgentRunRow, happening: VerdictGiven | SchemaErrorFound) -> None:
        """The host's loop has no step of its own in which the run would be completed."""
        said = happening.said if isinstance(happening, VerdictGiven) else None
        if isinstance(said, Acceptance):
            end_run(writing, self.tenant, held, RunState.COMPLETED, None, msgspec.json.encode(said.result))
            return
        told = self.problems if said is None else failure_message(said) or ""
        failure = RunFailure(str(held.run.verification.ended), told)
        end_run(writing, self.tenant, held, RunState.FAILED, failure)

    def _has_start_event(self, writing: WriteTransaction, before: VerificationState) -> bool:
        """Whether its verifier has begun before, and broke."""
        about = (self.tenant, self.run_id, self.event.submission_id)
        return before.system_errors > 0 and has_start_event(writing, *about)

    def _load_run(self, writing: WriteTransaction) -> AgentRunRow:
        if self.open is not None and find_run_row(writing, self.tenant, self.run_id) is None:
            self.open.write(writing)
        return load_run_row(writing, self.tenant, self.run_id)

    def _write(
        self, writing: WriteTransaction, number: int, happening: VerdictGiven | SchemaErrorFound, done: SubmissionResult
    ) -> None:
        hashed, code, retryable = None, None, True
        said = msgspec.json.encode(self.problems)
        if isinstance(happening, VerdictGiven):
            hashed, said = happening.candidate_hash, happening.said.to_json()
            if isinstance(happening.said, Rejection):
                code, retryable = happening.said.code, happening.said.retryable
            if isinstance(happening.said, Acceptance):
                learn_pass(writing, self.tenant, self.run_id, msgspec.json.encode(happening.said.result))
        leaf = writing.append(
            GateEntry(
                *(writing.now.written, self.tenant, self.run_id, number, done.outcome, done.counted),
                attempts_used=done.attempts_used,
                submission=commitment(self.salt, commitment_content(self.candidate, said)),
            ),
            *(self.tenant, self.run_id, number),
        )
        recorded = None if self.outcome is None else self.outcome.write(writing).outcome_id
        writing.insert(
            *(tables.submissions, self.tenant, self.run_id, done.submission_id, number, self.turn, hashed),
            *(self.candidate, done.outcome, int(done.counted), done.attempt, code, int(retryable)),
            *(None if done.ending is None else done.ending.value, said, done.feedback, self.verifier_version),
            *(recorded, self.salt, leaf, writing.now.micros),
        )


@batch_reads
class HostSubmit(NamedTuple):
    """A submission of a loop that is not ours, answered also with where its run stands now."""

    tenant: str
    run_id: str
    submit: Submit

    def __call__(self, writing: WriteTransaction) -> tuple[SubmissionResult, VerificationState]:
        """Account for it; others may have submitted to the same run, so only this transaction knows its state."""
        done = self.submit(writing)
        return done, load_run_row(writing, self.tenant, self.run_id).run.verification


class GiveUp(NamedTuple):
    """The host has no turn left for another submission."""

    tenant: str
    run_id: str
    owner: str | None

    def __call__(self, writing: WriteTransaction) -> SubmissionResult:
        """End the verification for that reason, once."""
        held = load_run_row(writing, self.tenant, self.run_id)
        if self.owner is not None:
            check_owner(held, self.owner)
        fresh = held.run.verification.ended is None
        state, done = give_up(held.run.verification, writing.now.micros / 1_000_000)
        if fresh:
            run = msgspec.structs.replace(held.run, verification=state)
            save_verification(writing, self.tenant, held._replace(run=run))
            _emit_exhausted(writing, self.tenant, run, _event_body(done), done)
        return done


def _check_host(held: AgentRunRow) -> None:
    """Go on only where the host's own loop has the run; raises RunFenced, AgentRunConflict or RunCancelled."""
    if held.run.status is RunState.CANCELLED:
        raise RunCancelled(f"run {held.run.id} was cancelled")
    if held.run.status in FINAL_STATES and held.run.verification.ended is None:
        raise AgentRunConflict(f"run {held.run.id} is {held.run.status}; give the gate a run_id of its own")
    if held.worker is not None or held.run.status in (RunState.QUEUED, RunState.WAITING):
        raise RunFenced(f"run {held.run.id} is a worker's; give the gate a run_id of its own")


def commitment_content(candidate: bytes, said: bytes) -> bytes:
    """What the audit log commits to for a submission."""
    return b"\n".join((candidate, said))


def failure_message(said: VerifierVerdict) -> str | None:
    """In plain words why it is no pass, for whoever is no model."""
    match said:
        case Acceptance():
            return None
        case Rejection():
            return said.message
        case SystemErrorVerdict():
            return said.error


def describe_verification_start(happening: VerdictGiven, attempt: int, max_attempts: int) -> dict[str, Any]:
    """What is told of a verification that begins."""
    return {
        "submission_id": happening.submission_id,
        "candidate_hash": happening.candidate_hash,
        "attempt": attempt,
        "max_attempts": max_attempts,
    }


def _charge_team(
    writing: WriteTransaction, tenant: str, run: AgentRun, done: SubmissionResult
) -> tuple[AgentRun, SubmissionResult]:
    """The attempt is the team's as well; with its last one, the member's verification ends."""
    team = load_run_row(writing, tenant, run.parent_id or "")
    budget = team.run.verification
    # Members that were verified at the same time may all be rejected by the last attempt: it is used once.
    count = min(budget.attempts_used + 1, budget.limits.max_attempts)
    used = msgspec.structs.replace(budget, attempts_used=count)
    save_verification(writing, tenant, team._replace(run=msgspec.structs.replace(team.run, verification=used)))
    if used.attempts_used < used.limits.max_attempts or done.ending is not None:
        return run, done
    state = msgspec.structs.replace(run.verification, ended=VerificationEnding.TEAM_BUDGET)
    return msgspec.structs.replace(run, verification=state), msgspec.structs.replace(
        done, ending=VerificationEnding.TEAM_BUDGET
    )


def _first_result(writing: WriteTransaction, tenant: str, held: AgentRunRow, submission_id: str) -> SubmissionResult:
    """What the submission was answered the first time."""
    known: SubmissionResult | None = writing.fresh.get(_row_key(tenant, held.run.id, submission_id))
    if known is None:
        rows = writing.ask(_SUBMISSION_ROW, tenant, held.run.id, submission_id)
        if not rows:
            raise MeruitError(f"submission {submission_id!r} of run {held.run.id} is counted, and its row is gone")
        known = submission_result_of(rows[0])
    return msgspec.structs.replace(known, replayed=True)


def _event_body(done: SubmissionResult) -> dict[str, Any]:
    return {"submission_id": done.submission_id, "candidate_hash": None, "attempt": done.attempt, "code": None}


def _emit_events(
    writing: WriteTransaction,
    tenant: str,
    run: AgentRun,
    happening: VerdictGiven | SchemaErrorFound,
    done: SubmissionResult,
) -> None:
    about = _event_body(done)
    if isinstance(happening, VerdictGiven):
        about["candidate_hash"] = happening.candidate_hash
        if isinstance(happening.said, Acceptance):
            _emit(writing, tenant, EventType.VERIFICATION_PASSED, run, about)
        elif isinstance(happening.said, Rejection):
            about |= {"code": happening.said.code, "retryable": happening.said.retryable}
            # Made fit to be told when the verifier was heard.
            more = {"metadata": happening.said.metadata}
            _emit(writing, tenant, EventType.VERIFICATION_REJECTED, run, about | more)
    if done.counted:
        _emit(writing, tenant, EventType.VERIFICATION_ATTEMPT_COUNTED, run, about)
    if done.ending is not None:
        _emit_exhausted(writing, tenant, run, about, done)


def _emit_exhausted(
    writing: WriteTransaction, tenant: str, run: AgentRun, about: dict[str, Any], done: SubmissionResult
) -> None:
    _emit(writing, tenant, EventType.VERIFICATION_EXHAUSTED, run, about | {"reason": done.ending})


def _emit(writing: WriteTransaction, tenant: str, kind: EventType, run: AgentRun, about: dict[str, Any]) -> None:
    data = {
        "run_id": run.id,
        "agent": run.agent,
        **about,
        "attempts_used": run.verification.attempts_used,
        "max_attempts": run.verification.limits.max_attempts,
    }
    writing.emit(tenant, kind, run.id, f"{run.id}:{about['submission_id']}:{kind.removeprefix('verification_')}", data)


def _row_key(tenant: str, run_id: str, submission_id: str) -> tuple[str, ...]:
    return ("submission", tenant, run_id, submission_id)


# Any, here and below: a row of SQLAlchemy's has its columns as attributes, which no type says.
def submission_result_of(row: Any) -> SubmissionResult:
    """What the submission of a row was answered."""
    used = row.attempt - (row.outcome == SubmissionOutcome.PASSED)
    return SubmissionResult(
        *(row.submission_id, row.outcome, row.attempt, used, row.at / 1_000_000, bool(row.counted), row.feedback),
        ending=None if row.ending is None else VerificationEnding(row.ending),
    )


def submission_of(row: Any) -> GateSubmission:
    """The submission of a row."""
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
