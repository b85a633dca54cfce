"""A result's JSON with five gaps: what differs between works that were judged alike. Pure.

Results of bulk work repeat each other apart from their id, their time and three digests. So a result is written once
for each distinct evidence, and the gaps are filled for each work. Where works differ in their numbers only, the numbers
are gaps too: each is marked by its number between two NUL bytes, which no JSON contains.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from meruit.model.record import Record
from meruit.model.verdict import VerificationResult

_ID, _SUCCESS, _AT = b'{"contract_id":"', b'","success":', b',"verified_at":'
_OPEN = _ID[:-1]
_INPUT, _OUTPUT, _METADATA = b',"input_digest":', b',"output_digest":', b',"metadata_digest":'
_HASH = rb'"[0-9a-f]{64}"|null'
_DIGESTS = re.compile(rb"%b(%b)%b(%b)%b(%b),\"versions\":\{" % (_INPUT, _HASH, _OUTPUT, _HASH, _METADATA, _HASH))
MARK = b"\0"
"""At both ends of the number of a value that a template lacks."""
_MOMENT = re.compile(rb'%b("[0-9T:.+Z-]{1,40}"),"verdict":"' % _AT)
_HEX_DIGITS = 64
"""Of a digest."""
_NAMED = rb'("(?:[^"\\]|\\.)*")'
_NUMBER = rb"(-?[0-9]{1,18}(?:\.[0-9]{1,18})?(?:e[+-]?[0-9]{1,3})?)(?=[,}])"
_VALUE = re.compile(rb'\{"metric":%b,"value":%b' % (_NAMED, _NUMBER))
_METRIC = re.compile(rb"%b:%b" % (_NAMED, _NUMBER))
_CRITERIA = b'},"criterion_results":['


class ResultGaps(Record, frozen=True):
    """What a template lacks, each written as JSON."""

    contract_id: bytes
    verified_at: bytes
    input: bytes
    output: bytes
    metadata: bytes


class ResultTemplate(Record, frozen=True):
    """The JSON of a result without its gaps."""

    judged: bytes
    """From `success` to the time; values of criteria may be missing in it."""
    summary: bytes
    """From the verdict to the digests."""
    end: bytes
    """From the versions on."""

    def fill(self, gaps: ResultGaps, values: Sequence[bytes] = ()) -> bytes:
        """The whole result, to the byte as `to_json` writes it; `values` are those that it lacks, as JSON.

        Raises ValueError for a template that lacks other values than these.
        """
        whole = self if MARK not in self.judged else self.with_values(values)
        return whole.fill_in(gaps.contract_id, gaps.verified_at, gaps.input, gaps.output, gaps.metadata)

    def with_values(self, values: Sequence[bytes]) -> "ResultTemplate":
        """The template of results with these values, each as JSON; raises ValueError where it lacks others."""
        pieces, places = split_marks(self.judged)
        if any(not 0 <= place < len(values) for place in places):
            raise ValueError(f"a template lacks more than {len(values)} values")
        filled = [*pieces[:1], *(part for at, place in enumerate(places) for part in (values[place], pieces[at + 1]))]
        return ResultTemplate(judged=b"".join(filled), summary=self.summary, end=self.end)

    def parts(self) -> tuple[list[bytes], tuple[int, ...]]:
        """What a written result is joined from, empty at each gap; and the number of the value at each gap of one.

        The gaps are: the id, without quotes; the values; the time; three digests, without quotes.
        """
        pieces, places = split_marks(self.judged)
        parts = [_ID, b"", b'"' + pieces[0]]
        for piece in pieces[1:]:
            parts += (b"", piece)
        parts += (b"", self.summary + b'"', b"", b'"%b"' % _OUTPUT, b"", b'"%b"' % _METADATA, b"", b'"' + self.end)
        return parts, tuple(places)

    def lacking(self) -> int:
        """How many values it lacks."""
        return max(split_marks(self.judged)[1], default=-1) + 1

    # By position: it is called for every work, and keywords would take as long as the rest.
    def fill_in(self, contract_id: bytes, verified_at: bytes, given: bytes, made: bytes, facts: bytes) -> bytes:
        """The same from the parts."""
        return b"".join(
            (
                *(_OPEN, contract_id, self.judged, verified_at, self.summary),
                *(given, _OUTPUT, made, _METADATA, facts, self.end),
            )
        )


class FilledGaps(NamedTuple):
    """What one result has in the gaps of a template, without its id and time."""

    numbers: bytes
    """As JSON, with commas between them."""
    digests: bytes
    """Of input, output and metadata, in hex, one after the other."""


class TemplateReader:
    """Reads results that fill one template, by a few searches for the pieces between the gaps."""

    def __init__(self, template: ResultTemplate) -> None:
        parts, self._places = template.parts()
        self._start, self._first, *self._others = parts[::2]
        self._lacking = template.lacking()

    def read(self, written: bytes, contract_id: bytes) -> FilledGaps | None:
        """The gaps of the result of this contract; None where it does not fill the template.

        The id is JSON without quotes. A number may be any text, which the caller reads.
        """
        at = len(self._start) + len(contract_id)
        if not written.startswith(self._start + contract_id) or not written.startswith(self._first, at):
            return None
        at += len(self._first)
        gaps: list[bytes] = []
        for literal in self._others:
            end = written.find(literal, at)
            if end < 0:
                return None
            gaps.append(written[at:end])
            at = end + len(literal)
        *values, moment, given, made, facts = gaps
        if at != len(written) or moment.count(b'"') != 2 or {len(given), len(made), len(facts)} != {_HEX_DIGITS}:
            return None
        numbers = [b""] * self._lacking
        for place, value in zip(self._places, values, strict=True):
            if numbers[place] not in (b"", value) or b"," in value:
                return None
            numbers[place] = value
        return FilledGaps(b",".join(numbers), given + made + facts)


def mark_value(number: int) -> bytes:
    """What stands for a value that a template lacks."""
    return b"%b%d%b" % (MARK, number, MARK)


def split_marks(judged: bytes) -> tuple[list[bytes], list[int]]:
    """The pieces between the marks of a template, and the number of the value at each mark."""
    parts = judged.split(MARK)
    return parts[::2], [int(number) for number in parts[1::2]]


def split_result(written: bytes) -> tuple[ResultTemplate, ResultGaps] | None:
    """The template and the gaps of a result; None for anything that `to_json` does not write.

    A quote inside a text is escaped, so that no text can look like a key. From the end, the digests and the time come
    first of all keys of their names: what follows them holds texts or objects under chosen keys, and never these forms.
    """
    own = written.find(_SUCCESS) + 1
    at = written.rfind(_INPUT)
    digests = _DIGESTS.match(written, at) if at > 0 else None
    if digests is None:
        # A metric may be called input_digest, and stands among the versions then.
        at = written.rfind(_INPUT, 0, max(at, 0))
        digests = _DIGESTS.match(written, at) if at > 0 else None
    moment_at = written.rfind(_AT, 0, at)
    moment = _MOMENT.match(written, moment_at) if moment_at > 0 else None
    if digests is None or moment is None or not written.startswith(_ID) or not 0 < own < moment_at:
        return None
    start, end = moment.span(1)
    template = ResultTemplate(
        judged=written[own:start], summary=written[end : digests.start(1)], end=written[digests.end(3) :]
    )
    return template, ResultGaps(written[len(_ID) - 1 : own], written[start:end], *digests.groups())


def template_of(result: VerificationResult) -> ResultTemplate | None:
    """The template of a result."""
    found = split_result(result.to_json())
    return None if found is None else found[0]


def take_numbers(template: ResultTemplate) -> tuple[ResultTemplate, Sequence[float]]:
    """The template without the numbers of its criteria, and these numbers; `write_numbers` writes them as they were.

    What looks like such a number inside of something else is taken as well: it is put back all the same.
    """
    judged = template.judged
    start = judged.find(_CRITERIA)
    if MARK in judged or start < 0:
        return template, ()
    # Behind the bracket of the metrics, which ends the last of their numbers.
    start += 1
    written: list[bytes] = []
    places: dict[bytes, int] = {}
    """Of a metric's first number, and of a number where a metric is called otherwise."""
    pieces: list[bytes] = []
    end = start
    for found in _VALUE.finditer(judged, start):
        name, number = found.groups()
        place = places.setdefault(name, len(written))
        if place == len(written) or written[place] != number:
            place = len(written)
            written.append(number)
        places.setdefault(number, place)
        pieces += (judged[end : found.start(2)], mark_value(place))
        end = found.end()

    def mark_metric(found: re.Match[bytes]) -> bytes:
        name, number = found.groups()
        place = places.get(name)
        if place is None or written[place] != number:
            place = places.get(number)
        return found[0] if place is None else b"%b:%b" % (name, mark_value(place))

    try:
        numbers = msgspec.json.decode(b"[%b]" % b",".join(written))
    except msgspec.DecodeError:
        return template, ()
    if not written or write_numbers(numbers) != written:
        return template, ()
    metrics = _METRIC.sub(mark_metric, judged[:start])
    return ResultTemplate(b"".join((metrics, *pieces, judged[end:])), template.summary, template.end), numbers


def write_numbers(numbers: Sequence[float]) -> list[bytes]:
    """Numbers as results hold them."""
    return msgspec.json.encode(numbers)[1:-1].split(b",") if numbers else []


def encode_text(text: str | None) -> bytes:
    """A text, or None, as JSON."""
    return msgspec.json.encode(text)


def encode_time(moment: datetime) -> bytes:
    """A time as results hold it."""
    return msgspec.json.encode(moment)
