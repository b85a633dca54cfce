"""Money: whole millionths of one currency, never a float; and what a bill is made of."""

from collections.abc import Generator, Iterator
from decimal import Decimal
from enum import StrEnum

import msgspec

from meruit.model.numbers import MICRO, Number, exact, in_units
from meruit.model.record import Record
from meruit.model.usage import Tokens, UsageStatus

_CODES = (
    "AED AFN ALL AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BHD BIF BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF CHF "
    "CLP CNY COP CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF GTQ GYD HKD HNL HTG "
    "HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD KZT LAK LBP LKR LRD LSL LYD MAD MDL MGA "
    "MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD OMR PAB PEN PGK PHP PKR PLN PYG QAR RON RSD "
    "RUB RWF SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TND TOP TRY TTD TWD TZS UAH UGX "
    "USD UYU UZS VED VES VND VUV WST XAF XCD XOF XPF YER ZAR ZMW ZWG"
)
CURRENCIES = frozenset(_CODES.split())
"""ISO 4217."""


def as_micros(amount: Number) -> int:
    """Convert a validated amount to whole millionths."""
    return int(exact(amount) * MICRO)


def as_decimal(micros: int) -> Decimal:
    """Convert whole millionths to an amount."""
    return Decimal(micros).scaleb(-6).normalize() + 0


class PricePart(StrEnum):
    """Which part of the price a line belongs to."""

    CPC = "cpc"
    BONUS = "cpa_bonus"
    PENALTY = "cpa_penalty"
    TOKENS = "tokens"
    ADJUSTMENT = "adjustment"
    """What a dispute was settled on; the only line of its bill."""


class Line(Record, frozen=True):
    """One line of a bill: how much, by which rule, and why."""

    rule: str
    part: PricePart
    micros: int
    """What it adds to the price; a penalty is negative."""
    reason: str
    criterion_id: str | None = None


class ContractTokenUse(Record, frozen=True):
    """The tokens of one run, as a contract is billed by them."""

    run_id: str
    status: UsageStatus
    observations: int
    """How many observations of the provider's count the status rests on."""
    tokens: Tokens | None = None
    cost: Decimal | None = None
    """By the run's frozen prices, in US dollars; None where it is not known."""
    why: str = ""
    """Why the tokens or their cost are not known."""


class JudgeStanding(Record, frozen=True):
    """How well people's labels know one version of a judge, as a contract is paid by it."""

    judge: str
    """Its name in the settings."""
    version: str
    labels: int
    """Random labels of this version, as the last recorded calibration counted them; 0 without one."""
    kappa: float | None = None
    """Cohen's, between the judge and people; None where it is not known."""


# A bill without tokens, judges or adjustment omits these fields, so that its bytes do not change.
class Bill(Record, frozen=True, omit_defaults=True):
    """What is owed for one outcome: lines that sum to the total, and where the total goes."""

    currency: str
    lines: list[Line]
    base: int
    bonus: int
    penalty: int
    """What was taken off: base + bonus − penalty is the total without tokens."""
    total: int
    fee: int
    payout: int
    """To the agent: the total without the fee."""
    released: int
    """Of the escrow, back to the consumer."""
    tokens: int = 0
    """For tokens, beside the three others: base + bonus − penalty + tokens is the total."""
    usage: tuple[ContractTokenUse, ...] = ()
    """The runs behind the tokens, as they were when the bill was made."""
    judges: tuple[JudgeStanding, ...] = ()
    """The judges whose calibration the terms ask for, as they were when the bill was made."""
    adjustment: int = 0
    """What a dispute was settled on, instead of all other parts: it is the total then."""


class Cost(Record, frozen=True):
    """The cost of an execution; the parts sum to the total exactly."""

    base: Decimal
    bonus: Decimal
    penalty: Decimal
    total: Decimal
    breakdown: dict[str, Decimal] = msgspec.field(default_factory=dict)

    def __await__(self) -> Generator[None, None, "Cost"]:
        """Return itself, for callers that await `calculate_cost`."""
        return _at_once(self).__await__()


async def _at_once(cost: Cost) -> Cost:
    return cost


TOTAL = "total"
"""What the first column of a table says of a row of sums."""


class CurrencyTotals:
    """Sums by currency, for the last rows of a table."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[int, ...]] = {}

    def add(self, currency: str, *micros: int) -> tuple[str, ...]:
        """Add amounts to the sums; returns them as decimal text."""
        before = self._sums.get(currency, (0,) * len(micros))
        self._sums[currency] = tuple(map(sum, zip(before, micros, strict=True)))
        return tuple(map(in_units, micros))

    def __iter__(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The currencies in order, each with its sums."""
        return ((currency, tuple(map(in_units, sums))) for currency, sums in sorted(self._sums.items()))
