"""What labels say of an evaluation."""

import pytest
from tests.review.conftest import CASES, number_of, truth_of
from tests.review.test_service import label_all

from meruit.evaluations.reader import Evaluations
from meruit.model.criterion import SuccessCriterion
from meruit.review.ask import choices_of, instructions_of, question_of
from meruit.review.label import CANNOT_TELL
from meruit.review.results import ReviewResults
from meruit.review.service import ReviewRequest, Reviews
from meruit.review.truth import choice_of_key, decide_truth

TRUE_RATE = sum(map(truth_of, range(CASES))) / CASES


def test_labels_correct_the_rate_of_a_criterion(
    reviews: Reviews, results: ReviewResults, evaluations: Evaluations
) -> None:
    found = evaluations.find("first")
    reviews.create(ReviewRequest("results", "first", "right", random=60, disagreement=4, seed=11), by="test")
    label_all(reviews, "results")
    assert "right" in results.labelled_criteria(found)
    rate = results.corrected_rate(found, "right")
    # Cases that were not drawn by chance do not count.
    assert rate.calibration.labels == rate.these.labels == 60
    assert rate.these.cases == CASES
    assert rate.calibrated
    assert not rate.judged
    assert rate.these.interval is not None
    assert rate.these.interval.low < TRUE_RATE < rate.these.interval.high
    assert rate.like_these.interval is not None
    assert rate.like_these.interval.high - rate.like_these.interval.low > (
        rate.these.interval.high - rate.these.interval.low
    )
    assert rate.by_error_rates.estimate == pytest.approx(TRUE_RATE, abs=0.1)
    assert rate.bounds is None
    assert not results.corrected_rate(found, "right", min_labels=61).calibrated
    # No model judges any of its criteria.
    assert results.judge_statuses(found) == []


def test_what_people_cannot_tell_widens_to_bounds(
    reviews: Reviews, results: ReviewResults, evaluations: Evaluations
) -> None:
    review = reviews.create(ReviewRequest("open", "first", "word_count", random=40, seed=12), by="test")
    for number in range(1, 41):
        choice = CANNOT_TELL if number % 8 == 0 else "yes"
        reviews.label(review, number, labeller="ann", choice=choice, by="test")
    rate = results.corrected_rate(evaluations.find("first"), "word_count")
    assert rate.calibration.cannot_tell == 5
    assert rate.these.labels == 35
    assert rate.bounds is not None
    assert rate.bounds.high - rate.bounds.low == pytest.approx(5 / 40, abs=0.03)
    assert rate.bounds_interval is not None
    assert rate.bounds_interval.low < rate.bounds.low


def test_an_unfinished_queue_estimates_with_what_it_has(
    reviews: Reviews, results: ReviewResults, evaluations: Evaluations
) -> None:
    reviews.create(ReviewRequest("half", "second", "word_count", random=40, seed=13), by="test")
    second = evaluations.find("second")
    assert results.corrected_rate(second, "word_count").these.estimate is None
    label_all(reviews, "half", most=3)
    few = results.corrected_rate(second, "word_count").these
    assert (few.labels, few.interval) == (3, None)
    label_all(reviews, "half", most=20)
    assert results.corrected_rate(second, "word_count").these.interval is not None


def test_labels_of_the_same_cases_correct_a_difference(
    reviews: Reviews, results: ReviewResults, evaluations: Evaluations
) -> None:
    reviews.create(ReviewRequest("pair-a", "first", random=50, seed=14), by="test")
    reviews.create(ReviewRequest("pair-b", "second", same_cases_as="pair-a"), by="test")
    label_all(reviews, "pair-a")
    label_all(reviews, "pair-b")
    first, second = evaluations.find("first"), evaluations.find("second")
    (found,) = [one for one in results.corrected_differences(first, second) if one.criterion is None]
    # People see no difference between the two; the criterion errs on other cases.
    assert found.these.labels == 50
    assert found.these.raw is not None
    assert found.these.raw > 0.02
    assert found.these.interval is not None
    assert found.these.interval.low < 0 < found.these.interval.high
    assert found.like_these.p is not None
    assert found.like_these.p > 0.05


def test_a_criterion_is_calibrated_by_name(reviews: Reviews, results: ReviewResults) -> None:
    reviews.create(ReviewRequest("calibrate", "third", "right", random=80, seed=15), by="test")
    label_all(reviews, "calibrate", "bob")
    several = [reviews.find("calibrate")]
    (found,) = results.calibrations("right", several)
    assert found.calibration.labels == 80
    assert found.evaluations == ("third",)
    assert found.version is None
    assert found.tags["lang"].keys() == {"de", "en"}
    assert all(number_of(one.case_id) % 10 == 3 for one in found.disagreements)
    assert len(found.drift) == 4
    assert results.calibrations("wrong", several) == []
    assert results.judge_names(several) == ["right"]


def test_truth_is_what_most_people_say() -> None:
    assert decide_truth([True, True, False]) is True
    assert decide_truth([False, None]) is False
    assert decide_truth([True, False]) is None
    assert decide_truth([None]) is None
    assert decide_truth([]) is None


def judged(**more: object) -> SuccessCriterion:
    return SuccessCriterion.model_validate(
        {"metric": "judge", "metric_type": "custom", "comparison": "eq", "threshold": "kind", **more}
    )


def test_labellers_are_asked_what_the_judge_is_asked() -> None:
    asked = judged(params={"question": "How is it?", "rubric": "Be fair.", "choices": ["kind", "curt", "rude"]})
    assert (question_of(asked), instructions_of(asked)) == ("How is it?", "Be fair.")
    assert [(one.name, one.key, one.meets) for one in choices_of(asked)] == [
        ("kind", "k", True),
        ("curt", "c", False),
        ("rude", "r", False),
    ]
    scaled = judged(metric_type="numeric", comparison="gte", threshold=3, params={"scale": [1, 5]})
    assert [one.meets for one in choices_of(scaled)] == [False, False, True, True, True]
    alike = judged(threshold="very good", params={"choices": ["good", "great", "very good"]})
    assert [one.key for one in choices_of(alike)] == ["1", "2", "3"]
    assert choice_of_key(choices_of(alike), "3") == "very good"
    assert choice_of_key(choices_of(alike), "4") is None


def test_without_usable_choices_the_answer_is_yes_or_no() -> None:
    plain = SuccessCriterion.model_validate(
        {"metric": "word_count", "metric_type": "count", "comparison": "lte", "threshold": 3}
    )
    for criterion in (
        None,
        plain,
        judged(),
        judged(comparison="gte", threshold=3, metric_type="numeric", params={"choices": ["a", "b"]}),
    ):
        assert [one.name for one in choices_of(criterion)] == ["yes", "no"]
        assert question_of(criterion)
        assert instructions_of(criterion) == ""
