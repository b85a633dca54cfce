"""What a submission is answered: by the rules of the gate, once, with what the model must know."""

from hypothesis import given
from hypothesis import strategies as st

from meruit.gate.accounting import SubmissionResult, account, give_up
from meruit.gate.limits import GateLimits
from meruit.gate.state import SchemaErrorFound, VerdictGiven, VerificationEnding, VerificationState
from meruit.gate.verdict import Acceptance, Rejection, SystemErrorVerdict, VerifierVerdict

NO, YES, BROKEN = Rejection("not yet", code="tests_failed"), Acceptance(1), SystemErrorVerdict("away")
submissions = st.one_of(
    st.builds(SchemaErrorFound, st.sampled_from("123456")),
    st.builds(
        VerdictGiven,
        st.sampled_from("123456"),
        st.sampled_from("AB"),
        st.sampled_from([NO, NO, NO, NO, YES, BROKEN, Rejection("never", retryable=False)]),
        st.floats(0, 2e9),
    ),
)


def answered(
    state: VerificationState, said: VerifierVerdict, candidate: str = "A", submission_id: str = "s1"
) -> SubmissionResult:
    done = account(state, VerdictGiven(submission_id, candidate, said, at=7.0))[1]
    assert done is not None
    return done


@given(st.lists(submissions, max_size=12))
def test_every_submission_is_answered_and_counted_once(
    story: list[VerdictGiven | SchemaErrorFound],
) -> None:
    state = VerificationState()
    for happening in story:
        new, done = account(state, happening)
        assert (done is None) == (happening.submission_id in state.submission_ids)
        if done is not None:
            assert done.submission_id == happening.submission_id
            assert done.counted == (new.attempts_used > state.attempts_used)
            assert done.attempts_used == new.attempts_used
            assert done.replayed == (state.ended is not None)
            assert (done.ending is not None or done.is_pass) == (new.ended is not None)
            assert account(new, happening)[0] == new or done.outcome == "system_error"
        state = new


def test_a_rejection_shows_the_rest_of_the_budget() -> None:
    done = answered(VerificationState(), NO)
    assert (done.outcome, done.attempt, done.attempts_used, done.counted, done.at) == ("rejected", 1, 1, True, 7.0)
    assert done.feedback is not None
    assert "Attempt 1 was rejected; 4 are left." in done.feedback


def test_the_last_rejection_shows_no_budget() -> None:
    done = answered(VerificationState(limits=GateLimits(max_attempts=1)), NO)
    assert (done.ending, done.is_pass) == (VerificationEnding.ATTEMPTS, False)
    assert done.feedback is not None
    assert "left" not in done.feedback


def test_a_pass_is_the_next_attempt_and_ends_nothing_in_failure() -> None:
    state, _ = account(VerificationState(), VerdictGiven("s0", "B", NO, at=1.0))
    done = answered(state, YES)
    assert (done.outcome, done.is_pass, done.attempt, done.attempts_used, done.counted) == ("passed", True, 2, 1, False)
    assert (done.ending, done.feedback) == (None, None)


def test_a_broken_verifier_is_retried_until_its_limit() -> None:
    done = answered(VerificationState(), BROKEN)
    assert (done.outcome, done.pause_s, done.ending, done.counted) == ("system_error", 1.0, None, False)
    last = answered(VerificationState(system_errors=4), BROKEN)
    assert (last.outcome, last.pause_s, last.ending) == ("system_error", None, VerificationEnding.SYSTEM_ERROR)


def test_a_schema_error_lists_its_problems() -> None:
    state, done = account(VerificationState(), SchemaErrorFound("s1"), problems="summary: missing")
    assert done is not None
    assert (done.outcome, done.attempt, done.counted) == ("schema_error", 0, False)
    assert done.feedback == '<output_invalid tries_left="2">\nsummary: missing\n</output_invalid>'
    _, last = account(VerificationState(schema_errors=2), SchemaErrorFound("s1"))
    assert last is not None
    assert last.ending is VerificationEnding.SCHEMA_ERRORS
    assert account(state, SchemaErrorFound("s1"))[1] is None


def test_a_late_submission_gets_the_ending_and_counts_nothing() -> None:
    state, gone = give_up(VerificationState(), at=9.0)
    assert (gone.ending, gone.at, gone.counted) == (VerificationEnding.TURNS, 9.0, False)
    late = answered(state, YES)
    assert (late.outcome, late.ending, late.replayed) == ("rejected", VerificationEnding.TURNS, True)
