"""Whatever is done with a contract, its books are sound and its bundle proves how it was timed, judged and paid."""

import shutil
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contracts.trading import BEGINNING, COPY, GOOD, WEAK, Hands, Trading

from meruit.audit.export import export
from meruit.audit.verify.outcome import verify_bundle
from meruit.contracts.transitions import RecordInputRead
from meruit.errors import BadAmount, WrongState
from meruit.model.access import Scope
from meruit.store.location import Location
from meruit.store.store import ClockAndEntropy, Store

_NUMBERS = count()
MOVES = (
    "settle",
    "release",
    "void",
    "reverse",
    "dispute",
    "dispute",
    "uphold",
    "take back",
    "undo",
    "adjust",
    "adjust",
)
before_output = st.lists(st.sampled_from(["read", "start"]), max_size=3)
after_output = st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 110_000)), max_size=8)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new data directory, made once and copied for each example."""
    folder = tmp_path_factory.mktemp("pristine") / "data"
    Store.open(Location(folder), ClockAndEntropy(clock=lambda: BEGINNING)).close()
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples")


@settings(max_examples=25, deadline=None)
@given(
    before_output,
    st.sampled_from([GOOD, WEAK, COPY]),
    after_output,
    st.sampled_from(["input", "award", "start"]),
    st.booleans(),
)
def test_every_story_of_a_contract_can_be_proven(
    pristine: Path,
    place: Path,
    begun: list[str],
    output: str,
    moves: list[tuple[str, int]],
    latency_from: str,
    by_agent: bool,
) -> None:
    folder, hands = place / f"example-{next(_NUMBERS)}", Hands()
    shutil.copytree(pristine, folder)
    store = Store.open(Location(folder), ClockAndEntropy(clock=hands))
    try:
        operator = Trading(store)
        agent = Trading(store, agent="a1", by="key of a1") if by_agent else operator
        contract = operator.given("timed", terms={"latency_from": latency_from})
        for step in begun:
            hands.now += timedelta(milliseconds=300)
            if step == "read":
                store.recorder.write(RecordInputRead(Trading(store, agent="a1").actor, contract.work_id))
            else:
                _try(agent, "start", contract.id, 0)
        hands.now += timedelta(milliseconds=300)
        done = agent.done(agent.handed_in(contract.id, output, {"duration_ms": 100}, by_agent=by_agent)).contract
        for name, micros in moves:
            hands.now += timedelta(seconds=2)
            _try(operator, name, contract.id, micros)
            assert operator.broken() == []
        hands.now += timedelta(seconds=2)
        bundle = export(store, Scope(operator.tenant), done.outcome_id or "", sleep=lambda _seconds: None)
        found = verify_bundle(bundle, key=store.signer.verifier)
        assert found.failed is None, found
    finally:
        store.close()


def _try(party: Trading, name: str, contract_id: str, micros: int) -> None:
    """A move that may be refused; then it changes nothing."""
    before = party.standing(contract_id)
    try:
        party.done(party.adjust(contract_id, micros) if name == "adjust" else party.move(name, contract_id))
    except (WrongState, BadAmount):
        assert party.standing(contract_id) == before
