"""X12 implementation guides, as far as the optional library pyx12 has maps."""

from functools import lru_cache
from typing import Any

import msgspec

from meruit.checks.formats.x12 import Segment, TransactionSet, X12Delimiters
from meruit.errors import AuthorError

MAX_SEGMENTS = 20_000
"""The most segments of one transaction set that are validated, at about a tenth of a millisecond each."""
MAX_COMPLAINTS = 50
"""The most that are listed."""


class X12ImplementationGuide(msgspec.Struct, frozen=True):
    """One implementation guide."""

    version: str
    """As `005010X231A1`."""
    interchange: str
    """ISA12 of those who follow it."""
    group: str
    """GS01."""
    purpose: str | None
    """BHT02, where one version has a guide for requests and one for responses."""
    file: str

    @property
    def set_id(self) -> str:
        """The transaction set, as `999`."""
        return self.file[:3]


def guides_of(set_id: str, version: str) -> list[X12ImplementationGuide]:
    """The guides of a transaction set in one version; raises AuthorError where there is none."""
    known = _load_guides()
    found = [one for one in known if (one.set_id, one.version) == (set_id, version)]
    if not found:
        listed = ", ".join(sorted({f"{one.set_id} in {one.version}" for one in known if one.interchange == "00501"}))
        raise AuthorError(f"valid: pyx12 has no guide for {set_id} in {version}; it has {listed}, and older ones")
    return found


def guide_violations(transaction: TransactionSet, guides: list[X12ImplementationGuide]) -> list[str]:
    """The violations of a transaction set against its guide; empty where it is valid."""
    from pyx12.map_walker import walk_tree

    guide = _select_guide(transaction, guides)
    violations = [
        f"{name} is {segment.get(element)!r}, and the guide says {wanted}"
        for name, segment, element, wanted in (
            ("ISA12", transaction.isa, 12, guide.interchange),
            ("GS01", transaction.gs, 1, guide.group),
        )
        if segment.get(element) != wanted
    ]
    node, walker = _map(guide.file).getnodebypath("/ISA_LOOP/GS_LOOP/GS"), walk_tree()
    walker.forceWalkCounterToLoopStart("/ISA_LOOP", "/ISA_LOOP/ISA")
    walker.forceWalkCounterToLoopStart("/ISA_LOOP/GS_LOOP", "/ISA_LOOP/GS_LOOP/GS")
    for number, segment in enumerate(transaction.segments[:MAX_SEGMENTS], 1):
        parsed = _segment(segment, transaction.marks)
        found, _, _, faults = walker.walk_errors(node, parsed, number, number, None)
        if found is not None:
            node = found
            # ST and SE are the envelope's.
            faults = [*faults, *(() if segment.name in ("ST", "SE") else found.is_valid_errors(parsed)[1])]
        violations += [f"segment {segment.number}: {fault.err_str}" for fault in faults]
        if len(violations) >= MAX_COMPLAINTS:
            return violations[:MAX_COMPLAINTS]
    if len(transaction.segments) > MAX_SEGMENTS:
        violations.append(f"it has more than {MAX_SEGMENTS:,} segments; the others were not validated")
    return violations


def _select_guide(transaction: TransactionSet, guides: list[X12ImplementationGuide]) -> X12ImplementationGuide:
    purposes = {one.get(2) for one in transaction.segments[:2] if one.name == "BHT"}
    return next((one for one in guides if one.purpose in purposes), guides[0])


# Any, below: pyx12 comes without types.


def _segment(segment: Segment, marks: X12Delimiters) -> Any:
    from pyx12.segment import Segment as Parsed

    return Parsed(segment.text, marks.terminator, marks.element, marks.component, marks.repetition)


@lru_cache(maxsize=1)
def _load_guides() -> list[X12ImplementationGuide]:
    try:
        from pyx12.map_index import map_index
    except ImportError:
        raise AuthorError('valid needs an optional library; install it with: pip install "meruit[checks]"') from None
    entries = [one for one in map_index().maps if one["vriic"]]
    return [
        X12ImplementationGuide(
            version=one["vriic"], interchange=one["icvn"], group=one["fic"], purpose=one["tspc"], file=one["map_file"]
        )
        for one in entries
    ]


@lru_cache(maxsize=16)
def _map(file: str) -> Any:
    """A guide's map, read once: a tenth of a second each. The walker keeps the counts, not the map."""
    from pyx12.map_if import load_map_file
    from pyx12.params import ParamsBase

    return load_map_file(file, ParamsBase())
