"""HL7 v2 messages as they travel (ER7): read once, split only where a path asks.

Absent, empty and null are three things. A place that was not sent has no value, one that was sent empty has the
value "", and one that was sent as two quotation marks says "delete this" and has the value `HL7_NULL`.
"""

import re
import string
from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import NamedTuple

import msgspec

from meruit.errors import AuthorError, UnreadableContent

BOM = b"\xef\xbb\xbf"
EDGES = "\n\x0b\x1c"
"""Characters around a segment that are not part of it: half of CRLF, and the MLLP frame."""
NEVER = "\r"
"""Used for a delimiter that was not declared: it ends segments, so no segment contains it."""
DELIMITERS = 6
"""How many an MSH may declare: one in MSH-1, and up to five in MSH-2."""
MAX_MESSAGES = 20_000
"""Of one file; the heads and ends of batches count as well."""
MAX_SEGMENTS = 100_000
"""Of one file, all its messages together."""
CHARACTER_SETS = {
    "": "utf-8",
    "ASCII": "ascii",
    "UNICODE": "utf-8",
    "UNICODE UTF-8": "utf-8",
    "UTF-8": "utf-8",
    **{f"8859/{part}": f"iso8859-{part}" for part in (1, 2, 3, 4, 5, 6, 7, 8, 9, 15)},
}
"""The values of MSH-18 and Python's names for them; the default is UTF-8, which includes ASCII."""
ESCAPED = "FSRETP"
"""How an escape names each delimiter, in the order in which they are declared."""
LAYOUT = {".br": "\n", ".ce": "\n", ".sp": "\n", ".sk": " ", ".in": "", ".ti": "", ".fi": "", ".nf": ""}
"""The commands of formatted text as plain text; highlighting, `H` and `N`, is dropped."""

# The head of a message or of a batch, where a line begins; looked for by its letters, which are rarer than line ends.
_HEAD = re.compile(
    rb"(?:MSH|FHS|BHS|FTS|BTS)(?![A-Za-z0-9 ])(?<![^\r\n\x0b\x1c\xbf]...)(?:(?<!\xbf...)|(?<=\xef\xbb\xbf...))",
    re.DOTALL,
)
_LINE = re.compile(rb"[^\r\n\x1c]*")
_NAME = re.compile("[A-Z][A-Z0-9]{2}")
_VERBATIM = (1, 2)
_COMMAND = re.compile(r"(\.[a-z]{2})([+-]?[0-9]{1,2})?")


class Hl7Null(Enum):
    """The value `""`, by which a sender asks the receiver to delete its value."""

    NULL = '""'

    def __repr__(self) -> str:
        return '""'

    __str__ = __repr__


HL7_NULL = Hl7Null.NULL
Value = str | Hl7Null


class Notation(NamedTuple):
    """How one message is written: the delimiters that its MSH declares, NEVER for the others, and its character set."""

    field: str
    component: str
    repetition: str
    escape: str
    subcomponent: str
    truncation: str
    codec: str


class Hl7Message(msgspec.Struct, frozen=True):
    """One message: its segments as they were sent, and how to split them."""

    segments: tuple[str, ...]
    """The segments' names, in order."""
    texts: Mapping[str, Sequence[str]]
    """Each name's segments, in order, without their ends."""
    notation: Notation

    @property
    def kind(self) -> str:
        """What the message is: `ORU^R01`, or `ACK`; empty where it does not say."""
        return "^".join(str(value) for path in _KIND for value in values(self, path)[:1]).rstrip("^")


# Reading.


def read(content: bytes) -> Hl7Message:
    """Parse the only message of the content; raises UnreadableContent for none or several."""
    spans = _spans(content)
    if not spans:
        raise UnreadableContent.at("has no message, only the envelope of a batch", content, 0)
    if len(spans) > 1:
        raise UnreadableContent.at(f"has {len(spans)} messages; one is expected", content, spans[1][0])
    return _message(content, *spans[0])


def read_batch(content: bytes) -> list[Hl7Message]:
    """Parse all messages of a file, with or without a batch envelope; raises UnreadableContent."""
    return [_message(content, start, end) for start, end in _spans(content)]


def _spans(content: bytes) -> list[tuple[int, int]]:
    """Where each message begins and ends."""
    starts = [head.start() for head in islice(_HEAD.finditer(content), MAX_MESSAGES + 1)]
    if len(starts) > MAX_MESSAGES:
        raise UnreadableContent.at(f"has more than {MAX_MESSAGES:,} messages", content, starts[-1])
    # Every line end is counted, also those inside text: that is cheap, and real messages are far below the limit.
    if max(content.count(b"\r"), content.count(b"\n")) > MAX_SEGMENTS:
        raise UnreadableContent.at(f"has more than {MAX_SEGMENTS:,} segments", content, 0)
    _check_blank(content, 0, starts[0] if starts else len(content), "does not begin with MSH, FHS or BHS")
    if not starts:
        raise UnreadableContent.at("is empty", content, 0)
    spans = []
    for start, end in zip(
        starts, [*(_end_before_marks(content, start) for start in starts[1:]), len(content)], strict=True
    ):
        if content.startswith(b"MSH", start):
            spans.append((start, end))
        else:
            line = _LINE.match(content, start)
            _check_blank(content, line.end() if line else start, end, "has a segment outside any message")
    return spans


def _end_before_marks(content: bytes, end: int) -> int:
    """The same end, without what belongs to the next message where files or frames were joined."""
    for mark in (BOM, b"\x0b", BOM):
        if content.endswith(mark, 0, end):
            end -= len(mark)
    return end


def _check_blank(content: bytes, start: int, end: int, otherwise: str) -> None:
    rest = content[start:end].lstrip(b" \t\r\n\x0b\x1c" + BOM)
    if rest:
        raise UnreadableContent.at(otherwise, content, end - len(rest))


def _message(content: bytes, start: int, end: int) -> Hl7Message:
    notation = _notation(content, start)
    body = content[start:end].rstrip(b"\r\n\x0b\x1c")
    try:
        text = body.decode(notation.codec)
    except UnicodeDecodeError as problem:
        why = f"is not in its character set, {notation.codec}"
        raise UnreadableContent.at(why, content, start + problem.start) from None
    names, texts, ends = [], dict[str, list[str]](), ("", notation.field)
    for position, line in enumerate(lines := _lines(text, notation.field)):
        segment = line.strip(EDGES)
        name = segment[:3]
        if (name in texts or _NAME.fullmatch(name)) and segment[3:4] in ends:
            names.append(name)
            texts.setdefault(name, []).append(segment)
        elif segment.strip():
            before = "\n".join([*lines[:position], line[: line.index(segment)]])
            why = f"has a line that does not begin with a segment's name and {notation.field!r}"
            raise UnreadableContent.at(why, content, start + len(before.encode(notation.codec)))
    return Hl7Message(segments=tuple(names), texts=texts, notation=notation)


def _lines(text: str, field: str) -> list[str]:
    """The text cut where segments end; every cut takes one character away."""
    if "\n" not in text or text.count("\n") == text.count("\r\n"):
        return text.split("\r")
    if "\r" not in text:
        return text.split("\n")
    # CR is what ends a segment, so LF alone is text of the sender's; unless a segment follows, and ends are mixed.
    return re.split(rf"\r|\n(?=[A-Z][A-Z0-9]{{2}}{re.escape(field)})", text)


def _notation(content: bytes, start: int) -> Notation:
    line = _LINE.match(content, start)
    # Only ASCII matters here; in Latin-1 every byte is one character.
    header = line.group().decode("latin-1") if line else ""
    fields = header.split(header[3:4] or NEVER)
    declared = "".join([header[3:4], *fields[1:2]])
    if not 2 <= len(declared) <= DELIMITERS:
        why = f"declares {len(declared)} delimiters where 2 to {DELIMITERS} may be, as in MSH|^~\\&|"
        raise UnreadableContent.at(why, content, start + 3)
    for position, character in enumerate(declared):
        if character not in string.punctuation or character in declared[:position]:
            why = f"declares {character!r} as a delimiter, which is not punctuation or is already used"
            raise UnreadableContent.at(why, content, start + 3 + position)
    delimiters = declared.ljust(DELIMITERS, NEVER)
    # MSH-1 is the separator itself, so MSH-18 is the seventeenth after the name; its first repetition is in force.
    charset = fields[17].split(delimiters[2], 1)[0] if len(fields) > 17 else ""
    codec = CHARACTER_SETS.get(charset.upper())
    if codec is None:
        why = f"has an unsupported character set, {charset!r} in MSH-18"
        raise UnreadableContent.at(why, content, start + len(header[3].join(fields[:17])) + 1)
    return Notation._make([*delimiters, codec])


# Paths.


class RepetitionPart(msgspec.Struct, frozen=True):
    """A part of a repetition, counted from 1; 0 is the whole."""

    component: int = 0
    subcomponent: int = 0


class FieldPosition(msgspec.Struct, frozen=True):
    """A part of a segment."""

    field: int
    part: RepetitionPart
    which: tuple[int | tuple[RepetitionPart, Value], ...] = ()
    """Which repetitions: the nth, or those with a value at a part; one condition after the other."""


class Hl7Path(msgspec.Struct, frozen=True):
    """The place of values in a message."""

    text: str
    """As its author wrote it."""
    segment: str
    which: tuple[int | tuple[FieldPosition, Value], ...] = ()
    """Which segments: the nth, or those with a value at a place; one condition after the other."""
    place: FieldPosition | None = None
    """None for whole segments."""


_NUMBER = r"[1-9][0-9]{0,3}(?![0-9])"
# Units have brackets of their own: OBX[6.1=mm[Hg]]-5.
_VALUE = r"(?:[^][]|\[[^][]*\])+"
_PATH = re.compile(
    rf"""(?P<segment>[A-Z][A-Z0-9]{{2}})
    (?P<segments>(?:\[{_NUMBER}(?:(?:\.{_NUMBER}){{0,2}}={_VALUE})?\])*)
    (?:-(?P<field>{_NUMBER})
        (?P<repetitions>(?:\[{_NUMBER}(?:(?:\.{_NUMBER})?={_VALUE})?\])*)
        (?P<part>(?:\.{_NUMBER}){{0,2}})
    )?""",
    re.VERBOSE,
)
_CONDITION = re.compile(rf"\[([0-9]+)((?:\.[0-9]+)*)(?:=({_VALUE}))?\]")


def compile_path(text: str) -> Hl7Path:
    """A path as authors write it, `PID-3[5=MR].1`; raises `AuthorError` with what is wrong with it."""
    found = _PATH.match(text)
    if found is None:
        raise _no_path(text, "it begins with a segment's name, three capital letters or digits")
    if rest := text[found.end() :]:
        raise _no_path(
            text, f"{rest!r} cannot follow {found.group()!r}{_hint(rest, within_segment=bool(found['field']))}"
        )
    segments = tuple(
        (FieldPosition(int(field), _part(part)), _condition_value(value)) if value else int(field)
        for field, part, value in _CONDITION.findall(found["segments"])
    )
    if found["field"] is None:
        return Hl7Path(text=text, segment=found["segment"], which=segments)
    repetitions = tuple(
        (_part(f".{component}{rest}"), _condition_value(value)) if value else int(component)
        for component, rest, value in _CONDITION.findall(found["repetitions"])
    )
    place = FieldPosition(field=int(found["field"]), part=_part(found["part"]), which=repetitions)
    if found["segment"] == "MSH" and place.field in _VERBATIM and (repetitions or found["part"]):
        raise _no_path(text, "MSH-1 and MSH-2 are the delimiters themselves and have no parts")
    return Hl7Path(text=text, segment=found["segment"], which=segments, place=place)


def _part(written: str) -> RepetitionPart:
    """Of `.3.1`, or of nothing."""
    return RepetitionPart(*map(int, written.split(".")[1:]))


def _condition_value(written: str) -> Value:
    return HL7_NULL if written == str(HL7_NULL) else written


def _hint(rest: str, *, within_segment: bool) -> str:
    if re.match(r"[-.[]0", rest):
        return ", because everything is counted from 1"
    if rest[0] in "-." and within_segment is (rest[0] == "-"):
        return ", because a hyphen comes before the field and dots inside it"
    return ""


def _no_path(text: str, why: str) -> AuthorError:
    example = "PID-3.1, PID-3[5=MR].1 or OBX[3.1=8480-6]-5"
    return AuthorError(f"{text!r} is not a valid HL7 path: {why}; for example {example}")


def values(message: Hl7Message, path: Hl7Path) -> tuple[Value, ...]:
    """The values at a path, one for each segment and repetition that it selects; empty where all lack it.

    Where one has the place and another ends before it, the other's value is "": senders may leave off what is empty at
    an end, and a result without a status must not go unseen among those that have one.
    """
    notation = message.notation
    segments = message.texts.get(path.segment, ())
    for which in path.which:
        if isinstance(which, int):
            segments = segments[which - 1 : which]
        else:
            place, wanted = which
            segments = [one for one in segments if wanted in _in_segment(one, place, notation)]
    if path.place is None:
        return tuple(segments)
    found = [value for one in segments for value in _in_segment(one, path.place, notation)]
    return () if found.count(None) == len(found) else tuple([value or "" for value in found])


def _in_segment(segment: str, place: FieldPosition, notation: Notation) -> list[Value | None]:
    """The values of a field's repetitions; None for a place beyond an end."""
    position = place.field
    if segment.startswith("MSH"):
        if position in _VERBATIM:
            return [notation.field if position == 1 else segment.split(notation.field, 2)[1]]
        # The first separator of all is a field itself.
        position -= 1
    fields = segment.split(notation.field, position + 1)
    if len(fields) <= position:
        return [] if place.which else [None]
    repetitions = fields[position].split(notation.repetition)
    for which in place.which:
        if isinstance(which, int):
            repetitions = repetitions[which - 1 : which]
        else:
            part, wanted = which
            repetitions = [one for one in repetitions if _in_repetition(one, part, notation) == wanted]
    return [_in_repetition(one, place.part, notation) for one in repetitions]


def _in_repetition(text: str, part: RepetitionPart, notation: Notation) -> Value | None:
    """The value of a part; as it was sent where it has parts of its own, else what it means."""
    if part.component:
        parts = text.split(notation.component, part.component)
        if len(parts) < part.component:
            return None
        text = parts[part.component - 1]
        if part.subcomponent:
            parts = text.split(notation.subcomponent, part.subcomponent)
            if len(parts) < part.subcomponent:
                return None
            text = parts[part.subcomponent - 1]
    if notation.component in text or notation.subcomponent in text:
        return text
    if text == '""':
        return HL7_NULL
    return _plain(text, notation) if notation.escape in text else text


def _plain(text: str, notation: Notation) -> str:
    """The text with its escapes replaced; those that are unknown, or not closed, stay as they are."""
    escape = notation.escape
    parts = text.split(escape)
    # Escape characters come in pairs: every second part is between two of them, and the last may lack its end.
    for position in range(1, len(parts) - 1, 2):
        meant = _meaning(parts[position], notation)
        parts[position] = f"{escape}{parts[position]}{escape}" if meant is None else meant
    if len(parts) % 2 == 0:
        parts[-1] = escape + parts[-1]
    return "".join(parts)


def _meaning(escaped: str, notation: Notation) -> str | None:
    """The character for the name between two escape characters; None where it is unknown."""
    if escaped in ("H", "N"):
        return ""
    if len(escaped) == 1 and escaped in ESCAPED:
        delimiter = notation[ESCAPED.index(escaped)]
        return None if delimiter == NEVER else delimiter
    if escaped[:1] in ("X", "x") and len(escaped) > 1:
        try:
            return bytes.fromhex(escaped[1:]).decode(notation.codec)
        except ValueError:
            return None
    command = _COMMAND.fullmatch(escaped.lower())
    if command is None or command[1] not in LAYOUT:
        return None
    return LAYOUT[command[1]] * int(command[2] or 1)


_KIND = compile_path("MSH-9.1"), compile_path("MSH-9.2")
