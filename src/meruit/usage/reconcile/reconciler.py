"""Reconcile usage: request the providers' counts once for many runs, and record an observation of each run."""

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
from meruit.usage.store.observe_now import ObserveNow

__all__ = ["Account", "AccountSummary", "ReconcileSummary", "Reconciler"]

_NO_FILTER = UsageRunFilter()
LEASE = timedelta(minutes=3)
"""How long a lease on an account lasts; it is renewed while requests run, and expires if the reconciler dies."""


class ReconcileSummary(Record, frozen=True):
    """The result of one round over all accounts."""

    accounts: tuple[AccountSummary, ...]
    statuses: dict[UsageStatus, int]
    """How many observed runs have each status."""


class Reconciler:
    """Reconciles the due runs of all accounts."""

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
        self, run_filter: UsageRunFilter = _NO_FILTER, watch: Watch = lambda _about, _message: None
    ) -> ReconcileSummary:
        """Reconcile all due runs once; a single run is observed whether it is due or not. Raises NotFound."""
        if run_filter.run_id is not None and run_filter.tenant is not None:
            await self._store.recorder.record(ObserveNow(run_filter.tenant, [run_filter.run_id]))
        statuses: Counter[UsageStatus] = Counter()
        summaries = [
            await self._reconcile_account(tenant, name, run_filter, statuses, watch)
            for tenant, name in await self._accounts_due(run_filter)
        ]
        return ReconcileSummary(tuple(summaries), dict(statuses))

    async def _accounts_due(self, run_filter: UsageRunFilter) -> list[tuple[str, str]]:
        """The tenants and accounts with due runs, or with a new key that runs may wait for."""
        now = to_micros(self._clock())
        fingerprints = {one.name: one.fingerprint for one in self._accounts.values()}
        due = await read_in_thread(self._store, partial(accounts_due, now=now, run_filter=run_filter))
        with_new_key = await read_in_thread(
            self._store, partial(accounts_with_new_key, fingerprints=fingerprints, run_filter=run_filter)
        )
        return sorted({*due, *with_new_key})

    async def _reconcile_account(
        self, tenant: str, name: str, run_filter: UsageRunFilter, statuses: Counter[UsageStatus], watch: Watch
    ) -> AccountSummary:
        account = self._accounts.get(name)
        if account is None:
            known = ", ".join(self._accounts) or "none"
            trouble = f"account {name!r} is not in usage.accounts of the settings; configured: {known}"
            return AccountSummary(tenant, name, trouble=trouble)
        lease = _Lease(self._store, tenant, name, self._owner)
        reconciliation: AccountReconciliation | None = None
        try:
            async with lease:
                await self._store.recorder.record(
                    ChangeCredential(tenant=tenant, account=name, fingerprint=account.fingerprint)
                )
                # Runs that waited for a new key are due from now on.
                account_query = AccountQuery(
                    tenant=tenant, account=name, now=to_micros(self._clock()), run_filter=run_filter
                )
                reconciliation = AccountReconciliation(
                    self._store, account, account_query, self._rules, watch, lease.renew
                )
                await reconciliation.run()
                return reconciliation.summary
        except AccountLeaseConflict as conflict:
            summary = AccountSummary(tenant, name) if reconciliation is None else reconciliation.summary
            return msgspec.structs.replace(summary, trouble=str(conflict))
        finally:
            if reconciliation is not None:
                statuses.update(reconciliation.statuses)

    def _clock(self) -> datetime:
        return self._store.surroundings.clock()


class _Lease:
    """The lease on one account, so that two reconcilers do not send the same requests."""

    def __init__(self, store: Store, tenant: str, account: str, owner: str) -> None:
        self._store = store
        self._tenant, self._account, self._owner = tenant, account, owner
        self._since = store.surroundings.clock()

    async def __aenter__(self) -> None:
        await self._acquire()

    async def __aexit__(self, *_: object) -> None:
        await self._store.recorder.record(
            ReleaseAccountLease(tenant=self._tenant, account=self._account, owner=self._owner)
        )

    async def renew(self) -> None:
        """Renew the lease once half of its time is over; raises AccountLeaseConflict."""
        if self._store.surroundings.clock() - self._since >= LEASE / 2:
            await self._acquire()

    async def _acquire(self) -> None:
        self._since = self._store.surroundings.clock()
        lease = AcquireAccountLease(
            tenant=self._tenant, account=self._account, owner=self._owner, seconds=LEASE.total_seconds()
        )
        if not await self._store.recorder.record(lease):
            minutes = LEASE // timedelta(minutes=1)
            raise AccountLeaseConflict(
                f"another reconciler holds the lease on account {self._account!r}; retry in {minutes} minutes"
            )
