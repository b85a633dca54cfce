"""Accuracy, precision, recall and F1 of one set of labels, against four calls of scikit-learn."""

import math
import random
from collections.abc import Iterator
from typing import Any

from sklearn.metrics import accuracy_score, f1_score, precision_score, recall_score

from meruit.metrics import labels
from meruit.model.work import Work
from speed.measure import Row, interleaved

TARGETS = {10: 1_000, 10_000: 60}
CLASSES = ["billing", "refund", "shipping", "technical", "cancellation", "complaint", "praise"]
CLASSES += ["spam", "sales", "other"]

Items = list[dict[str, str]]


def rows() -> Iterator[Row]:
    for count, target in TARGETS.items():
        truth, predictions = _items(random.Random(count), count)
        ours, baseline = _ours(truth, predictions), _baseline(truth, predictions)
        assert all(math.isclose(one, other, rel_tol=1e-12) for one, other in zip(ours, baseline, strict=True))
        ours_us, baseline_us = interleaved(
            lambda: _ours(truth, predictions),  # noqa: B023 - called before the next turn
            lambda: _baseline(truth, predictions),  # noqa: B023
            seconds=2.0,
        )
        name = f"classification, {count:,} labels"
        yield Row(name, ours_us, baseline_us, "four scikit-learn calls", target)


def _items(chance: random.Random, count: int) -> tuple[Items, Items]:
    """True labels, and predictions of which one in six is wrong."""
    classes = CLASSES if count >= len(CLASSES) ** 2 else CLASSES[:3]
    truth = [chance.choice(classes) for _ in range(count)]
    predicted = [chance.choice(classes) if chance.random() < 0.2 else label for label in truth]
    return [{"label": label} for label in truth], [{"label": label} for label in predicted]


# Any: a metric may find other things than numbers; here it does not, as the comparison shows.
def _ours(truth: Items, predictions: Items) -> tuple[Any, ...]:
    work = Work(output={"predictions": predictions}, input={"ground_truth": truth})
    return labels.accuracy(work), labels.precision(work), labels.recall(work), labels.f1_score(work)


def _baseline(truth: Items, predictions: Items) -> tuple[float, ...]:
    due = [item["label"] for item in truth]
    given = [item["label"] for item in predictions]
    return (
        accuracy_score(due, given),
        precision_score(due, given, average="weighted", zero_division=0),
        recall_score(due, given, average="weighted", zero_division=0),
        f1_score(due, given, average="weighted", zero_division=0),
    )
