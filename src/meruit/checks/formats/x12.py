"""X12 interchanges: parsed with the delimiters they declare, validated as envelopes, read by path.

Parsing is lenient, so that a check can say more than "broken". `flaws` is strict: it lists everything that a trading
partner would reject.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from meruit.errors import AuthorError, UnreadableContent

ISA_WIDTHS = (3, 2, 10, 2, 10, 2, 15, 2, 15, 6, 4, 1, 5, 9, 1, 1, 1)
"""Characters of the ISA's identifier and its elements: the only segment whose elements have fixed widths."""
MAX_ISA_BYTES = 256
"""An ISA has 106; one that was padded wrongly is still read when it ends within this many."""
MAX_SEGMENTS = 100_000
"""Of one file, all its interchanges together."""
MAX_INTERCHANGES = 10_000
"""Of one file."""
REPETITION_SINCE = "00402"
"""Before this version ISA11 says which standard applies, and elements do not repeat."""
SHOWN_CHARS = 32
"""Characters of untrusted text that a flaw repeats."""

# Byte order marks survive when files are joined; old systems end files with 0x1A, and fill blocks up with zeros.
_BETWEEN = re.compile(rb"(?:[\s\x00\x1a]|\xef\xbb\xbf)*")
_LINE_BREAKS = re.compile(rb"[ \t\r\n]*")
_IDENTIFIER = re.compile("[A-Z][A-Z0-9]{1,2}").fullmatch


class X12Delimiters(NamedTuple):
    """The delimiters of an interchange."""

    element: str
    component: str
    terminator: str
    repetition: str | None
    """None where elements do not repeat, or ISA11 cannot be a separator."""


class Segment(msgspec.Struct, frozen=True):
    """One segment, as it was written."""

    number: int
    """Within its interchange: the ISA is 1."""
    offset: int
    """Of its first byte in the content that was read."""
    text: str
    elements: list[str]
    """The identifier is at 0, so that NM109 is at 9."""

    @property
    def name(self) -> str:
        """The identifier, as `NM1`."""
        return self.elements[0]

    def get(self, element: int) -> str:
        """An element's text; empty beyond the segment's end."""
        return self.elements[element] if element < len(self.elements) else ""


class Loop(msgspec.Struct, frozen=True):
    """One HL and the segments up to the next; its children are loops of their own."""

    number: str
    """HL01."""
    level: str
    """HL03, as `22` for a subscriber."""
    parent: int | None
    """The index of its parent among the set's loops: always lower, so that following parents ends."""
    segments: Sequence[Segment]


TA1 = "TA1"
"""The acknowledgement of a whole interchange; it is a segment outside of any group."""


class TransactionSet(msgspec.Struct, frozen=True):
    """One transaction set, ST to SE, with the headers it came under."""

    isa: Segment
    gs: Segment
    marks: X12Delimiters
    segments: Sequence[Segment]
    loops: Sequence[Loop]

    @property
    def set_id(self) -> str:
        """Which transaction set, as `271`."""
        return self.segments[0].get(1)

    @property
    def version(self) -> str:
        """The implementation guide, as `005010X279A1`: the set's own word for it, or else its group's."""
        return self.segments[0].get(3) or self.gs.get(8)


class Group(msgspec.Struct, frozen=True):
    """One functional group, GS to GE."""

    gs: Segment
    transactions: Sequence[TransactionSet]
    ge: Segment | None


class X12Flaw(NamedTuple):
    """One thing wrong with an envelope, and where."""

    segment: int
    """The segment's number within its interchange."""
    offset: int
    """Into the content that was read."""
    why: str

    def __str__(self) -> str:
        """`segment 7, byte 321: SE01 is '12', …`."""
        return f"segment {self.segment}, byte {self.offset}: {self.why}"


class Interchange(msgspec.Struct, frozen=True):
    """One interchange, ISA to IEA."""

    isa: Segment
    marks: X12Delimiters
    groups: Sequence[Group]
    iea: Segment | None
    noticed: Sequence[X12Flaw]
    """Flaws found while parsing; `flaws` has these and all others."""
    acknowledgements: Sequence[Segment] = ()
    """Its TA1 segments, which acknowledge other interchanges."""

    @property
    def transactions(self) -> list[TransactionSet]:
        """The sets of all groups, in order."""
        return [transaction for group in self.groups for transaction in group.transactions]


def read(content: bytes) -> list[Interchange]:
    """Parse the interchanges of a file, at least one; raises UnreadableContent for anything else."""
    codec = _codec(content)
    start = _skip(_BETWEEN, content, 0)
    found: list[Interchange] = []
    room = MAX_SEGMENTS
    while True:
        if len(found) == MAX_INTERCHANGES:
            raise UnreadableContent.at(f"there are more than {MAX_INTERCHANGES:,} interchanges", content, start)
        marks = _marks(content, start)
        segments, end, noticed = _segments(content, start, marks, codec, room)
        room -= len(segments)
        start = _skip(_BETWEEN, content, end)
        follows = content.startswith(b"ISA", start)
        if start < len(content) and not follows:
            noticed.append(
                X12Flaw(
                    segment=len(segments) + 1,
                    offset=start,
                    why=f"{len(content) - start} bytes after the IEA are not read",
                )
            )
        found.append(_build_interchange(segments, marks, noticed))
        if not follows:
            return found


def _codec(content: bytes) -> str:
    try:
        content.decode()
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8"


def _skip(pattern: re.Pattern[bytes], content: bytes, start: int) -> int:
    match = pattern.match(content, start)
    return match.end() if match else start


def _marks(content: bytes, start: int) -> X12Delimiters:
    """Find the delimiters by counting elements, so that wrong padding in the ISA is only a flaw."""
    if not content.startswith(b"ISA", start):
        raise UnreadableContent.at("an X12 interchange begins with ISA", content, start)
    head = content[start : start + MAX_ISA_BYTES].decode("latin-1")
    parts = head.split(head[3:4] or "*", len(ISA_WIDTHS) - 1)
    if len(parts) < len(ISA_WIDTHS) or len(parts[-1]) < 2:
        raise UnreadableContent.at(f"the ISA has {len(ISA_WIDTHS) - 1} elements and a terminator", content, start)
    element, component, terminator = head[3], parts[-1][0], parts[-1][1]
    if not (
        _can_separate(element) and _can_separate(component) and (_can_separate(terminator) or terminator in "\r\n")
    ):
        raise UnreadableContent.at(
            f"{element + component + terminator!r} cannot be the ISA's delimiters", content, start
        )
    if element == component or terminator in head[: -len(parts[-1])] + component:
        raise UnreadableContent.at(
            f"the ISA's terminator {terminator!r} occurs inside it, or its separators are equal", content, start
        )
    repetition = parts[11] if parts[12] >= REPETITION_SINCE else ""
    usable = len(repetition) == 1 and _can_separate(repetition) and repetition != component
    return X12Delimiters(
        element=element, component=component, terminator=terminator, repetition=repetition if usable else None
    )


def _can_separate(character: str) -> bool:
    """Whether a character can be a separator: one byte in any encoding, and not part of words."""
    return character.isascii() and not character.isalnum() and character not in " \r\n"


def _segments(
    content: bytes, start: int, marks: X12Delimiters, codec: str, room: int
) -> tuple[list[Segment], int, list[X12Flaw]]:
    """The segments from an ISA to its IEA, or to the next ISA or the end where that is lacking."""
    segments: list[Segment] = []
    terminator, size = marks.terminator.encode(), len(content)
    while start < size:
        if segments and content.startswith(b"ISA", start):
            break
        if len(segments) == room:
            raise UnreadableContent.at(f"there are more than {MAX_SEGMENTS:,} segments", content, start)
        end = content.find(terminator, start)
        raw = content[start:end] if end >= 0 else content[start:].rstrip(b"\r\n")
        text = raw.decode(codec)
        elements = text.split(marks.element)
        if not _IDENTIFIER(elements[0]):
            raise UnreadableContent.at("a segment begins with its identifier, as NM1", content, start)
        segment = Segment(number=len(segments) + 1, offset=start, text=text, elements=elements)
        segments.append(segment)
        if end < 0:
            return segments, size, [_flaw(segment, f"{segment.name} is not ended by {marks.terminator!r}")]
        start = _skip(_LINE_BREAKS, content, end + 1)
        if elements[0] == "IEA":
            break
    return segments, start, []


def _build_interchange(segments: list[Segment], marks: X12Delimiters, noticed: list[X12Flaw]) -> Interchange:
    isa = segments[0]
    inside, iea = _split_trailer(segments, "IEA")
    groups: list[Group] = []
    runs, outside = _runs(inside[1:], "GS", "GE")
    # An acknowledgement of another interchange belongs outside of groups.
    noticed += [_flaw(one, f"{one.name} is outside of any group") for one in outside if one.name != TA1]
    acknowledgements = [one for one in outside if one.name == TA1]
    noticed += [
        _flaw(one, f"TA1 rejects interchange {one.get(1)}: {one.get(5)}")
        for one in acknowledgements
        if one.get(4) == "R"
    ]
    for run in runs:
        gs = run[0]
        body, ge = _split_trailer(run, "GE")
        sets, outside = _runs(body[1:], "ST", "SE")
        noticed += [_flaw(one, f"{one.name} is outside of any transaction set") for one in outside]
        groups.append(
            Group(
                gs=gs,
                transactions=[
                    TransactionSet(isa=isa, gs=gs, marks=marks, segments=one, loops=_loops(one)) for one in sets
                ],
                ge=ge,
            )
        )
    return Interchange(isa=isa, marks=marks, groups=groups, iea=iea, noticed=noticed, acknowledgements=acknowledgements)


def _runs(segments: Iterable[Segment], opener: str, closer: str) -> tuple[list[list[Segment]], list[Segment]]:
    """From each opener to its closer, or up to the next opener where that is lacking; and what is in none."""
    runs: list[list[Segment]] = []
    outside: list[Segment] = []
    current = outside
    for segment in segments:
        name = segment.elements[0]
        if name == opener:
            current = []
            runs.append(current)
        current.append(segment)
        if name == closer:
            current = outside
    return runs, outside


def _split_trailer(segments: list[Segment], closer: str) -> tuple[list[Segment], Segment | None]:
    last = segments[-1]
    return (segments[:-1], last) if last.name == closer else (segments, None)


def _loops(segments: list[Segment]) -> list[Loop]:
    body, _ = _split_trailer(segments, "SE")
    starts = [place for place, segment in enumerate(body) if segment.elements[0] == "HL"]
    loops: list[Loop] = []
    places: dict[str, int] = {}
    for start, end in pairwise([*starts, len(body)]):
        hl = body[start]
        number = hl.get(1)
        # Only earlier loops are known yet, so a chain of parents cannot be a cycle.
        loops.append(Loop(number=number, level=hl.get(3), parent=places.get(hl.get(2)), segments=body[start:end]))
        if number:
            places.setdefault(number, len(loops) - 1)
    return loops


def flaws(interchange: Interchange) -> list[X12Flaw]:
    """All flaws of the envelope and the HL tree, in the order of the segments."""
    found = [*interchange.noticed, *_isa_flaws(interchange)]
    found += _trailer_flaws(interchange.isa, 13, "IEA", interchange.iea, len(interchange.groups), "groups")
    for group in interchange.groups:
        found += _trailer_flaws(group.gs, 6, "GE", group.ge, len(group.transactions), "transaction sets")
        for transaction in group.transactions:
            segments = transaction.segments
            se = segments[-1] if segments[-1].name == "SE" else None
            found += _trailer_flaws(segments[0], 2, "SE", se, len(segments), "segments")
            found += _loop_flaws(transaction.loops)
    return sorted(found)


def _flaw(segment: Segment, why: str) -> X12Flaw:
    return X12Flaw(segment=segment.number, offset=segment.offset, why=why)


def _isa_flaws(interchange: Interchange) -> Iterator[X12Flaw]:
    isa = interchange.isa
    for number, (element, width) in enumerate(zip(isa.elements, ISA_WIDTHS, strict=False)):
        if len(element) != width:
            yield _flaw(isa, f"ISA{number:02} has {len(element)} characters, not {width}")
    if interchange.marks.repetition is None and isa.get(12) >= REPETITION_SINCE:
        yield _flaw(isa, f"ISA11 is {_quote(isa.get(11))}, which cannot separate repetitions")


def _trailer_flaws(
    head: Segment, control: int, name: str, trailer: Segment | None, count: int, counted: str
) -> Iterator[X12Flaw]:
    """What a trailer must repeat of its header: how much there was, and the control number."""
    if trailer is None:
        yield _flaw(head, f"{head.name} has no {name}")
        return
    if trailer.get(1).lstrip("0") != str(count or "") or not trailer.get(1):
        yield _flaw(trailer, f"{name}01 is {_quote(trailer.get(1))}, but there are {count} {counted}")
    if trailer.get(2) != head.get(control) or not trailer.get(2):
        opened = f"{head.name}{control:02} is {_quote(head.get(control))}"
        yield _flaw(trailer, f"{name}02 is {_quote(trailer.get(2))}, and {opened}")


def _loop_flaws(loops: Iterable[Loop]) -> Iterator[X12Flaw]:
    known: set[str] = set()
    for loop in loops:
        hl = loop.segments[0]
        if not loop.number or loop.number in known:
            yield _flaw(hl, f"HL01 is {_quote(loop.number)}, which is not a unique number")
        if hl.get(2) and loop.parent is None:
            yield _flaw(hl, f"HL02 is {_quote(hl.get(2))}, and no HL before this one has that number")
        known.add(loop.number)


def _quote(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…")


class ElementPosition(NamedTuple):
    """An element, or one component of it; both are counted from 1."""

    element: int
    component: int | None = None


class X12Path(msgspec.Struct, frozen=True):
    """A compiled path into a transaction set."""

    text: str
    """As it was written."""
    level: str | None
    """The HL level code whose loops are read; None for the whole set."""
    segment: str
    qualifiers: tuple[tuple[ElementPosition, str], ...] = ()
    """What a segment must hold, all of it; one repetition is enough for each."""
    place: ElementPosition | None = None
    """None means the segment itself."""


_PLACE = "([0-9]{1,3})(?:[-:]([0-9]{1,3}))?"
_QUALIFIER = re.compile(rf"\[{_PLACE}=([^\]]*)\]")
_PATH = re.compile(rf"(?:HL\[([^\]=]+)\]/)?([A-Z][A-Z0-9]{{1,2}})((?:{_QUALIFIER.pattern})*)(?:\.{_PLACE})?")


def compile_path(text: str) -> X12Path:
    """Compile a path such as `HL[23]/EB[1=B][12=Y].7`; raises AuthorError for an invalid one."""
    match = _PATH.match(text)
    if match is None or match.end() < len(text):
        rest = text[match.end() :] if match else text
        raise AuthorError(
            f"the X12 path {text!r} is not valid from {rest!r} on; write a segment and an element, as CLM.2, a "
            "component, as SVC.1-2, or conditions on the segment, as HL[23]/EB[1=B][12=Y].7"
        )
    level, segment, qualifiers, *_, element, component = match.groups()
    return X12Path(
        text=text,
        level=level,
        segment=segment,
        qualifiers=tuple((_position(text, *found[:2]), found[2]) for found in _QUALIFIER.findall(qualifiers)),
        place=_position(text, element, component) if element else None,
    )


def _position(text: str, element: str, component: str | None) -> ElementPosition:
    place = ElementPosition(int(element), int(component) if component else None)
    if 0 in place:
        raise AuthorError(f"the X12 path {text!r} has the number 0; the first element is 1, as in ST.1")
    return place


def values(transaction: TransactionSet, path: X12Path) -> tuple[str, ...]:
    """All values at a path, in order: an empty element is an empty text, an omitted one gives no value.

    ISA and GS are those above the set. An element that repeats has as many values; a composite asked for whole is its
    text. A segment asked for whole is its text too.
    """
    found: list[str] = []
    for segment in _candidate_segments(transaction, path):
        if segment.elements[0] == path.segment and all(
            wanted in _at(segment, place, transaction.marks) for place, wanted in path.qualifiers
        ):
            found += [segment.text] if path.place is None else _at(segment, path.place, transaction.marks)
    return tuple(found)


def _candidate_segments(transaction: TransactionSet, path: X12Path) -> Iterable[Segment]:
    if path.level is not None:
        return (one for loop in transaction.loops if loop.level == path.level for one in loop.segments)
    if path.segment in ("ISA", "GS"):
        return (transaction.isa, transaction.gs)
    return transaction.segments


def _at(segment: Segment, place: ElementPosition, marks: X12Delimiters) -> list[str]:
    if place.element >= len(segment.elements):
        return []
    text = segment.elements[place.element]
    if segment.elements[0] == "ISA":
        # The ISA contains the separators themselves, which do not separate here.
        return [text] if place.component in (None, 1) else []
    repetitions = text.split(marks.repetition) if marks.repetition else [text]
    if place.component is None:
        return repetitions
    composites = [repetition.split(marks.component) for repetition in repetitions]
    return [parts[place.component - 1] for parts in composites if place.component <= len(parts)]
