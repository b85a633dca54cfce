"""Classification metrics: predicted labels compared with the true ones, counted exactly."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import gcd
from typing import Any

import msgspec

from meruit.model.evidence import Fault, Measured, Missing, Provenance
from meruit.model.kinds import MetricType
from meruit.model.work import Work
from meruit.registry import Finding, metrics

WIDE = 1 << 240
"""A common denominator beyond this is reduced before it grows further."""

Label = str | int | float | tuple[bool]
"""The key that labels are compared by. A bool is wrapped, so that True is not 1; 1 equals 1.0 on purpose."""

# Any, because the fast path counts first and checks the types afterwards.
Counts = dict[Any, int]


class Scores(msgspec.Struct, frozen=True):
    """The metrics of one count of labels."""

    accuracy: Finding
    """Also the weighted recall: the weights cancel, and every hit over every item is left."""
    precision: Finding
    f1: Finding


def _scores(work: Work) -> Scores | Missing:
    truth = work.input.get("ground_truth")
    if not isinstance(truth, (list, tuple)) or not truth:
        return _absent("input", "ground_truth", truth, Fault.AUTHOR)
    predictions = work.output.get("predictions")
    if not isinstance(predictions, (list, tuple)):
        return _absent("output", "predictions", predictions, Fault.AGENT)
    return _score_text_labels(truth, predictions) or _score_any_labels(truth, predictions)


def _absent(where: str, name: str, found: Any, fault: Fault) -> Missing:
    if found is None:
        return Missing(f"the {where} has no {name}", fault=fault)
    if isinstance(found, list | tuple):
        return Missing(f"the {where}'s {name} is empty", fault=fault)
    return Missing(f"the {where}'s {name} is not a list but {type(found).__name__}", fault=fault)


def _score_text_labels(truth: Sequence[Any], predictions: Sequence[Any]) -> Scores | None:
    """The usual case, in one pass: as many answers as questions, and every label a text."""
    if len(truth) != len(predictions):
        return None
    right: Counts = {}
    overlooked: Counts = {}
    misplaced: Counts = {}
    so_far = right.get
    try:
        for item, prediction in zip(truth, predictions, strict=True):
            label = item["label"]
            if label == prediction["label"]:
                right[label] = so_far(label, 0) + 1
            else:
                overlooked[label] = overlooked.get(label, 0) + 1
                answer = prediction["label"]
                misplaced[answer] = misplaced.get(answer, 0) + 1
        # Joining accepts only text. Each label is checked once, because only text equals text.
        "".join([*right, *overlooked, *misplaced])
    except (LookupError, TypeError):
        return None
    return _compute_scores(right, overlooked, misplaced, len(truth))


def _score_any_labels(truth: Sequence[Any], predictions: Sequence[Any]) -> Scores | Missing:
    """The general case: labels of any type, missing predictions, extra predictions."""
    due = _labels(truth)
    if None in due:
        why = f"the input's ground_truth has no label at index {due.index(None)}"
        return Missing(why, fault=Fault.AUTHOR)
    given = _labels(predictions[: len(due)])
    given += [None] * (len(due) - len(given))
    right: Counts = {}
    overlooked: Counts = Counter()
    misplaced: Counts = Counter()
    for (label, answer), count in Counter(zip(due, given, strict=True)).items():
        if label == answer:
            right[label] = count
        else:
            overlooked[label] += count
            # A missing prediction counts under None, which no label's precision reads.
            misplaced[answer] += count
    answered = len(due) - misplaced[None]
    ignored = max(0, len(predictions) - len(due))
    if answered == len(due) and not ignored:
        return _compute_scores(right, overlooked, misplaced, len(due))
    details = {"expected": len(due), "answered": answered, "ignored": ignored}
    return _with_details(_compute_scores(right, overlooked, misplaced, len(due)), details)


def _labels(items: Sequence[Any]) -> list[Label | None]:
    return list(items) if {*map(type, items)} == {str} else [_label(item) for item in items]


def _label(item: Any) -> Label | None:
    """The comparison key of a label; None for a missing one."""
    value = item.get("label") if isinstance(item, Mapping) else item
    if isinstance(value, bool):
        return (value,)
    # NaN is the only number that does not equal itself.
    return value if isinstance(value, str | int | float) and value == value else None


def _compute_scores(right: Counts, overlooked: Counts, misplaced: Counts, expected: int) -> Scores:
    """The means over true labels, each weighing as often as it was due.

    Sums of fractions are kept as whole numbers and divided once: Python rounds that correctly, so that 9 of
    10 is 0.9. A label that was never right adds nothing but its items in `expected`.
    """
    correct = 0
    precision, per_given = 0, 1
    f1, per_both = 0, 1
    for label, hits in right.items():
        due = hits + overlooked.get(label, 0)
        given = hits + misplaced.get(label, 0)
        correct += hits
        precision = precision * given + due * hits * per_given
        per_given *= given
        f1 = f1 * (due + given) + 2 * due * hits * per_both
        per_both *= due + given
        if per_both > WIDE:
            shared = gcd(precision, per_given)
            precision, per_given = precision // shared, per_given // shared
            shared = gcd(f1, per_both)
            f1, per_both = f1 // shared, per_both // shared
    return Scores(
        accuracy=correct / expected, precision=precision / (per_given * expected), f1=f1 / (per_both * expected)
    )


def _with_details(scores: Scores, details: Mapping[str, int]) -> Scores:
    return Scores(*(Measured(value, details=details) for value in msgspec.structs.astuple(scores)))


def _example(truth: str, predictions: str) -> Work:
    return Work(output={"predictions": list(predictions)}, input={"ground_truth": list(truth)})


@metrics.add(
    "accuracy",
    kind=MetricType.ACCURACY,
    examples=[
        (
            Work(
                output={"predictions": [{"label": "spam"}, {"label": "ham"}]},
                input={"ground_truth": [{"label": "spam"}, {"label": "spam"}]},
            ),
            0.5,
        ),
        (_example("aabbbbbbbb", "abbbbbbbbb"), 0.9),
        (_example("ab", "a"), 0.5),
        (Work(output={"predictions": ["spam"]}), Missing),
    ],
)
def accuracy(work: Work) -> Finding:
    """The share of items that were given their true label; an item without an answer is wrong."""
    scores = work.derive(_scores)
    return scores if isinstance(scores, Missing) else scores.accuracy


@metrics.add(
    "precision",
    kind=MetricType.PERCENTAGE,
    examples=[(_example("aab", "abb"), 5 / 6), (_example("ab", "ab"), 1.0), (Work(), Missing)],
)
def precision(work: Work) -> Finding:
    """How often a label, once given, is right: the mean over true labels, weighted by their frequency."""
    scores = work.derive(_scores)
    return scores if isinstance(scores, Missing) else scores.precision


@metrics.add(
    "recall",
    kind=MetricType.PERCENTAGE,
    examples=[(_example("aab", "abb"), 2 / 3), (_example("ab", "ba"), 0.0), (Work(), Missing)],
)
def recall(work: Work) -> Finding:
    """How much of each true label was found: the mean over true labels, weighted by their frequency."""
    scores = work.derive(_scores)
    return scores if isinstance(scores, Missing) else scores.accuracy


@metrics.add(
    "f1_score",
    kind=MetricType.F1_SCORE,
    examples=[(_example("aab", "abb"), 2 / 3), (_example("aabb", "aaba"), 11 / 15), (Work(), Missing)],
)
def f1_score(work: Work) -> Finding:
    """Precision and recall in one, per label: the mean over true labels, weighted by their frequency."""
    scores = work.derive(_scores)
    return scores if isinstance(scores, Missing) else scores.f1


@metrics.add(
    "confidence",
    kind=MetricType.PERCENTAGE,
    provenance=Provenance.CLAIMED,
    examples=[(Work(output={"confidence": 0.87}), 0.87), (Work(output={"confidence": None}), Missing)],
)
def confidence(work: Work) -> Finding:
    """The confidence that the agent claims (`output.confidence`)."""
    value: Any = work.output.get("confidence")
    if value is None:
        return Missing("the output has no confidence", fault=Fault.AGENT)
    # The judge refuses anything that is not a number.
    return value  # type: ignore[no-any-return]


@metrics.add(
    "num_predictions",
    kind=MetricType.COUNT,
    examples=[
        (Work(output={"predictions": ["spam", "ham"]}), 2),
        (Work(output={"predictions": []}), 0),
        (Work(), Missing),
    ],
)
def num_predictions(work: Work) -> Finding:
    """The number of predictions."""
    predictions = work.output.get("predictions")
    if not isinstance(predictions, list | tuple):
        return _absent("output", "predictions", predictions, Fault.AGENT)
    return len(predictions)
