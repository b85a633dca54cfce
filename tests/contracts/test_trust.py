"""Trust in an agent: a pure function of how its work ended; what was not its fault does not lower it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.contracts import TrustScore, WorkEnd, compute_trust
from meruit.contracts.trust import (
    COUNTED,
    FEW,
    LEFT_OUT,
    TrustRecords,
    WorkFacts,
    classify_work,
)
from meruit.governance.binomial import binomial_tail, clopper_pearson
from meruit.model.contract import ContractState, Escrow
from meruit.model.verdict import Verdict

S, E, V = ContractState, Escrow, Verdict
COUNTS = st.integers(0, 5_000)


def trust(delivered: int, not_delivered: int, **left_out: int) -> TrustScore:
    ends = {WorkEnd.DELIVERED: delivered, WorkEnd.NOT_DELIVERED: not_delivered}
    return compute_trust("ada", ends | {WorkEnd(name): number for name, number in left_out.items()})


@pytest.mark.parametrize(
    ("facts", "end"),
    [
        # Without a contract.
        (WorkFacts(V.PASS, True), "delivered"),
        (WorkFacts(V.PARTIAL, True), "delivered"),
        (WorkFacts(V.PARTIAL, False), "not_delivered"),
        (WorkFacts(V.FAIL, False), "not_delivered"),
        (WorkFacts(V.PASS, False), "doubted"),
        (WorkFacts(V.PARTIAL, False, objected=True), "doubted"),
        (WorkFacts(V.INCONCLUSIVE, False), "inconclusive"),
        (WorkFacts(V.ERROR, False), "error"),
        (WorkFacts(V.FAIL, False, by_agent=True), "self_submitted"),
        (WorkFacts(V.PASS, True, is_benchmark=True), "benchmark"),
        (WorkFacts(V.FAIL, False, has_criteria=False), "no_criteria"),
        # Under a contract.
        (WorkFacts(V.PASS, True, S.SETTLED, E.PAID), "delivered"),
        (WorkFacts(V.FAIL, False, S.SETTLED, E.PAID), "not_delivered"),
        (WorkFacts(V.PASS, True, S.VERIFIED, E.HELD), "delivered"),
        (WorkFacts(V.FAIL, False, S.FAILED, E.HELD), "not_delivered"),
        (WorkFacts(None, False, S.AWARDED, E.HELD), "open"),
        (WorkFacts(None, False, S.EXECUTING, E.HELD, started=True), "open"),
        (WorkFacts(None, False, S.EXPIRED, E.RELEASED, started=True), "not_delivered"),
        (WorkFacts(None, False, S.EXPIRED, E.RELEASED), "never_started"),
        (WorkFacts(V.FAIL, False, S.DISPUTED, E.FROZEN), "disputed"),
        (WorkFacts(V.PASS, False, S.VERIFICATION_PENDING, E.HELD), "waiting"),
        (WorkFacts(V.FAIL, False, S.VERIFICATION_PENDING, E.HELD), "waiting"),
        # Cancelled by an operator.
        (WorkFacts(None, False, S.FAILED, E.RELEASED), "cancelled"),
        (WorkFacts(V.PASS, True, S.FAILED, E.RELEASED), "cancelled"),
        (WorkFacts(V.PASS, False, S.FAILED, E.RELEASED), "cancelled"),
        (WorkFacts(V.PASS, False, S.FAILED, E.RELEASED, rejected=True), "not_delivered"),
        (WorkFacts(V.INCONCLUSIVE, False, S.FAILED, E.RELEASED), "inconclusive"),
        (WorkFacts(V.FAIL, False, S.FAILED, E.RELEASED), "not_delivered"),
    ],
)
def test_each_piece_of_work_ends_in_one_way(facts: WorkFacts, end: str) -> None:
    assert classify_work(facts) == end


@given(
    st.sampled_from([None, *Verdict]),
    st.booleans(),
    st.sampled_from([None, *ContractState]),
    st.sampled_from([None, *Escrow]),
    st.tuples(*[st.booleans()] * 5),
)
def test_every_record_has_an_end(
    verdict: Verdict | None,
    success: bool,
    state: ContractState | None,
    escrow: Escrow | None,
    marks: tuple[bool, ...],
) -> None:
    end = classify_work(WorkFacts(verdict, success, state, escrow, *marks))
    assert end is not WorkEnd.NOT_DELIVERED or verdict not in (Verdict.INCONCLUSIVE, Verdict.ERROR) or marks[4]


@pytest.mark.parametrize("end", LEFT_OUT)
def test_what_was_not_the_agents_fault_changes_nothing(end: WorkEnd) -> None:
    without, with_it = trust(7, 3), trust(7, 3, **{str(end): 1_000})
    assert (with_it.score, with_it.interval) == (without.score, without.interval)
    assert with_it.inputs.left_out[str(end)] == 1_000


def test_no_records_neither_flatter_nor_condemn() -> None:
    found = trust(0, 0, open=5)
    assert (found.score, found.exact, found.records) == (None, None, TrustRecords.NONE)
    assert (found.interval.low, found.interval.high) == (0.0, 1.0)


def test_few_records_are_called_few_and_have_a_wide_interval() -> None:
    one = trust(1, 0)
    assert (one.score, one.records, one.interval.high) == (1.0, TrustRecords.FEW, 1.0)
    assert one.interval.low < 0.03
    assert trust(FEW - 1, 0).records is TrustRecords.FEW
    assert trust(FEW, 0).records is TrustRecords.ENOUGH


# As scipy.stats.beta.ppf gives them, and R's binom.test.
@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        (0, 10, 0.0, 0.3084971),
        (10, 10, 0.6915029, 1.0),
        (9, 10, 0.5549839, 0.9974714),
        (50, 100, 0.3983211, 0.6016789),
        (1, 1, 0.025, 1.0),
        (950, 1000, 0.9346095, 0.9626646),
    ],
)
def test_the_interval_is_that_of_the_binomial_test(successes: int, trials: int, low: float, high: float) -> None:
    assert clopper_pearson(successes, trials) == pytest.approx((low, high), abs=1e-6)


@given(COUNTS, COUNTS)
def test_the_interval_holds_the_score_and_both_tails(delivered: int, not_delivered: int) -> None:
    found = trust(delivered, not_delivered)
    low, high, counted = found.interval.low, found.interval.high, delivered + not_delivered
    assert 0 <= low <= high <= 1
    if found.score is not None:
        assert low <= found.score <= high
        assert delivered == 0 or binomial_tail(delivered, counted, low) <= 0.025 + 1e-9
        assert not_delivered == 0 or binomial_tail(not_delivered, counted, 1 - high) <= 0.025 + 1e-9


@given(COUNTS, COUNTS)
def test_a_delivery_never_lowers_the_score_and_a_failure_never_raises_it(delivered: int, not_delivered: int) -> None:
    now, better, worse = (
        trust(delivered, not_delivered),
        trust(delivered + 1, not_delivered),
        trust(delivered, not_delivered + 1),
    )
    assert worse.interval.low <= now.interval.low <= better.interval.low
    assert worse.interval.high <= now.interval.high <= better.interval.high
    if now.score is not None:
        assert (worse.score or 0.0) <= now.score <= (better.score or 0.0)


def test_a_score_names_how_it_was_computed() -> None:
    found = trust(9, 1)
    assert (found.exact, found.score, found.inputs.total) == ("9/10", 0.9, 10)
    assert (found.method.name, found.method.version, found.method.interval) == ("delivered_share", 1, "Clopper-Pearson")
    assert found.interval.confidence == 0.95
    assert found.inputs.left_out.keys() == {str(end) for end in LEFT_OUT}
    assert {*COUNTED, *LEFT_OUT} == {*WorkEnd}


def test_huge_records_are_no_trouble() -> None:
    found = trust(10**9, 10**7)
    assert found.score is not None
    assert found.interval.high - found.interval.low < 1e-4
