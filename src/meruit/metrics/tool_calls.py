"""Whether the agent called the right tools."""

from collections.abc import Sequence

from meruit.errors import AuthorError
from meruit.metrics.support.keywords import check_params, choice
from meruit.metrics.support.messages import (
    ARGUMENT_RULES,
    CallPattern,
    RecordedCall,
    call_patterns,
    calls_of,
)
from meruit.model.evidence import Cause, Fault, Measured, Missing, Provenance
from meruit.model.kinds import MetricType
from meruit.model.work import Work
from meruit.registry import Ask, Finding, Measure, metrics

ORDERS = ("any", "in_order")
EXTRAS = ("allow", "count")
MAX_SHOWN = 20
"""Names of each kind that evidence lists."""
PARAMS = {
    "calls": "the expected calls, names or objects with `name` and `arguments`, where the work's input has no "
    "`expected_tool_calls`; `*` in a name stands for any characters",
    "arguments": "`subset` (the default: those named must be equal), `exact` (and no others), or `ignore`",
    "order": "`any` (the default), or `in_order`: as listed, with other calls in between or not",
    "extra": "`allow` (the default), or `count`: a call that was not expected counts as a wrong one",
}


def _chat(*names: str) -> Work:
    calls = [{"function": {"name": name, "arguments": '{"city": "Oslo"}'}} for name in names]
    return Work(metadata={"messages": [{"role": "assistant", "tool_calls": calls}]})


@metrics.add(
    "tool_calls",
    kind=MetricType.PERCENTAGE,
    params=PARAMS,
    provenance=Provenance.OBSERVED,
    examples=[
        (_chat("search", "book"), 1.0, Ask({"calls": ["book", "search"]})),
        (_chat("search", "book"), 0.5, Ask({"calls": ["book", "search"], "order": "in_order"})),
        (_chat("search", "book"), 0.5, Ask({"calls": ["search"], "extra": "count"})),
        (_chat("search"), 0.0, Ask({"calls": [{"name": "search", "arguments": {"city": "Rome"}}]})),
        (Work(output={"text": "done"}), Missing, Ask({"calls": ["search"]})),
    ],
)
def tool_calls(ask: Ask) -> Measure:
    """The share of the expected tool calls that were made, by name, arguments and order."""
    check_params(ask, "tool_calls", PARAMS)
    rule, order = choice(ask, "arguments", ARGUMENT_RULES), choice(ask, "order", ORDERS)
    count_extra = choice(ask, "extra", EXTRAS) == "count"
    own = call_patterns(ask.params["calls"], "the param calls", rule) if "calls" in ask.params else None
    if own == ():
        raise AuthorError("the param calls is empty; to allow no call at all, use `trajectory` with forbidden: ['*']")

    def measure(work: Work) -> Finding:
        expected = own if own is not None else _calls_to_expect(work, rule)
        if isinstance(expected, Missing):
            return expected
        recorded = work.derive(calls_of)
        if isinstance(recorded, Missing):
            return recorded
        pair = _match_in_order if order == "in_order" else _match_any_order
        made = pair(expected, recorded.calls)
        extra = [call.name for index, call in enumerate(recorded.calls) if index not in made.values()]
        details = {
            "expected": len(expected),
            "made": len(made),
            "missing": [str(pattern) for index, pattern in enumerate(expected) if index not in made][:MAX_SHOWN],
            "extra": extra[:MAX_SHOWN],
        }
        total = len(expected) + (len(extra) if count_extra else 0)
        return Measured(len(made) / total, details=details, provenance=recorded.provenance)

    return measure


def _calls_to_expect(work: Work, rule: str) -> tuple[CallPattern, ...] | Missing:
    value = work.input.get("expected_tool_calls")
    if not value:
        return Missing("no calls to expect; list them as params.calls or input.expected_tool_calls", fault=Fault.AUTHOR)
    try:
        return call_patterns(value, "input.expected_tool_calls", rule)
    except AuthorError as problem:
        return Missing(str(problem), cause=Cause.AUTHOR_ERROR, fault=Fault.AUTHOR)


def _match_any_order(expected: Sequence[CallPattern], calls: Sequence[RecordedCall]) -> dict[int, int]:
    """For each expected call a call of its own, as many as can be; one call may fit several patterns."""
    fits = [[index for index, call in enumerate(calls) if pattern.fits(call)] for pattern in expected]
    taken: dict[int, int] = {}

    def find_place(pattern: int, tried: set[int]) -> bool:
        for call in fits[pattern]:
            if call not in tried:
                tried.add(call)
                if call not in taken or find_place(taken[call], tried):
                    taken[call] = pattern
                    return True
        return False

    for pattern in range(len(expected)):
        find_place(pattern, set())
    return {pattern: call for call, pattern in taken.items()}


def _match_in_order(expected: Sequence[CallPattern], calls: Sequence[RecordedCall]) -> dict[int, int]:
    """The longest row of expected calls that were made one after another."""
    # best[i][j]: how many of expected[i:] can be found in calls[j:].
    best = [[0] * (len(calls) + 1) for _ in range(len(expected) + 1)]
    for i in range(len(expected) - 1, -1, -1):
        for j in range(len(calls) - 1, -1, -1):
            skip = max(best[i + 1][j], best[i][j + 1])
            best[i][j] = max(skip, best[i + 1][j + 1] + 1) if expected[i].fits(calls[j]) else skip
    made: dict[int, int] = {}
    i = j = 0
    while i < len(expected) and j < len(calls):
        if expected[i].fits(calls[j]) and best[i][j] == best[i + 1][j + 1] + 1:
            made[i] = j
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return made


@metrics.add(
    "num_tool_calls",
    kind=MetricType.COUNT,
    params={},
    provenance=Provenance.OBSERVED,
    examples=[(_chat("search", "book"), 2), (Work(metadata={"messages": []}), 0), (Work(), Missing)],
)
def num_tool_calls(ask: Ask) -> Measure:
    """How many tools were called."""
    check_params(ask, "num_tool_calls", {})

    def measure(work: Work) -> Finding:
        recorded = work.derive(calls_of)
        if isinstance(recorded, Missing):
            return recorded
        return Measured(len(recorded.calls), provenance=recorded.provenance)

    return measure
