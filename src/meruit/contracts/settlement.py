"""Move the money of a contract: pay a verdict, hold it, reverse a payment, release the escrow.

Each movement is written with its log entry and its transfer, in the transaction of the caller.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from typing import Any

import msgspec
from sqlalchemy import select

from meruit.contracts import lifecycle
from meruit.contracts import postings as ledger
from meruit.contracts.bill import bill_adjustment, is_adjusted
from meruit.contracts.lifecycle import Operation
from meruit.contracts.payment_decision import (
    REVIEW,
    USAGE,
    Hold,
    HoldCode,
    Pay,
    PaymentFacts,
    decide_payment,
    unusable_verdict,
    usage_reasons,
)
from meruit.contracts.store.ledger import Movement, move_money, parties_of
from meruit.contracts.store.read import terms_of
from meruit.contracts.store.tampering import JudgedBy, find_tampering, require_untampered
from meruit.contracts.store.transaction import BILLS, BY_USAGE, ContractTransaction, fingerprint
from meruit.contracts.store.work import find_for_writing
from meruit.contracts.token_terms import token_payments_by_run
from meruit.errors import RecordTampered, WrongState
from meruit.governance.records import find_paid_contract, forget_run_payment, record_run_payment
from meruit.log.commitment import SALT_BYTES
from meruit.log.entries import NO_CRITERIA, ReleaseEntry, ReversalEntry, SettlementEntry, criteria_digest_of
from meruit.model.contract import Contract, ContractState, Escrow, SettleWhen
from meruit.model.criterion import SuccessCriteria
from meruit.model.events import EventType
from meruit.model.metering import RunCosts
from meruit.model.money import Bill, ContractTokenUse
from meruit.model.numbers import in_units
from meruit.model.verdict import VerificationResult
from meruit.outcomes.records import AddVersions, NewVersion, criteria_from
from meruit.store import tables
from meruit.usage.records import RecordPrices

ON_HOLD = "on_hold"
USAGE_UNVERIFIED = "usage_unverified"
ADVICE = {
    HoldCode.ERASED: "void it",
    HoldCode.OTHER_CRITERIA: "rescore it by the criteria of the contract",
    HoldCode.DUPLICATE_CLAIM: "void it",
    HoldCode.ALREADY_SETTLED: "judge it again, or void it",
    HoldCode.RULE_FAILED: "repair the rule and settle it again, or void it",
    HoldCode.RECORD_TAMPERED: "run `meruit audit check`, and restore what it names from a copy",
    **dict.fromkeys(REVIEW, "release it or void it"),
    HoldCode.JUDGE_UNCALIBRATED: "label cases, run `meruit judge calibrate` and settle it; or release it, or void it",
    **dict.fromkeys(USAGE, "it is paid once its tokens are verified and priced; or void it"),
}
"""What to do about a contract that is held."""


def load_payment_facts(step: ContractTransaction, contract: Contract, *, released: bool = False) -> PaymentFacts:
    """Read what decides whether the contract may be paid.

    Raises WrongState before there is an output, and RecordTampered where the audit log says otherwise.
    """
    require_untampered(step, contract)
    if contract.outcome_id is None:
        raise WrongState("wrong_state", f"contract {contract.id} has no output yet")
    judgement = step.judgement(contract.outcome_id)
    work = find_for_writing(step.writing, step.tenant, contract.work_id)
    return PaymentFacts(
        terms=terms_of(contract),
        escrow_micros=contract.hold_micros,
        result=judgement.result,
        version=judgement.version,
        criteria=None if work.criteria is None else criteria_of(work.criteria),
        criteria_digest=work.criteria_digest or NO_CRITERIA,
        usage=step.usage(contract),
        judges=step.judges(contract, judgement.result),
        paid_under=find_paid_contract(step.writing, step.tenant, contract, contract.evidence),
        has_run=contract.evidence is not None,
        settled_version=contract.version,
        reversed_by_usage=judgement.version <= contract.version
        and step.has_operation(contract, Operation.REVERSE, contract.settlements, BY_USAGE),
        released=released,
    )


def pay_or_hold(
    step: ContractTransaction,
    contract: Contract,
    result: VerificationResult,
    judged_by: JudgedBy,
    *,
    criteria: bytes | None,
    paid_under: str | None,
) -> tuple[Contract, Bill | None]:
    """Pay the first verdict on a contract, or hold it; no bill where it is held or waits for a request.

    `paid_under` is another contract that was paid for the same run.
    """
    tampered = find_tampering(step, contract, judged_by)
    if tampered is not None:
        # Nothing of it can be trusted, not even the terms.
        return _hold(step, contract, tampered), None
    terms = terms_of(contract)
    try:
        judges = step.judges(contract, result)
    except RecordTampered as problem:
        return _hold(step, contract, str(problem)), None
    decision = decide_payment(
        PaymentFacts(
            terms=terms,
            escrow_micros=contract.hold_micros,
            result=result,
            version=1,
            criteria=None if criteria is None else criteria_of(criteria),
            # The output was just judged by the criteria of the contract.
            criteria_digest=result.criteria_digest,
            usage=step.usage(contract),
            judges=judges,
            paid_under=paid_under,
            has_run=contract.evidence is not None,
        )
    )
    if isinstance(decision, Hold):
        return _hold(step, contract, decision.message), None
    contract = record_verdict(step, contract, result)
    if terms.settle is SettleWhen.ON_REQUEST:
        return contract, None
    return write_settlement(step, contract, 1, decision.bill), decision.bill


def _hold(step: ContractTransaction, contract: Contract, message: str) -> Contract:
    contract = lifecycle.hold(contract, message)
    step.emit_event(contract, EventType.CONTRACT_HELD, contract.settlements, reason=message)
    return contract


def require_payment(contract: Contract, facts: PaymentFacts) -> Bill:
    """The bill to pay the contract by; raises WrongState where it must be held."""
    decision = decide_payment(facts)
    if isinstance(decision, Pay):
        return decision.bill
    reason = decision.reasons[0]
    code = ON_HOLD if reason.code in REVIEW else USAGE_UNVERIFIED if reason.code in USAGE else str(reason.code)
    raise WrongState(code, f"contract {contract.id} is held: {reason.message}; {ADVICE[reason.code]}")


@lru_cache(maxsize=256)
def criteria_of(body: bytes) -> SuccessCriteria:
    """Criteria from their canonical form; cached, because many contracts share them."""
    return criteria_from(body)


def criteria_body(step: ContractTransaction, digest: str) -> bytes:
    """Criteria in canonical form, by digest; raises RecordTampered, and WrongState where they are not committed yet."""
    table = tables.criteria
    rows = step.writing.read(select(table.c.body).where(table.c.tenant == step.tenant, table.c.digest == digest))
    if not rows:
        # Another request of the same group has written them, and the group is not committed yet.
        raise WrongState("judged_meanwhile", "the contract was judged just now; retry")
    body = bytes(rows[0].body)
    if criteria_digest_of(body) != digest:
        raise RecordTampered(f"the criteria {digest} are not those that were published")
    return body


def record_verdict(step: ContractTransaction, contract: Contract, result: VerificationResult) -> Contract:
    """Mark the contract verified or failed; pays nothing."""
    contract = lifecycle.apply_verdict(contract, success=result.success)
    kind = EventType.CONTRACT_VERIFIED if result.success else EventType.CONTRACT_FAILED
    step.emit_event(contract, kind, contract.settlements, verdict=result.verdict, success=result.success)
    return contract


def add_version(
    step: ContractTransaction, contract: Contract, facts: PaymentFacts, salt: bytes, reason: str
) -> PaymentFacts:
    """Record the result of the facts as one more version of the verdict; raises WrongState."""
    assert facts.result is not None and contract.outcome_id is not None  # noqa: S101, PT018 - decided to be paid
    body = criteria_body(step, facts.result.criteria_digest or "")
    new = NewVersion(contract.outcome_id, facts.version, facts.result, salt)
    done = AddVersions(step.tenant, body, (new,), reason)(step.writing)
    if not done:
        raise WrongState("judged_meanwhile", f"contract {contract.id} was judged again just now; retry")
    return replace(facts, version=done[0].version)


def renew_verdict(
    step: ContractTransaction, contract: Contract, facts: PaymentFacts, why: str = "its tokens are verified again"
) -> PaymentFacts:
    """Record the verdict once more where it was paid by before, because each version is paid by once."""
    if facts.version > contract.version:
        return facts
    assert facts.result is not None  # noqa: S101 - decided to be paid
    again = replace(facts, result=msgspec.structs.replace(facts.result, verified_at=step.now))
    # An id holds eighty random bits, so the salt cannot be guessed.
    salt = sha256(step.writing.new_id("salt").encode()).digest()[:SALT_BYTES]
    return add_version(step, contract, again, salt, why)


def write_settlement(
    step: ContractTransaction, contract: Contract, version: int, owed: Bill, reason: str = ""
) -> Contract:
    """Settle a version of the verdict: log entry, bill, transfer and event."""
    contract = lifecycle.settle(contract, step.now, version, owed.total)
    body = owed.to_json()
    leaf = step.append(
        SettlementEntry(
            *step.entry_header(contract),
            contract.settlement,
            version,
            owed.currency,
            owed.base,
            owed.bonus,
            owed.penalty,
            owed.total,
            owed.fee,
            owed.payout,
            owed.released,
            sha256(body).hexdigest(),
            step.actor.by,
            reason,
        )
    )
    step.writing.insert(
        tables.settlements,
        tenant=step.tenant,
        contract_id=contract.id,
        number=contract.settlement,
        outcome_id=contract.outcome_id,
        version=version,
        at=step.writing.now.micros,
        leaf=leaf,
        bill=body,
    )
    BILLS.put(step.writing, owed, step.tenant, contract.id, contract.settlement)
    postings = ledger.settle(parties_of(contract), owed)
    move_money(
        step.writing,
        Movement(
            tenant=step.tenant, contract=contract, operation="settle", number=contract.settlement, postings=postings
        ),
        leaf,
    )
    step.record_operation(contract, Operation.SETTLE, contract.settlement, fingerprint("settle", str(version)), reason)
    if contract.evidence is not None:
        record_run_payment(step.writing, step.tenant, contract, contract.evidence)
    _record_settled_amounts(step, contract, owed)
    step.emit_event(
        contract,
        EventType.CONTRACT_SETTLED,
        contract.settlement,
        version=version,
        settlement=contract.settlement,
        currency=owed.currency,
        total=in_units(owed.total),
        payout=in_units(owed.payout),
        fee=in_units(owed.fee),
    )
    return contract


def _record_settled_amounts(step: ContractTransaction, contract: Contract, owed: Bill) -> None:
    """Record what was paid for each run's tokens beside their cost, where both are in one currency."""
    if owed.currency != RunCosts().currency:
        return
    for run_id, amount in token_payments_by_run(owed, terms_of(contract)).items():
        RecordPrices(step.tenant, run_id, ledger=RunCosts(settled=amount))(step.writing)


def reverse_payment(step: ContractTransaction, contract: Contract, mark: str, reason: str) -> Contract:
    """Reverse a settlement: all of it goes back into escrow. Raises RecordTampered."""
    require_untampered(step, contract)
    paid, number = step.bill_of(contract), contract.settlement
    contract = lifecycle.reverse(contract, f"reversed: {reason}")
    leaf = step.append(
        ReversalEntry(*step.entry_header(contract), number, contract.currency, paid.total, step.actor.by, reason)
    )
    postings = ledger.reverse(ledger.settle(parties_of(contract), paid))
    move_money(
        step.writing,
        Movement(tenant=step.tenant, contract=contract, operation="reverse", number=number, postings=postings),
        leaf,
    )
    step.record_operation(contract, Operation.REVERSE, number, mark, reason)
    forget_run_payment(step.writing, step.tenant, contract)
    step.emit_event(
        contract,
        EventType.CONTRACT_REVERSED,
        number,
        settlement=number,
        total=in_units(paid.total),
        currency=contract.currency,
        reason=reason,
        by=step.actor.by,
    )
    return contract


def adjust_payment(step: ContractTransaction, contract: Contract, micros: int, mark: str, reason: str) -> Contract:
    """Settle a contract on the amount that its dispute was settled on; a payment is reversed first.

    Raises WrongState where its latest verdict was erased, or is not by the criteria of the contract.
    """
    facts = load_payment_facts(step, contract)
    if (stands := unusable_verdict(facts)) is not None:
        raise WrongState(str(stands.code), f"contract {contract.id}: {stands.message}; {ADVICE[stands.code]}")
    if contract.escrow is Escrow.PAID:
        contract = reverse_payment(step, contract, mark, reason)
    facts = renew_verdict(step, contract, facts, f"dispute settled by {step.actor.by}: {reason}")
    owed = bill_adjustment(micros, facts.terms, contract.hold_micros, reason)
    return write_settlement(step, contract, facts.version, owed, f"dispute settled: {reason}")


def release_escrow(step: ContractTransaction, contract: Contract, why: str, reason: str) -> None:
    """Give the escrow back to the consumer; raises RecordTampered."""
    require_untampered(step, contract)
    leaf = step.append(
        ReleaseEntry(*step.entry_header(contract), contract.currency, contract.hold_micros, why, step.actor.by, reason)
    )
    postings = ledger.release(parties_of(contract), contract.hold_micros)
    move_money(
        step.writing,
        Movement(tenant=step.tenant, contract=contract, operation="release", number=0, postings=postings),
        leaf,
    )


def follow_usage(step: ContractTransaction, contract: Contract) -> Contract:
    """Pay, hold or reverse a contract by what is known of its tokens now."""
    tampered = find_tampering(step, contract)
    if tampered is not None:
        # No money moves; what was paid stays paid until a person has looked.
        return lifecycle.hold(contract, tampered) if contract.state is ContractState.VERIFICATION_PENDING else contract
    terms = terms_of(contract)
    if not terms.prices_tokens or contract.state not in (ContractState.SETTLED, ContractState.VERIFICATION_PENDING):
        return contract
    if contract.state is ContractState.SETTLED:
        paid = step.bill_of(contract)
        if is_adjusted(paid):
            # A person decided the amount; tokens do not change it.
            return contract
        usage = step.usage(contract)
        waits = next(usage_reasons(usage, terms), None)
        if waits is None and _billing_values(paid.usage) == _billing_values(usage):
            return contract
        why = "its tokens are verified, and differ" if waits is None else waits.message
        contract = reverse_payment(step, contract, BY_USAGE, why)
    try:
        return _settle_or_wait(step, contract)
    except WrongState as problem:
        return lifecycle.hold(contract, str(problem))


def _billing_values(usage: Sequence[ContractTokenUse]) -> list[tuple[Any, ...]]:
    """The part of usage that is billed by; an observation of the same counts does not change it."""
    return [(one.run_id, one.tokens, one.cost) for one in usage]


def _settle_or_wait(step: ContractTransaction, contract: Contract) -> Contract:
    """Pay a contract that waits for its tokens, or hold it; raises WrongState."""
    facts = load_payment_facts(step, contract)
    decision = decide_payment(facts)
    if isinstance(decision, Hold):
        return contract if decision.needs_person else lifecycle.hold(contract, decision.message)
    assert facts.result is not None  # noqa: S101 - decided to be paid
    if facts.terms.settle is SettleWhen.ON_REQUEST:
        return record_verdict(step, contract, facts.result)
    version = renew_verdict(step, contract, facts).version
    return write_settlement(step, record_verdict(step, contract, facts.result), version, decision.bill)
