"""Decide again about a stored run: by all of its observations, or by the next one alone."""

from typing import Any

import msgspec

from meruit.model.usage import Observation, UsagePolicy
from meruit.usage.progress import ObservedRun, UsageProgress, judge_all, judge_next
from meruit.usage.schedule import Schedule
from meruit.usage.store.rows import EncodedObservation, StoredUsageRun, last_count_of


# Any: the fields of a record.
def decide_again(stored: StoredUsageRun, policy: UsagePolicy, schedule: Schedule, **more: Any) -> StoredUsageRun:
    """Decide again by all observations, and schedule the next one."""
    record, observations = stored.record, stored.observations or ()
    judged = judge_all(
        record.run.for_judging, [one.observation for one in observations], record.acknowledged, policy, schedule
    )
    return msgspec.structs.replace(
        stored,
        record=msgspec.structs.replace(record, attempts=len(observations), **_status_of(judged), **more),
        last_count=last_count_of(observations),
        progress=judged.progress,
    )


# Any: the fields of a record.
def decide_by_next(
    stored: StoredUsageRun, progress: UsageProgress, encoded: EncodedObservation, schedule: Schedule, **more: Any
) -> StoredUsageRun:
    """Decide again by one observation that continues the progress of the run; the others are not read."""
    record, observation = stored.record, encoded.observation
    judged = judge_next(record.run.for_judging, progress, record.verdict, observation, schedule)
    is_counted = observation.error is None and observation.total is not None
    return msgspec.structs.replace(
        stored,
        record=msgspec.structs.replace(record, attempts=record.attempts + 1, **(_status_of(judged) | more)),
        last_count=observation.total if is_counted else stored.last_count,
        added=(*stored.added, encoded),
        progress=judged.progress,
    )


def observations_since_end(stored: StoredUsageRun) -> list[Observation]:
    """The observations since the end of the run, in the order of time."""
    ended_at = stored.record.run.ended_at
    if ended_at is None or not stored.observations:
        return []
    counting = [one.observation for one in stored.observations if one.observation.at >= ended_at]
    return sorted(counting, key=lambda one: (one.at, one.id)) if len(counting) > 1 else counting


# Any: the fields of a record.
def _status_of(judged: ObservedRun) -> dict[str, Any]:
    due = judged.due
    return {
        "verdict": judged.verdict,
        "next_observation_at": due.at,
        "waits": due.waits,
        "exhausted": due.exhausted,
    }
