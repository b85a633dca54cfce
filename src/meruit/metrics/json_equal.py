"""Whether a document is the reference."""

from meruit.metrics.support.json_parts import DOCUMENT_PARAMS, document_comparer
from meruit.metrics.support.keywords import check_params
from meruit.model.evidence import Measured, Missing
from meruit.model.kinds import MetricType
from meruit.model.work import Work
from meruit.registry import Ask, Finding, Measure, metrics


@metrics.add(
    "json_equal",
    kind=MetricType.BOOLEAN,
    params=DOCUMENT_PARAMS,
    examples=[
        (Work(output={"a": 1, "b": [2]}, input={"reference": {"b": [2.0], "a": 1}}), True),
        (Work(output={"text": '{"a": 1}'}, input={"reference": {"a": True}}), False),
        (Work(output={"a": 1, "id": "x"}, input={"reference": {"a": 1}}), True, Ask({"ignore": ["id"]})),
        (Work(output={"a": [1, 2]}, input={"reference": {"a": [2, 1]}}), True, Ask({"ignore_order": True})),
        (Work(output={"a": 1}), Missing),
    ],
)
def json_equal(ask: Ask) -> Measure:
    """Whether the output is the same JSON document as the reference, with the paths that differ."""
    check_params(ask, "json_equal", DOCUMENT_PARAMS)
    compare = document_comparer(ask)

    def measure(work: Work) -> Finding:
        found = compare(work)
        if isinstance(found, Missing):
            return found
        if found.equal == found.reference_leaves and not found.extra:
            return True
        return Measured(value=False, details=found.to_details())

    return measure
