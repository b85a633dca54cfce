"""The built-in extractors, one for each family of metrics, whose file is loaded when one of them is asked."""

from collections.abc import Sequence

from meruit.errors import MeruitError
from meruit.metrics.support.extractor import Family
from meruit.suggestions import nearest

ROUGE_TYPES = ("rouge1", "rouge2", "rougeL")


class LatencyExtractor(Family):
    """Extract latency-based metrics from the execution metadata."""

    family = "latency"


class TextQualityExtractor(Family):
    """Extract text metrics from `output.text`, and `input.reference` where it is compared."""

    family = "text"

    def __init__(self, rouge_types: Sequence[str] = ROUGE_TYPES) -> None:
        for name in rouge_types:
            if name not in ROUGE_TYPES:
                close, known = nearest(name, ROUGE_TYPES), ", ".join(ROUGE_TYPES)
                raise MeruitError(f"unknown ROUGE type {name!r}{close}; use one of {known}")
        self.rouge_types = tuple(rouge_types)

    def member_names(self) -> list[str]:
        """The metrics of the family, without unused ROUGE types."""
        unwanted = {*ROUGE_TYPES} - {*self.rouge_types}
        return [name for name in super().member_names() if name not in unwanted]


class ClassificationExtractor(Family):
    """Extract classification metrics from `output.predictions` and `input.ground_truth`."""

    family = "labels"


class ContainsExtractor(Family):
    """Extract content-based metrics: keywords, patterns, fields, schema."""

    family = "content"
