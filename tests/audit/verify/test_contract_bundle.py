"""What the pure steps of checking a bundle make of contracts: nothing left out, and all of it as committed to."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.audit.contract_bundles import ENDINGS, HOLD_MICROS, Stall, expired
from tests.audit.flaws import check_sentence
from tests.faults.tampering import TENANT, Forgery, Ticking, World, make_contract_world, no_sleep, open_store

from meruit.audit.bundle import CONTRACT, BundleManifest, ContractFile, SaltedContent, pack, pack_files, unpack
from meruit.audit.export import export
from meruit.audit.verify.entries import check
from meruit.audit.verify.history import ContractHistory
from meruit.errors import AuditStep, NotFound
from meruit.log.entries import (
    NO_CRITERIA,
    AwardEntry,
    ContractEntry,
    DisputeEntry,
    Entry,
    ErasureEntry,
    EvidenceEntry,
    GovernanceEntry,
    ReleaseEntry,
    ResolutionEntry,
    ReversalEntry,
    SettlementEntry,
    VerdictEntry,
)
from meruit.model.access import Scope
from meruit.model.contract import ContractState

pytestmark = pytest.mark.golden

AT, OTHER = "2026-01-02T00:00:00Z", "0" * 64
Change = Callable[[Forgery], Forgery]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_contract_world(tmp_path_factory.mktemp("records"))


def failing(data: bytes, step: AuditStep) -> str:
    """What is said about the bundle, once it fails where it should."""
    flaw = check(data).flaw
    assert flaw is not None
    assert flaw.step is step, flaw
    check_sentence(str(flaw))
    return str(flaw)


def forged(world: World, ending: str, change: Change) -> bytes:
    """What an operator hands over who signs another log with the right key, and commits to what he hands over."""
    whole = world.read(ending)
    return change(Forgery.of(whole)).renumbered().committed().packed(world.signer, whole)


def deal_of(world: World, ending: str) -> ContractHistory:
    found = check(world.bundles[ending], world.signer.verifier)
    assert found.flaw is None, found.flaw
    assert found.history is not None
    assert found.history.contract is not None
    return found.history.contract


def head(forgery: Forgery) -> tuple[str, str, str, str, int]:
    """How an entry of the contract begins; its number is found later."""
    award = next(one for one in forgery.entries if isinstance(one, AwardEntry))
    return AT, award.tenant, forgery.outcome, award.contract, 0


def adding(made: Callable[[Forgery], Entry]) -> Change:
    return lambda forgery: forgery._replace(entries=[*forgery.entries, made(forgery)])


def without(*kinds: type) -> Change:
    return lambda forgery: forgery._replace(entries=[one for one in forgery.entries if not isinstance(one, kinds)])


def changing(kind: type, **fields: Any) -> Change:
    return lambda forgery: forgery.changed(kind, **fields)


# What is sound.


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_ending_is_told_whole(world: World, ending: str) -> None:
    deal = deal_of(world, ending)
    assert deal.transitions[0][1] == deal.award
    assert deal.award.hold_micros == HOLD_MICROS or ending in ("without criteria", "unmeasured")
    assert [one.version for one in deal.governance] == ([] if ending == "asked nobody" else [1])


@pytest.mark.parametrize(
    ("ending", "kinds"),
    [
        ("settled", [SettlementEntry]),
        ("held", []),
        ("released", [SettlementEntry]),
        ("resettled", [SettlementEntry, ReversalEntry, SettlementEntry]),
        ("voided", [ReleaseEntry]),
        ("upheld", [SettlementEntry, DisputeEntry, ResolutionEntry]),
        ("disputed", [SettlementEntry, DisputeEntry]),
        ("taken back", [SettlementEntry, DisputeEntry, ResolutionEntry, ReversalEntry]),
        ("called off", [SettlementEntry, DisputeEntry, ResolutionEntry, ReversalEntry, ReleaseEntry]),
    ],
)
def test_the_log_tells_every_move_in_its_order(world: World, ending: str, kinds: list[type]) -> None:
    deal = deal_of(world, ending)
    assert [type(entry) for _, entry in deal.transitions] == [AwardEntry, *kinds]
    assert [entry for _, entry in deal.money] == [
        entry for _, entry in deal.transitions if not isinstance(entry, DisputeEntry | ResolutionEntry)
    ]


def test_work_without_criteria_is_judged_by_none(world: World) -> None:
    deal = deal_of(world, "without criteria")
    assert (deal.award.criteria, deal.criteria) == ("", NO_CRITERIA)
    assert [*world.read("without criteria").criteria] == [NO_CRITERIA]


def test_what_was_erased_is_gone_and_said_to_be(world: World) -> None:
    found = check(world.bundles["paid and erased"])
    assert found.flaw is None
    assert found.passed[-1].message.endswith("verdicts/1.json, governance/1.json")
    assert found.bundle is not None
    assert found.bundle.contract is not None
    assert not found.bundle.contract.governance
    assert [*found.bundle.contract.bills] == ["1"]
    # With its salt, an input that was erased could be guessed.
    assert found.bundle.contract.input_salt is None
    assert "input" in failing(handed(world, "paid and erased", input_salt="00" * 16), AuditStep.BLOBS)


def test_a_contract_that_expired_has_no_outcome_to_hand_over(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    clock = store.surroundings.clock
    assert isinstance(clock, Ticking)

    def later(step: timedelta) -> None:
        clock.now += step

    try:
        contract = expired(Stall(store, TENANT), later)
        assert (contract.state, contract.outcome_id) == (ContractState.EXPIRED, None)
        with pytest.raises(NotFound):
            export(store, Scope(TENANT), contract.id, sleep=no_sleep)
    finally:
        store.close()


def test_a_forger_without_a_lie_passes(world: World) -> None:
    for ending in ENDINGS:
        assert check(forged(world, ending, lambda honest: honest)).flaw is None, ending


# The file.


def filed(world: World, content: bytes, ending: str = "settled") -> bytes:
    return pack_files({**unpack(world.bundles[ending]), CONTRACT: content})


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b"{}", b"[" * 100_000])
def test_a_contract_that_cannot_be_read_is_refused(world: World, content: bytes) -> None:
    assert "contract.json" in failing(filed(world, content), AuditStep.BUNDLE)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"terms"', b'{ "terms"'),
        (b'{"terms"', b'{"terms":"","terms"'),
        (b'"bills":{', b'"bills":{"1":"",'),
        (b'"1":{"salt"', b'"\\u0031":{"salt"'),
    ],
)
def test_a_contract_has_one_form(world: World, before: bytes, after: bytes) -> None:
    content = unpack(world.bundles["settled"])[CONTRACT]
    assert before in content
    assert "contract.json" in failing(filed(world, content.replace(before, after, 1)), AuditStep.BUNDLE)


def test_a_contract_holds_nothing_that_we_do_not_know(world: World) -> None:
    content = unpack(world.bundles["settled"])[CONTRACT]
    failing(filed(world, content.replace(b'{"terms"', b'{"more":1,"terms"', 1)), AuditStep.BUNDLE)


def test_the_contract_is_there_where_there_was_one(world: World) -> None:
    whole = world.read("settled")
    assert "contract.json" in failing(pack(msgspec.structs.replace(whole, contract=None)), AuditStep.BLOBS)


def test_no_contract_is_there_where_there_was_none(world: World) -> None:
    assert check(forged(world, "settled", lambda honest: honest.bare())).flaw is None
    data = forged(world, "settled", lambda honest: honest.bare()._replace(contract=honest.contract))
    failing(data, AuditStep.BLOBS)


# The sequence.


def with_late_award(forgery: Forgery) -> Forgery:
    awards = [one for one in forgery.entries if isinstance(one, AwardEntry)]
    return without(AwardEntry)(forgery)._replace(entries=[*without(AwardEntry)(forgery).entries, *awards])


def twice(kind: type) -> Change:
    return adding(lambda forgery: next(one for one in forgery.entries if isinstance(one, kind)))


def about_the_second(forgery: Forgery) -> Forgery:
    asked = [msgspec.structs.replace(one, version=2) for one in forgery.entries if isinstance(one, GovernanceEntry)]
    return forgery._replace(entries=[*without(GovernanceEntry)(forgery).entries, *asked])


def before_its_verdict(forgery: Forgery) -> Forgery:
    """Everything that rests on the verdict, right after the award."""
    grounded = [one for one in forgery.entries if isinstance(one, SettlementEntry | GovernanceEntry)]
    others = [one for one in forgery.entries if one not in grounded]
    place = next(n for n, one in enumerate(others) if isinstance(one, VerdictEntry))
    return forgery._replace(entries=[*others[:place], *grounded, *others[place:]])


@pytest.mark.parametrize(
    ("ending", "change"),
    [
        ("settled", without(AwardEntry)),
        ("held", without(AwardEntry)),
        ("settled", twice(AwardEntry)),
        ("settled", with_late_award),
        ("settled", changing(AwardEntry, outcome="out_x")),
        ("settled", changing(SettlementEntry, outcome="out_x")),
        ("settled", changing(SettlementEntry, contract="con_x")),
        ("settled", changing(GovernanceEntry, tenant="other")),
        ("settled", changing(AwardEntry, criteria=OTHER)),
        ("settled", changing(AwardEntry, criteria="")),
        ("without criteria", changing(AwardEntry, criteria=OTHER)),
        ("settled", changing(SettlementEntry, version=2)),
        ("settled", changing(SettlementEntry, version=0)),
        ("settled", changing(GovernanceEntry, version=2)),
        ("settled", before_its_verdict),
        ("settled", twice(GovernanceEntry)),
        ("released", about_the_second),
        ("settled", without(EvidenceEntry)),
    ],
)
def test_a_signed_log_that_cannot_be_true_is_refused(world: World, ending: str, change: Change) -> None:
    failing(forged(world, ending, change), AuditStep.SEQUENCE)


def test_an_award_is_the_first_of_its_contract(world: World) -> None:
    whole = world.read("settled")
    entries: list[Entry] = [
        msgspec.structs.replace(one, contract_seq=one.contract_seq + 1) if isinstance(one, ContractEntry) else one
        for one in Forgery.of(whole).entries
    ]
    data = Forgery.of(whole)._replace(entries=entries).packed(world.signer, whole)
    failing(data, AuditStep.SEQUENCE)


def test_an_award_alone_is_no_outcome(world: World) -> None:
    whole = world.read("settled")
    awards = [one for one in whole.entries if b'"kind":"award"' in one.body or b'"kind":"key"' in one.body]
    failing(pack(msgspec.structs.replace(whole, entries=awards)), AuditStep.SEQUENCE)


def entries_of_a_contract(forgery: Forgery) -> Iterator[Entry]:
    """One of each kind that only a contract has."""
    start = (*head(forgery)[:3], "c-1", 0)
    yield GovernanceEntry(*start, 1, "clear", (), OTHER)
    yield ReversalEntry(*start, 1, "USD", 1, "me", "")
    yield ReleaseEntry(*start, "USD", 1, "void", "me", "")
    yield DisputeEntry(*start, "me", "")
    yield ResolutionEntry(*start, "uphold", "me", "")
    settlement = next(one for one in forgery.entries if isinstance(one, SettlementEntry))
    yield msgspec.structs.replace(settlement, contract="c-1")


def test_nothing_of_a_contract_happens_without_one(world: World) -> None:
    for more in entries_of_a_contract(Forgery.of(world.read("settled"))):

        def change(forgery: Forgery, more: Entry = more) -> Forgery:
            bare = forgery.bare()
            return bare._replace(entries=[*bare.entries, more])

        failing(forged(world, "settled", change), AuditStep.SEQUENCE)


@pytest.mark.parametrize("kind", [SettlementEntry, GovernanceEntry])
def test_nothing_is_believed_or_paid_on_what_was_erased(world: World, kind: type) -> None:
    def late(forgery: Forgery) -> Forgery:
        moved = [one for one in forgery.entries if isinstance(one, kind)]
        return forgery._replace(entries=[*without(kind)(forgery).entries, *moved])

    failing(forged(world, "paid and erased", late), AuditStep.SEQUENCE)


def test_what_was_paid_may_come_back_after_an_erasure(world: World) -> None:
    def late(forgery: Forgery) -> Forgery:
        back = ReversalEntry(*head(forgery), 1, "USD", HOLD_MICROS, "me", "unfounded")
        return forgery._replace(entries=[*forgery.entries, back])

    assert check(forged(world, "paid and erased", late)).flaw is None


# The content.


def contract_of(world: World, ending: str) -> ContractFile:
    contract = world.read(ending).contract
    assert contract is not None
    return contract


def handed(world: World, ending: str, **fields: Any) -> bytes:
    """The bundle with another contract in part, and the log as it is."""
    contract = msgspec.structs.replace(contract_of(world, ending), **fields)
    return pack(msgspec.structs.replace(world.read(ending), contract=contract))


def test_the_content_is_what_was_committed_to(world: World) -> None:
    contract = contract_of(world, "resettled")
    first, kept = contract.bills["1"], contract.governance["1"]
    for fields, said in (
        ({"terms": contract.terms + b" "}, "terms"),
        ({"work": contract.work + b" "}, "work"),
        ({"work": contract_of(world, "unsettled").work}, "work"),
        ({"bills": {**contract.bills, "1": first + b" "}}, "bills"),
        ({"bills": {"1": first}}, "bills"),
        ({"bills": {**contract.bills, "3": first}}, "bills"),
        ({"bills": {"1": first, "02": contract.bills["2"]}}, "bills"),
        ({"governance": {}}, "governance/1.json"),
        ({"governance": {"1": kept, "2": kept}}, "governance/'2'"),
        ({"governance": {"1": SaltedContent(kept.salt, kept.body + b" ")}}, "governance/1.json is not what was"),
        ({"governance": {"1": SaltedContent("00" * 16, kept.body)}}, "governance/1.json is not what was"),
        ({"governance": {"1": SaltedContent(kept.salt.upper(), kept.body)}}, "governance/1.json is not what was"),
        ({"governance": {"1": SaltedContent("zz", kept.body)}}, "governance/1.json is not what was"),
        ({"input_salt": None}, "input"),
        ({"input_salt": "zz"}, "input"),
        ({"input_salt": (contract.input_salt or "").upper()}, "input"),
        ({"input_salt": contract_of(world, "unsettled").input_salt}, "input"),
    ):
        assert said in failing(handed(world, "resettled", **fields), AuditStep.BLOBS), fields.keys()


def test_a_dossier_that_was_erased_does_not_come_back(world: World) -> None:
    kept = contract_of(world, "settled").governance["1"]

    def back(forgery: Forgery) -> Forgery:
        return forgery.under(governance={"1": kept})

    said = "governance/1.json is there, though the log says that it was erased"
    assert said in failing(forged(world, "paid and erased", back), AuditStep.BLOBS)

    def erasing(forgery: Forgery) -> Forgery:
        gone = ErasureEntry(*head(forgery), ("governance",), "asked for")
        return forgery._replace(entries=[*forgery.entries, gone])

    assert said in failing(forged(world, "settled", erasing), AuditStep.BLOBS)


def test_a_dossier_that_is_gone_was_erased(world: World) -> None:
    def unsaid(forgery: Forgery) -> Forgery:
        return forgery.changed(ErasureEntry, parts=("input", "output", "metadata", "result"))

    assert "governance/1.json" in failing(forged(world, "paid and erased", unsaid), AuditStep.BLOBS)


def test_the_manifest_names_the_versions_of_the_contract(world: World) -> None:
    whole = world.read("resettled")
    manifest = BundleManifest(whole.manifest.format, whole.manifest.outcome, [1, 2], [])
    failing(pack(msgspec.structs.replace(whole, manifest=manifest)), AuditStep.SEQUENCE)
