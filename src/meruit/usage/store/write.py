"""Usage: runs are recorded, looked at and accepted, each change once, and decided by the same rule every time."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from hashlib import sha256
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
from meruit.model.metering import AttributionKind, MeteredRun, UsageRecord, attribution_key_problem
from meruit.model.prices import PriceQuote, RunCosts
from meruit.model.time import from_micros
from meruit.model.usage import Acknowledgement, Observation, UsageCode, UsagePolicy, UsageStatus, UsageVerdict
from meruit.outcomes.store.write import IdempotentReplay, IdempotentRequest, find_reply, keep_reply
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
"""Between them a time can be reckoned with."""
CREDENTIAL = "credential"
"""What a run waits for whose look was refused."""
_DEFAULT_POLICY, _DEFAULT_SCHEDULE = UsagePolicy(), Schedule()


class _RecordedRun(NamedTuple):
    """A run that was written down."""

    record: UsageRecord
    has_changed_cohort: bool = False
    """Whether others that share its attribution key may be counted otherwise now: it is new, has moved or has ended."""


@with_prefetch
class RecordRun(NamedTuple):
    """A run as it is known by now: new, or the next state of one that is open."""

    tenant: str
    by: str
    run: MeteredRun
    quotes: tuple[PriceQuote, ...] = ()
    once: IdempotentRequest | None = None
    render: Callable[[UsageRecord], bytes] = lambda _record: b""
    policy: UsagePolicy = _DEFAULT_POLICY
    schedule: Schedule = _DEFAULT_SCHEDULE
    begins: bool = False
    """Whether it is new, so that one of its name must not be there."""

    @property
    def run_id(self) -> str:
        """Whose row it is."""
        return self.run.id

    def __call__(self, writing: WriteTransaction) -> UsageRecord | IdempotentReplay:
        """Write it down; the same twice is once. Raises UsageRunEnded, UsageRunOpen, BadUsage."""
        if self.once is not None:
            before = find_reply(writing, self.tenant, self.once)
            if before is not None:
                return before
        recorded = self.write(writing, _validate_run(self.run))
        record = recorded.record
        if recorded.has_changed_cohort:
            invalidate_cohorts(writing, [record.run])
        if self.once is not None:
            keep_reply(writing, self.tenant, self.once._replace(reply=self.render(record)))
        return record

    def write(self, writing: WriteTransaction, told: EncodedRun) -> _RecordedRun:
        """The run as it stands now, and whether others are to be looked at again for it."""
        held = find_run(writing, self.tenant, told.run.id)
        if held is None:
            return self._insert(writing, told)
        quotes = (*held.record.quotes, *_first_quotes(held.record.quotes, self.quotes))
        if held.record.run == told.run:
            if quotes != held.record.quotes:
                held = held._replace(record=msgspec.structs.replace(held.record, quotes=quotes))
                save_prices(writing, self.tenant, held)
            return _RecordedRun(held.record)
        if held.record.run.ended_at is not None:
            raise UsageRunEnded(
                f"run {told.run.id} ended at {held.record.run.ended_at.isoformat()}, and differs from what is told of "
                "it now; record another run under an id of its own"
            )
        if self.begins:
            raise UsageRunOpen(
                f"run {told.run.id} is open, with what it used by now; end it with `meruit usage end {told.run.id}` if "
                "its process died, and begin another run under an id of its own"
            )
        if held.record.run.framework != told.run.framework:
            raise InvalidUsage(
                f"run {told.run.id} is open, and of {held.record.run.framework!r}, not of {told.run.framework!r}; "
                "record another run under an id of its own"
            )
        return self._update(writing, told, quotes)

    def _insert(self, writing: WriteTransaction, told: EncodedRun) -> _RecordedRun:
        self._claim_calls(writing, told.run)
        verdict = decide(told.for_judging, (), self.policy)
        due = next_observation(told.run.ended_at, verdict, (), self.policy, self.schedule)
        # Its place is that of the event that tells of it.
        record = UsageRecord(
            told.run, writing.events + 1, 0, verdict, due.at, quotes=tuple(_first_quotes((), self.quotes))
        )
        _emit(writing, self.tenant, EventType.USAGE_RUN_RECORDED, record, "recorded")
        insert_run(writing, self.tenant, self.by, told, StoredUsageRun(record))
        if told.run.ended_at is not None:
            _emit(writing, self.tenant, EventType.USAGE_RUN_ENDED, record, "ended")
        return _RecordedRun(record, has_changed_cohort=True)

    def _update(self, writing: WriteTransaction, told: EncodedRun, quotes: tuple[PriceQuote, ...]) -> _RecordedRun:
        before = load_run(writing, self.tenant, told.run.id, with_looks=True)
        self._claim_calls(writing, told.run, before.record.run)
        now = before._replace(record=msgspec.structs.replace(before.record, run=told.run, quotes=quotes))
        held = _decide_again(now, self.policy, self.schedule)
        if before.record.run.contract_id != told.run.contract_id:
            remember_former_contract(writing, self.tenant, before.record.run)
        if told.run.ended_at is not None:
            _emit(writing, self.tenant, EventType.USAGE_RUN_ENDED, held.record, "ended")
        held = _publish(writing, self.tenant, before.record, held)
        replace_run(writing, self.tenant, told)
        save(writing, self.tenant, held)
        save_prices(writing, self.tenant, held)
        has_moved = _attribution_of(told.run) != _attribution_of(before.record.run)
        return _RecordedRun(held.record, has_changed_cohort=has_moved or told.run.ended_at is not None)

    def _claim_calls(self, writing: WriteTransaction, run: MeteredRun, before: MeteredRun | None = None) -> None:
        taken = find_call_of_other_run(writing, self.tenant, run)
        if taken is not None:
            raise InvalidUsage(
                f"run {run.id!r}: call {taken!r} is another run's already; a call is counted once: record it with the "
                "run that made it, and with no other"
            )
        save_call_owners(writing, self.tenant, run, before)


class RecordRuns(NamedTuple):
    """Many runs at once, as files hold them: all of them, or none."""

    tenant: str
    by: str
    runs: Sequence[MeteredRun]
    policy: UsagePolicy = _DEFAULT_POLICY
    schedule: Schedule = _DEFAULT_SCHEDULE

    def __call__(self, writing: WriteTransaction) -> list[UsageRecord]:
        """Write all of them down; raises what `RecordRun` does."""
        several = [
            RecordRun(self.tenant, self.by, run, policy=self.policy, schedule=self.schedule) for run in self.runs
        ]
        prefetch_runs(writing, several)
        told = [_validate_run(run) for run in self.runs]
        read_call_owners(writing, [one.run for one in told])
        recorded = [one.write(writing, this) for one, this in zip(several, told, strict=True)]
        invalidate_cohorts(writing, [one.record.run for one in recorded if one.has_changed_cohort])
        return [one.record for one in recorded]


class RunObservation(NamedTuple):
    """What one look at a run's count found."""

    run_id: str
    observation: Observation


class RecordObservations(NamedTuple):
    """What was found for many runs, to be added to what was found before."""

    tenant: str
    observations: Sequence[RunObservation]
    policy: UsagePolicy = _DEFAULT_POLICY
    schedule: Schedule = _DEFAULT_SCHEDULE
    since: datetime | None = None
    """When it was read who shares what with whom; whoever was made due after that stays so."""

    def __call__(self, writing: WriteTransaction) -> list[UsageRecord]:
        """Add each look once, and decide again; the runs as they stand now, in the order given. Raises NotFound."""
        held = load_runs(writing, self.tenant, [one.run_id for one in self.observations], with_looks=True)
        before = dict(held)
        for run_id, attempt in self.observations:
            held[run_id] = self._add_observation(writing, held[run_id], attempt)
        changed = {
            run_id: self._keep_due(writing, before[run_id], one)
            for run_id, one in held.items()
            if one is not before[run_id]
        }
        entries = [one for one in changed if _is_logged(before[one].record, changed[one].record)]
        _load_entry_numbers(writing, self.tenant, entries)
        for run_id, one in changed.items():
            held[run_id] = _publish(writing, self.tenant, before[run_id].record, one)
            save(writing, self.tenant, held[run_id])
        return [held[run_id].record for run_id in dict.fromkeys(one.run_id for one in self.observations)]

    def _keep_due(self, writing: WriteTransaction, before: StoredUsageRun, after: StoredUsageRun) -> StoredUsageRun:
        """A run that is counted with others than this look knows of is looked at once more."""
        due, now = before.record.next_observation_at, from_micros(writing.now.micros)
        if self.since is None or due is None or not self.since < due <= now:
            return after
        return after._replace(record=msgspec.structs.replace(after.record, next_observation_at=now, waits=""))

    def _add_observation(self, writing: WriteTransaction, held: StoredUsageRun, attempt: Observation) -> StoredUsageRun:
        """The run after one more look."""
        kept = _validate_observation(attempt)
        looks, record = held.observations or (), held.record
        if any(one.observation == kept.observation for one in looks):
            return held if attempt.error is not None else self._defer_repeat(writing, held)
        last = attempt.at if record.last_observation_at is None else max(record.last_observation_at, attempt.at)
        if self._is_early(held, attempt):
            now = max(attempt.at, from_micros(writing.now.micros))
            return held._replace(record=msgspec.structs.replace(self._postpone(held, now), last_observation_at=last))
        insert_observation(writing, self.tenant, record.run.id, len(looks) + 1, kept)
        return _decide_again(
            held._replace(observations=(*looks, kept)), self.policy, self.schedule, last_observation_at=last
        )

    def _defer_repeat(self, writing: WriteTransaction, held: StoredUsageRun) -> StoredUsageRun:
        """The same answer once more, its moment included, is kept already; who gives it is not asked all the time."""
        record = self._postpone(held, from_micros(writing.now.micros))
        return held if record is held.record else held._replace(record=record)

    def _is_early(self, held: StoredUsageRun, attempt: Observation) -> bool:
        """Whether it proves nothing, had it come in its time: also one that is late is measured by what was before."""
        run, looks = held.record.run, _observations_since_end(held)
        if not looks or run.ended_at is None or attempt.at < run.ended_at:
            return False
        if any(one.id == attempt.id for one in looks):
            # One name for two findings is evidence of its own.
            return False
        before = [one for one in looks if one.at <= attempt.at]
        stood = held.record.verdict
        if len(before) < len(looks):
            stood = decide(run.for_judging, before, self.policy, held.record.acknowledged)
        return is_early(before, stood, attempt, self.policy)

    def _postpone(self, held: StoredUsageRun, now: datetime) -> UsageRecord:
        """Due when an equal look counts: whoever looks in vain would do so all the time."""
        record = held.record
        # A key that was refused works by now.
        waits = "" if record.waits == CREDENTIAL else record.waits
        if waits == record.waits and (record.next_observation_at is None or record.next_observation_at > now):
            return record
        seen = [one for one in _observations_since_end(held) if one.error is None]
        due = seen[-1].at + self.policy.interval if seen else now
        # By a clock of the provider's that is far behind ours, that would be now.
        return msgspec.structs.replace(
            record, next_observation_at=due if due > now else now + self.policy.interval, waits=waits
        )


class Acknowledge(NamedTuple):
    """A person accepts a count that fell."""

    tenant: str
    run_id: str
    ack: Acknowledgement
    policy: UsagePolicy = _DEFAULT_POLICY
    schedule: Schedule = _DEFAULT_SCHEDULE

    def __call__(self, writing: WriteTransaction) -> UsageRecord:
        """Decide again with the lower count; raises NothingToAcknowledge, BadUsage, NotFound."""
        _check_ack(self.ack)
        before = load_run(writing, self.tenant, self.run_id, with_looks=True)
        record = before.record
        if record.verdict.code is not UsageCode.DECREASED:
            if any((one.by, one.reason) == (self.ack.by, self.ack.reason) for one in record.acknowledged):
                # It was accepted, and the answer was lost.
                return record
            raise NothingToAcknowledge(
                f"run {self.run_id} is {record.verdict.status} ({record.verdict.code}); only a count that fell is "
                "accepted by a person"
            )
        # Who accepts has seen every look that is kept, and none that is still to come, whatever any clock says.
        at = max(one.observation.at for one in before.observations or ())
        ack = msgspec.structs.replace(self.ack, at=at)
        record = msgspec.structs.replace(record, acknowledged=(*record.acknowledged, ack))
        held = _decide_again(before._replace(record=record), self.policy, self.schedule)
        what = f"acknowledged:{len(record.acknowledged)}"
        _emit(writing, self.tenant, EventType.USAGE_ACKNOWLEDGED, held.record, what)
        held = _publish(writing, self.tenant, before.record, held, ack)
        save(writing, self.tenant, held)
        return held.record


class ObserveNow(NamedTuple):
    """Somebody wants to know: these runs are due at once."""

    tenant: str
    run_ids: Sequence[str]

    def __call__(self, writing: WriteTransaction) -> list[UsageRecord]:
        """Make them due, those that are open aside: nobody looks at a run before its end. Raises NotFound."""
        now = from_micros(writing.now.micros)
        held = load_runs(writing, self.tenant, self.run_ids)
        for run_id, one in held.items():
            if one.record.run.ended_at is not None:
                # Who is due already stays so: another who wants to know may be about to look.
                due = one.record.next_observation_at
                due = now if due is None else min(due, now)
                record = msgspec.structs.replace(one.record, next_observation_at=due, waits="")
                held[run_id] = one._replace(record=record)
                save(writing, self.tenant, held[run_id])
        return [one.record for one in held.values()]


@with_prefetch
class RecordPrices(NamedTuple):
    """What a run's tokens cost: the prices that are frozen with it, and what came of them."""

    tenant: str
    run_id: str
    quotes: tuple[PriceQuote, ...] = ()
    ledger: RunCosts = RunCosts()

    def __call__(self, writing: WriteTransaction) -> UsageRecord:
        """Add what is known by now; what is not told stays. Raises PriceStands, NotFound."""
        held = load_run(writing, self.tenant, self.run_id)
        record = held.record
        quotes = (*record.quotes, *self._new_quotes(record.quotes))
        record = msgspec.structs.replace(record, quotes=quotes, ledger=self._merge_ledger(record.ledger))
        if record != held.record:
            save_prices(writing, self.tenant, held._replace(record=record))
        return record

    def _new_quotes(self, frozen: tuple[PriceQuote, ...]) -> list[PriceQuote]:
        known = {_quote_key(one) for one in frozen}
        new = [one for one in self.quotes if one not in frozen]
        for one in new:
            if _quote_key(one) in known and not one.reason:
                raise PriceAlreadyFrozen(
                    f"run {self.run_id} has a price for {one.model} already; another one needs a reason, and stands "
                    "beside it"
                )
        return new

    def _merge_ledger(self, ledger: RunCosts) -> RunCosts:
        told = {
            name: amount
            for name in ("quoted", "billed", "settled")
            if (amount := getattr(self.ledger, name)) is not None
        }
        kept = [name for name in ("quoted", "billed", "settled") if getattr(ledger, name) is not None]
        if told and kept and ledger.currency != self.ledger.currency:
            raise PriceAlreadyFrozen(
                f"run {self.run_id} is reckoned in {ledger.currency}, and not in {self.ledger.currency}"
            )
        return msgspec.structs.replace(ledger, **told, currency=self.ledger.currency) if told else ledger


def contract_of(run_id: str) -> str:
    """The name under which the audit log counts what it says of a run; no contract has a tab in its own."""
    return f"usage\t{run_id}"


def _validate_run(run: MeteredRun) -> EncodedRun:
    """The run as it can be read again; raises BadUsage."""
    try:
        body = run.to_json()
        found = MeteredRun.from_json(body)
    except (TypeError, ValueError) as problem:
        raise InvalidUsage(f"run {run.id!r}: {problem}") from None
    if any("\0" in text for text in _text_columns(found)):
        raise InvalidUsage(f"run {run.id!r} has a null character in a name; no database keeps one")
    ids = [step.id for step in found.steps]
    if len(set(ids)) < len(ids):
        twice = next(one for one in ids if ids.count(one) > 1)
        raise InvalidUsage(f"run {run.id!r} has two steps {twice!r}; each needs an id of its own")
    _check_time(f"run {run.id!r}", found.started_at, found.ended_at)
    if found.started_at is not None and found.ended_at is not None and found.ended_at < found.started_at:
        raise InvalidUsage(f"run {run.id!r} ends before it starts")
    for step in found.steps:
        if step.started_at is not None and step.ended_at is not None and step.ended_at < step.started_at:
            raise InvalidUsage(f"run {run.id!r}: step {step.id!r} ends before it starts")
    why_not = attribution_key_problem(found.attribution_key)
    if why_not:
        raise InvalidUsage(f"run {run.id!r}: {why_not}")
    return EncodedRun(found, body, found.for_judging)


def _text_columns(run: MeteredRun) -> tuple[str, ...]:
    """What has a column of its own."""
    calls = [call.id for call in run.calls] if run.attribution_key.kind is AttributionKind.REQUESTS else []
    return (run.id, run.framework, run.source, run.attribution_key.value, run.task, run.contract_id, *calls)


def _attribution_of(run: MeteredRun) -> tuple[object, ...]:
    """Where it is counted, and since when."""
    return (run.source, run.attribution_key, run.started_at)


def _validate_observation(attempt: Observation) -> EncodedObservation:
    """The look as it can be read again; raises BadUsage."""
    try:
        kept = decode_observation(attempt.to_json())
    except (TypeError, ValueError) as problem:
        raise InvalidUsage(f"attempt {attempt.id!r}: {problem}") from None
    if not kept.observation.id or "\0" in kept.observation.id:
        raise InvalidUsage(f"attempt {attempt.id!r} needs an id of its own, without null characters")
    _check_time(f"attempt {attempt.id!r}", kept.observation.at)
    return kept


def _check_ack(ack: Acknowledgement) -> None:
    try:
        Acknowledgement.from_json(ack.to_json())
    except (TypeError, ValueError) as problem:
        raise InvalidUsage(f"the acknowledgement of {ack.by!r}: {problem}") from None
    if not ack.by.strip() or not ack.reason.strip():
        raise InvalidUsage("who accepts a count that fell gives a name and a reason, which are recorded for good")
    _check_time("an acknowledgement", ack.at)


def _check_time(what: str, *moments: datetime | None) -> None:
    for one in moments:
        if one is not None and not EARLIEST <= one < LATEST:
            raise InvalidUsage(f"{what} cannot have been at {one.isoformat()}; give the time with its year and zone")


def _quote_key(quote: PriceQuote) -> tuple[str, ...]:
    """What a quote is the price of."""
    return (quote.provider, quote.model, quote.tier, quote.band)


def _first_quotes(frozen: Sequence[PriceQuote], quotes: Iterable[PriceQuote]) -> Iterable[PriceQuote]:
    """Quotes of what has no price yet: the first one of each is the run's."""
    known = {_quote_key(one) for one in frozen}
    for one in quotes:
        if _quote_key(one) not in known:
            known.add(_quote_key(one))
            yield one


def _observations_since_end(held: StoredUsageRun) -> list[Observation]:
    """The looks that count, in the order of time."""
    ended_at = held.record.run.ended_at
    if ended_at is None or not held.observations:
        return []
    counting = [one.observation for one in held.observations if one.observation.at >= ended_at]
    return sorted(counting, key=lambda one: (one.at, one.id)) if len(counting) > 1 else counting


# Any: the fields of a record.
def _decide_again(held: StoredUsageRun, policy: UsagePolicy, schedule: Schedule, **more: Any) -> StoredUsageRun:
    """What may be claimed of a run by all that is kept of it, and when to look again."""
    record, looks = held.record, held.observations or ()
    verdict = decide(record.run.for_judging, [one.observation for one in looks], policy, record.acknowledged)
    due = next_observation(record.run.ended_at, verdict, _observations_since_end(held), policy, schedule)
    record = msgspec.structs.replace(
        record,
        attempts=len(looks),
        verdict=verdict,
        next_observation_at=due.at,
        waits=due.waits,
        exhausted=due.exhausted,
        **more,
    )
    return StoredUsageRun(record, last_count_of(looks), held.salt, looks)


def _publish(
    writing: WriteTransaction,
    tenant: str,
    before: UsageRecord,
    held: StoredUsageRun,
    ack: Acknowledgement | None = None,
) -> StoredUsageRun:
    """Tell whoever listens what changed, and write down in the audit log what others rely on."""
    record, was = held.record, before.verdict
    verdict, what = record.verdict, f"{record.attempts}.{len(record.acknowledged)}"
    left = was.status is UsageStatus.VERIFIED and verdict.status is not UsageStatus.VERIFIED
    if left or verdict.withdrawn > was.withdrawn:
        _emit(writing, tenant, EventType.USAGE_WITHDRAWN, record, f"{what}:withdrawn")
    kind = _STATUS_EVENTS.get(verdict.status)
    if kind is not None and verdict.status is not was.status:
        _emit(writing, tenant, kind, record, f"{what}:{verdict.status}")
    if ack is None and not _is_logged(before, record):
        return held
    salt = held.salt or _new_salt(writing)
    number = writing.next_in_contract(tenant, contract_of(record.run.id))
    evidence = commitment(
        salt, usage_evidence_bytes(record.run.to_json(), (one.body for one in held.observations or ()))
    )
    by, reason = ("", "") if ack is None else (ack.by, ack.reason)
    writing.append(
        UsageEntry(
            *(writing.now.written, tenant, record.run.id, number, verdict.status.value, verdict.code.value),
            *(record.attempts, evidence, by, reason),
        ),
        *(tenant, contract_of(record.run.id), number),
    )
    return held._replace(salt=salt)


def _is_logged(before: UsageRecord, after: UsageRecord) -> bool:
    """Whether it came to be believed, is no longer believed, is believed otherwise, or contradicts itself."""
    old, new = before.verdict, after.verdict
    conflicting = new.code is UsageCode.CONFLICTING_EVIDENCE and old.code is not new.code
    return conflicting or new.withdrawn > old.withdrawn or _claim_of(old) != _claim_of(new)


def _claim_of(verdict: UsageVerdict) -> tuple[object, ...] | None:
    """What others rely on, and may be paid by: also while a run stays verified, it may be on other grounds."""
    if verdict.status is not UsageStatus.VERIFIED:
        return None
    return (verdict.tokens, verdict.reported_by, verdict.interval_min)


def _load_entry_numbers(writing: WriteTransaction, tenant: str, run_ids: Sequence[str]) -> None:
    """Learn with one question how much the audit log says of each run."""
    writing.look_up_contracts(tenant, [contract_of(one) for one in run_ids])


def _new_salt(writing: WriteTransaction) -> bytes:
    """Nobody can guess it: each id holds eighty random bits."""
    return sha256(f"{writing.new_id('salt')}{writing.new_id('salt')}".encode()).digest()[:SALT_BYTES]


def _emit(writing: WriteTransaction, tenant: str, kind: EventType, record: UsageRecord, what: str) -> int:
    """Names, states and counts; nothing of what was done."""
    data: dict[str, Any] = {
        "run_id": record.run.id,
        "status": record.verdict.status,
        "code": record.verdict.code,
        "attempts": record.attempts,
        "withdrawn": record.verdict.withdrawn,
    }
    return writing.emit(tenant, kind, record.run.id, f"usage:{record.run.id}:{what}", data)


_STATUS_EVENTS = {
    UsageStatus.VERIFIED: EventType.USAGE_VERIFIED,
    UsageStatus.WARNING: EventType.USAGE_WARNING,
    UsageStatus.DATA_NOT_AVAILABLE: EventType.USAGE_UNAVAILABLE,
}
