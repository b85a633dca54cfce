"""Terms that ask for a calibrated judge: payment waits for people's labels, and the bill says what it rests on."""

from collections.abc import Iterator

import pytest
from tests.contracts.test_hold_evidence import held, reasons
from tests.contracts.trading import Trading
from tests.judges.asking import criteria, engine_of, judges_of, model
from tests.judges.endpoint import Endpoint, Say, endpoint

from meruit.audit.export import export
from meruit.audit.verify.outcome import verify_bundle
from meruit.contracts.marketplace import Marketplace
from meruit.contracts.payment_decision import HoldCode, judge_reasons
from meruit.errors import WrongState
from meruit.judges.records import CalibratedJudge, RecordCalibration
from meruit.model.contract import ContractState, Terms
from meruit.model.money import JudgeStanding
from meruit.model.verdict import VerificationResult
from meruit.outcomes.service import Registrar
from meruit.store.store import Store

KAPPA = 0.6


@pytest.fixture(scope="module")
def server() -> Iterator[Endpoint]:
    with endpoint(lambda asked: Say("yes" if "Thank you" in asked.part("output") else "no")) as made:
        yield made


@pytest.fixture
def party(shared: Store, tenant: str, server: Endpoint) -> Trading:
    made = Trading(shared, tenant)
    judges = judges_of({"polite": model(server.url)})
    made.market = Marketplace(Registrar(engine_of(judges), shared), policy=None)
    return made


def complete(party: Trading, **terms: object) -> tuple[str, VerificationResult]:
    work = party.publish("plain", success_criteria=criteria(votes=1, agree=1), terms=terms)
    contract = party.award(work.id)
    done = party.complete(contract.id, "Thank you for asking")
    assert done.judgement is not None
    assert done.judgement.result is not None
    return contract.id, done.judgement.result


def calibrate(party: Trading, contract_id: str, labels: int, kappa: float | None) -> int:
    (shown,) = reasons(held(party, contract_id))
    judge = CalibratedJudge("polite", shown.evidence["version"], labels, kappa)
    return party.store.recorder.write(RecordCalibration(party.tenant, (judge,), "ann"))


def test_an_uncalibrated_judge_holds_the_payment(party: Trading) -> None:
    contract_id, _ = complete(party, min_kappa=KAPPA)
    (shown,) = reasons(held(party, contract_id))
    assert (shown.code, shown.about) == (HoldCode.JUDGE_UNCALIBRATED, ["judge"])
    assert shown.evidence["judge"] == "polite"
    assert (shown.evidence["labels"], shown.evidence["min_labels"]) == (0, 50)
    with pytest.raises(WrongState) as refused:
        party.do("settle", contract_id)
    assert refused.value.code == "on_hold"


def test_a_calibrated_judge_is_paid_by_and_the_bill_says_so(party: Trading) -> None:
    contract_id, _ = complete(party, min_kappa=KAPPA, min_labels=20)
    assert calibrate(party, contract_id, 20, KAPPA - 0.01) == 1
    (shown,) = reasons(held(party, contract_id))
    assert (shown.evidence["kappa"], shown.evidence["min_kappa"]) == (KAPPA - 0.01, KAPPA)
    assert calibrate(party, contract_id, 20, KAPPA) == 1
    paid = party.do("settle", contract_id)
    assert paid.contract.state is ContractState.SETTLED
    assert paid.bill is not None
    assert [(one.judge, one.labels, one.kappa) for one in paid.bill.judges] == [("polite", 20, KAPPA)]
    assert paid.contract.outcome_id is not None
    bundle = export(party.store, party.actor.scope, paid.contract.outcome_id)
    assert verify_bundle(bundle, key=None).failed is None


def test_an_equal_calibration_is_recorded_once(party: Trading) -> None:
    contract_id, _ = complete(party, min_labels=20)
    assert [calibrate(party, contract_id, 3, None) for _ in range(2)] == [1, 0]


def test_a_person_may_release_what_an_uncalibrated_judge_decided(party: Trading) -> None:
    contract_id, _ = complete(party, min_labels=1)
    assert party.do("release", contract_id, "read by ann").contract.state is ContractState.SETTLED


def test_terms_that_do_not_ask_pay_at_once(party: Trading) -> None:
    contract_id, result = complete(party)
    assert party.standing(contract_id).contract.state is ContractState.SETTLED
    assert [*judge_reasons(result, (), Terms())] == []


def test_a_kappa_that_is_not_known_is_not_enough(party: Trading) -> None:
    _, result = complete(party, min_kappa=0)
    version = result.criterion_results[0].details["judge"]["version"]  # type: ignore[index] # a judged criterion has it
    known = JudgeStanding("polite", version, 50)
    assert [one.code for one in judge_reasons(result, (known,), Terms(min_kappa=0))] == [HoldCode.JUDGE_UNCALIBRATED]
    assert [*judge_reasons(result, (JudgeStanding("polite", version, 50, 0.0),), Terms(min_kappa=0))] == []
