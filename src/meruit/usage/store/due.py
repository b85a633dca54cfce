"""Find the runs to observe, by the day on which they ended: one request to a provider serves a whole day."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, Select, func, select, tuple_

from meruit.model.metering import UsageRecord
from meruit.model.time import to_micros
from meruit.store import tables
from meruit.usage.attribution.run import AttributionRun
from meruit.usage.store.rows import record_of

DAY = timedelta(days=1) // timedelta(microseconds=1)
_runs, _accounts = tables.usage_runs, tables.usage_accounts


class UsageRunFilter(msgspec.Struct, frozen=True):
    """Selects runs; a field that is None does not restrict."""

    tenant: str | None = None
    framework: str | None = None
    run_id: str | None = None
    ended_since: datetime | None = None
    ended_until: datetime | None = None

    @property
    def is_unfiltered(self) -> bool:
        """Whether every run of an account is selected."""
        return msgspec.structs.replace(self, tenant=None) == UsageRunFilter()

    def conditions(self) -> list[ColumnElement[bool]]:
        """The filter as SQL conditions."""
        found = []
        if self.tenant is not None:
            found.append(_runs.c.tenant == self.tenant)
        if self.framework is not None:
            found.append(_runs.c.framework == self.framework)
        if self.run_id is not None:
            found.append(_runs.c.id == self.run_id)
        if self.ended_since is not None:
            found.append(_runs.c.ended_at >= to_micros(self.ended_since))
        if self.ended_until is not None:
            found.append(_runs.c.ended_at <= to_micros(self.ended_until))
        return found


class AccountQuery(msgspec.Struct, frozen=True):
    """The runs of one account that are due at a moment."""

    tenant: str
    account: str
    now: int
    run_filter: UsageRunFilter

    def conditions(self) -> list[ColumnElement[bool]]:
        """SQL conditions: the runs that have ended, are due and match the filter."""
        mine = [_runs.c.tenant == self.tenant, _runs.c.account == self.account]
        return [
            *mine,
            _runs.c.next_observation_at <= self.now,
            _runs.c.ended_at.is_not(None),
            *self.run_filter.conditions(),
        ]


class DueDay(msgspec.Struct, frozen=True):
    """The due runs that ended on one day."""

    day: int
    """Days since 1970."""
    first: int
    """When the first run started, in microseconds."""
    last: int
    """When the last run ended."""
    runs: int


class UsageRunCursor(NamedTuple):
    """A position in the order in which runs ended."""

    ended_at: int
    seq: int = 0


def accounts_due(connection: Connection, now: int, run_filter: UsageRunFilter) -> list[tuple[str, str]]:
    """Find the tenants and accounts with a due run that matches the filter."""
    query = (
        select(_runs.c.tenant, _runs.c.account)
        .where(_runs.c.next_observation_at <= now, *run_filter.conditions())
        .distinct()
    )
    return sorted((row.tenant, row.account) for row in connection.execute(query))


def accounts_with_new_key(
    connection: Connection, fingerprints: Mapping[str, str], run_filter: UsageRunFilter
) -> list[tuple[str, str]]:
    """Find the tenants and accounts whose key has changed since the last request: a run may wait for the new one."""
    query = select(_accounts.c.tenant, _accounts.c.account, _accounts.c.credential)
    query = query.where(_accounts.c.account.in_(fingerprints))
    if run_filter.tenant is not None:
        query = query.where(_accounts.c.tenant == run_filter.tenant)
    rows = connection.execute(query)
    return sorted((row.tenant, row.account) for row in rows if row.credential != fingerprints[row.account])


def days_due(connection: Connection, account_query: AccountQuery) -> list[DueDay]:
    """Find the days on which due runs ended, the oldest first."""
    day = _runs.c.ended_at // DAY
    started = func.coalesce(_runs.c.started_at, _runs.c.ended_at)
    query = (
        select(
            day.label("day"),
            func.min(started).label("first"),
            func.max(_runs.c.ended_at).label("last"),
            func.count().label("runs"),
        )
        .where(*account_query.conditions())
        .group_by(day)
        .order_by(day)
    )
    return [DueDay(day=row.day, first=row.first, last=row.last, runs=row.runs) for row in connection.execute(query)]


def due_page(
    connection: Connection, account_query: AccountQuery, day: int, after: UsageRunCursor, limit: int
) -> list[AttributionRun]:
    """Read the due runs that ended on a day, in the order of their ends, after a cursor."""
    on_that_day = _runs.c.ended_at < (day + 1) * DAY
    return _page(
        connection,
        _ATTRIBUTION_COLUMNS.where(on_that_day, *account_query.conditions()),
        max(after, UsageRunCursor(day * DAY)),
        limit,
    )


def account_page(
    connection: Connection, account_query: AccountQuery, until: int, known: int, after: UsageRunCursor, limit: int
) -> list[AttributionRun]:
    """Read the runs of an account that started before `until` and were recorded up to `known`, after a cursor."""
    started = func.coalesce(_runs.c.started_at, _runs.c.ended_at)
    query = _ATTRIBUTION_COLUMNS.where(_runs.c.tenant == account_query.tenant, _runs.c.account == account_query.account)
    return _page(connection, query.where(started < until, _runs.c.seq <= known), after, limit)


def newest_seq(connection: Connection, tenant: str) -> int:
    """The `seq` of the run that was recorded last; 0 without runs."""
    return connection.execute(select(func.max(_runs.c.seq)).where(_runs.c.tenant == tenant)).scalar() or 0


def find_runs(connection: Connection, run_filter: UsageRunFilter, limit: int) -> list[UsageRecord]:
    """Read the runs that match the filter, due or not, the newest first."""
    query = select(_runs).where(*run_filter.conditions()).order_by(_runs.c.seq.desc()).limit(limit)
    return [record_of(row) for row in connection.execute(query)]


# Any: the columns of an AttributionRun, each of its own type.
_ATTRIBUTION_COLUMNS: Select[Any] = select(*(_runs.c[name] for name in AttributionRun._fields))


def _page(connection: Connection, query: Select[Any], after: UsageRunCursor, limit: int) -> list[AttributionRun]:
    order = (_runs.c.ended_at, _runs.c.seq)
    rows = connection.execute(query.where(tuple_(*order) > after).order_by(*order).limit(limit))
    return [AttributionRun._make(row) for row in rows]
