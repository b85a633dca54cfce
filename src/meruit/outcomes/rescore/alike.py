"""Stored results that differ only in their id, time, digests and numbers: read once, judged once, written for each.

A result as it is kept is a template with gaps (`judge/result_template.py`). Rescoring needs the content of the template
once for all outcomes that share it, and copies the gaps.
"""

from binascii import hexlify, unhexlify
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from meruit.errors import RecordTampered
from meruit.judge.result_template import (
    FilledGaps,
    ResultTemplate,
    TemplateReader,
    split_result,
    take_numbers,
    write_numbers,
)
from meruit.model.decoding import json_decoder
from meruit.model.record import Record
from meruit.model.verdict import VerificationResult
from meruit.outcomes.rescore.reuse import EvidenceSources
from meruit.outcomes.segment import ResultParts, pack_digests

MAX_READERS = 8
"""Templates that a result is compared with before it is taken apart."""
MAX_ALIKE = 4_096
"""Templates that are remembered; with more, all are forgotten and begin again."""


@dataclass(frozen=True, slots=True, eq=False)
class AlikeResult:
    """What all results of one template say."""

    result: VerificationResult
    """One of them; its id, time, digests and numbers are its own."""
    lacking: int
    """How many numbers each has."""
    places: Mapping[int, int]
    """Which of a result's numbers is the value of a criterion, by the criterion's position."""
    sources: tuple[int, ...] | None
    """For each new criterion the old one whose evidence answers it; None when the work must be measured."""


class StoredResult(Record, frozen=True):
    """A result as it is kept, and what it shares with others."""

    template: ResultTemplate
    parts: ResultParts
    """What fills the template."""
    alike: AlikeResult

    @property
    def written(self) -> bytes:
        """As JSON."""
        return self.parts.fill(self.template)


class FoundResult(NamedTuple):
    """A stored result that fills a known template."""

    alike: AlikeResult
    numbers: bytes
    """As JSON, with commas between them."""
    digests: tuple[bytes, bytes, bytes, bytes]
    """Of input, output and metadata, in hex; then all as bytes, one after the other."""


class AlikeResults:
    """The templates of one set of old criteria."""

    def __init__(self, sources: EvidenceSources | None) -> None:
        """Without sources, no evidence answers the new criteria."""
        self.may_answer = sources is not None and sources.possible
        """Whether evidence may answer them."""
        self._sources = sources
        self._known: dict[ResultTemplate, AlikeResult | None] = {}
        self._readers: list[tuple[TemplateReader, AlikeResult]] = []
        """Of the templates that were met last, the latest first."""

    def read(self, written: bytes) -> "StoredResult | VerificationResult":
        """A stored result; decoded where it has no template. Raises RecordTampered."""
        found = split_result(written)
        digests = None if found is None else pack_digests(found[1])
        if found is None or digests is None:
            return _decode(written)
        template, gaps = found
        template, numbers = take_numbers(template)
        return self.fit(template, ResultParts(gaps.contract_id, gaps.verified_at, digests, numbers))

    def find(self, written: bytes, contract_id: str) -> FoundResult | None:
        """A stored result by the templates that were met last; None where it fills none of them."""
        contract = msgspec.json.encode(contract_id)[1:-1]
        for place, (reader, alike) in enumerate(self._readers):
            found = reader.read(written, contract)
            if found is not None:
                if place:
                    self._readers.insert(0, self._readers.pop(place))
                return _check_digests(alike, found)
        return None

    def fit(self, template: ResultTemplate, parts: ResultParts) -> "StoredResult | VerificationResult":
        """The same for a result whose template is known."""
        if template in self._known:
            alike = self._known[template]
        else:
            if len(self._known) >= MAX_ALIKE:
                self._known.clear()
            alike = self._known[template] = self._read_alike(template, parts)
            if alike is not None:
                self._readers = [(TemplateReader(template), alike), *self._readers[: MAX_READERS - 1]]
        return _decode(parts.fill(template)) if alike is None else StoredResult(template, parts, alike)

    def _read_alike(self, template: ResultTemplate, parts: ResultParts) -> AlikeResult | None:
        """What the results of a template say; None where their numbers are not the values of criteria."""
        result = _decode(parts.fill(template))
        places = _find_places(template, parts)
        return None if places is None else AlikeResult(result, len(parts.numbers), places, self._find_sources(result))

    def sources_of(self, stored: "StoredResult | VerificationResult") -> tuple[int, ...] | None:
        """For each new criterion the old one whose evidence answers it; None when the work must be measured."""
        return self._find_sources(stored) if isinstance(stored, VerificationResult) else stored.alike.sources

    def _find_sources(self, result: VerificationResult) -> tuple[int, ...] | None:
        return None if self._sources is None else self._sources.of(result)


def _check_digests(alike: AlikeResult, found: FilledGaps) -> FoundResult | None:
    numbers, digests = found
    try:
        together = unhexlify(digests)
    except ValueError:
        return None
    # In capitals, they would be written otherwise again.
    if hexlify(together) != digests:
        return None
    return FoundResult(alike, numbers, (digests[:64], digests[64:128], digests[128:], together))


def read_numbers(said: bytes) -> list[int | float] | None:
    """Numbers as a result says them, with commas between them; None where they would be written otherwise again."""
    if not said:
        return []
    try:
        numbers = _NUMBERS.decode(b"[%b]" % said)
    except msgspec.DecodeError:
        return None
    return numbers if b",".join(write_numbers(numbers)) == said else None


_NUMBERS = json_decoder(list[int | float])


def _decode(written: bytes) -> VerificationResult:
    try:
        return VerificationResult.from_json(written)
    except msgspec.DecodeError:
        raise RecordTampered("the result of an outcome cannot be read") from None


_MARKS = 8_123_456_789_012_345_000
"""Numbers from here on stand for those that a template lacks: no result holds them but by a rare chance."""


def _find_places(template: ResultTemplate, parts: ResultParts) -> Mapping[int, int] | None:
    """Which number of a result is the value of a criterion; None where one of them is anything else."""
    count = len(parts.numbers)
    if not count:
        return {}
    marks = {_MARKS + number: number for number in range(count)}
    marked = _decode(msgspec.structs.replace(parts, numbers=[*marks]).fill(template))
    places: dict[int, int] = {}
    for position, judged in enumerate(marked.criterion_results):
        place = marks.get(judged.value) if judged.value.__class__ is int else None
        if place is not None:
            places[position] = place
            msgspec.structs.force_setattr(judged, "value", None)
    values = {name: value for name, value in marked.metrics.items() if value.__class__ is not int or value not in marks}
    left = msgspec.structs.replace(marked, metrics=values).to_json()
    return None if str(_MARKS)[:-3].encode() in left else places
