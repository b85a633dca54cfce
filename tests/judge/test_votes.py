"""The rule of agreement: never a value without enough equal votes of one stage."""

from collections import Counter
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from meruit.judge.votes import decide_votes
from meruit.model.evidence import Cause, Fault, Measured, Missing
from meruit.model.vote import JUDGE, JudgeEvidence, Vote, VoteStatus, read_judge_evidence

CHOICES = ["poor", "fair", "good"]


def vote(answer: str | int | None, status: VoteStatus = VoteStatus.USABLE, stage: int = 0) -> Vote:
    return Vote(
        "k",
        "v",
        1,
        stage,
        status,
        answer,
        "",
        "openai",
        "m",
        "m",
        {},
        "d",
        [],
        "",
        None,
        1,
        1,
        1,
        datetime(2026, 1, 1, tzinfo=UTC),
        False,
        False,
    )


def evidence(votes: list[Vote], agree: int = 2) -> JudgeEvidence:
    return JudgeEvidence("j", "v", CHOICES, None, agree, votes)


votes = st.lists(
    st.builds(
        vote,
        st.sampled_from([*CHOICES, "other", None, 1]),
        st.sampled_from([*VoteStatus, *[VoteStatus.USABLE] * 5]),
        st.integers(0, 1),
    ),
    max_size=8,
)


@given(votes, st.integers(1, 4))
def test_a_value_has_enough_equal_votes_of_one_stage(cast: list[Vote], agree: int) -> None:
    found = decide_votes(evidence(cast, agree))
    usable = [one for one in cast if one.status is VoteStatus.USABLE and one.answer in CHOICES]
    counts = Counter((one.stage, one.answer) for one in usable)
    if isinstance(found, Measured):
        assert max(number for (_, answer), number in counts.items() if answer == found.value) >= agree
    else:
        for stage in (0, 1):
            agreed = [answer for (number, answer), count in counts.items() if number == stage and count >= agree]
            assert len(agreed) != 1
        assert found.cause in (Cause.VOTES_DISAGREE, Cause.VOTES_MISSING)
        assert found.fault is (Fault.NONE if found.cause is Cause.VOTES_DISAGREE else Fault.SYSTEM)
    kept = read_judge_evidence(dict(found.details or {}))
    assert kept is not None
    assert kept.votes == cast
    # Counting what was kept comes to the same.
    assert decide_votes(kept) == found
    ranks = [CHOICES.index(str(one.answer)) for one in usable]
    assert (kept.low, kept.high) == ((CHOICES[min(ranks)], CHOICES[max(ranks)]) if ranks else (None, None))


def test_missing_votes_quote_the_first_problem_and_not_all_of_it() -> None:
    failed = [
        structs.replace(vote(None, VoteStatus.FAILED), problem=text) for text in (None, "no key" + "x" * 999, "z")
    ]
    found = decide_votes(evidence(failed))
    assert isinstance(found, Missing)
    assert (": no key" in found.why, "z" in found.why, len(found.why) < 500) == (True, False, True)


def test_a_later_stage_decides_what_the_first_left_open() -> None:
    first = [vote("poor"), vote("good")]
    found = decide_votes(evidence([*first, vote("good", stage=1), vote("good", stage=1)]))
    assert isinstance(found, Measured)
    assert found.value == "good"


def test_two_answers_that_both_have_enough_votes_decide_nothing() -> None:
    tied = decide_votes(evidence([vote("poor"), vote("good"), vote("poor"), vote("good")]))
    assert not isinstance(tied, Measured)


def test_numbers_are_on_the_scale_or_no_votes() -> None:
    scale = JudgeEvidence("j", "v", None, (1, 5), 1, [vote(True), vote(6), vote(5), vote("5")])
    found = decide_votes(scale)
    assert isinstance(found, Measured)
    assert found.value == 5
    assert not JudgeEvidence("j", "v", None, None, 1, []).has_answer(1)


def test_details_without_readable_votes_hold_none() -> None:
    assert read_judge_evidence(None) is None
    assert read_judge_evidence({"other": 1}) is None
    assert read_judge_evidence({JUDGE: {"name": 1}}) is None


def test_a_limit_is_named() -> None:
    found = decide_votes(evidence([vote(None, VoteStatus.LIMIT)]))
    assert not isinstance(found, Measured)
    assert "limit" in found.why
