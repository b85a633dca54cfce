"""An outcome packed for a stranger: the files of a bundle, and the steps in which they are checked."""

import re
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from hashlib import sha256
from io import BytesIO
from typing import Any, TypeVar

import msgspec

from meruit.errors import AuditStep, BundleFlaw
from meruit.log.entries import PARTS, VerdictEntry, entry_bytes
from meruit.log.statement import test_result
from meruit.model.record import Record
from meruit.model.verdict import Status, Verdict, VerificationResult

FORMAT = "meruit-bundle/1"
MAX_BUNDLE_BYTES = 128 * 1024 * 1024
MAX_FILES = 5_000
MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_CRITERIA_BYTES = 5_000_000
"""Of one set: as long as a criteria file may be."""
MAX_UNPACKED_BYTES = 256 * 1024 * 1024

MANIFEST, KEY, CHECKPOINT, FIRST_CHECKPOINT = "manifest.json", "key.txt", "checkpoint.txt", "first-checkpoint.txt"
CONSISTENCY, ENTRIES, SALTS, STATEMENT = "consistency.json", "entries.json", "salts.json", "statement.dsse.json"
CONTRACT = "contract.json"
"""Only where an agent had a contract on the work."""
USAGE = "usage.json"
"""Only where the contract paid for tokens."""
CASE = "case.json"
"""Only for a case of an evaluation."""
VERSIONS = "versions.json"
"""Only where versions of the verdict were recorded in segments."""
LABELS = "labels.json"
"""Only for a case that people labelled."""
ALWAYS = frozenset({MANIFEST, KEY, CHECKPOINT, FIRST_CHECKPOINT, CONSISTENCY, ENTRIES, SALTS, STATEMENT})
_NAMED = ALWAYS | {CONTRACT, USAGE, CASE, VERSIONS, LABELS}
_PIECE = re.compile(
    r"(work)/(input|output|metadata)\.json|(criteria)/([0-9a-f]{64})\.json|(verdicts)/([1-9][0-9]{0,8})\.json"
)
_FOLDERS = frozenset({"work/", "criteria/", "verdicts/"})
"""What other programs than ours add to a zip when they pack a bundle again."""
_NO_MOMENT = (1980, 1, 1, 0, 0, 0)
"""The earliest that a zip can say: equal bundles give equal bytes."""
_LISTED = b"PK\x01\x02"
"""How a zip begins each line of its list of files."""
_LISTED_BYTES = 46
"""Of such a line, without the file's name and what programs add."""
_BEFORE = struct.Struct("<4s5H3L2H")
"""What a zip writes before each file, besides its name."""
_AFTER = struct.Struct("<4s3L")
"""What it writes after one whose sizes were not known before."""
_END = struct.Struct("<4s4H2LH")
"""What it ends with."""
_ENCRYPTED = 0x1
_SIZES_AFTER = 0x8


class BundleManifest(Record, frozen=True, forbid_unknown_fields=True):
    """What the bundle is about, and what is in it."""

    format: str
    outcome: str
    versions: list[int]
    files: list[str]
    """All but this one, sorted."""


class LoggedEntry(Record, frozen=True, forbid_unknown_fields=True):
    """An entry of the log, and the proof that it is one."""

    index: int
    body: bytes
    proof: list[bytes]
    """RFC 6962, against the checkpoint of the bundle."""


class Entries(Record, frozen=True, forbid_unknown_fields=True):
    """Every entry that the outcome's story needs, by index."""

    entries: list[LoggedEntry]


class ConsistencyProof(Record, frozen=True, forbid_unknown_fields=True):
    """That the log of the checkpoint continues that of the first checkpoint."""

    proof: list[bytes]


class Salts(Record, frozen=True, forbid_unknown_fields=True):
    """In hex; None or absent where the part was erased."""

    input: str | None
    output: str | None
    metadata: str | None
    results: dict[str, str]
    """By version."""

    def of_work(self) -> dict[str, str]:
        """By part, those that are left."""
        salts = {"input": self.input, "output": self.output, "metadata": self.metadata}
        return {part: salt for part, salt in salts.items() if salt is not None}


class _ExportSignature(Record, frozen=True, forbid_unknown_fields=True):
    keyid: str
    sig: bytes


class ExportEnvelope(Record, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The signed statement as an export writes it; DSSE allows more, which no signature would cover."""

    payload: bytes
    payload_type: str
    signatures: list[_ExportSignature]


class SaltedContent(Record, frozen=True, forbid_unknown_fields=True):
    """A piece, and the salt that its commitment was made with, in hex."""

    salt: str
    body: bytes


class ContractFile(Record, frozen=True, forbid_unknown_fields=True):
    """What a contract was paid by, and on what grounds."""

    terms: bytes
    """In canonical form."""
    governance: dict[str, SaltedContent]
    """By version of the verdict: what was known, and the flags; absent where erased."""
    bills: dict[str, bytes]
    """By number of the settlement."""
    work: bytes
    """As it is kept, in canonical form: what was planted in it, too."""
    input_salt: str | None = None
    """Of what the work says of its input, in hex; None where the input was erased."""


class RunProof(Record, frozen=True, forbid_unknown_fields=True):
    """A run whose tokens were paid, and the observations of its provider's count that the log commits to."""

    salt: str
    """In hex."""
    run: bytes
    observations: list[bytes]
    """In the order in which they were kept."""


class UsageFile(Record, frozen=True, forbid_unknown_fields=True):
    """What the tokens that a contract paid for rest on."""

    runs: dict[str, RunProof]
    """By the run's id."""


class CaseFile(Record, frozen=True, forbid_unknown_fields=True):
    """A case of an evaluation, or a version of a verdict, and the proof that its segment holds it."""

    entry: bytes
    """What the segment says of it."""
    place: int
    """In the segment, from 0."""
    proof: list[bytes]
    """RFC 6962, against the root that the segment's entry commits to."""


class VersionsFile(Record, frozen=True, forbid_unknown_fields=True):
    """Versions of the verdict that segments hold, each with its proof."""

    versions: dict[str, CaseFile]
    """By the index of the segment's entry in the log."""


class LabelProof(Record, frozen=True, forbid_unknown_fields=True):
    """What a person said of the case; who and when is in the entry of the log."""

    salt: str
    """In hex."""
    choice: str
    note: str
    """The salted hash of what was written beside it; the note itself is in no bundle."""


class LabelsFile(Record, frozen=True, forbid_unknown_fields=True):
    """What people said of the case."""

    labels: dict[str, LabelProof]
    """By the index of the label's entry in the log."""


class CaseReceipt(Record, frozen=True):
    """What shows later that the log had a case or a version: its path in the segment, and the segment's path."""

    format: str
    outcome: str
    case: CaseFile
    index: int
    """Of the segment's entry in the log."""
    entry: bytes
    proof: list[bytes]
    checkpoint: str
    vkey: str


class Receipt(Record, frozen=True):
    """What shows later that a verdict was in the log: for readers who rely on it."""

    format: str
    outcome: str
    version: int
    index: int
    entry: bytes
    proof: list[bytes]
    checkpoint: str
    vkey: str


class Bundle(msgspec.Struct, frozen=True):
    """The content of a bundle, read and not yet verified."""

    manifest: BundleManifest
    key: str
    checkpoint: str
    first_checkpoint: str
    consistency: ConsistencyProof
    entries: list[LoggedEntry]
    salts: Salts
    criteria: dict[str, bytes]
    """By digest."""
    work: dict[str, bytes]
    """By part."""
    results: dict[int, bytes]
    """By version."""
    statement: bytes
    contract: ContractFile | None = None
    """None for work without a contract."""
    usage: UsageFile | None = None
    """None where no tokens were paid."""
    case: CaseFile | None = None
    """None for an outcome that is not a case of an evaluation."""
    labels: LabelsFile | None = None
    """None where the case has no label."""
    versions: VersionsFile | None = None
    """None where each version of the verdict has an entry of its own."""


# What other bundles do not say is left out of their statements, so that they are to the byte what they always were.
class Annotations(Record, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the signed statement says about the bundle, so that its end cannot be cut off."""

    outcome: str
    version: int
    contract: str
    contract_seq: int
    """The contract's newest entry."""
    log_size: int
    first_log_size: int
    """When the criteria of version 1 were first signed for."""
    usage: dict[str, int] = msgspec.field(default_factory=dict)
    """The number of the newest entry of each run whose tokens were paid."""
    labels: int = 0
    """How many labels the log has of the case."""


def pack(bundle: Bundle) -> bytes:
    """The bundle as one file, its manifest's list of files made here; raises BundleFlaw where it is too large."""
    files = _files(bundle)
    _refuse_large({name: len(content) for name, content in files.items()})
    files[MANIFEST] = msgspec.structs.replace(bundle.manifest, files=sorted(files)).to_json()
    return pack_files(files)


def pack_files(files: Mapping[str, bytes]) -> bytes:
    """Files as a zip; equal files give equal bytes."""
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as opened:
        for name in sorted(files):
            info = zipfile.ZipInfo(name, _NO_MOMENT)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system, info.external_attr = 3, 0o644 << 16
            opened.writestr(info, files[name])
    return packed.getvalue()


def unpack(data: bytes) -> dict[str, bytes]:
    """The files of a zip; raises BundleFlaw for anything that a bundle does not hold, before much of it is unpacked."""
    if len(data) > MAX_BUNDLE_BYTES:
        raise BundleFlaw(AuditStep.BUNDLE, f"it is longer than {MAX_BUNDLE_BYTES} bytes")
    # Counted before the list is read: millions of empty files take little room in a zip and much in memory.
    if data.count(_LISTED) > 2 * MAX_FILES:
        raise BundleFlaw(AuditStep.BUNDLE, f"it holds more than {MAX_FILES} files")
    try:
        with zipfile.ZipFile(BytesIO(data)) as opened:
            infos = sorted(opened.infolist(), key=lambda info: info.header_offset)
            _refuse_odd(infos)
            packed = _locate_files(data, infos, opened.start_dir)
        files = {info.filename: _content(info, data[packed[info.filename]]) for info in infos}
        return {name: content for name, content in files.items() if name not in _FOLDERS}
    except BundleFlaw:
        raise
    except Exception as problem:  # noqa: BLE001 - what a damaged zip makes its reader raise is written nowhere
        raise BundleFlaw(AuditStep.BUNDLE, f"it is not a readable zip file: {problem}") from None


def read(files: Mapping[str, bytes]) -> Bundle:
    """Read a bundle; raises BundleFlaw unless its files are those that the manifest lists, each in its form."""
    missing = sorted(ALWAYS - files.keys())
    if missing:
        raise BundleFlaw(AuditStep.BUNDLE, f"{missing[0]} is missing")
    manifest = _record(BundleManifest, MANIFEST, files)
    if manifest.format != FORMAT:
        raise BundleFlaw(AuditStep.BUNDLE, f"its format is {short(manifest.format)}; this version reads {FORMAT}")
    if manifest.files != sorted(files.keys() - {MANIFEST}):
        raise BundleFlaw(AuditStep.BUNDLE, f"{MANIFEST} lists other files than there are")
    pieces: dict[str, dict[str, bytes]] = {"work": {}, "criteria": {}, "verdicts": {}}
    for name in files.keys() - _NAMED:
        folder, piece = _split_path(name)
        pieces[folder][piece] = files[name]
    _record(ExportEnvelope, STATEMENT, files)
    return Bundle(
        manifest=manifest,
        key=_text(KEY, files),
        checkpoint=_text(CHECKPOINT, files),
        first_checkpoint=_text(FIRST_CHECKPOINT, files),
        consistency=_record(ConsistencyProof, CONSISTENCY, files),
        entries=_record(Entries, ENTRIES, files).entries,
        salts=_record(Salts, SALTS, files),
        criteria=pieces["criteria"],
        work=pieces["work"],
        results={int(version): result for version, result in pieces["verdicts"].items()},
        statement=files[STATEMENT],
        contract=_record(ContractFile, CONTRACT, files) if CONTRACT in files else None,
        usage=_record(UsageFile, USAGE, files) if USAGE in files else None,
        case=_record(CaseFile, CASE, files) if CASE in files else None,
        labels=_record(LabelsFile, LABELS, files) if LABELS in files else None,
        versions=_record(VersionsFile, VERSIONS, files) if VERSIONS in files else None,
    )


def statement_about(
    latest: VerdictEntry, about: Annotations, work: Mapping[str, bytes], result: VerificationResult | None
) -> dict[str, Any]:
    """The in-toto statement of the latest verdict; without its result it names no criteria one by one."""
    judged = [] if result is None else result.criterion_results
    ids = {
        status: [one.criterion_id for one in judged if one.status is status]
        for status in (Status.MET, Status.INDETERMINATE, Status.EXCLUDED, Status.NOT_MET)
    }
    entry = {latest.outcome: sha256(entry_bytes(latest)).hexdigest()}
    return test_result(
        entry | {f"work/{part}.json": sha256(work[part]).hexdigest() for part in PARTS if part in work},
        Verdict(latest.verdict),
        success=latest.success,
        passed=ids[Status.MET],
        warned=[*ids[Status.INDETERMINATE], *ids[Status.EXCLUDED]],
        failed=ids[Status.NOT_MET],
        configuration={f"criteria/{latest.criteria}.json": latest.criteria},
        annotations=about.to_dict(),
    )


def _files(bundle: Bundle) -> dict[str, bytes]:
    return {
        KEY: bundle.key.encode(),
        CHECKPOINT: bundle.checkpoint.encode(),
        FIRST_CHECKPOINT: bundle.first_checkpoint.encode(),
        CONSISTENCY: bundle.consistency.to_json(),
        ENTRIES: Entries(bundle.entries).to_json(),
        SALTS: bundle.salts.to_json(),
        STATEMENT: bundle.statement,
        **({} if bundle.contract is None else {CONTRACT: bundle.contract.to_json()}),
        **({} if bundle.usage is None else {USAGE: bundle.usage.to_json()}),
        **({} if bundle.case is None else {CASE: bundle.case.to_json()}),
        **({} if bundle.labels is None else {LABELS: bundle.labels.to_json()}),
        **({} if bundle.versions is None else {VERSIONS: bundle.versions.to_json()}),
        **{f"criteria/{digest}.json": body for digest, body in bundle.criteria.items()},
        **{f"work/{part}.json": content for part, content in bundle.work.items()},
        **{f"verdicts/{version}.json": result for version, result in bundle.results.items()},
    }


def _refuse_odd(infos: Sequence[zipfile.ZipInfo]) -> None:
    """What a zip may hold and a bundle may not."""
    if len(infos) > MAX_FILES:
        raise BundleFlaw(AuditStep.BUNDLE, f"it holds more than {MAX_FILES} files")
    if len({info.filename for info in infos}) < len(infos):
        raise BundleFlaw(AuditStep.BUNDLE, "two of its files have one name")
    for info in infos:
        if info.filename not in (_NAMED if info.file_size else _NAMED | _FOLDERS):
            _split_path(info.filename)
        # A name is cut at a zero byte, and what was cut off would go unseen.
        if info.filename != info.orig_filename:
            raise BundleFlaw(AuditStep.BUNDLE, f"a bundle must not hold the file {short(info.orig_filename)}")
        if info.flag_bits & _ENCRYPTED:
            raise BundleFlaw(AuditStep.BUNDLE, f"{info.filename} is encrypted")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise BundleFlaw(AuditStep.BUNDLE, f"{info.filename} is compressed in a way that bundles do not use")
    _refuse_large({info.filename: info.file_size for info in infos})


def _locate_files(data: bytes, infos: Sequence[zipfile.ZipInfo], start_of_list: int) -> dict[str, slice]:
    """Where the packed content of each file is; raises BundleFlaw if another reader could find other files."""
    listed = sum(_LISTED_BYTES + len(info.filename) + len(info.extra) for info in infos)
    end = _END.pack(b"PK\x05\x06", 0, 0, len(infos), len(infos), listed, start_of_list, 0)
    if data[start_of_list + listed :] != end:
        raise BundleFlaw(AuditStep.BUNDLE, "the zip does not end with the list of its files, or has a comment")
    places = {}
    reached = 0
    for info in infos:
        if info.header_offset != reached:
            raise BundleFlaw(AuditStep.BUNDLE, "there is something before or between its files in the zip")
        places[info.filename], reached = _locate_file(data, info)
    if reached != start_of_list:
        raise BundleFlaw(AuditStep.BUNDLE, "there is something between its files and their list in the zip")
    return places


def _locate_file(data: bytes, info: zipfile.ZipInfo) -> tuple[slice, int]:
    """Where a file's packed content is, and where the next begins; raises BundleFlaw if the list says otherwise."""
    sizes = info.CRC, info.compress_size, info.file_size
    sizes_after = bool(info.flag_bits & _SIZES_AFTER)
    mark, _, flags, method, _, _, *local_sizes, name, extra = _BEFORE.unpack_from(data, info.header_offset)
    begin = info.header_offset + _BEFORE.size
    before = mark, flags, method, (*local_sizes,), data[begin : begin + name]
    begin += name + extra
    end = begin + info.compress_size
    after = data[end : end + _AFTER.size] if sizes_after else b""
    if before != (
        *(b"PK\x03\x04", info.flag_bits, info.compress_type),
        *((0, 0, 0) if sizes_after else sizes, info.filename.encode()),
    ) or after != (_AFTER.pack(b"PK\x07\x08", *sizes) if sizes_after else b""):
        raise BundleFlaw(AuditStep.BUNDLE, f"the zip's list contradicts its entry of {info.filename}")
    return slice(begin, end), end + len(after)


def _content(info: zipfile.ZipInfo, packed: bytes) -> bytes:
    """A file, unpacked no further than one byte past what the zip says of it."""
    content, whole = packed, True
    if info.compress_type == zipfile.ZIP_DEFLATED:
        unpacking = zlib.decompressobj(-zlib.MAX_WBITS)
        content = unpacking.decompress(packed, info.file_size + 1)
        whole = unpacking.eof and not unpacking.unused_data
    if not whole or len(content) != info.file_size:
        raise BundleFlaw(AuditStep.BUNDLE, f"{info.filename} is not as long as the zip says")
    if zlib.crc32(content) != info.CRC:
        raise BundleFlaw(AuditStep.BUNDLE, f"{info.filename} was damaged")
    return content


def _refuse_large(sizes: Mapping[str, int]) -> None:
    """What could not be read again is not written either."""
    for name, size in sizes.items():
        most = MAX_CRITERIA_BYTES if name.startswith("criteria/") else MAX_FILE_BYTES
        if size > most:
            raise BundleFlaw(AuditStep.BUNDLE, f"{name} is longer than {most} bytes")
    if sum(sizes.values()) > MAX_UNPACKED_BYTES:
        raise BundleFlaw(AuditStep.BUNDLE, f"its files are longer than {MAX_UNPACKED_BYTES} bytes together")


def _split_path(name: str) -> tuple[str, str]:
    """The folder of a file, and what it is in it."""
    found = _PIECE.fullmatch(name)
    if found is None:
        raise BundleFlaw(AuditStep.BUNDLE, f"a bundle must not hold the file {short(name)}")
    folder, piece = (group for group in found.groups() if group is not None)
    return folder, piece


_R = TypeVar("_R", bound=Record)


def _record(kind: type[_R], name: str, files: Mapping[str, bytes]) -> _R:
    """A file of ours, in the one form that we write: another could hide something from one of two readers."""
    try:
        found = kind.from_json(files[name])
        same = found.to_json() == files[name]
    except (ValueError, RecursionError) as problem:
        raise BundleFlaw(AuditStep.BUNDLE, f"{name} cannot be read: {problem}") from None
    if not same:
        raise BundleFlaw(AuditStep.BUNDLE, f"{name} is not in the form that an export writes")
    return found


def _text(name: str, files: Mapping[str, bytes]) -> str:
    try:
        return files[name].decode()
    except UnicodeDecodeError:
        raise BundleFlaw(AuditStep.BUNDLE, f"{name} is not UTF-8 text") from None


def short(text: str) -> str:
    """Text from the bundle, short enough for a message."""
    return repr(text if len(text) <= 100 else f"{text[:100]}…")
