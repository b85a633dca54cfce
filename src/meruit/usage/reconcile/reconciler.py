"""What providers counted, asked once for many runs; each look is kept once, whoever else looks, and whoever dies."""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial

import msgspec

from meruit.errors import AccountLeaseConflict
from meruit.model.record import Record
from meruit.model.time import to_micros
from meruit.model.usage import UsagePolicy, UsageStatus
from meruit.store.store import Store
from meruit.usage.reconcile.account import (
    Account,
    AccountReconciliation,
    AccountSummary,
    ReconcileRules,
    Watch,
    read_in_thread,
)
from meruit.usage.schedule import Schedule
from meruit.usage.store.accounts import AcquireAccountLease, ChangeCredential, ReleaseAccountLease
from meruit.usage.store.due import AccountQuery, UsageRunFilter, accounts_due, accounts_with_new_key
from meruit.usage.store.write import ObserveNow

__all__ = ["Account", "AccountSummary", "ReconcileSummary", "Reconciler"]

LEASE = timedelta(minutes=3)
"""How long one may ask an account alone, begun anew while it is asked; so long those wait who find one that died."""


class ReconcileSummary(Record, frozen=True):
    """What came of one round."""

    accounts: tuple[AccountSummary, ...]
    statuses: dict[UsageStatus, int]
    """Of the runs that were looked at."""


class Reconciler:
    """Asks the accounts, and keeps what they say of every run that is due."""

    def __init__(
        self,
        store: Store,
        accounts: Mapping[str, Account],
        *,
        policy: UsagePolicy = UsagePolicy(),  # noqa: B008 - frozen
        schedule: Schedule = Schedule(),  # noqa: B008 - frozen
    ) -> None:
        self._store = store
        self._accounts = accounts
        self._rules = ReconcileRules(policy, schedule)
        self._owner = store.surroundings.new_id("rec")

    async def run_once(
        self, choice: UsageRunFilter = UsageRunFilter(), watch: Watch = lambda _about, _said: None
    ) -> ReconcileSummary:
        """One round over all that is due; a single run is looked at whether it is due or not. Raises NotFound."""
        if choice.run_id is not None and choice.tenant is not None:
            await self._store.recorder.record(ObserveNow(choice.tenant, [choice.run_id]))
        statuses: Counter[UsageStatus] = Counter()
        passed = [
            await self._reconcile_account(*place, choice, statuses, watch)
            for place in await self._accounts_to_ask(choice)
        ]
        return ReconcileSummary(tuple(passed), dict(statuses))

    async def _accounts_to_ask(self, choice: UsageRunFilter) -> list[tuple[str, str]]:
        """Tenants and accounts that are to be asked: something is due there, or may be by another key."""
        now = to_micros(self._clock())
        fingerprints = {one.name: one.fingerprint for one in self._accounts.values()}
        due = await read_in_thread(self._store, partial(accounts_due, now=now, choice=choice))
        rekeyed = await read_in_thread(
            self._store, partial(accounts_with_new_key, fingerprints=fingerprints, choice=choice)
        )
        return sorted({*due, *rekeyed})

    async def _reconcile_account(
        self, tenant: str, name: str, choice: UsageRunFilter, statuses: Counter[UsageStatus], watch: Watch
    ) -> AccountSummary:
        account = self._accounts.get(name)
        if account is None:
            known = ", ".join(self._accounts) or "none is"
            trouble = f"no account is named {name!r} under usage.accounts of the settings ({known})"
            return AccountSummary(tenant, name, trouble=trouble)
        lease = _Lease(self._store, tenant, name, self._owner)
        turn: AccountReconciliation | None = None
        try:
            async with lease:
                await self._store.recorder.record(ChangeCredential(tenant, name, account.fingerprint))
                # Whoever waited for another key is due from then on.
                asked = AccountQuery(tenant, name, to_micros(self._clock()), choice)
                turn = AccountReconciliation(self._store, account, asked, self._rules, watch, lease.renew)
                await turn.run()
                return turn.summary
        except AccountLeaseConflict as taken:
            passed = AccountSummary(tenant, name) if turn is None else turn.summary
            return msgspec.structs.replace(passed, trouble=str(taken))
        finally:
            if turn is not None:
                statuses.update(turn.statuses)

    def _clock(self) -> datetime:
        return self._store.surroundings.clock()


class _Lease:
    """An account to oneself: two that ask at once would double what is asked, and nothing else."""

    def __init__(self, store: Store, tenant: str, account: str, owner: str) -> None:
        self._store = store
        self._tenant, self._account, self._owner = tenant, account, owner
        self._since = store.surroundings.clock()

    async def __aenter__(self) -> None:
        await self._acquire()

    async def __aexit__(self, *_: object) -> None:
        await self._store.recorder.record(ReleaseAccountLease(self._tenant, self._account, self._owner))

    async def renew(self) -> None:
        """Have it for a while longer, once half of the time is over; raises AccountTaken."""
        if self._store.surroundings.clock() - self._since >= LEASE / 2:
            await self._acquire()

    async def _acquire(self) -> None:
        self._since = self._store.surroundings.clock()
        mine = AcquireAccountLease(self._tenant, self._account, self._owner, LEASE.total_seconds())
        if not await self._store.recorder.record(mine):
            minutes = LEASE // timedelta(minutes=1)
            raise AccountLeaseConflict(
                f"another reconciler asks it, or died less than {minutes} minutes ago; try again then"
            )
