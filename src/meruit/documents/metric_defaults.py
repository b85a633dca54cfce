"""What a criterion may leave out, because its metric says it; and a criterion of each metric to copy."""

from collections.abc import Collection, Mapping
from typing import Any

from meruit.model.kinds import ComparisonOperator, MetricType
from meruit.registry import Metric, metrics

_TRUE_OR_FALSE = frozenset({MetricType.BOOLEAN, MetricType.MATCHES_SCHEMA})
"""Types where a criterion without a comparison can mean one thing only: it must be true."""
_OTHER_FORMS = frozenset({"expr", "assert", "assertion"})
_USUAL = {
    MetricType.LATENCY: (ComparisonOperator.LTE, 2000),
    MetricType.COUNT: (ComparisonOperator.GTE, 1),
    MetricType.NUMERIC: (ComparisonOperator.GTE, 1),
    MetricType.CONTAINS: (ComparisonOperator.GTE, 1),
}
"""A comparison and a threshold that criteria of this type often have; shares have another."""
_USUAL_SHARE = (ComparisonOperator.GTE, 0.8)


# Any: the document has not been validated yet.
def fill_metric_defaults(criteria: Any, declared: Collection[str] = ()) -> Any:
    """The same list, whose criteria have the type of their metric where they name none.

    The declared names are those of custom metrics, of which no type is known. A metric that is true or false also
    fills in that it must be true, unless the criterion has a comparison or a threshold.
    """
    if not isinstance(criteria, list):
        return criteria
    return [_fill(one, declared) if isinstance(one, Mapping) else one for one in criteria]


def _fill(criterion: Mapping[str, Any], declared: Collection[str]) -> Mapping[str, Any]:
    name = criterion.get("metric")
    if not isinstance(name, str) or name in declared or not _OTHER_FORMS.isdisjoint(criterion):
        return criterion
    if "metric_type" in criterion and ("comparison" in criterion or "threshold" in criterion):
        return criterion
    metric = metrics.find(name)
    if metric is None:
        return criterion
    kind = criterion.get("metric_type", str(metric.kind))
    filled = {"metric_type": kind, **criterion}
    if kind in _TRUE_OR_FALSE and "comparison" not in criterion and "threshold" not in criterion:
        filled |= {"comparison": str(ComparisonOperator.EQ), "threshold": True}
    return filled


def example_criterion(metric: Metric) -> dict[str, Any]:
    """A criterion that names the metric, as short as a file may have it; the threshold is a usual one."""
    asked = metric.examples[0].ask if metric.examples else None
    written: dict[str, Any] = {"metric": metric.name}
    if metric.kind is MetricType.CUSTOM and asked is not None:
        # A judge answers with one of its choices.
        written |= {"comparison": str(ComparisonOperator.EQ), "threshold": asked.params["choices"][0]}
    elif asked is not None and asked.wanted:
        written |= {"comparison": str(ComparisonOperator.CONTAINS_ALL), "threshold": [*asked.wanted]}
    elif metric.kind not in _TRUE_OR_FALSE:
        comparison, threshold = _USUAL.get(metric.kind, _USUAL_SHARE)
        written |= {"comparison": str(comparison), "threshold": threshold}
    if asked is not None and asked.params:
        written["params"] = dict(asked.params)
    return written
