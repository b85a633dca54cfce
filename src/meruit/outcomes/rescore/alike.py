"""Stored results that differ only in their id, time and digests: read once, judged once, written for each outcome.

A result as it is kept is a template with gaps (`judge/result_template.py`). Rescoring needs the content of the template
once for all outcomes that share it, and copies the gaps.
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from meruit.errors import RecordTampered
from meruit.judge.result_template import ResultTemplate, split_result
from meruit.model.record import Record
from meruit.model.verdict import VerificationResult
from meruit.outcomes.segment import ResultParts, pack_digests

MAX_ALIKE = 4_096
"""Templates that are remembered; with more, all are forgotten and begin again."""


@dataclass(frozen=True, slots=True, eq=False)
class AlikeResult:
    """What all results of one template say."""

    result: VerificationResult
    """One of them; its id, time and digests are its own."""
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


class AlikeResults:
    """The templates of one set of old criteria."""

    def __init__(self, find_sources: Callable[[VerificationResult], tuple[int, ...] | None]) -> None:
        self._find_sources = find_sources
        self._known: dict[ResultTemplate, AlikeResult] = {}

    def read(self, written: bytes) -> "StoredResult | VerificationResult":
        """A stored result; decoded where it has no template. Raises RecordTampered."""
        found = split_result(written)
        digests = None if found is None else pack_digests(found[1])
        if found is None or digests is None:
            try:
                return VerificationResult.from_json(written)
            except msgspec.DecodeError:
                raise RecordTampered("the result of an outcome cannot be read") from None
        template, gaps = found
        return self.fit(template, ResultParts(gaps.contract_id, gaps.verified_at, digests))

    def fit(self, template: ResultTemplate, parts: ResultParts) -> StoredResult:
        """The same for a result whose template is known."""
        alike = self._known.get(template)
        if alike is None:
            result = VerificationResult.from_json(parts.fill(template))
            if len(self._known) >= MAX_ALIKE:
                self._known.clear()
            alike = self._known[template] = AlikeResult(result, self._find_sources(result))
        return StoredResult(template, parts, alike)

    def sources_of(self, stored: "StoredResult | VerificationResult") -> tuple[int, ...] | None:
        """For each new criterion the old one whose evidence answers it; None when the work must be measured."""
        return self._find_sources(stored) if isinstance(stored, VerificationResult) else stored.alike.sources
