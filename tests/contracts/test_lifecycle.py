"""A contract's moves: each once, from the right state, in time."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.contracts import lifecycle
from meruit.contracts.lifecycle import ALLOWED, Decision, Operation, check
from meruit.errors import BadAmount, WrongState
from meruit.model.contract import OPEN, Contract, ContractState, Escrow, Terms

S = ContractState
START = datetime(2026, 3, 1, 12, tzinfo=UTC)
DEADLINE = START + timedelta(hours=168)
INSTANT = timedelta(microseconds=1)
NOW = START + timedelta(hours=1)
TERMS = Terms(cpc_rate=10)
AWARDED = Contract(
    id="c",
    seq=1,
    work_id="w",
    agent_id="a",
    consumer_id="b",
    domain=None,
    state=S.AWARDED,
    escrow=Escrow.HELD,
    currency="USD",
    hold_micros=15_000_000,
    terms=b"{}",
    awarded_at=START,
    expires_at=DEADLINE,
)
PENDING = lifecycle.complete(AWARDED, NOW, "o", "mark")
SETTLED = lifecycle.settle(lifecycle.apply_verdict(PENDING, success=True), NOW, 1, 12_000_000)
IN: dict[S, Contract] = {
    S.AWARDED: AWARDED,
    S.EXECUTING: lifecycle.start(AWARDED, NOW),
    S.VERIFICATION_PENDING: lifecycle.hold(PENDING, "a person must look"),
    S.VERIFIED: lifecycle.apply_verdict(PENDING, success=True),
    S.FAILED: lifecycle.apply_verdict(PENDING, success=False),
    S.SETTLED: SETTLED,
    S.EXPIRED: lifecycle.expire(AWARDED, DEADLINE + INSTANT),
    S.DISPUTED: lifecycle.dispute(SETTLED, NOW, TERMS),
}
"""One contract in each state."""
VOIDED = lifecycle.void(PENDING)
MOVES: dict[Operation, Callable[[Contract], Contract]] = {
    Operation.READ: lambda one: lifecycle.read_input(one, NOW),
    Operation.START: lambda one: lifecycle.start(one, NOW),
    Operation.COMPLETE: lambda one: lifecycle.complete(one, NOW, "o2", "mark2", "run"),
    Operation.SETTLE: lambda one: lifecycle.settle(one, NOW, one.version + 1, 1),
    Operation.DISPUTE: lambda one: lifecycle.dispute(one, NOW, TERMS),
    Operation.RESOLVE: lifecycle.uphold,
    Operation.EXPIRE: lambda one: lifecycle.expire(one, DEADLINE + INSTANT),
}
"""Those of the moves that look for themselves whether they may be made."""
POSSIBLE = {
    Operation.READ: {S.AWARDED, S.EXECUTING},
    Operation.START: {S.AWARDED},
    Operation.COMPLETE: {S.AWARDED, S.EXECUTING},
    Operation.SETTLE: {S.VERIFICATION_PENDING, S.VERIFIED, S.FAILED},
    Operation.DISPUTE: {S.VERIFICATION_PENDING, S.VERIFIED, S.FAILED, S.SETTLED},
    Operation.RESOLVE: {S.DISPUTED},
    Operation.RELEASE: {S.VERIFICATION_PENDING},
    Operation.VOID: {S.AWARDED, S.EXECUTING, S.VERIFICATION_PENDING, S.VERIFIED, S.FAILED},
    Operation.REVERSE: {S.SETTLED},
    Operation.EXPIRE: {S.AWARDED, S.EXECUTING},
}
LEADS_TO = {
    Operation.START: S.EXECUTING,
    Operation.COMPLETE: S.VERIFICATION_PENDING,
    Operation.SETTLE: S.SETTLED,
    Operation.DISPUTE: S.DISPUTED,
    Operation.RESOLVE: S.SETTLED,
    Operation.EXPIRE: S.EXPIRED,
}


def refused(move: Callable[[], Any]) -> str:
    with pytest.raises(WrongState) as caught:
        move()
    assert "contract c" in str(caught.value) or caught.value.code in ("already_settled", "dispute_window_closed")
    return caught.value.code


# Properties.


@given(st.lists(st.sampled_from([*MOVES, Operation.REVERSE, Operation.VOID]), max_size=12))
def test_in_any_order_of_operations_state_and_money_agree(tried: list[Operation]) -> None:
    contract = AWARDED
    for operation in tried:
        before = contract
        try:
            match operation:
                case Operation.REVERSE:
                    check(contract, operation)
                    contract = lifecycle.reverse(contract, "because")
                case Operation.VOID:
                    check(contract, operation)
                    contract = lifecycle.void(contract)
                case _:
                    contract = MOVES[operation](contract)
        except WrongState:
            assert contract is before
            continue
        assert before.state in POSSIBLE[operation]
        assert (contract.escrow is Escrow.PAID) == bool(contract.settlement) == (contract.settled_at is not None)
        assert (contract.state is S.SETTLED) <= (contract.escrow is Escrow.PAID)
        assert (contract.escrow is Escrow.FROZEN) <= (contract.state is S.DISPUTED)
        assert (contract.state is S.DISPUTED) == (contract.disputed_from is not None)
        assert contract.settlements >= before.settlements
        assert contract.version >= before.version
        assert contract.disputes <= contract.settlements + 1
        assert contract.hold_micros == AWARDED.hold_micros


# Every operation from every state.


def test_the_table_is_the_one_in_force() -> None:
    assert {operation: {*states} for operation, states in ALLOWED.items()} == POSSIBLE


@pytest.mark.parametrize("state", [*S])
@pytest.mark.parametrize("operation", [*POSSIBLE])
def test_each_operation_is_allowed_from_its_states_only(operation: Operation, state: S) -> None:
    contract = IN[state]
    assert contract.state is state
    if state in POSSIBLE[operation]:
        check(contract, operation)
    else:
        with pytest.raises(WrongState, match=rf"contract c .*{state}.*{operation}") as caught:
            check(contract, operation)
        assert caught.value.code == "wrong_state"


@pytest.mark.parametrize("state", [*S])
@pytest.mark.parametrize("operation", [*MOVES])
def test_each_operation_leads_to_its_state_or_is_refused(operation: Operation, state: S) -> None:
    if state in POSSIBLE[operation]:
        assert MOVES[operation](IN[state]).state is LEADS_TO.get(operation, state)
    else:
        assert refused(lambda: MOVES[operation](IN[state])) == "wrong_state"


@pytest.mark.parametrize("operation", [Operation.SETTLE, Operation.VOID, Operation.RELEASE])
@pytest.mark.parametrize("escrow", [Escrow.FROZEN, Escrow.PAID, Escrow.RELEASED])
def test_only_a_held_escrow_is_paid_or_returned(operation: Operation, escrow: Escrow) -> None:
    contract = msgspec.structs.replace(IN[S.VERIFICATION_PENDING], escrow=escrow)
    with pytest.raises(WrongState, match=escrow) as caught:
        check(contract, operation)
    assert caught.value.code == "wrong_state"


@pytest.mark.parametrize("state", [one for one, contract in IN.items() if contract.escrow is Escrow.HELD])
def test_a_held_escrow_can_always_be_voided(state: S) -> None:
    check(IN[state], Operation.VOID)
    assert lifecycle.void(IN[state]).escrow is Escrow.RELEASED


def test_a_voided_contract_stays_voided() -> None:
    assert (VOIDED.state, VOIDED.escrow) == (S.FAILED, Escrow.RELEASED)
    assert refused(lambda: lifecycle.settle(VOIDED, NOW, 1, 1)) == "wrong_state"
    assert refused(lambda: lifecycle.void(VOIDED)) == "wrong_state"
    assert refused(lambda: lifecycle.reverse(VOIDED, "")) == "wrong_state"
    assert refused(lambda: lifecycle.dispute(VOIDED, NOW, TERMS)) == "wrong_state"


@pytest.mark.parametrize("escrow", [*Escrow])
def test_only_open_escrow_is_voided_and_only_paid_escrow_reversed(escrow: Escrow) -> None:
    contract = msgspec.structs.replace(PENDING, escrow=escrow)
    if escrow in OPEN:
        assert lifecycle.void(contract).escrow is Escrow.RELEASED
    else:
        refused(lambda: lifecycle.void(contract))
    if escrow is Escrow.PAID:
        assert lifecycle.reverse(contract, "").escrow is Escrow.HELD
    else:
        refused(lambda: lifecycle.reverse(contract, ""))


# What each operation records.


def test_each_operation_records_its_facts() -> None:
    begun = lifecycle.start(AWARDED, NOW)
    assert (begun.state, begun.started_at) == (S.EXECUTING, NOW)
    done = lifecycle.complete(begun, NOW + INSTANT, "o", "mark", "run")
    assert (done.state, done.completed_at, done.outcome_id) == (S.VERIFICATION_PENDING, NOW + INSTANT, "o")
    assert (done.completion, done.evidence, done.started_at) == ("mark", "run", NOW)
    waiting = lifecycle.hold(done, "governance review: x")
    assert waiting.hold_reason == "governance review: x"
    clear = lifecycle.apply_verdict(waiting, success=True)
    assert (clear.state, clear.hold_reason) == (S.VERIFIED, "")
    assert lifecycle.apply_verdict(waiting, success=False).state is S.FAILED
    paid = lifecycle.settle(clear, NOW, 1, 12)
    assert (paid.escrow, paid.settlement, paid.settlements, paid.version) == (Escrow.PAID, 1, 1, 1)
    assert (paid.total_micros, paid.settled_at) == (12, NOW)


def test_a_verdict_is_paid_once_and_a_later_one_after_a_reversal() -> None:
    back = lifecycle.reverse(SETTLED, "a mistake")
    assert (back.state, back.escrow, back.settlement, back.total_micros) == (S.VERIFICATION_PENDING, Escrow.HELD, 0, 0)
    assert (back.settled_at, back.hold_reason) == (None, "a mistake")
    assert (back.version, back.settlements) == (1, 1)
    for version in (0, 1):
        with pytest.raises(WrongState, match=f"version {version} ") as caught:
            lifecycle.settle(back, NOW, version, 1)
        assert caught.value.code == "already_settled"
    again = lifecycle.settle(back, NOW, 3, 5)
    assert (again.settlement, again.settlements, again.version, again.total_micros) == (2, 2, 3, 5)
    assert lifecycle.void(back).escrow is Escrow.RELEASED


# Time.


@pytest.mark.parametrize("move", [Operation.START, Operation.COMPLETE])
def test_the_deadline_is_in_time_an_instant_later_is_late(move: Operation) -> None:
    def at(now: datetime) -> Contract:
        if move is Operation.START:
            return lifecycle.start(AWARDED, now)
        return lifecycle.complete(AWARDED, now, "o", "mark")

    assert at(DEADLINE).state is LEADS_TO[move]
    with pytest.raises(WrongState, match="2026-03-08T12:00:00") as caught:
        at(DEADLINE + INSTANT)
    assert caught.value.code == "deadline_passed"


def test_a_contract_does_not_expire_before_its_deadline() -> None:
    for contract in (AWARDED, IN[S.EXECUTING]):
        for early in (START, DEADLINE - INSTANT, DEADLINE):
            with pytest.raises(WrongState, match="2026-03-08T12:00:00") as caught:
                lifecycle.expire(contract, early)
            assert caught.value.code == "not_due"
        over = lifecycle.expire(contract, DEADLINE + INSTANT)
        assert (over.state, over.escrow) == (S.EXPIRED, Escrow.RELEASED)


@given(st.integers(-10, 10).map(lambda micros: DEADLINE + micros * INSTANT))
def test_a_contract_can_be_completed_or_expires_never_both(now: datetime) -> None:
    def possible(move: Callable[[], Contract]) -> bool:
        try:
            move()
        except WrongState:
            return False
        return True

    completed = possible(lambda: lifecycle.complete(AWARDED, now, "o", "mark"))
    assert completed != possible(lambda: lifecycle.expire(AWARDED, now))


@pytest.mark.parametrize("hours", [1, 24, 168])
def test_a_payment_can_be_disputed_to_the_end_of_its_window(hours: int) -> None:
    terms = Terms(cpc_rate=10, dispute_window_hours=hours)
    closes = NOW + timedelta(hours=hours)
    assert lifecycle.dispute(SETTLED, closes, terms).state is S.DISPUTED
    with pytest.raises(WrongState, match=closes.date().isoformat()) as caught:
        lifecycle.dispute(SETTLED, closes + INSTANT, terms)
    assert caught.value.code == "dispute_window_closed"


def test_a_later_settlement_has_a_window_of_its_own() -> None:
    later = NOW + timedelta(hours=100)
    again = lifecycle.settle(lifecycle.reverse(SETTLED, ""), later, 2, 1)
    assert lifecycle.dispute(again, later + timedelta(hours=24), TERMS).state is S.DISPUTED


@pytest.mark.parametrize("state", [S.VERIFICATION_PENDING, S.VERIFIED, S.FAILED])
def test_an_unpaid_contract_can_be_disputed_at_any_time(state: S) -> None:
    frozen = lifecycle.dispute(IN[state], NOW + timedelta(days=900), TERMS)
    assert (frozen.escrow, frozen.disputed_from) == (Escrow.FROZEN, state)
    back = lifecycle.uphold(frozen)
    assert (back.state, back.escrow, back.disputed_from) == (state, Escrow.HELD, None)


# Disputes.


def test_a_dispute_of_a_payment_leaves_it_paid() -> None:
    disputed = IN[S.DISPUTED]
    assert (disputed.escrow, disputed.disputed_from, disputed.disputes) == (Escrow.PAID, S.SETTLED, 2)
    upheld = lifecycle.uphold(disputed)
    assert (upheld.state, upheld.escrow, upheld.total_micros) == (S.SETTLED, Escrow.PAID, 12_000_000)


def test_a_verdict_is_disputed_once_before_payment_and_once_after() -> None:
    before = lifecycle.uphold(lifecycle.dispute(IN[S.VERIFIED], NOW, TERMS))
    assert before.disputes == 1
    assert refused(lambda: lifecycle.dispute(before, NOW, TERMS)) == "already_disputed"
    paid = lifecycle.settle(before, NOW, 1, 1)
    after = lifecycle.uphold(lifecycle.dispute(paid, NOW, TERMS))
    assert after.disputes == 2
    assert refused(lambda: lifecycle.dispute(after, NOW, TERMS)) == "already_disputed"
    reversed_ = lifecycle.reverse(after, "")
    assert refused(lambda: lifecycle.dispute(reversed_, NOW, TERMS)) == "already_disputed"
    second = lifecycle.settle(reversed_, NOW, 2, 1)
    assert lifecycle.dispute(second, NOW, TERMS).disputes == 3


def test_a_disputed_contract_is_not_settled_or_disputed_again() -> None:
    frozen = lifecycle.dispute(IN[S.VERIFIED], NOW, TERMS)
    for move in (Operation.SETTLE, Operation.DISPUTE, Operation.COMPLETE, Operation.EXPIRE):
        assert refused(lambda move=move: MOVES[move](frozen)) == "wrong_state"  # type: ignore[misc]
    assert lifecycle.void(frozen).escrow is Escrow.RELEASED


# What a dispute is settled on.


def test_a_read_is_marked_once() -> None:
    read = lifecycle.read_input(AWARDED, NOW)
    assert read.input_read_at == NOW
    assert lifecycle.read_input(read, NOW + INSTANT) is read


@pytest.mark.parametrize(
    ("state", "micros", "currency", "code"),
    [
        (S.SETTLED, 2, None, "above_paid"),
        (S.SETTLED, 1, "EUR", "wrong_currency"),
        (S.VERIFICATION_PENDING, AWARDED.hold_micros + 1, AWARDED.currency, "above_held"),
    ],
)
def test_an_amount_stays_within_what_is_held_or_was_paid(
    state: S, micros: int, currency: str | None, code: str
) -> None:
    contract = IN[state]
    if state is S.SETTLED:
        contract = msgspec.structs.replace(contract, total_micros=1)
    with pytest.raises(BadAmount) as refused:
        lifecycle.check_adjustment(contract, micros, currency)
    assert (refused.value.code, refused.value.status) == (code, 422)
    lifecycle.check_adjustment(contract, micros - 1, None)
    lifecycle.check_adjustment(contract, 0, contract.currency)


@pytest.mark.parametrize("decision", [*Decision])
def test_only_an_adjustment_has_an_amount(decision: Decision) -> None:
    adjusts = decision is Decision.ADJUST
    lifecycle.check_amount_given(decision, given=adjusts)
    with pytest.raises(BadAmount) as refused:
        lifecycle.check_amount_given(decision, given=not adjusts)
    assert refused.value.code == ("amount_missing" if adjusts else "amount_unexpected")
