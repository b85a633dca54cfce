"""FHIR quantities: a number with a unit, a lower or upper bound, or a range."""

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import msgspec

from meruit.checks.values.decimals import EXACTLY, numeral

_MOST = Decimal("Infinity")


class Amount(msgspec.Struct, frozen=True):
    """From one number to another, both included."""

    low: Decimal
    high: Decimal
    # Any is what JSON holds.
    quantities: tuple[Mapping[str, Any], ...] = ()
    """What it was written as, with units."""

    def is_in(self, *, system: str, unit: str) -> bool:
        """Whether it has that unit: a code of the system, or without one a code or word; nothing is converted."""
        if not system and not unit:
            return True
        if system:
            return any(one.get("system") == system and unit in ("", one.get("code")) for one in self.quantities)
        return any(unit in (one.get("code"), one.get("unit"), one.get("currency")) for one in self.quantities)


# Any is JSON as it was parsed.
def amount_of(value: Any) -> Amount | None:
    """The amount of a FHIR Quantity, Money or Range; None for anything else."""
    match value:
        case {"value": int() | float() | Decimal() as number}:
            point = numeral(number)
            if point is None:
                return None
            comparator = str(value.get("comparator", ""))
            low = -_MOST if comparator.startswith("<") else point
            return Amount(low=low, high=_MOST if comparator.startswith(">") else point, quantities=(value,))
        case {"low": {"value": _} as low, "high": {"value": _} as high}:
            return _between(amount_of(low), amount_of(high))
        case {"low": {"value": _} as low}:
            return _between(amount_of(low), Amount(_MOST, _MOST))
        case {"high": {"value": _} as high}:
            return _between(Amount(-_MOST, -_MOST), amount_of(high))
        case _:
            return None


def _between(low: Amount | None, high: Amount | None) -> Amount | None:
    return (
        None
        if low is None or high is None
        else Amount(low=low.low, high=high.high, quantities=low.quantities + high.quantities)
    )


def comparison(prefix: str, point: Decimal) -> Callable[[Amount], bool]:  # noqa: PLR0911 - one a prefix
    """FHIR's prefixes for numbers: `eq` and `ne` are as precise as the number was written, the others exact."""
    match prefix:
        case "gt":
            return lambda found: found.high > point
        case "lt":
            return lambda found: found.low < point
        case "ge":
            return lambda found: found.high >= point
        case "le":
            return lambda found: found.low <= point
        case "sa":
            return lambda found: found.low > point
        case "eb":
            return lambda found: found.high < point
        case _:
            # 5.4 is from 5.35 up to 5.45.
            half = Decimal(5).scaleb(int(point.as_tuple().exponent) - 1, EXACTLY)
            low, high = EXACTLY.subtract(point, half), EXACTLY.add(point, half)
            return lambda found: (low <= found.low and found.high < high) is (prefix == "eq")
