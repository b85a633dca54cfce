"""Matchers of FHIR codings, references and quantities."""

from collections.abc import Mapping
from typing import Any

from meruit.checks.fhir_types.reference import forms, normal_reference
from meruit.checks.fhir_types.units import contradict
from meruit.checks.matching.compare import AnyValueJudge, Judge, WrongKindReason, format_value, settings_of, text_of
from meruit.checks.matching.ordering import within
from meruit.checks.values.decimals import numeral
from meruit.errors import AuthorError


# Any, in this file: a value of a document, or what an author wrote.
def words_of(value: Any) -> list[str]:
    """The texts of a value: itself, or the display texts of a FHIR concept, coding or reference."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Mapping):
        return []
    codings = value.get("coding")
    several = [value, *(codings if isinstance(codings, list) else ())]
    found = [one.get(name) for one in several if isinstance(one, Mapping) for name in ("text", "display")]
    return [text for text in found if isinstance(text, str)]


def coding(given: Any) -> Judge:
    """Match any coding of a concept; without `system|` any system, with an empty system none."""
    system, bar, code = text_of("coding", given).rpartition("|")
    if not code:
        raise AuthorError(f"coding {given!r:.80} has no code; write system|code")

    def fits(one: Any) -> bool:
        if isinstance(one, str):
            return not bar and one == code
        if not isinstance(one, Mapping) or one.get("code") != code:
            return False
        return not bar or (one.get("system") or "") == system

    def test(value: Any) -> str | None:
        codings = value.get("coding") if isinstance(value, Mapping) else None
        several = codings if isinstance(codings, list) else [value]
        return None if any(map(fits, several)) else f"is {format_value(value)}"

    return AnyValueJudge(test)


def reference(given: Any) -> Judge:
    """Match a reference to that resource in any form; a reference to another server is another resource."""
    wanted = normal_reference(text_of("ref", given))

    def test(value: Any) -> str | None:
        found = value.get("reference") if isinstance(value, Mapping) else value
        return None if isinstance(found, str) and wanted in forms(found) else f"is {format_value(value)}"

    return AnyValueJudge(test)


def quantity(given: Any) -> Judge:
    """An amount in a unit, as text or as code; where a resource has both, they must not name different units."""
    settings = settings_of("quantity", given, {"value"}, {"unit", "by"})
    wanted, reach, unit = numeral(settings["value"]), numeral(settings.get("by", 0)), settings.get("unit")
    if wanted is None or reach is None or reach < 0:
        raise AuthorError("quantity takes {value, unit, by}; value and by are numbers, by not negative")
    if unit is not None and not isinstance(unit, str):
        raise AuthorError("quantity: unit is a text, as mg or mEq")

    def test(value: Any) -> str | None:
        found = value.get("value") if isinstance(value, Mapping) else None
        # A text is not a FHIR quantity, even if it looks like one.
        number = None if isinstance(found, str) else numeral(found)
        if number is None:
            return WrongKindReason(f"is {format_value(value)}, which is not a quantity")
        if value.get("comparator") is not None:
            return WrongKindReason(f"is {format_value(value)}, which is not a single amount")
        if unit is not None and unit not in (value.get("unit"), value.get("code")):
            # Units are not converted; both are shown.
            return WrongKindReason(f"is {format_value(number)} {_unit_of(value)}, not in {unit}")
        if unit is not None and (other := _contradiction(value, unit)) is not None:
            # People read the text, machines the code: the next reader may act on either.
            return WrongKindReason(f"is {format_value(number)} {unit}, and also {other}, which is another unit")
        return None if within(number, wanted, reach) else f"is {format_value(number)} {_unit_of(value)}"

    return AnyValueJudge(test)


def _contradiction(value: Mapping[str, Any], unit: str) -> str | None:
    """The unit as text or as code that contradicts the other one; None if none does."""
    written = [one for one in (value.get("unit"), value.get("code")) if isinstance(one, str)]
    return next((one for one in written if contradict(one, unit)), None)


def _unit_of(value: Mapping[str, Any]) -> str:
    unit = value.get("unit") or value.get("code")
    return unit if isinstance(unit, str) else "without a unit"
