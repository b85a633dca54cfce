"""Decide again about a stored run by all of its observations."""

from typing import Any

import msgspec

from meruit.model.usage import Observation, UsagePolicy
from meruit.usage.decision import decide
from meruit.usage.schedule import Schedule, next_observation
from meruit.usage.store.rows import StoredUsageRun, last_count_of


# Any: the fields of a record.
def decide_again(stored: StoredUsageRun, policy: UsagePolicy, schedule: Schedule, **more: Any) -> StoredUsageRun:
    """Decide again by all observations, and schedule the next one."""
    record, observations = stored.record, stored.observations or ()
    verdict = decide(record.run.for_judging, [one.observation for one in observations], policy, record.acknowledged)
    due = next_observation(record.run.ended_at, verdict, observations_since_end(stored), policy, schedule)
    record = msgspec.structs.replace(
        record,
        attempts=len(observations),
        verdict=verdict,
        next_observation_at=due.at,
        waits=due.waits,
        exhausted=due.exhausted,
        **more,
    )
    return StoredUsageRun(
        record=record, last_count=last_count_of(observations), salt=stored.salt, observations=observations
    )


def observations_since_end(stored: StoredUsageRun) -> list[Observation]:
    """The observations since the end of the run, in the order of time."""
    ended_at = stored.record.run.ended_at
    if ended_at is None or not stored.observations:
        return []
    counting = [one.observation for one in stored.observations if one.observation.at >= ended_at]
    return sorted(counting, key=lambda one: (one.at, one.id)) if len(counting) > 1 else counting
