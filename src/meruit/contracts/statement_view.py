"""The statement of an account with amounts as decimal text, as programs read it."""

from datetime import datetime

from meruit.contracts.store.ledger import Statement
from meruit.model.numbers import in_units
from meruit.model.record import Record


class MovementView(Record, frozen=True):
    """One movement of an account, as decimal strings."""

    at: datetime
    contract_id: str
    operation: str
    amount: str
    """What it changes on this account."""
    balance: str
    """Balance after the movement."""
    leaf: int
    """Its entry in the audit log."""
    title: str | None
    """Of the work."""
    counterparty: str | None
    """The account on the other side; agents do not see it."""
    gross: str
    """What the movement pays for the work; negative when it takes a payment back."""
    fee: str
    """The platform's part of it."""
    net: str
    """The agent's part of it."""


class StatementView(Record, frozen=True):
    """The movements of an account in one currency."""

    currency: str
    opening: str
    closing: str
    lines: list[MovementView]


def to_statement_view(found: Statement, *, for_agent: bool = False) -> StatementView:
    """The view of a statement; an agent does not see who paid."""
    return StatementView(
        found.currency,
        in_units(found.opening),
        in_units(found.closing),
        [
            MovementView(
                line.at,
                line.contract_id,
                line.operation,
                in_units(line.micros),
                in_units(line.balance),
                line.leaf,
                line.title,
                None if for_agent else line.counterparty,
                *map(in_units, (line.gross, line.fee, line.net)),
            )
            for line in found.lines
        ],
    )
