"""Write usage: record runs, observations, acknowledgements and prices, and decide again after each change."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from meruit.errors import (
    InvalidUsage,
    NothingToAcknowledge,
    PriceAlreadyFrozen,
    UsageRunEnded,
    UsageRunOpen,
)
from meruit.log.commitment import SALT_BYTES, commitment, usage_evidence_bytes
from meruit.log.entries import UsageEntry
from meruit.model.events import EventType
from meruit.model.metering import (
    AttributionKind,
    MeteredRun,
    PriceQuote,
    RunCosts,
    UsageRecord,
    attribution_key_problem,
)
from meruit.model.time import from_micros
from meruit.model.usage import BY_FILE, Acknowledgement, Observation, UsageCode, UsagePolicy, UsageStatus, UsageVerdict
from meruit.store.transaction import WriteTransaction
from meruit.usage.decision import decide
from meruit.usage.schedule import Schedule, is_early, next_observation
from meruit.usage.store.by_contract import remember_former_contract
from meruit.usage.store.call_owners import find_call_of_other_run, read_call_owners, save_call_owners
from meruit.usage.store.invalidate import invalidate_cohorts
from meruit.usage.store.rows import (
    EncodedObservation,
    EncodedRun,
    StoredUsageRun,
    decode_observation,
    find_run,
    insert_observation,
    insert_run,
    last_count_of,
    load_run,
    load_runs,
    prefetch_runs,
    replace_run,
    save,
    save_prices,
    with_prefetch,
)

EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
"""Times outside of these are refused."""
MAX_EARLY = 1_000
"""Of one run, observations that are kept though they came too early to count."""
CREDENTIAL = "credential"
"""What a run waits for after the provider refused its key."""
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
        recorded = self.write(writing, _validate_run(self.run))
        record = recorded.record
        if recorded.has_changed_cohort:
            invalidate_cohorts(writing, self.tenants, [record.run])
        return record

    def write(self, writing: WriteTransaction, encoded: EncodedRun) -> _RecordedRun:
        """Record the run; return it, and whether the cohorts of other runs have changed."""
        stored = find_run(writing, self.tenant, encoded.run.id)
        if stored is None:
            return self._insert(writing, encoded)
        quotes = (*stored.record.quotes, *_first_quotes(stored.record.quotes, self.quotes))
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
            quotes=tuple(_first_quotes((), self.quotes)),
        )
        _emit(writing, self.tenant, EventType.USAGE_RUN_RECORDED, record, "recorded")
        insert_run(writing, self.tenant, self.by, encoded, StoredUsageRun(record))
        if encoded.run.ended_at is not None:
            _emit(writing, self.tenant, EventType.USAGE_RUN_ENDED, record, "ended")
        return _RecordedRun(record, has_changed_cohort=True)

    def _update(self, writing: WriteTransaction, encoded: EncodedRun, quotes: tuple[PriceQuote, ...]) -> _RecordedRun:
        before = load_run(writing, self.tenant, encoded.run.id, with_observations=True)
        self._claim_calls(writing, encoded.run, before.record.run)
        now = msgspec.structs.replace(
            before, record=msgspec.structs.replace(before.record, run=encoded.run, quotes=quotes)
        )
        stored = _decide_again(now, self.policy, self.schedule)
        if before.record.run.contract_id != encoded.run.contract_id:
            remember_former_contract(writing, self.tenant, before.record.run)
        if encoded.run.ended_at is not None:
            _emit(writing, self.tenant, EventType.USAGE_RUN_ENDED, stored.record, "ended")
        stored = _publish(writing, self.tenant, before.record, stored)
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
        encoded = [_validate_run(run) for run in self.runs]
        read_call_owners(writing, (self.tenant,), [one.run for one in encoded])
        recorded = [one.write(writing, this) for one, this in zip(several, encoded, strict=True)]
        changed: dict[tuple[str, ...], list[MeteredRun]] = {}
        for write, one in zip(several, recorded, strict=True):
            if one.has_changed_cohort:
                changed.setdefault(write.tenants, []).append(one.record.run)
        for tenants, runs in changed.items():
            invalidate_cohorts(writing, tenants, runs)
        return [one.record for one in recorded]


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
        entries = [one for one in changed if _is_logged(before[one].record, changed[one].record)]
        _load_entry_numbers(writing, self.tenant, entries)
        for run_id, one in changed.items():
            stored[run_id] = _publish(writing, self.tenant, before[run_id].record, one)
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
        encoded = _validate_observation(observation)
        observations, record = stored.observations or (), stored.record
        if any(_is_same(one.observation, encoded.observation) for one in observations):
            return stored if observation.error is not None else self._defer_repeat(writing, stored)
        last = observation.at if record.last_observation_at is None else max(record.last_observation_at, observation.at)
        if self._is_early(stored, observation):
            return self._keep_early(writing, stored, msgspec.structs.replace(observation, early=True), last)
        insert_observation(writing, self.tenant, record.run.id, len(observations) + 1, encoded)
        return _decide_again(
            msgspec.structs.replace(stored, observations=(*observations, encoded)),
            self.policy,
            self.schedule,
            last_observation_at=last,
        )

    def _keep_early(
        self, writing: WriteTransaction, stored: StoredUsageRun, observation: Observation, last: datetime
    ) -> StoredUsageRun:
        """Record an observation that is too early to count; the run stays due when an equal one counts."""
        encoded, observations = _validate_observation(observation), stored.observations or ()
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
        run, observations = stored.record.run, _observations_since_end(stored)
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
        seen = [one for one in _observations_since_end(stored) if one.error is None and not one.early]
        due = seen[-1].at + self.policy.interval if seen else now
        # The provider's clock may be so far behind ours that this time is over already.
        return msgspec.structs.replace(
            record, next_observation_at=due if due > now else now + self.policy.interval, waits=waits
        )


class Acknowledge(msgspec.Struct, frozen=True):
    """Accept a count that fell."""

    tenant: str
    run_id: str
    ack: Acknowledgement
    policy: UsagePolicy = _DEFAULT_POLICY
    schedule: Schedule = _DEFAULT_SCHEDULE

    def __call__(self, writing: WriteTransaction) -> UsageRecord:
        """Decide again with the lower count; raises NothingToAcknowledge, InvalidUsage, NotFound."""
        _check_ack(self.ack)
        before = load_run(writing, self.tenant, self.run_id, with_observations=True)
        record = before.record
        if record.verdict.code is not UsageCode.DECREASED:
            if any((one.by, one.reason) == (self.ack.by, self.ack.reason) for one in record.acknowledged):
                # A retry of a request that succeeded.
                return record
            raise NothingToAcknowledge(
                f"run {self.run_id} is {record.verdict.status} ({record.verdict.code}); "
                "only a count that fell can be acknowledged"
            )
        # An acknowledgement covers every recorded observation and no later one, by any clock.
        at = max(one.observation.at for one in before.observations or ())
        ack = msgspec.structs.replace(self.ack, at=at)
        record = msgspec.structs.replace(record, acknowledged=(*record.acknowledged, ack))
        stored = _decide_again(msgspec.structs.replace(before, record=record), self.policy, self.schedule)
        what = f"acknowledged:{len(record.acknowledged)}"
        _emit(writing, self.tenant, EventType.USAGE_ACKNOWLEDGED, stored.record, what)
        stored = _publish(writing, self.tenant, before.record, stored, ack)
        save(writing, self.tenant, stored)
        return stored.record


class ObserveNow(msgspec.Struct, frozen=True):
    """Make runs due at once."""

    tenant: str
    run_ids: Sequence[str]

    def __call__(self, writing: WriteTransaction) -> list[UsageRecord]:
        """Make the runs due, except open ones, which are never observed. Raises NotFound."""
        now = from_micros(writing.now.micros)
        stored = load_runs(writing, self.tenant, self.run_ids)
        for run_id, one in stored.items():
            if one.record.run.ended_at is not None:
                # A run that is due already keeps its time: another reconciler may be about to observe it.
                due = one.record.next_observation_at
                due = now if due is None else min(due, now)
                record = msgspec.structs.replace(one.record, next_observation_at=due, waits="")
                stored[run_id] = msgspec.structs.replace(one, record=record)
                save(writing, self.tenant, stored[run_id])
        return [one.record for one in stored.values()]


@with_prefetch
class RecordPrices(msgspec.Struct, frozen=True):
    """Freeze prices with a run, and record its costs."""

    tenant: str
    run_id: str
    quotes: tuple[PriceQuote, ...] = ()
    ledger: RunCosts = RunCosts()

    def __call__(self, writing: WriteTransaction) -> UsageRecord:
        """Add the prices and costs that are given; the others stay. Raises PriceAlreadyFrozen, NotFound."""
        stored = load_run(writing, self.tenant, self.run_id)
        record = stored.record
        quotes = (*record.quotes, *self._new_quotes(record.quotes))
        record = msgspec.structs.replace(record, quotes=quotes, ledger=self._merge_ledger(record.ledger))
        if record != stored.record:
            save_prices(writing, self.tenant, msgspec.structs.replace(stored, record=record))
        return record

    def _new_quotes(self, frozen: tuple[PriceQuote, ...]) -> list[PriceQuote]:
        known = {_quote_key(one) for one in frozen}
        new = [one for one in self.quotes if one not in frozen]
        for one in new:
            if _quote_key(one) in known and not one.reason:
                raise PriceAlreadyFrozen(
                    f"run {self.run_id} has a price for {one.model} already; give a reason to add another one"
                )
        return new

    def _merge_ledger(self, ledger: RunCosts) -> RunCosts:
        given = {
            name: amount
            for name in ("quoted", "billed", "settled")
            if (amount := getattr(self.ledger, name)) is not None
        }
        known = [name for name in ("quoted", "billed", "settled") if getattr(ledger, name) is not None]
        if given and known and ledger.currency != self.ledger.currency:
            raise PriceAlreadyFrozen(
                f"the costs of run {self.run_id} are in {ledger.currency}, not in {self.ledger.currency}"
            )
        return msgspec.structs.replace(ledger, **given, currency=self.ledger.currency) if given else ledger


def contract_of(run_id: str) -> str:
    """The name under which the audit log numbers the entries of a run; no contract id contains a tab."""
    return f"usage\t{run_id}"


def _validate_run(run: MeteredRun) -> EncodedRun:
    """Check a run, and encode it; raises InvalidUsage."""
    try:
        body = run.to_json()
        found = MeteredRun.from_json(body)
    except (TypeError, ValueError) as problem:
        raise InvalidUsage(f"run {run.id!r}: {problem}") from None
    if any("\0" in text for text in _text_columns(found)):
        raise InvalidUsage(f"run {run.id!r} has a null character in a name; remove it")
    ids = [step.id for step in found.steps]
    if len(set(ids)) < len(ids):
        twice = next(one for one in ids if ids.count(one) > 1)
        raise InvalidUsage(f"run {run.id!r} has two steps {twice!r}; give each step its own id")
    _check_time(f"run {run.id!r}", found.started_at, found.ended_at)
    if found.started_at is not None and found.ended_at is not None and found.ended_at < found.started_at:
        raise InvalidUsage(f"run {run.id!r} ends before it starts")
    for step in found.steps:
        if step.started_at is not None and step.ended_at is not None and step.ended_at < step.started_at:
            raise InvalidUsage(f"run {run.id!r}: step {step.id!r} ends before it starts")
    why_not = attribution_key_problem(found.attribution_key)
    if why_not:
        raise InvalidUsage(f"run {run.id!r}: {why_not}")
    return EncodedRun(run=found, body=body, for_judging=found.for_judging)


def _text_columns(run: MeteredRun) -> tuple[str, ...]:
    """The texts that have their own column."""
    calls = [call.id for call in run.calls] if run.attribution_key.kind is AttributionKind.REQUESTS else []
    return (run.id, run.framework, run.source, run.attribution_key.value, run.task, run.contract_id, *calls)


def _attribution_of(run: MeteredRun) -> tuple[object, ...]:
    """What decides which runs it is counted with."""
    return (run.source, run.attribution_key, run.started_at)


def _validate_observation(observation: Observation) -> EncodedObservation:
    """Check an observation, and encode it; raises InvalidUsage."""
    try:
        encoded = decode_observation(observation.to_json())
    except (TypeError, ValueError) as problem:
        raise InvalidUsage(f"observation {observation.id!r}: {problem}") from None
    if not encoded.observation.id or "\0" in encoded.observation.id:
        raise InvalidUsage(f"observation {observation.id!r} needs an id without null characters")
    _check_time(f"observation {observation.id!r}", encoded.observation.at)
    return encoded


def _check_ack(ack: Acknowledgement) -> None:
    try:
        Acknowledgement.from_json(ack.to_json())
    except (TypeError, ValueError) as problem:
        raise InvalidUsage(f"the acknowledgement of {ack.by!r}: {problem}") from None
    if not ack.by.strip() or not ack.reason.strip():
        raise InvalidUsage("an acknowledgement needs a name and a reason; both are recorded permanently")
    _check_time("an acknowledgement", ack.at)


def _check_time(what: str, *moments: datetime | None) -> None:
    for one in moments:
        if one is not None and not EARLIEST <= one < LATEST:
            raise InvalidUsage(
                f"{what} has an impossible time ({one.isoformat()}); give the time with its year and zone"
            )


def _quote_key(quote: PriceQuote) -> tuple[str, ...]:
    """What a quote is a price of."""
    return (quote.provider, quote.model, quote.tier, quote.band)


def _first_quotes(frozen: Sequence[PriceQuote], quotes: Iterable[PriceQuote]) -> Iterable[PriceQuote]:
    """The first quote of each model, tier and band that has no price yet."""
    known = {_quote_key(one) for one in frozen}
    for one in quotes:
        if _quote_key(one) not in known:
            known.add(_quote_key(one))
            yield one


def _is_same(known: Observation, observation: Observation) -> bool:
    """Whether an observation is recorded already, with or without the mark of an early one."""
    return known.id == observation.id and msgspec.structs.replace(known, early=observation.early) == observation


def _observations_since_end(stored: StoredUsageRun) -> list[Observation]:
    """The observations since the end of the run, in the order of time."""
    ended_at = stored.record.run.ended_at
    if ended_at is None or not stored.observations:
        return []
    counting = [one.observation for one in stored.observations if one.observation.at >= ended_at]
    return sorted(counting, key=lambda one: (one.at, one.id)) if len(counting) > 1 else counting


# Any: the fields of a record.
def _decide_again(stored: StoredUsageRun, policy: UsagePolicy, schedule: Schedule, **more: Any) -> StoredUsageRun:
    """Decide again by all observations, and schedule the next one."""
    record, observations = stored.record, stored.observations or ()
    verdict = decide(record.run.for_judging, [one.observation for one in observations], policy, record.acknowledged)
    due = next_observation(record.run.ended_at, verdict, _observations_since_end(stored), policy, schedule)
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


def _publish(
    writing: WriteTransaction,
    tenant: str,
    before: UsageRecord,
    stored: StoredUsageRun,
    ack: Acknowledgement | None = None,
) -> StoredUsageRun:
    """Emit events about what changed, and add an audit entry where a claim changed."""
    record, was = stored.record, before.verdict
    verdict, what = record.verdict, f"{record.attempts}.{len(record.acknowledged)}"
    left = was.status is UsageStatus.VERIFIED and verdict.status is not UsageStatus.VERIFIED
    if left or verdict.withdrawn > was.withdrawn:
        _emit(writing, tenant, EventType.USAGE_WITHDRAWN, record, f"{what}:withdrawn")
    kind = _STATUS_EVENTS.get(verdict.status)
    is_confirmed = verdict.status is UsageStatus.VERIFIED and was.is_imported and not verdict.is_imported
    if kind is not None and (verdict.status is not was.status or is_confirmed):
        _emit(writing, tenant, kind, record, f"{what}:{verdict.status}")
    if ack is None and not _is_logged(before, record):
        return stored
    salt = stored.salt or _new_salt(writing)
    number = writing.next_in_contract(tenant, contract_of(record.run.id))
    evidence = commitment(
        salt, usage_evidence_bytes(record.run.to_json(), (one.body for one in stored.observations or ()))
    )
    by, reason = ("", "") if ack is None else (ack.by, ack.reason)
    writing.append(
        UsageEntry(
            *(writing.now.written, tenant, record.run.id, number, verdict.status.value, verdict.code.value),
            *(record.attempts, evidence, by, reason),
        ),
        *(tenant, contract_of(record.run.id), number),
    )
    return msgspec.structs.replace(stored, salt=salt)


def _is_logged(before: UsageRecord, after: UsageRecord) -> bool:
    """Whether the run became verified, was withdrawn, has another claim, or has conflicting evidence."""
    old, new = before.verdict, after.verdict
    conflicting = new.code is UsageCode.CONFLICTING_EVIDENCE and old.code is not new.code
    return conflicting or new.withdrawn > old.withdrawn or _claim_of(old) != _claim_of(new)


def _claim_of(verdict: UsageVerdict) -> tuple[object, ...] | None:
    """What payments rely on; it may change while the run stays verified."""
    if verdict.status is not UsageStatus.VERIFIED:
        return None
    return (verdict.tokens, verdict.reported_by, verdict.interval_min)


def _load_entry_numbers(writing: WriteTransaction, tenant: str, run_ids: Sequence[str]) -> None:
    """Read with one query the number of the last audit entry of each run."""
    writing.look_up_contracts(tenant, [contract_of(one) for one in run_ids])


def _new_salt(writing: WriteTransaction) -> bytes:
    """Make a salt that cannot be guessed: each id holds 80 random bits."""
    return sha256(f"{writing.new_id('salt')}{writing.new_id('salt')}".encode()).digest()[:SALT_BYTES]


def _emit(writing: WriteTransaction, tenant: str, kind: EventType, record: UsageRecord, what: str) -> int:
    """Emit an event with ids, statuses and counts, without contents."""
    data: dict[str, Any] = {
        "run_id": record.run.id,
        "status": record.verdict.status,
        "code": record.verdict.code,
        "attempts": record.attempts,
        "withdrawn": record.verdict.withdrawn,
        "imported": record.verdict.is_imported,
    }
    return writing.emit(tenant, kind, record.run.id, f"usage:{record.run.id}:{what}", data)


_STATUS_EVENTS = {
    UsageStatus.VERIFIED: EventType.USAGE_VERIFIED,
    UsageStatus.WARNING: EventType.USAGE_WARNING,
    UsageStatus.DATA_NOT_AVAILABLE: EventType.USAGE_UNAVAILABLE,
}
