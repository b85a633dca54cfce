"""Flags and bills of a contract, done again from its bundle: what is sound passes, and what nobody could owe fails."""

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.audit.contract_bundles import ADJUSTED_MICROS, CRITERIA, ENDINGS, HOLD_MICROS
from tests.audit.flaws import check_sentence
from tests.faults.tampering import Forgery, World, _with_result, make_contract_world

from meruit import SuccessCriteria
from meruit.audit.findings import AuditStepState, Findings, StepFinding
from meruit.audit.verify.entries import check
from meruit.audit.verify.outcome import verify_bundle
from meruit.audit.verify.settlement import GOVERNANCE_STATUS, check_settlement
from meruit.contracts.bill import fee_and_payout
from meruit.errors import AuditStep, BundleFlaw
from meruit.governance.evaluate import govern
from meruit.judge.verdict import rejudge
from meruit.log.entries import (
    AwardEntry,
    ContractEntry,
    DisputeEntry,
    Entry,
    ErasureEntry,
    GovernanceEntry,
    InputReadEntry,
    ReleaseEntry,
    ResolutionEntry,
    ReversalEntry,
    SettlementEntry,
    StartEntry,
)
from meruit.model.canonical import canonical, from_canonical
from meruit.model.evidence import Provenance
from meruit.model.governance import Disposition, GovernanceCheck, GovernanceResult, History
from meruit.model.money import Bill, Line, PricePart
from meruit.model.verdict import GovernanceStatus, VerificationResult
from meruit.registry import SettlementContext, SettlementRule, settlement_rules

pytestmark = pytest.mark.golden

Change = Callable[[Forgery], Forgery]
MORE = 10


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_contract_world(tmp_path_factory.mktemp("records"))


def found_in(world: World, ending: str, *changes: Change) -> Findings:
    """What is found in a log that the right key signed, and that commits to all that is handed over."""
    whole = world.read(ending)
    forged = Forgery.of(whole)
    for change in changes:
        forged = change(forged)
    data = forged.renumbered().committed().packed(world.signer, whole)
    return verify_bundle(data, key=world.signer.verifier)


def failing(found: Findings, step: AuditStep) -> str:
    """What is said, once it fails where it should; the steps stay in their order."""
    assert [one.step for one in found.steps] == [*AuditStep]
    assert found.failed is step, found
    check_sentence(at(found, step).message)
    return at(found, step).message


def at(found: Findings, step: AuditStep) -> StepFinding:
    (one,) = (finding for finding in found.steps if finding.step is step)
    return one


def notes(found: Findings) -> list[str]:
    """What was not checked; the first note is about the key."""
    assert found.failed is None, found
    for note in found.notes[1:]:
        check_sentence(note)
    return found.notes[1:]


def changing(kind: type, **fields: Any) -> Change:
    """Every entry of a kind, otherwise."""
    return lambda forgery: forgery.changed(kind, **fields)


# What is sound.

OK, SKIPPED = AuditStepState.OK, AuditStepState.SKIPPED


@pytest.mark.parametrize(
    ("ending", "governance", "settlement", "number_of_notes"),
    [
        ("settled", OK, OK, 0),
        ("held", OK, OK, 0),
        ("released", OK, OK, 0),
        ("resettled", OK, OK, 0),
        ("held again", OK, OK, 0),
        ("voided", OK, OK, 0),
        ("upheld", OK, OK, 0),
        ("disputed", OK, OK, 0),
        ("taken back", OK, OK, 0),
        ("called off", OK, OK, 0),
        ("adjusted", OK, OK, 0),
        ("adjusted unpaid", OK, OK, 0),
        ("paid and erased", SKIPPED, SKIPPED, 2),
        ("without criteria", OK, OK, 0),
        ("unmeasured", OK, OK, 0),
        ("timed", OK, OK, 0),
        ("timed from start", OK, OK, 0),
        ("unsettled", OK, OK, 0),
        ("leaking", OK, OK, 0),
        ("given up", OK, OK, 0),
        ("asked two", OK, OK, 0),
        ("asked another", SKIPPED, OK, 1),
        ("asked nobody", SKIPPED, OK, 0),
        ("asked few", OK, OK, 2),
    ],
)
def test_an_honest_bundle_passes_every_step(
    world: World, ending: str, governance: AuditStepState, settlement: AuditStepState, number_of_notes: int
) -> None:
    found = verify_bundle(world.bundles[ending], key=world.signer.verifier)
    assert found.failed is None, found
    assert (at(found, AuditStep.GOVERNANCE).state, at(found, AuditStep.SETTLEMENT).state) == (governance, settlement)
    check_sentence(at(found, AuditStep.GOVERNANCE).message)
    check_sentence(at(found, AuditStep.SETTLEMENT).message)
    assert len(notes(found)) == number_of_notes


def test_a_forger_without_a_lie_passes(world: World) -> None:
    for ending in ENDINGS:
        assert found_in(world, ending).failed is None, ending


def test_work_without_a_contract_was_neither_believed_nor_paid(world: World) -> None:
    found = found_in(world, "settled", Forgery.bare)
    # The rules of its contract are not those of verifications, so what they said is not repeated.
    assert len(notes(found)) == 1
    for step in (AuditStep.GOVERNANCE, AuditStep.SETTLEMENT):
        assert at(found, step).state is AuditStepState.SKIPPED
        check_sentence(at(found, step).message)


# Belief.


def result_of(forgery: Forgery, version: int) -> VerificationResult:
    return VerificationResult.from_json(forgery.results[version])


def believed(forgery: Forgery, version: int, status: GovernanceStatus, flags: Sequence[str] = ()) -> Forgery:
    """A version of the verdict that says another thing of belief, judged correctly."""
    result = msgspec.structs.replace(
        result_of(forgery, version), governance=status, governance_flags=[*flags], reasons=[]
    )
    return _with_result(forgery, version, rejudge(SuccessCriteria.model_validate(CRITERIA), result))


def believing(version: int, status: GovernanceStatus, flags: Sequence[str] = ()) -> Change:
    return lambda forgery: believed(forgery, version, status, flags)


def checked(forgery: Forgery, **fields: Any) -> GovernanceCheck:
    """Another dossier, with the answer that the rules give on it."""
    check = msgspec.structs.replace(forgery.check, **fields)
    assert check.policy is not None
    return msgspec.structs.replace(check, result=govern(check.dossier, check.policy, check.rules.keys()))


def told(forgery: Forgery, check: GovernanceCheck) -> Forgery:
    """An answer that log, record and result agree on."""
    return believed(forgery.with_check(check), 1, GOVERNANCE_STATUS[check.result.conclusion], check.result.names)


def test_flags_left_out_of_the_log_are_missed(world: World) -> None:
    for fields in ({"flags": ()}, {"disposition": "clear"}, {"disposition": "clear", "flags": ()}):
        found = found_in(world, "held", changing(GovernanceEntry, **fields))
        assert "version 1" in failing(found, AuditStep.GOVERNANCE)


def test_flags_left_out_of_the_result_are_missed(world: World) -> None:
    for status in (GovernanceStatus.CLEAR, GovernanceStatus.REVIEW, GovernanceStatus.NOT_CHECKED):
        found = found_in(world, "held", believing(1, status))
        assert "version 1" in failing(found, AuditStep.GOVERNANCE)


def test_flags_left_out_of_everything_follow_from_the_dossier(world: World) -> None:
    def softened(forgery: Forgery) -> Forgery:
        clear = GovernanceResult(valid=True, disposition=Disposition.CLEAR, confidence=forgery.check.result.confidence)
        return told(forgery, msgspec.structs.replace(forgery.check, result=clear))

    failing(found_in(world, "held", softened), AuditStep.GOVERNANCE)


def test_a_disposition_is_not_softer_than_its_flags(world: World) -> None:
    def softened(forgery: Forgery) -> Forgery:
        clear = msgspec.structs.replace(forgery.check.result, disposition=Disposition.CLEAR)
        return told(forgery, msgspec.structs.replace(forgery.check, result=clear))

    failing(found_in(world, "held", softened), AuditStep.GOVERNANCE)


@pytest.mark.parametrize(
    "fields",
    [
        {"reference_similarity": 0.1},
        {"output_chars": 3},
        {"agent_id": "somebody"},
        {"consumer_id": "somebody"},
        {"contract_id": "con_x"},
        {"work_id": "wrk_x"},
        {"received_at": 0.0},
        {"claims": {"rougeL": 1.0}},
        {"metrics": []},
        {"claimed_may_earn": True},
        {"null_passes": ["{}"]},
    ],
)
def test_a_dossier_of_other_work_is_refused(world: World, fields: dict[str, Any]) -> None:
    def other(forgery: Forgery) -> Forgery:
        dossier = msgspec.structs.replace(forgery.check.dossier, **fields)
        return told(forgery, checked(forgery, dossier=dossier))

    failing(found_in(world, "held", other), AuditStep.GOVERNANCE)


def test_the_dossier_of_another_contract_is_refused(world: World) -> None:
    theirs = Forgery.of(world.read("settled")).check
    found = found_in(world, "upheld", lambda forgery: forgery.with_check(theirs))
    failing(found, AuditStep.GOVERNANCE)


def test_what_earlier_outcomes_said_must_be_believed(world: World) -> None:
    """The limit of one bundle: it holds no other outcome."""

    def forgotten(forgery: Forgery) -> Forgery:
        dossier = msgspec.structs.replace(forgery.check.dossier, history=History(near_duplicates=1))
        return told(forgery, checked(forgery, dossier=dossier))

    assert notes(found_in(world, "settled", forgotten)) == []


def test_rules_of_another_version_are_not_asked_again(world: World) -> None:
    def older(forgery: Forgery) -> Forgery:
        rules = {**forgery.check.rules, "reference_copy": "0"}
        return forgery.with_check(msgspec.structs.replace(forgery.check, rules=rules))

    found = found_in(world, "held", older)
    (note,) = notes(found)
    assert "reference_copy" in note
    assert at(found, AuditStep.GOVERNANCE).state is AuditStepState.SKIPPED


def test_a_rule_that_was_not_asked_is_named(world: World) -> None:
    def left_out(forgery: Forgery) -> Forgery:
        rules = {name: version for name, version in forgery.check.rules.items() if name != "reference_copy"}
        return told(forgery, checked(forgery, rules=rules))

    (note,) = notes(found_in(world, "held", left_out))
    assert "reference_copy" in note


def test_what_somebody_else_answered_counts(world: World) -> None:
    def silenced(forgery: Forgery) -> Forgery:
        return forgery.with_check(msgspec.structs.replace(forgery.check, remote=None))

    failing(found_in(world, "asked two", silenced), AuditStep.GOVERNANCE)

    def contradicted(forgery: Forgery) -> Forgery:
        remote = GovernanceResult(valid=False, flags=["fraud"])
        return forgery.with_check(msgspec.structs.replace(forgery.check, remote=remote))

    assert "another answer" in failing(found_in(world, "asked two", contradicted), AuditStep.GOVERNANCE)


@pytest.mark.parametrize("remote", [None, GovernanceResult(valid=False, flags=["fraud"])])
def test_the_answer_is_that_of_whoever_was_asked(world: World, remote: GovernanceResult | None) -> None:
    def other(forgery: Forgery) -> Forgery:
        return forgery.with_check(msgspec.structs.replace(forgery.check, remote=remote))

    failing(found_in(world, "asked another", other), AuditStep.GOVERNANCE)


@pytest.mark.parametrize("body", [b"", b"[", b"[]", b"{}", b"null", b"\xff", b"[" * 100_000, b'{"dossier":{}}'])
def test_a_dossier_that_cannot_be_read_is_refused(world: World, body: bytes) -> None:
    found = found_in(world, "settled", lambda forgery: forgery.with_dossier(body))
    assert "version 1" in failing(found, AuditStep.GOVERNANCE)


def spaced(body: bytes) -> bytes:
    return body.replace(b",", b", ")


def turned(body: bytes) -> bytes:
    """The same fields in another order."""
    return msgspec.json.encode(dict(reversed(json.loads(body).items())))


def longer(body: bytes) -> bytes:
    return body.replace(b'{"dossier"', b'{"more":1,"dossier"', 1)


def doubled(body: bytes) -> bytes:
    return body.replace(b'{"dossier"', b'{"rules":{},"dossier"', 1)


@pytest.mark.parametrize("form", [spaced, turned, longer, doubled])
def test_a_dossier_has_one_form(world: World, form: Callable[[bytes], bytes]) -> None:
    def reformed(forgery: Forgery) -> Forgery:
        return forgery.with_dossier(form(forgery.check.to_json()))

    failing(found_in(world, "settled", reformed), AuditStep.GOVERNANCE)


FLAGS = ("reference_copy",)


@pytest.mark.parametrize(
    ("status", "flags"),
    [
        (GovernanceStatus.CLEAR, ()),
        (GovernanceStatus.CLEAR, FLAGS),
        (GovernanceStatus.NOT_CHECKED, FLAGS),
        (GovernanceStatus.INVALID, FLAGS),
        (GovernanceStatus.RELEASED, ()),
        (GovernanceStatus.RELEASED, ("something_else",)),
    ],
)
def test_a_later_version_does_not_forget_what_held_the_first(
    world: World, status: GovernanceStatus, flags: Sequence[str]
) -> None:
    found = found_in(world, "released", believing(2, status, flags))
    assert "version 2" in failing(found, AuditStep.GOVERNANCE)


def test_nobody_releases_what_was_not_held(world: World) -> None:
    found = found_in(world, "resettled", believing(3, GovernanceStatus.RELEASED))
    assert "version 3" in failing(found, AuditStep.GOVERNANCE)


def test_flags_without_their_result_are_raised_again_all_the_same(world: World) -> None:
    """No command erases the results alone; the log could say so."""
    whole = world.read("settled")
    honest = Forgery.of(whole)
    award = next(one for one in honest.entries if isinstance(one, AwardEntry))
    gone = ErasureEntry("2026", award.tenant, honest.outcome, award.contract, 0, ("result",), "asked for")
    template = msgspec.structs.replace(whole, salts=msgspec.structs.replace(whole.salts, results={}))
    forged = honest._replace(entries=[*honest.entries, gone], results={}).renumbered()
    found = verify_bundle(forged.packed(world.signer, template))
    assert at(found, AuditStep.GOVERNANCE).state is AuditStepState.OK
    (note,) = notes(found)
    assert "settlement 1" in note


# Terms.


def agreed(**fields: Any) -> Change:
    """Other terms, committed to."""

    def change(forgery: Forgery) -> Forgery:
        assert forgery.contract is not None
        return forgery.under(terms=canonical({**from_canonical(forgery.contract.terms), **fields}))

    return change


UNREADABLE = [b"", b"[", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"wish":1}', b'{"cpc_rate":-1}', b'{"$x":1}']


@pytest.mark.parametrize("terms", UNREADABLE)
def test_terms_that_cannot_be_read_fail_where_they_are_needed_first(world: World, terms: bytes) -> None:
    for ending, step in (("settled", AuditStep.GOVERNANCE), ("asked nobody", AuditStep.SETTLEMENT)):
        found = found_in(world, ending, lambda forgery: forgery.under(terms=terms))
        failing(found, step)


@pytest.mark.parametrize("form", [spaced, turned, lambda body: b'{"currency":"EUR",' + body[1:]])
def test_terms_have_one_form(world: World, form: Callable[[bytes], bytes]) -> None:
    def reformed(forgery: Forgery) -> Forgery:
        assert forgery.contract is not None
        return forgery.under(terms=form(forgery.contract.terms))

    for ending, step in (("settled", AuditStep.GOVERNANCE), ("asked nobody", AuditStep.SETTLEMENT)):
        failing(found_in(world, ending, reformed), step)


@pytest.mark.parametrize("ending", ["settled", "held", "voided", "paid and erased", "without criteria"])
def test_the_hold_is_the_most_that_the_contract_can_cost(world: World, ending: str) -> None:
    changes = [
        changing(AwardEntry, hold_micros=HOLD_MICROS + MORE),
        changing(AwardEntry, hold_micros=0),
        changing(AwardEntry, currency="EUR"),
        agreed(cpc_rate=1),
        agreed(currency="EUR"),
    ]
    for change in changes:
        failing(found_in(world, ending, change), AuditStep.SETTLEMENT)


def test_a_hold_that_is_raised_everywhere_is_noticed(world: World) -> None:
    """Consistent to the last posting, and still not what was agreed."""

    def raised(forgery: Forgery) -> Forgery:
        return forgery.changed(AwardEntry, hold_micros=HOLD_MICROS + MORE).with_bill(released=MORE)

    failing(found_in(world, "settled", raised), AuditStep.SETTLEMENT)


def test_terms_without_a_rate_cannot_be_worked_with(world: World) -> None:
    found = found_in(world, "settled", agreed(cpc_rate=None))
    assert "cpc_rate" in failing(found, AuditStep.SETTLEMENT)


@pytest.mark.parametrize(
    "terms",
    [
        {"platform_fee_rate": 0},
        {"rules": ["cpc"]},
        {"rules": ["cpa_bonus", "cpc", "cap"]},
    ],
)
def test_other_terms_lead_to_another_bill(world: World, terms: dict[str, Any]) -> None:
    failing(found_in(world, "settled", agreed(**terms)), AuditStep.SETTLEMENT)


unknown_rule = agreed(rules=["cpc", "house_rule"])


def test_a_rule_of_settlement_that_is_not_installed_here_is_noted(world: World) -> None:
    found = found_in(world, "settled", unknown_rule)
    (note,) = notes(found)
    assert "house_rule" in note
    assert at(found, AuditStep.SETTLEMENT).state is AuditStepState.SKIPPED
    check_sentence(at(found, AuditStep.SETTLEMENT).message)


def test_a_rule_that_fails_here_is_noted(world: World) -> None:
    def failing_rule(context: SettlementContext) -> list[Any]:
        raise RuntimeError("not here")

    settlement_rules.names()
    settlement_rules.put(SettlementRule("house_rule", "It fails.", failing_rule))
    try:
        found = found_in(world, "settled", unknown_rule)
    finally:
        del settlement_rules._found["house_rule"]
    (note,) = notes(found)
    assert ("house_rule" in note, "RuntimeError" in note) == (True, True)
    assert at(found, AuditStep.SETTLEMENT).state is AuditStepState.SKIPPED


def test_a_claim_that_nobody_released_was_not_to_be_paid(world: World) -> None:
    """Judged by what only the agent says, an agent goes without its penalty."""

    def claimed(forgery: Forgery) -> Forgery:
        result = result_of(forgery, 1)
        rouge = msgspec.structs.replace(result.criterion_results[1], provenance=Provenance.CLAIMED)
        return _with_result(
            forgery, 1, msgspec.structs.replace(result, criterion_results=[result.criterion_results[0], rouge])
        )

    whole = world.read("settled")
    forged = claimed(Forgery.of(whole))
    agreed = SuccessCriteria.model_validate(CRITERIA)
    story = check(forged.renumbered().committed().packed(world.signer, whole)).history
    assert story is not None
    bundle = msgspec.structs.replace(whole, results=forged.results)
    with pytest.raises(BundleFlaw) as flaw:
        check_settlement(bundle, story, {1: result_of(forged, 1)}, agreed, [])
    assert flaw.value.step is AuditStep.SETTLEMENT
    check_sentence(str(flaw.value))


# What was planted.


def planting(**fields: Any) -> Change:
    """Other work, which the award commits to."""

    def planted(forgery: Forgery) -> Forgery:
        assert forgery.contract is not None
        return forgery.under(work=canonical({**from_canonical(forgery.contract.work), **fields}))

    return planted


@pytest.mark.parametrize("fields", [{"canaries": []}, {"canaries": ["never seen"] * 2}, {"impossible": True}])
def test_what_was_planted_is_what_governance_went_by(world: World, fields: dict[str, Any]) -> None:
    for ending in ("settled", "held"):
        failing(found_in(world, ending, planting(**fields)), AuditStep.GOVERNANCE)


def test_what_leaked_is_what_was_planted(world: World) -> None:
    failing(found_in(world, "leaking", planting(canaries=["another canary"])), AuditStep.GOVERNANCE)


@pytest.mark.parametrize(
    "fields", [{"leaked": ["0" * 64]}, {"canaries": 2}, {"impossible": True}, {"leaked": ["0" * 64], "canaries": 1}]
)
def test_a_dossier_tells_of_no_more_than_was_planted(world: World, fields: dict[str, Any]) -> None:
    def other(forgery: Forgery) -> Forgery:
        dossier = msgspec.structs.replace(forgery.check.dossier, **fields)
        return told(forgery, checked(forgery, dossier=dossier))

    failing(found_in(world, "held", other), AuditStep.GOVERNANCE)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"null", b"{}", b'{"title":"x","private_names":[1]}', b"[" * 9_999])
def test_work_that_cannot_be_read_is_refused(world: World, body: bytes) -> None:
    found = found_in(world, "settled", lambda forgery: forgery.under(work=body))
    failing(found, AuditStep.BLOBS)


def test_work_has_one_form(world: World) -> None:
    def reformed(forgery: Forgery) -> Forgery:
        assert forgery.contract is not None
        return forgery.under(work=spaced(forgery.contract.work))

    failing(found_in(world, "settled", reformed), AuditStep.GOVERNANCE)


# Bills.


def billed(**fields: Any) -> Change:
    return lambda forgery: forgery.with_bill(**fields)


def split(total: int) -> dict[str, int]:
    """A total, with the fee and the payout that the terms give."""
    fee, payout = fee_and_payout(total, 0.15)
    return {"total": total, "fee": fee, "payout": payout}


def bill_of(world: World, ending: str = "settled") -> Bill:
    contract = world.read(ending).contract
    assert contract is not None
    return Bill.from_json(contract.bills["1"])


def test_a_bill_is_the_one_of_the_terms(world: World) -> None:
    owed = bill_of(world)
    first, *others = owed.lines
    renamed = msgspec.structs.replace(first, reason="a favour")
    for fields, said in (
        ({"lines": [renamed, *others]}, "bill 1 is not the one that the terms give"),
        ({"lines": []}, "bill 1 is not the one that the terms give"),
        ({"base": owed.base + MORE, "bonus": owed.bonus - MORE}, "bill 1 is not the one that the terms give"),
        ({**split(80_000), "released": 10_000}, "settlement 1 paid 0.08, the terms give 0.09"),
        ({**split(HOLD_MICROS + MORE), "released": -MORE}, "settlement 1 paid 0.09001, the terms give 0.09"),
        ({"currency": "EUR"}, "bill 1 is not the one that the terms give"),
        ({"released": MORE}, "bill 1 is not the one that the terms give"),
        ({"fee": owed.fee + MORE}, "the fee of settlement 1 is not the one of the terms"),
        ({"payout": owed.payout + MORE}, "the fee of settlement 1 is not the one of the terms"),
        ({"fee": 0, "payout": owed.total}, "the fee of settlement 1 is not the one of the terms"),
    ):
        assert failing(found_in(world, "settled", billed(**fields)), AuditStep.SETTLEMENT) == said, fields


def test_a_bill_that_nobody_can_recompute_must_add_up(world: World) -> None:
    """Because a rule is not installed, or because the result is gone."""
    owed = bill_of(world)
    first, *others = owed.lines
    dearer = msgspec.structs.replace(first, micros=first.micros + MORE)
    for fields, said in (
        ({"lines": [dearer, *others]}, "does not add up"),
        ({"base": owed.base + MORE}, "does not add up"),
        (
            {**split(HOLD_MICROS + MORE), "base": owed.base + MORE, "lines": [dearer, *others], "released": -MORE},
            "pays",
        ),
        ({**split(-MORE), "released": HOLD_MICROS + MORE}, "pays"),
        ({"released": MORE}, "escrow"),
        ({"currency": "EUR"}, "escrow"),
        ({"fee": owed.fee - MORE, "payout": owed.payout + MORE}, "the fee of settlement 1"),
    ):
        unknown = found_in(world, "settled", unknown_rule, billed(**fields))
        assert said in failing(unknown, AuditStep.SETTLEMENT), fields
        erased = found_in(world, "paid and erased", billed(**fields))
        assert said in failing(erased, AuditStep.SETTLEMENT), fields


@pytest.mark.parametrize("body", [b"", b"[", b"{}", b"null", b"\xff", b"[" * 100_000])
def test_a_bill_that_cannot_be_read_is_refused(world: World, body: bytes) -> None:
    found = found_in(world, "settled", lambda forgery: forgery.under(bills={"1": body}))
    assert "bill 1" in failing(found, AuditStep.SETTLEMENT)


@pytest.mark.parametrize(
    "form", [spaced, turned, lambda body: b'{"tip":1,' + body[1:], lambda body: b'{"total":1,' + body[1:]]
)
def test_a_bill_has_one_form(world: World, form: Callable[[bytes], bytes]) -> None:
    for ending in ("settled", "paid and erased"):
        found = found_in(world, ending, lambda forgery: forgery.under(bills={"1": form(bill_of(world).to_json())}))
        assert "bill 1" in failing(found, AuditStep.SETTLEMENT)


@pytest.mark.parametrize("part", ["base", "bonus", "penalty", "fee", "payout", "released"])
def test_the_log_says_what_the_bill_says(world: World, part: str) -> None:
    found = found_in(world, "settled", changing(SettlementEntry, **{f"{part}_micros": 1}))
    assert "settlement 1" in failing(found, AuditStep.SETTLEMENT)


# Verdicts.


def test_what_governance_held_is_paid_only_once_released(world: World) -> None:
    """Also when the settlement itself has a word to say."""
    for reason in ("", "released: looked fine"):
        found = found_in(world, "released", changing(SettlementEntry, version=1, reason=reason))
        assert "reference_copy" in failing(found, AuditStep.SETTLEMENT)


def test_what_was_not_measured_is_paid_only_once_released(world: World) -> None:
    found = found_in(world, "unmeasured", changing(SettlementEntry, reason=""))
    assert "settlement 1" in failing(found, AuditStep.SETTLEMENT)


def test_a_settlement_goes_by_the_criteria_of_the_contract(world: World) -> None:
    def by_others(forgery: Forgery) -> Forgery:
        entries: list[Entry] = [
            msgspec.structs.replace(one, version=2) if isinstance(one, SettlementEntry) and one.number == 2 else one
            for one in forgery.entries
        ]
        return forgery._replace(entries=entries)

    failing(found_in(world, "resettled", by_others), AuditStep.SETTLEMENT)


# Moves, one after the other: whatever came before them, only some may follow.

Made = Callable[[dict[int, SettlementEntry]], ContractEntry]


def paid(which: int, **fields: Any) -> Made:
    return lambda known: msgspec.structs.replace(known[which], **fields)


def head(known: dict[int, SettlementEntry]) -> tuple[str, str, str, str, int]:
    return known[1].at, known[1].tenant, known[1].outcome, known[1].contract, 0


def back(number: int, currency: str = "USD", total: int = HOLD_MICROS) -> Made:
    return lambda known: ReversalEntry(*head(known), number, currency, total, "me", "no")


def given_back(why: str = "void", hold: int = HOLD_MICROS, currency: str = "USD") -> Made:
    return lambda known: ReleaseEntry(*head(known), currency, hold, why, "me", "no")


def resolved(decision: str, amount: int | None = None) -> Made:
    currency = "" if amount is None else "USD"
    return lambda known: ResolutionEntry(*head(known), decision, "me", "so", currency, amount)


def objection(known: dict[int, SettlementEntry]) -> ContractEntry:
    return DisputeEntry(*head(known), "me", "no")


def moving(*moves: Made) -> Change:
    """These moves after all three versions of the verdict; 1 settles the first of them, 2 the third."""

    def change(forgery: Forgery) -> Forgery:
        known = {one.number: one for one in forgery.entries if isinstance(one, SettlementEntry)}
        kept = [one for one in forgery.entries if not isinstance(one, SettlementEntry | ReversalEntry)]
        made = [move(known) for move in moves]
        assert forgery.contract is not None
        used = {str(one.number) for one in made if isinstance(one, SettlementEntry)}
        bills = {number: bill for number, bill in forgery.contract.bills.items() if number in used}
        return forgery._replace(entries=[*kept, *made]).under(bills=bills)

    return change


UPHELD, REVERSED, VOIDED = resolved("uphold"), resolved("reverse"), resolved("void")


@pytest.mark.parametrize(
    "moves",
    [
        [],
        [paid(1)],
        [paid(1), back(1)],
        [paid(1), back(1), paid(2)],
        [paid(1), back(1), paid(2), back(2)],
        [paid(1), back(1), paid(2), back(2), given_back()],
        [given_back()],
        [paid(1), back(1), given_back()],
        [objection],
        [objection, UPHELD],
        [objection, UPHELD, paid(1)],
        [objection, UPHELD, given_back()],
        [objection, VOIDED, given_back()],
        [paid(1), objection],
        [paid(1), objection, UPHELD],
        [paid(1), objection, UPHELD, back(1)],
        [paid(1), objection, REVERSED, back(1)],
        [paid(1), objection, REVERSED, back(1), paid(2), objection, UPHELD],
        [paid(1), objection, VOIDED, back(1), given_back()],
    ],
)
def test_what_can_follow_passes(world: World, moves: Sequence[Made]) -> None:
    assert notes(found_in(world, "resettled", moving(*moves))) == []


@pytest.mark.parametrize(
    ("moves", "kind"),
    [
        ([paid(1), paid(1)], "settlement"),
        ([paid(1), paid(2)], "settlement"),
        ([paid(1), paid(2), back(1), back(2)], "settlement"),
        ([paid(1), back(1), paid(1)], "settlement"),
        ([paid(1), back(1), paid(2, version=1)], "settlement"),
        ([paid(1, version=3), back(1), paid(2, version=3)], "settlement"),
        ([paid(2)], "settlement"),
        ([paid(1), paid(2, number=1)], "settlement"),
        ([back(1)], "reversal"),
        ([back(1), paid(1)], "reversal"),
        ([paid(1), back(2)], "reversal"),
        ([paid(1), back(0)], "reversal"),
        ([paid(1), back(1), back(1)], "reversal"),
        ([paid(1), back(1), paid(2), back(1)], "reversal"),
        ([paid(1), back(1, total=HOLD_MICROS - MORE)], "reversal"),
        ([paid(1), back(1, total=0)], "reversal"),
        ([paid(1), back(1, currency="EUR")], "reversal"),
        ([paid(1), given_back()], "release"),
        ([paid(1), given_back(), back(1)], "release"),
        ([given_back(), given_back()], "release"),
        ([given_back("expire")], "release"),
        ([given_back("gift")], "release"),
        ([given_back(), paid(1)], "settlement"),
        ([given_back(), objection], "dispute"),
        ([objection, objection], "dispute"),
        ([objection, paid(1)], "settlement"),
        ([objection, given_back()], "release"),
        ([paid(1), objection, back(1)], "reversal"),
        ([UPHELD], "resolution"),
        ([objection, UPHELD, UPHELD], "resolution"),
        ([objection, resolved("wish")], "resolution"),
        ([objection, REVERSED, given_back()], "release"),
        ([objection, VOIDED, paid(1)], "settlement"),
        ([paid(1), objection, VOIDED, given_back()], "release"),
        ([paid(1), objection, REVERSED, objection], "dispute"),
        ([paid(1), objection, VOIDED, back(1), paid(2)], "settlement"),
    ],
)
def test_what_cannot_follow_is_refused(world: World, moves: Sequence[Made], kind: str) -> None:
    failing(found_in(world, "resettled", moving(*moves)), AuditStep.SETTLEMENT)


@pytest.mark.parametrize(
    "moves", [[objection, VOIDED], [paid(1), objection, REVERSED], [paid(1), objection, VOIDED, back(1)]]
)
def test_what_was_decided_is_done(world: World, moves: Sequence[Made]) -> None:
    failing(found_in(world, "resettled", moving(*moves)), AuditStep.SETTLEMENT)


# Times.


def later(entry: Entry) -> str:
    """A second after the entry."""
    return (datetime.fromisoformat(entry.at) + timedelta(seconds=1)).isoformat()


def dated_later(kind: type) -> Change:
    def change(forgery: Forgery) -> Forgery:
        entries: list[Entry] = [
            msgspec.structs.replace(one, at=later(one)) if isinstance(one, kind) else one for one in forgery.entries
        ]
        return forgery._replace(entries=entries)

    return change


def without(kind: type) -> Change:
    return lambda forgery: forgery._replace(entries=[one for one in forgery.entries if not isinstance(one, kind)])


@pytest.mark.parametrize(
    ("ending", "change"),
    [
        ("timed", dated_later(InputReadEntry)),
        ("timed", without(InputReadEntry)),
        ("timed", dated_later(StartEntry)),
        ("timed", without(StartEntry)),
        ("timed from start", dated_later(StartEntry)),
        ("timed from start", without(StartEntry)),
    ],
)
def test_an_agents_time_counts_from_what_the_log_records(world: World, ending: str, change: Change) -> None:
    failing(found_in(world, ending, change), AuditStep.SETTLEMENT)


def test_a_read_does_not_matter_where_a_start_counts(world: World) -> None:
    for change in (dated_later(InputReadEntry), without(InputReadEntry)):
        assert found_in(world, "timed from start", change).failed is None


def test_an_operators_time_is_the_operators_word(world: World) -> None:
    assert found_in(world, "settled", dated_later(StartEntry)).failed is None


def moved_last(kind: type) -> Change:
    def change(forgery: Forgery) -> Forgery:
        rest = [one for one in forgery.entries if not isinstance(one, kind)]
        return forgery._replace(entries=[*rest, *(one for one in forgery.entries if isinstance(one, kind))])

    return change


def twice(kind: type) -> Change:
    def change(forgery: Forgery) -> Forgery:
        entries: list[Entry] = []
        for one in forgery.entries:
            entries += [one, one] if isinstance(one, kind) else [one]
        return forgery._replace(entries=entries)

    return change


@pytest.mark.parametrize(
    "change",
    [
        *(moved_last(kind) for kind in (InputReadEntry, StartEntry)),
        *(twice(kind) for kind in (InputReadEntry, StartEntry)),
        *(changing(kind, at="noon") for kind in (InputReadEntry, StartEntry, AwardEntry)),
        changing(StartEntry, at="2026-05-04T03:02:01"),
        changing(InputReadEntry, outcome="out_x"),
    ],
)
def test_a_start_and_a_read_come_once_and_before_the_output(world: World, change: Change) -> None:
    failing(found_in(world, "timed", change), AuditStep.SEQUENCE)


# Disputes that were settled on an amount.


def adjusting(**fields: Any) -> Change:
    """Another decision of the dispute."""
    return changing(ResolutionEntry, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"amount_micros": ADJUSTED_MICROS - 1},
        {"amount_micros": HOLD_MICROS + 1},
        {"amount_micros": -1},
        {"amount_micros": None},
        {"currency": "EUR"},
        {"currency": ""},
        {"decision": "uphold"},
        {"decision": "uphold", "amount_micros": None},
        {"decision": "reverse", "amount_micros": None},
        {"decision": "void", "amount_micros": None},
    ],
)
def test_an_adjusted_settlement_pays_what_was_decided(world: World, fields: dict[str, Any]) -> None:
    failing(found_in(world, "adjusted", adjusting(**fields)), AuditStep.SETTLEMENT)


def repaid(number: int, **fields: Any) -> Change:
    """The last bill otherwise, and the log with it."""

    def change(forgery: Forgery) -> Forgery:
        assert forgery.contract is not None
        bill = msgspec.structs.replace(Bill.from_json(forgery.contract.bills[str(number)]), **fields)
        entries: list[Entry] = [
            msgspec.structs.replace(
                one,
                **{f"{name}_micros": getattr(bill, name) for name in ("total", "fee", "payout", "released", "base")},
            )
            if isinstance(one, SettlementEntry) and one.number == number
            else one
            for one in forgery.entries
        ]
        return forgery._replace(entries=entries).under(bills={**forgery.contract.bills, str(number): bill.to_json()})

    return change


def test_an_adjusted_bill_has_one_line_and_the_fee_of_the_terms(world: World) -> None:
    fee, payout = fee_and_payout(ADJUSTED_MICROS, 0.15)
    line = Line("adjust", PricePart.ADJUSTMENT, ADJUSTED_MICROS, "half was right")
    assert found_in(world, "adjusted", repaid(2, fee=fee, payout=payout, lines=[line])).failed is None
    for fields in (
        {"fee": fee - 1, "payout": payout + 1},
        {"lines": [msgspec.structs.replace(line, reason="all was right")]},
        {"lines": [msgspec.structs.replace(line, part=PricePart.CPC)], "adjustment": 0, "base": ADJUSTED_MICROS},
    ):
        failing(found_in(world, "adjusted", repaid(2, **fields)), AuditStep.SETTLEMENT)


def test_more_than_was_paid_is_not_settled_on(world: World) -> None:
    """The first settlement paid a part, and the second dispute is settled on more, within what was held."""
    more = ADJUSTED_MICROS + 1
    fee, payout = fee_and_payout(more, 0.15)
    line = Line("adjust", PricePart.ADJUSTMENT, more, "as agreed")
    bill = {"total": more, "adjustment": more, "fee": fee, "payout": payout, "released": HOLD_MICROS - more}

    def decide_more(forgery: Forgery) -> Forgery:
        entries: list[Entry] = [*forgery.entries]
        last = max(index for index, one in enumerate(entries) if isinstance(one, ResolutionEntry))
        entries[last] = msgspec.structs.replace(entries[last], amount_micros=more)
        return forgery._replace(entries=entries)

    failing(found_in(world, "adjusted unpaid", decide_more, repaid(2, lines=[line], **bill)), AuditStep.SETTLEMENT)


def test_an_amount_that_no_dispute_was_settled_on_is_refused(world: World) -> None:
    line = Line("adjust", PricePart.ADJUSTMENT, HOLD_MICROS, "because")
    amount = {"lines": [line], "adjustment": HOLD_MICROS, "base": 0, "bonus": 0}
    for ending in ("settled", "paid and erased"):
        found = found_in(world, ending, repaid(1, **amount), changing(SettlementEntry, bonus_micros=0))
        assert "settlement 1" in failing(found, AuditStep.SETTLEMENT)


ADJUSTED = resolved("adjust", HOLD_MICROS)


@pytest.mark.parametrize(
    "moves",
    [
        [paid(1), objection, ADJUSTED],
        [paid(1), objection, ADJUSTED, back(1)],
        [paid(1), objection, ADJUSTED, paid(2)],
        [paid(1), objection, ADJUSTED, back(1), given_back()],
        [objection, ADJUSTED, given_back()],
        [objection, resolved("adjust")],
        [objection, resolved("uphold", 1)],
    ],
)
def test_what_was_settled_on_is_paid_next(world: World, moves: Sequence[Made]) -> None:
    failing(found_in(world, "resettled", moving(*moves)), AuditStep.SETTLEMENT)


@pytest.mark.parametrize("fields", [{"hold": HOLD_MICROS - MORE}, {"hold": 0}, {"currency": "EUR"}])
def test_all_of_the_escrow_goes_back(world: World, fields: dict[str, Any]) -> None:
    said = failing(found_in(world, "resettled", moving(given_back(**fields))), AuditStep.SETTLEMENT)
    assert said.startswith("escrow_is_whole_or_empty")
