"""Classification metrics: equal to scikit-learn's weighted ones, exact, never better for a lacking answer."""

import asyncio
import math
import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.sampling import examples

from meruit.metrics import labels
from meruit.metrics.support.families import ClassificationExtractor
from meruit.model.evidence import Fault, Measured, Missing, Provenance
from meruit.model.work import Work
from meruit.registry import Finding, metrics

SCORED = [labels.accuracy, labels.precision, labels.recall, labels.f1_score]
NAN = float("nan")

pairs = st.lists(st.tuples(*[st.sampled_from(["a", "b", "c", "d e", ""])] * 2), min_size=1, max_size=60)


def work(truth: Any, predictions: Any) -> Work:
    return Work(output={"predictions": predictions}, input={"ground_truth": truth})


def items(values: Sequence[Any]) -> list[dict[str, Any]]:
    return [{"label": value} for value in values]


def scores(truth: Any, predictions: Any) -> list[Finding]:
    one = work(truth, predictions)
    return [metric(one) for metric in SCORED]


def values(found: list[Finding]) -> list[Any]:
    return [finding.value if isinstance(finding, Measured) else finding for finding in found]


def expected(truth: Sequence[str], predictions: Sequence[str]) -> list[float]:
    from sklearn import metrics as sklearn  # more than a second, in every worker

    # The three at once: asked one by one, each is made of all three.
    several = sklearn.precision_recall_fscore_support(truth, predictions, average="weighted", zero_division=0)
    return [sklearn.accuracy_score(truth, predictions), *several[:3]]


def exactly(truth: Sequence[str], predictions: Sequence[str]) -> list[float]:
    """The definitions, in fractions: the mean over true labels, weighted by how often each is due."""
    precision = recall = f1 = Fraction(0)
    for label in set(truth):
        due, given_ = truth.count(label), predictions.count(label)
        hits = sum(one == other == label for one, other in zip(truth, predictions, strict=True))
        weight = Fraction(due, len(truth))
        precision += weight * Fraction(hits, given_ or 1)
        recall += weight * Fraction(hits, due)
        f1 += weight * Fraction(2 * hits, due + given_)
    hits = sum(one == other for one, other in zip(truth, predictions, strict=True))
    return [hits / len(truth), float(precision), float(recall), float(f1)]


@given(pairs)
@examples(40)
def test_scores_equal_the_reference_on_any_labels(answered: list[tuple[str, str]]) -> None:
    truth, predictions = map(list, zip(*answered, strict=True))
    found = scores(items(truth), items(predictions))
    assert found == pytest.approx(expected(truth, predictions), rel=1e-12, abs=0)


@given(pairs)
@example([("a", "a")] * 9 + [("a", "b")])
def test_scores_are_the_exact_fractions_rounded_once(answered: list[tuple[str, str]]) -> None:
    truth, predictions = map(list, zip(*answered, strict=True))
    assert scores(items(truth), items(predictions)) == exactly(truth, predictions)


@given(pairs)
def test_bare_labels_and_items_with_a_label_mean_the_same(answered: list[tuple[str, str]]) -> None:
    truth, predictions = map(list, zip(*answered, strict=True))
    found = scores(items(truth), items(predictions))
    assert scores(truth, predictions) == found
    assert scores(items(truth), predictions) == found
    assert scores(tuple(truth), tuple(predictions)) == found


@given(pairs, st.data())
def test_leaving_an_answer_out_never_helps_accuracy_or_recall(
    answered: list[tuple[str, str]], data: st.DataObject
) -> None:
    truth, predictions = map(list, zip(*answered, strict=True))
    withheld = [answer if data.draw(st.booleans()) else None for answer in predictions]
    whole, partly = values(scores(truth, predictions)), values(scores(truth, withheld))
    assert partly[0] <= whole[0]
    assert partly[2] <= whole[2]


def test_scores_are_equal_over_a_large_set_of_many_labels() -> None:
    chance = random.Random(30)
    truth = [f"label {int(chance.expovariate(0.005))}" for _ in range(20_000)]
    predictions = [chance.choice(truth) if chance.random() < 0.3 else label for label in truth]
    assert scores(items(truth), items(predictions)) == pytest.approx(expected(truth, predictions), rel=1e-12)


def test_thousands_of_small_sets_are_exact() -> None:
    chance = random.Random(31)
    for _ in range(3_000):
        truth = chance.choices("abcde", k=chance.randint(1, 20))
        predictions = [chance.choice("abcdef") if chance.random() < 0.4 else label for label in truth]
        assert scores(items(truth), items(predictions)) == exactly(truth, predictions)


def test_many_labels_of_many_frequencies_stay_exact() -> None:
    """So many denominators that their product must be reduced on the way."""
    truth = [f"{number}" for number in range(1, 90) for _ in range(number)]
    predictions = [label if place % 7 else "1" for place, label in enumerate(truth)]
    assert scores(items(truth), items(predictions)) == exactly(truth, predictions)


def test_nine_of_ten_is_nine_tenths() -> None:
    assert labels.accuracy(work(items("a" * 10), items("a" * 9 + "b"))) == 0.9


@pytest.mark.parametrize(
    ("due", "given_", "same"),
    [
        (True, True, True),
        (True, 1, False),
        (1, True, False),
        (0, False, False),
        (1, 1.0, True),
        (1, "1", False),
        ("1", 1, False),
        ("True", True, False),
        ("a", "A", False),
        ("a", "a ", False),
        ("", "", True),
        (2**70, float(2**70), True),
        (math.inf, math.inf, True),
    ],
)
def test_labels_are_the_same_only_when_they_mean_the_same(due: Any, given_: Any, same: bool) -> None:
    for form in (items, list):
        assert labels.accuracy(work(form([due, "x"]), form([given_, "x"]))) == (1.0 if same else 0.5)


UNANSWERED = [
    *({}, {"name": "a"}, {"label": None}, {"label": NAN}, {"label": ["a"]}, {"label": {"a": 1}}),
    *(None, NAN, ["a"], (), b"a"),
]


@pytest.mark.parametrize("answer", UNANSWERED)
def test_an_answer_without_a_label_is_wrong_and_spoils_no_precision(answer: Any) -> None:
    found = scores(items("aab"), [{"label": "a"}, answer, {"label": "b"}])
    assert values(found) == [2 / 3, 1.0, 2 / 3, pytest.approx((2 * 2 / 3 + 1) / 3)]
    for finding in found:
        assert isinstance(finding, Measured)
        assert finding.details == {"expected": 3, "answered": 2, "ignored": 0}


@pytest.mark.parametrize("item", UNANSWERED)
def test_a_truth_without_a_label_is_the_authors_fault(item: Any) -> None:
    for finding in scores([{"label": "a"}, item], items("ab")):
        assert isinstance(finding, Missing)
        assert finding.fault is Fault.AUTHOR
        assert "index 1" in finding.why


def test_too_few_answers_are_scored_over_all_that_was_asked() -> None:
    found = scores(items("abab"), items("ab"))
    assert values(found) == [0.5, 1.0, 0.5, pytest.approx(2 / 3)]
    assert isinstance(found[0], Measured)
    assert found[0].details == {"expected": 4, "answered": 2, "ignored": 0}


def test_more_answers_than_asked_are_ignored_and_said_to_be() -> None:
    found = scores(items("ab"), items("abbb"))
    assert values(found) == [1.0] * 4
    assert isinstance(found[0], Measured)
    assert found[0].details == {"expected": 2, "answered": 2, "ignored": 2}


def test_no_answers_at_all_score_nothing() -> None:
    found = scores(items("ab"), [])
    assert values(found) == [0.0] * 4
    assert isinstance(found[0], Measured)
    assert found[0].details == {"expected": 2, "answered": 0, "ignored": 0}


def test_full_answers_come_without_details() -> None:
    assert all(isinstance(finding, float) for finding in scores([1, True, 2.5], [1, True, 2]))


@pytest.mark.parametrize("predictions", [None, "a", 5, {"label": "a"}, {"a"}])
def test_predictions_that_are_not_a_list_are_the_agents_fault(predictions: Any) -> None:
    one = work(items("ab"), predictions)
    for metric in [*SCORED, labels.num_predictions]:
        found = metric(one)
        assert isinstance(found, Missing)
        assert found.fault is Fault.AGENT
        assert "predictions" in found.why


@pytest.mark.parametrize("truth", [None, [], (), "ab", 5, {"label": "a"}])
def test_no_ground_truth_is_missing_and_the_authors_fault(truth: Any) -> None:
    for found in scores(truth, items("ab")):
        assert isinstance(found, Missing)
        assert found.fault is Fault.AUTHOR
        assert "ground_truth" in found.why


def test_predictions_of_any_type_are_counted() -> None:
    assert labels.num_predictions(Work(output={"predictions": [None, {}, "a"]})) == 3
    assert labels.num_predictions(Work(output={"predictions": []})) == 0


@pytest.mark.parametrize("value", [0.7, 0, "high", True])
def test_confidence_is_passed_on_as_claimed(value: Any) -> None:
    assert labels.confidence(Work(output={"confidence": value})) is value
    assert metrics.get("confidence").provenance is Provenance.CLAIMED


@pytest.mark.parametrize("output", [{}, {"confidence": None}])
def test_no_confidence_is_not_a_confidence_of_zero(output: dict[str, Any]) -> None:
    found = labels.confidence(Work(output=output))
    assert isinstance(found, Missing)
    assert found.fault is Fault.AGENT


def test_labels_are_counted_once_for_all_metrics() -> None:
    one = work(items("ab"), items("ab"))
    assert [metric(one) for metric in SCORED] == [1.0] * 4
    assert len(one.derived) == 1


def test_the_extractor_finds_what_the_specification_lists() -> None:
    extractor = ClassificationExtractor()
    names = ["accuracy", "confidence", "f1_score", "num_predictions", "precision", "recall"]
    assert sorted(extractor.supported_metrics()) == names
    output = {"predictions": items("ab"), "confidence": 0.5}
    found = asyncio.run(extractor.extract({"ground_truth": items("aba")}, output, {}))
    scored = {"accuracy": 2 / 3, "precision": 1.0, "recall": 2 / 3, "f1_score": 7 / 9}
    assert found == {**scored, "confidence": 0.5, "num_predictions": 2}
