"""Record observations of runs, each once, and decide again after each."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from meruit.model.metering import UsageRecord
from meruit.model.time import from_micros
from meruit.model.usage import BY_FILE, Observation, UsagePolicy
from meruit.store.transaction import WriteTransaction
from meruit.usage.decision import decide
from meruit.usage.schedule import Schedule, is_early
from meruit.usage.store.decide_again import decide_again, observations_since_end
from meruit.usage.store.publish import is_logged, load_entry_numbers, publish
from meruit.usage.store.rows import StoredUsageRun, insert_observation, load_runs, save
from meruit.usage.store.validate import validate_observation

MAX_EARLY = 1_000
"""Of one run, observations that are kept though they came too early to count."""
CREDENTIAL = "credential"
"""What a run waits for after the provider refused its key."""
_DEFAULT_POLICY, _DEFAULT_SCHEDULE = UsagePolicy(), Schedule()


class RunObservation(NamedTuple):
    """An observation of one run."""

    run_id: str
    observation: Observation


class RecordObservations(msgspec.Struct, frozen=True):
    """Record observations of many runs."""

    tenant: str
    observations: Sequence[RunObservation]
    policy: UsagePolicy = _DEFAULT_POLICY
    schedule: Schedule = _DEFAULT_SCHEDULE
    since: datetime | None = None
    """When the cohorts were read; a run that was made due later stays due."""

    def __call__(self, writing: WriteTransaction) -> list[UsageRecord]:
        """Add each observation once, and decide again; return the runs in the order given. Raises NotFound."""
        stored = load_runs(writing, self.tenant, [one.run_id for one in self.observations], with_observations=True)
        before = dict(stored)
        for run_id, observation in self.observations:
            stored[run_id] = self._add_observation(writing, stored[run_id], observation)
        changed = {
            run_id: self._keep_due(writing, before[run_id], one)
            for run_id, one in stored.items()
            if one is not before[run_id]
        }
        entries = [one for one in changed if is_logged(before[one].record, changed[one].record)]
        load_entry_numbers(writing, self.tenant, entries)
        for run_id, one in changed.items():
            stored[run_id] = publish(writing, self.tenant, before[run_id].record, one)
            save(writing, self.tenant, stored[run_id])
        return [stored[run_id].record for run_id in dict.fromkeys(one.run_id for one in self.observations)]

    def _keep_due(self, writing: WriteTransaction, before: StoredUsageRun, after: StoredUsageRun) -> StoredUsageRun:
        """Keep a run due whose cohort has changed since the observation was made."""
        due, now = before.record.next_observation_at, from_micros(writing.now.micros)
        if self.since is None or due is None or not self.since < due <= now:
            return after
        return msgspec.structs.replace(
            after, record=msgspec.structs.replace(after.record, next_observation_at=now, waits="")
        )

    def _add_observation(
        self, writing: WriteTransaction, stored: StoredUsageRun, observation: Observation
    ) -> StoredUsageRun:
        """Return the run with one more observation."""
        encoded = validate_observation(observation)
        observations, record = stored.observations or (), stored.record
        if any(_is_same(one.observation, encoded.observation) for one in observations):
            return stored if observation.error is not None else self._defer_repeat(writing, stored)
        last = observation.at if record.last_observation_at is None else max(record.last_observation_at, observation.at)
        if self._is_early(stored, observation):
            return self._keep_early(writing, stored, msgspec.structs.replace(observation, early=True), last)
        insert_observation(writing, self.tenant, record.run.id, len(observations) + 1, encoded)
        return decide_again(
            msgspec.structs.replace(stored, observations=(*observations, encoded)),
            self.policy,
            self.schedule,
            last_observation_at=last,
        )

    def _keep_early(
        self, writing: WriteTransaction, stored: StoredUsageRun, observation: Observation, last: datetime
    ) -> StoredUsageRun:
        """Record an observation that is too early to count; the run stays due when an equal one counts."""
        encoded, observations = validate_observation(observation), stored.observations or ()
        now = max(observation.at, from_micros(writing.now.micros))
        if sum(one.observation.early for one in observations) < MAX_EARLY:
            insert_observation(writing, self.tenant, stored.record.run.id, len(observations) + 1, encoded)
            observations = (*observations, encoded)
        record = self._postpone(stored, now)
        verdict = decide(
            record.run.for_judging, [one.observation for one in observations], self.policy, record.acknowledged
        )
        return msgspec.structs.replace(
            stored,
            record=msgspec.structs.replace(
                record, verdict=verdict, attempts=len(observations), last_observation_at=last
            ),
            observations=observations,
        )

    def _defer_repeat(self, writing: WriteTransaction, stored: StoredUsageRun) -> StoredUsageRun:
        """Postpone a run whose provider returned the same response again, including its time."""
        record = self._postpone(stored, from_micros(writing.now.micros))
        return stored if record is stored.record else msgspec.structs.replace(stored, record=record)

    def _is_early(self, stored: StoredUsageRun, observation: Observation) -> bool:
        """Whether the observation is too early to count, compared with those before its time."""
        run, observations = stored.record.run, observations_since_end(stored)
        # What is imported has been decided upon elsewhere, and counts as it is.
        if (
            observation.reported_by == BY_FILE
            or not observations
            or run.ended_at is None
            or observation.at < run.ended_at
        ):
            return False
        if any(one.id == observation.id for one in observations):
            # The same id with other contents is a conflict, and is recorded.
            return False
        before = [one for one in observations if one.at <= observation.at]
        stood = stored.record.verdict
        if len(before) < len(observations):
            stood = decide(run.for_judging, before, self.policy, stored.record.acknowledged)
        return is_early(before, stood, observation, self.policy)

    def _postpone(self, stored: StoredUsageRun, now: datetime) -> UsageRecord:
        """Return the record, due when an equal observation counts, so that the provider is not called in vain."""
        record = stored.record
        # The key that was refused works now.
        waits = "" if record.waits == CREDENTIAL else record.waits
        if waits == record.waits and (record.next_observation_at is None or record.next_observation_at > now):
            return record
        seen = [one for one in observations_since_end(stored) if one.error is None and not one.early]
        due = seen[-1].at + self.policy.interval if seen else now
        # The provider's clock may be so far behind ours that this time is over already.
        return msgspec.structs.replace(
            record, next_observation_at=due if due > now else now + self.policy.interval, waits=waits
        )


def _is_same(known: Observation, observation: Observation) -> bool:
    """Whether an observation is recorded already, with or without the mark of an early one."""
    return known.id == observation.id and msgspec.structs.replace(known, early=observation.early) == observation
