"""What agents and providers earned, by day: the view with amounts as decimal text, and the totals."""

from collections.abc import Sequence
from datetime import date

from meruit.contracts.store.ledger import Earnings
from meruit.model.numbers import in_units
from meruit.model.record import Record


class EarningsView(Record, frozen=True):
    """What an agent earned on one day in one currency, as decimal strings."""

    day: date
    """UTC, of the payment or the reversal."""
    provider_id: str
    """Who runs the agent; the agent itself where no award named a provider."""
    agent_id: str
    currency: str
    settlements: int
    reversals: int
    gross: str
    """What consumers paid."""
    fee: str
    """The platform's part."""
    net: str
    """The agent's part."""
    reversed: str
    """What of earlier net payments was taken back on this day; it is taken off already."""


class EarningsTotal(Record, frozen=True):
    """The sum of all days in one currency, as decimal strings."""

    currency: str
    gross: str
    fee: str
    net: str
    reversed: str


class EarningsReport(Record, frozen=True):
    """Earnings by day, provider, agent and currency, oldest first."""

    earnings: list[EarningsView]
    totals: list[EarningsTotal]
    """One for each currency."""


def to_earnings_report(found: Sequence[Earnings]) -> EarningsReport:
    """The view of earnings, with a total for each currency."""
    days = [
        EarningsView(
            one.day,
            one.provider_id,
            one.agent_id,
            one.currency,
            one.settlements,
            one.reversals,
            *map(in_units, (one.gross, one.fee, one.net, one.reversed)),
        )
        for one in found
    ]
    totals = []
    for currency in sorted({one.currency for one in found}):
        of = [one for one in found if one.currency == currency]
        sums = (sum(getattr(one, part) for one in of) for part in ("gross", "fee", "net", "reversed"))
        totals.append(EarningsTotal(currency, *map(in_units, sums)))
    return EarningsReport(days, totals)
