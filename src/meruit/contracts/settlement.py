"""The money of a contract: paid by a verdict, held, taken back or given back, each with its entry and its transfer."""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any

import msgspec
from sqlalchemy import select

from meruit.contracts import lifecycle
from meruit.contracts import postings as ledger
from meruit.contracts.bill import bill
from meruit.contracts.lifecycle import Operation
from meruit.contracts.payable import why_held, why_review_needed
from meruit.contracts.store.ledger import Movement, move_money, parties_of
from meruit.contracts.store.read import ContractJudgement, terms_of
from meruit.contracts.store.transaction import ContractTransaction, fingerprint
from meruit.contracts.store.work import WorkRow, find_for_writing
from meruit.contracts.token_terms import token_payments_by_run, why_usage_waits
from meruit.errors import RuleFailed, UnknownName, WrongState
from meruit.governance.store import find_paid_contract, forget_paid_evidence, record_paid_evidence
from meruit.log.commitment import SALT_BYTES
from meruit.log.entries import NO_CRITERIA, ReleaseEntry, ReversalEntry, SettlementEntry
from meruit.model.contract import Contract, ContractState, SettleWhen
from meruit.model.criterion import SuccessCriteria
from meruit.model.events import EventType
from meruit.model.money import Bill, ContractTokenUse
from meruit.model.numbers import in_units
from meruit.model.prices import RunCosts
from meruit.model.verdict import VerificationResult
from meruit.outcomes.store.read import criteria_from
from meruit.outcomes.store.write import AddVersions, NewVersion
from meruit.store import tables
from meruit.usage.store.write import RecordPrices

DUPLICATE = "duplicate_claim"
RULE_FAILED = "rule_failed"
USAGE_UNVERIFIED = "usage_unverified"
BY_USAGE = fingerprint("usage")
"""How a reversal is marked that comes of tokens which are not verified any more."""


def pay_or_hold(
    step: ContractTransaction, contract: Contract, judgement: ContractJudgement, criteria: bytes | None
) -> tuple[Contract, Bill | None]:
    """Pay what a new verdict is worth, where nothing stands against it; no bill where it is held or not due."""
    assert judgement.result is not None  # noqa: S101 - just judged
    usage, terms = step.usage(contract), terms_of(contract)
    owed, held = None, why_held(judgement.result, None if criteria is None else criteria_of(criteria), terms, usage)
    if not held and terms.settle is SettleWhen.AT_ONCE:
        try:
            owed = bill(judgement.result, terms, contract.hold_micros, usage)
        except (RuleFailed, UnknownName) as problem:
            held = str(problem)
    if held:
        contract = lifecycle.hold(contract, held)
        step.emit_event(contract, EventType.CONTRACT_HELD, contract.settlements, reason=held)
        return contract, None
    contract = record_verdict(step, contract, judgement.result)
    return (contract, None) if owed is None else (_write_settlement(step, contract, judgement.version, owed), owed)


def why_contract_needs_review(contract: Contract, result: VerificationResult, criteria: bytes | None) -> str:
    """Why a person must look before it is paid; empty where nobody must."""
    return why_review_needed(result, None if criteria is None else criteria_of(criteria), terms_of(contract))


def refuse_unverified(step: ContractTransaction, contract: Contract) -> None:
    """Raise WrongState while tokens that are priced are not verified; nobody's word stands in for that."""
    waits = why_usage_waits(step.usage(contract), terms_of(contract))
    if waits:
        raise WrongState(
            USAGE_UNVERIFIED, f"contract {contract.id} waits: {waits}; it is paid when its tokens are known, or void it"
        )


def refuse_paid_run(step: ContractTransaction, contract: Contract, result: VerificationResult) -> None:
    """Raise WrongState where another contract was paid for the same run since governance looked."""
    other = find_paid_contract(step.writing, step.tenant, contract, contract.evidence)
    if other is not None and DUPLICATE not in result.governance_flags:
        raise WrongState(DUPLICATE, f"the run of contract {contract.id} was paid under {other} meanwhile; call it off")


@lru_cache(maxsize=256)
def criteria_of(body: bytes) -> SuccessCriteria:
    """Criteria from their canonical form; many contracts have the same, and they are frozen."""
    return criteria_from(body)


def criteria_body(step: ContractTransaction, digest: str) -> bytes:
    """Criteria in canonical form, by their digest; raises WrongState for those that are not to be read yet."""
    table = tables.criteria
    rows = step.writing.read(select(table.c.body).where(table.c.tenant == step.tenant, table.c.digest == digest))
    if not rows:
        # Criteria that a caller of the same group committed to are not there to be read yet.
        raise WrongState("judged_meanwhile", "the contract was judged just now; ask again")
    return bytes(rows[0].body)


def record_verdict(step: ContractTransaction, contract: Contract, result: VerificationResult) -> Contract:
    """The contract with its verdict told, and not paid yet."""
    contract = lifecycle.apply_verdict(contract, success=result.success)
    kind = EventType.CONTRACT_VERIFIED if result.success else EventType.CONTRACT_FAILED
    step.emit_event(contract, kind, contract.settlements, verdict=result.verdict, success=result.success)
    return contract


def load_judgement_and_work(step: ContractTransaction, contract: Contract) -> tuple[ContractJudgement, WorkRow]:
    """The latest verdict, its result still there, and the work that it is on; raises WrongState."""
    if contract.outcome_id is None:
        raise WrongState("wrong_state", f"contract {contract.id} has no output yet")
    judgement = step.judgement(contract.outcome_id)
    if judgement.result is None:
        raise WrongState("erased", f"what contract {contract.id} was judged on was erased; void it")
    work = find_for_writing(step.writing, step.tenant, contract.work_id)
    if judgement.result.criteria_digest != (work.criteria_digest or NO_CRITERIA):
        raise WrongState(
            "other_criteria",
            f"version {judgement.version} of the verdict on contract {contract.id} was reached by other criteria than "
            "the contract's, which nobody agreed to be paid by; rescore it by those",
        )
    return judgement, work


def renew_verdict(step: ContractTransaction, contract: Contract, judgement: ContractJudgement) -> ContractJudgement:
    """The verdict, once more where it was settled before and taken back for its tokens alone: each is paid by once."""
    if judgement.version > contract.version or not _is_reversed_by_usage(step, contract):
        return judgement
    result = judgement.result
    assert result is not None and contract.outcome_id is not None  # noqa: S101, PT018 - just looked
    again = msgspec.structs.replace(result, verified_at=step.now)
    # Nobody can guess it: an id holds eighty random bits.
    salt = sha256(step.writing.new_id("salt").encode()).digest()[:SALT_BYTES]
    new = NewVersion(contract.outcome_id, judgement.version, again, salt)
    body = criteria_body(step, result.criteria_digest or "")
    done = AddVersions(step.tenant, body, (new,), "its tokens are verified again")(step.writing)
    if not done:
        raise WrongState("judged_meanwhile", f"contract {contract.id} was judged again just now; ask again")
    return ContractJudgement(done[0].version, again)


def pay(
    step: ContractTransaction, contract: Contract, judgement: ContractJudgement, reason: str = ""
) -> tuple[Contract, Bill]:
    """Settle a verdict by the bill that the terms give."""
    assert judgement.result is not None  # noqa: S101 - whoever calls has looked
    owed = _owed(step, contract, judgement.result)
    return _write_settlement(step, contract, judgement.version, owed, reason), owed


def _owed(step: ContractTransaction, contract: Contract, result: VerificationResult) -> Bill:
    """The bill that the terms give; raises WrongState where a rule gives none."""
    try:
        return bill(result, terms_of(contract), contract.hold_micros, step.usage(contract))
    except (RuleFailed, UnknownName) as problem:
        raise WrongState(RULE_FAILED, f"contract {contract.id} cannot be billed: {problem}; mend it or void") from None


def _write_settlement(
    step: ContractTransaction, contract: Contract, version: int, owed: Bill, reason: str = ""
) -> Contract:
    """Settle a verdict: the bill, the transfer, the entry, the row and the event."""
    contract = lifecycle.settle(contract, step.now, version, owed.total)
    kept = owed.to_json()
    leaf = step.append(
        SettlementEntry(
            *step.entry_header(contract),
            *(contract.settlement, version),
            owed.currency,
            *(owed.base, owed.bonus, owed.penalty, owed.total, owed.fee, owed.payout, owed.released),
            *(sha256(kept).hexdigest(), step.actor.by, reason),
        )
    )
    step.writing.insert(
        *(tables.settlements, step.tenant, contract.id, contract.settlement, contract.outcome_id),
        *(version, step.writing.now.micros, leaf, kept),
    )
    step.writing.remember(("bill", step.tenant, contract.id, str(contract.settlement)), owed)
    postings = ledger.settle(parties_of(contract), owed)
    move_money(step.writing, Movement(step.tenant, contract, "settle", contract.settlement, postings), leaf)
    step.record_operation(contract, Operation.SETTLE, contract.settlement, fingerprint("settle", str(version)), reason)
    if contract.evidence is not None:
        record_paid_evidence(step.writing, step.tenant, contract, contract.evidence)
    _record_settled_amounts(step, contract, owed)
    step.emit_event(
        *(contract, EventType.CONTRACT_SETTLED, contract.settlement),
        version=version,
        settlement=contract.settlement,
        currency=owed.currency,
        total=in_units(owed.total),
        payout=in_units(owed.payout),
        fee=in_units(owed.fee),
    )
    return contract


def _record_settled_amounts(step: ContractTransaction, contract: Contract, owed: Bill) -> None:
    """What was settled for each run's tokens stands beside what they cost, where both are in one currency."""
    if owed.currency != RunCosts().currency:
        return
    for run_id, amount in token_payments_by_run(owed, terms_of(contract)).items():
        RecordPrices(step.tenant, run_id, ledger=RunCosts(settled=amount))(step.writing)


def reverse_payment(step: ContractTransaction, contract: Contract, mark: str, reason: str) -> Contract:
    """Take all of a settlement back into escrow."""
    paid, number = step.bill_of(contract), contract.settlement
    contract = lifecycle.reverse(contract, f"reversed: {reason}")
    leaf = step.append(
        ReversalEntry(*step.entry_header(contract), number, contract.currency, paid.total, step.actor.by, reason)
    )
    postings = ledger.reverse(ledger.settle(parties_of(contract), paid))
    move_money(step.writing, Movement(step.tenant, contract, "reverse", number, postings), leaf)
    step.record_operation(contract, Operation.REVERSE, number, mark, reason)
    forget_paid_evidence(step.writing, step.tenant, contract)
    step.emit_event(
        *(contract, EventType.CONTRACT_REVERSED, number),
        settlement=number,
        total=in_units(paid.total),
        currency=contract.currency,
        reason=reason,
        by=step.actor.by,
    )
    return contract


def _is_reversed_by_usage(step: ContractTransaction, contract: Contract) -> bool:
    return step.has_operation(contract, Operation.REVERSE, contract.settlements, BY_USAGE)


def release_escrow(step: ContractTransaction, contract: Contract, why: str, reason: str) -> None:
    """Give the escrow back to whoever put it up."""
    leaf = step.append(
        ReleaseEntry(*step.entry_header(contract), contract.currency, contract.hold_micros, why, step.actor.by, reason)
    )
    postings = ledger.release(parties_of(contract), contract.hold_micros)
    move_money(step.writing, Movement(step.tenant, contract, "release", 0, postings), leaf)


def follow_usage(step: ContractTransaction, contract: Contract) -> Contract:
    """The contract after what its tokens come to by now: paid, held, taken back, or as it was."""
    terms = terms_of(contract)
    if not terms.prices_tokens or contract.state not in (ContractState.SETTLED, ContractState.VERIFICATION_PENDING):
        return contract
    usage = step.usage(contract)
    waits = why_usage_waits(usage, terms)
    if contract.state is ContractState.SETTLED:
        if not waits and _billing_values(step.bill_of(contract).usage) == _billing_values(usage):
            return contract
        contract = reverse_payment(step, contract, BY_USAGE, waits or "its tokens are verified, and differ")
    try:
        return _settle_or_wait(step, contract, waits)
    except WrongState as problem:
        return lifecycle.hold(contract, str(problem))


def _billing_values(usage: Sequence[ContractTokenUse]) -> list[tuple[Any, ...]]:
    """What of usage is billed by; one more look that found the same changes nothing."""
    return [(one.run_id, one.tokens, one.cost) for one in usage]


def _settle_or_wait(step: ContractTransaction, contract: Contract, waits: str) -> Contract:
    """What becomes of a contract that is held, by what its tokens wait for; raises WrongState where a person must."""
    judgement, work = load_judgement_and_work(step, contract)
    assert judgement.result is not None  # noqa: S101 - just looked
    by_usage = judgement.version > contract.version or _is_reversed_by_usage(step, contract)
    if why_contract_needs_review(contract, judgement.result, work.criteria) or not by_usage:
        # Something else holds it, and a person looks at that.
        return contract
    if waits:
        return lifecycle.hold(contract, waits)
    refuse_paid_run(step, contract, judgement.result)
    if terms_of(contract).settle is SettleWhen.ON_REQUEST:
        return record_verdict(step, contract, judgement.result)
    owed = _owed(step, contract, judgement.result)
    contract, version = (
        record_verdict(step, contract, judgement.result),
        renew_verdict(step, contract, judgement).version,
    )
    return _write_settlement(step, contract, version, owed)
