"""What tokens cost: prices as they were at one moment, frozen with the run that was priced by them."""

from decimal import Decimal

from meruit.model.record import Record
from meruit.model.usage import Moment


class PriceQuote(Record, frozen=True):
    """The prices of one model, at the moment of a run, out of one version of one table."""

    source: str
    """The table's name."""
    version: str
    table_sha256: str
    provider: str
    model: str
    """As the run named it."""
    matched: str
    """As the table does."""
    at: Moment
    """When the run was; prices change."""
    prices: dict[str, Decimal]
    """For a million tokens, by class: input, output, cached, cache_write; for a thousand requests: requests."""
    tier: str = "standard"
    band: str = ""
    """The band of context lengths that the prices are for; empty where there is but one."""
    currency: str = "USD"
    reason: str = ""
    """Why there is a quote after the first."""


class RunCosts(Record, frozen=True):
    """The three costs of a run, side by side; none overwrites another, and what is unknown is None."""

    quoted: Decimal | None = None
    """The frozen prices times the tokens that are verified."""
    billed: Decimal | None = None
    """By the provider's own account, where it can be told whose it is."""
    settled: Decimal | None = None
    """What was owed by the contract."""
    currency: str = "USD"
