"""Which runs are to be looked at, told by the day on which they ended: one asking of a provider serves a whole day."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, func, select, tuple_

from meruit.model.metering import UsageRecord
from meruit.model.time import to_micros
from meruit.store import tables
from meruit.usage.attribution.run import AttributionRun
from meruit.usage.store.rows import record_of

DAY = timedelta(days=1) // timedelta(microseconds=1)
_runs, _accounts = tables.usage_runs, tables.usage_accounts


class UsageRunFilter(NamedTuple):
    """Which runs somebody asks about; all that is None leaves it open."""

    tenant: str | None = None
    framework: str | None = None
    run_id: str | None = None
    ended_since: datetime | None = None
    ended_until: datetime | None = None

    @property
    def is_unfiltered(self) -> bool:
        """Whether every run of an account is meant."""
        return self._replace(tenant=None) == UsageRunFilter()

    def conditions(self) -> list[ColumnElement[bool]]:
        """The same for the database."""
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


class AccountQuery(NamedTuple):
    """An account that is asked at a moment, about some of its runs."""

    tenant: str
    account: str
    now: int
    run_filter: UsageRunFilter

    def conditions(self) -> list[ColumnElement[bool]]:
        """Those of its runs that have ended, are due and are meant."""
        mine = [_runs.c.tenant == self.tenant, _runs.c.account == self.account]
        return [
            *mine,
            _runs.c.next_observation_at <= self.now,
            _runs.c.ended_at.is_not(None),
            *self.run_filter.conditions(),
        ]


class DueDay(NamedTuple):
    """Runs that ended on one day and are due."""

    day: int
    """Days since 1970."""
    first: int
    """When the first of them started, in microseconds."""
    last: int
    """When the last of them ended."""
    runs: int


class UsageRunCursor(NamedTuple):
    """A place in the order in which runs ended."""

    ended_at: int
    seq: int = 0


def accounts_due(connection: Connection, now: int, choice: UsageRunFilter) -> list[tuple[str, str]]:
    """Tenants and accounts of which a run that is meant is due."""
    query = (
        select(_runs.c.tenant, _runs.c.account)
        .where(_runs.c.next_observation_at <= now, *choice.conditions())
        .distinct()
    )
    return sorted((row.tenant, row.account) for row in connection.execute(query))


def accounts_with_new_key(
    connection: Connection, fingerprints: Mapping[str, str], choice: UsageRunFilter
) -> list[tuple[str, str]]:
    """Tenants and accounts that were last asked with another key than these, by account: a run may wait for it."""
    query = select(_accounts.c.tenant, _accounts.c.account, _accounts.c.credential)
    query = query.where(_accounts.c.account.in_(fingerprints))
    if choice.tenant is not None:
        query = query.where(_accounts.c.tenant == choice.tenant)
    rows = connection.execute(query)
    return sorted((row.tenant, row.account) for row in rows if row.credential != fingerprints[row.account])


def days_due(connection: Connection, asked: AccountQuery) -> list[DueDay]:
    """The days on which those ended that are due, the oldest first."""
    day = _runs.c.ended_at // DAY
    started = func.coalesce(_runs.c.started_at, _runs.c.ended_at)
    query = select(day, func.min(started), func.max(_runs.c.ended_at), func.count()).where(*asked.conditions())
    return [DueDay(*row) for row in connection.execute(query.group_by(day).order_by(day))]


def due_page(
    connection: Connection, asked: AccountQuery, day: int, after: UsageRunCursor, limit: int
) -> list[AttributionRun]:
    """Those that are due and ended on a day, in the order of their ends, from a place on."""
    on_that_day = _runs.c.ended_at < (day + 1) * DAY
    return _page(
        connection, _LIGHT.where(on_that_day, *asked.conditions()), max(after, UsageRunCursor(day * DAY)), limit
    )


def account_page(
    connection: Connection, asked: AccountQuery, until: int, known: int, after: UsageRunCursor, limit: int
) -> list[AttributionRun]:
    """All of an account that started before a moment, of those `known`, in the order of their ends, from a place on."""
    started = func.coalesce(_runs.c.started_at, _runs.c.ended_at)
    query = _LIGHT.where(_runs.c.tenant == asked.tenant, _runs.c.account == asked.account)
    return _page(connection, query.where(started < until, _runs.c.seq <= known), after, limit)


def newest_seq(connection: Connection, tenant: str) -> int:
    """The place of the run that was recorded last."""
    return connection.execute(select(func.max(_runs.c.seq)).where(_runs.c.tenant == tenant)).scalar() or 0


def find_runs(connection: Connection, choice: UsageRunFilter, limit: int) -> list[UsageRecord]:
    """The runs that are meant, due or not, the newest first."""
    query = select(_runs).where(*choice.conditions()).order_by(_runs.c.seq.desc()).limit(limit)
    return [record_of(row) for row in connection.execute(query)]


# Any: the columns of a light row, each of its own type.
_LIGHT: Select[Any] = select(*(_runs.c[name] for name in AttributionRun._fields))


def _page(connection: Connection, query: Select[Any], after: UsageRunCursor, limit: int) -> list[AttributionRun]:
    order = (_runs.c.ended_at, _runs.c.seq)
    rows = connection.execute(query.where(tuple_(*order) > after).order_by(*order).limit(limit))
    return [AttributionRun._make(row) for row in rows]
