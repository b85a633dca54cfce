"""The state machine of a verification: each event gives a new state and the next actions. Pure; no clock."""

from enum import StrEnum
from typing import TypeAlias

import msgspec

from meruit.gate.limits import GateLimits
from meruit.gate.verdict import Acceptance, Deferral, Rejection, SystemErrorVerdict, VerifierVerdict
from meruit.model.record import Record

VERIFIER_WAIT = "verify:"
"""Prefix of the keys of answers that a verifier waits for."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Pause after the first system error; it doubles each time, up to the longest."""


class VerificationOutcome(StrEnum):
    """The outcome of a verification."""

    PASSED = "passed"
    REJECTED = "rejected"
    SYSTEM_ERROR = "system_error"


class VerificationEnding(StrEnum):
    """Why a verification is over."""

    PASSED = "passed"
    ATTEMPTS = "attempts"
    """The budget of attempts is used up."""
    REJECTED_FINAL = "rejected_final"
    """A rejection that is not retryable."""
    NO_PROGRESS = "no_progress"
    """The same candidate several times in a row."""
    SCHEMA_ERRORS = "schema_errors"
    """Too many payloads in a row that do not match the schema."""
    SYSTEM_ERROR = "system_error"
    """The verifier broke too often; nothing was judged."""
    TEAM_BUDGET = "team_budget"
    """The budget of the team is used up."""
    TURNS = "turns"
    """The host's own limit of turns, time or tokens."""


class PriorRejection(Record, frozen=True):
    """The last rejection of a candidate."""

    attempt: int
    submission_id: str
    verifier_version: str | None = None
    """Version of the verifier that rejected it; only the same version would reject it again."""


class OpenDeferral(Record, frozen=True):
    """A submission whose verifier waits for an answer."""

    submission_id: str
    candidate_hash: str
    key: str
    """Names the answer; unique in the run."""
    note: str = ""
    until: float | None = None
    """When the wait times out, in seconds since 1970; None for no limit."""


class VerificationState(Record, frozen=True):
    """The state of a run's verification: control flow only, no feedback."""

    attempts_used: int = 0
    last_candidate_hash: str | None = None
    """Of the last candidate that was judged; a system error is not a judgement."""
    last_outcome: VerificationOutcome | None = None
    last_attempt_at: float | None = None
    """In seconds since 1970."""
    submission_ids: tuple[str, ...] = ()
    """Every submission that has a result, in order: the same id again is a replay."""
    rejected: dict[str, PriorRejection] = msgspec.field(default_factory=dict)
    """Rejected candidates, by hash."""
    verifier_version: str | None = None
    """Of the verifier that was called last."""
    identical: int = 0
    """Submissions in a row that repeat the candidate rejected before them."""
    schema_errors: int = 0
    """In a row."""
    system_errors: int = 0
    """In a row."""
    limits: GateLimits = GateLimits()
    ended: VerificationEnding | None = None
    deferred: OpenDeferral | None = None
    """The submission that waits for an answer, in a host's own loop; nothing is counted for it."""
    deferrals: int = 0
    """Times that the verifier was deferred in a host's own loop."""


class CandidateSubmitted(msgspec.Struct, frozen=True):
    """The model submitted a candidate."""

    submission_id: str
    candidate_hash: str
    verifier_version: str
    deterministic: bool = False
    """Whether the verifier declares that equal candidates get equal verdicts."""


class VerdictGiven(msgspec.Struct, frozen=True):
    """The verifier gave a verdict, or broke."""

    submission_id: str
    candidate_hash: str
    said: VerifierVerdict
    at: float
    verifier_version: str | None = None
    """None for the one that was current when the candidate was submitted."""

    def with_time(self, moment: float) -> "VerdictGiven":
        """Return a copy with the time of recording."""
        return VerdictGiven(
            submission_id=self.submission_id,
            candidate_hash=self.candidate_hash,
            said=self.said,
            at=moment,
            verifier_version=self.verifier_version,
        )


class SchemaErrorFound(msgspec.Struct, frozen=True):
    """A payload does not match the schema of the output, so it is not a candidate."""

    submission_id: str


class VerifierDeferred(msgspec.Struct, frozen=True):
    """The verifier needs an answer from a client before it can judge the candidate."""

    submission_id: str
    candidate_hash: str
    deferral: Deferral
    at: float
    verifier_version: str | None = None


class OutOfTurns(msgspec.Struct, frozen=True):
    """The host has no turn left for a revision."""


GateEvent: TypeAlias = CandidateSubmitted | VerdictGiven | SchemaErrorFound | VerifierDeferred | OutOfTurns


class AskVerifier(msgspec.Struct, frozen=True):
    """Call the verifier."""

    attempt: int
    max_attempts: int


class RecallRejection(msgspec.Struct, frozen=True):
    """Reject as that submission was rejected: an equal candidate and a deterministic verifier."""

    submission_id: str


class ReplayAnswer(msgspec.Struct, frozen=True):
    """Repeat the earlier answer to this submission; nothing is counted."""

    submission_id: str


class AwaitAnswer(msgspec.Struct, frozen=True):
    """Wait until a client gives the answer; nothing is counted."""

    key: str


class CompleteVerification(msgspec.Struct, frozen=True):
    """Complete the run with the return value of the verifier."""

    attempt: int


class RequestRevision(msgspec.Struct, frozen=True):
    """Give the model the reason, and let it revise."""

    attempt: int
    attempts_left: int
    rejected_at: int | None
    """The attempt at which the same candidate was rejected before, if any."""
    identical: int


class RequestRepair(msgspec.Struct, frozen=True):
    """Give the model the problems of its payload, and let it repair them."""

    left: int


class RetryVerifier(msgspec.Struct, frozen=True):
    """Call the verifier again after a pause."""

    after_s: float


class CountAttempt(msgspec.Struct, frozen=True):
    """Use one attempt of the budget."""

    attempt: int


class EndVerification(msgspec.Struct, frozen=True):
    """End the run: without a result, or, after a pass, with the result that it has."""

    reason: VerificationEnding


GateAction: TypeAlias = (
    AskVerifier
    | RecallRejection
    | ReplayAnswer
    | AwaitAnswer
    | CompleteVerification
    | RequestRevision
    | RequestRepair
    | RetryVerifier
    | CountAttempt
    | EndVerification
)


def advance(  # noqa: PLR0911 - one for each event
    state: VerificationState, event: GateEvent
) -> tuple[VerificationState, tuple[GateAction, ...]]:
    """Return the state after an event and the actions to take; the same submission never counts twice."""
    if not isinstance(event, OutOfTurns) and event.submission_id in state.submission_ids:
        return state, (ReplayAnswer(event.submission_id),)
    if state.ended is not None:
        return state, (EndVerification(state.ended),)
    match event:
        case OutOfTurns():
            return _end(state, VerificationEnding.TURNS)
        case CandidateSubmitted():
            return _apply_submission(state, event)
        case SchemaErrorFound():
            return _apply_schema_error(state, event)
        case VerifierDeferred():
            return _apply_deferral(state, event)
        case VerdictGiven():
            return _apply_verdict(state, event)


def _apply_deferral(
    state: VerificationState, new: VerifierDeferred
) -> tuple[VerificationState, tuple[GateAction, ...]]:
    number = state.deferrals + 1
    timeout_s = new.deferral.timeout_s
    until = None if timeout_s is None else new.at + timeout_s
    key = f"{VERIFIER_WAIT}{number}"
    waiting = OpenDeferral(
        submission_id=new.submission_id, candidate_hash=new.candidate_hash, key=key, note=new.deferral.note, until=until
    )
    version = new.verifier_version or state.verifier_version
    state = msgspec.structs.replace(state, deferred=waiting, deferrals=number, verifier_version=version)
    return state, (AwaitAnswer(key),)


def _apply_verdict(state: VerificationState, verdict: VerdictGiven) -> tuple[VerificationState, tuple[GateAction, ...]]:
    match verdict.said:
        case Acceptance():
            return _apply_pass(state, verdict)
        case Rejection() as rejection:
            return _apply_rejection(state, verdict, rejection)
        case SystemErrorVerdict() as error:
            return _apply_system_error(state, verdict, error)


def _apply_submission(
    state: VerificationState, new: CandidateSubmitted
) -> tuple[VerificationState, tuple[GateAction, ...]]:
    before = state.rejected.get(new.candidate_hash)
    state = msgspec.structs.replace(state, verifier_version=new.verifier_version)
    if new.deterministic and before is not None and before.verifier_version == new.verifier_version:
        return state, (RecallRejection(before.submission_id),)
    return state, (AskVerifier(state.attempts_used + 1, state.limits.max_attempts),)


def _apply_pass(state: VerificationState, verdict: VerdictGiven) -> tuple[VerificationState, tuple[GateAction, ...]]:
    state = msgspec.structs.replace(
        _record_verdict(state, verdict, VerificationOutcome.PASSED),
        ended=VerificationEnding.PASSED,
        identical=0,
        deferred=None,
    )
    return state, (CompleteVerification(state.attempts_used + 1),)


def _apply_rejection(
    state: VerificationState, verdict: VerdictGiven, rejection: Rejection
) -> tuple[VerificationState, tuple[GateAction, ...]]:
    """A candidate that differs from the last one uses an attempt; a repeated one counts towards no progress."""
    counted = verdict.candidate_hash != state.last_candidate_hash
    before = state.rejected.get(verdict.candidate_hash)
    used = state.attempts_used + counted
    state = _record_verdict(state, verdict, VerificationOutcome.REJECTED)
    tried = PriorRejection(used, verdict.submission_id, state.verifier_version)
    state = msgspec.structs.replace(
        state,
        attempts_used=used,
        identical=0 if counted else state.identical + 1,
        rejected={**state.rejected, verdict.candidate_hash: tried},
    )
    count = (CountAttempt(used),) if counted else ()
    reason = _ending_after(state, rejection)
    if reason is not None:
        state, end = _end(state, reason)
        return state, (*count, *end)
    left = state.limits.max_attempts - used
    return state, (
        *count,
        RequestRevision(
            attempt=used,
            attempts_left=left,
            rejected_at=None if before is None else before.attempt,
            identical=state.identical,
        ),
    )


def _ending_after(state: VerificationState, rejection: Rejection) -> VerificationEnding | None:
    if not rejection.retryable:
        return VerificationEnding.REJECTED_FINAL
    if state.attempts_used >= state.limits.max_attempts:
        return VerificationEnding.ATTEMPTS
    return VerificationEnding.NO_PROGRESS if state.identical >= state.limits.no_progress else None


def _apply_system_error(
    state: VerificationState, verdict: VerdictGiven, error: SystemErrorVerdict
) -> tuple[VerificationState, tuple[GateAction, ...]]:
    """Count nothing: the candidate was not judged and is still to be verified."""
    state = msgspec.structs.replace(
        state,
        system_errors=state.system_errors + 1,
        last_outcome=VerificationOutcome.SYSTEM_ERROR,
        last_attempt_at=verdict.at,
    )
    if error.permanent or state.system_errors >= state.limits.system_errors:
        return _end(state, VerificationEnding.SYSTEM_ERROR)
    return state, (RetryVerifier(pause_s(state.system_errors)),)


def _apply_schema_error(
    state: VerificationState, payload: SchemaErrorFound
) -> tuple[VerificationState, tuple[GateAction, ...]]:
    state = msgspec.structs.replace(
        state,
        schema_errors=state.schema_errors + 1,
        submission_ids=(*state.submission_ids, payload.submission_id),
    )
    left = state.limits.schema_errors - state.schema_errors
    return (state, (RequestRepair(left),)) if left > 0 else _end(state, VerificationEnding.SCHEMA_ERRORS)


def _record_verdict(state: VerificationState, verdict: VerdictGiven, outcome: VerificationOutcome) -> VerificationState:
    return msgspec.structs.replace(
        state,
        last_candidate_hash=verdict.candidate_hash,
        last_outcome=outcome,
        last_attempt_at=verdict.at,
        submission_ids=(*state.submission_ids, verdict.submission_id),
        verifier_version=verdict.verifier_version or state.verifier_version,
        schema_errors=0,
        system_errors=0,
        deferred=None if _is_deferred(state, verdict.submission_id) else state.deferred,
    )


def _is_deferred(state: VerificationState, submission_id: str) -> bool:
    return state.deferred is not None and state.deferred.submission_id == submission_id


def _end(state: VerificationState, reason: VerificationEnding) -> tuple[VerificationState, tuple[GateAction, ...]]:
    return msgspec.structs.replace(state, ended=reason, deferred=None), (EndVerification(reason),)


def pause_s(errors: int) -> float:
    """Seconds to wait after so many errors in a row."""
    return min(FIRST_PAUSE_S * 2.0 ** min(errors - 1, 16), LONGEST_PAUSE_S)
