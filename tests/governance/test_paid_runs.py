"""Which runs are paid for: in one group or in several, and where a database writer hides payments."""

from collections.abc import Callable, Iterator
from itertools import count

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import Connection, select, update
from tests.events.emitting import read
from tests.governance.store.test_store import EVIDENCE, contract_of
from tests.outcomes.making import together
from tests.sampling import examples

from meruit.errors import MeruitError, RecordTampered
from meruit.governance.paid_runs import (
    find_paid_contract,
    find_paid_contract_now,
    forget_run_payment,
    record_run_payment,
)
from meruit.log.entries import ReversalEntry, SettlementEntry, run_sequence
from meruit.store import tables
from meruit.store.location import Location
from meruit.store.recorder import Write
from meruit.store.store import Store
from meruit.store.transaction import WriteTransaction

_NUMBERS = count()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One store for many tenants."""
    opened = Store.open(Location(tmp_path_factory.mktemp("paid_runs")))
    yield opened
    opened.close()


@pytest.fixture
def tenant() -> str:
    return new_tenant()


def new_tenant() -> str:
    return f"t{next(_NUMBERS)}"


def payers(store: Store, tenant: str) -> list[str]:
    """The contracts of which others hear that the run is paid."""

    def ask(connection: Connection) -> list[str | None]:
        return [find_paid_contract_now(connection, tenant, contract_of(one), EVIDENCE) for one in "ABC"]

    return sorted({one for one in read(store, ask) if one is not None})


def log_money(writing: WriteTransaction, tenant: str, contract_id: str, *, paid: bool) -> None:
    """The entry that a settlement or a reversal writes."""
    number = writing.next_in_contract(tenant, contract_id)
    header = (writing.now.written, tenant, "out", contract_id, number, 1)
    entry = (
        SettlementEntry(*header, 1, "USD", 0, 0, 0, 0, 0, 0, 0, "", "me", "")
        if paid
        else ReversalEntry(*header, "USD", 0, "me", "")
    )
    writing.append(entry, tenant, contract_id, number)


def settling(tenant: str, contract_id: str, *, refused: bool = False, released: bool = False) -> Write[bool]:
    """Pay for the run, unless another contract was paid and no person releases it; returns whether one was."""

    def write(writing: WriteTransaction) -> bool:
        contract = contract_of(contract_id)
        is_paid = find_paid_contract(writing, tenant, contract, EVIDENCE) is not None
        if released or not is_paid:
            log_money(writing, tenant, contract_id, paid=True)
            record_run_payment(writing, tenant, contract, EVIDENCE)
        if refused:
            raise MeruitError("no")
        return is_paid

    return write


def releasing(tenant: str, contract_id: str, *, refused: bool = False) -> Write[bool]:
    return settling(tenant, contract_id, refused=refused, released=True)


def taking_back(tenant: str, contract_id: str, *, refused: bool = False) -> Write[bool]:
    def write(writing: WriteTransaction) -> bool:
        log_money(writing, tenant, contract_id, paid=False)
        forget_run_payment(writing, tenant, contract_of(contract_id))
        if refused:
            raise MeruitError("no")
        return False

    return write


MOVES: dict[str, Callable[..., Write[bool]]] = {"settle": settling, "release": releasing, "take back": taking_back}
CLAIM = ("settle", "C", False, True)
STEPS = st.lists(
    st.tuples(st.sampled_from([*MOVES]), st.sampled_from("ABC"), st.booleans(), st.booleans()),
    max_size=10,
)


@examples(40)
@given(STEPS)
# Paid, released by a person, reversed, and claimed by a third contract.
@example([("settle", "A", False, False), ("release", "B", False, True), ("take back", "A", False, True), CLAIM])
def test_a_run_is_paid_twice_only_by_a_persons_word(shared: Store, steps: list[tuple[str, str, bool, bool]]) -> None:
    tenant, owners = new_tenant(), set[str]()
    groups: list[list[Write[bool]]] = [[]]
    expected: list[bool] = []
    for move, who, refused, new_group in steps:
        if new_group:
            groups.append([])
        groups[-1].append(MOVES[move](tenant, who, refused=refused))
        if refused:
            continue
        others = bool(owners - {who})
        expected.append(move != "take back" and others)
        if move == "release" or (move == "settle" and not others):
            owners.add(who)
        elif move == "take back":
            owners.discard(who)
    answers = [answer for group in groups for answer in together(shared, group)]
    assert [answer for answer in answers if not isinstance(answer, MeruitError)] == expected
    seen = {one for one in "ABC" if owners - {one}}
    heard = read(
        shared,
        lambda connection: {
            one for one in "ABC" if find_paid_contract_now(connection, tenant, contract_of(one), EVIDENCE) is not None
        },
    )
    assert heard == seen


@pytest.mark.parametrize("in_one_group", [True, False])
def test_a_reversed_run_may_be_paid_again(shared: Store, tenant: str, in_one_group: bool) -> None:
    writes = [
        *(settling(tenant, "A"), settling(tenant, "B"), taking_back(tenant, "B"), taking_back(tenant, "A")),
        *(settling(tenant, "A"), taking_back(tenant, "A"), settling(tenant, "B"), settling(tenant, "A")),
    ]
    answers = together(shared, writes) if in_one_group else [shared.recorder.write(write) for write in writes]
    assert answers == [False, True, False, False, False, False, False, True]
    assert payers(shared, tenant) == ["B"]


def test_a_run_without_a_fingerprint_is_paid_by_nobody(shared: Store, tenant: str) -> None:
    shared.recorder.write(settling(tenant, "A"))
    shared.recorder.write(lambda writing: forget_run_payment(writing, tenant, contract_of("A", evidence=None)))
    shared.recorder.write(taking_back("another tenant", "A"))
    assert payers(shared, tenant) == ["A"]
    assert shared.recorder.write(lambda writing: find_paid_contract(writing, tenant, contract_of("B"), None)) is None
    assert read(shared, lambda connection: find_paid_contract_now(connection, tenant, contract_of("B"), None)) is None


@pytest.mark.parametrize("name", ["A", run_sequence(EVIDENCE)])
def test_a_payment_that_is_hidden_is_missed(shared: Store, tenant: str, name: str) -> None:
    leaves = tables.log_leaves
    shared.recorder.write(settling(tenant, "A"))
    with shared.database.writer.begin() as connection:
        mine = (leaves.c.tenant == tenant) & (leaves.c.contract_id == name)
        connection.execute(update(leaves).where(mine).values(contract_id=None, contract_seq=None))
    with pytest.raises(RecordTampered):
        shared.recorder.write(settling(tenant, "B"))


@pytest.mark.parametrize("change", ["first", "body"])
def test_a_payment_that_is_changed_is_noticed_by_any_process(
    tmp_path_factory: pytest.TempPathFactory, change: str
) -> None:
    place, leaves = Location(tmp_path_factory.mktemp("changed")), tables.log_leaves
    store = Store.open(place)
    for move in (settling("t", "A"), releasing("t", "B")):
        store.recorder.write(move, sign_now=True)
    mine = (leaves.c.contract_id == run_sequence(EVIDENCE)) & (leaves.c.contract_seq == 1)
    with store.database.writer.begin() as connection:
        body = bytes(connection.execute(select(leaves.c.body).where(mine)).scalar_one())
        forged = {"body": body.replace(b'"A"', b'"C"')} if change == "body" else {"contract_id": None}
        connection.execute(update(leaves).where(mine).values(**forged))
    store.close()
    store = Store.open(place)
    with pytest.raises(RecordTampered):
        store.recorder.write(settling("t", "C"))
    store.close()
