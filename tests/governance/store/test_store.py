"""What is remembered between outcomes: whose an output is, and which runs are paid for, in one group or in several."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import select
from tests.events.emitting import read
from tests.outcomes.making import together
from tests.sampling import examples

from meruit.errors import MeruitError
from meruit.governance.history import SubmissionFingerprints
from meruit.governance.store import (
    add_history,
    find_paid_contract,
    forget_paid_evidence,
    record_history,
    record_paid_evidence,
)
from meruit.model.contract import Contract, ContractState, Escrow
from meruit.model.governance import Action, Dossier, Flag, GovernanceResult
from meruit.store import tables
from meruit.store.location import Location
from meruit.store.recorder import Write
from meruit.store.store import Store
from meruit.store.transaction import WriteTransaction

NOW = datetime(2026, 3, 1, tzinfo=UTC)
EVIDENCE = "e" * 64
OUTPUT = "o" * 64
_NUMBERS = count()


def contract_of(contract_id: str, agent: str = "a1", evidence: str | None = EVIDENCE) -> Contract:
    made = Contract(
        *(contract_id, 1, "w", agent, "buyer", None, ContractState.EXECUTING, Escrow.HELD, "USD", 0, b"{}"),
        awarded_at=NOW,
        expires_at=NOW,
    )
    return msgspec.structs.replace(made, evidence=evidence)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One store for many tenants."""
    opened = Store.open(Location(tmp_path_factory.mktemp("memory")))
    yield opened
    opened.close()


def new_tenant() -> str:
    return f"t{next(_NUMBERS)}"


def paid(store: Store, tenant: str) -> list[str]:
    """The contracts under which the run is paid."""
    table = tables.settled_evidence
    query = select(table.c.contract_id).where(table.c.tenant == tenant, table.c.evidence == EVIDENCE, table.c.live == 1)
    return sorted(row[0] for row in read(store, lambda connection: connection.execute(query).all()))


def settling(tenant: str, contract_id: str, *, refused: bool = False, released: bool = False) -> Write[bool]:
    """Pay for the run, unless another contract was paid and no person releases it; returns whether one was."""

    def write(writing: WriteTransaction) -> bool:
        contract = contract_of(contract_id)
        is_paid = find_paid_contract(writing, tenant, contract, EVIDENCE) is not None
        if released or not is_paid:
            record_paid_evidence(writing, tenant, contract, EVIDENCE)
        if refused:
            raise MeruitError("no")
        return is_paid

    return write


def releasing(tenant: str, contract_id: str, *, refused: bool = False) -> Write[bool]:
    return settling(tenant, contract_id, refused=refused, released=True)


def taking_back(tenant: str, contract_id: str, *, refused: bool = False) -> Write[bool]:
    def write(writing: WriteTransaction) -> bool:
        forget_paid_evidence(writing, tenant, contract_of(contract_id))
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
    assert paid(shared, tenant) == sorted(owners)


@pytest.mark.parametrize("in_one_group", [True, False])
def test_a_reversed_run_may_be_paid_again(store: Store, in_one_group: bool) -> None:
    writes = [
        *(settling("t", "A"), settling("t", "B"), taking_back("t", "B"), taking_back("t", "A")),
        *(settling("t", "A"), taking_back("t", "A"), settling("t", "B"), settling("t", "A")),
    ]
    answers = together(store, writes) if in_one_group else [store.recorder.write(write) for write in writes]
    assert answers == [False, True, False, False, False, False, False, True]
    assert paid(store, "t") == ["B"]


def test_a_run_without_a_fingerprint_is_not_forgotten(store: Store) -> None:
    store.recorder.write(settling("t", "A"))
    store.recorder.write(lambda writing: forget_paid_evidence(writing, "t", contract_of("A", evidence=None)))
    store.recorder.write(taking_back("another tenant", "A"))
    assert paid(store, "t") == ["A"]


# Whose an output is.

CLEAR = GovernanceResult(valid=True)
INVALID = GovernanceResult(valid=False)
COPY = GovernanceResult(valid=True, flags=[Flag("sybil_output", "1", Action.HOLD)])


def completing(contract: Contract, task: str, said: GovernanceResult | None, given: str = "i") -> Write[Dossier]:
    """Remember an outcome; answers what was known before it."""
    marks = SubmissionFingerprints(given, OUTPUT, None, "0" * 16, task)

    def write(writing: WriteTransaction) -> Dossier:
        known = add_history(writing, "t", contract, Dossier(), marks)
        more: dict[str, Any] = {} if said is None else {"result": said}
        record_history(writing, "t", contract, Dossier(), marks, mismatch=False, **more)
        return known

    return write


def histories(store: Store, in_one_group: bool, *writes: Write[Dossier]) -> list[tuple[str | None, str | None, int]]:
    answers = together(store, writes) if in_one_group else [store.recorder.write(write) for write in writes]
    pasts = [answer.history for answer in answers]
    return [(past.replayed_in, past.shared_with, past.near_duplicates) for past in pasts]


@pytest.mark.parametrize("in_one_group", [True, False])
def test_another_task_with_the_same_input_is_another_task(store: Store, in_one_group: bool) -> None:
    assert histories(
        *(store, in_one_group),
        completing(contract_of("c1"), "one", None),
        completing(contract_of("c2"), "one", CLEAR),
        completing(contract_of("c3"), "two", CLEAR),
        completing(contract_of("c4", "a2"), "two", CLEAR),
    ) == [(None, None, 0), (None, None, 1), ("c1", None, 2), (None, "a1", 0)]


@pytest.mark.parametrize("in_one_group", [True, False])
def test_without_a_task_the_input_identifies_the_work(store: Store, in_one_group: bool) -> None:
    found = histories(
        *(store, in_one_group), completing(contract_of("c1"), "", None), completing(contract_of("c2"), "", None, "j")
    )
    assert found == [(None, None, 0), ("c1", None, 0)]


@pytest.mark.parametrize("in_one_group", [True, False])
@pytest.mark.parametrize("said", [INVALID, COPY])
def test_an_invalid_copy_makes_no_other_output_a_copy(store: Store, in_one_group: bool, said: GovernanceResult) -> None:
    found = histories(
        *(store, in_one_group),
        completing(contract_of("c1", "thief"), "another", said),
        completing(contract_of("c2"), "one", CLEAR),
        completing(contract_of("c3", "thief"), "another", CLEAR),
    )
    # The attempt itself is counted all the same.
    assert found == [(None, None, 0), (None, None, 0), (None, "a1", 1)]
