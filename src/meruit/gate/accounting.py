"""Account for a submission: apply the rules of the gate and phrase the answer for the model and its host."""

from hashlib import sha256

import msgspec

from meruit.gate.context import CriteriaJudgement
from meruit.gate.feedback import feedback, schema_error_feedback
from meruit.gate.run import SubmissionOutcome
from meruit.gate.state import (
    CompleteVerification,
    CountAttempt,
    GateAction,
    OutOfTurns,
    ReplayAnswer,
    RequestRepair,
    RequestRevision,
    RetryVerifier,
    SchemaErrorFound,
    VerdictGiven,
    VerificationEnding,
    VerificationOutcome,
    VerificationState,
    advance,
)
from meruit.gate.verdict import Rejection, VerifierVerdict
from meruit.model.chat import Usage
from meruit.model.record import Record

SYSTEM_ERROR = VerificationOutcome.SYSTEM_ERROR.value


class AnsweredSubmission(msgspec.Struct, frozen=True):
    """A submission with the verifier's answer, ready to be accounted for."""

    event: VerdictGiven | SchemaErrorFound
    turn: int = 0
    candidate: bytes = b"null"
    """As JSON."""
    verifier_version: str | None = None
    problems: str = ""
    """Schema problems of a payload that is not a valid candidate."""
    judgement: CriteriaJudgement | None = None
    """Result of the criteria that verified it; recorded as an outcome."""
    was_deferred: bool = False
    """Whether it waited for an answer before."""
    usage: Usage | None = None
    """Tokens of the run so far, where its host counts them."""


class SubmissionResult(Record, frozen=True):
    """The outcome of a submission, with the feedback for the model."""

    submission_id: str
    outcome: str
    """passed, rejected, schema_error or system_error."""
    attempt: int
    attempts_used: int
    at: float
    counted: bool = False
    """Whether it used an attempt of the budget."""
    feedback: str | None = None
    """Text for the model."""
    ending: VerificationEnding | None = None
    """Set where it ended the run without a result."""
    pause_s: float | None = None
    """Seconds to wait before the next call of the verifier, after a system error."""
    replayed: bool = False
    """Whether it was answered before, or came after the end of the run; nothing was counted now."""

    @property
    def is_pass(self) -> bool:
        """Whether the candidate passed."""
        return self.outcome == SubmissionOutcome.PASSED


class AccountedSubmission(msgspec.Struct, frozen=True):
    """The result of a submission and the state of its run afterwards."""

    result: SubmissionResult
    state: VerificationState
    is_new: bool = True
    """Whether it was accounted for just now; false where a journal replays it."""


class PriorAnswer(msgspec.Struct, frozen=True):
    """The recorded answer to an earlier submission."""

    done: SubmissionResult
    verdict: VerifierVerdict | None
    """None for a payload that was not a valid candidate: the verifier was not called."""
    content: str = ""
    """Hash of the candidate, or of the payload that was not one: another content under the same id is a conflict."""


def content_of(event: VerdictGiven | SchemaErrorFound, payload: bytes) -> str:
    """Identify the content of a submission: by the hash of its candidate, or of a payload that is not one."""
    return event.candidate_hash if isinstance(event, VerdictGiven) else payload_hash(payload)


def payload_hash(payload: bytes) -> str:
    """Hash a payload that is not a valid candidate."""
    return f"payload:{sha256(payload).hexdigest()}"


def account(
    state: VerificationState, event: VerdictGiven | SchemaErrorFound, *, problems: str = ""
) -> tuple[VerificationState, SubmissionResult | None]:
    """Return the state after a submission and its result; None where the submission was answered before."""
    at = event.at if isinstance(event, VerdictGiven) else state.last_attempt_at or 0.0
    ended_before = state.ended
    state, actions = advance(state, event)
    if isinstance(actions[0], ReplayAnswer):
        return state, None
    used = state.attempts_used
    if ended_before is not None:
        late = SubmissionResult(
            submission_id=event.submission_id,
            outcome=SubmissionOutcome.REJECTED,
            attempt=used,
            attempts_used=used,
            at=at,
            replayed=True,
        )
        return state, msgspec.structs.replace(late, ending=ended_before)
    if isinstance(event, SchemaErrorFound):
        text = schema_error_feedback(problems, _repairs_left(actions))
        outcome = SubmissionOutcome.SCHEMA_ERROR.value
        return state, SubmissionResult(
            submission_id=event.submission_id,
            outcome=outcome,
            attempt=used,
            attempts_used=used,
            at=at,
            feedback=text,
            ending=state.ended,
        )
    return state, _account_for_verdict(state, event, actions)


def replay(
    state: VerificationState, event: VerdictGiven | SchemaErrorFound, result: SubmissionResult
) -> VerificationState:
    """Return the state after a submission that was accounted for earlier, with that result."""
    return account(state, event.with_time(result.at) if isinstance(event, VerdictGiven) else event)[0]


def give_up(state: VerificationState, at: float) -> tuple[VerificationState, SubmissionResult]:
    """End a verification whose host has no turn left for another submission."""
    state, _ = advance(state, OutOfTurns())
    used = state.attempts_used
    return state, SubmissionResult(
        submission_id="",
        outcome=SubmissionOutcome.REJECTED,
        attempt=used,
        attempts_used=used,
        at=at,
        ending=state.ended,
    )


def _account_for_verdict(
    state: VerificationState, verdict: VerdictGiven, actions: tuple[GateAction, ...]
) -> SubmissionResult:
    used = state.attempts_used
    result = SubmissionResult(
        submission_id=verdict.submission_id,
        outcome=SYSTEM_ERROR,
        attempt=used + 1,
        attempts_used=used,
        at=verdict.at,
        ending=state.ended,
    )
    if isinstance(verdict.said, Rejection):
        revise = [one for one in actions if isinstance(one, RequestRevision)]
        return msgspec.structs.replace(
            result,
            outcome=SubmissionOutcome.REJECTED.value,
            attempt=used,
            counted=any(isinstance(one, CountAttempt) for one in actions),
            feedback=feedback(verdict.said, revise[0] if revise else None).text,
        )
    if any(isinstance(one, CompleteVerification) for one in actions):
        return msgspec.structs.replace(result, outcome=SubmissionOutcome.PASSED.value, ending=None)
    pauses = [one.after_s for one in actions if isinstance(one, RetryVerifier)]
    return msgspec.structs.replace(result, pause_s=pauses[0] if pauses else None)


def _repairs_left(actions: tuple[GateAction, ...]) -> int:
    return sum(one.left for one in actions if isinstance(one, RequestRepair))
