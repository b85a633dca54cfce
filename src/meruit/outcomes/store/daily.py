"""Counting outcomes by day and verdict, among the newest ones."""

from datetime import date, datetime, timedelta

from sqlalchemy import Connection, func, select

from meruit.model.access import Scope
from meruit.model.record import Record
from meruit.model.time import from_micros, to_micros
from meruit.store import tables

MAX_COUNTED = 5_000
"""Outcomes that one count looks at, so that it takes as long on a million as on a thousand."""
_DAY_MICROS = 86_400 * 1_000_000


class DailyVerdicts(Record, frozen=True):
    """How many outcomes of each verdict were recorded on each day."""

    days: dict[date, dict[str, int]]
    """Only days with outcomes."""
    is_whole: bool
    """Whether all outcomes of the time are counted; else only the newest MAX_COUNTED."""


def count_by_day(connection: Connection, scope: Scope, now: datetime, days: int = 30) -> DailyVerdicts:
    """Count the outcomes of the last days, by the day in UTC and the latest verdict."""
    table = tables.outcomes
    newest = (
        select(table.c.created_at, table.c.verdict)
        .where(table.c.tenant == scope.tenant)
        .order_by(table.c.seq.desc())
        .limit(MAX_COUNTED)
    )
    if scope.only_own:
        newest = newest.where(table.c.agent_id == (scope.agent_id or ""))
    inside = newest.subquery()
    first = now.date() - timedelta(days=days - 1)
    begin = to_micros(datetime(first.year, first.month, first.day, tzinfo=now.tzinfo))
    day = inside.c.created_at - inside.c.created_at % _DAY_MICROS
    query = (
        select(day, inside.c.verdict, func.count()).where(inside.c.created_at >= begin).group_by(day, inside.c.verdict)
    )
    found: dict[date, dict[str, int]] = {}
    for start, verdict, number in connection.execute(query):
        found.setdefault(from_micros(int(start)).date(), {})[verdict] = int(number)
    counted = sum(sum(one.values()) for one in found.values())
    return DailyVerdicts(found, counted < MAX_COUNTED)
