"""What the calls of judges cost: by prices in the settings, or else by a price book."""

import math
from collections.abc import Callable, Mapping
from datetime import datetime
from fractions import Fraction

import msgspec

from meruit.errors import AuthorError
from meruit.judges.settings import JudgeSettings, JudgingSettings
from meruit.judges.voter import ReadyJudge
from meruit.model.numbers import MICRO, Number, exact


class CallPrice(msgspec.Struct, frozen=True):
    """The prices of one model, in US dollars."""

    input_per_million: Fraction
    output_per_million: Fraction
    per_thousand_requests: Fraction = Fraction(0)

    def micros(self, input_tokens: int, output_tokens: int) -> int:
        """What one call costs, in millionths of a dollar; rounded up, so that a limit holds."""
        tokens = input_tokens * self.input_per_million + output_tokens * self.output_per_million
        return math.ceil(tokens + self.per_thousand_requests * 1_000)


PriceBook = Callable[[JudgeSettings, datetime], CallPrice | None]
"""Finds the prices of a judge's model at a time; None where they are not known."""


def no_prices(_settings: JudgeSettings, _at: datetime) -> None:
    """The price book without an entry."""


def find_price(settings: JudgeSettings, at: datetime, book: PriceBook) -> CallPrice | None:
    """The judge's own prices where its settings name them, else those of the book."""
    if settings.prices is not None:
        return CallPrice(exact(settings.prices.input_per_million), exact(settings.prices.output_per_million))
    return book(settings, at)


def to_micros(dollars: Number | None) -> int | None:
    """A limit in millionths of a dollar."""
    return None if dollars is None else int(exact(dollars) * MICRO)


def check_prices(
    judge: ReadyJudge, settings: JudgingSettings, judges: Mapping[str, JudgeSettings], at: datetime, book: PriceBook
) -> None:
    """Raise AuthorError where cost is limited and a model has no known price: the limit would not hold."""
    everywhere = settings.max_cost_per_evaluation is not None or settings.max_cost_per_day is not None
    for voter in dict.fromkeys(one.name for stage in judge.stages for one in stage):
        own = judges[voter]
        limited = everywhere or own.max_cost_per_evaluation is not None
        if limited and find_price(own, at, book) is None:
            raise AuthorError(
                f"the cost of judges is limited, and the price of {own.model!r} (judge {voter!r}) is not known; "
                f"set judges.{voter}.prices, or limit tokens instead"
            )
