"""A contract, what was paid on it and why, as a person reads it."""

from typing import TYPE_CHECKING

from meruit.cli.terminal import escape_control_characters, print_table, say
from meruit.model.contract import ContractState, Escrow
from meruit.model.numbers import in_units

if TYPE_CHECKING:
    from meruit.contracts.store.read import ContractSnapshot
    from meruit.model.contract import Contract
    from meruit.model.money import Bill, Line


def amount(micros: int, currency: str) -> str:
    """Money with its currency."""
    return f"{in_units(micros)} {currency}"


def print_bill(bill: "Bill", contract: "Contract") -> None:
    """Each line with the rule that made it, their sum, and where it goes."""
    rows = [(line.rule, in_units(line.micros), _line_reason(line)) for line in bill.lines]
    held = f"of {in_units(bill.total + bill.released)} held"
    print_table(("rule", "amount", "why"), [*rows, ("total", in_units(bill.total), held)])
    shares = (
        (bill.payout, f"to the agent {contract.agent_id}"),
        (bill.fee, "to the platform"),
        (bill.released, f"back to {contract.consumer_id}"),
    )
    told = [f"{amount(micros, bill.currency)} {where}" for micros, where in shares if micros]
    say(f"paid: {escape_control_characters(', '.join(told) or 'nothing')}")


def _line_reason(line: "Line") -> str:
    """The reason, with the criterion where it does not name it."""
    named = line.criterion_id is None or line.criterion_id in line.reason
    return line.reason if named else f"{line.reason} ({line.criterion_id})"


def describe_contract_state(contract: "Contract", called: str | None = None) -> str:
    """One sentence on how far a contract has come, and on its money."""
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
            return f"called off, {held} back with {contract.consumer_id}"


def is_held(contract: "Contract") -> bool:
    """Whether its output is here, and a person must look before money moves."""
    return contract.state is ContractState.VERIFICATION_PENDING


def print_contract_state(standing: "ContractSnapshot", *, verdict: bool = False, called: str | None = None) -> None:
    """How a contract stands, by its id or as it is called, with its bill; on request, with the verdict on it."""
    if verdict and standing.judgement is not None:
        # What reads verdicts for people is needed here alone.
        from meruit.cli.views.verdict import print_verification

        if standing.judgement.result is None:
            say("the result was erased")
        else:
            print_verification(standing.judgement.result)
        say()
    if standing.bill is not None:
        print_bill(standing.bill, standing.contract)
    say(escape_control_characters(describe_contract_state(standing.contract, called)))


def describe_violations(violations: int) -> str:
    """The conclusion in words."""
    return f"{violations:,} violations" if violations else "the books are sound"
