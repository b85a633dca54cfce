"""How the outcomes of the last 30 days ended: counted once for every page that says so."""

from collections import Counter
from datetime import datetime, timedelta

from sqlalchemy import Connection

from meruit.console.page import PageRequest
from meruit.evaluations.summary import Rate
from meruit.model.verdict import Bounds, Verdict
from meruit.outcomes import records as outcomes
from meruit.outcomes.records import DailyVerdicts
from meruit.reports.statistics import wilson
from meruit.store import log
from meruit.store.lru import LruCache

DAYS = 30
KEPT = timedelta(seconds=5)
MAX_KEPT = 1_000


def count_days(connection: Connection, request: PageRequest, now: datetime) -> DailyVerdicts:
    """The verdicts of each day; counted again when something was recorded, but not more often than KEPT."""
    service, size = request.service, log.log_size(connection)
    key = (service.store.signer.vkey, request.caller.tenant)
    known = _daily.get(key)
    if known is not None and known[1].date() == now.date():
        # The first outcome is shown at once: who recorded it waits for it.
        is_fresh = bool(known[2].days) and now - known[1] < KEPT
        if known[0] == size or is_fresh:
            return known[2]
    counted = outcomes.count_by_day(connection, request.caller.scope, now, DAYS)
    _daily.put(key, (size, now, counted))
    return counted


_daily = LruCache[tuple[str, str], tuple[int, datetime, DailyVerdicts]](MAX_KEPT)


def sum_verdicts(daily: DailyVerdicts) -> dict[str, int]:
    """The number of each verdict in the whole time."""
    total: Counter[str] = Counter()
    for one in daily.days.values():
        total.update(one)
    return {verdict.value: total[verdict.value] for verdict in Verdict}


def rate_of(daily: DailyVerdicts) -> Rate:
    """The pass rate of the time; what could not be judged is outside of it."""
    total = sum_verdicts(daily)
    passed, failed = total["pass"], total["partial"] + total["fail"]
    open_, judged = total["inconclusive"] + total["error"], passed + failed
    every = judged + open_
    return Rate(
        every,
        passed,
        failed,
        open_,
        passed / judged if judged else None,
        wilson(passed / judged, judged) if judged else None,
        Bounds(passed / every, (passed + open_) / every) if every else None,
    )
