"""Record observations of runs, each once, and decide again after each."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from meruit.model.metering import UsageRecord
from meruit.model.time import from_micros
from meruit.model.usage import BY_FILE, Observation, UsagePolicy
from meruit.store.transaction import WriteTransaction
from meruit.usage.decision import decide
from meruit.usage.progress import UsageProgress
from meruit.usage.schedule import Schedule, is_early
from meruit.usage.store.decide_again import decide_again, decide_by_next, observations_since_end
from meruit.usage.store.publish import is_logged, load_entry_numbers, publish
from meruit.usage.store.rows import (
    EncodedObservation,
    ObservationKey,
    StoredUsageRun,
    find_observations_of,
    insert_observation,
    load_observations,
    load_runs,
    save,
)
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
        stored = load_runs(writing, self.tenant, [one.run_id for one in self.observations])
        stored |= load_observations(
            writing, self.tenant, {run_id: one for run_id, one in stored.items() if one.progress is None}
        )
        known = find_observations_of(
            writing,
            self.tenant,
            (
                ObservationKey(run_id, one.id)
                for run_id, one in self.observations
                if stored[run_id].observations is None
            ),
        )
        before = dict(stored)
        for run_id, observation in self.observations:
            twins = known.get(ObservationKey(run_id, observation.id), [])
            stored[run_id] = self._add_observation(writing, stored[run_id], observation, twins)
        changed = {
            run_id: self._keep_due(writing, before[run_id], one)
            for run_id, one in stored.items()
            if one is not before[run_id]
        }
        entries = {run_id: one for run_id, one in changed.items() if is_logged(before[run_id].record, one.record)}
        changed |= self._decide_claims(writing, entries)
        load_entry_numbers(writing, self.tenant, [*entries])
        for run_id, one in changed.items():
            stored[run_id] = publish(writing, self.tenant, before[run_id].record, one)
            save(writing, self.tenant, stored[run_id])
        return [stored[run_id].record for run_id in dict.fromkeys(one.run_id for one in self.observations)]

    def _decide_claims(
        self, writing: WriteTransaction, entries: Mapping[str, StoredUsageRun]
    ) -> dict[str, StoredUsageRun]:
        """Read all observations of the runs whose claim changes: the log commits to them, and they alone decide."""
        found = load_observations(writing, self.tenant, entries)
        for run_id, one in found.items():
            if one is not entries[run_id]:
                decided = decide_again(one, self.policy, self.schedule)
                if decided.record.verdict != one.record.verdict:
                    # The progress was changed from outside.
                    found[run_id] = decided
        return found

    def _keep_due(self, writing: WriteTransaction, before: StoredUsageRun, after: StoredUsageRun) -> StoredUsageRun:
        """Keep a run due whose cohort has changed since the observation was made."""
        due, now = before.record.next_observation_at, from_micros(writing.now.micros)
        if self.since is None or due is None or not self.since < due <= now:
            return after
        return msgspec.structs.replace(
            after, record=msgspec.structs.replace(after.record, next_observation_at=now, waits="")
        )

    def _add_observation(
        self, writing: WriteTransaction, stored: StoredUsageRun, observation: Observation, twins: Sequence[Observation]
    ) -> StoredUsageRun:
        """Return the run with one more observation; `twins` are those in the database with the same id."""
        encoded, added = validate_observation(observation), stored.added
        if stored.observations is not None:
            twins, added = [], stored.observations
        twins = [*twins, *(one.observation for one in added if one.observation.id == observation.id)]
        if any(_is_same(one, encoded.observation) for one in twins):
            return stored if observation.error is not None else self._defer_repeat(writing, stored)
        if stored.observations is None:
            progress = stored.progress
            if progress is not None and not twins and progress.is_continued_by(observation, self.policy, self.schedule):
                return self._continue(writing, stored, progress, encoded)
            stored = load_observations(writing, self.tenant, {stored.record.run.id: stored})[stored.record.run.id]
        if self._is_early(stored, observation):
            return self._keep_early(writing, stored, msgspec.structs.replace(observation, early=True))
        return decide_again(
            self._insert(writing, stored, encoded),
            self.policy,
            self.schedule,
            last_observation_at=_latest(stored, observation),
        )

    def _insert(self, writing: WriteTransaction, stored: StoredUsageRun, encoded: EncodedObservation) -> StoredUsageRun:
        """Add an observation to a run of which all observations are known."""
        observations = stored.observations or ()
        insert_observation(writing, self.tenant, stored.record.run.id, len(observations) + 1, encoded)
        return msgspec.structs.replace(stored, observations=(*observations, encoded), added=(*stored.added, encoded))

    def _continue(
        self, writing: WriteTransaction, stored: StoredUsageRun, progress: UsageProgress, encoded: EncodedObservation
    ) -> StoredUsageRun:
        """Add an observation that is later than all others, without reading them."""
        record, observation = stored.record, encoded.observation
        due: dict[str, Any] = {}
        if progress.is_early(record.verdict, observation):
            postponed = self._postpone(stored, max(observation.at, from_micros(writing.now.micros)))
            if progress.early >= MAX_EARLY:
                return msgspec.structs.replace(
                    stored,
                    record=msgspec.structs.replace(postponed, last_observation_at=_latest(stored, observation)),
                )
            encoded = validate_observation(msgspec.structs.replace(observation, early=True))
            due = {"next_observation_at": postponed.next_observation_at, "waits": postponed.waits}
            due["exhausted"] = postponed.exhausted
        insert_observation(writing, self.tenant, record.run.id, record.attempts + 1, encoded)
        due["last_observation_at"] = _latest(stored, observation)
        return decide_by_next(stored, progress, encoded, self.schedule, **due)

    def _keep_early(
        self, writing: WriteTransaction, stored: StoredUsageRun, observation: Observation
    ) -> StoredUsageRun:
        """Record an observation that is too early to count; the run stays due when an equal one counts."""
        now = max(observation.at, from_micros(writing.now.micros))
        postponed = self._postpone(stored, now)
        if sum(one.observation.early for one in stored.observations or ()) < MAX_EARLY:
            stored = self._insert(writing, stored, validate_observation(observation))
        decided = decide_again(stored, self.policy, self.schedule)
        return msgspec.structs.replace(
            decided,
            record=msgspec.structs.replace(
                decided.record,
                next_observation_at=postponed.next_observation_at,
                waits=postponed.waits,
                exhausted=postponed.exhausted,
                last_observation_at=_latest(stored, observation),
            ),
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
        if stored.observations is None and stored.progress is not None:
            answered_at = stored.progress.times.answered_at
        else:
            seen = [one for one in observations_since_end(stored) if one.error is None and not one.early]
            answered_at = seen[-1].at if seen else None
        due = now if answered_at is None else answered_at + self.policy.interval
        # The provider's clock may be so far behind ours that this time is over already.
        return msgspec.structs.replace(
            record, next_observation_at=due if due > now else now + self.policy.interval, waits=waits
        )


def _is_same(known: Observation, observation: Observation) -> bool:
    """Whether an observation is recorded already, with or without the mark of an early one."""
    return known.id == observation.id and msgspec.structs.replace(known, early=observation.early) == observation


def _latest(stored: StoredUsageRun, observation: Observation) -> datetime:
    """When the run was observed last, with one more observation."""
    before = stored.record.last_observation_at
    return observation.at if before is None else max(before, observation.at)
