"""What becomes of a submission: the rules of the gate, in the words that the model and its host are answered in."""

import msgspec

from meruit.gate.feedback import feedback, repair
from meruit.gate.run import SubmissionOutcome
from meruit.gate.state import (
    Action,
    Complete,
    Count,
    Decided,
    Ending,
    Misshapen,
    OutOfTurns,
    Repair,
    Replay,
    Retry,
    Revise,
    VerificationOutcome,
    VerificationState,
    next,  # noqa: A004 - what it is
)
from meruit.gate.verdict import Rejection
from meruit.model.record import Record

BROKEN = VerificationOutcome.SYSTEM_ERROR.value


class Accounted(Record, frozen=True):
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
    ending: Ending | None = None
    """Where it ended the run without a result."""
    pause_s: float | None = None
    """How long to wait before the verifier is asked again, where it broke."""
    replayed: bool = False
    """Whether it was answered before, or came too late, and nothing was counted now."""

    @property
    def passed(self) -> bool:
        """Whether the run is done."""
        return self.outcome == SubmissionOutcome.PASSED


def account(
    state: VerificationState, happening: Decided | Misshapen, *, problems: str = ""
) -> tuple[VerificationState, Accounted | None]:
    """The state after a submission and its answer; None where it was answered before, and counts no more."""
    moment = happening.at if isinstance(happening, Decided) else state.last_attempt_at or 0.0
    over = state.ended
    state, actions = next(state, happening)
    if isinstance(actions[0], Replay):
        return state, None
    used = state.attempts_used
    if over is not None:
        late = Accounted(happening.submission_id, SubmissionOutcome.REJECTED, used, used, moment, replayed=True)
        return state, msgspec.structs.replace(late, ending=over)
    if isinstance(happening, Misshapen):
        told = repair(problems, _left(actions))
        outcome = SubmissionOutcome.SCHEMA_ERROR.value
        return state, Accounted(
            *(happening.submission_id, outcome, used, used, moment), feedback=told, ending=state.ended
        )
    return state, _decided(state, happening, actions)


def give_up(state: VerificationState, at: float) -> tuple[VerificationState, Accounted]:
    """The host has no turn left for another submission."""
    state, _ = next(state, OutOfTurns())
    used = state.attempts_used
    return state, Accounted("", SubmissionOutcome.REJECTED, used, used, at, ending=state.ended)


def _decided(state: VerificationState, verdict: Decided, actions: tuple[Action, ...]) -> Accounted:
    used = state.attempts_used
    done = Accounted(verdict.submission_id, BROKEN, used + 1, used, verdict.at, ending=state.ended)
    if isinstance(verdict.said, Rejection):
        revise = [one for one in actions if isinstance(one, Revise)]
        return msgspec.structs.replace(
            done,
            outcome=SubmissionOutcome.REJECTED.value,
            attempt=used,
            counted=any(isinstance(one, Count) for one in actions),
            feedback=feedback(verdict.said, revise[0] if revise else None).text,
        )
    if any(isinstance(one, Complete) for one in actions):
        return msgspec.structs.replace(done, outcome=SubmissionOutcome.PASSED.value, ending=None)
    pauses = [one.after_s for one in actions if isinstance(one, Retry)]
    return msgspec.structs.replace(done, pause_s=pauses[0] if pauses else None)


def _left(actions: tuple[Action, ...]) -> int:
    return sum(one.left for one in actions if isinstance(one, Repair))
