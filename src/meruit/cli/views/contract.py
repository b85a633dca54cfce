"""A contract and its bill as text."""

import json
from typing import TYPE_CHECKING, Any

from meruit.cli.terminal import escape_control_characters, print_table, say
from meruit.model.contract import ContractState, Escrow
from meruit.model.numbers import in_units

if TYPE_CHECKING:
    from meruit.contracts.records import ContractSnapshot
    from meruit.model.contract import Contract, LatencyBasis
    from meruit.model.money import Bill, Line


def amount(micros: int, currency: str) -> str:
    """Money with its currency."""
    return f"{in_units(micros)} {currency}"


def print_bill(bill: "Bill", contract: "Contract") -> None:
    """Print each line of the bill with its rule, the total, and where the money goes."""
    rows = [(line.rule, in_units(line.micros), _line_reason(line)) for line in bill.lines]
    held = f"of {in_units(bill.total + bill.released)} held"
    print_table(("rule", "amount", "why"), [*rows, ("total", in_units(bill.total), held)])
    shares = (
        (bill.payout, f"to the agent {contract.agent_id}"),
        (bill.fee, "to the platform"),
        (bill.released, f"back to {contract.consumer_id}"),
    )
    parts = [f"{amount(micros, bill.currency)} {where}" for micros, where in shares if micros]
    say(f"paid: {escape_control_characters(', '.join(parts) or 'nothing')}")


def _line_reason(line: "Line") -> str:
    """The reason, with the criterion if the reason does not name it."""
    named = line.criterion_id is None or line.criterion_id in line.reason
    return line.reason if named else f"{line.reason} ({line.criterion_id})"


def describe_contract_state(contract: "Contract", called: str | None = None) -> str:
    """Describe the state of a contract and its money in one sentence."""
    state = str(contract.state).replace("_", " ")
    return f"{called or contract.id} is {state}: {_describe_escrow(contract)}"


def _describe_escrow(contract: "Contract") -> str:
    held = amount(contract.hold_micros, contract.currency)
    match contract.escrow:
        case Escrow.HELD:
            return f"{held} held" + (f" ({contract.hold_reason})" if contract.hold_reason else "")
        case Escrow.FROZEN:
            return f"{held} frozen until the dispute is resolved"
        case Escrow.PAID:
            return f"{amount(contract.total_micros, contract.currency)} paid"
        case Escrow.RELEASED:
            return f"{held} returned to {contract.consumer_id}"


LATENCY_EVENTS = {"award": "the award", "input_read": "the first read of the input", "start": "the agent's start"}


def describe_latency_basis(basis: "LatencyBasis") -> str:
    """From when the time of an agent that hands in its own output counts."""
    return f"{LATENCY_EVENTS[basis.event]} ({basis.at.isoformat(timespec='milliseconds')})"


def describe_money(contract: "Contract") -> str:
    """What is held or was paid, in a few characters."""
    if contract.escrow is Escrow.PAID:
        return f"{amount(contract.total_micros, contract.currency)} paid"
    return f"{amount(contract.hold_micros, contract.currency)} held"


def print_hold_evidence(found: "ContractSnapshot") -> None:
    """Print why a contract waits: who stopped it, when, every reason, what it rests on, and what to do next."""
    contract, hold = found.contract, found.on_hold
    assert hold is not None  # noqa: S101 - only contracts that wait are shown
    labels = {
        "contract": contract.id,
        "work": contract.work_id,
        "agent": contract.agent_id,
        "consumer": contract.consumer_id,
        "outcome": contract.outcome_id,
        "state": str(hold.kind),
        "since": hold.since.isoformat(timespec="seconds"),
        "by": hold.by,
        "amount": describe_money(contract),
        "reason": hold.reason,
        "next": next_step(contract),
    }
    for name, value in labels.items():
        if value is not None:
            say(f"{name:12}{escape_control_characters(value)}")
    for reason in hold.reasons or ():
        say()
        named = f" ({', '.join(reason.about)})" if reason.about else ""
        say(escape_control_characters(f"{reason.code}{named}: {reason.message}"))
        for name, value in reason.evidence.items():
            say(f"  {escape_control_characters(f'{name}: {_as_text(value)}')}")


def next_step(contract: "Contract") -> str:
    """The commands that end the wait of a contract."""
    if contract.state is ContractState.DISPUTED:
        return f"meruit contract resolve {contract.id} --decision uphold|reverse|void|adjust --reason …"
    return f"meruit holds release {contract.id} --reason … or meruit holds void {contract.id} --reason …"


# Any: evidence is numbers, names and lists of them.
def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return ", ".join(map(_as_text, value)) if isinstance(value, list) else json.dumps(value, default=str)


def is_held(contract: "Contract") -> bool:
    """Whether the contract has an output and waits for an operator."""
    return contract.state is ContractState.VERIFICATION_PENDING


def print_contract_state(snapshot: "ContractSnapshot", *, verdict: bool = False, called: str | None = None) -> None:
    """Print the state of a contract with its bill, and on request its verdict."""
    if verdict and snapshot.judgement is not None:
        # Only a contract with a verdict needs this import.
        from meruit.cli.views.verdict import print_verification

        if snapshot.judgement.result is None:
            say("the result was erased")
        else:
            print_verification(snapshot.judgement.result)
        say()
    if snapshot.bill is not None:
        print_bill(snapshot.bill, snapshot.contract)
    say(escape_control_characters(describe_contract_state(snapshot.contract, called)))


def describe_violations(violations: int) -> str:
    """The conclusion of the check of the books."""
    return f"{violations:,} violations" if violations else "the books are sound"
