"""Validate X12 requests by their guides, and build the 999 for each functional group."""

from collections.abc import Iterator, Sequence

import msgspec

from meruit.checks.formats.x12 import Group, Interchange, Loop, Segment, TransactionSet
from meruit.playground.x12.write import Line

GUIDE = "005010X231A1"
UNNUMBERED = "0000"
MAX_COMPLAINTS = 100
"""How many segments of one set are reported."""


class X12RequestGuide(msgspec.Struct, frozen=True):
    """What a request must have."""

    function: str
    """GS01."""
    version: str
    """How ST03, or otherwise GS08, begins."""
    levels: tuple[str, ...]
    """HL levels that must occur."""
    named: tuple[str, ...]
    """HL levels each of which must have a name."""
    asks: tuple[str, tuple[str, ...]]
    """The segment of the question, and the levels of which one must have it."""


GUIDES = {
    "270": X12RequestGuide(
        function="HS",
        version="005010X279",
        levels=("20", "21", "22"),
        named=("20", "21", "22", "23"),
        asks=("EQ", ("22", "23")),
    ),
    "276": X12RequestGuide(
        function="HR",
        version="005010X212",
        levels=("20", "21", "19", "22"),
        named=("20", "21", "19", "22", "23"),
        asks=("TRN", ("22", "23")),
    ),
    "278": X12RequestGuide(
        function="HI",
        version="005010X217",
        levels=("20", "21", "22", "EV"),
        named=("20", "21", "22", "23"),
        asks=("UM", ("EV",)),
    ),
}
"""By transaction set."""
REQUIRED = {
    "BHT": {1: "1005", 2: "353"},
    "HL": {1: "628", 3: "735"},
    "NM1": {1: "98", 2: "1065"},
    "TRN": {1: "481", 2: "127"},
    "EQ": {1: "1365"},
    "UM": {1: "1525", 2: "1322"},
    "REF": {1: "128", 2: "127"},
    "DMG": {1: "1250", 2: "1251"},
    "DTP": {1: "374", 2: "1250", 3: "1251"},
}
"""Elements that a segment must have, and their numbers in the dictionary of X12."""

SEGMENT_MISSING, SEGMENT_IN_ERROR = "3", "8"
ELEMENT_MISSING, ELEMENT_INVALID = "1", "7"
SET_UNSUPPORTED, SET_UNENDED, SET_MISNUMBERED, SET_MISCOUNTED, SET_IN_ERROR, SET_UNNUMBERED = (
    "1",
    "2",
    "3",
    "4",
    "5",
    "7",
)
GROUP_UNSUPPORTED, GROUP_UNENDED, GROUP_MISNUMBERED, GROUP_MISCOUNTED = "1", "3", "4", "5"
TA1_MISNUMBERED, TA1_MISCOUNTED, TA1_UNENDED, TA1_EMPTY = "001", "021", "023", "024"


class GroupAcknowledgement(msgspec.Struct, frozen=True):
    """The result for a functional group."""

    body: list[Line]
    """The segments of the 999."""
    accepted: list[TransactionSet]
    """The sets to answer."""
    whole: bool
    """Whether all of it was accepted."""


def interchange_trouble(asked: Interchange) -> str | None:
    """Return why an interchange is rejected as a whole, as the code of a TA1."""
    if asked.iea is None:
        return TA1_UNENDED
    if asked.iea.get(2) != asked.isa.get(13):
        return TA1_MISNUMBERED
    if asked.iea.get(1).lstrip("0") != str(len(asked.groups) or ""):
        return TA1_MISCOUNTED
    return None if asked.groups else TA1_EMPTY


def acknowledge(group: Group) -> GroupAcknowledgement:
    """Validate every set of a group."""
    trouble = _group_trouble(group)
    body: list[Line] = [("AK1", group.gs.get(1), group.gs.get(6), group.gs.get(8))]
    accepted: list[TransactionSet] = []
    for one in group.transactions:
        complaints = list(_complaints(one))[:MAX_COMPLAINTS] if one.set_id in GUIDES else []
        wrong = _set_trouble(one, group.gs) or (SET_IN_ERROR if complaints else None)
        # A set without a number still needs one in the 999.
        number = one.segments[0].get(2) or UNNUMBERED
        body += [("AK2", one.set_id, number, one.segments[0].get(3)), *_lines(complaints)]
        body.append(("IK5", "R", wrong) if wrong else ("IK5", "A"))
        if not wrong and trouble is None:
            accepted.append(one)
    whole = trouble is None and len(accepted) == len(group.transactions)
    code = "A" if whole else "P" if accepted else "R"
    received = str(len(group.transactions))
    announced = group.ge.get(1) if group.ge is not None and group.ge.get(1).isdecimal() else received
    body.append(("AK9", code, announced, received, str(len(accepted)), trouble or ""))
    return GroupAcknowledgement(body=body, accepted=accepted, whole=whole)


class _Complaint(msgspec.Struct, frozen=True):
    """One segment that is wrong or missing."""

    name: str
    position: int
    """Within the set: ST is 1."""
    code: str
    elements: tuple[tuple[int, str, str], ...] = ()
    """Position, number in the dictionary, and the error code."""


def _lines(complaints: Sequence[_Complaint]) -> Iterator[Line]:
    for one in complaints:
        yield ("IK3", one.name, str(one.position), "", one.code)
        for position, number, code in one.elements:
            yield ("IK4", str(position), number, code)


def _group_trouble(group: Group) -> str | None:
    if group.gs.get(1) not in {guide.function for guide in GUIDES.values()}:
        return GROUP_UNSUPPORTED
    if group.ge is None:
        return GROUP_UNENDED
    if group.ge.get(2) != group.gs.get(6) or not group.gs.get(6):
        return GROUP_MISNUMBERED
    if group.ge.get(1).lstrip("0") != str(len(group.transactions) or ""):
        return GROUP_MISCOUNTED
    return None


def _set_trouble(one: TransactionSet, gs: Segment) -> str | None:
    guide = GUIDES.get(one.set_id)
    head, last = one.segments[0], one.segments[-1]
    if guide is None or guide.function != gs.get(1) or not one.version.startswith(guide.version):
        return SET_UNSUPPORTED
    if not head.get(2):
        return SET_UNNUMBERED
    if last.name != "SE":
        return SET_UNENDED
    if last.get(2) != head.get(2):
        return SET_MISNUMBERED
    return SET_MISCOUNTED if last.get(1).lstrip("0") != str(len(one.segments)) else None


def _complaints(one: TransactionSet) -> Iterator[_Complaint]:
    """List the errors of a set in the order of the segments; missing segments are last."""
    guide, first = GUIDES[one.set_id], one.segments[0].number
    if len(one.segments) < 2 or one.segments[1].name != "BHT":
        yield _Complaint(name="BHT", position=2, code=SEGMENT_MISSING)
    orphans = {loop.segments[0].number for loop in one.loops if loop.segments[0].get(2) and loop.parent is None}
    unnamed = {loop.segments[0].number for loop in one.loops if loop.level in guide.named and not _has(loop, "NM1")}
    for segment in one.segments:
        position = segment.number - first + 1
        wanted = REQUIRED.get(segment.name, {})
        wrong = [(place, number, ELEMENT_MISSING) for place, number in wanted.items() if not segment.get(place)]
        if segment.number in orphans:
            wrong.append((2, "734", ELEMENT_INVALID))
        if wrong:
            yield _Complaint(name=segment.name, position=position, code=SEGMENT_IN_ERROR, elements=tuple(sorted(wrong)))
        if segment.number in unnamed:
            yield _Complaint(name="NM1", position=position + 1, code=SEGMENT_MISSING)
    end = len(one.segments)
    for level in guide.levels:
        if all(loop.level != level for loop in one.loops):
            yield _Complaint(name="HL", position=end, code=SEGMENT_MISSING)
    asked, levels = guide.asks
    if not any(loop.level in levels and _has(loop, asked) for loop in one.loops):
        yield _Complaint(name=asked, position=end, code=SEGMENT_MISSING)


def _has(loop: Loop, name: str) -> bool:
    return any(segment.name == name for segment in loop.segments)
