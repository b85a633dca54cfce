"""Which step of a run was at work when something was counted."""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from meruit.model.metering import MeteredStep
from meruit.model.time import to_micros
from meruit.usage.attribution.columns import OPEN

SEVERAL = -1
"""Instead of a step, where nobody can say which of them it was."""


class StepSpan(NamedTuple):
    """When a step was at work, in microseconds."""

    start: int
    end: int
    """Exclusive, and later than the start: also a step of no length was at work in its minute."""
    step: int
    """Its place among the steps of the run."""


def spans_of(steps: Sequence[MeteredStep]) -> list[StepSpan] | None:
    """In order of their starts; None where one of them does not say when it was."""
    found: list[StepSpan] = []
    for place, step in enumerate(steps):
        if step.started_at is None or step.ended_at is None:
            return None
        start = to_micros(step.started_at)
        found.append(StepSpan(start, max(to_micros(step.ended_at), start + 1), place))
    return sorted(found)


def steps_by_bucket(
    moments: Sequence[int], spans: Sequence[StepSpan], width: int, *, closed: int
) -> Iterator[tuple[int, int | None]]:
    """For each bucket, in order, the step that it touches: None where there is none, SEVERAL where there are more.

    From `closed` on nothing of the run can begin: what is counted then is late, and its last step's.
    """
    waiting = iter([*spans, StepSpan(OPEN, OPEN, SEVERAL)])
    following = next(waiting)
    at_work: list[tuple[int, int]] = []
    last = max(spans, key=lambda span: (span.end, span.step)).step if spans else None
    for moment in moments:
        while following.start < moment + width:
            heappush(at_work, (following.end, following.step))
            following = next(waiting)
        while at_work and at_work[0][0] <= moment:
            heappop(at_work)
        if moment >= closed:
            yield moment, last
        else:
            yield moment, SEVERAL if len(at_work) > 1 else at_work[0][1] if at_work else None
