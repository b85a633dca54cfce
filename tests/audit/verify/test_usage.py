"""A stranger counts again the tokens that a contract paid for, from the looks that the log spoke for."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.audit.flaws import check_sentence
from tests.contracts.test_token_contracts import FIRST, SECOND, SETTLED, TokenDesk
from tests.faults.tampering import Forgery
from tests.usage.metering import ENDED, POLICY

from meruit.audit.bundle import Bundle, RunProof, UsageFile, pack, read, unpack
from meruit.audit.findings import Findings
from meruit.audit.verify import usage as usage_proof
from meruit.audit.verify.outcome import verify_bundle
from meruit.contracts.store import transaction as stepping
from meruit.contracts.token_terms import token_use
from meruit.errors import AuditStep
from meruit.log.entries import GateEntry, SettlementEntry, UsageEntry
from meruit.model.metering import MeteredRun, UsageRecord
from meruit.model.money import Bill, ContractTokenUse
from meruit.model.usage import Acknowledgement, Anchor, Observation
from meruit.outcomes.store.erase import erase
from meruit.store.store import Store
from meruit.usage.store.acknowledge import Acknowledge

pytestmark = pytest.mark.golden


@pytest.fixture
def desk(shared: Store, tenant: str) -> TokenDesk:
    return TokenDesk(shared, tenant)


def paid(desk: TokenDesk) -> Bundle:
    desk.complete()
    desk.record()
    desk.verified()
    return read(unpack(desk.bundle()))


def checked(desk: TokenDesk, data: bytes) -> Findings:
    return verify_bundle(data, key=desk.store.signer.verifier)


def signed_again(desk: TokenDesk, whole: Bundle, forged: Forgery) -> Findings:
    """What is found where whoever has the key lies, and sees to it that every hash and signature holds."""
    return checked(desk, forged.renumbered().committed().packed(desk.store.signer, whole))


def with_proof(forged: Forgery, **fields: Any) -> Forgery:
    assert forged.usage is not None
    proof = msgspec.structs.replace(forged.usage.runs["r"], **fields)
    return forged._replace(usage=UsageFile({"r": proof}))


def test_a_bundle_holds_the_observations_of_its_bill(desk: TokenDesk) -> None:
    whole = paid(desk)
    assert whole.usage is not None
    proof = whole.usage.runs["r"]
    assert [Observation.from_json(one).total for one in proof.observations] == [FIRST, FIRST]
    assert MeteredRun.from_json(proof.run).contract_id == desk.contract_id
    assert desk.audited()[:2] == (1, 1)


def test_observations_not_in_the_log_are_not_exported(desk: TokenDesk) -> None:
    paid(desk)
    desk.observe(FIRST)
    whole = read(unpack(desk.bundle()))
    assert whole.usage is not None
    assert len(whole.usage.runs["r"].observations) == 2
    assert desk.audited()


def test_a_withdrawn_and_reverified_count_is_followed(desk: TokenDesk) -> None:
    paid(desk)
    desk.verified(SECOND)
    assert desk.audited()[:2] == (2, 2)


def test_an_acknowledged_count_is_recomputed(desk: TokenDesk) -> None:
    desk.complete()
    desk.record()
    desk.observe(SECOND)
    desk.observe(FIRST)
    ack = Acknowledgement(ENDED, "ann", "they took a call back")
    desk.followed(Acknowledge(desk.tenant, "r", ack, POLICY))
    desk.verified(FIRST)
    assert desk.contract.state is SETTLED
    assert desk.audited()[:2] == (1, 1)


def test_tokens_verified_only_by_own_rules_are_noted(desk: TokenDesk) -> None:
    desk.complete()
    desk.record()
    lenient = msgspec.structs.replace(POLICY, totals_only=True)
    for cached in (5, 6):
        desk.observe(msgspec.structs.replace(FIRST, cached=cached), policy=lenient)
    assert desk.contract.state is SETTLED
    found = checked(desk, desk.bundle())
    assert found.failed is None
    check_sentence(found.notes[-1])
    check_sentence(found.steps[-1].message)


def test_a_changed_count_is_logged_while_a_run_stays_verified(desk: TokenDesk) -> None:
    desk.complete()
    desk.record()
    lenient = msgspec.structs.replace(POLICY, totals_only=True)
    for cached in (5, 5, 6):
        desk.observe(msgspec.structs.replace(FIRST, cached=cached), policy=lenient)
    found = checked(desk, desk.bundle())
    assert found.failed is None
    check_sentence(found.steps[-1].message)


def test_a_shorter_interval_is_proven_once_it_is_an_hour(desk: TokenDesk) -> None:
    desk.complete()
    desk.record()
    for after in (60, 5):
        desk.observe(FIRST, after, policy=msgspec.structs.replace(POLICY, interval_min=5))
    assert desk.contract.state is not SETTLED
    desk.observe(FIRST)
    assert desk.contract.state is SETTLED
    assert desk.audited()[:2] == (1, 1)


def test_imported_counts_are_proven_by_later_observations(desk: TokenDesk) -> None:
    desk.complete()
    desk.record()
    for reported_by in ("file", "file", "", ""):
        assert desk.contract.state is not SETTLED
        desk.observe(FIRST, reported_by=reported_by)
    whole = read(unpack(desk.bundle()))
    assert whole.usage is not None
    assert [Observation.from_json(one).reported_by for one in whole.usage.runs["r"].observations] == [
        "file",
        "file",
        "",
        "",
    ]
    assert desk.audited()[:2] == (1, 1)


def test_an_imported_observation_between_two_is_accepted(desk: TokenDesk) -> None:
    desk.complete()
    desk.record()
    slow = msgspec.structs.replace(POLICY, interval_min=120, anchor=Anchor.SPAN)
    for reported_by in ("", "file", "", ""):
        desk.observe(FIRST, policy=slow, reported_by=reported_by)
    assert desk.contract.state is SETTLED
    assert checked(desk, desk.bundle()).failed is None


# Whoever has no key, and changes what the bundle holds.


def other(look: bytes) -> bytes:
    return msgspec.structs.replace(Observation.from_json(look), total=SECOND, steps={"s0": SECOND}).to_json()


@pytest.mark.parametrize(
    "change",
    [
        lambda _: None,
        lambda _: UsageFile({}),
        lambda proof: UsageFile({"r": proof, "x": proof}),
        lambda proof: UsageFile({"x": proof}),
        lambda proof: UsageFile({"r": msgspec.structs.replace(proof, observations=[*map(other, proof.observations)])}),
        lambda proof: UsageFile({"r": msgspec.structs.replace(proof, observations=proof.observations[:1])}),
        lambda proof: UsageFile(
            {"r": msgspec.structs.replace(proof, observations=[*proof.observations, proof.observations[1]])}
        ),
        lambda proof: UsageFile({"r": msgspec.structs.replace(proof, observations=proof.observations[::-1])}),
        lambda proof: UsageFile({"r": msgspec.structs.replace(proof, salt="00" * 16)}),
        lambda proof: UsageFile({"r": msgspec.structs.replace(proof, salt=proof.salt.upper() + "Z")}),
        lambda proof: UsageFile({"r": msgspec.structs.replace(proof, run=proof.run.replace(b"s0", b"s1"))}),
    ],
    ids=["absent", "empty", "more", "another", "looks", "fewer", "longer", "order", "salt", "no-salt", "run"],
)
def test_runs_and_observations_match_their_commitments(
    desk: TokenDesk, change: Callable[[RunProof], UsageFile | None]
) -> None:
    whole = paid(desk)
    assert whole.usage is not None
    found = checked(desk, pack(msgspec.structs.replace(whole, usage=change(whole.usage.runs["r"]))))
    assert found.failed is AuditStep.BLOBS


def test_no_entry_about_a_run_can_be_left_out(desk: TokenDesk) -> None:
    paid(desk)
    desk.observe(SECOND)
    assert desk.contract.state is not SETTLED
    whole = read(unpack(desk.bundle()))
    places = [place for place, one in enumerate(whole.entries) if b'"usage"' in one.body]
    assert len(places) == 2
    for gone in places:
        entries = [one for place, one in enumerate(whole.entries) if place != gone]
        assert checked(desk, pack(msgspec.structs.replace(whole, entries=entries))).failed is AuditStep.SEQUENCE


# Whoever has the key, and lies.


def test_more_tokens_than_were_counted_are_detected(desk: TokenDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    def inflated(record: UsageRecord) -> ContractTokenUse:
        use = token_use(record)
        return msgspec.structs.replace(use, tokens=SECOND) if use.tokens is not None else use

    monkeypatch.setattr(stepping, "token_use", inflated)
    paid(desk)
    assert desk.bill.tokens == 750_000
    found = checked(desk, desk.bundle())
    assert found.failed is AuditStep.SETTLEMENT
    assert "settlement 1" in found.steps[-1].message


def imported(look: bytes) -> bytes:
    return msgspec.structs.replace(Observation.from_json(look), reported_by="file").to_json()


def billed(forged: Forgery) -> tuple[ContractTokenUse, ...]:
    assert forged.contract is not None
    return Bill.from_json(forged.contract.bills["1"]).usage


def with_one_more(forged: Forgery, proof: RunProof) -> Forgery:
    (told,) = [one for one in forged.entries if isinstance(one, UsageEntry)]
    another = msgspec.structs.replace(told, run="x")
    return forged._replace(entries=[*forged.entries, another], usage=UsageFile({"r": proof, "x": proof}))


def paid_before(forged: Forgery) -> Forgery:
    """The log has its word on the run only once its tokens were paid."""
    told = [one for one in forged.entries if isinstance(one, UsageEntry)]
    return forged._replace(entries=[*(one for one in forged.entries if one not in told), *told])


def without(forged: Forgery) -> Forgery:
    return forged._replace(entries=[one for one in forged.entries if not isinstance(one, UsageEntry)], usage=None)


def otherwise(run: bytes, **fields: Any) -> bytes:
    return msgspec.structs.replace(MeteredRun.from_json(run), **fields).to_json()


@pytest.mark.parametrize(
    "lie",
    [
        lambda f, p: with_proof(f, observations=[*map(other, p.observations)]),
        lambda f, p: with_proof(f, run=otherwise(p.run, contract_id="con_x")),
        lambda f, p: with_proof(f, run=otherwise(p.run, id="x")),
        lambda f, _: with_proof(f, run=b"{}"),
        lambda f, _: with_proof(f, observations=[b"[]", b"1"]),
        lambda f, p: with_proof(f, observations=[one.replace(b"{", b"{ ", 1) for one in p.observations]),
        lambda f, p: with_proof(f, observations=[*map(imported, p.observations)]),
        lambda f, p: with_proof(f, run=otherwise(p.run, ended_at=None)),
        lambda f, p: with_proof(f.changed(UsageEntry, attempts=1), observations=p.observations[:1]),
        lambda f, _: f.with_bill(1, usage=billed(f) * 2),
        lambda f, _: f.changed(UsageEntry, status="warning"),
        with_one_more,
        lambda f, _: paid_before(f),
        lambda f, _: without(f),
    ],
    ids=[
        *(
            "observations",
            "contract",
            "name",
            "run",
            "attempts",
            "written",
            "file",
            "open",
            "once",
            "twice",
            "status",
            "more",
        ),
        *("early", "none"),
    ],
)
def test_a_bill_for_tokens_not_in_the_log_is_detected(
    desk: TokenDesk, lie: Callable[[Forgery, RunProof], Forgery]
) -> None:
    whole = paid(desk)
    assert whole.usage is not None
    found = signed_again(desk, whole, lie(Forgery.of(whole), whole.usage.runs["r"]))
    assert found.failed is AuditStep.SETTLEMENT
    check_sentence(found.steps[-1].message)


def strange() -> GateEntry:
    return GateEntry("2026-01-01T00:00:00Z", "default", "run_1", 1, "passed", True, attempts_used=0, submission="")


def in_no_contract(forged: Forgery) -> Forgery:
    told = [one for one in forged.entries if isinstance(one, UsageEntry)]
    assert any(isinstance(one, SettlementEntry) for one in forged.entries)
    bare = forged.bare()
    return bare._replace(entries=[*bare.entries, *told], usage=forged.usage)


def test_a_bill_uses_all_observations_that_verified_it(desk: TokenDesk) -> None:
    whole = paid(desk)
    usage = tuple(msgspec.structs.replace(one, observations=1) for one in desk.bill.usage)
    found = signed_again(desk, whole, Forgery.of(whole).with_bill(1, usage=usage))
    assert found.failed is AuditStep.SETTLEMENT
    assert "'r'" in found.steps[-1].message


def test_with_own_rules_everything_else_is_still_checked(desk: TokenDesk) -> None:
    desk.complete()
    desk.record()
    lenient = msgspec.structs.replace(POLICY, totals_only=True)
    for cached in (5, 6):
        desk.observe(msgspec.structs.replace(FIRST, cached=cached), policy=lenient)
    whole, bill = read(unpack(desk.bundle())), desk.bill
    ghost = msgspec.structs.replace(bill.usage[0], run_id="ghost")
    for lie in (
        Forgery.of(whole).with_bill(1, usage=(*bill.usage, ghost)),
        Forgery.of(whole).with_bill(1, fee=0, payout=bill.total),
    ):
        found = signed_again(desk, whole, lie)
        assert found.failed is AuditStep.SETTLEMENT
        check_sentence(found.steps[-1].message)


def test_an_erasure_does_not_hide_uncounted_tokens(desk: TokenDesk) -> None:
    paid(desk)
    outcome_id = desk.contract.outcome_id
    assert outcome_id is not None
    erase(desk.store, desk.tenant, outcome_id, reason="asked for")
    whole = read(unpack(desk.bundle()))
    assert checked(desk, desk.bundle()).failed is None
    found = signed_again(desk, whole, without(Forgery.of(whole).with_bill(1, usage=())))
    assert found.failed is AuditStep.SETTLEMENT
    check_sentence(found.steps[-1].message)


def test_a_run_that_is_no_longer_verified_does_not_stay_paid(desk: TokenDesk) -> None:
    whole = paid(desk)
    forged = Forgery.of(whole)
    (told,) = [one for one in forged.entries if isinstance(one, UsageEntry)]
    withdrawn = msgspec.structs.replace(told, number=2, status="pending")
    found = signed_again(desk, whole, forged._replace(entries=[*forged.entries, withdrawn]))
    assert found.failed is AuditStep.SETTLEMENT
    assert "'r'" in found.steps[-1].message


@pytest.mark.parametrize(
    "lie",
    [
        lambda f: f.changed(UsageEntry, attempts=0),
        lambda f: f.changed(UsageEntry, tenant="rival"),
        lambda f: f.changed(UsageEntry, number=2),
        lambda f: f._replace(entries=[*f.entries, strange()]),
        in_no_contract,
    ],
    ids=["looks", "tenant", "number", "strange", "contract"],
)
def test_the_entries_of_a_run_are_complete_and_its_own(desk: TokenDesk, lie: Callable[[Forgery], Forgery]) -> None:
    whole = paid(desk)
    found = signed_again(desk, whole, lie(Forgery.of(whole)))
    assert found.failed is AuditStep.SEQUENCE
    check_sentence(next(one.message for one in found.steps if one.step is AuditStep.SEQUENCE))


def test_too_many_entries_of_a_run_are_refused(desk: TokenDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = paid(desk)
    monkeypatch.setattr(usage_proof, "MAX_ENTRIES", 0)
    found = checked(desk, pack(whole))
    assert found.failed is AuditStep.SEQUENCE
    assert "'r'" in str(found)
