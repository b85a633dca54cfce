"""A segment: up to 512 cases or versions of verdicts behind one entry of the log, each of them provable alone."""

from collections.abc import Sequence

import msgspec

from meruit.log.merkle import Frontier, inclusion_proof, is_included, leaf_hash
from meruit.model.decoding import decode_json
from meruit.model.record import Record

MAX_CASES = 512
"""Cases of one segment."""
# Sorted keys, ASCII names, no floats: these bytes are RFC 8785's canonical form.
_WRITER = msgspec.json.Encoder(order="sorted")


class CaseEntry(Record, frozen=True, forbid_unknown_fields=True):
    """What a segment says of one case: its work and result as salted hashes, and how it was judged."""

    case: str
    repeat: int
    outcome: str
    version: int
    input: str
    output: str
    metadata: str
    result: str
    verdict: str
    success: bool
    score: str
    """As a fraction."""
    bonus_micros: int = 0
    penalty_micros: int = 0


def case_bytes(entry: CaseEntry) -> bytes:
    """The bytes that are hashed into the segment."""
    return _WRITER.encode(entry)


# By position, and assembled by hand: it is called for every case, and the encoder would need an entry first.
def write_case(  # noqa: PLR0913 - the fields of an entry
    case: bytes,
    repeat: int,
    outcome: str,
    version: int,
    commitments: tuple[str, str, str, str],
    verdict: str,
    success: bytes,
    score: str,
    bonus_micros: int,
    penalty_micros: int,
) -> bytes:
    """The same bytes from the fields; `case` and `success` are written as JSON, the texts need no escapes."""
    given, made, facts, result = commitments
    return (
        f'{{"bonus_micros":{bonus_micros},"case":{case.decode()},"input":"{given}","metadata":"{facts}",'
        f'"outcome":"{outcome}","output":"{made}","penalty_micros":{penalty_micros},"repeat":{repeat},'
        f'"result":"{result}","score":"{score}","success":{success.decode()},"verdict":"{verdict}","version":{version}}}'
    ).encode()


def read_case(data: bytes) -> CaseEntry:
    """Read back what `case_bytes` wrote; raises `msgspec.DecodeError` on anything else."""
    return decode_json(data, CaseEntry)


# What a version does not have is left out.
class VersionEntry(Record, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a segment says of one version of an outcome's verdict; the rest is said by the segment's own entry."""

    outcome: str
    contract: str
    version: int
    result: str
    """The whole result, as a salted hash."""
    verdict: str
    success: bool
    score: str
    """As a fraction."""
    bonus_micros: int
    penalty_micros: int
    evidence_index: int | None = None
    """Where the log holds what was judged; None for a first version, which holds it itself."""
    input: str = ""
    """Of a first version, as salted hashes, like the two below."""
    output: str = ""
    metadata: str = ""


def version_bytes(entry: VersionEntry) -> bytes:
    """The bytes that are hashed into the segment."""
    return _WRITER.encode(entry)


# A form instead of a function: a rescore fills it for every outcome, and most outcomes share a few of them.
def version_form(verdict: str, success: bool, score: str, bonus_micros: int, penalty_micros: int) -> bytes:  # noqa: FBT001 - a field
    """The same bytes of a version after the first, to be filled by % with VersionGaps."""
    return (
        f'{{"bonus_micros":{bonus_micros},"contract":%b,"evidence_index":%d,"outcome":"%b",'
        f'"penalty_micros":{penalty_micros},"result":"%b","score":"{score}",'
        f'"success":{"true" if success else "false"},"verdict":"{verdict}","version":%d}}'
    ).encode()


VersionGaps = tuple[bytes, int, bytes, bytes, int]
"""What fills a form: the contract as JSON, the index of the evidence, outcome, result, version."""


def read_version(data: bytes) -> VersionEntry:
    """Read back what `version_bytes` wrote; raises `msgspec.DecodeError` on anything else."""
    return decode_json(data, VersionEntry)


def segment_root(cases: Sequence[bytes]) -> bytes:
    """The root of the tree over the cases, in their order."""
    return Frontier(0, ()).extend([leaf_hash(case) for case in cases]).root()


def case_proof(index: int, cases: Sequence[bytes]) -> list[bytes]:
    """What shows that a segment holds the case at an index."""
    hashes = [leaf_hash(case) for case in cases]

    def subtree(start: int, level: int) -> bytes:
        return Frontier(0, ()).extend(hashes[start : start + (1 << level)]).root()

    return inclusion_proof(index, len(hashes), subtree)


def is_in_segment(case: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """Whether the proof leads from a case to the root that the log holds."""
    return is_included(leaf_hash(case), index, size, proof, root)


def root_of(written: str) -> bytes:
    """The bytes of a root from its hex; empty for what is not written as we write one."""
    try:
        root = bytes.fromhex(written)
    except ValueError:
        return b""
    return root if root.hex() == written else b""
