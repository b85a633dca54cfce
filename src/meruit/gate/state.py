"""How far a run has come with its verifier, and what each happening makes of that; nothing here looks at a clock."""

from enum import StrEnum
from typing import NamedTuple, TypeAlias

import msgspec

from meruit.gate.limits import GateLimits
from meruit.gate.verdict import Acceptance, Rejection, SystemErrorVerdict, VerifierVerdict
from meruit.model.record import Record

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""How long to wait after a verifier broke for the first time, doubled each time, up to the longest."""


class VerificationOutcome(StrEnum):
    """How a verification ended."""

    PASSED = "passed"
    REJECTED = "rejected"
    SYSTEM_ERROR = "system_error"


class VerificationEnding(StrEnum):
    """Why nothing more can be submitted."""

    PASSED = "passed"
    ATTEMPTS = "attempts"
    """As many rejections as the budget has."""
    REJECTED_FINAL = "rejected_final"
    """A rejection that no revision can mend."""
    NO_PROGRESS = "no_progress"
    """The same candidate again and again."""
    SCHEMA_ERRORS = "schema_errors"
    """Payload after payload that is not even of the output's shape."""
    SYSTEM_ERROR = "system_error"
    """The verifier broke too often; nobody was judged."""
    TEAM_BUDGET = "team_budget"
    """All attempts that a team has together."""
    TURNS = "turns"
    """The host's own limit of turns, time or tokens."""


class PriorRejection(Record, frozen=True):
    """When a candidate was rejected last."""

    attempt: int
    submission_id: str
    verifier_version: str | None = None
    """Of the verifier that rejected it; only the same one would say the same."""


class VerificationState(Record, frozen=True):
    """What a run carries from turn to turn: control flow only, nothing of what the model is told."""

    attempts_used: int = 0
    last_candidate_hash: str | None = None
    """Of the last candidate that was judged; one on which the verifier broke was not."""
    last_outcome: VerificationOutcome | None = None
    last_attempt_at: float | None = None
    """In seconds since 1970."""
    submission_ids: tuple[str, ...] = ()
    """Of every submission that is decided, in order: the same one again is a replay."""
    rejected: dict[str, PriorRejection] = msgspec.field(default_factory=dict)
    """Every candidate that was rejected, by its hash."""
    verifier_version: str | None = None
    """Of the verifier that was asked last."""
    identical: int = 0
    """Submissions in a row that only repeat the candidate rejected before them."""
    schema_errors: int = 0
    """In a row."""
    system_errors: int = 0
    """In a row."""
    limits: GateLimits = GateLimits()
    ended: VerificationEnding | None = None


class CandidateSubmitted(NamedTuple):
    """The model hands in a candidate."""

    submission_id: str
    candidate_hash: str
    verifier_version: str
    deterministic: bool = False
    """Whether the verifier says of itself that equal candidates get equal verdicts."""


class VerdictGiven(NamedTuple):
    """The verifier has spoken, or broken."""

    submission_id: str
    candidate_hash: str
    said: VerifierVerdict
    at: float
    verifier_version: str | None = None
    """None for the one that was asked when the candidate was submitted."""

    def with_time(self, moment: float) -> "VerdictGiven":
        """The same, when it was written down."""
        return VerdictGiven(self.submission_id, self.candidate_hash, self.said, moment, self.verifier_version)


class SchemaErrorFound(NamedTuple):
    """A payload that is not of the output's shape, and so no candidate."""

    submission_id: str


class OutOfTurns(NamedTuple):
    """The host has no turn left in which a revision could come."""


GateEvent: TypeAlias = CandidateSubmitted | VerdictGiven | SchemaErrorFound | OutOfTurns


class AskVerifier(NamedTuple):
    """Ask the verifier."""

    attempt: int
    max_attempts: int


class RecallRejection(NamedTuple):
    """Reject as that submission was rejected: an equal candidate, and a verifier that always says the same."""

    submission_id: str


class ReplayAnswer(NamedTuple):
    """Answer what this submission was answered before; nothing is counted."""

    submission_id: str


class CompleteVerification(NamedTuple):
    """The run is done, and its result is what the verifier returned."""

    attempt: int


class RequestRevision(NamedTuple):
    """Tell the model why, and let it go on."""

    attempt: int
    attempts_left: int
    rejected_at: int | None
    """The attempt at which the same candidate was rejected before."""
    identical: int


class RequestRepair(NamedTuple):
    """Tell the model what is wrong with its payload, and let it go on."""

    left: int


class RetryVerifier(NamedTuple):
    """Ask the verifier again after a pause."""

    after_s: float


class CountAttempt(NamedTuple):
    """One attempt of the budget is used."""

    attempt: int


class EndVerification(NamedTuple):
    """The run is over: with nothing, or, asked again after it passed, with the result it has."""

    reason: VerificationEnding


GateAction: TypeAlias = (
    AskVerifier
    | RecallRejection
    | ReplayAnswer
    | CompleteVerification
    | RequestRevision
    | RequestRepair
    | RetryVerifier
    | CountAttempt
    | EndVerification
)


def advance(state: VerificationState, happening: GateEvent) -> tuple[VerificationState, tuple[GateAction, ...]]:
    """The state after a happening, and what is to be done now; the same twice never counts twice."""
    if not isinstance(happening, OutOfTurns) and happening.submission_id in state.submission_ids:
        return state, (ReplayAnswer(happening.submission_id),)
    if state.ended is not None:
        return state, (EndVerification(state.ended),)
    match happening:
        case OutOfTurns():
            return _end(state, VerificationEnding.TURNS)
        case CandidateSubmitted():
            return _apply_submission(state, happening)
        case SchemaErrorFound():
            return _apply_schema_error(state, happening)
        case VerdictGiven():
            return _apply_verdict(state, happening)


def _apply_verdict(state: VerificationState, verdict: VerdictGiven) -> tuple[VerificationState, tuple[GateAction, ...]]:
    match verdict.said:
        case Acceptance():
            return _apply_pass(state, verdict)
        case Rejection() as rejection:
            return _apply_rejection(state, verdict, rejection)
        case SystemErrorVerdict() as breakage:
            return _apply_system_error(state, verdict, breakage)


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
        _record_verdict(state, verdict, VerificationOutcome.PASSED), ended=VerificationEnding.PASSED, identical=0
    )
    return state, (CompleteVerification(state.attempts_used + 1),)


def _apply_rejection(
    state: VerificationState, verdict: VerdictGiven, rejection: Rejection
) -> tuple[VerificationState, tuple[GateAction, ...]]:
    """As specified: a candidate that differs from the last one costs an attempt; the same one again only patience."""
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
    return state, (*count, RequestRevision(used, left, None if before is None else before.attempt, state.identical))


def _ending_after(state: VerificationState, rejection: Rejection) -> VerificationEnding | None:
    if not rejection.retryable:
        return VerificationEnding.REJECTED_FINAL
    if state.attempts_used >= state.limits.max_attempts:
        return VerificationEnding.ATTEMPTS
    return VerificationEnding.NO_PROGRESS if state.identical >= state.limits.no_progress else None


def _apply_system_error(
    state: VerificationState, verdict: VerdictGiven, breakage: SystemErrorVerdict
) -> tuple[VerificationState, tuple[GateAction, ...]]:
    """Nobody was judged: nothing is counted, and the candidate is still to be verified."""
    state = msgspec.structs.replace(
        state,
        system_errors=state.system_errors + 1,
        last_outcome=VerificationOutcome.SYSTEM_ERROR,
        last_attempt_at=verdict.at,
    )
    if breakage.permanent or state.system_errors >= state.limits.system_errors:
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
    )


def _end(state: VerificationState, reason: VerificationEnding) -> tuple[VerificationState, tuple[GateAction, ...]]:
    return msgspec.structs.replace(state, ended=reason), (EndVerification(reason),)


def pause_s(errors: int) -> float:
    """How long to wait after so many errors in a row."""
    return min(FIRST_PAUSE_S * 2.0 ** min(errors - 1, 16), LONGEST_PAUSE_S)
