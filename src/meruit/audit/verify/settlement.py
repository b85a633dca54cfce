"""Repeat what a bundle says about governance and money: the flags from the dossier, the bills from the verdicts."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import msgspec

from meruit.audit.bundle import Bundle, ContractFile, short
from meruit.audit.findings import AuditStepState, StepFinding, step_ok
from meruit.audit.verify.history import ContractHistory, ContractTransition, OutcomeHistory
from meruit.audit.verify.plausibility import check_plausibility
from meruit.audit.verify.usage import UsageProofs
from meruit.contracts.bill import bill, bill_adjustment, fee_and_payout, hold_for, is_adjusted
from meruit.contracts.invariants import Books, Settlement, find_violations
from meruit.contracts.latency import MEASURED_TIMES, measure_latency
from meruit.contracts.lifecycle import Decision
from meruit.contracts.payment_decision import PAYABLE, judge_reasons, review_reasons, usage_reasons
from meruit.contracts.postings import Parties
from meruit.contracts.replay import transfer_from_entry
from meruit.documents.json_slices import load_json
from meruit.documents.sanitize import describe
from meruit.errors import AuditStep, BundleFlaw, RuleFailed, UnknownName
from meruit.governance.dossier import AGENT, CheatTraps, OutcomeIdentity, dossier_of
from meruit.governance.evaluate import combine_results, govern
from meruit.log.entries import (
    PARTS,
    AwardEntry,
    DisputeEntry,
    GovernanceEntry,
    MoneyEntry,
    ReleaseEntry,
    ResolutionEntry,
    ReversalEntry,
    SettlementEntry,
)
from meruit.model.canonical import canonical, from_canonical
from meruit.model.contract import Contract, ContractState, Escrow, Terms, parse_stored_work
from meruit.model.criterion import SuccessCriteria
from meruit.model.governance import Disposition, Dossier, GovernanceCheck, GovernanceResult, History
from meruit.model.money import Bill, ContractTokenUse
from meruit.model.numbers import in_units
from meruit.model.usage import UsageStatus
from meruit.model.verdict import GovernanceStatus, VerificationResult
from meruit.model.work import Work
from meruit.registry import flags

_NO_MOMENT = datetime(1970, 1, 1, tzinfo=UTC)
Results = Mapping[int, VerificationResult]
_STATES = {
    Escrow.HELD: ContractState.VERIFICATION_PENDING,
    Escrow.PAID: ContractState.SETTLED,
    Escrow.RELEASED: ContractState.FAILED,
}
GOVERNANCE_STATUS = {
    Disposition.CLEAR: GovernanceStatus.CLEAR,
    Disposition.HOLD: GovernanceStatus.REVIEW,
    Disposition.INVALID: GovernanceStatus.INVALID,
}


def check_governance(bundle: Bundle, story: OutcomeHistory, results: Results, notes: list[str]) -> StepFinding:
    """That what was known of the outcome leads to the flags that were raised; raises BundleFlaw."""
    _check_carried(results)
    if story.contract is None or bundle.contract is None:
        return check_plausibility(bundle, results, notes)
    if not story.contract.governance:
        return StepFinding(AuditStep.GOVERNANCE, AuditStepState.SKIPPED, "governance was not asked")
    again = 0
    for entry in story.contract.governance:
        record = bundle.contract.governance.get(str(entry.version))
        if record is None:
            notes.append(f"not rerun: governance of version {entry.version}: its dossier was erased")
            continue
        checked = _read_check(record.body, entry.version)
        _check_said(entry, checked, results.get(entry.version))
        _check_dossier(bundle, story.contract, checked, results.get(entry.version))
        notes += _policy_notes(checked)
        why = _recheck_governance(checked)
        if why:
            notes.append(f"not rerun: governance of version {entry.version}: {why}")
        else:
            again += 1
    state = AuditStepState.OK if again else AuditStepState.SKIPPED
    return StepFinding(
        AuditStep.GOVERNANCE, state, f"{again} of {len(story.contract.governance)} judged again, with the same flags"
    )


def _check_carried(results: Results) -> None:
    """That a version says of belief what the one before it says, or that a person let it stand."""
    for version, result in results.items():
        before = results.get(version - 1, result)
        released = result.governance is GovernanceStatus.RELEASED and before.governance not in PAYABLE
        same = result.governance is before.governance or released
        if not same or result.governance_flags != before.governance_flags:
            raise BundleFlaw(
                AuditStep.GOVERNANCE,
                f"version {version} has another governance answer than the version before it, without a reason",
            )


def _read_check(body: bytes, version: int) -> GovernanceCheck:
    try:
        checked = GovernanceCheck.from_json(body)
        same = msgspec.json.encode(msgspec.json.decode(body)) == body and _normalise_numbers(
            body
        ) == _normalise_numbers(checked.to_json())
    except (ValueError, RecursionError) as problem:
        why = describe(problem)
        raise BundleFlaw(AuditStep.GOVERNANCE, f"version {version}: the dossier cannot be read: {why}") from None
    if not same:
        raise BundleFlaw(AuditStep.GOVERNANCE, f"version {version}: the dossier is not in its recorded form")
    return checked


def _normalise_numbers(body: bytes) -> str:
    """What a record says, in its order; a limit or a confidence of 1 is as good as one of 1.0."""
    return json.dumps(json.loads(body, parse_int=float))


def _check_said(entry: GovernanceEntry, checked: GovernanceCheck, result: VerificationResult | None) -> None:
    """Check that log, record and result agree."""
    logged = (str(checked.result.conclusion), tuple(checked.result.names))
    if logged != (entry.disposition, entry.flags):
        raise BundleFlaw(AuditStep.GOVERNANCE, f"version {entry.version}: the log has another answer than the record")
    if result is None:
        return
    if (GOVERNANCE_STATUS[checked.result.conclusion], checked.result.names) != (
        result.governance,
        result.governance_flags,
    ):
        raise BundleFlaw(
            AuditStep.GOVERNANCE, f"version {entry.version}: the result has another answer than the record"
        )


def _check_dossier(
    bundle: Bundle, deal: ContractHistory, checked: GovernanceCheck, result: VerificationResult | None
) -> None:
    """That the dossier is about this work, and what was planted in it; what earlier outcomes said must be believed."""
    if result is None or len(bundle.work) < len(PARTS) or bundle.contract is None:
        return
    work = {part: load_json(bundle.work[part]) for part in PARTS}
    award = deal.award
    drawn = dossier_of(
        OutcomeIdentity(
            contract_id=award.contract, work_id=award.work, agent_id=award.agent, consumer_id=award.consumer
        ),
        Work(output=work["output"], input=work["input"], metadata=work["metadata"]),
        result,
        _read_cheat_traps(bundle.contract),
        claimed_may_earn=_terms(bundle.contract, AuditStep.GOVERNANCE).claimed_may_earn,
    )
    if _work_part_of(drawn) != _work_part_of(checked.dossier):
        raise BundleFlaw(AuditStep.GOVERNANCE, "the dossier is about other work, or another result")


def _read_cheat_traps(contract: ContractFile) -> CheatTraps:
    """What was hidden in the work before it was awarded; it was read before, with its input."""
    submission = parse_stored_work(contract.work).submission
    if canonical(from_canonical(contract.work)) != contract.work:
        raise BundleFlaw(AuditStep.GOVERNANCE, "the work is not in its recorded form")
    return CheatTraps(submission.canaries, submission.impossible)


def _work_part_of(dossier: Dossier) -> bytes:
    """What of a dossier follows from the work alone; governance itself decides over success later."""
    return msgspec.structs.replace(dossier, success=False, history=History()).to_json()


def _policy_notes(checked: GovernanceCheck) -> list[str]:
    """What the operator decided about the rules, for the verifier to know."""
    if checked.policy is None:
        return []
    left_out = sorted({rule.name for rule in flags} - checked.rules.keys())
    return [
        *([f"governance did not ask the rules {', '.join(left_out)}"] if left_out else []),
        *(f"governance went by limits of the operator's own for {name}" for name in sorted(checked.policy.limits)),
    ]


def _recheck_governance(checked: GovernanceCheck) -> str:
    """Why the rules were not asked again; empty when they were, with the same answer; raises BundleFlaw for another."""
    if checked.policy is None:
        if checked.result != checked.remote:
            raise BundleFlaw(AuditStep.GOVERNANCE, "the answer is not that of the remote governance")
        return "only a remote governance was asked"
    installed = {rule.name: rule.version for rule in flags}
    missing = sorted(name for name, version in checked.rules.items() if installed.get(name) != version)
    if missing:
        return f"the rule {missing[0]} is not installed here in the version that was asked"
    again = govern(checked.dossier, checked.policy, checked.rules.keys())
    again = again if checked.remote is None else combine_results(again, checked.remote)
    if GovernanceResult.from_json(again.to_json()) != checked.result:
        raise BundleFlaw(AuditStep.GOVERNANCE, "the rules give another answer on the same dossier")
    return ""


def check_settlement(
    bundle: Bundle, story: OutcomeHistory, results: Results, agreed: SuccessCriteria | None, notes: list[str]
) -> StepFinding:
    """That verdicts and terms lead to what was paid, and that no money was made or lost; raises BundleFlaw.

    `agreed` are the criteria of the contract.
    """
    deal, contract = story.contract, bundle.contract
    if deal is None or contract is None:
        return StepFinding(AuditStep.SETTLEMENT, AuditStepState.SKIPPED, "this work had no contract")
    terms = _terms(contract, AuditStep.SETTLEMENT)
    if (deal.award.currency, deal.award.hold_micros) != (terms.currency, hold_for(agreed, terms)):
        raise BundleFlaw(AuditStep.SETTLEMENT, "the award holds another amount than criteria and terms can cost")
    _check_latency(bundle, deal, terms)
    money = _replay_transitions(deal)
    settled = [(index, entry) for index, entry in deal.money if isinstance(entry, SettlementEntry)]
    proofs = UsageProofs(bundle.usage, deal.usage)
    judged_by = {verdict.version: verdict.criteria for verdict in story.verdicts}
    again = 0
    for index, entry in settled:
        if judged_by[entry.version] != deal.criteria:
            raise BundleFlaw(
                AuditStep.SETTLEMENT, f"settlement {entry.number} paid by other criteria than the contract's"
            )
        own_rules = _recheck_tokens(proofs, _bill(contract, entry).usage, deal, index, entry.number)
        paid_by = _PaymentTerms(
            terms=terms, criteria=agreed, hold=deal.award.hold_micros, resolution=money.adjusted.get(entry.number)
        )
        why = _recheck_settlement(contract, entry, paid_by, results.get(entry.version))
        why = why or own_rules
        if why:
            notes.append(f"not recomputed: settlement {entry.number}: {why}")
        else:
            again += 1
    _check_runs(contract, deal, money)
    if deal.usage and terms.token_rates is None:
        notes.append("what tokens cost is the bills' word: the prices that are frozen with a run are not in the log")
    _check_books(deal, contract, story, money)
    moved = f"{len(deal.money)} transfers, and no money made or lost"
    if settled and not again:
        message = f"none of {len(settled)} settlements could be recomputed; {moved}"
        return StepFinding(AuditStep.SETTLEMENT, AuditStepState.SKIPPED, message)
    return step_ok(AuditStep.SETTLEMENT, f"{again} of {len(settled)} settlements recomputed; {moved}")


def _check_latency(bundle: Bundle, deal: ContractHistory, terms: Terms) -> None:
    """That an agent's time counts from the event of the terms that the log records, by the service's clock."""
    stored = bundle.work.get("metadata")
    metadata = None if stored is None else json.loads(stored)
    if not isinstance(metadata, dict) or metadata.get("reported_by") != AGENT:
        # What an operator reports of the time is the operator's own measurement.
        return
    try:
        received_at = datetime.fromisoformat(metadata["received_at"])
        measured = measure_latency(deal.times, terms.latency_from, received_at)
    except (LookupError, TypeError, ValueError) as problem:
        raise BundleFlaw(AuditStep.SETTLEMENT, f"the time of arrival cannot be read: {describe(problem)}") from None
    wrong = [name for name in MEASURED_TIMES if metadata.get(name) != measured.get(name)]
    if wrong:
        raise BundleFlaw(AuditStep.SETTLEMENT, f"the output was judged by another {wrong[0]} than the log gives")


def _check_runs(contract: ContractFile, deal: ContractHistory, money: "_MoneyState") -> None:
    """Check that every run in the log was paid for, and that none stays paid that is not verified any more."""
    bills = [_bill(contract, entry) for _, entry in deal.money if isinstance(entry, SettlementEntry)]
    if strange := sorted(deal.usage.keys() - {use.run_id for bill in bills for use in bill.usage}):
        raise BundleFlaw(AuditStep.SETTLEMENT, f"no bill is for the tokens of run {short(strange[0])}")
    if money.live is None or money.disputed:
        # What is disputed stays as it is until the dispute is resolved.
        return
    for use in _bill(contract, money.live).usage:
        _, newest = deal.usage[use.run_id][-1]
        if newest.status != UsageStatus.VERIFIED:
            raise BundleFlaw(AuditStep.SETTLEMENT, f"run {short(use.run_id)} is not verified any more, and stays paid")


def _recheck_tokens(
    proofs: UsageProofs, usage: Sequence[ContractTokenUse], deal: ContractHistory, index: int, number: int
) -> str:
    """Which tokens only the operator's own rules verify; empty for none; raises BundleFlaw for wrong ones."""
    if len({use.run_id for use in usage}) < len(usage):
        raise BundleFlaw(AuditStep.SETTLEMENT, f"settlement {number} paid the tokens of one run twice")
    own_rules = ""
    for use in usage:
        found, run = proofs.prove(use.run_id, index), short(use.run_id)
        if (found.run.id, found.run.contract_id) != (use.run_id, deal.award.contract):
            raise BundleFlaw(
                AuditStep.SETTLEMENT, f"settlement {number} paid the tokens of run {run}, which is not of its contract"
            )
        if use.observations < found.observations:
            raise BundleFlaw(
                AuditStep.SETTLEMENT,
                f"settlement {number} is based on fewer observations of run {run} than verified it",
            )
        if found.verdict.tokens != use.tokens:
            raise BundleFlaw(
                AuditStep.SETTLEMENT, f"settlement {number} paid other tokens of run {run} than its provider counted"
            )
        if not found.as_specified:
            own_rules = f"the observations of run {run} verify its tokens only by rules of the operator's own"
    return own_rules


class _PaymentTerms(msgspec.Struct, frozen=True):
    """What a contract is paid by."""

    terms: Terms
    criteria: SuccessCriteria | None
    hold: int
    resolution: ResolutionEntry | None = None
    """The decision that settled a dispute on an amount; None where verdict and terms give the price."""


def _recheck_settlement(
    contract: ContractFile, entry: SettlementEntry, agreed: _PaymentTerms, result: VerificationResult | None
) -> str:
    """Why a settlement was not recomputed; empty when it was, to the same bill; raises BundleFlaw for another."""
    terms = agreed.terms
    owed, number = _bill(contract, entry), entry.number
    if (owed.fee, owed.payout) != fee_and_payout(owed.total, terms.platform_fee_rate):
        raise BundleFlaw(AuditStep.SETTLEMENT, f"the fee of settlement {number} is not the one of the terms")
    if agreed.resolution is not None:
        return _recheck_adjustment(owed, entry, agreed, agreed.resolution)
    if is_adjusted(owed):
        raise BundleFlaw(AuditStep.SETTLEMENT, f"settlement {number} paid an amount that no dispute was settled on")
    waits = next(usage_reasons(owed.usage, terms), None)
    if waits:
        raise BundleFlaw(AuditStep.SETTLEMENT, f"settlement {number} paid tokens that were not known: {waits.message}")
    if result is None:
        return "the result it rests on was erased"
    reasons = (*review_reasons(result, agreed.criteria, terms), *judge_reasons(result, owed.judges, terms))
    held = next(iter(reasons), None)
    # What governance holds is released by a version that says so; a word with the settlement is not enough.
    if held and (not entry.reason or result.governance not in PAYABLE):
        raise BundleFlaw(AuditStep.SETTLEMENT, f"settlement {number} paid what was not released: {held.message}")
    try:
        recomputed = bill(result, terms, agreed.hold, owed.usage, owed.judges)
    except (UnknownName, RuleFailed) as problem:
        return str(problem)
    if recomputed.total != owed.total:
        paid, due = in_units(owed.total), in_units(recomputed.total)
        raise BundleFlaw(AuditStep.SETTLEMENT, f"settlement {number} paid {paid}, the terms give {due}")
    if recomputed != owed:
        raise BundleFlaw(AuditStep.SETTLEMENT, f"bill {number} is not the one that the terms give")
    return ""


def _recheck_adjustment(owed: Bill, entry: SettlementEntry, agreed: _PaymentTerms, decided: ResolutionEntry) -> str:
    """Empty: the bill is the one of the amount that the log says a dispute was settled on; raises BundleFlaw."""
    if owed != bill_adjustment(decided.amount_micros or 0, agreed.terms, agreed.hold, decided.reason):
        raise BundleFlaw(
            AuditStep.SETTLEMENT, f"bill {entry.number} is not the one of the amount that the dispute was settled on"
        )
    return ""


def _terms(contract: ContractFile, step: AuditStep) -> Terms:
    try:
        document = from_canonical(contract.terms)
        terms = Terms.model_validate(document)
        same = canonical(document) == contract.terms
    except (ValueError, RecursionError) as problem:
        raise BundleFlaw(step, f"the terms cannot be read: {describe(problem)}") from None
    if not same:
        raise BundleFlaw(step, "the terms are not written as they are recorded")
    return terms


def _bill(contract: ContractFile, entry: SettlementEntry) -> Bill:
    """The bill of a settlement, the same as the log's."""
    body = contract.bills[str(entry.number)]
    try:
        owed = Bill.from_json(body)
    except (msgspec.DecodeError, RecursionError) as problem:
        raise BundleFlaw(AuditStep.SETTLEMENT, f"bill {entry.number} cannot be read: {describe(problem)}") from None
    if owed.to_json() != body:
        raise BundleFlaw(AuditStep.SETTLEMENT, f"bill {entry.number} is not written as it is recorded")
    logged = (
        *(entry.currency, entry.base_micros, entry.bonus_micros, entry.penalty_micros, entry.total_micros),
        *(entry.fee_micros, entry.payout_micros, entry.released_micros),
    )
    if logged != (
        *(owed.currency, owed.base, owed.bonus, owed.penalty, owed.total),
        *(owed.fee, owed.payout, owed.released),
    ):
        raise BundleFlaw(AuditStep.SETTLEMENT, f"the log has another settlement {entry.number} than its bill")
    return owed


class _MoneyState(msgspec.Struct, frozen=True):
    """How far the entries of a contract have brought its money."""

    hold: int = 0
    escrow: Escrow = Escrow.HELD
    live: SettlementEntry | None = None
    """What is paid, and not taken back."""
    number: int = 0
    """Of the last settlement."""
    version: int = 0
    """Of the verdict that was settled last."""
    disputed: bool = False
    decided: str = Decision.UPHOLD
    """What a resolution has decided, until it is done."""
    amount: ResolutionEntry | None = None
    """The resolution that the next settlement must pay by, where it settles on an amount."""
    adjusted: Mapping[int, ResolutionEntry] = {}
    """By number: the settlements that a resolution settled on an amount."""


def _replay_transitions(deal: ContractHistory) -> _MoneyState:
    """The money after every move, each of which begins where the one before it ended; raises BundleFlaw."""
    money = _MoneyState(hold=deal.award.hold_micros)
    for index, entry in deal.transitions[1:]:
        after = _next_money_state(money, entry)
        if after is None:
            # Any: what a struct is tagged with may be a number elsewhere.
            kind: Any = entry.__struct_config__.tag
            raise BundleFlaw(AuditStep.SETTLEMENT, f"entry {index}, a {kind}, is not allowed after what came before it")
        money = after
    if money.decided != Decision.UPHOLD:
        raise BundleFlaw(AuditStep.SETTLEMENT, f"a dispute was resolved by {money.decided}, and that was not done")
    return money


def _next_money_state(money: _MoneyState, entry: ContractTransition) -> _MoneyState | None:  # noqa: PLR0911 - one return a kind of move
    """The money after a move; None for one that cannot be."""
    held, done = money.escrow is Escrow.HELD, money.decided == Decision.UPHOLD
    if money.disputed != isinstance(entry, ResolutionEntry):
        return None
    match entry:
        case SettlementEntry() if held and _is_next(money, entry) and (done or _is_as_decided(money, entry)):
            by_amount = {} if money.amount is None else {entry.number: money.amount}
            return _MoneyState(
                hold=money.hold,
                escrow=Escrow.PAID,
                live=entry,
                number=entry.number,
                version=entry.version,
                adjusted={**money.adjusted, **by_amount},
            )
        case ReversalEntry() if money.live is not None and _is_all(money.live, entry):
            left = money.decided if money.decided in (Decision.VOID, Decision.ADJUST) else Decision.UPHOLD
            return msgspec.structs.replace(money, escrow=Escrow.HELD, live=None, decided=left)
        case ReleaseEntry(why="void") if held and money.decided not in (Decision.REVERSE, Decision.ADJUST):
            return msgspec.structs.replace(money, escrow=Escrow.RELEASED, decided=Decision.UPHOLD)
        case DisputeEntry() if done and money.escrow is not Escrow.RELEASED:
            return msgspec.structs.replace(money, disputed=True)
        case ResolutionEntry(decision=Decision.ADJUST) if _is_within_bound(money, entry):
            return msgspec.structs.replace(money, disputed=False, decided=Decision.ADJUST, amount=entry)
        case ResolutionEntry(decision=Decision.UPHOLD | Decision.REVERSE | Decision.VOID as decision) if (
            entry.amount_micros is None
        ):
            return msgspec.structs.replace(money, disputed=False, decided=decision)
        case _:
            return None


def _is_next(money: _MoneyState, entry: SettlementEntry) -> bool:
    return entry.number == money.number + 1 and entry.version > money.version


def _is_as_decided(money: _MoneyState, entry: SettlementEntry) -> bool:
    """Whether a settlement pays just what the resolution before it says."""
    decided = money.amount
    return decided is not None and (entry.currency, entry.total_micros) == (decided.currency, decided.amount_micros)


def _is_within_bound(money: _MoneyState, entry: ResolutionEntry) -> bool:
    """Whether a dispute is settled on at most what was paid, or what is held."""
    most = money.hold if money.live is None else money.live.total_micros
    return entry.amount_micros is not None and 0 <= entry.amount_micros <= most


def _is_all(live: SettlementEntry, entry: ReversalEntry) -> bool:
    return (entry.number, entry.currency, entry.total_micros) == (live.number, live.currency, live.total_micros)


def _check_books(deal: ContractHistory, contract: ContractFile, story: OutcomeHistory, money: _MoneyState) -> None:
    """Every invariant of the ledger, over what the log says of this contract alone."""
    parties = Parties(contract_id=deal.award.contract, consumer_id=deal.award.consumer, agent_id=deal.award.agent)
    known: dict[tuple[str, int], Any] = {}
    transfers = [transfer_from_entry(index, entry, parties, known) for index, entry in deal.money]
    balances: Counter[tuple[str, str]] = Counter()
    for transfer in transfers:
        for account, micros in transfer.postings:
            balances[transfer.currency, account] += micros
    books = Books(
        balances=balances,
        transfers=transfers,
        contracts=[_as_it_stands(deal.award, contract, money, story.evidence.outcome)],
        settlements=[
            Settlement(
                contract_id=entry.contract,
                number=entry.number,
                outcome_id=entry.outcome,
                version=entry.version,
                bill=_bill(contract, entry),
                leaf=index,
                digest=sha256(contract.bills[str(entry.number)]).hexdigest(),
            )
            for index, entry in deal.money
            if isinstance(entry, SettlementEntry)
        ],
        verdicts=frozenset((entry.outcome, entry.version) for entry in story.verdicts),
        operations=frozenset((entry.contract, *_operation_of(entry)) for _, entry in deal.money),
        logged=transfers,
        terms={deal.award.contract: deal.award.terms},
        bills={
            (entry.contract, entry.number): entry.bill for _, entry in deal.money if isinstance(entry, SettlementEntry)
        },
    )
    found = find_violations(books)
    if found:
        raise BundleFlaw(AuditStep.SETTLEMENT, found[0])


def _operation_of(entry: MoneyEntry) -> tuple[str, int]:
    match entry:
        case AwardEntry():
            return "award", 0
        case SettlementEntry():
            return "settle", entry.number
        case ReversalEntry():
            return "reverse", entry.number
        case ReleaseEntry():
            return entry.why, 0


def _as_it_stands(award: AwardEntry, contract: ContractFile, money: _MoneyState, outcome: str) -> Contract:
    """The contract as its entries leave it; open, paid or given back."""
    state = _STATES[money.escrow]
    frozen = money.disputed and money.escrow is Escrow.HELD
    return Contract(
        id=award.contract,
        seq=0,
        work_id=award.work,
        agent_id=award.agent,
        consumer_id=award.consumer,
        domain=None,
        state=ContractState.DISPUTED if money.disputed else state,
        escrow=Escrow.FROZEN if frozen else money.escrow,
        currency=award.currency,
        hold_micros=award.hold_micros,
        terms=contract.terms,
        awarded_at=_NO_MOMENT,
        expires_at=_NO_MOMENT,
        settlement=0 if money.live is None else money.live.number,
        total_micros=0 if money.live is None else money.live.total_micros,
        outcome_id=outcome,
        disputed_from=state if money.disputed else None,
    )
