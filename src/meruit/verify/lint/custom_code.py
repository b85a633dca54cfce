"""Criteria's own code, tried before anyone is judged by it: whether it runs, and says the same twice."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from meruit.metrics.custom import CustomExtractor, Found
from meruit.model.canonical import LARGEST_INTEGER
from meruit.model.evidence import Cause, Measured, Missing
from meruit.model.kinds import Tier
from meruit.model.work import Work
from meruit.sandbox.contract import Failure
from meruit.verify.catalogue import Prepared
from meruit.verify.custom_code import Sandboxes

ALWAYS_TOLD = frozenset({Cause.UNSUPPORTED_CONSTRUCT, Cause.SANDBOX_UNAVAILABLE, Cause.NONDETERMINISTIC})
"""What is wrong with code whatever it is tried on; anything else may be the work's doing."""


OF_CODE = frozenset(map(Cause, Failure))
"""How the author's own code ends when it gives no number."""


class Trouble(NamedTuple):
    """What is wrong with one piece of code."""

    owner: str
    """The code: `custom_metrics[0]`, or `expr[id]`."""
    cause: Cause
    message: str


def try_out(prepared: Prepared, work: Work, *, good: bool) -> list[Trouble]:
    """Run each piece of the criteria's code twice on the work, past every cache.

    On work that is known to be good it must not fail; on any other, its author cannot foresee what it meets.
    """
    return [
        trouble
        for owner, extractor in prepared.custom.items()
        for trouble in _tried(owner, extractor, work, prepared.sandboxes, good=good)
    ]


def _tried(
    owner: str, extractor: CustomExtractor, work: Work, sandboxes: Sandboxes, *, good: bool
) -> Iterator[Trouble]:
    first = _run(extractor, work)
    failed = _failure(first)
    if failed is None:
        again = _run(sandboxes.apart(extractor), work)
        if _values(again) != _values(first):
            yield Trouble(owner, Cause.NONDETERMINISTIC, f"two runs on the same work differ: {_apart(first, again)}")
        elif extractor.sandbox.tier is Tier.EXPR:
            yield from _spelling_troubles(owner, extractor, work)
    elif failed.cause is Cause.UNSUPPORTED_CONSTRUCT:
        yield Trouble(owner, failed.cause, f"{failed.why}; {_wider(extractor, work, sandboxes)}")
    elif good or failed.cause in ALWAYS_TOLD:
        where = " (on the gold output)" if good else ""
        yield Trouble(owner, failed.cause, f"{failed.why}{where}")


def _spelling_troubles(owner: str, extractor: CustomExtractor, work: Work) -> Iterator[Trouble]:
    """Whether an expression fails once an agent writes the same numbers in another way: 3 is not 3.0 to CEL."""
    for spell, said in ((_as_double, "3.0 for 3"), (_as_int, "3 for 3.0")):
        respelled = Work(*(_respelled(part, spell) for part in (work.output, work.input, work.metadata)))
        failed = _failure(_run(extractor, respelled))
        if failed is not None:
            why = f"it fails when the work holds {said}: {failed.why}; wrap what it reads in double(…)"
            yield Trouble(owner, failed.cause, why)


# Any: a work holds whatever JSON holds.
def _respelled(value: Any, spell: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: _respelled(item, spell) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_respelled(item, spell) for item in value]
    return spell(value)


def _as_double(value: Any) -> Any:
    return float(value) if type(value) is int and abs(value) <= LARGEST_INTEGER else value


def _as_int(value: Any) -> Any:
    return int(value) if type(value) is float and value.is_integer() and abs(value) <= LARGEST_INTEGER else value


def _wider(extractor: CustomExtractor, work: Work, sandboxes: Sandboxes) -> str:
    """Which tier runs what this one cannot; tried where the operator allows it."""
    match extractor.sandbox.tier:
        case Tier.EXPR:
            return "what CEL cannot say can be written as code under custom_metrics"
        case Tier.PYTHON_FULL:
            return "no tier is wider"
        case Tier.PYTHON:
            if not sandboxes.allows(Tier.PYTHON_FULL):
                return "the tier python-full may run it; your operator must allow it"
            wider = sandboxes.extractor(extractor.code, Tier.PYTHON_FULL, extractor.metrics)
            failed = _failure(_run(wider, work))
            if failed is None or failed.cause not in ALWAYS_TOLD:
                return "python-full runs it: write tier: python-full"
            return f"the tier python-full does not run it either: {failed.why}"


def _run(extractor: CustomExtractor, work: Work) -> Found:
    return extractor.extract_sync(work.input, work.output, work.metadata)


def _failure(found: Found) -> Missing | None:
    return next((finding for finding in found.values() if isinstance(finding, Missing)), None)


def _values(found: Found) -> Mapping[str, Any]:
    return {name: finding.value if isinstance(finding, Measured) else finding.why for name, finding in found.items()}


def _apart(first: Found, again: Found) -> str:
    """The first metric that came out differently."""
    one, other = _values(first), _values(again)
    name = next(name for name in one if one[name] != other[name])
    return f"{name} is {one[name]}, then {other[name]}"
