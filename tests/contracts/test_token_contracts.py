"""Contracts that pay for tokens: paid when verified, reversed when not, and paid again after that."""

import re
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update
from tests.contracts.test_marketplace import WORDS, Desk
from tests.faults.tampering import Forgery, no_sleep
from tests.usage.metering import BEGUN, ENDED, POLICY, metered
from tests.usage.test_cost import a_quote

from meruit.audit.bundle import read, unpack
from meruit.audit.export import export
from meruit.audit.verify.outcome import verify_bundle
from meruit.contracts.lifecycle import Decision
from meruit.contracts.store import read as contracts
from meruit.contracts.store.read import ContractSnapshot
from meruit.contracts.transitions import (
    AwardContract,
    DisputeContract,
    ReleaseContract,
    ResolveDispute,
    ReverseContract,
    SettleContract,
    VoidContract,
)
from meruit.errors import AuditStep, RecordTampered, RulesContradictTerms, WrongState
from meruit.governance.dossier import HandedIn
from meruit.log.commitment import SALT_BYTES
from meruit.model.access import Scope
from meruit.model.contract import Contract, ContractState, Escrow
from meruit.model.metering import CallState, MeteredCall, MeteredStep, PriceQuote, UsageRecord
from meruit.model.money import Bill
from meruit.model.usage import Assurance, Observation, Tokens, UsagePolicy, UsageStatus
from meruit.outcomes.store.erase import erase
from meruit.store import tables
from meruit.store.store import Store
from meruit.usage.followers import UsageWrite
from meruit.usage.store import read as usage_reading
from meruit.usage.store.by_contract import find_by_contract
from meruit.usage.store.record_observations import RecordObservations, RunObservation
from meruit.usage.store.record_runs import RecordRun

TERMS = {
    "cpc_rate": 1,
    "token_rates": {"input_per_million": 3, "output_per_million": 15},
    "max_token_cost": 2,
    "platform_fee_rate": "0.1",
}
AT_COST = {"cpc_rate": 1, "tokens_at_cost": True, "max_token_cost": 2}
FIRST, SECOND = Tokens(100_000, 10_000), Tokens(200_000, 10_000)
"""Worth 0.45 and 0.75."""
SALT = b"s" * SALT_BYTES
SETTLED, PENDING = ContractState.SETTLED, ContractState.VERIFICATION_PENDING


class TokenDesk(Desk):
    """A marketplace whose contracts pay for tokens, and the observations of these."""

    contract_id = ""
    minutes = 0
    tokens = FIRST

    def awarded(self, terms: dict[str, Any], **parts: Any) -> str:
        self.contract_id = self.store.surroundings.new_id("con")
        work = self.publish(terms=terms, success_criteria={"criteria": [{**WORDS, "bonus": None}]}, **parts)
        self.write(AwardContract(self.request, self.contract_id, work.id, "a1"))
        return self.contract_id

    def complete(self, terms: dict[str, Any] | None = None) -> ContractSnapshot:
        return self.write(self.drafted(self.awarded(TERMS if terms is None else terms)))

    def record(self, run_id: str = "r", quotes: tuple[PriceQuote, ...] = (), contract_id: str | None = None) -> None:
        # Broken off, so that only the provider knows what it used.
        call = MeteredCall(BEGUN, "m", None, CallState.ABORTED)
        named = self.contract_id if contract_id is None else contract_id
        run = metered(run_id, (MeteredStep("s0", calls=(call,)),), contract_id=named)
        self.followed(RecordRun(self.tenant, "tester", run, quotes))

    def observe(
        self, tokens: Tokens, after: int = 60, run_id: str = "r", policy: UsagePolicy = POLICY, **more: Any
    ) -> UsageRecord:
        self.minutes += after
        at = ENDED + timedelta(minutes=self.minutes)
        seen = Observation(
            f"{run_id}{at}", at, tokens, {"s0": tokens}, assurance=Assurance.ATTRIBUTION_KEY, digest="d", **more
        )
        (record,) = self.followed(RecordObservations(self.tenant, [RunObservation(run_id, seen)], policy))
        assert isinstance(record, UsageRecord)
        return record

    def verified(self, tokens: Tokens = FIRST, run_id: str = "r") -> UsageRecord:
        self.observe(tokens, run_id=run_id)
        return self.observe(tokens, run_id=run_id)

    # Any: each write has an answer of its own kind.
    def followed(self, write: Any) -> Any:
        answer = self.store.recorder.write(UsageWrite(self.tenant, "reconciler", write))
        assert self.broken() == []
        return answer

    def happens(self, move: str) -> None:
        """One more observation, or a transition."""
        self.tokens = Tokens(self.tokens.input + 1000, 10_000) if move == "more" else self.tokens
        moves = {
            "dispute": DisputeContract(self.request, self.contract_id, "no"),
            "uphold": ResolveDispute(self.request, self.contract_id, Decision.UPHOLD, "yes"),
            "settle": SettleContract(self.request, self.contract_id),
            "reverse": ReverseContract(self.request, self.contract_id, "back"),
        }
        if move in moves:
            self.write(moves[move])
        else:
            self.observe(Tokens() if move == "zero" else self.tokens, after=5 if move == "soon" else 60)

    def standing(self) -> ContractSnapshot:
        with self.store.database.reading() as connection:
            return contracts.load_snapshot(connection, Scope(self.tenant), self.contract_id)

    @property
    def reason(self) -> tuple[str, ...]:
        """Code and subject of the reason to hold that the contract shows."""
        return self.why_held(self.contract_id)

    @property
    def contract(self) -> Contract:
        return self.standing().contract

    @property
    def bill(self) -> Bill:
        found = self.standing().bill
        assert found is not None
        return found

    def run(self, run_id: str = "r") -> UsageRecord:
        with self.store.database.reading() as connection:
            return usage_reading.find(connection, self.tenant, run_id)

    def bundle(self) -> bytes:
        outcome_id = self.contract.outcome_id
        assert outcome_id is not None
        return export(self.store, Scope(self.tenant), outcome_id, sleep=no_sleep)

    def audited(self) -> tuple[int, ...]:
        """Settlements that an auditor recomputes from the bundle alone, of how many, and the transfers."""
        found = verify_bundle(self.bundle(), key=self.store.signer.verifier)
        assert found.failed is None, [one.message for one in found.steps]
        (message,) = (one.message for one in found.steps if one.step is AuditStep.SETTLEMENT)
        return tuple(map(int, re.findall(r"\d+", message)))


@pytest.fixture
def desk(shared: Store, tenant: str) -> TokenDesk:
    return TokenDesk(shared, tenant)


def test_tokens_are_paid_when_they_are_verified_and_not_before(desk: TokenDesk) -> None:
    waiting = desk.complete()
    assert (waiting.contract.state, desk.reason) == (PENDING, ("usage_missing",))
    assert waiting.contract.hold_micros == 3_000_000
    desk.record()
    assert desk.reason == ("usage_unverified", "r")
    desk.observe(FIRST)
    assert (desk.reason, desk.paid()) == (("usage_unverified", "r"), 0)
    desk.observe(FIRST)
    assert (desk.contract.state, desk.contract.escrow) == (SETTLED, Escrow.PAID)
    assert (desk.bill.base, desk.bill.tokens, desk.bill.total, desk.bill.released) == (
        *(1_000_000, 450_000, 1_450_000, 1_550_000),
    )
    assert desk.paid() == desk.bill.payout == 1_305_000
    assert [line.reason for line in desk.bill.lines] == ["completed", "run r: 100,000 in, 10,000 out"]
    assert desk.run().ledger.settled == Decimal("0.45")
    assert desk.audited() == (1, 1, 2)


def test_tokens_that_are_verified_already_are_paid_at_once(desk: TokenDesk) -> None:
    desk.awarded(TERMS)
    desk.record()
    desk.verified()
    assert desk.contract.state is ContractState.AWARDED
    assert desk.write(desk.drafted(desk.contract_id)).contract.state is SETTLED


def test_withdrawn_tokens_are_reversed_and_paid_when_verified_again(desk: TokenDesk) -> None:
    desk.complete()
    desk.record()
    desk.verified()
    desk.observe(SECOND)
    held = desk.contract
    assert (held.state, held.escrow, held.settlement) == (PENDING, Escrow.HELD, 0)
    assert (desk.reason, desk.paid()) == (("usage_unverified", "r"), 0)
    assert desk.events_of("contract.reversed")[0]["reason"] == held.hold_reason
    desk.observe(SECOND)
    assert (desk.contract.state, desk.contract.settlement, desk.contract.version) == (SETTLED, 2, 2)
    assert desk.bill.tokens == 750_000
    assert desk.run().ledger.settled == Decimal("0.75")
    assert desk.audited() == (2, 2, 4)
    desk.observe(Tokens(200_001, 10_000))
    desk.observe(Tokens(200_001, 10_000))
    assert (desk.contract.settlement, desk.contract.version) == (3, 3)


def test_imported_usage_is_not_paid_until_the_provider_confirms(desk: TokenDesk) -> None:
    desk.complete()
    desk.record()
    desk.observe(FIRST, reported_by="file")
    assert desk.observe(FIRST, reported_by="file").verdict.status is UsageStatus.VERIFIED
    imported = ("usage_not_payable", "r")
    assert (desk.contract.state, desk.reason, desk.paid()) == (PENDING, imported, 0)
    with pytest.raises(WrongState, match="file") as refused:
        desk.write(SettleContract(desk.request, desk.contract_id))
    assert refused.value.code == "usage_unverified"
    desk.observe(FIRST)
    assert desk.reason == imported, "one of the two that are compared is from a file"
    desk.observe(FIRST)
    assert (desk.contract.state, desk.bill.tokens) == (SETTLED, 450_000)
    desk.observe(FIRST, reported_by="file")
    assert (desk.contract.state, desk.contract.escrow, desk.paid()) == (PENDING, Escrow.HELD, 0)


def test_observations_too_close_together_pay_nothing(desk: TokenDesk) -> None:
    desk.complete()
    desk.record()
    often = UsagePolicy(interval_min=5)
    assert [desk.observe(FIRST, 5, policy=often).verdict.status for _ in range(2)][-1] is UsageStatus.VERIFIED
    assert (desk.reason, desk.paid()) == (("usage_not_payable", "r"), 0)
    desk.observe(FIRST)
    assert (desk.contract.state, desk.bill.tokens) == (SETTLED, 450_000)


def test_a_further_equal_observation_changes_nothing(desk: TokenDesk) -> None:
    desk.complete()
    desk.record()
    desk.verified()
    before = desk.contract
    desk.observe(FIRST, after=24 * 60)
    assert desk.contract == before
    assert len(desk.events_of("contract.settled")) == 1


def test_every_run_of_the_contract_must_be_verified(desk: TokenDesk) -> None:
    desk.complete()
    desk.record()
    desk.record("q")
    desk.verified()
    assert desk.reason == ("usage_unverified", "q")
    desk.verified(SECOND, "q")
    assert (desk.contract.state, desk.bill.tokens) == (SETTLED, 1_200_000)
    assert desk.run("q").ledger.settled == Decimal("0.75")


def test_a_run_that_is_recorded_later_reverses_the_payment(desk: TokenDesk) -> None:
    desk.complete()
    desk.record()
    desk.verified()
    desk.record("late")
    assert (desk.contract.state, desk.contract.escrow) == (PENDING, Escrow.HELD)
    desk.verified(FIRST, "late")
    assert (desk.contract.state, desk.bill.tokens) == (SETTLED, 900_000)


def test_runs_of_other_contracts_and_tenants_count_for_nothing(desk: TokenDesk, shared: Store) -> None:
    desk.complete()
    desk.record()
    desk.record("other", contract_id="con_nobody")
    desk.record("none", contract_id="")
    desk.record("sly", contract_id=f'x","contract_id":"{desk.contract_id}')
    TokenDesk(shared, f"{desk.tenant}x").record(contract_id=desk.contract_id)
    with shared.database.reading() as connection:
        found = [one.run.id for one in find_by_contract(connection, desk.tenant, desk.contract_id)]
    assert found == ["r"]
    desk.verified()
    assert desk.contract.state is SETTLED


def test_tokens_at_cost_wait_for_a_price_that_is_known(desk: TokenDesk) -> None:
    desk.complete(AT_COST)
    desk.record()
    desk.verified()
    assert desk.reason == ("price_unknown", "r")
    assert desk.run().ledger.settled is None
    desk.contract_id, desk.minutes = "", 0
    desk.complete(AT_COST)
    desk.record("priced", (a_quote(at=BEGUN, input="4", output="10"),))
    desk.verified(FIRST, "priced")
    assert desk.bill.tokens == 500_000
    assert desk.bill.usage[0].cost == Decimal("0.5")
    assert desk.audited()


def test_no_settle_or_release_pays_unverified_tokens(desk: TokenDesk) -> None:
    desk.complete()
    desk.record()
    for move in (
        SettleContract(desk.request, desk.contract_id),
        ReleaseContract(desk.request, desk.contract_id, "I trust them", SALT),
    ):
        with pytest.raises(WrongState, match="run r ") as refused:
            desk.store.recorder.write(move)
        assert refused.value.code == "usage_unverified"
    assert desk.paid() == 0
    assert desk.write(VoidContract(desk.request, desk.contract_id, "never counted")).contract.escrow is Escrow.RELEASED
    desk.verified()
    assert desk.contract.escrow is Escrow.RELEASED


def test_tokens_do_not_repay_what_a_person_reversed(desk: TokenDesk) -> None:
    desk.complete()
    desk.record()
    desk.verified()
    desk.write(ReverseContract(desk.request, desk.contract_id, "wrong agent"))
    desk.observe(SECOND)
    desk.observe(SECOND)
    assert (desk.contract.state, desk.contract.hold_reason) == (PENDING, "reversed: wrong agent")
    with pytest.raises(WrongState) as refused:
        desk.store.recorder.write(SettleContract(desk.request, desk.contract_id))
    assert refused.value.code == "already_settled"


def test_a_governance_hold_waits_for_a_person_and_for_tokens(desk: TokenDesk) -> None:
    long = "a text that is long enough to be recognised when another agent gives the very same answer " * 2
    desk.awarded(TERMS, input={"reference": long})
    held = desk.write(desk.drafted(desk.contract_id, HandedIn({"text": long}, {"duration_ms": 10})))
    assert desk.reason == ("governance", "reference_copy")
    desk.record()
    with pytest.raises(WrongState) as refused:
        desk.store.recorder.write(ReleaseContract(desk.request, desk.contract_id, "fine", SALT))
    assert refused.value.code == "usage_unverified"
    desk.verified()
    assert desk.contract.hold_reason == held.contract.hold_reason
    assert desk.write(ReleaseContract(desk.request, desk.contract_id, "fine", SALT)).contract.state is SETTLED
    desk.observe(SECOND)
    assert desk.contract.state is PENDING
    desk.observe(SECOND)
    assert (desk.contract.state, desk.bill.tokens) == (SETTLED, 750_000), "the release stands"
    assert desk.audited() == (2, 2, 4)


def test_on_request_terms_wait_for_tokens_and_the_request(desk: TokenDesk) -> None:
    settle = SettleContract(desk.request, "")
    desk.complete({**TERMS, "settle": "on_request"})
    desk.record()
    assert desk.contract.state is PENDING
    desk.verified()
    assert (desk.contract.state, desk.contract.hold_reason) == (ContractState.VERIFIED, "")
    desk.observe(SECOND)
    settle = msgspec.structs.replace(settle, contract_id=desk.contract_id)
    with pytest.raises(WrongState) as refused:
        desk.store.recorder.write(settle)
    assert refused.value.code == "usage_unverified"
    desk.observe(SECOND)
    assert desk.write(settle).contract.state is SETTLED
    desk.observe(FIRST)
    assert desk.reason == ("usage_unverified", "r")
    desk.observe(SECOND)
    desk.observe(SECOND)
    assert (desk.contract.state, desk.contract.settlements) == (ContractState.VERIFIED, 1)
    assert desk.write(settle).contract.settlement == 2


def test_a_disputed_contract_follows_tokens_once_upheld(desk: TokenDesk) -> None:
    desk.complete()
    desk.record()
    desk.verified()
    desk.write(DisputeContract(desk.request, desk.contract_id, "too dear"))
    desk.observe(SECOND)
    assert (desk.contract.state, desk.contract.escrow) == (ContractState.DISPUTED, Escrow.PAID)
    upheld = desk.write(ResolveDispute(desk.request, desk.contract_id, Decision.UPHOLD, "it is fine"))
    assert (upheld.contract.state, upheld.contract.escrow) == (PENDING, Escrow.HELD)
    desk.observe(SECOND)
    assert (desk.contract.state, desk.bill.tokens) == (SETTLED, 750_000)
    assert desk.audited()


def test_an_erased_result_holds_and_the_observation_is_recorded(desk: TokenDesk) -> None:
    done = desk.complete()
    desk.record()
    desk.observe(FIRST)
    erase(desk.store, desk.tenant, done.contract.outcome_id or "", "asked to")
    assert desk.observe(FIRST).attempts == 2
    assert desk.reason == ("erased",)


def test_contracts_that_do_not_pay_for_tokens_do_not_wait_for_them(desk: TokenDesk) -> None:
    desk.complete({"cpc_rate": 1})
    assert desk.contract.state is SETTLED
    desk.record()
    desk.verified()
    desk.observe(SECOND)
    assert (desk.contract.state, desk.bill.usage) == (SETTLED, ())
    assert desk.run().ledger.settled is None


def test_terms_without_a_cap_on_tokens_are_refused(desk: TokenDesk) -> None:
    with pytest.raises(RulesContradictTerms, match=r"^max_token_cost "):
        desk.publish(terms={**TERMS, "max_token_cost": None})


def test_tokens_in_another_currency_have_no_settled_cost(desk: TokenDesk) -> None:
    desk.complete({**TERMS, "currency": "EUR"})
    desk.record()
    desk.verified()
    assert (desk.contract.state, desk.bill.tokens) == (SETTLED, 450_000)
    assert desk.run().ledger.settled is None


def test_views_show_rates_and_tokens_as_decimal_text(desk: TokenDesk) -> None:
    desk.complete()
    desk.record()
    desk.verified()
    shown = contracts.to_contract_view(desk.standing())
    assert shown.terms["token_rates"] == {
        "input_per_million": "3",
        "output_per_million": "15",
        "cached_per_million": None,
    }
    assert shown.terms["max_token_cost"] == "2"
    assert shown.settlement is not None
    assert shown.settlement.breakdown == {"cpc": "1", "cpa_bonus": "0", "cpa_penalty": "0", "tokens": "0.45"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"status": UsageStatus.PENDING}, "run r is pending"),
        ({"tokens": SECOND}, "run 'r'"),
        (None, "no run "),
    ],
)
def test_an_auditor_finds_a_bill_of_unverified_tokens(
    desk: TokenDesk, change: dict[str, Any] | None, named: str
) -> None:
    desk.complete()
    desk.record()
    desk.verified()
    whole = read(unpack(desk.bundle()))
    usage = [] if change is None else [msgspec.structs.replace(one, **change) for one in desk.bill.usage]
    forged = Forgery.of(whole).with_bill(1, usage=tuple(usage)).renumbered().committed()
    found = verify_bundle(forged.packed(desk.store.signer, whole), key=desk.store.signer.verifier)
    assert found.failed is AuditStep.SETTLEMENT
    assert named in str(found)


MOVES = ("same", "more", "zero", "soon", "dispute", "uphold", "settle", "reverse")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15, deadline=None)
@given(st.lists(st.sampled_from(MOVES), max_size=9))
def test_paid_tokens_are_always_verified_and_books_consistent(shared: Store, tenant: str, moves: list[str]) -> None:
    desk = TokenDesk(shared, shared.surroundings.new_id("t"))
    desk.complete()
    desk.record()
    for move in moves:
        with suppress(WrongState):
            desk.happens(move)
        standing, seen = desk.standing(), desk.run().verdict
        if standing.contract.state is SETTLED:
            assert standing.bill is not None
            assert seen.status is UsageStatus.VERIFIED
            assert [one.tokens for one in standing.bill.usage] == [seen.tokens]


def test_on_every_kind_of_database(store: Store) -> None:
    desk = TokenDesk(store, "acme")
    desk.complete()
    desk.record()
    desk.verified()
    assert desk.contract.state is SETTLED
    desk.observe(SECOND)
    assert desk.contract.state is PENDING
    desk.observe(SECOND)
    assert (desk.contract.state, desk.bill.tokens) == (SETTLED, 750_000)


def test_a_run_moved_to_another_contract_frees_the_first(desk: TokenDesk) -> None:
    desk.complete()
    desk.record()
    wrong = msgspec.structs.replace(metered("x", (), contract_id=desk.contract_id), ended_at=None)
    desk.followed(RecordRun(desk.tenant, "t", wrong))
    desk.verified()
    before = desk.contract.state
    desk.followed(RecordRun(desk.tenant, "t", msgspec.structs.replace(wrong, contract_id="con_other")))
    assert (before, desk.contract.state) == (ContractState.VERIFICATION_PENDING, ContractState.SETTLED)


# Any: a table, and what an insider writes into it.
def tamper(desk: TokenDesk, table: Any, **values: Any) -> None:
    with desk.store.database.writer.begin() as connection:
        connection.execute(update(table).where(table.c.tenant == desk.tenant).values(**values))


def inflated(desk: TokenDesk, table: Any, column: str) -> bytes:
    """What is recorded of the tokens, ten times as many."""
    with desk.store.database.reading() as connection:
        recorded = bytes(
            connection.execute(select(table.c[column]).where(table.c.tenant == desk.tenant)).scalars().all()[-1]
        )
    changed = recorded.replace(b"100000", b"1000000")
    assert changed != recorded
    return changed


@pytest.mark.parametrize(
    ("table", "column"),
    [(tables.usage_runs, "verdict"), (tables.usage_observations, "body")],
    ids=["verdict", "observation"],
)
def test_a_changed_token_count_is_not_paid(desk: TokenDesk, table: Any, column: str) -> None:
    desk.complete(TERMS | {"settle": "on_request"})
    desk.record()
    desk.verified(FIRST)
    tamper(desk, table, **{column: inflated(desk, table, column)})
    with pytest.raises(RecordTampered) as refused:
        desk.write(SettleContract(desk.request, desk.contract_id))
    assert refused.value.code == "record_tampered"


def test_tokens_that_only_a_row_calls_verified_are_not_paid(desk: TokenDesk) -> None:
    desk.complete(TERMS | {"settle": "on_request"})
    desk.record()
    record = desk.observe(FIRST)
    verdict = msgspec.structs.replace(record.verdict, status=UsageStatus.VERIFIED, tokens=SECOND)
    tamper(desk, tables.usage_runs, status="verified", verdict=verdict.to_json())
    with pytest.raises(RecordTampered):
        desk.write(SettleContract(desk.request, desk.contract_id))


def test_an_observation_does_not_pay_a_changed_contract(desk: TokenDesk) -> None:
    desk.complete()
    desk.record()
    tamper(desk, tables.contracts, agent_id="thief")
    assert desk.verified(FIRST).verdict.status is UsageStatus.VERIFIED
    held = desk.standing().contract
    assert (held.state, held.escrow) == (PENDING, Escrow.HELD)
    assert "agent_id" in held.hold_reason


def test_an_observation_does_not_reverse_a_changed_payment(desk: TokenDesk) -> None:
    desk.complete()
    desk.record()
    desk.verified(FIRST)
    assert desk.standing().contract.state is SETTLED
    tamper(desk, tables.settlements, bill=b"{}")
    desk.minutes += 60
    at = ENDED + timedelta(minutes=desk.minutes)
    seen = Observation("fell", at, Tokens(1, 1), {"s0": Tokens(1, 1)}, assurance=Assurance.ATTRIBUTION_KEY, digest="d")
    recorded = RecordObservations(desk.tenant, [RunObservation("r", seen)], POLICY)
    (record,) = desk.store.recorder.write(UsageWrite(desk.tenant, "reconciler", recorded))
    assert record.verdict.status is not UsageStatus.VERIFIED
    with desk.store.database.reading() as connection:
        (row,) = connection.execute(select(tables.contracts).where(tables.contracts.c.id == desk.contract_id))
    assert row.escrow == "paid"
