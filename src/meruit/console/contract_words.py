"""What the pages say about a contract: the sentence that answers, its figures, and what may be done about it."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from meruit.api.listing import ListFormat
from meruit.console.query import Query
from meruit.console.shape import span, span_in_words
from meruit.contracts.records import ContractFilter, ContractSnapshot, HoldKind
from meruit.model.contract import ContractState, Escrow
from meruit.model.numbers import in_units

PARTY_FIELDS = ("agent_id", "consumer_id", "provider_id", "domain")
"""Filters of contracts that are typed."""
_TABLES = {"csv": ListFormat.CSV, "xlsx": ListFormat.XLSX}


def filter_of(query: Query, state: str | None = None) -> ContractFilter:
    """The filter of contracts that a query asks for."""
    agent_id, consumer_id, provider_id, domain = (query.get(name) or None for name in PARTY_FIELDS)
    return ContractFilter(
        agent_id=agent_id, consumer_id=consumer_id, provider_id=provider_id, domain=domain, state=state
    )


def table_format(query: Query) -> ListFormat | None:
    """The format of the file that a list is asked for; None for a page."""
    return _TABLES.get(query.get("format"))


@dataclass(frozen=True, slots=True)
class ContractAct:
    """Something that may be done with a contract now."""

    name: str
    """As its address ends."""
    word: str


@dataclass(frozen=True, slots=True)
class ContractWords:
    """What a contract's page says first."""

    answer: str
    detail: str
    tone: str
    acts: tuple[ContractAct, ...]


_RELEASE, _VOID = ContractAct("release", "Release"), ContractAct("void", "Void")
_DISPUTE, _SETTLE = ContractAct("dispute", "Dispute"), ContractAct("settle", "Settle")
_REVERSE = ContractAct("reverse", "Reverse")
_DECISIONS = (
    ContractAct("uphold", "Uphold"),
    ContractAct("adjust", "Adjust"),
    ContractAct("reverse", "Reverse"),
    ContractAct("void", "Void"),
)


def money(micros: int, currency: str) -> str:
    """`0.18 USD`."""
    return f"{in_units(micros)} {currency}"


def describe_contract(found: ContractSnapshot, now: datetime) -> ContractWords:  # noqa: PLR0911 - one a state
    """The sentence about a contract, and the acts that its state allows."""
    contract = found.contract
    held, paid = money(contract.hold_micros, contract.currency), money(contract.total_micros, contract.currency)
    match contract.state:
        case ContractState.AWARDED | ContractState.EXECUTING:
            started = "has not started" if contract.state is ContractState.AWARDED else "is at work"
            return ContractWords(
                f"{contract.agent_id} {started}. {held} is in escrow.",
                _deadline(contract.expires_at, now),
                "",
                (_VOID,),
            )
        case ContractState.VERIFICATION_PENDING:
            return ContractWords(
                f"{held} is held. {_sentence(contract.hold_reason) or 'It waits for a person.'}",
                f"You decide: release pays what the verdict is worth; void gives {held} back to "
                f"{contract.consumer_id}. {_waiting_words(found, now)}",
                "partial",
                (_RELEASE, _VOID, _DISPUTE),
            )
        case ContractState.VERIFIED:
            return ContractWords(
                f"The work is verified, and waits to be settled. {held} is in escrow.",
                "Settling pays what the verdict is worth.",
                "pass",
                (_SETTLE, _VOID, _DISPUTE),
            )
        case ContractState.SETTLED:
            return ContractWords(
                f"{paid} was paid for this work.",
                _shares(found),
                "pass",
                (_DISPUTE, _REVERSE),
            )
        case ContractState.FAILED if contract.escrow is Escrow.RELEASED:
            return ContractWords(
                "Nothing was paid: the contract is void.", f"{held} went back to {contract.consumer_id}.", "fail", ()
            )
        case ContractState.FAILED:
            return ContractWords(
                f"The criteria are not met. {held} is in escrow.",
                "Settling pays what the verdict is worth, which may be nothing.",
                "fail",
                (_SETTLE, _VOID, _DISPUTE),
            )
        case ContractState.EXPIRED:
            return ContractWords(
                "Nothing was paid: the deadline passed without an output.",
                f"{held} went back to {contract.consumer_id}.",
                "error",
                (),
            )
        case ContractState.DISPUTED:
            about = f"{paid} was paid" if contract.escrow is Escrow.PAID else f"{held} is frozen"
            acts = _DECISIONS if contract.escrow is Escrow.PAID else tuple(_DECISIONS[at] for at in (0, 1, 3))
            why = "" if found.on_hold is None else _sentence(found.on_hold.reason)
            return ContractWords(
                f"The contract is disputed, and {about}. {why}", _waiting_words(found, now), "partial", acts
            )


def _deadline(expires_at: datetime, now: datetime) -> str:
    if expires_at > now:
        return f"The deadline is in {span(expires_at - now)}; then the money goes back to the consumer."
    return "The deadline has passed; the money goes back to the consumer within a minute."


def _waiting_words(found: ContractSnapshot, now: datetime) -> str:
    hold = found.on_hold
    if hold is None:
        return ""
    by = f" {hold.by} {'disputed' if hold.kind is HoldKind.DISPUTED else 'stopped'} it." if hold.by else ""
    return f"It has waited {span_in_words(max(now - hold.since, timedelta()))}.{by}"


def _shares(found: ContractSnapshot) -> str:
    contract, bill = found.contract, found.bill
    if bill is None:
        return ""
    back = f", {money(bill.released, bill.currency)} went back to {contract.consumer_id}" if bill.released else ""
    fee = f", {money(bill.fee, bill.currency)} to the platform" if bill.fee else ""
    return f"{money(bill.payout, bill.currency)} to {contract.agent_id}{fee}{back}."


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""
