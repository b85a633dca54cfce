"""Contracts and their money, on every kind of database."""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count
from threading import Barrier
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select
from tests.contracts.trading import (
    BEGINNING,
    CAP,
    COPY,
    CPC,
    FIRST,
    GOOD,
    LEAKED,
    PENALTY,
    REFERENCE,
    TENANT,
    WEAK,
    Hands,
    Trading,
    everything,
    written,
)
from tests.outcomes.making import together

from meruit.contracts.invariants import find_violations
from meruit.contracts.marketplace import Marketplace
from meruit.contracts.postings import PLATFORM
from meruit.contracts.store import ledger
from meruit.contracts.store import read as contracts
from meruit.contracts.store.read import ContractSnapshot, terms_of
from meruit.contracts.transitions import AwardContract, ExpireContracts
from meruit.documents.authoring import parse_work
from meruit.errors import IdempotencyConflict, MeruitError, NotFound, WrongState
from meruit.model.contract import ContractState, Escrow
from meruit.model.verdict import GovernanceStatus
from meruit.outcomes.store.erase import Erase, erase
from meruit.store import tables
from meruit.store.idempotency import IdempotentReplay
from meruit.store.location import Location
from meruit.store.recorder import Write
from meruit.store.store import ClockAndEntropy, Store

AT_ONCE = 200
PATIENCE_S = 60
ALL_DUE_H = 169
"""After so long every deadline has passed."""
_NUMBERS = count()
State = tuple[str, str]
"""Of the contract and of its escrow."""

AWARDED, EXECUTING, PENDING = ("awarded", "held"), ("executing", "held"), ("verification_pending", "held")
VERIFIED, FAILED, SETTLED = ("verified", "held"), ("failed", "held"), ("settled", "paid")
FROZEN, DISPUTED = ("disputed", "frozen"), ("disputed", "paid")
VOIDED, EXPIRED = ("failed", "released"), ("expired", "released")

SITUATIONS: dict[str, tuple[str, list[str]]] = {
    "awarded": ("usual", []),
    "executing": ("usual", ["start"]),
    "held": ("usual", [f"complete {COPY}"]),
    "invalid": ("usual", [f"complete {LEAKED}"]),
    "unmeasured": ("timed", [f"complete {GOOD}"]),
    "verified": ("on_request", [f"complete {GOOD}"]),
    "failed": ("on_request", [f"complete {WEAK}"]),
    "settled": ("usual", [f"complete {GOOD}"]),
    "settled though weak": ("usual", [f"complete {WEAK}"]),
    "reversed": ("usual", [f"complete {GOOD}", "reverse"]),
    "disputed": ("usual", [f"complete {GOOD}", "dispute"]),
    "frozen": ("usual", [f"complete {COPY}", "dispute"]),
    "frozen when verified": ("on_request", [f"complete {GOOD}", "dispute"]),
    "upheld": ("usual", [f"complete {GOOD}", "dispute", "uphold"]),
    "voided": ("usual", ["void"]),
    "expired": ("brief", ["expire"]),
}
"""How a contract gets where it is: the kind of work, and the moves."""

ALLOWED: dict[str, dict[str, State]] = {
    "awarded": {"start": EXECUTING, "complete": SETTLED, "void": VOIDED},
    "executing": {"complete": SETTLED, "void": VOIDED},
    "held": {"release": SETTLED, "void": VOIDED, "dispute": FROZEN},
    "invalid": {"release": SETTLED, "void": VOIDED, "dispute": FROZEN},
    "unmeasured": {"release": SETTLED, "void": VOIDED, "dispute": FROZEN},
    "verified": {"settle": SETTLED, "void": VOIDED, "dispute": FROZEN},
    "failed": {"settle": SETTLED, "void": VOIDED, "dispute": FROZEN},
    "settled": {"reverse": PENDING, "dispute": DISPUTED},
    "settled though weak": {"reverse": PENDING, "dispute": DISPUTED},
    # The only verdict there is was paid and taken back, so nothing can be paid before there is another.
    "reversed": {"void": VOIDED, "dispute": FROZEN},
    "disputed": {"uphold": SETTLED, "take back": PENDING, "undo": VOIDED},
    "frozen": {"uphold": PENDING, "undo": VOIDED},
    "frozen when verified": {"uphold": VERIFIED, "undo": VOIDED},
    "upheld": {"reverse": PENDING},
    "voided": {},
    "expired": {},
}
"""What may be done from there, and where it leads."""
UNCHANGED = {("executing", "start"), *((one, "settle") for one in ("settled", "settled though weak", "upheld"))}
"""What is done already is answered as it is."""
MOVES = ("start", "complete", "settle", "release", "void", "reverse", "dispute", "uphold", "take back", "undo")


@pytest.fixture(scope="module")
def hands() -> Hands:
    return Hands()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, hands: Hands) -> Iterator[Store]:
    """One of each kind; every test is a tenant of its own."""
    url = request.getfixturevalue("new_postgres")() if request.param == "postgresql" else None
    opened = Store.open(Location(tmp_path_factory.mktemp("market"), url), ClockAndEntropy(clock=hands))
    yield opened
    opened.close()


@pytest.fixture
def second(store: Store, hands: Hands) -> Iterator[Store]:
    """The same database, as another process has it open."""
    opened = Store.open(store.database.location, ClockAndEntropy(clock=hands))
    yield opened
    opened.close()


@pytest.fixture
def parties(store: Store, hands: Hands) -> Iterator[Callable[[], Trading]]:
    """New tenants, whose books must be consistent after the test."""
    made: list[Trading] = []

    def another() -> Trading:
        made.append(Trading(store, f"tenant-{next(_NUMBERS)}"))
        return made[-1]

    yield another
    assert [trading.broken() for trading in made] == [[] for _ in made]
    # The next test must find nothing that is due.
    hands.pass_h(ALL_DUE_H)
    while store.recorder.write(ExpireContracts("clock")):
        pass


@pytest.fixture
def party(parties: Callable[[], Trading]) -> Trading:
    return parties()


def reached(party: Trading, hands: Hands, situation: str, tag: str = "") -> str:
    """A contract in this situation."""
    kind, moves = SITUATIONS[situation]
    contract_id = party.given(kind, f"agent {situation}{tag}").id
    for move in moves:
        if move == "expire":
            hands.pass_h(2)
            assert party.store.recorder.write(ExpireContracts("clock")) == 1
        elif move.startswith("complete "):
            party.complete(contract_id, move.removeprefix("complete "))
        else:
            party.do(move, contract_id, "to get here")
    return contract_id


def state_of(standing: ContractSnapshot) -> State:
    return str(standing.contract.state), str(standing.contract.escrow)


def made(party: Trading, move: str, contract_id: str) -> Write[Any]:
    return party.handed_in(contract_id, "another output " * 9) if move == "complete" else party.move(move, contract_id)


def event_types(party: Trading, contract_id: str) -> list[str]:
    events = tables.events
    mine = (events.c.tenant == party.tenant) & (events.c.subject == contract_id)
    query = select(events.c.type).where(mine).order_by(events.c.seq)
    with party.store.database.reading() as connection:
        return [*connection.execute(query).scalars()]


def balance(party: Trading, account: str) -> int:
    with party.store.database.reading() as connection:
        found = {one.account: one.micros for one in ledger.balances(connection, party.tenant)}
    return found.get(account, 0)


# Every move from every state


@pytest.mark.parametrize("situation", SITUATIONS)
def test_each_transition_is_made_once_from_the_right_state(party: Trading, hands: Hands, situation: str) -> None:
    store = party.store
    refused = [move for move in MOVES if move not in ALLOWED[situation] and (situation, move) not in UNCHANGED]
    # One contract for all of these: each leaves it as it was.
    contract_id = reached(party, hands, situation)
    writes = [made(party, move, contract_id) for move in refused]
    before = everything(store, party.tenant)
    for write in writes:
        with pytest.raises(WrongState, match=r"contract con_|version \d"):
            store.recorder.write(write)
    assert everything(store, party.tenant) == before
    for move in MOVES:
        if move in refused:
            continue
        contract_id = reached(party, hands, situation, f" {move}")
        write = made(party, move, contract_id)
        before = everything(store, party.tenant)
        first = party.done(write)
        after = everything(store, party.tenant)
        leads_to = ALLOWED[situation].get(move)
        if leads_to is None:
            assert after == before, move
        else:
            assert (move, state_of(first)) == (move, leads_to)
            assert after != before
        assert first == party.standing(contract_id)
        # A repeated request gets the same reply and changes nothing.
        assert party.done(write) == first, move
        assert everything(store, party.tenant) == after, move
        assert party.broken() == [], move


def test_every_state_is_reached(party: Trading, hands: Hands) -> None:
    found = {reached(party, hands, situation): situation for situation in SITUATIONS}
    states = {party.standing(contract_id).contract.state for contract_id in found}
    assert states == {*ContractState}
    assert {party.standing(contract_id).contract.escrow for contract_id in found} == {*Escrow}


@pytest.mark.parametrize("situation", [name for name, moves in ALLOWED.items() if moves])
def test_a_repeated_key_gets_the_same_reply(party: Trading, hands: Hands, situation: str) -> None:
    for move in ALLOWED[situation]:
        contract_id = reached(party, hands, situation, move)
        key = f"key {move} {contract_id}"

        def asked(of: str = move, contract: str = contract_id, by: str = key) -> Write[Any]:
            return party.handed_in(contract, key=by) if of == "complete" else party.move(of, contract, key=by)

        first = party.done(asked())
        before = everything(party.store, party.tenant)
        again = [party.store.recorder.write(asked()), *together(party.store, [asked(), asked()])]
        assert again == [IdempotentReplay(200, contracts.encode(contracts.to_contract_view(first)))] * 3
        other = party.once(party.move("void", contract_id), key, "another")
        with pytest.raises(IdempotencyConflict):
            party.store.recorder.write(other)
        assert everything(party.store, party.tenant) == before


def test_each_transition_emits_one_event_in_order(party: Trading) -> None:
    contract_id = party.given().id
    party.do("start", contract_id)
    party.complete(contract_id)
    party.do("dispute", contract_id)
    party.do("take back", contract_id)
    party.store.recorder.write(party.rescored(contract_id))
    party.do("settle", contract_id)
    party.do("reverse", contract_id)
    party.do("void", contract_id)
    assert event_types(party, contract_id) == [
        *("contract.awarded", "contract.started", "contract.completed", "outcome.recorded"),
        *("contract.verified", "contract.settled", "contract.disputed", "contract.reversed", "contract.resolved"),
        *("outcome.rescored", "contract.verified", "contract.settled", "contract.reversed", "contract.voided"),
    ]
    with party.store.database.reading() as connection:
        mine = tables.events.c.tenant == party.tenant
        keys = connection.execute(select(tables.events.c.idempotency_key).where(mine)).scalars().all()
    assert len(keys) == len(set(keys))


def test_an_unknown_contract_is_not_found(party: Trading) -> None:
    contract_id = party.given().id
    writes = [party.move(move, "con_nothing") for move in MOVES if move != "complete"]
    writes.append(msgspec.structs.replace(party.handed_in(contract_id), contract_id="con_nothing"))
    writes.append(AwardContract(party.request(), "con_new", "wrk_nothing", "a1"))
    before = everything(party.store, party.tenant)
    assert [type(answer) for answer in together(party.store, writes)] == [NotFound] * len(writes)
    assert everything(party.store, party.tenant) == before


# What is paid


@pytest.mark.parametrize(
    ("text", "bonus", "penalty"), [(GOOD, CAP, 0), (WEAK, FIRST, PENALTY), ("", 0, PENALTY)], ids=["good", "weak", "no"]
)
def test_what_is_paid_is_in_the_books(party: Trading, text: str, bonus: int, penalty: int) -> None:
    total = CPC + bonus - penalty
    fee = total * 15 // 100
    standing = party.complete(party.given().id, text)
    assert standing.bill is not None
    assert (standing.bill.base, standing.bill.bonus, standing.bill.penalty) == (CPC, bonus, penalty)
    assert (standing.bill.total, standing.bill.fee, standing.bill.payout) == (total, fee, total - fee)
    assert balance(party, "agent:a1") == total - fee
    assert balance(party, PLATFORM) == fee
    assert balance(party, "consumer:buyer") == -total
    assert balance(party, "escrow") == 0


def test_work_without_criteria_is_paid_its_completion(party: Trading) -> None:
    standing = party.complete(party.given("plain").id, "anything")
    assert state_of(standing) == SETTLED
    assert standing.bill is not None
    assert (standing.bill.total, standing.bill.bonus, standing.contract.hold_micros) == (CPC, 0, CPC)


def test_held_work_without_criteria_can_be_released(party: Trading) -> None:
    contract_id = party.given("plain").id
    assert state_of(party.complete(contract_id, LEAKED)) == PENDING
    standing = party.do("release", contract_id)
    assert standing.bill is not None
    assert (state_of(standing), standing.bill.total) == (SETTLED, CPC)


def test_a_reversed_contract_is_settled_by_a_later_verdict_only(party: Trading) -> None:
    contract_id = party.given().id
    first = party.complete(contract_id)
    party.do("reverse", contract_id)
    assert balance(party, "agent:a1") == 0
    for move in ("settle", "release"):
        with pytest.raises(WrongState) as refused:
            party.do(move, contract_id)
        assert refused.value.code == "already_settled"
    party.store.recorder.write(party.rescored(contract_id))
    again = party.do("settle", contract_id)
    assert first.bill == again.bill
    assert (again.contract.settlement, again.contract.version) == (2, 2)
    with party.store.database.reading() as connection:
        mine = tables.settlements.c.tenant == party.tenant
        rows = connection.execute(select(tables.settlements.c.number).where(mine)).scalars().all()
    assert sorted(rows) == [1, 2]


def test_terms_stay_as_they_were_when_the_contract_was_awarded(party: Trading) -> None:
    work = party.publish()
    first, cheaper = party.award(work.id, "a1"), party.award(work.id, "a2", cpc_rate=0.01)
    party.publish(terms={"cpc_rate": "9", "platform_fee_rate": "0"})
    for contract, rate in ((first, "0.05"), (cheaper, "0.01")):
        standing = party.complete(contract.id, f"{GOOD} for {contract.id}")
        assert standing.contract.terms == contract.terms
        assert str(terms_of(standing.contract).cpc_rate) == rate
        assert standing.bill is not None
        assert standing.bill.total == int(float(rate) * 1_000_000) + CAP
    with pytest.raises(WrongState, match=r"0\.05") as refused:
        party.award(work.id, "a3", cpc_rate=0.06)
    assert refused.value.code == "above_budget"


def test_a_dispute_comes_in_time_and_once_for_a_settlement(party: Trading, hands: Hands) -> None:
    late, contract_id = party.given().id, party.given(agent="a2").id
    for one in (late, contract_id):
        party.complete(one, f"{GOOD} of {one}")
    hands.pass_h(24)
    party.do("dispute", contract_id, "just in time")
    hands.now += timedelta(microseconds=1)
    with pytest.raises(WrongState) as refused:
        party.do("dispute", late)
    assert refused.value.code == "dispute_window_closed"
    party.do("uphold", contract_id)
    with pytest.raises(WrongState) as refused:
        party.do("dispute", contract_id, "once more")
    assert refused.value.code == "already_disputed"


def test_a_deadline_is_kept_to_the_moment(party: Trading, hands: Hands) -> None:
    on_time, late = party.given("brief").id, party.given("brief", agent="a2").id
    hands.pass_h(1)
    assert party.store.recorder.write(ExpireContracts("clock")) == 0
    assert state_of(party.complete(on_time)) == SETTLED
    hands.now += timedelta(microseconds=1)
    for refused in (party.move("start", late), party.handed_in(late)):
        with pytest.raises(WrongState) as found:
            party.store.recorder.write(refused)
        assert found.value.code == "deadline_passed"
    assert together(party.store, [ExpireContracts("clock"), ExpireContracts("clock")]) == [1, 0]
    assert state_of(party.standing(late)) == EXPIRED
    assert balance(party, "escrow") == 0


def test_no_more_contracts_expire_at_a_time_than_asked_for(party: Trading, hands: Hands) -> None:
    work = party.publish("brief")
    ids = [party.award(work.id, f"a{number}").id for number in range(5)]
    for one in ids[:2]:
        party.do("start", one)
    hands.pass_h(2)
    assert [party.store.recorder.write(ExpireContracts("clock", limit=2)) for _ in range(4)] == [2, 2, 1, 0]


# At the same time


def at_once(number: int, call: Callable[[int], Any]) -> list[Any]:
    """What threads that start together are answered, or refused with."""
    barrier = Barrier(number)

    def one(index: int) -> Any:
        barrier.wait(PATIENCE_S)
        try:
            return call(index)
        except MeruitError as refusal:
            return refusal

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(one, range(number)))


def one_settlement(party: Trading, contract_id: str, answers: list[Any]) -> None:
    """Every caller gets the same settlement, or is refused because it is too early."""
    standing = party.standing(contract_id)
    assert state_of(standing) == SETTLED
    settled = [answer for answer in answers if isinstance(answer, ContractSnapshot)]
    refused = [answer for answer in answers if not isinstance(answer, ContractSnapshot)]
    assert settled == [standing] * len(settled)
    assert {(type(answer), answer.code) for answer in refused} <= {(WrongState, "wrong_state")}, refused
    with party.store.database.reading() as connection:
        for table in (tables.settlements, tables.outcomes):
            mine = select(func.count()).select_from(table).where(table.c.tenant == party.tenant)
            assert connection.execute(mine).scalar() == 1
    assert standing.bill is not None
    assert balance(party, "agent:a1") == standing.bill.payout
    assert Counter(event_types(party, contract_id))["contract.settled"] == 1


def test_two_hundred_completions_and_settlements_at_once_pay_once(party: Trading) -> None:
    contract_id = party.given().id
    writes = [
        party.handed_in(contract_id) if number % 2 else party.move("settle", contract_id) for number in range(AT_ONCE)
    ]
    answers = at_once(AT_ONCE, lambda index: party.store.recorder.write(writes[index]))
    one_settlement(party, contract_id, answers)
    assert all(isinstance(answer, ContractSnapshot) for answer in answers[1::2])


def test_two_hundred_calls_through_two_processes_pay_once(party: Trading, second: Store) -> None:
    contract_id = party.given().id
    parties = (party, Trading(second, party.tenant))
    writes = [
        parties[number % 2].handed_in(contract_id)
        if number % 4 < 2
        else parties[number % 2].move("settle", contract_id)
        for number in range(AT_ONCE)
    ]
    answers = at_once(AT_ONCE, lambda index: parties[index % 2].store.recorder.write(writes[index]))
    one_settlement(party, contract_id, answers)


def test_two_hundred_settlements_on_request_pay_once(party: Trading, second: Store) -> None:
    contract_id = party.given("on_request").id
    party.complete(contract_id)
    parties = (party, Trading(second, party.tenant))
    answers = at_once(AT_ONCE, lambda index: parties[index % 2].done(parties[index % 2].move("settle", contract_id)))
    assert all(isinstance(answer, ContractSnapshot) for answer in answers), answers
    one_settlement(party, contract_id, answers)


def test_of_different_outputs_at_once_one_counts(party: Trading, second: Store) -> None:
    contract_id = party.given().id
    parties = (party, Trading(second, party.tenant))
    writes = [parties[number % 2].handed_in(contract_id, f"{GOOD} {number}") for number in range(20)]
    answers = at_once(20, lambda index: parties[index % 2].store.recorder.write(writes[index]))
    assert Counter(type(answer) for answer in answers) == {ContractSnapshot: 1, WrongState: 19}
    assert {answer.code for answer in answers if isinstance(answer, WrongState)} == {"already_completed"}


def test_of_those_who_decide_about_a_hold_at_once_one_does(party: Trading, second: Store) -> None:
    contract_id = party.given().id
    party.complete(contract_id, COPY)
    parties = (party, Trading(second, party.tenant, by="other"))
    moves = ("release", "void")
    writes = [parties[number % 2].move(moves[number % 4 // 2], contract_id, f"reason {number}") for number in range(16)]
    answers = at_once(16, lambda index: parties[index % 2].store.recorder.write(writes[index]))
    assert Counter(type(answer) for answer in answers) == {ContractSnapshot: 1, WrongState: 15}
    assert state_of(party.standing(contract_id)) in (SETTLED, VOIDED)


# In one transaction


def test_callers_of_one_group_see_what_those_before_them_did(party: Trading) -> None:
    contract_id = party.given().id
    writes = [
        party.move("start", contract_id),
        party.handed_in(contract_id),
        party.move("settle", contract_id),
        party.handed_in(contract_id),
        party.move("dispute", contract_id, "no"),
        party.move("settle", contract_id),
        party.move("take back", contract_id, "yes"),
        party.move("settle", contract_id),
        party.move("void", contract_id, "enough"),
        party.move("void", contract_id, "enough"),
        party.move("reverse", contract_id),
    ]
    answers = together(party.store, writes)
    assert [state_of(one) if isinstance(one, ContractSnapshot) else one.code for one in answers] == [
        *(EXECUTING, SETTLED, SETTLED, SETTLED, DISPUTED, "wrong_state", PENDING, "already_settled", VOIDED, VOIDED),
        "wrong_state",
    ]
    assert answers[1] == answers[2] == answers[3]
    assert answers[-2] == party.standing(contract_id)
    assert event_types(party, contract_id) == [
        *("contract.awarded", "contract.started", "contract.completed", "outcome.recorded", "contract.verified"),
        *("contract.settled", "contract.disputed", "contract.reversed", "contract.resolved", "contract.voided"),
    ]


def test_work_is_found_by_an_award_of_the_same_group(party: Trading) -> None:
    work = party.market.publish(party.actor, parse_work(written()))
    awards = [AwardContract(party.request(), f"con_{number}", work.id, f"a{number}") for number in range(3)]
    early, *found = together(party.store, [awards[0], work, *awards])
    assert isinstance(early, NotFound)
    assert [state_of(one) for one in found[1:]] == [AWARDED] * 3
    assert [one.contract.seq for one in found[1:]] == sorted(one.contract.seq for one in found[1:])
    assert party.standing("con_2") == found[3]


def test_a_release_in_the_group_of_its_completion_loses_nothing(party: Trading) -> None:
    contract_id = party.given().id
    answers = together(party.store, [party.handed_in(contract_id, COPY), party.move("release", contract_id, "fine")])
    assert state_of(answers[0]) == PENDING
    assert isinstance(answers[1], ContractSnapshot | WrongState), answers[1]
    assert state_of(party.do("release", contract_id, "fine")) == SETTLED


def test_work_without_criteria_is_released_in_its_group_or_refused(party: Trading) -> None:
    contract_id = party.given("plain").id
    answers = together(party.store, [party.handed_in(contract_id, LEAKED), party.move("release", contract_id, "fine")])
    assert isinstance(answers[1], ContractSnapshot | WrongState), answers[1]
    assert state_of(party.do("release", contract_id, "fine")) == SETTLED


def test_a_verdict_of_the_same_group_is_the_one_that_is_paid(party: Trading) -> None:
    contract_id = party.given().id
    party.complete(contract_id)
    party.do("reverse", contract_id)
    answers = together(party.store, [party.rescored(contract_id), party.move("settle", contract_id)])
    assert state_of(answers[1]) == SETTLED
    assert answers[1] == party.standing(contract_id)
    assert answers[1].contract.version == 2


def test_a_hold_is_released_once(party: Trading) -> None:
    contract_id = party.given().id
    party.complete(contract_id, COPY)
    other = Trading(party.store, party.tenant, by="another caller")
    writes = [
        party.move("release", contract_id, "fine"),
        other.move("release", contract_id, "fine too"),
        party.move("void", contract_id, "not fine"),
        party.move("release", contract_id, "fine"),
    ]
    answers = together(party.store, writes)
    assert [type(answer) for answer in answers] == [ContractSnapshot, WrongState, WrongState, ContractSnapshot]
    assert answers[0] == answers[3]
    assert answers[0].judgement.version == 2
    assert answers[0].judgement.result.governance is GovernanceStatus.RELEASED
    assert answers[0].judgement.result.governance_flags == ["reference_copy"]
    assert Counter(event_types(party, contract_id))["contract.released"] == 1


def test_completion_and_expiry_in_one_group_exclude_each_other(party: Trading, hands: Hands) -> None:
    for number in range(2):
        contract_id = party.given("brief", agent=f"a{number}").id
        handed = party.handed_in(contract_id)
        hands.pass_h(2)
        # The output came in time, and is written too late.
        order: list[Write[Any]] = [handed, ExpireContracts("clock")] if number else [ExpireContracts("clock"), handed]
        answers = together(party.store, order)
        assert state_of(party.standing(contract_id)) == EXPIRED
        assert {type(answer) for answer in answers} == {int, WrongState}


# Agents, tenants


def test_an_agent_sees_and_changes_only_its_own_contracts(party: Trading) -> None:
    work = party.publish()
    own, others = (
        Trading(party.store, party.tenant, by="key", agent="a1"),
        Trading(party.store, party.tenant, by="key", agent="a2"),
    )
    nameless = Trading(party.store, party.tenant, by="key", agent="")
    contract_id = party.award(work.id, "a1").id
    fresh = AwardContract(party.request(), "con_fresh", work.id, "a1")
    handed = party.handed_in(contract_id)
    foreign = [
        msgspec.structs.replace(write, request=third_party.request())
        for third_party in (others, nameless)
        for contract in (contract_id, "con_fresh")
        for write in [
            msgspec.structs.replace(handed, contract_id=contract),
            *(party.move(m, contract) for m in MOVES if m != "complete"),
        ]
    ]
    # The contract of the same group is hidden as well as the one that is recorded.
    answers = together(party.store, [fresh, party.move("start", contract_id), *foreign])
    assert [type(answer) for answer in answers] == [ContractSnapshot, ContractSnapshot, *[NotFound] * len(foreign)]
    for stranger in (others, nameless):
        with pytest.raises(NotFound):
            stranger.market.find_contract(stranger.actor, contract_id)
    assert state_of(own.complete(contract_id)) == SETTLED


def test_tenants_with_the_same_ids_never_touch_each_others_money(parties: Callable[[], Trading]) -> None:
    one, two, nobody = parties(), parties(), parties()
    store = one.store
    for party in (one, two):
        work = msgspec.structs.replace(party.market.publish(party.actor, parse_work(written())), id="wrk_same")
        store.recorder.write(work)
        party.award("wrk_same", "a1", "con_same")
    same = {"run_id": "r1"}
    answers = together(
        store,
        [
            one.handed_in("con_same", GOOD, same),
            two.handed_in("con_same", GOOD, same),
            one.move("reverse", "con_same"),
            one.move("void", "con_same"),
            nobody.move("reverse", "con_same"),
        ],
    )
    assert [state_of(answer) for answer in answers[:-1]] == [SETTLED, SETTLED, PENDING, VOIDED]
    assert isinstance(answers[-1], NotFound)
    assert balance(one, "agent:a1") == balance(nobody, "agent:a1") == 0
    assert balance(two, "agent:a1") > 0


# What earlier outcomes say


@pytest.mark.parametrize("in_one_group", [True, False])
def test_one_run_is_paid_under_one_contract(party: Trading, in_one_group: bool) -> None:
    work = party.publish()
    first, then = (party.award(work.id).id for _ in range(2))
    writes = [party.handed_in(one, f"{GOOD} {one}", {"run_id": "r1"}) for one in (first, then)]
    answers = together(party.store, writes) if in_one_group else [party.done(write) for write in writes]
    assert [state_of(answer) for answer in answers] == [SETTLED, PENDING]
    assert "duplicate_claim" in answers[1].contract.hold_reason
    judgement = party.standing(then).judgement
    assert judgement is not None
    assert judgement.result is not None
    assert judgement.result.governance is GovernanceStatus.INVALID


@pytest.mark.parametrize("in_one_group", [True, False])
def test_one_run_is_paid_once_also_when_settled_on_request(party: Trading, in_one_group: bool) -> None:
    work = party.publish("on_request")
    ids = [party.award(work.id).id for _ in range(2)]
    for one in ids:
        assert state_of(party.complete(one, f"{GOOD} {one}", {"run_id": "r1"})) == VERIFIED
    writes = [party.move("settle", one) for one in ids]
    if in_one_group:
        answers = together(party.store, writes)
    else:
        answers = at_once(1, lambda _: party.done(writes[0])) + at_once(1, lambda _: party.done(writes[1]))
    assert state_of(answers[0]) == SETTLED
    assert isinstance(answers[1], WrongState)
    assert answers[1].code == "duplicate_claim"
    # A person may still call it off: no money is stuck.
    assert state_of(party.do("void", ids[1])) == VOIDED
    assert balance(party, "escrow") == 0


@pytest.mark.parametrize("in_one_group", [True, False])
def test_a_run_whose_payment_was_reversed_can_be_paid_again(party: Trading, in_one_group: bool) -> None:
    work = party.publish()
    first, then, late = (party.award(work.id).id for _ in range(3))
    assert state_of(party.complete(first, GOOD, {"run_id": "r1"})) == SETTLED
    writes = [party.move("reverse", first), party.handed_in(then, f"{GOOD} then", {"run_id": "r1"})]
    answers = together(party.store, writes) if in_one_group else [party.done(write) for write in writes]
    assert [state_of(answer) for answer in answers] == [PENDING, SETTLED]
    # It is paid once all the same.
    assert "duplicate_claim" in party.complete(late, f"{GOOD} late", {"run_id": "r1"}).contract.hold_reason


def test_only_a_flagged_second_claim_can_be_released(party: Trading) -> None:
    work = party.publish()
    held, paid, flagged = (party.award(work.id).id for _ in range(3))
    run = {"run_id": "r1"}
    assert state_of(party.complete(held, COPY, run)) == PENDING
    assert state_of(party.complete(paid, GOOD, run)) == SETTLED
    assert state_of(party.complete(flagged, f"{GOOD} once more", run)) == PENDING
    with pytest.raises(WrongState, match=paid) as refused:
        party.do("release", held)
    assert refused.value.code == "duplicate_claim"
    assert state_of(party.do("void", held)) == VOIDED
    # Here the output is flagged, and the release overrules the flag.
    assert state_of(party.do("release", flagged)) == SETTLED


@pytest.mark.parametrize("in_one_group", [True, False])
@pytest.mark.parametrize(("agent", "flag"), [("a1", "replayed_output"), ("a2", "sybil_output")])
def test_one_long_output_for_two_inputs_is_held(party: Trading, agent: str, flag: str, in_one_group: bool) -> None:
    first = party.given().id
    then = party.given(agent=agent, input={"reference": REFERENCE, "question": "another"}).id
    writes = [party.handed_in(one, GOOD) for one in (first, then)]
    answers = together(party.store, writes) if in_one_group else [party.done(write) for write in writes]
    assert [state_of(answer) for answer in answers] == [SETTLED, PENDING]
    assert flag in answers[1].contract.hold_reason


def test_a_refused_submission_leaves_no_history(party: Trading) -> None:
    done, other = party.given().id, party.given(input={"reference": REFERENCE, "question": "another"}).id
    party.complete(done, "something else")
    long = "a long answer that no other agent would give, word for word, to any question at all " * 2
    answers = together(
        party.store,
        [party.handed_in(done, long, {"run_id": "r9"}), party.handed_in(other, long, {"run_id": "r9"})],
    )
    assert isinstance(answers[0], WrongState)
    assert state_of(answers[1]) == SETTLED


# Erasing


@pytest.mark.parametrize("kind", ["usual", "plain"])
def test_an_erased_result_is_not_paid_and_can_be_voided(party: Trading, kind: str) -> None:
    contract_id = party.given(kind).id
    held = party.complete(contract_id, LEAKED)
    assert held.contract.outcome_id is not None
    erase(party.store, party.tenant, held.contract.outcome_id, "asked to")
    assert party.broken() == []
    before = everything(party.store, party.tenant)
    for move in ("release", "settle"):
        with pytest.raises(WrongState) as refused:
            party.do(move, contract_id)
        assert (refused.value.code, "void it" in str(refused.value)) == ("erased", True)
    assert everything(party.store, party.tenant) == before
    standing = party.do("void", contract_id)
    assert state_of(standing) == VOIDED
    assert standing.judgement is not None
    assert standing.judgement.result is None
    assert contracts.to_contract_view(standing).outcome is not None


def test_a_paid_and_erased_contract_can_be_reversed(party: Trading) -> None:
    contract_id = party.given().id
    paid = party.complete(contract_id)
    assert paid.contract.outcome_id is not None
    erase(party.store, party.tenant, paid.contract.outcome_id, "asked to")
    assert party.standing(contract_id).bill == paid.bill
    assert party.done(party.handed_in(contract_id)).bill == paid.bill
    assert state_of(party.do("reverse", contract_id)) == PENDING
    with pytest.raises(WrongState) as refused:
        party.do("settle", contract_id)
    assert refused.value.code == "erased"
    assert state_of(party.do("void", contract_id)) == VOIDED


def test_what_the_same_group_erased_is_not_paid(party: Trading) -> None:
    contract_id = party.given().id
    held = party.complete(contract_id, COPY)
    assert held.contract.outcome_id is not None
    gone = Erase(party.tenant, held.contract.outcome_id, "asked to")
    answers = together(party.store, [gone, party.move("release", contract_id), party.move("settle", contract_id)])
    assert [getattr(answer, "code", "") for answer in answers] == ["", "erased", "erased"]


def test_what_governance_went_by_is_erased_with_its_outcome(party: Trading) -> None:
    paid = party.complete(party.given().id)
    assert paid.contract.outcome_id is not None
    erase(party.store, party.tenant, paid.contract.outcome_id, "asked to")
    with party.store.database.reading() as connection:
        table = tables.governance_checks
        (row,) = connection.execute(select(table).where(table.c.tenant == party.tenant)).all()
    assert (row.body, row.salt) == (None, None)


# Statements


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def busy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trading]:
    """A tenant whose contracts went every way, an hour apart."""
    url = request.getfixturevalue("new_postgres")() if request.param == "postgresql" else None
    hands = Hands()
    store = Store.open(Location(tmp_path_factory.mktemp("busy"), url), ClockAndEntropy(clock=hands))
    trading = Trading(store)
    for number, situation in enumerate([*SITUATIONS, "settled", "upheld", "reversed"]):
        contract_id = reached(trading, hands, situation, f" {number}")
        for move in [*ALLOWED[situation]][-1:]:
            hands.pass_h(0.5)
            trading.store.recorder.write(made(trading, move, contract_id))
        hands.pass_h(0.5)
    yield trading
    store.close()


HOURS = 26
moments = st.none() | st.integers(-1, HOURS * 4).map(lambda quarters: BEGINNING + timedelta(minutes=15 * quarters))


@pytest.fixture(scope="module")
def whole(busy: Trading) -> list[ledger.Statement]:
    """What each account did from the first hour to the last."""
    with busy.store.database.reading() as connection:
        accounts = ledger.balances(connection, TENANT, escrows=True)
        found = [ledger.statement(connection, TENANT, one.account, one.currency) for one in accounts]
        assert find_violations(ledger.books(connection, TENANT)) == []
    assert [one.closing for one in found] == [one.micros for one in accounts]
    return found


@settings(max_examples=40)
@given(since=moments, until=moments)
def test_every_statement_adds_up_and_all_of_them_come_to_nothing(
    busy: Trading, whole: list[ledger.Statement], since: Any, until: Any
) -> None:
    with busy.store.database.reading() as connection:
        statements = [ledger.statement(connection, TENANT, one.account, one.currency, since, until) for one in whole]
    for one in statements:
        balances = [one.opening]
        for line in one.lines:
            balances.append(balances[-1] + line.micros)
            assert line.balance == balances[-1]
            assert since is None or line.at >= since
            assert until is None or line.at < until
        assert one.closing == balances[-1]
    if until is None or since is None or since <= until:
        # What was before, and what is inside, is all that was before the end.
        for part, all_of_it in zip(statements, whole, strict=True):
            earlier = [line.micros for line in all_of_it.lines if until is None or line.at < until]
            assert part.closing == sum(earlier)
        assert sum(one.closing for one in statements) == sum(one.opening for one in statements) == 0


def test_the_escrow_of_all_contracts_is_what_the_others_miss(busy: Trading) -> None:
    with busy.store.database.reading() as connection:
        short = {one.account: one.micros for one in ledger.balances(connection, TENANT)}
        full = ledger.balances(connection, TENANT, escrows=True)
    assert short.pop("escrow") == sum(one.micros for one in full if one.account.startswith("escrow:")) > 0
    assert short == {one.account: one.micros for one in full if not one.account.startswith("escrow:")}


def test_a_statement_of_an_unknown_account_is_empty(busy: Trading) -> None:
    with busy.store.database.reading() as connection:
        for tenant, account, currency in (
            ("x", "agent:a1", "USD"),
            (TENANT, "nobody", "USD"),
            (TENANT, PLATFORM, "EUR"),
        ):
            found = ledger.statement(connection, tenant, account, currency, BEGINNING)
            assert (found.opening, found.closing, found.lines) == (0, 0, [])


# Governance off


def test_without_governance_a_clear_verdict_is_paid(party: Trading) -> None:
    party.market = Marketplace(party.market.registrar, policy=None)
    contract_id = party.given().id
    assert state_of(party.complete(contract_id, LEAKED)) == SETTLED
    table = tables.governance_checks
    with party.store.database.reading() as connection:
        assert connection.execute(select(table).where(table.c.tenant == party.tenant)).all() == []
