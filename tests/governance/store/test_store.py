"""What is remembered between outcomes: whose an output is, in one group or in several."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from typing import Any

import msgspec
import pytest
from tests.outcomes.making import together

from meruit.governance.history import SubmissionFingerprints
from meruit.governance.store import add_history, record_history
from meruit.model.contract import Contract, ContractState, Escrow
from meruit.model.governance import Action, Dossier, Flag, GovernanceResult
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
        contract_id,
        1,
        "w",
        agent,
        "buyer",
        None,
        ContractState.EXECUTING,
        Escrow.HELD,
        "USD",
        0,
        b"{}",
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
        store,
        in_one_group,
        completing(contract_of("c1"), "one", None),
        completing(contract_of("c2"), "one", CLEAR),
        completing(contract_of("c3"), "two", CLEAR),
        completing(contract_of("c4", "a2"), "two", CLEAR),
    ) == [(None, None, 0), (None, None, 1), ("c1", None, 2), (None, "a1", 0)]


@pytest.mark.parametrize("in_one_group", [True, False])
def test_without_a_task_the_input_identifies_the_work(store: Store, in_one_group: bool) -> None:
    found = histories(
        store, in_one_group, completing(contract_of("c1"), "", None), completing(contract_of("c2"), "", None, "j")
    )
    assert found == [(None, None, 0), ("c1", None, 0)]


@pytest.mark.parametrize("in_one_group", [True, False])
@pytest.mark.parametrize("said", [INVALID, COPY])
def test_an_invalid_copy_makes_no_other_output_a_copy(store: Store, in_one_group: bool, said: GovernanceResult) -> None:
    found = histories(
        store,
        in_one_group,
        completing(contract_of("c1", "thief"), "another", said),
        completing(contract_of("c2"), "one", CLEAR),
        completing(contract_of("c3", "thief"), "another", CLEAR),
    )
    # The attempt itself is counted all the same.
    assert found == [(None, None, 0), (None, None, 0), (None, "a1", 1)]
