"""Which step of a run was active when the provider counted tokens."""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from meruit.model.metering import MeteredStep
from meruit.model.time import to_micros
from meruit.usage.attribution.columns import OPEN

SEVERAL = -1
"""Instead of a step, where several were active."""


class StepSpan(NamedTuple):
    """When a step was active, in microseconds."""

    start: int
    end: int
    """Exclusive, and later than the start: a step of no length is active in its minute too."""
    step: int
    """Its index among the steps of the run."""


def spans_of(steps: Sequence[MeteredStep]) -> list[StepSpan] | None:
    """The spans of the steps, by their starts; None where a step has no times."""
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
    """Yield for each bucket the step that was active: None where there was none, SEVERAL where there were more.

    From `closed` on, the run has ended: later tokens belong to its last step.
    """
    waiting = iter([*spans, StepSpan(OPEN, OPEN, SEVERAL)])
    following = next(waiting)
    active: list[tuple[int, int]] = []
    last = max(spans, key=lambda span: (span.end, span.step)).step if spans else None
    for moment in moments:
        while following.start < moment + width:
            heappush(active, (following.end, following.step))
            following = next(waiting)
        while active and active[0][0] <= moment:
            heappop(active)
        if moment >= closed:
            yield moment, last
        else:
            yield moment, SEVERAL if len(active) > 1 else active[0][1] if active else None
