"""FHIR references: which forms refer to the same resource.

`Patient/1` is the source's own resource. `http://elsewhere/Patient/1` is not: an absolute reference refers to the
source's own resource only if it begins with the address at which the source was read.
"""

import re
from collections.abc import Iterable
from typing import Any

from meruit.checks.fhir_types.resource_types import RESOURCE_TYPES
from meruit.model.environment import Read

REFERENCE = re.compile(r"(https?://\S*/)?([A-Z][A-Za-z]*/[^/?#|\s]+)(?:/_history/[^/?#\s]+)?")
"""An address of a resource: perhaps a base, type and id, perhaps a version."""
_ASKED = re.compile(r"(https?://[^?#\s]+/)([A-Z][A-Za-z]*|metadata)(?:\?\S*)?")


class OwnReference(str):
    """An absolute reference to a resource of the source's own."""

    __slots__ = ("relative",)
    relative: str
    """`Patient/1`."""

    def __new__(cls, text: str, relative: str) -> "OwnReference":
        """The reference as it is written, and what it means."""
        made = super().__new__(cls, text)
        made.relative = relative
        return made


def normal_reference(text: str) -> str:
    """The reference without a version; a text that is not the address of a resource stays as it is."""
    found = REFERENCE.fullmatch(text)
    return f"{found[1] or ''}{found[2]}" if found else text


def forms(text: str) -> tuple[str, ...]:
    """Every form in which an author may write the reference."""
    return (normal_reference(text), text.relative) if isinstance(text, OwnReference) else (normal_reference(text),)


def base_of(reads: Iterable[Read]) -> str | None:
    """The address of a FHIR server with its last slash, derived from the requests; None where it is unknown."""
    for one in reads:
        found = _ASKED.fullmatch(one.what)
        if found and (found[2] in RESOURCE_TYPES or found[2] == "metadata"):
            return found[1]
    return None


# Any: JSON as it was parsed.
def mark_own_references(document: Any, base: str) -> Any:
    """Mark absolute references to the server's own address as references of the source itself."""
    waiting = [document]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            reference = part.get("reference")
            if isinstance(reference, str) and reference.startswith(base):
                found = REFERENCE.fullmatch(reference.removeprefix(base))
                if found and not found[1]:
                    part["reference"] = OwnReference(reference, found[2])
            waiting += part.values()
    return document
