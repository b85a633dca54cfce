"""An agent's time counts from the event of the terms, by the service's clock; what is recorded gives it again."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select
from tests.contracts.trading import BEGINNING, GOOD, Hands, Trading

from meruit.contracts.latency import MEASURED_TIMES, ContractTimes, find_latency_basis, measure_latency
from meruit.contracts.store import read as contracts
from meruit.contracts.store.input_reads import is_first_read
from meruit.contracts.store.read import ContractSnapshot, to_agent_contract, to_contract_view
from meruit.contracts.transitions import AwardContract, ExpireContracts, RecordInputRead
from meruit.errors import MeruitError, WrongState
from meruit.log.entries import InputReadEntry, StartEntry, read_entry
from meruit.model.access import Scope
from meruit.model.contract import Contract, LatencyFrom, Terms
from meruit.model.verdict import Status
from meruit.store import tables
from meruit.store.location import Location
from meruit.store.store import ClockAndEntropy, Store

QUICK = {"metric": "latency_ms", "metric_type": "latency", "comparison": "lte", "threshold": 2000, "bonus": "0.01"}
WORDS = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 3}
TIMED: dict[str, Any] = {"success_criteria": {"criteria": [WORDS, {**QUICK, "required": False}]}, "budget": {}}
BONUS = 10_000
moments = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - made aware


# The rule.


@given(moments, st.none() | moments, st.none() | moments)
def test_time_counts_from_the_event_of_the_terms(
    awarded: datetime, read: datetime | None, started: datetime | None
) -> None:
    times = ContractTimes(awarded, read, started)
    found = {mode: find_latency_basis(times, mode) for mode in LatencyFrom}
    assert (found[LatencyFrom.AWARD].event, found[LatencyFrom.AWARD].at) == ("award", awarded)
    late = read is not None and read > awarded
    assert found[LatencyFrom.INPUT].at == (read if late else awarded)
    assert found[LatencyFrom.INPUT].event == ("input_read" if late else "award")
    assert found[LatencyFrom.START].at == (started or awarded)
    assert found[LatencyFrom.START].event == ("award" if started is None else "start")


@given(moments, st.none() | moments, st.none() | moments, moments, st.sampled_from(LatencyFrom))
def test_no_start_makes_an_agent_faster_than_the_clock_says(
    awarded: datetime, read: datetime | None, started: datetime | None, received: datetime, mode: LatencyFrom
) -> None:
    measured = measure_latency(ContractTimes(awarded, read, started), mode, received)
    assert measured.keys() <= {*MEASURED_TIMES}
    assert measured["duration_ms"] >= 0
    assert ("observed_ms" in measured) == (started is not None)
    if mode is not LatencyFrom.START:
        unstarted = measure_latency(ContractTimes(awarded, read), mode, received)
        assert measured["duration_ms"] == unstarted["duration_ms"]


def test_terms_without_a_word_count_from_the_input() -> None:
    assert Terms().latency_from is LatencyFrom.INPUT
    with pytest.raises(ValueError, match="latency_from"):
        Terms.model_validate({"latency_from": "claimed"})


# An agent that reads, starts and hands in.


class AgentAtWork(Trading):
    """An operator's market, and what the agent a1 does in it."""

    def __init__(self, store: Store, hands: Hands) -> None:
        super().__init__(store)
        self.hands = hands
        self.agent = Trading(store, agent="a1", by="key of a1")

    def wait(self, seconds: float) -> None:
        self.hands.pass_h(seconds / 3600)

    def timed(self, **terms: Any) -> Contract:
        return self.award(self.publish(**TIMED, terms=terms).id)

    def read(self, work_id: str) -> int:
        return self.store.recorder.write(RecordInputRead(self.agent.actor, work_id))

    def hand_in(self, contract_id: str, **claims: Any) -> ContractSnapshot:
        return self.agent.done(self.agent.handed_in(contract_id, GOOD, claims, by_agent=True))

    def bonus(self, contract_id: str, **claims: Any) -> int:
        """What an agent earns for being quick."""
        done = self.hand_in(contract_id, **claims)
        assert done.bill is not None
        return done.bill.bonus

    # Any: entries of several kinds.
    def entries(self, contract_id: str, kind: type) -> list[Any]:
        table = tables.log_leaves
        with self.store.database.reading() as connection:
            rows = connection.execute(select(table.c.body).where(table.c.contract_id == contract_id)).scalars()
            return [entry for entry in map(read_entry, rows) if isinstance(entry, kind)]


@pytest.fixture
def market(tmp_path: Path) -> Iterator[AgentAtWork]:
    hands = Hands()
    store = Store.open(Location(tmp_path), ClockAndEntropy(clock=hands))
    try:
        found = AgentAtWork(store, hands)
        yield found
        assert found.broken() == []
    finally:
        store.close()


def test_a_late_start_earns_no_latency_bonus(market: AgentAtWork) -> None:
    contract = market.timed()
    market.read(contract.work_id)
    market.wait(600)
    market.agent.do("start", contract.id)
    market.wait(1)
    assert market.bonus(contract.id, duration_ms=900) == 0


def test_a_quick_answer_to_the_input_earns_the_bonus(market: AgentAtWork) -> None:
    contract = market.timed()
    market.wait(3600)
    assert market.read(contract.work_id) == 1
    market.wait(1.5)
    done = market.hand_in(contract.id)
    assert done.bill is not None
    assert done.bill.bonus == BONUS
    view = to_contract_view(done)
    assert view.latency_basis is not None
    assert (view.latency_basis.event, view.latency_basis.at) == ("input_read", BEGINNING + timedelta(hours=1))
    assert to_agent_contract(done).latency_basis == view.latency_basis
    result = done.judgement.result if done.judgement else None
    assert result is not None
    assert result.metrics["latency_ms"] == 1500


def test_input_that_was_never_read_here_counts_from_the_award(market: AgentAtWork) -> None:
    contract = market.timed()
    market.wait(3)
    market.agent.do("start", contract.id)
    assert market.bonus(contract.id) == 0


def test_a_claim_just_below_the_clock_earns_nothing(market: AgentAtWork) -> None:
    contract = market.timed()
    market.read(contract.work_id)
    market.wait(2.1)
    assert market.bonus(contract.id, duration_ms=1990) == 0


def test_a_start_counts_where_the_terms_say_so(market: AgentAtWork) -> None:
    contract = market.timed(latency_from="start")
    market.read(contract.work_id)
    market.wait(600)
    market.agent.do("start", contract.id)
    market.wait(1)
    assert market.bonus(contract.id) == BONUS
    (entry,) = market.entries(contract.id, StartEntry)
    assert (entry.by, entry.outcome) == ("key of a1", "")


def test_terms_may_count_from_the_award(market: AgentAtWork) -> None:
    contract = market.timed(latency_from="award")
    market.wait(3)
    market.read(contract.work_id)
    assert market.bonus(contract.id) == 0


def test_waiting_before_a_start_is_not_held_against_a_claim(market: AgentAtWork) -> None:
    """The agent says how long it worked; the service knows how long it had the input."""
    contract = market.timed()
    market.read(contract.work_id)
    market.wait(60)
    done = market.hand_in(contract.id, duration_ms=500)
    result = done.judgement.result if done.judgement else None
    assert result is not None
    assert "latency_mismatch" not in result.governance_flags
    assert [one.status for one in result.criterion_results] == [Status.MET, Status.NOT_MET]


def test_a_claim_below_the_time_since_the_start_is_flagged(market: AgentAtWork) -> None:
    contract = market.timed()
    market.agent.do("start", contract.id)
    market.wait(60)
    done = market.hand_in(contract.id, duration_ms=500)
    assert done.judgement is not None
    assert done.judgement.result is not None
    assert "latency_mismatch" in done.judgement.result.governance_flags


def test_what_an_operator_measured_is_not_replaced(market: AgentAtWork) -> None:
    contract = market.timed()
    market.wait(60)
    done = market.complete(contract.id, GOOD, {"duration_ms": 700})
    assert done.bill is not None
    assert done.bill.bonus == BONUS


# Which read counts.


def test_only_the_first_read_counts(market: AgentAtWork) -> None:
    contract = market.timed()
    market.wait(1)
    first = market.hands.now
    assert market.read(contract.work_id) == 1
    market.wait(60)
    assert market.read(contract.work_id) == 0
    assert market.standing(contract.id).contract.input_read_at == first
    assert len(market.entries(contract.id, InputReadEntry)) == 1


def test_reads_at_once_are_recorded_once(market: AgentAtWork) -> None:
    contract = market.timed()
    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(market.read, [contract.work_id] * 24)) == 1
    assert len(market.entries(contract.id, InputReadEntry)) == 1


def test_one_read_counts_for_every_open_contract_on_the_work(market: AgentAtWork) -> None:
    work = market.publish(**TIMED)
    both = [market.award(work.id), market.award(work.id)]
    other, done = market.award(work.id, "a2"), market.award(work.id)
    market.hand_in(done.id)
    market.wait(5)
    assert market.read(work.id) == 2
    reads = [market.standing(one.id).contract.input_read_at for one in (*both, other, done)]
    assert reads == [market.hands.now, market.hands.now, None, None]


def test_an_agent_that_knows_the_input_is_timed_from_the_award(market: AgentAtWork) -> None:
    """It read the work under a contract that was voided, and reads it again late."""
    first = market.timed()
    market.read(first.work_id)
    market.do("void", first.id)
    market.wait(60)
    again = market.award(first.work_id)
    assert again.input_read_at == again.awarded_at == market.hands.now
    assert len(market.entries(again.id, InputReadEntry)) == 1
    market.wait(60)
    assert market.read(first.work_id) == 0
    view = to_contract_view(market.standing(again.id))
    assert view.latency_basis is not None
    assert (view.latency_basis.event, view.latency_basis.at) == ("award", again.awarded_at)
    assert market.bonus(again.id) == 0


def test_a_read_and_an_award_in_one_group_know_each_other(market: AgentAtWork) -> None:
    first = market.timed()

    def both(writing: Any) -> Contract:
        RecordInputRead(market.agent.actor, first.work_id)(writing)
        award = AwardContract(market.request(), market.store.surroundings.new_id("con"), first.work_id, "a1")
        return award(writing).contract

    assert market.store.recorder.write(both).input_read_at == market.hands.now


def test_a_contract_that_ended_is_not_read(market: AgentAtWork) -> None:
    voided, expired = market.timed(), market.award(market.publish("brief").id)
    market.do("void", voided.id)
    market.wait(2 * 3600)
    assert market.store.recorder.write(ExpireContracts("clock")) == 1
    assert [market.read(voided.work_id), market.read(expired.work_id)] == [0, 0]

    def ended_first(writing: Any) -> int:
        """Void and read in one group: the database still has the contract open."""
        market.move("void", open_one.id)(writing)
        return RecordInputRead(market.agent.actor, open_one.work_id)(writing)

    open_one = market.timed()
    assert market.store.recorder.write(ended_first) == 0


def test_a_read_survives_a_restart(tmp_path: Path) -> None:
    hands = Hands()
    store = Store.open(Location(tmp_path), ClockAndEntropy(clock=hands))
    try:
        market = AgentAtWork(store, hands)
        contract = market.timed()
        market.wait(60)
        market.read(contract.work_id)
    finally:
        store.close()
    hands.pass_h(1 / 3600)
    store = Store.open(Location(tmp_path), ClockAndEntropy(clock=hands))
    try:
        assert AgentAtWork(store, hands).bonus(contract.id) == BONUS
    finally:
        store.close()


def test_another_agent_or_tenant_does_not_read_for_it(market: AgentAtWork) -> None:
    contract = market.timed()
    for scope in (Scope("acme", "a2", only_own=True), Scope("other", "a1", only_own=True), Scope("acme")):
        actor = msgspec.structs.replace(market.actor, scope=scope)
        assert market.store.recorder.write(RecordInputRead(actor, contract.work_id)) == 0
        with market.store.database.reading() as connection:
            assert not is_first_read(connection, scope, contract.work_id)
    with market.store.database.reading() as connection:
        assert is_first_read(connection, market.agent.actor.scope, contract.work_id)
        assert contracts.find(connection, Scope("acme"), contract.id).input_read_at is None


@pytest.mark.parametrize("meanwhile", ["read", "start"])
def test_an_output_judged_by_old_times_is_submitted_again(market: AgentAtWork, meanwhile: str) -> None:
    contract = market.timed()
    market.wait(60)
    judged = market.agent.handed_in(contract.id, GOOD, {}, by_agent=True)
    if meanwhile == "read":
        market.read(contract.work_id)
    else:
        market.agent.do("start", contract.id)
    with pytest.raises(WrongState) as refused:
        market.agent.done(judged)
    assert refused.value.code == "changed_meanwhile"
    market.hand_in(contract.id)


def test_a_clock_set_back_never_gives_a_negative_time(market: AgentAtWork) -> None:
    contract = market.timed()
    market.read(contract.work_id)
    market.agent.do("start", contract.id)
    market.wait(-5)
    assert market.bonus(contract.id) == BONUS


def test_history_names_the_read(market: AgentAtWork) -> None:
    contract = market.timed()
    market.read(contract.work_id)
    with market.store.database.reading() as connection:
        found = contracts.load_snapshot_with_history(connection, Scope("acme"), contract.id)
    assert [(move.operation, move.by) for move in found.history or ()] == [("award", "me"), ("read", "key of a1")]


def test_a_bad_event_is_refused_when_work_is_published(market: AgentAtWork) -> None:
    with pytest.raises(MeruitError, match="latency_from"):
        market.publish(terms={"latency_from": "whenever"})
