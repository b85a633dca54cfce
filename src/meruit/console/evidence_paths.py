"""The places that a criterion's evidence names, as rows of path, expected and found."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

_LISTS = ("paths", "differences", "fields", "rows")
"""Where checks and metrics keep such places, in this order."""


# Any: evidence is JSON of the form that its check or metric defines.
def list_paths(details: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Path, expected and found of each place; empty where the evidence names none."""
    listed = next((found for name in _LISTS if isinstance(found := details.get(name), list | tuple) and found), ())
    rows: list[tuple[str, str, str]] = []
    for entry in listed:
        if isinstance(entry, Mapping):
            path = entry.get("path") or entry.get("where") or entry.get("field") or ""
            expected, found = entry.get("expected", entry.get("reference")), entry.get("found", entry.get("output"))
            if path:
                rows.append((str(path), _plain(expected), _plain(found)))
        elif isinstance(entry, str):
            rows.append((entry, "", ""))
    return rows or [*_missing(details)]


def _missing(details: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What was looked for in the output, and whether it is there: of patterns, words and keywords."""
    missing, found = details.get("missing"), details.get("found")
    if {*details} == {"missing", "found"} and isinstance(missing, list | tuple) and isinstance(found, list | tuple):
        yield from (("output", _plain(one), "not found") for one in missing)
        yield from (("output", _plain(one), "found") for one in found)


# Any: JSON.
def _plain(value: Any) -> str:
    return value if isinstance(value, str) else "nothing" if value is None else msgspec.json.encode(value).decode()
