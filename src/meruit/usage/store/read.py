"""Read usage: one run, a page of runs, a run's observations, the runs of an account, and all runs in blocks."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Column, Connection, Select, func, select

from meruit.errors import NotFound
from meruit.model.metering import UsageRecord
from meruit.model.record import Record
from meruit.model.time import from_micros, to_micros
from meruit.model.usage import Moment, Observation, UsageCode, UsageStatus
from meruit.store import tables
from meruit.store.database import MAX_PAGE
from meruit.store.sorting import ListOrder, SortedPage, SortKey, read_sorted, without_index
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
    given = {name for name, value in wanted.items() if value is not None}
    # Other indexes lead to the rows, and reading those takes longer than all entries of this index.
    covered = given <= set(COVERED_FILTERS) and order.by in COVERED_SORTS and connection.dialect.name == "sqlite"
    query = _fitting(tenant, wanted, COVERED_FILTERS if covered else ())
    return read_sorted(connection, query, SORTS, order, limit).convert(record_of)


COVERED_FILTERS, COVERED_SORTS = ("status", "account", "code"), ("run_tokens", "tokens", "ended")
"""What the index `usage_runs_by_status` holds."""


# Any: a query of SQLAlchemy has untyped rows.
def _fitting(tenant: str, wanted: Mapping[str, str | None], unsought: Sequence[str] = ()) -> Select[Any]:
    """The runs that fit; no index is sought for the names `unsought`, except that of the status."""
    given = [
        (without_index(_runs.c[name]) if name in unsought and name != "status" else _runs.c[name]) == str(value)
        for name, value in wanted.items()
        if value is not None
    ]
    return select(_runs).where(_runs.c.tenant == tenant, *given)


def count_by_status(connection: Connection, tenant: str) -> dict[UsageStatus, int]:
    """How many runs have each status."""
    of = tables.usage_account_totals.c
    return {UsageStatus(status): runs for status, runs in _count_runs(connection, tenant, of.status)}


def count_up_to(connection: Connection, tenant: str, status: UsageStatus, most: int) -> int:
    """How many runs have a status, counted up to a number."""
    found = select(_runs.c.seq).where(_runs.c.tenant == tenant, _runs.c.status == status.value).limit(most)
    return int(connection.execute(select(func.count()).select_from(found.subquery())).scalar_one())


def count_by_account(connection: Connection, tenant: str) -> dict[str, int]:
    """How many runs each account has, by name."""
    return dict(_count_runs(connection, tenant, tables.usage_account_totals.c.account))


def _count_runs(connection: Connection, tenant: str, by: Column[str]) -> Iterator[tuple[str, int]]:
    """Count the runs by a column of the totals; no run is read."""
    of = tables.usage_account_totals.c
    query = select(by, func.sum(of.runs)).where(of.tenant == tenant, of.runs > 0).group_by(by).order_by(by)
    return ((name, int(runs)) for name, runs in connection.execute(query))


def sum_accounts(connection: Connection, tenant: str) -> list[AccountTotal]:
    """What each account adds up to, by name; reads no run but the one of each account that was observed last."""
    of = tables.usage_account_totals.c
    query = select(of.account, of.status, of.runs, of.tokens, of.unattributed).where(of.tenant == tenant, of.runs > 0)
    rows: dict[str, list[Any]] = {}
    for row in connection.execute(query.order_by(of.account, of.status)):
        rows.setdefault(row.account, []).append(row)
    return [
        AccountTotal(
            account,
            {UsageStatus(one.status): one.runs for one in several},
            sum(one.tokens for one in several),
            sum(one.unattributed for one in several),
            _last_observation_of(connection, tenant, account),
        )
        for account, several in rows.items()
    ]


def _last_observation_of(connection: Connection, tenant: str, account: str) -> datetime | None:
    of = _runs.c
    query = select(func.max(of.last_observation_at)).where(of.tenant == tenant, of.account == account)
    asked = connection.execute(query).scalar()
    return None if asked is None else from_micros(asked)


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
