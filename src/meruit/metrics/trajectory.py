"""Whether the agent's way to its answer was a permitted one."""

from typing import Any

from meruit.errors import AuthorError
from meruit.metrics.support.keywords import check_params
from meruit.metrics.support.messages import CallPattern, RecordedCall, call_patterns, calls_of
from meruit.model.evidence import Fault, Measured, Missing, Provenance
from meruit.model.kinds import MetricType
from meruit.model.work import Work
from meruit.registry import Ask, Finding, Measure, metrics

MAX_SHOWN = 20
"""Violations that evidence lists."""
PARAMS = {
    "steps": "the calls that must occur in this order, other calls in between or not; names, or objects with `name` "
    "and `arguments`, `*` in a name for any characters",
    "forbidden": "the calls that must not occur",
    "max_steps": "how many calls there may be at most",
}


def _way(*names: str) -> Work:
    calls = [{"type": "tool_use", "name": name, "input": {"id": 7}} for name in names]
    return Work(metadata={"messages": [{"role": "assistant", "content": calls}]})


@metrics.add(
    "trajectory",
    kind=MetricType.BOOLEAN,
    params=PARAMS,
    provenance=Provenance.OBSERVED,
    examples=[
        (_way("login", "search", "pay"), True, Ask({"steps": ["login", "pay"], "forbidden": ["delete_*"]})),
        (_way("pay", "login"), False, Ask({"steps": ["login", "pay"]})),
        (_way("delete_user"), False, Ask({"forbidden": [{"name": "delete_*", "arguments": {"id": 7}}]})),
        (_way("search", "search"), False, Ask({"max_steps": 1})),
        (Work(), Missing, Ask({"forbidden": ["pay"]})),
    ],
)
def trajectory(ask: Ask) -> Measure:
    """Whether the calls of tools keep to the required steps, the forbidden ones and the limit, with what does not."""
    check_params(ask, "trajectory", PARAMS)
    steps = call_patterns(ask.params.get("steps", ()), "the param steps")
    forbidden = call_patterns(ask.params.get("forbidden", ()), "the param forbidden")
    limit = _limit(ask.params.get("max_steps"))
    asks = bool(steps) or bool(forbidden) or limit is not None
    if ask.params and not asks:
        raise AuthorError("trajectory lists no step, forbids none and has no limit, so it can never fail")

    def measure(work: Work) -> Finding:
        if not asks:
            return Missing(f"nothing is asked; give one of {', '.join(PARAMS)} as params", fault=Fault.AUTHOR)
        recorded = work.derive(calls_of)
        if isinstance(recorded, Missing):
            return recorded
        details: dict[str, Any] = {"steps": len(recorded.calls)}
        missing = _first_missing(steps, recorded.calls)
        if missing is not None:
            details["missing"] = str(missing)
        wrong = [
            {"step": index, "name": call.name}
            for index, call in enumerate(recorded.calls, 1)
            if any(pattern.fits(call) for pattern in forbidden)
        ]
        if wrong:
            details["forbidden"] = wrong[:MAX_SHOWN]
        too_many = limit is not None and len(recorded.calls) > limit
        if too_many:
            details["max_steps"] = limit
        return Measured(missing is None and not wrong and not too_many, details, recorded.provenance)

    return measure


def _limit(value: Any) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise AuthorError(f"the param max_steps must be a whole number from 0 up, not {value!r}")
    return value


def _first_missing(steps: tuple[CallPattern, ...], calls: tuple[RecordedCall, ...]) -> CallPattern | None:
    """The first step that does not occur after the one before it."""
    # The earliest call that fits leaves the most to the steps after it.
    rest = iter(calls)
    return next((step for step in steps if not any(step.fits(call) for call in rest)), None)
