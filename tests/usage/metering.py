"""Runs whose tokens are counted and looks at them, as the tests of usage record and read them."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from meruit.errors import FetchError
from meruit.events.store import outbox
from meruit.log.commitment import matches, usage_evidence_bytes
from meruit.log.entries import UsageEntry, read_entry
from meruit.model.metering import AttributionKey, AttributionKind, MeteredCall, MeteredRun, MeteredStep, UsageRecord
from meruit.model.time import from_micros, to_micros
from meruit.model.usage import Assurance, Observation, Tokens, UsagePolicy, UsageStatus
from meruit.store import tables
from meruit.store.store import Store
from meruit.usage.decision import decide
from meruit.usage.store import read as usage_reading
from meruit.usage.store.publish import contract_of
from meruit.usage.store.record_observations import RecordObservations, RunObservation
from meruit.usage.store.record_runs import RecordRun
from meruit.usage.store.rows import record_of

BEGUN = datetime(2026, 5, 4, 3, 0, tzinfo=UTC)
ENDED = BEGUN + timedelta(minutes=5)
POLICY = UsagePolicy()
USED = Tokens(10, 5)
BY_CALLS = AttributionKey(AttributionKind.REQUESTS)


def metered(run_id: str = "r", steps: int | tuple[MeteredStep, ...] = 1, **more: Any) -> MeteredRun:
    """A run that has ended, of these steps or of so many that say what they used."""
    said: dict[str, Any] = {
        "framework": "f",
        "source": "main",
        "attribution_key": AttributionKey(AttributionKind.KEY, "k"),
        "started_at": BEGUN,
        "ended_at": ENDED,
    }
    if isinstance(steps, int):
        steps = tuple(MeteredStep(f"s{number}", tokens=USED) for number in range(steps))
    return MeteredRun(run_id, **{**said, "steps": steps, **more})


def attempt(minutes: float, tokens: Tokens | FetchError = USED, name: str | None = None, **more: Any) -> Observation:
    """A look so many minutes after the end: what it counted, or why it counted nothing."""
    error = tokens if isinstance(tokens, FetchError) else None
    total = None if isinstance(tokens, FetchError) else tokens
    chosen = f"{minutes:g}: {error or total}" if name is None else name
    at = ENDED + timedelta(minutes=minutes)
    return Observation(chosen, at, total, assurance=Assurance.ATTRIBUTION_KEY, error=error, digest="d", **more)


class Place(NamedTuple):
    """A tenant whom nobody else is."""

    store: Store
    tenant: str

    # Any: each write has an answer of its own kind.
    def write(self, write: Any) -> Any:
        return self.store.recorder.write(write)

    def metered(self, run_id: str = "r", steps: int | tuple[MeteredStep, ...] = 1, **more: Any) -> MeteredRun:
        """A run in an attribution key that no other tenant has."""
        return metered(run_id, steps, **{"attribution_key": AttributionKey(AttributionKind.KEY, self.tenant), **more})

    def record(self, run_id: str = "r", **more: Any) -> RecordRun:
        return RecordRun(self.tenant, "me", self.metered(run_id, **more))

    def called(self, run_id: str, *calls: str, **more: Any) -> RecordRun:
        """A run that is told by the ids of its calls."""
        made = tuple(MeteredCall(BEGUN, "m", USED, id=one) for one in calls)
        return self.record(run_id, **{"steps": (MeteredStep("s", calls=made),), "attribution_key": BY_CALLS, **more})

    def look(self, *attempts: Observation, run_id: str = "r") -> RecordObservations:
        return RecordObservations(self.tenant, [RunObservation(run_id, one) for one in attempts])

    def looked(self, *attempts: Observation, run_id: str = "r") -> UsageRecord:
        """The run after these looks, each written for itself."""
        for one in attempts:
            self.write(self.look(one, run_id=run_id))
        return self.found(run_id)

    def found(self, run_id: str = "r") -> UsageRecord:
        with self.store.database.reading() as connection:
            return usage_reading.find(connection, self.tenant, run_id)

    def attempts(self, run_id: str = "r") -> list[Observation]:
        with self.store.database.reading() as connection:
            return usage_reading.find_observations(connection, self.tenant, run_id)

    # Any: a row of SQLAlchemy's has its columns as attributes, which no type says.
    def row(self, run_id: str = "r") -> Any:
        with self.store.database.reading() as connection:
            return self._row(connection, run_id)

    def told(self, run_id: str = "r") -> list[tuple[str, dict[str, Any]]]:
        """Type and content of every event of a run."""
        with self.store.database.reading() as connection:
            return self._told(connection, run_id)

    def types(self, run_id: str = "r") -> list[str]:
        return [kind for kind, _ in self.told(run_id)]

    def logged(self, run_id: str = "r") -> list[UsageEntry]:
        """What the audit log says of a run."""
        with self.store.database.reading() as connection:
            return self._logged(connection, run_id)

    def check(self, run_id: str = "r", policy: UsagePolicy = POLICY) -> UsageRecord:
        """The run, whose row, events and entries all follow from what is kept of it."""
        with self.store.database.reading() as connection:
            row, kept = self._row(connection, run_id), usage_reading.find_observations(connection, self.tenant, run_id)
            told, entries = self._told(connection, run_id), self._logged(connection, run_id)
        record = record_of(row)
        assert record.verdict == decide(record.run.for_judging, kept, policy, record.acknowledged)
        assert record.attempts == len(kept)
        assert (row.status, row.code) == (record.verdict.status.value, record.verdict.code.value)
        assert row.withdrawn == record.verdict.withdrawn
        assert row.ended_at == (None if record.run.ended_at is None else to_micros(record.run.ended_at))
        if not record.run.for_judging.uses_none:
            assert (row.local_input, row.local_output, row.local_requests) == _columns(record.run.local)
        last = max((one for one in kept if one.total is not None), key=lambda one: (one.at, one.id), default=None)
        seen = None if last is None else last.total
        assert (row.last_input, row.last_output, row.last_requests) == _columns(seen)
        self.check_totals()
        verified = record.verdict.status is UsageStatus.VERIFIED
        assert verified == bool(entries and entries[-1].status == "verified")
        changes = [kind for kind, _ in told if kind.startswith("usage.") and kind != "usage.acknowledged"]
        assert verified == (changes[-1:] == ["usage.verified"])
        return record

    def check_totals(self) -> None:
        """What each account adds up to is what its runs say."""
        with self.store.database.reading() as connection:
            found = {one.account: one for one in usage_reading.sum_accounts(connection, self.tenant)}
            by_status = usage_reading.count_by_status(connection, self.tenant)
            by_account = usage_reading.count_by_account(connection, self.tenant)
            of = tables.usage_runs
            rows = connection.execute(select(of).where(of.c.tenant == self.tenant)).all()
        assert by_status == Counter(UsageStatus(row.status) for row in rows)
        assert by_account == Counter(row.account for row in rows)
        assert [*found] == sorted({row.account for row in rows})
        for account, total in found.items():
            mine = [row for row in rows if row.account == account]
            assert total.runs == Counter(UsageStatus(row.status) for row in mine)
            assert total.tokens == sum((row.last_input or 0) + (row.last_output or 0) for row in mine)
            assert total.unattributed == sum(row.code == "unattributed" for row in mine)
            seen = [row.last_observation_at for row in mine if row.last_observation_at is not None]
            assert total.asked_at == (from_micros(max(seen)) if seen else None)

    def _row(self, connection: Connection, run_id: str) -> Any:
        of = tables.usage_runs
        return connection.execute(select(of).where(of.c.tenant == self.tenant, of.c.id == run_id)).one()

    def _told(self, connection: Connection, run_id: str) -> list[tuple[str, dict[str, Any]]]:
        """No key comes twice."""
        found = outbox.events_after(connection, 0, tenant=self.tenant, subjects=frozenset([run_id]))
        keys = [one.event.idempotency_key for one in found]
        assert len(keys) == len(set(keys))
        return [(one.event.event_type, one.event.data) for one in found]

    def _logged(self, connection: Connection, run_id: str) -> list[UsageEntry]:
        """Numbered without a gap, each on evidence that is still there."""
        of = tables.log_leaves
        query = select(of.c.body).where(of.c.tenant == self.tenant, of.c.contract_id == contract_of(run_id))
        read = [read_entry(bytes(one)) for one in connection.execute(query.order_by(of.c.contract_seq)).scalars()]
        entries = [one for one in read if isinstance(one, UsageEntry)]
        assert [one.number for one in entries] == [*range(1, len(read) + 1)]
        row = self._row(connection, run_id)
        run = record_of(row).run
        bodies = [one.to_json() for one in usage_reading.find_observations(connection, self.tenant, run_id)]
        for one in entries:
            # What contradicts itself may do so before the run has ended, which may change once more.
            assert one.code == "conflicting_evidence" or matches(
                one.evidence, row.salt, usage_evidence_bytes(run.to_json(), bodies[: one.attempts])
            )
        return entries


def _columns(tokens: Tokens | None) -> tuple[int | None, int | None, int | None]:
    return (None, None, None) if tokens is None else (tokens.input, tokens.output, tokens.requests)
