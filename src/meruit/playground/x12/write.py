"""Write X12: any text becomes elements that cannot break their segment, in an envelope with correct counts."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime

from meruit.checks.formats.x12 import Segment, X12Delimiters
from meruit.model.text import normalize_unicode

STANDARD = X12Delimiters(element="*", component=":", terminator="~", repetition="^")
REPETITIONS = "^!|"
"""The repetition separator, if the request does not set one."""
UNFIT = frozenset(".-")
"""Delimiters that would break amounts and numbers; such a request is answered in the standard ones."""
MAX_ELEMENT = 264
"""Characters of the longest element."""
RELEASE = "00501"

_BREAKS = re.compile(r"[\x00-\x1f\x7f]")

Element = str | tuple[str, ...]
"""One element: a text, or the components of a composite."""
Line = tuple[Element, ...]
"""One segment, its identifier first."""


def marks_for(asked: X12Delimiters) -> X12Delimiters:
    """Choose the delimiters of a reply: the request's own, if they can be used."""
    if UNFIT & set("".join(mark for mark in asked if mark)):
        return STANDARD
    if asked.repetition is not None:
        return asked
    return asked._replace(repetition=next(mark for mark in REPETITIONS if mark not in asked))


def sanitize_element(text: str, marks: X12Delimiters) -> str:
    """Return a text as an element may hold it: ASCII, without delimiters."""
    # Cut before and after, because some characters stand for many others.
    folded = normalize_unicode("NFKD", text[: 4 * MAX_ELEMENT])[: 8 * MAX_ELEMENT]
    ascii_only = "".join(mark for mark in folded if not unicodedata.combining(mark)).encode("ascii", "replace").decode()
    for mark in marks:
        ascii_only = ascii_only.replace(mark or "", " ") if mark else ascii_only
    return " ".join(_BREAKS.sub(" ", ascii_only).split())[:MAX_ELEMENT].rstrip()


def digits(date: str) -> str:
    """Format a date as CCYYMMDD; empty if it is not one."""
    found = re.sub(r"\D", "", date)[:8]
    return found if len(found) == 8 else ""


def name(text: str) -> tuple[str, str]:
    """Split `Smith, Ann` or `Ann Smith` into last and first name."""
    last, comma, first = text.partition(",")
    if not comma:
        first, _, last = text.strip().rpartition(" ")
    return last.strip(), first.strip()


def transaction(marks: X12Delimiters, number: int, kind: str, version: str, body: Iterable[Line]) -> list[str]:
    """Build one transaction set with its header and trailer, each segment as text."""
    control = f"{number:04}"
    written = (_segment(line, marks) for line in (("ST", kind, control, version), *body))
    # A note of delimiters only leaves nothing, and a segment must have content.
    segments = [one for one in written if marks.element in one]
    return [*segments, _segment(("SE", str(len(segments) + 1), control), marks)]


def group(
    marks: X12Delimiters,
    asked: Segment,
    control: int,
    at: datetime,
    function: str,
    version: str,
    sets: Sequence[list[str]],
) -> list[str]:
    """Build a functional group that answers another: sender and receiver are exchanged."""
    head = ("GS", function, asked.get(3), asked.get(2), f"{at:%Y%m%d}", f"{at:%H%M}", str(control), "X", version)
    inside = [segment for one in sets for segment in one]
    return [_segment(head, marks), *inside, _segment(("GE", str(len(sets)), str(control)), marks)]


def interchange(
    marks: X12Delimiters, asked: Segment, control: int, at: datetime, inside: Sequence[str], *, groups: int = 1
) -> bytes:
    """Build an interchange that answers another; its header's elements have fixed widths."""
    number = f"{control:09}"
    usage = asked.get(15) if asked.get(15) in ("P", "T") else "T"
    head = [
        *("ISA", "00", " " * 10, "00", " " * 10),
        *(_pad(asked.get(7), 2, marks), _pad(asked.get(8), 15, marks)),
        *(_pad(asked.get(5), 2, marks), _pad(asked.get(6), 15, marks)),
        *(f"{at:%y%m%d}", f"{at:%H%M}", marks.repetition or STANDARD.repetition or "", RELEASE, number, "0", usage),
        marks.component,
    ]
    segments = [marks.element.join(head), *inside, _segment(("IEA", str(groups), number), marks)]
    return "".join(f"{segment}{marks.terminator}" for segment in segments).encode("ascii")


def interchange_acknowledgement(marks: X12Delimiters, asked: Segment, code: str, note: str) -> str:
    """Build a TA1: the result for an interchange as a whole."""
    return _segment(("TA1", asked.get(13), asked.get(9), asked.get(10), code, note), marks)


def _segment(line: Line, marks: X12Delimiters) -> str:
    elements = [_element(element, marks) for element in line]
    while len(elements) > 1 and not elements[-1]:
        elements.pop()
    return marks.element.join(elements)


def _element(element: Element, marks: X12Delimiters) -> str:
    if isinstance(element, str):
        return sanitize_element(element, marks)
    return marks.component.join(sanitize_element(part, marks) for part in element).rstrip(marks.component)


def _pad(text: str, width: int, marks: X12Delimiters) -> str:
    return sanitize_element(text, marks)[:width].ljust(width)
