"""Doing again what a bundle says about belief and money: the flags from what was known, the bills from the verdicts."""

import json
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from meruit.engine.dossier import About, Planted, dossier_of
from meruit.model.canonical import from_canonical
from meruit.model.contract import Contract, ContractState, Escrow, Terms
from meruit.model.errors import UnknownName
from meruit.model.governance import Disposition, Dossier, GovernanceCheck, History
from meruit.model.money import Bill
from meruit.model.verdict import GovernanceStatus, VerificationResult
from meruit.model.work import Work
from meruit.money.bill import bill
from meruit.money.invariants import Books, Settlement, broken
from meruit.money.ledger import Parties
from meruit.money.payable import why_held
from meruit.registry import flags
from meruit.stores.replay import transfer_told
from meruit.trust.bundle import PARTS, Bundle, ContractFile
from meruit.trust.checking import Deal, Story, fine
from meruit.trust.entries import (
    AwardEntry,
    GovernanceEntry,
    MoneyEntry,
    ReleaseEntry,
    ReversalEntry,
    SettlementEntry,
)
from meruit.trust.findings import Flaw, State, Step, StepFinding
from meruit.trust.governance import govern, together

_NO_MOMENT = datetime(1970, 1, 1, tzinfo=UTC)
Results = Mapping[int, VerificationResult]
SAID = {
    Disposition.CLEAR: GovernanceStatus.CLEAR,
    Disposition.HOLD: GovernanceStatus.REVIEW,
    Disposition.INVALID: GovernanceStatus.INVALID,
}


def check_governance(bundle: Bundle, story: Story, results: Results, notes: list[str]) -> StepFinding:
    """That what was known of the outcome leads to the flags that were raised; raises Flaw."""
    if story.deal is None or bundle.contract is None:
        return StepFinding(Step.GOVERNANCE, State.SKIPPED, "nobody had a contract on this work")
    if not story.deal.governance:
        return StepFinding(Step.GOVERNANCE, State.SKIPPED, "nobody was asked whether it can be believed")
    again = 0
    for entry in story.deal.governance:
        kept = bundle.contract.governance.get(str(entry.version))
        if kept is None:
            notes.append(f"not rerun: governance of version {entry.version}: what it went by was erased")
            continue
        checked = _read_check(kept.body, entry.version)
        _check_said(entry, checked, results.get(entry.version))
        _check_known(bundle, story.deal, checked, results.get(entry.version))
        why = _governed_again(checked)
        if why:
            notes.append(f"not rerun: governance of version {entry.version}: {why}")
        else:
            again += 1
    state = State.OK if again else State.SKIPPED
    return StepFinding(
        Step.GOVERNANCE, state, f"{again} of {len(story.deal.governance)} judged again, with the same flags"
    )


def _read_check(body: bytes, version: int) -> GovernanceCheck:
    try:
        checked = GovernanceCheck.from_json(body)
    except msgspec.DecodeError as problem:
        raise Flaw(Step.GOVERNANCE, f"version {version}: what governance went by cannot be read: {problem}") from None
    if checked.to_json() != body:
        raise Flaw(Step.GOVERNANCE, f"version {version}: what governance went by is not written as it is recorded")
    return checked


def _check_said(entry: GovernanceEntry, checked: GovernanceCheck, result: VerificationResult | None) -> None:
    """That log, record and result tell the same."""
    said = (str(checked.result.concluded), tuple(checked.result.names))
    if said != (entry.disposition, entry.flags):
        raise Flaw(Step.GOVERNANCE, f"version {entry.version}: the log says another answer than the record")
    if result is None:
        return
    if (SAID[checked.result.concluded], checked.result.names) != (result.governance, result.governance_flags):
        raise Flaw(Step.GOVERNANCE, f"version {entry.version}: the result says another answer than the record")


def _check_known(bundle: Bundle, deal: Deal, checked: GovernanceCheck, result: VerificationResult | None) -> None:
    """That the dossier is about this work; what earlier outcomes said, and what was planted, must be believed."""
    if result is None or len(bundle.work) < len(PARTS) or bundle.contract is None:
        return
    work = {part: json.loads(bundle.work[part]) for part in PARTS}
    award = deal.award
    drawn = dossier_of(
        About(award.contract, award.work, award.agent, award.consumer),
        Work(output=work["output"], input=work["input"], metadata=work["metadata"]),
        result,
        Planted(),
        claimed_may_earn=_terms(bundle.contract).claimed_may_earn,
    )
    if _own(drawn) != _own(checked.dossier):
        raise Flaw(Step.GOVERNANCE, "the dossier tells of other work, or of another result")


def _own(dossier: Dossier) -> bytes:
    """What of a dossier follows from the work alone; governance itself decides over success later."""
    return msgspec.structs.replace(
        dossier, success=False, canaries=0, leaked=[], impossible=False, history=History()
    ).to_json()


def _governed_again(checked: GovernanceCheck) -> str:
    """Why the rules were not asked again; empty when they were, with the same answer; raises Flaw for another."""
    if checked.policy is None:
        return "only somebody else was asked"
    installed = {rule.name: rule.version for rule in flags}
    missing = sorted(name for name, version in checked.rules.items() if installed.get(name) != version)
    if missing:
        return f"the rule {missing[0]} is not installed here in the version that was asked"
    again = govern(checked.dossier, checked.policy, checked.rules.keys())
    again = again if checked.remote is None else together(again, checked.remote)
    if again.to_json() != checked.result.to_json():
        raise Flaw(Step.GOVERNANCE, "the rules come to another answer on the same dossier")
    return ""


def check_settlement(bundle: Bundle, story: Story, results: Results, notes: list[str]) -> StepFinding:
    """That verdicts and terms lead to what was paid, and that no money was made or lost; raises Flaw."""
    deal, contract = story.deal, bundle.contract
    if deal is None or contract is None:
        return StepFinding(Step.SETTLEMENT, State.SKIPPED, "nobody had a contract on this work")
    terms = _terms(contract)
    settled = [entry for _, entry in deal.money if isinstance(entry, SettlementEntry)]
    again = 0
    for entry in settled:
        owed = _bill(contract, entry)
        result = results.get(entry.version)
        if result is None:
            notes.append(f"not recomputed: settlement {entry.number}: the result it rests on was erased")
            continue
        if deal.award.criteria and result.criteria_digest != deal.award.criteria:
            raise Flaw(Step.SETTLEMENT, f"settlement {entry.number} paid by other criteria than the contract's")
        held = why_held(result)
        if held and not entry.reason:
            raise Flaw(Step.SETTLEMENT, f"settlement {entry.number} paid what nobody had released: {held}")
        try:
            recomputed = bill(result, terms, deal.award.hold_micros)
        except UnknownName as problem:
            notes.append(f"not recomputed: settlement {entry.number}: {problem}")
            continue
        if recomputed.to_json() != owed.to_json():
            raise Flaw(
                Step.SETTLEMENT, f"settlement {entry.number} paid {owed.total}, the terms give {recomputed.total}"
            )
        again += 1
    _check_books(deal, contract, story)
    told = f"{again} of {len(settled)} settlements recomputed; {len(deal.money)} transfers, and no money made or lost"
    return fine(Step.SETTLEMENT, told)


def _terms(contract: ContractFile) -> Terms:
    try:
        return Terms.model_validate(from_canonical(contract.terms))
    except ValueError as problem:
        raise Flaw(Step.SETTLEMENT, f"the terms cannot be read: {problem}") from None


def _bill(contract: ContractFile, entry: SettlementEntry) -> Bill:
    """The bill of a settlement, the same as the log's."""
    try:
        owed = Bill.from_json(contract.bills[str(entry.number)])
    except msgspec.DecodeError as problem:
        raise Flaw(Step.SETTLEMENT, f"bill {entry.number} cannot be read: {problem}") from None
    logged = (
        *(entry.currency, entry.base_micros, entry.bonus_micros, entry.penalty_micros, entry.total_micros),
        *(entry.fee_micros, entry.payout_micros, entry.released_micros),
    )
    if logged != (
        *(owed.currency, owed.base, owed.bonus, owed.penalty, owed.total),
        *(owed.fee, owed.payout, owed.released),
    ):
        raise Flaw(Step.SETTLEMENT, f"the log says another settlement {entry.number} than its bill")
    return owed


def _check_books(deal: Deal, contract: ContractFile, story: Story) -> None:
    """Every invariant of the ledger, over what the log tells of this contract alone."""
    parties = Parties(deal.award.contract, deal.award.consumer, deal.award.agent)
    known: dict[tuple[str, int], Any] = {}
    transfers = [transfer_told(index, entry, parties, known) for index, entry in deal.money]
    balances: Counter[tuple[str, str]] = Counter()
    for transfer in transfers:
        for account, micros in transfer.postings:
            balances[transfer.currency, account] += micros
    books = Books(
        balances=balances,
        transfers=transfers,
        contracts=[_as_it_stands(deal, contract)],
        settlements=[
            Settlement(
                *(entry.contract, entry.number, entry.outcome, entry.version, _bill(contract, entry), index),
            )
            for index, entry in deal.money
            if isinstance(entry, SettlementEntry)
        ],
        verdicts=frozenset((entry.outcome, entry.version) for entry in story.verdicts),
        moves=frozenset((entry.contract, *_move(entry)) for _, entry in deal.money),
        logged=transfers,
    )
    found = broken(books)
    if found:
        raise Flaw(Step.SETTLEMENT, found[0])


def _move(entry: MoneyEntry) -> tuple[str, int]:
    match entry:
        case AwardEntry():
            return "award", 0
        case SettlementEntry():
            return "settle", entry.number
        case ReversalEntry():
            return "reverse", entry.number
        case ReleaseEntry():
            return entry.why, 0


def _as_it_stands(deal: Deal, contract: ContractFile) -> Contract:
    """The contract as its entries leave it; open, paid or given back."""
    live = 0
    escrow = Escrow.HELD
    for _, entry in deal.money:
        match entry:
            case SettlementEntry():
                live, escrow = entry.number, Escrow.PAID
            case ReversalEntry():
                live, escrow = 0, Escrow.HELD
            case ReleaseEntry():
                escrow = Escrow.RELEASED
            case AwardEntry():
                pass
    award = deal.award
    return Contract(
        id=award.contract,
        seq=0,
        work_id=award.work,
        agent_id=award.agent,
        consumer_id=award.consumer,
        domain=None,
        state=ContractState.VERIFICATION_PENDING,
        escrow=escrow,
        currency=award.currency,
        hold_micros=award.hold_micros,
        terms=contract.terms,
        awarded_at=_NO_MOMENT,
        expires_at=_NO_MOMENT,
        settlement=live,
    )
