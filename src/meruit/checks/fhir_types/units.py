"""Units of measure that clinicians write, and whether two of them contradict each other. Nothing is converted."""

import re
from functools import lru_cache

_PREFIXES = ("", "k", "d", "c", "m", "u", "n", "p", "f")
_PREFIXED = ("g", "L", "mol", "m", "s", "eq", "Pa", "J", "cal", "osm", "[iU]", "Ci", "Bq", "U", "W", "V", "Hz")
_PLAIN = (
    *("min", "h", "d", "wk", "mo", "a", "%", "mm[Hg]", "cm[H2O]", "Cel", "K", "[degF]", "[lb_av]", "[oz_av]"),
    *("[in_i]", "[ft_i]", "[tsp_us]", "[tbs_us]", "[foz_us]", "[drp]", "[pH]", "10*3", "10*6", "10*9", "10*12", "bpm"),
)
_SYNONYMS = {
    "mmhg": "mm[Hg]",
    "mm hg": "mm[Hg]",
    "cmh2o": "cm[H2O]",
    "cm h2o": "cm[H2O]",
    "°c": "Cel",
    "degc": "Cel",
    "celsius": "Cel",
    "c": "Cel",
    "°f": "[degF]",
    "degf": "[degF]",
    "fahrenheit": "[degF]",
    "f": "[degF]",
    "lb": "[lb_av]",
    "lbs": "[lb_av]",
    "pound": "[lb_av]",
    "pounds": "[lb_av]",
    "oz": "[oz_av]",
    "in": "[in_i]",
    "inch": "[in_i]",
    "inches": "[in_i]",
    "ft": "[ft_i]",
    "tsp": "[tsp_us]",
    "tbsp": "[tbs_us]",
    "gtt": "[drp]",
    "drop": "[drp]",
    "drops": "[drp]",
    "iu": "[iU]",
    "miu": "m[iU]",
    "unit": "U",
    "units": "U",
    "mcg": "ug",
    "mcl": "uL",
    "cc": "mL",
    "l": "L",
    "ml": "mL",
    "dl": "dL",
    "ul": "uL",
    "nl": "nL",
    "gram": "g",
    "grams": "g",
    "milligram": "mg",
    "milligrams": "mg",
    "microgram": "ug",
    "micrograms": "ug",
    "kilogram": "kg",
    "kilograms": "kg",
    "milliliter": "mL",
    "milliliters": "mL",
    "millilitre": "mL",
    "millilitres": "mL",
    "liter": "L",
    "liters": "L",
    "litre": "L",
    "litres": "L",
    "percent": "%",
    "sec": "s",
    "secs": "s",
    "second": "s",
    "seconds": "s",
    "mins": "min",
    "minute": "min",
    "minutes": "min",
    "hr": "h",
    "hrs": "h",
    "hour": "h",
    "hours": "h",
    "day": "d",
    "days": "d",
    "week": "wk",
    "weeks": "wk",
    "month": "mo",
    "months": "mo",
    "year": "a",
    "years": "a",
    "yr": "a",
    "yrs": "a",
    "beats": "bpm",
    "beat": "bpm",
    "breaths": "bpm",
    "breath": "bpm",
}
"""What people write, in lower case, and the code of the same unit."""
_EXACT = frozenset(_PLAIN) | {prefix + base for prefix in _PREFIXES for base in _PREFIXED}
_LOWER = {one.lower(): one for one in sorted(_EXACT, reverse=True)}
_NOTE = re.compile(r"\{[^{}]*\}")


def contradict(one: str, other: str) -> bool:
    """Whether two texts name different units; False where one of them is not a unit that is known here."""
    units = _normalize(one), _normalize(other)
    return None not in units and units[0] != units[1]


@lru_cache(maxsize=1_024)
def _normalize(written: str) -> str | None:
    """The unit as a code, parts of a quotient and a product alike; None for one that is not known."""
    plain = _NOTE.sub("", written.strip().replace("µ", "u").replace("μ", "u").replace(" per ", "/"))
    parts = [_code_of(part.strip()) for part in plain.split("/")]
    if None in parts:
        return None
    # A count per minute has no unit of its own above the line.
    several = ["" if part == "bpm" else str(part) for part in parts]
    if parts == ["bpm"]:
        several = ["", "min"]
    return "/".join(several)


def _code_of(part: str) -> str | None:
    if not part or part in _EXACT:
        return part
    return _SYNONYMS.get(part.lower()) or _LOWER.get(part.lower())
