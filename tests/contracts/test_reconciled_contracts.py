"""From the provider's count to the payment: a reconciler observes, and the contract is settled or reversed."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.test_token_contracts import TERMS, TokenDesk
from tests.usage.metering import BEGUN, ENDED, metered

from meruit.errors import InvalidUsage
from meruit.model.contract import ContractState
from meruit.model.metering import (
    AttributionKey,
    AttributionKind,
    CallState,
    MeteredCall,
    MeteredStep,
    Page,
    UsageRow,
    Window,
)
from meruit.model.usage import Tokens, UsageCode, UsageStatus
from meruit.store.location import Location
from meruit.store.store import ClockAndEntropy, Store
from meruit.usage.followers import UsageWrite
from meruit.usage.reconcile.reconciler import Account, Reconciler
from meruit.usage.store.record_runs import RecordRun


class Meter:
    """A provider that counts one call, in the attribution key of the run."""

    kinds = frozenset({AttributionKind.KEY})
    bucket = timedelta(minutes=1)
    longest = timedelta(days=1)

    def __init__(self, clock: Any) -> None:
        self.clock = clock
        self.tokens = Tokens(100_000, 10_000, 1)

    async def usage(self, window: Window) -> AsyncIterator[Page]:
        row = UsageRow(BEGUN, BEGUN + self.bucket, self.tokens, "m", key="k")
        yield Page(self.clock(), (row,) if window.start <= BEGUN < window.end else (), raw=repr(self.tokens).encode())

    async def calls(self, ids: Sequence[str]) -> AsyncIterator[Page]:
        for _ in ids:
            yield Page(self.clock())

    async def costs(self, window: Window) -> AsyncIterator[Page]:
        if window.end < window.start:
            yield Page(self.clock())


class Reconciled:
    """A desk whose contracts pay for tokens, at a clock that is set by hand."""

    def __init__(self, folder: Path) -> None:
        self.now = ENDED
        self.store = Store.open(Location(folder), ClockAndEntropy(clock=self.clock))
        self.desk = TokenDesk(self.store, "default")
        self.meter = Meter(self.clock)

    def clock(self) -> datetime:
        return self.now

    def worked(self) -> None:
        self.desk.complete(TERMS)
        call = MeteredCall(BEGUN, "m", None, CallState.ABORTED)
        run = metered("r", (MeteredStep("s0", BEGUN, ENDED, calls=(call,)),), contract_id=self.desk.contract_id)
        self.store.recorder.write(UsageWrite("default", "tester", RecordRun("default", "tester", run)))

    def after(self, minutes: int, *, self_reported: bool = False, shared_by: tuple[str, ...] = ()) -> ContractState:
        self.now += timedelta(minutes=minutes)
        account = Account("main", "openai", self.meter, self_reported=self_reported, shared_by=shared_by)
        asyncio.run(Reconciler(self.store, {"main": account}).run_once())
        return self.desk.contract.state


@pytest.fixture
def reconciled(tmp_path: Path) -> Iterator[Reconciled]:
    made = Reconciled(tmp_path)
    yield made
    made.store.close()


def test_an_observation_that_verifies_pays_one_that_differs_reverses(reconciled: Reconciled) -> None:
    reconciled.worked()
    assert reconciled.after(15) is ContractState.VERIFICATION_PENDING
    assert reconciled.after(60) is ContractState.SETTLED
    assert reconciled.desk.bill.tokens == 450_000
    reconciled.meter.tokens = Tokens(200_000, 10_000, 1)
    assert reconciled.after(24 * 60) is ContractState.VERIFICATION_PENDING
    assert reconciled.desk.paid() == 0
    assert reconciled.after(60) is ContractState.SETTLED
    assert reconciled.desk.bill.tokens == 750_000


def test_self_reported_usage_is_never_verified_and_never_paid(reconciled: Reconciled) -> None:
    reconciled.worked()
    for minutes in (15, 60, 24 * 60):
        assert reconciled.after(minutes, self_reported=True) is ContractState.VERIFICATION_PENDING
    verdict = reconciled.desk.run().verdict
    assert (verdict.status, verdict.code) != (UsageStatus.VERIFIED, UsageCode.STABLE)
    assert verdict.assurance == "D"


def record_of_neighbour(reconciled: Reconciled, sharers: tuple[str, ...]) -> None:
    """Another tenant records a run under the same attribution key and at the same time."""
    call = MeteredCall(BEGUN, "m", Tokens(50, 5, 1))
    run = metered("theirs", (MeteredStep("s0", BEGUN, ENDED, calls=(call,)),))
    write = RecordRun("neighbour", "them", run, sharers=sharers)
    reconciled.store.recorder.write(UsageWrite("neighbour", "them", write))


def test_what_another_tenant_records_moves_no_money(reconciled: Reconciled) -> None:
    reconciled.worked()
    reconciled.after(15)
    assert reconciled.after(60) is ContractState.SETTLED
    paid, seen = reconciled.desk.paid(), reconciled.desk.run()
    record_of_neighbour(reconciled, ())
    assert reconciled.desk.run() == seen
    for minutes in (15, 60, 24 * 60, 24 * 60):
        assert reconciled.after(minutes) is ContractState.SETTLED
    assert reconciled.desk.paid() == paid
    assert reconciled.desk.run().verdict.status is UsageStatus.VERIFIED


def test_tenants_that_share_an_account_are_counted_together(reconciled: Reconciled) -> None:
    both = ("default", "neighbour")
    reconciled.worked()
    reconciled.after(15, shared_by=both)
    assert reconciled.after(60, shared_by=both) is ContractState.SETTLED
    record_of_neighbour(reconciled, both)
    # The count of the provider is now for two runs, and this one has no count of its own to compare.
    assert reconciled.after(60, shared_by=both) is ContractState.VERIFICATION_PENDING
    assert reconciled.desk.paid() == 0


def test_a_call_that_another_tenant_names_stays_free(reconciled: Reconciled) -> None:
    def name_call(tenant: str, sharers: tuple[str, ...] = ()) -> None:
        call = MeteredCall(BEGUN, "m", Tokens(50, 5, 1), id="call-1")
        by_calls = AttributionKey(AttributionKind.REQUESTS)
        run = metered(f"run-{tenant}", (MeteredStep("s0", BEGUN, ENDED, calls=(call,)),), attribution_key=by_calls)
        reconciled.store.recorder.write(RecordRun(tenant, "me", run, sharers=sharers))

    name_call("one")
    name_call("two")
    with pytest.raises(InvalidUsage):
        name_call("three", ("one", "three"))
