"""How much of a document is right."""

from meruit.metrics.support.json_parts import DOCUMENT_PARAMS, document_comparer
from meruit.metrics.support.keywords import check_params, flag
from meruit.model.evidence import Measured, Missing
from meruit.model.kinds import MetricType
from meruit.model.work import Work
from meruit.registry import Ask, Finding, Measure, metrics

PARAMS = DOCUMENT_PARAMS | {"count_extra": "true: a value that the reference does not have counts as a wrong one"}


@metrics.add(
    "json_fields",
    kind=MetricType.PERCENTAGE,
    params=PARAMS,
    examples=[
        (Work(output={"a": 1, "b": 2}, input={"reference": {"a": 1, "b": 3}}), 0.5),
        (Work(output={"a": 1, "b": 2}, input={"reference": {"a": 1}}), 1.0),
        (Work(output={"a": 1, "b": 2}, input={"reference": {"a": 1}}), 0.5, Ask({"count_extra": True})),
        (Work(output={"text": "not JSON"}, input={"reference": {"a": {"b": 1}}}), 0.0),
        (Work(output={"a": 1}), Missing),
    ],
)
def json_fields(ask: Ask) -> Measure:
    """The share of the reference's values that the output has at the same path, with the paths that differ."""
    check_params(ask, "json_fields", PARAMS)
    compare, count_extra = document_comparer(ask), flag(ask, "count_extra")

    def measure(work: Work) -> Finding:
        found = compare(work)
        if isinstance(found, Missing):
            return found
        total = found.reference_leaves + (len(found.extra) if count_extra else 0)
        return Measured(found.equal / total, details=found.to_details())

    return measure
