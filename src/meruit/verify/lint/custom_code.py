"""Criteria's own code, tried before anyone is judged by it: whether it runs, and says the same twice."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from meruit.errors import Failure
from meruit.metrics.custom import CustomExtractor, ExtractedMetrics
from meruit.model.canonical import LARGEST_INTEGER
from meruit.model.evidence import Cause, Measured, Missing
from meruit.model.kinds import Tier
from meruit.model.work import Work
from meruit.sandbox.contract import SYNTAX_ERROR, UNDEFINED
from meruit.verify.catalogue import CompiledCriteria
from meruit.verify.custom_code import Sandboxes

ALWAYS_REPORTED = frozenset({Cause.UNSUPPORTED_CONSTRUCT, Cause.SANDBOX_UNAVAILABLE, Cause.NONDETERMINISTIC})
"""Faults of the code itself, on any work; anything else may be the work's doing."""


OF_CODE = frozenset(map(Cause, Failure))
"""How the author's own code ends when it gives no number."""


class CustomCodeProblem(NamedTuple):
    """What is wrong with one piece of code."""

    owner: str
    """The code: `custom_metrics[0]`, or `expr[id]`."""
    cause: Cause
    message: str


def try_out(
    compiled: CompiledCriteria,
    work: Work,
    *,
    good: bool,
    budget_s: float = math.inf,
    timer: Callable[[], float] = time.monotonic,
) -> list[CustomCodeProblem]:
    """Run each piece of the criteria's code twice on the work, past every cache.

    On work that is known to be good it must not fail; on any other, its author cannot foresee what it meets. No
    further piece is run once the budget is spent.
    """
    troubles, end = list[CustomCodeProblem](), timer() + budget_s
    for owner, extractor in compiled.custom.items():
        if timer() > end:
            why = f"trying the code of these criteria takes longer than {budget_s:g} s; make it faster, or bring less"
            return [*troubles, CustomCodeProblem(owner=owner, cause=Cause.TOO_COSTLY, message=why)]
        troubles += _try_code(owner, extractor, work, compiled.sandboxes, good=good)
    return troubles


def _try_code(
    owner: str, extractor: CustomExtractor, work: Work, sandboxes: Sandboxes, *, good: bool
) -> Iterator[CustomCodeProblem]:
    first = _run(extractor, work)
    failed = _failure(first)
    if failed is None:
        again = _run(sandboxes.in_own_process(extractor), work)
        if _values(again) != _values(first):
            yield CustomCodeProblem(
                owner=owner,
                cause=Cause.NONDETERMINISTIC,
                message=f"two runs on the same work differ: {_first_difference(first, again)}",
            )
        elif extractor.sandbox.tier is Tier.EXPR:
            yield from _spelling_problems(owner, extractor, work)
    elif failed.cause is Cause.UNSUPPORTED_CONSTRUCT:
        yield CustomCodeProblem(
            owner=owner,
            cause=failed.cause,
            message=f"{failed.why}{_suggest_wider_tier(extractor, failed, work, sandboxes)}",
        )
    elif good or failed.cause in ALWAYS_REPORTED:
        where = " (on the gold output)" if good else ""
        yield CustomCodeProblem(owner=owner, cause=failed.cause, message=f"{failed.why}{where}")


def _spelling_problems(owner: str, extractor: CustomExtractor, work: Work) -> Iterator[CustomCodeProblem]:
    """Whether an expression fails once an agent writes the same numbers in another way: 3 is not 3.0 to CEL."""
    for spell, label in ((_as_double, "3.0 for 3"), (_as_int, "3 for 3.0")):
        respelled = Work(*(_respell(part, spell) for part in (work.output, work.input, work.metadata)))
        failed = _failure(_run(extractor, respelled))
        if failed is not None:
            why = f"it fails when the work holds {label}: {failed.why}; wrap what it reads in double(…)"
            yield CustomCodeProblem(owner=owner, cause=failed.cause, message=why)


# Any: a work holds any JSON.
def _respell(value: Any, spell: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: _respell(item, spell) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_respell(item, spell) for item in value]
    return spell(value)


def _as_double(value: Any) -> Any:
    return float(value) if type(value) is int and abs(value) <= LARGEST_INTEGER else value


def _as_int(value: Any) -> Any:
    return int(value) if type(value) is float and value.is_integer() and abs(value) <= LARGEST_INTEGER else value


def _suggest_wider_tier(extractor: CustomExtractor, narrow: Missing, work: Work, sandboxes: Sandboxes) -> str:
    """Which tier runs what this one cannot; tried where the operator allows it. None runs what is not valid."""
    if any(phrase in narrow.why for phrase in (SYNTAX_ERROR, UNDEFINED, "Syntax error")):
        return ""
    match extractor.sandbox.tier:
        case Tier.EXPR:
            return "; what CEL cannot say can be written as code under custom_metrics"
        case Tier.PYTHON_FULL:
            return "; no tier is wider"
        case Tier.PYTHON:
            if not sandboxes.allows(Tier.PYTHON_FULL):
                return "; the tier python-full may run it; your operator must allow it"
            wider = sandboxes.extractor(extractor.code, Tier.PYTHON_FULL, extractor.metrics)
            failed = _failure(_run(wider, work))
            if failed is None or failed.cause not in ALWAYS_REPORTED:
                return "; python-full runs it: write tier: python-full"
            return f"; the tier python-full does not run it either: {failed.why}"


def _run(extractor: CustomExtractor, work: Work) -> ExtractedMetrics:
    return extractor.extract_sync(work.input, work.output, work.metadata)


def _failure(found: ExtractedMetrics) -> Missing | None:
    return next((finding for finding in found.values() if isinstance(finding, Missing)), None)


def _values(found: ExtractedMetrics) -> Mapping[str, Any]:
    return {name: finding.value if isinstance(finding, Measured) else finding.why for name, finding in found.items()}


def _first_difference(first: ExtractedMetrics, again: ExtractedMetrics) -> str:
    """The first metric that came out differently."""
    one, other = _values(first), _values(again)
    name = next(name for name in one if one[name] != other[name])
    return f"{name} is {one[name]}, then {other[name]}"
