"""What waits for a person, counted: for the menu beside every page, and for the first sentence of the home page."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from meruit.contracts import records as contracts
from meruit.events import records as events
from meruit.gate import records as agent_runs
from meruit.model.access import Scope
from meruit.model.contract import ContractState
from meruit.model.usage import UsageStatus
from meruit.review.label import ReviewRecord
from meruit.review.service import Reviews
from meruit.store.lru import LruCache
from meruit.store.store import Store
from meruit.usage import records as usage

KEPT = timedelta(seconds=5)
"""The menu may be so much behind; the page itself never is."""
MAX_KEPT = 1_000
MOST = 1_000
"""Each kind is counted up to this number."""
OPEN_REVIEWS = 50
"""Reviews that are searched for one that waits: the newest."""
STUCK_FOR = timedelta(days=7)
"""An agent run that failed or began to wait longer ago is not shown as waiting."""


@dataclass(frozen=True, slots=True)
class WaitingCounts:
    """How many of each kind wait for a person."""

    holds: int = 0
    """Held and disputed contracts."""
    warnings: int = 0
    """Usage runs that do not match the provider's count."""
    reviews: int = 0
    """Reviews that still need labels."""
    labels: int = 0
    """The labels that these reviews need."""
    letters: int = 0
    """Events that no webhook took."""
    webhooks: int = 0
    """Webhooks with such events."""
    runs: int = 0
    """Agent runs that wait for a value, or failed within the last week."""

    @property
    def total(self) -> int:
        """Things that the home page lists."""
        return self.holds + self.warnings + self.reviews + self.webhooks + self.runs

    def at(self, path: str) -> int:
        """The number beside a line of the menu."""
        beside = {
            "/": self.total,
            "/holds": self.holds,
            "/usage": self.warnings,
            "/reviews": self.labels,
            "/webhooks": self.letters,
            "/agent-runs": self.runs,
        }
        return beside.get(path, 0)


NOTHING = WaitingCounts()


def count_waiting(store: Store, tenant: str, now: datetime) -> WaitingCounts:
    """Count what waits; as it was a few seconds ago where it was counted then."""
    key = (store.signer.vkey, tenant)
    known = _counted.get(key)
    if known is not None and abs(now - known[0]) < KEPT:
        return known[1]
    with store.database.reading() as connection:
        found = _count(connection, store, tenant, now)
    _counted.put(key, (now, found))
    return found


def forget_counts(store: Store, tenant: str) -> None:
    """Count again for the next page: an act changed something."""
    _counted.remove((store.signer.vkey, tenant))


_counted = LruCache[tuple[str, str], tuple[datetime, WaitingCounts]](MAX_KEPT)


def missing_labels(review: ReviewRecord) -> int:
    """How many labels a review still needs."""
    return max(0, review.cases * review.terms.per_case - review.labels)


def _count(connection: Connection, store: Store, tenant: str, now: datetime) -> WaitingCounts:
    states = contracts.count_by_state(connection, Scope(tenant))
    missing = [missing_labels(one) for one in Reviews(store, tenant).page(limit=OPEN_REVIEWS)]
    hooks = events.list_webhooks(connection, tenant, after=None, limit=OPEN_REVIEWS)
    letters = [len(events.list_dead_letters(connection, tenant, one.id, after=0, limit=MOST)) for one in hooks]
    return WaitingCounts(
        holds=states.get(ContractState.VERIFICATION_PENDING, 0) + states.get(ContractState.DISPUTED, 0),
        warnings=usage.count_up_to(connection, tenant, UsageStatus.WARNING, MOST),
        reviews=sum(one > 0 for one in missing),
        labels=sum(missing),
        letters=sum(letters),
        webhooks=sum(one > 0 for one in letters),
        runs=agent_runs.count_stuck(connection, tenant, now - STUCK_FOR, MOST),
    )
