"""Criteria's own code, tried before anyone is judged by it: whether it runs, and says the same twice."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from meruit.engine.catalogue import Prepared
from meruit.engine.custom import Sandboxes
from meruit.metrics.custom import CustomExtractor, Found
from meruit.model.evidence import Cause, Measured, Missing
from meruit.model.kinds import Tier
from meruit.model.work import Work

ALWAYS_TOLD = frozenset({Cause.UNSUPPORTED_CONSTRUCT, Cause.SANDBOX_UNAVAILABLE, Cause.NONDETERMINISTIC})
"""What is wrong with code whatever it is tried on; anything else may be the work's doing."""


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
    elif failed.cause is Cause.UNSUPPORTED_CONSTRUCT:
        yield Trouble(owner, failed.cause, f"{failed.why}; {_wider(extractor, work, sandboxes)}")
    elif good or failed.cause in ALWAYS_TOLD:
        where = " (on the gold output)" if good else ""
        yield Trouble(owner, failed.cause, f"{failed.why}{where}")


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
