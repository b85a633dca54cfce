"""A stranger counts again the tokens that a contract paid for, from the looks that the log spoke for."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
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
from meruit.usage.store.write import Acknowledge


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


def test_a_bundle_brings_the_looks_that_its_bill_rests_on(desk: TokenDesk) -> None:
    whole = paid(desk)
    assert whole.usage is not None
    proof = whole.usage.runs["r"]
    assert [Observation.from_json(one).total for one in proof.observations] == [FIRST, FIRST]
    assert MeteredRun.from_json(proof.run).contract_id == desk.contract_id
    assert "1 of 1 settlements recomputed" in desk.audited()[0]


def test_looks_that_the_log_has_not_spoken_of_stay_at_home(desk: TokenDesk) -> None:
    paid(desk)
    desk.look(FIRST)
    whole = read(unpack(desk.bundle()))
    assert whole.usage is not None
    assert len(whole.usage.runs["r"].observations) == 2
    assert desk.audited()


def test_a_count_that_was_withdrawn_and_verified_anew_is_followed_to_its_end(desk: TokenDesk) -> None:
    paid(desk)
    desk.verified(SECOND)
    assert "2 of 2 settlements recomputed" in desk.audited()[0]


def test_a_count_that_a_person_accepted_is_counted_again_as_well(desk: TokenDesk) -> None:
    desk.complete()
    desk.record()
    desk.look(SECOND)
    desk.look(FIRST)
    ack = Acknowledgement(ENDED, "ann", "they took a call back")
    desk.followed(Acknowledge(desk.tenant, "r", ack, POLICY))
    desk.verified(FIRST)
    assert desk.contract.state is SETTLED
    assert "1 of 1 settlements recomputed" in desk.audited()[0]


def test_what_only_the_operators_own_rules_verify_is_told_and_not_vouched_for(desk: TokenDesk) -> None:
    desk.complete()
    desk.record()
    lenient = msgspec.structs.replace(POLICY, totals_only=True)
    for cached in (5, 6):
        desk.look(msgspec.structs.replace(FIRST, cached=cached), policy=lenient)
    assert desk.contract.state is SETTLED
    found = checked(desk, desk.bundle())
    assert found.failed is None
    assert any("verify its tokens only by rules of the operator's own" in one for one in found.notes)
    assert "none of 1 settlements could be recomputed" in found.steps[-1].message


def test_what_may_be_billed_is_logged_whenever_it_changes_also_of_a_run_that_stays_verified(desk: TokenDesk) -> None:
    desk.complete()
    desk.record()
    lenient = msgspec.structs.replace(POLICY, totals_only=True)
    for cached in (5, 5, 6):
        desk.look(msgspec.structs.replace(FIRST, cached=cached), policy=lenient)
    found = checked(desk, desk.bundle())
    assert found.failed is None
    assert "1 of 2 settlements recomputed" in found.steps[-1].message


def test_a_shorter_pause_is_proven_by_the_look_that_made_it_an_hour(desk: TokenDesk) -> None:
    desk.complete()
    desk.record()
    for after in (60, 5):
        desk.look(FIRST, after, policy=msgspec.structs.replace(POLICY, interval_min=5))
    assert desk.contract.state is not SETTLED
    desk.look(FIRST)
    assert desk.contract.state is SETTLED
    assert "1 of 1 settlements recomputed" in desk.audited()[0]


def test_what_a_file_says_is_proven_by_what_the_provider_said_later(desk: TokenDesk) -> None:
    desk.complete()
    desk.record()
    for reported_by in ("file", "file", "", ""):
        assert desk.contract.state is not SETTLED
        desk.look(FIRST, reported_by=reported_by)
    whole = read(unpack(desk.bundle()))
    assert whole.usage is not None
    assert [Observation.from_json(one).reported_by for one in whole.usage.runs["r"].observations] == ["file", "file", "", ""]
    assert "1 of 1 settlements recomputed" in desk.audited()[0]


def test_a_file_in_between_leaves_it_to_the_operators_rules_which_looks_are_compared(desk: TokenDesk) -> None:
    desk.complete()
    desk.record()
    slow = msgspec.structs.replace(POLICY, interval_min=120, anchor=Anchor.SPAN)
    for reported_by in ("", "file", "", ""):
        desk.look(FIRST, policy=slow, reported_by=reported_by)
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
        lambda proof: UsageFile({"r": msgspec.structs.replace(proof, observations=[*proof.observations, proof.observations[1]])}),
        lambda proof: UsageFile({"r": msgspec.structs.replace(proof, observations=proof.observations[::-1])}),
        lambda proof: UsageFile({"r": msgspec.structs.replace(proof, salt="00" * 16)}),
        lambda proof: UsageFile({"r": msgspec.structs.replace(proof, salt=proof.salt.upper() + "Z")}),
        lambda proof: UsageFile({"r": msgspec.structs.replace(proof, run=proof.run.replace(b"s0", b"s1"))}),
    ],
    ids=["absent", "empty", "more", "another", "looks", "fewer", "longer", "order", "salt", "no-salt", "run"],
)
def test_runs_and_looks_are_what_was_committed_to(
    desk: TokenDesk, change: Callable[[RunProof], UsageFile | None]
) -> None:
    whole = paid(desk)
    assert whole.usage is not None
    found = checked(desk, pack(whole._replace(usage=change(whole.usage.runs["r"]))))
    assert found.failed is AuditStep.BLOBS


def test_no_word_of_the_log_on_a_run_can_be_left_out(desk: TokenDesk) -> None:
    paid(desk)
    desk.look(SECOND)
    assert desk.contract.state is not SETTLED
    whole = read(unpack(desk.bundle()))
    places = [place for place, one in enumerate(whole.entries) if b'"usage"' in one.body]
    assert len(places) == 2
    for gone in places:
        entries = [one for place, one in enumerate(whole.entries) if place != gone]
        assert checked(desk, pack(whole._replace(entries=entries))).failed is AuditStep.SEQUENCE


# Whoever has the key, and lies.


def test_more_tokens_than_were_counted_are_found_out_whatever_the_bill_says(
    desk: TokenDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inflated(record: UsageRecord) -> ContractTokenUse:
        use = token_use(record)
        return msgspec.structs.replace(use, tokens=SECOND) if use.tokens is not None else use

    monkeypatch.setattr(stepping, "token_use", inflated)
    paid(desk)
    assert desk.bill.tokens == 750_000
    found = checked(desk, desk.bundle())
    assert found.failed is AuditStep.SETTLEMENT
    assert "settlement 1 paid other tokens of run 'r' than its provider counted" in found.steps[-1].message


def hearsay(look: bytes) -> bytes:
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
    ("lie", "said"),
    [
        (lambda f, p: with_proof(f, observations=[*map(other, p.observations)]), "paid other tokens of run 'r'"),
        (lambda f, p: with_proof(f, run=otherwise(p.run, contract_id="con_x")), "which is not of its contract"),
        (lambda f, p: with_proof(f, run=otherwise(p.run, id="x")), "which is not of its contract"),
        (lambda f, _: with_proof(f, run=b"{}"), "run 'r' or a look at it cannot be read"),
        (lambda f, _: with_proof(f, observations=[b"[]", b"1"]), "run 'r' or a look at it cannot be read"),
        (lambda f, p: with_proof(f, observations=[one.replace(b"{", b"{ ", 1) for one in p.observations]), "as it is recorded"),
        (lambda f, p: with_proof(f, observations=[*map(hearsay, p.observations)]), "no rules verify the tokens of run 'r'"),
        (lambda f, p: with_proof(f, run=otherwise(p.run, ended_at=None)), "no rules verify the tokens of run 'r'"),
        (lambda f, p: with_proof(f.changed(UsageEntry, attempts=1), observations=p.observations[:1]), "no rules verify"),
        (lambda f, _: f.with_bill(1, usage=billed(f) * 2), "paid the tokens of one run twice"),
        (lambda f, _: f.changed(UsageEntry, status="warning"), "did not call the tokens of run 'r' verified"),
        (with_one_more, "no bill is for the tokens of run 'x'"),
        (lambda f, _: paid_before(f), "did not call the tokens of run 'r' verified when it paid"),
        (lambda f, _: without(f), "did not call the tokens of run 'r' verified when it paid"),
    ],
    ids=[
        *("looks", "contract", "name", "run", "attempts", "written", "file", "open", "once", "twice", "status", "more"),
        *("early", "none"),
    ],
)
def test_a_bill_for_tokens_that_the_log_does_not_bear_out_is_found(
    desk: TokenDesk, lie: Callable[[Forgery, RunProof], Forgery], said: str
) -> None:
    whole = paid(desk)
    assert whole.usage is not None
    found = signed_again(desk, whole, lie(Forgery.of(whole), whole.usage.runs["r"]))
    assert found.failed is AuditStep.SETTLEMENT
    assert said in found.steps[-1].message


def strange() -> GateEntry:
    return GateEntry("2026-01-01T00:00:00Z", "default", "run_1", 1, "passed", True, attempts_used=0, submission="")


def in_no_contract(forged: Forgery) -> Forgery:
    told = [one for one in forged.entries if isinstance(one, UsageEntry)]
    assert any(isinstance(one, SettlementEntry) for one in forged.entries)
    bare = forged.bare()
    return bare._replace(entries=[*bare.entries, *told], usage=forged.usage)


def test_a_bill_rests_on_no_fewer_looks_than_verified_it(desk: TokenDesk) -> None:
    whole = paid(desk)
    usage = tuple(msgspec.structs.replace(one, observations=1) for one in desk.bill.usage)
    found = signed_again(desk, whole, Forgery.of(whole).with_bill(1, usage=usage))
    assert found.failed is AuditStep.SETTLEMENT
    assert "rests on fewer looks at run 'r'" in found.steps[-1].message


def test_rules_of_the_operators_own_leave_all_else_to_be_checked(desk: TokenDesk) -> None:
    desk.complete()
    desk.record()
    lenient = msgspec.structs.replace(POLICY, totals_only=True)
    for cached in (5, 6):
        desk.look(msgspec.structs.replace(FIRST, cached=cached), policy=lenient)
    whole, bill = read(unpack(desk.bundle())), desk.bill
    ghost = msgspec.structs.replace(bill.usage[0], run_id="ghost")
    for lie, said in (
        (Forgery.of(whole).with_bill(1, usage=(*bill.usage, ghost)), "did not call the tokens of run 'ghost' verified"),
        (
            Forgery.of(whole).with_bill(1, fee=0, payout=bill.total),
            "the fee of settlement 1 is not the one of the terms",
        ),
    ):
        found = signed_again(desk, whole, lie)
        assert found.failed is AuditStep.SETTLEMENT
        assert said in found.steps[-1].message


def test_what_was_erased_does_not_hide_tokens_that_nobody_counted(desk: TokenDesk) -> None:
    paid(desk)
    outcome_id = desk.contract.outcome_id
    assert outcome_id is not None
    erase(desk.store, desk.tenant, outcome_id, reason="asked for")
    whole = read(unpack(desk.bundle()))
    assert checked(desk, desk.bundle()).failed is None
    found = signed_again(desk, whole, without(Forgery.of(whole).with_bill(1, usage=())))
    assert found.failed is AuditStep.SETTLEMENT
    assert "no run is recorded under its contract_id" in found.steps[-1].message


def test_what_is_not_verified_any_more_does_not_stay_paid(desk: TokenDesk) -> None:
    whole = paid(desk)
    forged = Forgery.of(whole)
    (told,) = [one for one in forged.entries if isinstance(one, UsageEntry)]
    withdrawn = msgspec.structs.replace(told, number=2, status="pending")
    found = signed_again(desk, whole, forged._replace(entries=[*forged.entries, withdrawn]))
    assert found.failed is AuditStep.SETTLEMENT
    assert "run 'r' is not verified any more, and stays paid" in found.steps[-1].message


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (lambda f: f.changed(UsageEntry, attempts=0), "rests on fewer looks than the one before it"),
        (lambda f: f.changed(UsageEntry, tenant="rival"), "tells of another tenant's run"),
        (lambda f: f.changed(UsageEntry, number=2), "is number 2 of its run, after number 0"),
        (lambda f: f._replace(entries=[*f.entries, strange()]), "has nothing to do with the outcome"),
        (in_no_contract, "tokens were paid without a contract"),
    ],
    ids=["looks", "tenant", "number", "strange", "contract"],
)
def test_the_story_of_a_run_is_whole_and_nobody_elses(
    desk: TokenDesk, lie: Callable[[Forgery], Forgery], said: str
) -> None:
    whole = paid(desk)
    found = signed_again(desk, whole, lie(Forgery.of(whole)))
    assert found.failed is AuditStep.SEQUENCE
    assert said in next(one.message for one in found.steps if one.step is AuditStep.SEQUENCE)


def test_a_story_without_end_is_not_read(desk: TokenDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = paid(desk)
    monkeypatch.setattr(usage_proof, "MAX_ENTRIES", 0)
    found = checked(desk, pack(whole))
    assert found.failed is AuditStep.SEQUENCE
    assert "there are more than 0 entries of run 'r'" in str(found)
