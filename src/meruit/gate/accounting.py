"""What becomes of a submission: the rules of the gate, in the words that the model and its host are answered in."""

import msgspec

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
from meruit.gate.verdict import Rejection
from meruit.model.record import Record

SYSTEM_ERROR = VerificationOutcome.SYSTEM_ERROR.value


class SubmissionResult(Record, frozen=True):
    """What became of a submission."""

    submission_id: str
    outcome: str
    """passed, rejected, schema_error or system_error."""
    attempt: int
    attempts_used: int
    at: float
    counted: bool = False
    """Whether it used an attempt of the budget."""
    feedback: str | None = None
    """What the model is told."""
    ending: VerificationEnding | None = None
    """Where it ended the run without a result."""
    pause_s: float | None = None
    """How long to wait before the verifier is asked again, where it broke."""
    replayed: bool = False
    """Whether it was answered before, or came too late, and nothing was counted now."""

    @property
    def is_pass(self) -> bool:
        """Whether the run is done."""
        return self.outcome == SubmissionOutcome.PASSED


def account(
    state: VerificationState, happening: VerdictGiven | SchemaErrorFound, *, problems: str = ""
) -> tuple[VerificationState, SubmissionResult | None]:
    """The state after a submission and its answer; None where it was answered before, and counts no more."""
    moment = happening.at if isinstance(happening, VerdictGiven) else state.last_attempt_at or 0.0
    over = state.ended
    state, actions = advance(state, happening)
    if isinstance(actions[0], ReplayAnswer):
        return state, None
    used = state.attempts_used
    if over is not None:
        late = SubmissionResult(happening.submission_id, SubmissionOutcome.REJECTED, used, used, moment, replayed=True)
        return state, msgspec.structs.replace(late, ending=over)
    if isinstance(happening, SchemaErrorFound):
        told = schema_error_feedback(problems, _repairs_left(actions))
        outcome = SubmissionOutcome.SCHEMA_ERROR.value
        return state, SubmissionResult(
            *(happening.submission_id, outcome, used, used, moment), feedback=told, ending=state.ended
        )
    return state, _account_for_verdict(state, happening, actions)


def give_up(state: VerificationState, at: float) -> tuple[VerificationState, SubmissionResult]:
    """The host has no turn left for another submission."""
    state, _ = advance(state, OutOfTurns())
    used = state.attempts_used
    return state, SubmissionResult("", SubmissionOutcome.REJECTED, used, used, at, ending=state.ended)


def _account_for_verdict(
    state: VerificationState, verdict: VerdictGiven, actions: tuple[GateAction, ...]
) -> SubmissionResult:
    used = state.attempts_used
    done = SubmissionResult(verdict.submission_id, SYSTEM_ERROR, used + 1, used, verdict.at, ending=state.ended)
    if isinstance(verdict.said, Rejection):
        revise = [one for one in actions if isinstance(one, RequestRevision)]
        return msgspec.structs.replace(
            done,
            outcome=SubmissionOutcome.REJECTED.value,
            attempt=used,
            counted=any(isinstance(one, CountAttempt) for one in actions),
            feedback=feedback(verdict.said, revise[0] if revise else None).text,
        )
    if any(isinstance(one, CompleteVerification) for one in actions):
        return msgspec.structs.replace(done, outcome=SubmissionOutcome.PASSED.value, ending=None)
    pauses = [one.after_s for one in actions if isinstance(one, RetryVerifier)]
    return msgspec.structs.replace(done, pause_s=pauses[0] if pauses else None)


def _repairs_left(actions: tuple[GateAction, ...]) -> int:
    return sum(one.left for one in actions if isinstance(one, RequestRepair))
