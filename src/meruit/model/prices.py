"""What tokens cost: prices at one moment, frozen with the run."""

from decimal import Decimal

from meruit.model.record import Record
from meruit.model.usage import Moment


class PriceQuote(Record, frozen=True):
    """The prices of one model at the time of a run, from one version of one price table."""

    source: str
    """The table's name."""
    version: str
    table_sha256: str
    provider: str
    model: str
    """The name in the run."""
    matched: str
    """The name in the table."""
    at: Moment
    """The time of the call; prices change."""
    prices: dict[str, Decimal]
    """For a million tokens, by class: input, output, cached, cache_write; for a thousand requests: requests."""
    tier: str = "standard"
    band: str = ""
    """The band of context lengths that the prices are for; empty where there is only one."""
    currency: str = "USD"
    reason: str = ""
    """Why there is a quote after the first."""


class RunCosts(Record, frozen=True):
    """The three costs of a run; none overwrites another, and None means unknown."""

    quoted: Decimal | None = None
    """The frozen prices times the verified tokens."""
    billed: Decimal | None = None
    """What the provider bills, where the amount can be attributed to the run."""
    settled: Decimal | None = None
    """What the contract owed."""
    currency: str = "USD"
