"""What the tool that a case was imported from claims of it; its judgement, not ours."""

from collections.abc import Mapping
from typing import Any

from meruit.metrics.support.keywords import check_params
from meruit.model.evidence import Fault, Measured, Missing, Provenance
from meruit.model.kinds import MetricType
from meruit.model.work import ORIGIN, Work
from meruit.registry import Ask, Finding, Measure, metrics

PARAMS = {"name": "the assertion, scorer or grader that is meant; without it, the verdict on the whole case"}
_EXAMPLE = Work(metadata={ORIGIN: {"success": True, "checks": {"match": False}, "scores": {"rouge": 0.4}}})


@metrics.add(
    "claimed_success",
    kind=MetricType.BOOLEAN,
    params=PARAMS,
    provenance=Provenance.CLAIMED,
    examples=[
        (_EXAMPLE, True),
        (_EXAMPLE, False, Ask({"name": "match"})),
        (_EXAMPLE, Missing, Ask({"name": "rouge"})),
        (Work(), Missing),
    ],
)
def claimed_success(ask: Ask) -> Measure:
    """Whether the tool that an imported case comes from says that it passed."""
    check_params(ask, "claimed_success", PARAMS)
    name = ask.params.get("name")

    def measure(work: Work) -> Finding:
        origin = _origin(work)
        found = origin.get("success") if name is None else _part(origin, "checks").get(name)
        return Measured(found, provenance=Provenance.CLAIMED) if isinstance(found, bool) else _no_score(name)

    return measure


@metrics.add(
    "claimed_score",
    kind=MetricType.NUMERIC,
    params=PARAMS,
    provenance=Provenance.CLAIMED,
    examples=[
        (_EXAMPLE, 0.4, Ask({"name": "rouge"})),
        (_EXAMPLE, Missing, Ask({"name": "match"})),
        (Work(), Missing),
    ],
)
def claimed_score(ask: Ask) -> Measure:
    """The number that a scorer of the tool that an imported case comes from gave it."""
    check_params(ask, "claimed_score", PARAMS)
    name = ask.params.get("name")

    def measure(work: Work) -> Finding:
        origin = _origin(work)
        found = origin.get("score") if name is None else _part(origin, "scores").get(name)
        if isinstance(found, bool) or not isinstance(found, int | float):
            return _no_score(name)
        return Measured(found, provenance=Provenance.CLAIMED)

    return measure


def _origin(work: Work) -> Mapping[str, Any]:
    return _part(work.metadata, ORIGIN)


def _part(whole: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = whole.get(name)
    return found if isinstance(found, Mapping) else {}


# Any: a param is what its author wrote.
def _no_score(name: Any) -> Missing:
    what = "no verdict" if name is None else f"nothing under the name {name!r}"
    return Missing(f"the origin of this case gives {what}", fault=Fault.SYSTEM)
