"""Read usage: one run, a page of runs, a run's observations, the runs of an account, and all runs in blocks."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, case, func, select

from meruit.errors import NotFound
from meruit.model.metering import UsageRecord
from meruit.model.record import Record
from meruit.model.time import from_micros, to_micros
from meruit.model.usage import Moment, Observation, UsageCode, UsageStatus
from meruit.store import tables
from meruit.store.database import MAX_PAGE
from meruit.store.sorting import ListOrder, SortedPage, SortKey, read_sorted
from meruit.usage.attribution.run import AttributionRun
from meruit.usage.store.rows import BLOCK, decode_observation, record_of

ATTRIBUTION_BLOCK = 5_000
"""How many runs of an account are read at a time."""
_runs, _observations = tables.usage_runs, tables.usage_observations


class AccountTotal(Record, frozen=True):
    """What the runs of one account add up to."""

    account: str
    runs: Mapping[UsageStatus, int] = {}
    tokens: int = 0
    """As the provider counted them last."""
    unattributed: int = 0
    """Runs with tokens that belong to none of their steps."""
    asked_at: datetime | None = None
    """When the provider was asked last."""


def find(connection: Connection, tenant: str, run_id: str) -> UsageRecord:
    """Read one run; raises NotFound."""
    row = connection.execute(select(_runs).where(_runs.c.tenant == tenant, _runs.c.id == run_id)).first()
    if row is None:
        raise NotFound(f"no usage run {run_id!r}; `meruit reconcile --list` lists all")
    return record_of(row)


def find_many(connection: Connection, tenant: str, run_ids: Sequence[str]) -> dict[str, UsageRecord]:
    """Read the runs that exist, by their ids."""
    found: dict[str, UsageRecord] = {}
    for first in range(0, len(run_ids), BLOCK):
        some = run_ids[first : first + BLOCK]
        query = select(_runs).where(_runs.c.tenant == tenant, _runs.c.id.in_(some))
        found |= {row.id: record_of(row) for row in connection.execute(query)}
    return found


def find_observations(connection: Connection, tenant: str, run_id: str) -> list[Observation]:
    """Read the observations of a run, in the order in which they were recorded."""
    of = _observations
    query = select(of.c.body).where(of.c.tenant == tenant, of.c.run_id == run_id).order_by(of.c.number)
    return [decode_observation(row.body).observation for row in connection.execute(query)]


class UsageCommitment(msgspec.Struct, frozen=True):
    """The bytes that the audit log commits to in its entries about a run."""

    salt: bytes
    run: bytes
    observations: list[bytes]
    """In the order in which they were recorded, including those that no entry covers yet."""


def load_commitment(connection: Connection, tenant: str, run_id: str) -> UsageCommitment:
    """Read the bytes of a run that the audit log has an entry about; raises NotFound."""
    run = find(connection, tenant, run_id).run
    salt = connection.execute(select(_runs.c.salt).where(_runs.c.tenant == tenant, _runs.c.id == run_id)).scalar_one()
    of = _observations
    query = select(of.c.body).where(of.c.tenant == tenant, of.c.run_id == run_id).order_by(of.c.number)
    return UsageCommitment(
        salt=bytes(salt), run=run.to_json(), observations=[bytes(row.body) for row in connection.execute(query)]
    )


def page(  # noqa: PLR0913 - one parameter for each filter
    connection: Connection,
    tenant: str,
    *,
    framework: str | None = None,
    status: UsageStatus | None = None,
    code: UsageCode | None = None,
    account: str | None = None,
    task: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[UsageRecord]:
    """Read a page of runs, the newest first."""
    wanted = {"framework": framework, "status": status, "code": code, "account": account, "task": task}
    query = _fitting(tenant, wanted)
    if before is not None:
        query = query.where(_runs.c.seq < before)
    rows = connection.execute(query.order_by(_runs.c.seq.desc()).limit(min(limit, MAX_PAGE)))
    return [record_of(row) for row in rows]


SORTS = {
    "run_tokens": SortKey(_runs.c.local_input + _runs.c.local_output, int, _runs.c.seq, nullable=True),
    "tokens": SortKey(_runs.c.last_input + _runs.c.last_output, int, _runs.c.seq, nullable=True),
    "cost": SortKey(_runs.c.quoted_micros, int, _runs.c.seq, nullable=True),
    "ended": SortKey(_runs.c.ended_at, int, _runs.c.seq, nullable=True),
}
"""What a list of runs can be sorted by."""


def page_sorted(
    connection: Connection, tenant: str, order: ListOrder, *, limit: int = 50, **wanted: str | None
) -> SortedPage[UsageRecord]:
    """Read a page of runs in one of the orders SORTS; `wanted` are the filters of `page`."""
    return read_sorted(connection, _fitting(tenant, wanted), SORTS, order, limit).convert(record_of)


# Any: a query of SQLAlchemy has untyped rows.
def _fitting(tenant: str, wanted: Mapping[str, str | None]) -> Select[Any]:
    given = [_runs.c[name] == str(value) for name, value in wanted.items() if value is not None]
    return select(_runs).where(_runs.c.tenant == tenant, *given)


def count_by_status(connection: Connection, tenant: str) -> dict[UsageStatus, int]:
    """How many runs have each status."""
    query = select(_runs.c.status, func.count()).where(_runs.c.tenant == tenant).group_by(_runs.c.status)
    return {UsageStatus(status): count for status, count in connection.execute(query)}


def count_up_to(connection: Connection, tenant: str, status: UsageStatus, most: int) -> int:
    """How many runs have a status, counted up to a number."""
    found = select(_runs.c.seq).where(_runs.c.tenant == tenant, _runs.c.status == status.value).limit(most)
    return int(connection.execute(select(func.count()).select_from(found.subquery())).scalar_one())


def count_by_account(connection: Connection, tenant: str) -> dict[str, int]:
    """How many runs each account has, by name."""
    number = func.count().label("number")
    query = select(_runs.c.account, number).where(_runs.c.tenant == tenant).group_by(_runs.c.account)
    return {row.account: row.number for row in connection.execute(query.order_by(_runs.c.account))}


def sum_accounts(connection: Connection, tenant: str) -> list[AccountTotal]:
    """What each account adds up to, by name."""
    of = _runs.c
    tokens = func.sum(func.coalesce(of.last_input, 0) + func.coalesce(of.last_output, 0))
    loose = func.sum(case((of.code == UsageCode.UNATTRIBUTED.value, 1), else_=0))
    query = (
        select(of.account, of.status, func.count(), tokens, loose, func.max(of.last_observation_at))
        .where(of.tenant == tenant)
        .group_by(of.account, of.status)
        .order_by(of.account)
    )
    found: dict[str, AccountTotal] = {}
    for account, status, runs, counted, unattributed, asked in connection.execute(query):
        known = found.get(account) or AccountTotal(account)
        latest = [one for one in (known.asked_at, None if asked is None else from_micros(asked)) if one is not None]
        found[account] = AccountTotal(
            account,
            {**known.runs, UsageStatus(status): runs},
            known.tokens + int(counted),
            known.unattributed + int(unattributed),
            max(latest, default=None),
        )
    return [*found.values()]


def iterate_account(
    connection: Connection, tenants: Sequence[str], account: str, start: Moment, end: Moment
) -> Iterator[AttributionRun]:
    """Iterate over the runs of an account that may have used tokens in a span of time, open ones first.

    `tenants` are those that share the account; others are judged by themselves.
    """
    first, last = to_micros(start), to_micros(end)
    for tenant in tenants:
        seq = 0
        while runs := _fetch_runs(connection, _OPEN_RUNS, tenant, account, last, seq, ATTRIBUTION_BLOCK):
            yield from runs
            seq = runs[-1].seq
        ended: int | None
        ended, seq = first, 0
        while runs := _fetch_runs(connection, _ENDED_RUNS, tenant, account, ended, seq, last, ATTRIBUTION_BLOCK):
            yield from runs
            ended, seq = runs[-1].ended_at, runs[-1].seq


def iterate_all(connection: Connection, tenant: str, framework: str | None = None) -> Iterator[UsageRecord]:
    """Iterate over every run, the oldest first."""
    query = select(_runs).where(_runs.c.tenant == tenant).order_by(_runs.c.seq).limit(BLOCK)
    if framework is not None:
        query = query.where(_runs.c.framework == framework)
    place = 0
    while rows := connection.execute(query.where(_runs.c.seq > place)).all():
        yield from map(record_of, rows)
        place = rows[-1].seq


def _fetch_runs(connection: Connection, statement: str, *values: str | int | None) -> list[AttributionRun]:
    text = statement if connection.dialect.name == "sqlite" else statement.replace("?", "%s")
    return [AttributionRun._make(row) for row in connection.exec_driver_sql(text, values)]


# Names of our own table; values are bound.
_SELECT_RUNS = f"SELECT {', '.join(AttributionRun._fields)} FROM usage_runs WHERE tenant = ? AND account = ?"  # noqa: S608
_OPEN_RUNS = (
    f"{_SELECT_RUNS} AND ended_at IS NULL AND (started_at IS NULL OR started_at < ?) AND seq > ? ORDER BY seq LIMIT ?"
)
_ENDED_RUNS = (
    f"{_SELECT_RUNS} AND (ended_at, seq) > (?, ?) AND (started_at IS NULL OR started_at < ?) "
    "ORDER BY ended_at, seq LIMIT ?"
)
