"""Record runs: new ones, or the next state of those that are open."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from meruit.errors import InvalidUsage, UsageRunEnded, UsageRunOpen
from meruit.model.events import EventType
from meruit.model.metering import MeteredRun, PriceQuote, UsageRecord
from meruit.model.usage import UsagePolicy
from meruit.store.transaction import WriteTransaction
from meruit.usage.decision import decide
from meruit.usage.schedule import Schedule, next_observation
from meruit.usage.store.by_contract import remember_former_contract
from meruit.usage.store.call_owners import find_call_of_other_run, read_call_owners, save_call_owners
from meruit.usage.store.decide_again import decide_again
from meruit.usage.store.invalidate import invalidate_cohorts
from meruit.usage.store.publish import emit, publish
from meruit.usage.store.record_prices import first_quotes
from meruit.usage.store.rows import (
    EncodedRun,
    StoredUsageRun,
    find_run,
    insert_run,
    load_run,
    prefetch_runs,
    replace_run,
    save,
    save_prices,
    with_prefetch,
)
from meruit.usage.store.validate import validate_run

_DEFAULT_POLICY, _DEFAULT_SCHEDULE = UsagePolicy(), Schedule()


class _RecordedRun(msgspec.Struct, frozen=True):
    """A run after it was recorded."""

    record: UsageRecord
    has_changed_cohort: bool = False
    """Whether the cohorts of other runs may have changed: the run is new, has moved or has ended."""


@with_prefetch
class RecordRun(msgspec.Struct, frozen=True):
    """Record a run: a new one, or the next state of one that is open."""

    tenant: str
    by: str
    run: MeteredRun
    quotes: tuple[PriceQuote, ...] = ()
    policy: UsagePolicy = _DEFAULT_POLICY
    schedule: Schedule = _DEFAULT_SCHEDULE
    begins: bool = False
    """Whether the run must be new."""
    sharers: tuple[str, ...] = ()
    """The tenants that share the account with this one, which is among them; empty for this tenant alone."""

    @property
    def tenants(self) -> tuple[str, ...]:
        """The tenants whose runs count together with this one."""
        return self.sharers or (self.tenant,)

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.run.id

    def __call__(self, writing: WriteTransaction) -> UsageRecord:
        """Record the run; recording it again changes nothing. Raises UsageRunEnded, UsageRunOpen, InvalidUsage."""
        recorded = self.write(writing, validate_run(self.run))
        record = recorded.record
        if recorded.has_changed_cohort:
            invalidate_cohorts(writing, self.tenants, [record.run])
        return record

    def write(self, writing: WriteTransaction, encoded: EncodedRun) -> _RecordedRun:
        """Record the run; return it, and whether the cohorts of other runs have changed."""
        stored = find_run(writing, self.tenant, encoded.run.id)
        if stored is None:
            return self._insert(writing, encoded)
        quotes = (*stored.record.quotes, *first_quotes(stored.record.quotes, self.quotes))
        if stored.record.run == encoded.run:
            if quotes != stored.record.quotes:
                stored = msgspec.structs.replace(stored, record=msgspec.structs.replace(stored.record, quotes=quotes))
                save_prices(writing, self.tenant, stored)
            return _RecordedRun(stored.record)
        if stored.record.run.ended_at is not None:
            raise UsageRunEnded(
                f"run {encoded.run.id} ended at {stored.record.run.ended_at.isoformat()} with other contents; "
                "record another run under a new id"
            )
        if self.begins:
            raise UsageRunOpen(
                f"run {encoded.run.id} is open already; if its process died, end it with "
                f"`meruit usage end {encoded.run.id}`, and start another run under a new id"
            )
        if stored.record.run.framework != encoded.run.framework:
            raise InvalidUsage(
                f"run {encoded.run.id} is open with framework {stored.record.run.framework!r}, not "
                f"{encoded.run.framework!r}; record another run under a new id"
            )
        return self._update(writing, encoded, quotes)

    def _insert(self, writing: WriteTransaction, encoded: EncodedRun) -> _RecordedRun:
        self._claim_calls(writing, encoded.run)
        verdict = decide(encoded.for_judging, (), self.policy)
        due = next_observation(encoded.run.ended_at, verdict, (), self.policy, self.schedule)
        # Its position is that of its event.
        record = UsageRecord(
            run=encoded.run,
            seq=writing.events + 1,
            attempts=0,
            verdict=verdict,
            next_observation_at=due.at,
            quotes=tuple(first_quotes((), self.quotes)),
        )
        emit(writing, self.tenant, EventType.USAGE_RUN_RECORDED, record, "recorded")
        insert_run(writing, self.tenant, self.by, encoded, StoredUsageRun(record))
        if encoded.run.ended_at is not None:
            emit(writing, self.tenant, EventType.USAGE_RUN_ENDED, record, "ended")
        return _RecordedRun(record, has_changed_cohort=True)

    def _update(self, writing: WriteTransaction, encoded: EncodedRun, quotes: tuple[PriceQuote, ...]) -> _RecordedRun:
        before = load_run(writing, self.tenant, encoded.run.id, with_observations=True)
        self._claim_calls(writing, encoded.run, before.record.run)
        now = msgspec.structs.replace(
            before, record=msgspec.structs.replace(before.record, run=encoded.run, quotes=quotes)
        )
        stored = decide_again(now, self.policy, self.schedule)
        if before.record.run.contract_id != encoded.run.contract_id:
            remember_former_contract(writing, self.tenant, before.record.run)
        if encoded.run.ended_at is not None:
            emit(writing, self.tenant, EventType.USAGE_RUN_ENDED, stored.record, "ended")
        stored = publish(writing, self.tenant, before.record, stored)
        replace_run(writing, self.tenant, encoded)
        save(writing, self.tenant, stored)
        save_prices(writing, self.tenant, stored)
        has_moved = _attribution_of(encoded.run) != _attribution_of(before.record.run)
        return _RecordedRun(stored.record, has_changed_cohort=has_moved or encoded.run.ended_at is not None)

    def _claim_calls(self, writing: WriteTransaction, run: MeteredRun, before: MeteredRun | None = None) -> None:
        taken = find_call_of_other_run(writing, self.tenant, self.tenants, run)
        if taken is not None:
            raise InvalidUsage(
                f"run {run.id!r}: call {taken!r} belongs to another run; record each call with the run that made it"
            )
        save_call_owners(writing, self.tenant, run, before)


class RecordRuns(msgspec.Struct, frozen=True):
    """Record many runs in one transaction: all of them, or none."""

    tenant: str
    by: str
    runs: Sequence[MeteredRun]
    policy: UsagePolicy = _DEFAULT_POLICY
    schedule: Schedule = _DEFAULT_SCHEDULE
    sharing: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """By account, the tenants that share it with this one; an account that is not named is this tenant's alone."""

    def __call__(self, writing: WriteTransaction) -> list[UsageRecord]:
        """Record all runs; raises what `RecordRun` raises."""
        several = [
            RecordRun(
                tenant=self.tenant,
                by=self.by,
                run=run,
                policy=self.policy,
                schedule=self.schedule,
                sharers=self.sharing.get(run.source, ()),
            )
            for run in self.runs
        ]
        prefetch_runs(writing, several)
        encoded = [validate_run(run) for run in self.runs]
        read_call_owners(writing, (self.tenant,), [one.run for one in encoded])
        recorded = [one.write(writing, this) for one, this in zip(several, encoded, strict=True)]
        changed: dict[tuple[str, ...], list[MeteredRun]] = {}
        for write, one in zip(several, recorded, strict=True):
            if one.has_changed_cohort:
                changed.setdefault(write.tenants, []).append(one.record.run)
        for tenants, runs in changed.items():
            invalidate_cohorts(writing, tenants, runs)
        return [one.record for one in recorded]


def _attribution_of(run: MeteredRun) -> tuple[object, ...]:
    """What decides which runs it is counted with."""
    return (run.source, run.attribution_key, run.started_at)
