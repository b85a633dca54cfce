"""What each happening makes of a run: counted once, by the specified rule, whatever comes twice and in which order."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.gate.limits import GateLimits
from meruit.gate.state import (
    LONGEST_PAUSE_S,
    AskVerifier,
    CandidateSubmitted,
    CompleteVerification,
    CountAttempt,
    EndVerification,
    GateAction,
    GateEvent,
    OutOfTurns,
    PriorRejection,
    RecallRejection,
    ReplayAnswer,
    RequestRepair,
    RequestRevision,
    RetryVerifier,
    SchemaErrorFound,
    VerdictGiven,
    VerificationEnding,
    VerificationOutcome,
    VerificationState,
    pause_s,
)
from meruit.gate.state import (
    advance as after,
)
from meruit.gate.verdict import Acceptance, Rejection, SystemErrorVerdict, VerifierVerdict

NO = Rejection("not yet")
NEVER = Rejection("hopeless", retryable=False)
YES = Acceptance({"ok": True})
BROKEN = SystemErrorVerdict("the test machine is away")
LOST = SystemErrorVerdict("the verifier returned a socket", permanent=True)

hashes = st.sampled_from("ABC")
verdicts = st.sampled_from([NO] * 12 + [BROKEN] * 3 + [YES, NEVER, LOST])
limits = st.builds(GateLimits, *[st.integers(1, 6)] * 4)


class Step(NamedTuple):
    """One thing that a model or a host does."""

    candidate: str | None
    """None for a payload of the wrong shape."""
    said: VerifierVerdict = NO

    def happenings(self, submission_id: str) -> list[GateEvent]:
        if self.candidate is None:
            return [SchemaErrorFound(submission_id)]
        return [
            CandidateSubmitted(submission_id, self.candidate, "v1"),
            VerdictGiven(submission_id, self.candidate, self.said, at=1.0),
        ]


steps = st.builds(Step, hashes | st.none(), verdicts)
walks = st.lists(steps, max_size=25)
ids = st.sampled_from(["s1", "s2", "s3", "s4", "s5", "s6"])
happenings: st.SearchStrategy[GateEvent] = st.one_of(
    st.builds(CandidateSubmitted, ids, hashes, st.sampled_from(["v1", "v2"]), st.booleans()),
    st.builds(VerdictGiven, ids, hashes, verdicts, st.floats(0, 2e9)),
    st.builds(SchemaErrorFound, ids),
    st.just(OutOfTurns()),
)


def fold(
    state: VerificationState, story: Sequence[GateEvent]
) -> tuple[VerificationState, list[tuple[GateAction, ...]]]:
    told = []
    for happening in story:
        state, actions = after(state, happening)
        told.append(actions)
    return state, told


def walked(walk: Sequence[Step]) -> list[GateEvent]:
    return [one for number, step in enumerate(walk) for one in step.happenings(f"s{number}")]


def rejected(
    candidates: str, limits: GateLimits | None = None
) -> tuple[VerificationState, list[tuple[GateAction, ...]]]:
    """One rejection after another, each of a submission of its own."""
    decided = [VerdictGiven(f"s{number}", one, NO, at=float(number)) for number, one in enumerate(candidates)]
    return fold(VerificationState(limits=limits or GateLimits()), decided)


# An oracle that knows no state: it reads the whole story at once.


def runs_of(walk: Sequence[Step]) -> list[int]:
    """How often each candidate was rejected in a row."""
    judged = [step.candidate for step in walk if step.candidate and isinstance(step.said, Rejection)]
    return [len(list(same)) for _, same in groupby(judged)]


def broken_since(walk: Sequence[Step]) -> tuple[int, int]:
    """Misshapen payloads and broken verifiers since something was judged."""
    misshapen = broken = 0
    for step in reversed(walk):
        if step.candidate is None:
            misshapen += 1
        elif isinstance(step.said, SystemErrorVerdict):
            broken += 1
        else:
            break
    return misshapen, broken


def ending_of(walk: Sequence[Step], limits: GateLimits) -> VerificationEnding | None:
    """Why a story ends with its last step, if it does."""
    last = walk[-1]
    misshapen, broken = broken_since(walk)
    runs = runs_of(walk)
    if last.candidate is None:
        return VerificationEnding.SCHEMA_ERRORS if misshapen >= limits.schema_errors else None
    match last.said:
        case Acceptance():
            return VerificationEnding.PASSED
        case SystemErrorVerdict(permanent=permanent):
            return VerificationEnding.SYSTEM_ERROR if permanent or broken >= limits.system_errors else None
        case Rejection(retryable=False):
            return VerificationEnding.REJECTED_FINAL
        case Rejection():
            if len(runs) >= limits.max_attempts:
                return VerificationEnding.ATTEMPTS
            return VerificationEnding.NO_PROGRESS if runs[-1] > limits.no_progress else None


def told_by_oracle(walk: Sequence[Step], limits: GateLimits) -> tuple[int, int, VerificationEnding | None]:
    """Attempts used, identical resubmissions and the ending."""
    lengths = range(1, len(walk) + 1)
    over = next((length for length in lengths if ending_of(walk[:length], limits)), len(walk))
    lived = walk[:over]
    ending = ending_of(lived, limits) if lived else None
    runs = runs_of(lived)
    passed = ending is VerificationEnding.PASSED
    return len(runs), 0 if passed or not runs else runs[-1] - 1, ending


@given(walks, limits)
def test_attempts_are_the_changes_of_candidate_among_rejections(walk: list[Step], limits: GateLimits) -> None:
    state, _ = fold(VerificationState(limits=limits), walked(walk))
    assert (state.attempts_used, state.identical, state.ended) == told_by_oracle(walk, limits)


@given(walks, limits, st.data())
def test_replays_inserted_anywhere_and_in_any_order_change_nothing(
    walk: list[Step], limits: GateLimits, data: st.DataObject
) -> None:
    state = VerificationState(limits=limits)
    for happening in walked(walk):
        state, _ = after(state, happening)
        known = data.draw(st.lists(st.sampled_from(state.submission_ids), max_size=3)) if state.submission_ids else ()
        for submission_id in known:
            # Even a replay that claims something else: the first word stands.
            again = data.draw(st.sampled_from([Step("A"), Step("Z", YES), Step(None), Step("A", LOST)]))
            for repeated in again.happenings(submission_id):
                assert after(state, repeated) == (state, (ReplayAnswer(submission_id),))
    assert state == fold(VerificationState(limits=limits), walked(walk))[0]


@given(st.lists(happenings, max_size=40), limits)
def test_any_happening_in_any_state_gives_a_state_and_something_to_do(
    story: list[GateEvent], limits: GateLimits
) -> None:
    state = VerificationState(limits=limits)
    for happening in story:
        new, actions = after(state, happening)
        assert actions
        counted = [action for action in actions if isinstance(action, CountAttempt)]
        assert new.attempts_used - state.attempts_used == len(counted) <= 1
        assert new.attempts_used <= limits.max_attempts
        assert len(set(new.submission_ids)) == len(new.submission_ids)
        assert (
            isinstance(actions[-1], EndVerification | CompleteVerification)
            or new.ended is None
            or isinstance(actions[0], ReplayAnswer)
        )
        assert after(state, happening) == (new, actions)
        state = new


@given(st.lists(happenings, max_size=40), limits)
def test_what_has_ended_stays_as_it_is(story: list[GateEvent], limits: GateLimits) -> None:
    state = VerificationState(limits=limits)
    for happening in [*story, OutOfTurns(), *story]:
        new, actions = after(state, happening)
        if state.ended is not None:
            assert new == state
            assert actions == (EndVerification(state.ended),) or isinstance(actions[0], ReplayAnswer)
        state = new
    assert state.ended is not None


@given(st.lists(happenings, max_size=20))
def test_a_state_survives_being_written_down(story: list[GateEvent]) -> None:
    state, _ = fold(VerificationState(), story)
    assert VerificationState.from_json(state.to_json()) == state


@given(st.integers(1, 10_000))
def test_a_pause_grows_and_stays_bearable(errors: int) -> None:
    assert pause_s(errors) <= pause_s(errors + 1) <= LONGEST_PAUSE_S
    assert [pause_s(one) for one in (1, 2, 3)] == [1.0, 2.0, 4.0]


# What a person would argue about.


def test_a_candidate_that_returns_counts_again_with_its_earlier_attempt() -> None:
    state, told = rejected("ABA")
    assert state.attempts_used == 3
    assert told == [
        (CountAttempt(1), RequestRevision(1, 4, None, 0)),
        (CountAttempt(2), RequestRevision(2, 3, None, 0)),
        (CountAttempt(3), RequestRevision(3, 2, 1, 0)),
    ]
    assert state.rejected == {"A": PriorRejection(3, "s2"), "B": PriorRejection(2, "s1")}


def test_the_same_candidate_twice_counts_once_as_identical() -> None:
    state, told = rejected("AA")
    assert state.attempts_used == 1
    assert told[1] == (RequestRevision(1, 4, 1, 1),)


def test_two_hundred_identical_candidates_end_at_the_third_resubmission() -> None:
    state, told = rejected("A" * 200)
    assert told[:4] == [
        (CountAttempt(1), RequestRevision(1, 4, None, 0)),
        (RequestRevision(1, 4, 1, 1),),
        (RequestRevision(1, 4, 1, 2),),
        (EndVerification(VerificationEnding.NO_PROGRESS),),
    ]
    assert set(told[4:]) == {(EndVerification(VerificationEnding.NO_PROGRESS),)}
    assert (state.attempts_used, state.ended) == (1, VerificationEnding.NO_PROGRESS)
    assert len(state.submission_ids) == 4


def test_a_new_candidate_resets_no_progress() -> None:
    state, _ = rejected("AAABBB")
    assert (state.attempts_used, state.identical, state.ended) == (2, 2, None)


@pytest.mark.parametrize("budget", [1, 2, 5])
def test_the_last_rejection_of_a_budget_ends_the_run_and_none_before(budget: int) -> None:
    candidates = "ABCDEFG"[:budget]
    state, told = rejected(candidates, GateLimits(max_attempts=budget))
    assert [len(actions) for actions in told] == [2] * budget
    assert [one[1].attempts_left for one in told[:-1] if isinstance(one[1], RequestRevision)] == [
        *range(budget - 1, 0, -1)
    ]
    assert told[-1] == (CountAttempt(budget), EndVerification(VerificationEnding.ATTEMPTS))
    assert (state.attempts_used, state.ended) == (budget, VerificationEnding.ATTEMPTS)


@pytest.mark.parametrize("rejections", [0, 1, 4])
def test_a_pass_uses_no_attempt_and_is_reported_as_the_next(rejections: int) -> None:
    before, _ = rejected("ABCD"[:rejections])
    asked, actions = after(before, CandidateSubmitted("last", "Z", "v1"))
    assert actions == (AskVerifier(rejections + 1, 5),)
    state, actions = after(asked, VerdictGiven("last", "Z", YES, at=9.0))
    assert actions == (CompleteVerification(rejections + 1),)
    assert (state.attempts_used, state.ended, state.last_outcome) == (
        rejections,
        VerificationEnding.PASSED,
        VerificationOutcome.PASSED,
    )
    assert after(state, CandidateSubmitted("last", "Z", "v1")) == (state, (ReplayAnswer("last"),))


def test_a_system_error_costs_nothing_and_the_candidate_still_counts() -> None:
    story: list[GateEvent] = [
        VerdictGiven("s1", "A", BROKEN, at=1.0),
        CandidateSubmitted("s1", "A", "v1"),
        VerdictGiven("s1", "A", NO, at=2.0),
    ]
    state, told = fold(VerificationState(), story)
    assert told == [(RetryVerifier(1.0),), (AskVerifier(1, 5),), (CountAttempt(1), RequestRevision(1, 4, None, 0))]
    assert (state.attempts_used, state.system_errors) == (1, 0)


def test_equal_candidates_stay_equal_after_a_system_error() -> None:
    state, told = fold(
        VerificationState(),
        [
            VerdictGiven("s1", "A", NO, at=1.0),
            VerdictGiven("s2", "B", BROKEN, at=2.0),
            VerdictGiven("s3", "A", NO, at=3.0),
        ],
    )
    assert told[2] == (RequestRevision(1, 4, 1, 1),)
    assert state.last_candidate_hash == "A"


def test_a_verifier_that_breaks_too_often_ends_the_run_without_an_attempt() -> None:
    state, told = fold(VerificationState(), [VerdictGiven("s1", "A", BROKEN, at=1.0)] * 5)
    assert told == [
        (RetryVerifier(1.0),),
        (RetryVerifier(2.0),),
        (RetryVerifier(4.0),),
        (RetryVerifier(8.0),),
        (EndVerification(VerificationEnding.SYSTEM_ERROR),),
    ]
    assert (state.attempts_used, state.last_outcome, state.last_candidate_hash, state.submission_ids) == (
        0,
        VerificationOutcome.SYSTEM_ERROR,
        None,
        (),
    )


def test_what_asking_again_cannot_help_is_not_asked_again() -> None:
    assert after(VerificationState(), VerdictGiven("s1", "A", LOST, at=1.0))[1] == (
        EndVerification(VerificationEnding.SYSTEM_ERROR),
    )


def test_a_judgement_forgives_the_errors_before_it() -> None:
    story: list[GateEvent] = [VerdictGiven("s1", "A", BROKEN, at=1.0)] * 4
    story += [VerdictGiven("s1", "A", NO, at=2.0), VerdictGiven("s2", "B", BROKEN, at=3.0)]
    assert fold(VerificationState(), story)[1][-1] == (RetryVerifier(1.0),)


@pytest.mark.parametrize("used", [0, 2])
def test_a_final_rejection_ends_at_once_and_counts(used: int) -> None:
    before, _ = rejected("AB"[:used])
    state, actions = after(before, VerdictGiven("last", "Z", NEVER, at=9.0))
    assert actions == (CountAttempt(used + 1), EndVerification(VerificationEnding.REJECTED_FINAL))
    assert state.attempts_used == used + 1


def test_a_final_rejection_of_the_last_attempt_says_that_it_was_final() -> None:
    assert after(VerificationState(limits=GateLimits(max_attempts=1)), VerdictGiven("s1", "A", NEVER, at=1.0))[1] == (
        CountAttempt(1),
        EndVerification(VerificationEnding.REJECTED_FINAL),
    )


def test_payloads_of_the_wrong_shape_have_a_meter_of_their_own() -> None:
    state, told = fold(VerificationState(), [SchemaErrorFound("s1"), SchemaErrorFound("s2"), SchemaErrorFound("s3")])
    assert told == [(RequestRepair(2),), (RequestRepair(1),), (EndVerification(VerificationEnding.SCHEMA_ERRORS),)]
    assert (state.attempts_used, state.last_outcome) == (0, None)


def test_only_wrong_shapes_in_a_row_add_up() -> None:
    story: list[GateEvent] = [
        SchemaErrorFound("s1"),
        SchemaErrorFound("s2"),
        VerdictGiven("s3", "A", NO, at=1.0),
        SchemaErrorFound("s4"),
    ]
    state, told = fold(VerificationState(), story)
    assert told[-1] == (RequestRepair(2),)
    assert state.attempts_used == 1


def test_equal_candidates_stay_equal_after_a_schema_error() -> None:
    story: list[GateEvent] = [
        VerdictGiven("s1", "A", NO, at=1.0),
        SchemaErrorFound("s2"),
        VerdictGiven("s3", "A", NO, at=2.0),
    ]
    assert fold(VerificationState(), story)[0].attempts_used == 1


def test_a_host_without_turns_ends_the_run_for_that_reason() -> None:
    state, told = fold(rejected("AB")[0], [OutOfTurns(), OutOfTurns(), CandidateSubmitted("late", "C", "v1")])
    assert told == [(EndVerification(VerificationEnding.TURNS),)] * 3
    assert (state.attempts_used, state.ended) == (2, VerificationEnding.TURNS)


def test_who_passed_has_not_run_out_of_turns() -> None:
    state, _ = after(VerificationState(), VerdictGiven("s1", "A", YES, at=1.0))
    assert after(state, OutOfTurns()) == (state, (EndVerification(VerificationEnding.PASSED),))


# A verifier that always says the same need not be asked twice.


def submitted(state: VerificationState, candidate: str, version: str, number: int) -> tuple[GateAction, ...]:
    return after(state, CandidateSubmitted(f"new{number}", candidate, version, deterministic=True))[1]


def judged_by(version: str) -> VerificationState:
    """A and B rejected by one version."""
    story: list[GateEvent] = []
    for number, candidate in enumerate("AB"):
        story += [
            CandidateSubmitted(f"s{number}", candidate, version, deterministic=True),
            VerdictGiven(f"s{number}", candidate, NO, at=1.0),
        ]
    return fold(VerificationState(), story)[0]


def test_a_verifier_that_always_says_the_same_is_not_asked_twice() -> None:
    state = judged_by("v1")
    assert submitted(state, "A", "v1", 1) == (RecallRejection("s0"),)
    assert submitted(state, "C", "v1", 1) == (AskVerifier(3, 5),)
    # What is recalled is decided like any other rejection: A after B counts.
    assert after(state, VerdictGiven("new1", "A", NO, at=2.0))[1] == (CountAttempt(3), RequestRevision(3, 2, 1, 0))


def test_any_other_verifier_is_asked_about_every_submission() -> None:
    assert after(judged_by("v1"), CandidateSubmitted("new1", "A", "v1"))[1] == (AskVerifier(3, 5),)


def test_a_new_verifier_version_drops_verdicts_but_no_attempts() -> None:
    state = judged_by("v1")
    state, actions = after(state, CandidateSubmitted("new1", "A", "v2", deterministic=True))
    assert actions == (AskVerifier(3, 5),)
    # Neither asked again after a crash, nor for what only the old version has seen.
    assert submitted(state, "A", "v2", 1) == (AskVerifier(3, 5),)
    assert submitted(state, "B", "v2", 2) == (AskVerifier(3, 5),)
    state, actions = after(state, VerdictGiven("new1", "A", NO, at=2.0))
    assert actions == (CountAttempt(3), RequestRevision(3, 2, 1, 0))
    assert submitted(state, "A", "v2", 2) == (RecallRejection("new1"),)
    assert submitted(state, "B", "v2", 2) == (AskVerifier(4, 5),)


def test_a_verdict_may_name_the_version_that_it_is_of() -> None:
    """Where only verdicts are kept, what was said while submitting is forgotten."""
    state, _ = after(VerificationState(), VerdictGiven("s1", "A", NO, at=1.0, verifier_version="v1"))
    assert state.verifier_version == "v1"
    assert submitted(state, "A", "v1", 1) == (RecallRejection("s1"),)
    assert submitted(state, "A", "v2", 1) == (AskVerifier(2, 5),)
