"""Bundles of several shapes, and every way that was thought of to change one without being noticed."""

import json
import random
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from tests.audit.contract_bundles import ENDINGS, Stall, bundles_of, outcome_of
from tests.outcomes.making import record

from meruit import SuccessCriteria, VerificationEngine
from meruit.audit.bundle import (
    ALWAYS,
    Annotations,
    Bundle,
    ConsistencyProof,
    ContractFile,
    Entries,
    LoggedEntry,
    SaltedContent,
    UsageFile,
    pack,
    pack_files,
    read,
    statement_about,
    unpack,
)
from meruit.audit.export import export
from meruit.errors import AuditStep, BundleFlaw
from meruit.judge.verdict import rejudge
from meruit.log.commitment import commitment, usage_evidence_bytes
from meruit.log.entries import (
    GOVERNANCE,
    PARTS,
    RESULT,
    AwardEntry,
    ContractEntry,
    CriteriaEntry,
    Entry,
    ErasureEntry,
    EvidenceEntry,
    GovernanceEntry,
    KeyEntry,
    ReleaseEntry,
    ReversalEntry,
    SettlementEntry,
    UsageEntry,
    VerdictEntry,
    entry_bytes,
    read_entry,
)
from meruit.log.merkle import consistency_proof, inclusion_proof, leaf_hash, node_hash
from meruit.log.note import Checkpoint, SigningKey
from meruit.log.statement import envelope
from meruit.model.access import Scope
from meruit.model.canonical import canonical, from_canonical, payload_bytes
from meruit.model.governance import GovernanceCheck
from meruit.model.money import Bill
from meruit.model.outcome import Labels
from meruit.model.verdict import VerificationResult
from meruit.outcomes.store.erase import erase
from meruit.outcomes.store.write import AddVersions, NewOutcome, NewVersion
from meruit.store.location import Location
from meruit.store.store import ClockAndEntropy, Store

ENGINE = VerificationEngine()
TENANT = "acme"
ROUGE = {"metric": "rougeL", "metric_type": "rouge_score", "comparison": "gte", "threshold": 0.5, "bonus": 0.03}
LATENCY = {"metric": "latency_ms", "metric_type": "latency", "comparison": "lte", "threshold": 2000, "penalty": 0.01}
EXPRESSION = {"expr": "double(size(output.text))", "metric_type": "numeric", "comparison": "gte", "threshold": 3}
ASSERTION = {"assert": "file_exists", "path": "report.pdf", "required": False}


def criteria_of(*criteria: Mapping[str, Any]) -> SuccessCriteria:
    return SuccessCriteria.model_validate({"criteria": [*criteria]})


PLAIN = criteria_of(ROUGE, LATENCY)
STRICTER = criteria_of({**ROUGE, "threshold": 0.99}, LATENCY)
CONTRACTS = ("settled", "released", "resettled", "called off", "paid and erased")
"""Of those that were awarded, the shapes that are tampered with like all others."""


def body_of(criteria: SuccessCriteria) -> bytes:
    return canonical(criteria.model_dump(exclude_defaults=True))


class Ticking:
    """A clock that is two seconds later whenever it is asked, so that every write is signed for."""

    def __init__(self, step_s: float = 2) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.step = timedelta(seconds=step_s)

    def __call__(self) -> datetime:
        self.now += self.step
        return self.now


def no_sleep(_seconds: float) -> None:
    """The clock of a test is not the machine's."""


def open_store(folder: Path, seed: int = 1, step_s: float = 2, *, new_key: bool = False) -> Store:
    chance = random.Random(seed)
    return Store.open(Location(folder), ClockAndEntropy(Ticking(step_s), chance.randbytes), new_key=new_key)


def put(
    store: Store,
    criteria: SuccessCriteria = PLAIN,
    *,
    contract: str | None = None,
    output: Mapping[str, Any] | None = None,
) -> str:
    """Record one outcome; its id."""
    works = ({"reference": "the cat sat"}, output or {"text": "the cat sat down"}, {"duration_ms": 12})
    result = ENGINE.verify_sync("c", works[0], works[1], criteria, works[2])
    given, made, run = (store.blobs.part(TENANT, payload_bytes(work) or b"") for work in works)
    outcome_id, salts = store.surroundings.new_id("out"), store.surroundings.entropy(64)
    new = NewOutcome(
        TENANT, outcome_id, Labels(contract), given, made, run, body_of(criteria), result=result, salts=salts
    )
    store.recorder.write(record([new]))
    return new.id


def rescore(store: Store, outcome_id: str, expected: int, criteria: SuccessCriteria) -> None:
    """Another version of the verdict on the usual work."""
    result = ENGINE.verify_sync(
        "c", {"reference": "the cat sat"}, {"text": "the cat sat down"}, criteria, {"duration_ms": 12}
    )
    version = NewVersion(outcome_id, expected, result, store.surroundings.entropy(16))
    written = store.recorder.write(AddVersions(TENANT, body_of(criteria), (version,), "the terms were read again"))
    assert len(written) == 1


class World(NamedTuple):
    """One deployment, what it exported, and somebody who is not it."""

    bundles: dict[str, bytes]
    older: bytes
    """Of the outcome with three versions, when it had one."""
    signer: SigningKey
    stranger: SigningKey

    def read(self, shape: str) -> Bundle:
        return read(unpack(self.bundles[shape]))


def make_world(folder: Path) -> World:
    store = open_store(folder)
    try:
        versions = put(store)
        older = export(store, Scope(TENANT), versions, sleep=no_sleep)
        rescore(store, versions, 1, STRICTER)
        rescore(store, versions, 2, STRICTER)
        shared = [put(store, contract="c-1") for _ in range(4)]
        rescore(store, shared[1], 1, STRICTER)
        erased = put(store, output={"text": "a name that must go"})
        erase(store, TENANT, erased, "the patient asked")
        ids = {
            "single": put(store),
            "versions": versions,
            "shared": shared[1],
            "erased": erased,
            "expression": put(store, criteria_of(EXPRESSION, LATENCY)),
            "big": put(store, output={"text": "the cat sat down", "pad": "word " * 20_000}),
            "assertion": put(store, criteria_of(ASSERTION, ROUGE)),
            **{ending: outcome_of(Stall(store, TENANT), ending) for ending in CONTRACTS},
        }
        bundles = {name: export(store, Scope(TENANT), found, sleep=no_sleep) for name, found in ids.items()}
        return World(bundles, older, store.signer, SigningKey.generate(store.signer.name, b"s" * 32))
    finally:
        store.close()


def make_contract_world(folder: Path) -> World:
    """One deployment with a contract of every ending."""
    store = open_store(folder)
    try:
        bundles = bundles_of(Stall(store, TENANT), ENDINGS)
        return World(bundles, b"", store.signer, SigningKey.generate(store.signer.name, b"s" * 32))
    finally:
        store.close()


class Tampered(NamedTuple):
    """A bundle that was changed, and where that must show."""

    what: str
    data: bytes
    expected: AuditStep
    pinned: bool = True


class Unchanged(Exception):
    """The draw changed nothing; draw again."""


Files = dict[str, bytes]
Tampering = Callable[[random.Random, World], Tampered]


def _drawn(chance: random.Random, world: World) -> tuple[str, Files]:
    shape = chance.choice(sorted(world.bundles))
    return shape, unpack(world.bundles[shape])


def _listed(files: Files) -> Files:
    """The files with a manifest that lists them: what every forger knows to do."""
    manifest = json.loads(files["manifest.json"])
    manifest["files"] = sorted(files.keys() - {"manifest.json"})
    return {**files, "manifest.json": _written(manifest)}


def _written(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _logged(files: Files) -> list[LoggedEntry]:
    return Entries.from_json(files["entries.json"]).entries


def _with_entries(files: Files, entries: Sequence[LoggedEntry]) -> Files:
    return {**files, "entries.json": Entries([*entries]).to_json()}


def _versions(files: Files) -> list[int]:
    versions: list[int] = json.loads(files["manifest.json"])["versions"]
    return versions


# Edits.


def edit_zip(chance: random.Random, world: World) -> Tampered:
    """One byte of the zip itself."""
    shape, files = _drawn(chance, world)
    data = bytearray(world.bundles[shape])
    place = chance.randrange(len(data))
    data[place] ^= chance.randrange(1, 256)
    try:
        found = unpack(bytes(data))
    except BundleFlaw:
        found = None
    if found == files:
        # Dates, rights and the like: a zip says more than its files.
        raise Unchanged
    return Tampered(f"byte {place} of the zip ({shape})", bytes(data), AuditStep.BUNDLE)


def edit_byte(chance: random.Random, world: World) -> Tampered:
    """One byte of one file."""
    shape, files = _drawn(chance, world)
    name = chance.choice(sorted(files))
    content = bytearray(files[name])
    place = chance.randrange(len(content))
    content[place] ^= chance.choice([1, 2, 4, 8, 16, 32, 64, 128, chance.randrange(1, 256)])
    changed = bytes(content)
    return Tampered(
        f"byte {place} of {name} ({shape})", pack_files({**files, name: changed}), _edited(name, files[name], changed)
    )


_BASE64 = {"body", "proof", "payload", "sig", "terms", "work"}
_BY_NUMBER = {"results", "governance", "bills"}
"""Whose keys are versions or numbers, hence values too."""
_SHOWS = {
    "manifest.json": {
        "format": AuditStep.BUNDLE,
        "files": AuditStep.BUNDLE,
        "outcome": AuditStep.SEQUENCE,
        "versions": AuditStep.SEQUENCE,
    },
    "entries.json": {"entries": AuditStep.INCLUSION},
    "consistency.json": {"proof": AuditStep.CONSISTENCY},
    "salts.json": {
        "input": AuditStep.BLOBS,
        "output": AuditStep.BLOBS,
        "metadata": AuditStep.BLOBS,
        "results": AuditStep.BLOBS,
    },
    "contract.json": {
        "terms": AuditStep.BLOBS,
        "governance": AuditStep.BLOBS,
        "bills": AuditStep.BLOBS,
        "work": AuditStep.BLOBS,
    },
    "statement.dsse.json": {
        "payload": AuditStep.SIGNATURE,
        "payloadType": AuditStep.SIGNATURE,
        "signatures": AuditStep.SIGNATURE,
    },
}


def _edited(name: str, before: bytes, after: bytes) -> AuditStep:
    """Where the edit of a file must show, told from the file alone."""
    if name.startswith(("work/", "criteria/", "verdicts/")):
        return AuditStep.BLOBS
    try:
        text = after.decode()
    except UnicodeDecodeError:
        return AuditStep.BUNDLE
    if name.endswith(".txt"):
        return AuditStep.SIGNATURE
    try:
        document = json.loads(text)
    except ValueError:
        return AuditStep.BUNDLE
    original = json.loads(before)
    if _written(document) != after or not _alike(original, document):
        return AuditStep.BUNDLE
    (changed,) = (key for key in original if original[key] != document[key])
    return _SHOWS[name][changed]


# Any: documents of every form.
def _alike(one: Any, other: Any, *, key: str = "") -> bool:
    """Whether two documents have one form: keys, kinds, and base64 where it was."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        same = [*other] == sorted(other) if key in _BY_NUMBER else one.keys() == other.keys()
        bills = key == "bills"
        return same and all(_alike(one[k], other[k], key="body" if bills else k) for k in one.keys() & other.keys())
    if isinstance(one, list):
        return len(one) == len(other) and all(_alike(a, b, key=key) for a, b in zip(one, other, strict=True))
    if key in _BASE64:
        try:
            return b64encode(b64decode(str(other), validate=True)) == str(other).encode()
        except ValueError:
            return False
    return True


def edit_field(chance: random.Random, world: World) -> Tampered:
    """One field of an entry, as whoever would profit from it changes it."""
    shape, files = _drawn(chance, world)
    entries = _logged(files)
    number = chance.randrange(len(entries))
    fields = json.loads(entries[number].body)
    name = chance.choice(sorted(fields))
    match fields[name]:
        case bool(value):
            fields[name] = not value
        case int(value):
            fields[name] = value + chance.choice([-1, 1, 1000])
        case str(value):
            fields[name] = value[:-1] + ("0" if value[-1:] != "0" else "1")
        case []:
            raise Unchanged
        case value:
            fields[name] = value[:-1]
    entries[number] = msgspec.structs.replace(entries[number], body=_written(fields))
    return Tampered(
        f"{name} of entry {number} ({shape})", pack_files(_with_entries(files, entries)), AuditStep.INCLUSION
    )


# Deletions.


def delete_entry(chance: random.Random, world: World) -> Tampered:
    shape, files = _drawn(chance, world)
    entries = _logged(files)
    gone = entries.pop(chance.randrange(len(entries)))
    return Tampered(
        f"without entry {gone.index} ({shape})", pack_files(_with_entries(files, entries)), AuditStep.SEQUENCE
    )


def delete_file(chance: random.Random, world: World) -> Tampered:
    shape, files = _drawn(chance, world)
    name = chance.choice(sorted(files))
    del files[name]
    if name == "manifest.json" or chance.random() < 0.3:
        return Tampered(f"without {name} ({shape})", pack_files(files), AuditStep.BUNDLE)
    expected = AuditStep.BUNDLE if name in ALWAYS else AuditStep.BLOBS
    return Tampered(f"without {name}, relisted ({shape})", pack_files(_listed(files)), expected)


def delete_version(chance: random.Random, world: World) -> Tampered:
    """A version, from everything but the log."""
    shape, files = _drawn(chance, world)
    version = chance.choice(_versions(files))
    files.pop(f"verdicts/{version}.json", None)
    files = _without_version(files, version)
    return Tampered(f"without version {version} ({shape})", pack_files(_listed(files)), AuditStep.SEQUENCE)


def _without_version(files: Files, version: int) -> Files:
    manifest, salts = json.loads(files["manifest.json"]), json.loads(files["salts.json"])
    manifest["versions"].remove(version)
    salts["results"].pop(str(version), None)
    return {**files, "manifest.json": _written(manifest), "salts.json": _written(salts)}


def delete_salt(chance: random.Random, world: World) -> Tampered:
    """A part with its salt, as if it had been erased; the log does not say so."""
    shape, files = _drawn(chance, world)
    pieces = sorted(name for name in files if name.startswith(("work/", "verdicts/")))
    if not pieces:
        raise Unchanged
    name = chance.choice(pieces)
    salts = json.loads(files["salts.json"])
    folder, _, rest = name.partition("/")
    piece = rest.removesuffix(".json")
    if folder == "work":
        salts[piece] = None
    else:
        del salts["results"][piece]
    files["salts.json"] = _written(salts)
    with_file = chance.random() < 0.5
    if with_file:
        del files[name]
    return Tampered(f"without the salt of {name} ({shape})", pack_files(_listed(files)), AuditStep.BLOBS)


def delete_proof(chance: random.Random, world: World) -> Tampered:
    shape, files = _drawn(chance, world)
    entries = _logged(files)
    number = chance.randrange(len(entries))
    proof = [*entries[number].proof]
    proof.pop(chance.randrange(len(proof)))
    entries[number] = msgspec.structs.replace(entries[number], proof=proof)
    return Tampered(f"less proof of {number} ({shape})", pack_files(_with_entries(files, entries)), AuditStep.INCLUSION)


def delete_consistency(chance: random.Random, world: World) -> Tampered:
    shape, files = _drawn(chance, world)
    proof = ConsistencyProof.from_json(files["consistency.json"]).proof
    if not proof:
        raise Unchanged
    proof.pop(chance.randrange(len(proof)))
    files["consistency.json"] = ConsistencyProof(proof).to_json()
    return Tampered(f"less proof of consistency ({shape})", pack_files(files), AuditStep.CONSISTENCY)


# Swaps.


def swap_entries(chance: random.Random, world: World) -> Tampered:
    """Two whole entries; or their bodies or proofs, which then prove nothing."""
    shape, files = _drawn(chance, world)
    entries = _logged(files)
    one, other = chance.sample(range(len(entries)), 2)
    first, second = entries[one], entries[other]
    part = chance.choice(["all", "body", "proof"])
    match part:
        case "all":
            entries[one], entries[other] = second, first
        case "body":
            entries[one] = msgspec.structs.replace(first, body=second.body)
            entries[other] = msgspec.structs.replace(second, body=first.body)
        case _:
            if first.proof == second.proof:
                raise Unchanged
            entries[one] = msgspec.structs.replace(first, proof=second.proof)
            entries[other] = msgspec.structs.replace(second, proof=first.proof)
    expected = AuditStep.SEQUENCE if part == "all" else AuditStep.INCLUSION
    return Tampered(f"swapped {part} of entries ({shape})", pack_files(_with_entries(files, entries)), expected)


def swap_files(chance: random.Random, world: World) -> Tampered:
    """Two files of one kind."""
    shape, files = _drawn(chance, world)
    folder = chance.choice(["work/", "verdicts/", "criteria/"])
    names = sorted(name for name in files if name.startswith(folder))
    if len(names) < 2:
        raise Unchanged
    one, other = chance.sample(names, 2)
    if files[one] == files[other]:
        raise Unchanged
    files[one], files[other] = files[other], files[one]
    return Tampered(f"swapped {one} and {other} ({shape})", pack_files(files), AuditStep.BLOBS)


def swap_checkpoints(chance: random.Random, world: World) -> Tampered:
    shape, files = _drawn(chance, world)
    one, other = "checkpoint.txt", "first-checkpoint.txt"
    if files[one] == files[other]:
        raise Unchanged
    files[one], files[other] = files[other], files[one]
    return Tampered(f"swapped the checkpoints ({shape})", pack_files(files), AuditStep.INCLUSION)


def swap_versions(chance: random.Random, world: World) -> Tampered:
    """Two versions with their salts: each would be proven, but for the number it stands for."""
    files = unpack(world.bundles["versions"])
    one, other = chance.sample(_versions(files), 2)
    salts = json.loads(files["salts.json"])
    results = salts["results"]
    results[str(one)], results[str(other)] = results[str(other)], results[str(one)]
    first, second = f"verdicts/{one}.json", f"verdicts/{other}.json"
    files[first], files[second] = files[second], files[first]
    files["salts.json"] = _written(salts)
    return Tampered(f"swapped versions {one} and {other}", pack_files(files), AuditStep.BLOBS)


def swap_bundles(chance: random.Random, world: World) -> Tampered:
    """A file from the bundle of another outcome of the same log."""
    shape, files = _drawn(chance, world)
    other, theirs = _drawn(chance, world)
    names = [
        "statement.dsse.json",
        "entries.json",
        "work/output.json",
        "verdicts/1.json",
        "salts.json",
        "contract.json",
    ]
    name = chance.choice(names)
    if name not in files or name not in theirs or files[name] == theirs[name]:
        raise Unchanged
    expected = AuditStep.SEQUENCE if name in ("statement.dsse.json", "entries.json") else AuditStep.BLOBS
    return Tampered(f"{name} of {other} in {shape}", pack_files({**files, name: theirs[name]}), expected)


def swap_beginnings(chance: random.Random, world: World) -> Tampered:
    """Another first checkpoint of the same log, with or without its proof."""
    shape, files = _drawn(chance, world)
    other, theirs = _drawn(chance, world)
    names = ["first-checkpoint.txt", "consistency.json"]
    if files[names[0]] == theirs[names[0]] or files[names[1]] == theirs[names[1]]:
        raise Unchanged
    chosen = chance.choice([names, names[:1], names[1:]])
    files.update({name: theirs[name] for name in chosen})
    expected = AuditStep.SEQUENCE if chosen == names else AuditStep.CONSISTENCY
    return Tampered(f"{chosen} of {other} in {shape}", pack_files(files), expected)


# Insertions.


def insert_entry(chance: random.Random, world: World) -> Tampered:
    """One twice, one that was made up, or one that is in the log and does not belong here."""
    shape, files = _drawn(chance, world)
    entries = _logged(files)
    kind = chance.choice(["twice", "made up", "foreign"])
    match kind:
        case "twice":
            entry = chance.choice(entries)
        case "made up":
            model = chance.choice(entries)
            entry = msgspec.structs.replace(model, body=model.body.replace(b'"at":"2026', b'"at":"2025'))
        case _:
            _, theirs = _drawn(chance, world)
            known = {one.index for one in entries}
            foreign = [one for one in _logged(theirs) if one.index not in known]
            if not foreign:
                raise Unchanged
            entry = chance.choice(foreign)
    entries.append(entry)
    if chance.random() < 0.7:
        entries.sort(key=lambda one: one.index)
    expected = AuditStep.INCLUSION if kind == "made up" else AuditStep.SEQUENCE
    return Tampered(f"{kind}: entry {entry.index} in {shape}", pack_files(_with_entries(files, entries)), expected)


def insert_version(chance: random.Random, world: World) -> Tampered:
    """One more version than the log has."""
    shape, files = _drawn(chance, world)
    number = _versions(files)[-1] + 1
    model = files.get("verdicts/1.json", b"{}")
    files[f"verdicts/{number}.json"] = model.replace(b'"success":false', b'"success":true')
    salts = json.loads(files["salts.json"])
    salts["results"][str(number)] = chance.randbytes(16).hex()
    files["salts.json"] = _written(salts)
    claimed = chance.random() < 0.5
    if claimed:
        manifest = json.loads(files["manifest.json"])
        manifest["versions"].append(number)
        files["manifest.json"] = _written(manifest)
    return Tampered(
        f"version {number} in {shape}", pack_files(_listed(files)), AuditStep.SEQUENCE if claimed else AuditStep.BLOBS
    )


def insert_file(chance: random.Random, world: World) -> Tampered:
    shape, files = _drawn(chance, world)
    body = canonical({"criteria": [], "made_up": chance.randrange(10**9)})
    names = {
        "notes.txt": AuditStep.BUNDLE,
        "../escaped.json": AuditStep.BUNDLE,
        "work/extra.json": AuditStep.BUNDLE,
        "verdicts/01.json": AuditStep.BUNDLE,
        "/etc/passwd": AuditStep.BUNDLE,
        f"criteria/{sha256(body).hexdigest()}.json": AuditStep.BLOBS,
    }
    name = chance.choice(sorted(names))
    files[name] = body
    if chance.random() < 0.3:
        return Tampered(f"{name} in {shape}, unlisted", pack_files(files), AuditStep.BUNDLE)
    return Tampered(f"{name} in {shape}", pack_files(_listed(files)), names[name])


def insert_contract(chance: random.Random, world: World) -> Tampered:
    """Money for work that nobody had a contract on, or one bill or dossier more than the log knows."""
    shape, files = _drawn(chance, world)
    theirs = ContractFile.from_json(unpack(world.bundles[chance.choice(CONTRACTS)])["contract.json"])
    own = ContractFile.from_json(files["contract.json"]) if "contract.json" in files else theirs
    more = str(chance.randrange(3, 10))
    if own is not theirs and chance.random() < 0.5:
        own = msgspec.structs.replace(own, bills={**own.bills, more: next(iter(theirs.bills.values()))})
    elif own is not theirs:
        made_up = SaltedContent(chance.randbytes(16).hex(), b"{}")
        own = msgspec.structs.replace(own, governance={**own.governance, more: made_up})
    files["contract.json"] = own.to_json()
    return Tampered(f"more in the contract ({shape})", pack_files(_listed(files)), AuditStep.BLOBS)


def insert_around(chance: random.Random, world: World) -> Tampered:
    """Something before, behind or between the files of the zip, for which another reader might take them."""
    shape, _ = _drawn(chance, world)
    data, junk = world.bundles[shape], chance.randbytes(chance.randrange(1, 100))
    listed = data.index(b"PK\x01\x02")
    end = len(data) - 22
    forged = {
        "before": junk + data,
        "behind": data + junk,
        "between": data[:listed] + junk + data[listed:],
        "before, counted": junk + data[: end + 16] + (listed + len(junk)).to_bytes(4, "little") + data[end + 20 :],
        "between, counted": data[:listed]
        + junk
        + data[listed : end + 16]
        + (listed + len(junk)).to_bytes(4, "little")
        + data[end + 20 :],
        "comment": data[:-2] + len(junk).to_bytes(2, "little") + junk,
    }
    where = chance.choice(sorted(forged))
    return Tampered(f"junk {where} ({shape})", forged[where], AuditStep.BUNDLE)


# Truncation.


def truncate_tail(chance: random.Random, world: World) -> Tampered:
    """The newest version or the newest entries, from every place that the forger can reach."""
    shape = chance.choice(["versions", "shared", "resettled", "called off"])
    files = unpack(world.bundles[shape])
    entries = _logged(files)
    for _ in range(chance.randrange(1, 3)):
        last = read_entry(entries.pop().body)
        if isinstance(last, VerdictEntry) and last.version in _versions(files) and last.version > 1:
            files.pop(f"verdicts/{last.version}.json")
            files = _without_version(files, last.version)
    return Tampered(f"cut the tail ({shape})", pack_files(_listed(_with_entries(files, entries))), AuditStep.SEQUENCE)


def truncate_log(chance: random.Random, world: World) -> Tampered:
    """The log as it was before the verdict was changed, as far as the signed statement allows."""
    files, older = unpack(world.bundles["versions"]), unpack(world.older)
    kind = chance.choice(["checkpoint", "entries", "all but the statement", "all but the results", "statement"])
    match kind:
        case "checkpoint":
            files["checkpoint.txt"] = older["checkpoint.txt"]
            expected = AuditStep.INCLUSION
        case "entries":
            files["entries.json"] = older["entries.json"]
            expected = AuditStep.INCLUSION
        case "all but the statement":
            files = {**older, "statement.dsse.json": files["statement.dsse.json"]}
            expected = AuditStep.SEQUENCE
        case "all but the results":
            files = {**older, **{name: files[name] for name in ("manifest.json", "salts.json")}}
            files = _listed(files)
            expected = AuditStep.SEQUENCE
        case _:
            files["statement.dsse.json"] = older["statement.dsse.json"]
            expected = AuditStep.SEQUENCE
    return Tampered(f"an older log: {kind}", pack_files(files), expected)


def truncate_zip(chance: random.Random, world: World) -> Tampered:
    shape, _ = _drawn(chance, world)
    data = world.bundles[shape]
    return Tampered(f"cut the zip ({shape})", data[: chance.randrange(len(data))], AuditStep.BUNDLE)


# Another key.


def sign_again(chance: random.Random, world: World) -> Tampered:
    """All that is signed, by somebody else."""
    shape, files = _drawn(chance, world)
    key = world.stranger
    how = chance.choice(["all", "checkpoint", "first", "statement", "key"])
    for name in ("checkpoint.txt", "first-checkpoint.txt"):
        if how in ("all", name.split("-")[0].removesuffix(".txt")):
            files[name] = key.sign(files[name].decode().rpartition("\n\n")[0] + "\n").encode()
    if how in ("all", "statement"):
        payload = b64decode(json.loads(files["statement.dsse.json"])["payload"])
        files["statement.dsse.json"] = envelope(json.loads(payload), key)
    if how in ("all", "key"):
        files["key.txt"] = f"{key.vkey}\n".encode()
    # Whoever pins no key still finds that the log admits another.
    pinned = how != "all" or chance.random() < 0.6
    return Tampered(
        f"{how} signed by another ({shape})",
        pack_files(files),
        AuditStep.SIGNATURE if pinned else AuditStep.SEQUENCE,
        pinned=pinned,
    )


# Wrong evidence and wrong verdicts.


class Forgery(NamedTuple):
    """All that a dishonest operator, who has the key, can decide about a bundle."""

    entries: list[Entry]
    """His whole log."""
    outcome: str
    criteria: dict[str, bytes]
    work: dict[str, bytes]
    results: dict[int, bytes]
    salts: dict[str, bytes]
    """By `input`, `output`, `metadata` and version."""
    contract: ContractFile | None = None
    usage: UsageFile | None = None

    @classmethod
    def of(cls, bundle: Bundle) -> "Forgery":
        """An honest log, begun anew with the entries of one bundle."""
        place = {one.index: number for number, one in enumerate(bundle.entries)}
        entries = []
        for one in bundle.entries:
            entry = read_entry(one.body)
            if isinstance(entry, VerdictEntry):
                entry = msgspec.structs.replace(
                    entry,
                    criteria_index=place.get(entry.criteria_index, 0),
                    evidence_index=place.get(entry.evidence_index, 0),
                )
            entries.append(entry)
        salts = {**bundle.salts.of_work(), **bundle.salts.results}
        return cls(
            entries,
            bundle.manifest.outcome,
            bundle.criteria,
            bundle.work,
            bundle.results,
            {name: bytes.fromhex(salt) for name, salt in salts.items()},
            bundle.contract,
            bundle.usage,
        )

    def committed(self) -> "Forgery":
        """The entries, once more true to the content."""
        entries: list[Entry] = []
        for entry in self.entries:
            match entry:
                case EvidenceEntry(outcome=self.outcome) if len(self.work) == len(PARTS):
                    parts = {part: commitment(self.salts[part], self.work[part]) for part in PARTS}
                    entries.append(msgspec.structs.replace(entry, **parts))
                case VerdictEntry(outcome=self.outcome) if entry.version in self.results:
                    kept = commitment(self.salts[str(entry.version)], self.results[entry.version])
                    entries.append(msgspec.structs.replace(entry, result=kept))
                case _:
                    entries.append(self._committed(entry))
        return self._replace(entries=entries)

    def _committed(self, entry: Entry) -> Entry:
        """An entry about the contract, once more true to it."""
        contract = self.contract
        match entry:
            case AwardEntry() if contract is not None:
                digests = {name: sha256(body).hexdigest() for name, body in _agreed(contract).items()}
                return msgspec.structs.replace(entry, **digests)
            case SettlementEntry(number=number) if contract is not None and str(number) in contract.bills:
                return msgspec.structs.replace(entry, bill=sha256(contract.bills[str(number)]).hexdigest())
            case GovernanceEntry(version=version) if contract is not None and str(version) in contract.governance:
                kept = contract.governance[str(version)]
                return msgspec.structs.replace(entry, dossier=commitment(bytes.fromhex(kept.salt), kept.body))
            case UsageEntry(run=run, attempts=attempts) if self.usage is not None and run in self.usage.runs:
                proof = self.usage.runs[run]
                content = usage_evidence_bytes(proof.run, proof.observations[:attempts])
                return msgspec.structs.replace(entry, evidence=commitment(bytes.fromhex(proof.salt), content))
            case _:
                return entry

    def renumbered(self) -> "Forgery":
        """The entries of one contract, counted anew and pointing to where the others are now."""
        place = {entry.digest: index for index, entry in enumerate(self.entries) if isinstance(entry, CriteriaEntry)}
        evidence = next((index for index, one in enumerate(self.entries) if isinstance(one, EvidenceEntry)), 0)
        entries: list[Entry] = []
        number = 0
        for entry in self.entries:
            fields: dict[str, Any] = {}
            if isinstance(entry, VerdictEntry):
                fields = {"criteria_index": place[entry.criteria], "evidence_index": evidence}
            if isinstance(entry, ContractEntry):
                number += 1
                fields["contract_seq"] = number
            entries.append(msgspec.structs.replace(entry, **fields))
        return self._replace(entries=entries)

    def bare(self) -> "Forgery":
        """The same work, as if nobody had had a contract on it."""
        entries: list[Entry] = []
        for entry in self.entries:
            match entry:
                case EvidenceEntry() | VerdictEntry():
                    entries.append(msgspec.structs.replace(entry, contract="c-1"))
                case KeyEntry() | CriteriaEntry():
                    entries.append(entry)
                case _:
                    pass
        return self._replace(entries=entries, contract=None, usage=None)

    def changed(self, kind: type, **fields: Any) -> "Forgery":
        """With all entries of a kind otherwise."""
        entries = [
            msgspec.structs.replace(entry, **fields) if isinstance(entry, kind) else entry for entry in self.entries
        ]
        return self._replace(entries=entries)

    def under(self, **fields: Any) -> "Forgery":
        """With another contract, in part."""
        assert self.contract is not None
        return self._replace(contract=msgspec.structs.replace(self.contract, **fields))

    def with_bill(self, number: int = 1, **fields: Any) -> "Forgery":
        """With another bill, which the log repeats."""
        assert self.contract is not None
        owed = msgspec.structs.replace(Bill.from_json(self.contract.bills[str(number)]), **fields)
        parts = ("base", "bonus", "penalty", "total", "fee", "payout", "released")
        told = {"currency": owed.currency} | {f"{part}_micros": getattr(owed, part) for part in parts}
        entries = [
            msgspec.structs.replace(entry, **told)
            if isinstance(entry, SettlementEntry) and entry.number == number
            else entry
            for entry in self.entries
        ]
        forged = self._replace(entries=entries)
        return forged.under(bills={**self.contract.bills, str(number): owed.to_json()})

    def with_check(self, check: GovernanceCheck) -> "Forgery":
        """With another answer of governance, which the log repeats."""
        said = check.result
        forged = self.with_dossier(check.to_json())
        return forged.changed(GovernanceEntry, disposition=str(said.conclusion), flags=(*said.names,))

    def with_dossier(self, body: bytes) -> "Forgery":
        """With other bytes that governance went by."""
        assert self.contract is not None
        salt = self.contract.governance["1"].salt
        return self.under(governance={"1": SaltedContent(salt, body)})

    @property
    def check(self) -> GovernanceCheck:
        """What governance went by."""
        assert self.contract is not None
        return GovernanceCheck.from_json(self.contract.governance["1"].body)

    def packed(self, key: SigningKey, template: Bundle, first: tuple[Checkpoint, list[bytes]] | None = None) -> bytes:
        """A bundle in which every hash and every signature holds."""
        bodies = [entry_bytes(entry) for entry in self.entries]
        hashes = [leaf_hash(body) for body in bodies]
        size = len(hashes)
        own = [entry for entry in self.entries if isinstance(entry, VerdictEntry) and entry.outcome == self.outcome]
        latest = own[-1]
        newest = max(getattr(entry, "contract_seq", 0) for entry in self.entries)
        result = VerificationResult.from_json(self.results[latest.version]) if latest.version in self.results else None
        early = own[0].criteria_index + 1
        begun, proof = first or (Checkpoint(key.name, early, _root(hashes[:early])), _consistency(early, hashes))
        runs = Counter(entry.run for entry in self.entries if isinstance(entry, UsageEntry))
        about = Annotations(self.outcome, latest.version, latest.contract, newest, size, begun.size, dict(runs))
        return pack(
            msgspec.structs.replace(
                template,
                key=f"{key.vkey}\n",
                checkpoint=key.sign(Checkpoint(key.name, size, _root(hashes)).text()),
                first_checkpoint=key.sign(begun.text()),
                consistency=ConsistencyProof(proof),
                entries=[
                    LoggedEntry(number, body, inclusion_proof(number, size, _subtree(hashes)))
                    for number, body in enumerate(bodies)
                ],
                criteria=self.criteria,
                work=self.work,
                results=self.results,
                contract=self.contract,
                usage=self.usage,
                statement=envelope(statement_about(latest, about, self.work, result), key),
            )
        )


def _agreed(contract: ContractFile) -> dict[str, bytes]:
    """What an award commits to, by the name of its field."""
    return {"terms": contract.terms, "work_digest": contract.work}


def _subtree(hashes: Sequence[bytes]) -> Callable[[int, int], bytes]:
    return lambda start, level: _root(hashes[start : start + (1 << level)])


def _root(hashes: Sequence[bytes]) -> bytes:
    """The tree as RFC 6962 defines it."""
    if len(hashes) <= 1:
        return hashes[0] if hashes else sha256().digest()
    middle = 1 << (len(hashes) - 1).bit_length() - 1
    return node_hash(_root(hashes[:middle]), _root(hashes[middle:]))


def _consistency(old: int, hashes: Sequence[bytes]) -> list[bytes]:
    return consistency_proof(old, len(hashes), _subtree(hashes))


_WITH_WORK = ("single", "versions", "shared", "big", "assertion", "settled", "resettled")


def _other_work(chance: random.Random, forgery: Forgery) -> Forgery:
    """Work that would have been judged otherwise, under the same results."""
    part, content = chance.choice(
        [
            ("output", {"text": f"something else {chance.randrange(10**6)}"}),
            ("input", {"reference": f"quite another {chance.randrange(10**6)}"}),
        ]
    )
    return forgery._replace(work={**forgery.work, part: payload_bytes(content) or b""})


def wrong_evidence(chance: random.Random, world: World) -> Tampered:
    """Other work, as far as somebody without the key gets."""
    shape = chance.choice(_WITH_WORK)
    files, bundle = unpack(world.bundles[shape]), world.read(shape)
    forged = _other_work(chance, Forgery.of(bundle))
    files.update({f"work/{part}.json": content for part, content in forged.work.items()})
    how = chance.choice(["work", "entry", "tree"])
    match how:
        case "work":
            return Tampered(f"other work ({shape})", pack_files(files), AuditStep.BLOBS)
        case "entry":
            entries = _logged(files)
            for number, one in enumerate(entries):
                entry = read_entry(one.body)
                if isinstance(entry, EvidenceEntry) and entry.outcome == forged.outcome:
                    parts = {part: commitment(forged.salts[part], forged.work[part]) for part in PARTS}
                    body = entry_bytes(msgspec.structs.replace(entry, **parts))
                    entries[number] = msgspec.structs.replace(one, body=body)
            return Tampered(
                f"other work and entry ({shape})", pack_files(_with_entries(files, entries)), AuditStep.INCLUSION
            )
        case _:
            # A whole log of his own, under signatures that were made for another.
            rebuilt = unpack(forged.committed().packed(world.stranger, bundle))
            for name in ("key.txt", "checkpoint.txt", "first-checkpoint.txt", "statement.dsse.json"):
                rebuilt[name] = _resigned(rebuilt[name], files[name])
            return Tampered(f"other work in another log ({shape})", pack_files(rebuilt), AuditStep.SIGNATURE)


def _resigned(forged: bytes, honest: bytes) -> bytes:
    """The forged text with the honest signature."""
    if forged.startswith(b"{"):
        return _written({**json.loads(forged), "signatures": json.loads(honest)["signatures"]})
    if b"\n\n" in forged:
        return forged.rpartition(b"\n\n")[0] + b"\n\n" + honest.rpartition(b"\n\n")[2]
    return honest


def operator_evidence(chance: random.Random, world: World) -> Tampered:
    """Other work in a log that is signed, included and committed to: only measuring it shows."""
    shape = chance.choice(_WITH_WORK)
    bundle = world.read(shape)
    forged = _other_work(chance, Forgery.of(bundle))
    digests = {part: sha256(content).hexdigest() for part, content in forged.work.items()}
    results = {}
    for version, kept in forged.results.items():
        result = VerificationResult.from_json(kept)
        stamped = {f"{part}_digest": digest for part, digest in digests.items()}
        results[version] = msgspec.structs.replace(result, **stamped).to_json()
    # The award of a contract commits to its input, too.
    is_agreed = bundle.contract is None or forged.work["input"] == bundle.work["input"]
    step = AuditStep.METRICS if is_agreed else AuditStep.BLOBS
    forged = forged._replace(results=results).committed()
    return Tampered(f"the operator's other work ({shape})", forged.packed(world.signer, bundle), step)


def operator_value(chance: random.Random, world: World) -> Tampered:
    """A value that the work does not have, judged correctly: only measuring it shows."""
    shape = chance.choice(("single", "versions", "shared", "big", "expression", "settled", "resettled"))
    bundle = world.read(shape)
    forged = Forgery.of(bundle)
    version = chance.choice(sorted(forged.results))
    result = VerificationResult.from_json(forged.results[version])
    number = chance.choice(
        [n for n, one in enumerate(result.criterion_results) if one.metric in ("rougeL", "latency_ms")]
    )
    judged = result.criterion_results[number]
    value = chance.choice([0.001, 0.25, 1.0]) if judged.metric == "rougeL" else chance.choice([1, 11.5, 900])
    if value == judged.value:
        raise Unchanged
    lied = [*result.criterion_results]
    lied[number] = msgspec.structs.replace(judged, value=value)
    own = {
        entry.version: entry
        for entry in forged.entries
        if isinstance(entry, VerdictEntry) and entry.outcome == forged.outcome
    }
    criteria = SuccessCriteria.model_validate(from_canonical(forged.criteria[own[version].criteria]))
    again = rejudge(criteria, msgspec.structs.replace(result, criterion_results=lied))
    forged = _with_result(forged, version, again)
    return Tampered(f"the operator's value ({shape})", forged.packed(world.signer, bundle), AuditStep.METRICS)


def _is_own_verdict(entry: Entry, outcome: str) -> bool:
    return isinstance(entry, VerdictEntry) and entry.outcome == outcome


def _with_result(forged: Forgery, version: int, result: VerificationResult) -> Forgery:
    """The result, and an entry that says the same."""
    entries = [
        msgspec.structs.replace(
            entry,
            verdict=result.verdict.value,
            success=result.success,
            score=result.exact,
            bonus_micros=result.bonus_micros,
            penalty_micros=result.penalty_micros,
        )
        if isinstance(entry, VerdictEntry) and entry.outcome == forged.outcome and entry.version == version
        else entry
        for entry in forged.entries
    ]
    results = {**forged.results, version: result.to_json()}
    return forged._replace(entries=entries, results=results).committed()


def operator_verdict(chance: random.Random, world: World) -> Tampered:
    """A verdict that the judge does not reach on these values."""
    shape = chance.choice((*_WITH_WORK, "expression", "released"))
    bundle = world.read(shape)
    forged = Forgery.of(bundle)
    version = chance.choice(sorted(forged.results))
    result = VerificationResult.from_json(forged.results[version])
    change: dict[str, Any] = chance.choice(
        [
            {"success": not result.success},
            {"verdict": "partial" if result.verdict != "partial" else "fail"},
            {"exact": "1/3", "score": 1 / 3},
            {"bonus_micros": result.bonus_micros + 10_000},
            {"penalty_micros": result.penalty_micros + 10_000},
            {"coverage": 0.5},
            {"reasons": []} if result.reasons else {"success": not result.success},
        ]
    )
    lied = VerificationResult.from_json(_written({**json.loads(result.to_json()), **change}))
    if chance.random() < 0.5:
        forged = _with_result(forged, version, lied)
        return Tampered(
            f"the operator's result ({shape}): {change}", forged.packed(world.signer, bundle), AuditStep.JUDGE
        )
    # Only the log's entry lies, and so does the statement that repeats it.
    honest = forged.results
    forged = _with_result(forged, version, lied)._replace(results=honest).committed()
    fields = {"success", "verdict", "exact", "bonus_micros", "penalty_micros"}
    if not fields & change.keys():
        raise Unchanged
    return Tampered(f"the operator's entry ({shape}): {change}", forged.packed(world.signer, bundle), AuditStep.JUDGE)


def operator_digest(chance: random.Random, world: World) -> Tampered:
    """A result about other work than the one that is handed over."""
    shape = chance.choice(("single", "versions", "shared"))
    bundle = world.read(shape)
    forged = Forgery.of(bundle)
    version = chance.choice(sorted(forged.results))
    result = VerificationResult.from_json(forged.results[version])
    lied = msgspec.structs.replace(result, **{f"{chance.choice(PARTS)}_digest": sha256(b"other").hexdigest()})
    forged = _with_result(forged, version, lied)
    return Tampered(f"the operator's digest ({shape})", forged.packed(world.signer, bundle), AuditStep.JUDGE)


def operator_statement(chance: random.Random, world: World) -> Tampered:
    """A statement that is kinder than the verdict."""
    shape, files = _drawn(chance, world)
    statement = json.loads(b64decode(json.loads(files["statement.dsse.json"])["payload"]))
    predicate = statement["predicate"]
    match chance.choice(["result", "passed", "configuration", "subject"]):
        case "result":
            predicate["result"] = "WARNED" if predicate["result"] != "WARNED" else "PASSED"
        case "passed":
            predicate["passedTests"] = [*predicate["passedTests"], "made_up"]
        case "configuration":
            predicate["configuration"] = []
        case _:
            statement["subject"][0]["digest"]["sha256"] = sha256(b"other").hexdigest()
    files["statement.dsse.json"] = envelope(statement, world.signer)
    return Tampered(f"the operator's statement ({shape})", pack_files(files), AuditStep.STATEMENT)


def operator_order(chance: random.Random, world: World) -> Tampered:
    """A log that is signed and tells an impossible story."""
    shape = chance.choice(("single", "versions", "shared"))
    bundle = world.read(shape)
    forged = Forgery.of(bundle)
    entries = [*forged.entries]
    evidence = next(
        n for n, one in enumerate(entries) if isinstance(one, EvidenceEntry) and one.outcome == forged.outcome
    )
    verdict = next(n for n, one in enumerate(entries) if _is_own_verdict(one, forged.outcome))
    how = chance.choice(
        ["gap", "late criteria", "other evidence", "version", "key", "tenant", "other criteria", "twice"]
    )
    match how:
        case "gap":
            entries[verdict] = msgspec.structs.replace(entries[verdict], contract_seq=99)
        case "late criteria":
            moved = entries.pop(evidence)
            entries.insert(0, moved)
            entries[verdict] = msgspec.structs.replace(entries[verdict], evidence_index=0)
        case "other evidence":
            entries[verdict] = msgspec.structs.replace(entries[verdict], evidence_index=evidence + 1)
        case "version":
            entries[verdict] = msgspec.structs.replace(entries[verdict], version=7)
        case "key":
            entries = [
                msgspec.structs.replace(e, vkey=world.stranger.vkey) if isinstance(e, KeyEntry) else e for e in entries
            ]
        case "tenant":
            entries = [
                msgspec.structs.replace(e, tenant="other") if isinstance(e, CriteriaEntry) else e for e in entries
            ]
        case "other criteria":
            entries[verdict] = msgspec.structs.replace(entries[verdict], criteria="0" * 64)
        case _:
            entries.append(msgspec.structs.replace(entries[evidence], contract_seq=_last_seq(entries) + 1))
    forged = forged._replace(entries=entries)
    if how == "version":
        forged = forged._replace(results={**forged.results, 7: forged.results[1]})
    return Tampered(f"the operator's order: {how} ({shape})", forged.packed(world.signer, bundle), AuditStep.SEQUENCE)


def _last_seq(entries: Sequence[Entry]) -> int:
    return max(getattr(entry, "contract_seq", 0) for entry in entries)


def operator_history(chance: random.Random, world: World) -> Tampered:
    """Another past than the one that the first checkpoint signed."""
    shape = chance.choice(("single", "versions", "shared"))
    bundle = world.read(shape)
    forged = Forgery.of(bundle)
    hashes = [leaf_hash(entry_bytes(entry)) for entry in forged.entries]
    hashes[0] = leaf_hash(b"what stood there before")
    size = chance.randrange(1, len(hashes))
    first = Checkpoint(world.signer.name, size, _root(hashes[:size]))
    proof = _consistency(size, [leaf_hash(entry_bytes(entry)) for entry in forged.entries])
    data = forged.packed(world.signer, bundle, (first, proof))
    return Tampered(f"the operator's other past ({shape})", data, AuditStep.CONSISTENCY)


def operator_erasure(chance: random.Random, world: World) -> Tampered:
    """Something is gone that the log never said was erased."""
    shape = chance.choice(("single", "versions", "shared"))
    bundle = world.read(shape)
    part = chance.choice(PARTS)
    forged = Forgery.of(bundle)
    work = {name: content for name, content in forged.work.items() if name != part}
    salts = msgspec.structs.replace(bundle.salts, **{part: None})
    data = forged._replace(work=work).packed(world.signer, msgspec.structs.replace(bundle, salts=salts))
    return Tampered(f"the operator lost {part} ({shape})", data, AuditStep.BLOBS)


def _erasing(forgery: Forgery, *parts: str) -> ErasureEntry:
    """An entry that erases these parts of the outcome, after all others."""
    (evidence,) = (one for one in forgery.entries if isinstance(one, EvidenceEntry) and one.outcome == forgery.outcome)
    number = _last_seq(forgery.entries) + 1
    return ErasureEntry("2026", evidence.tenant, forgery.outcome, evidence.contract, number, parts, "asked for")


def operator_unerased(chance: random.Random, world: World) -> Tampered:
    """What the log says was erased is there."""
    shape = chance.choice(_WITH_WORK)
    bundle = world.read(shape)
    forged = Forgery.of(bundle)
    parts = chance.sample([*PARTS, RESULT, *([GOVERNANCE] if bundle.contract else [])], chance.randrange(1, 5))
    forged = forged._replace(entries=[*forged.entries, _erasing(forged, *parts)])
    return Tampered(f"the operator kept {parts} ({shape})", forged.packed(world.signer, bundle), AuditStep.BLOBS)


def operator_late(chance: random.Random, world: World) -> Tampered:
    """A verdict on work that was erased before, which nobody can judge again."""
    shape = chance.choice(_WITH_WORK)
    bundle = world.read(shape)
    forged = Forgery.of(bundle)
    erasing = _erasing(forged, *chance.choice([(RESULT,), (*PARTS, RESULT)]))
    (*_, latest) = (one for one in forged.entries if isinstance(one, VerdictEntry) and one.outcome == forged.outcome)
    late = msgspec.structs.replace(
        latest, version=latest.version + 1, contract_seq=erasing.contract_seq + 1, verdict="pass", success=True
    )
    forged = forged._replace(entries=[*forged.entries, erasing, late], results={})
    salts, work = msgspec.structs.replace(bundle.salts, results={}), forged.work
    if set(PARTS) <= {*erasing.parts}:
        salts, work = msgspec.structs.replace(salts, input=None, output=None, metadata=None), {}
    manifest = msgspec.structs.replace(bundle.manifest, versions=[*range(1, late.version + 1)])
    template = msgspec.structs.replace(bundle, salts=salts, manifest=manifest)
    data = forged._replace(work=work).packed(world.signer, template)
    return Tampered(f"the operator's verdict after an erasure ({shape})", data, AuditStep.SEQUENCE)


# Wrong belief and wrong money.


def edit_contract(chance: random.Random, world: World) -> Tampered:
    """Terms, a bill or a dossier that is kinder, as far as somebody without the key gets."""
    shape = chance.choice(("settled", "released", "resettled", "called off"))
    files = unpack(world.bundles[shape])
    own = ContractFile.from_json(files["contract.json"])
    kept = own.governance["1"]
    how = chance.choice(["terms", "work", "bill", "dossier", "salt", "no bill", "no dossier"])
    match how:
        case "terms":
            own = msgspec.structs.replace(own, terms=own.terms.replace(b"5E-2", b"9E-2"))
        case "work":
            planted = {**from_canonical(own.work), "canaries": [], "impossible": True}
            own = msgspec.structs.replace(own, work=canonical(planted))
        case "bill":
            number = chance.choice(sorted(own.bills))
            lines = Bill.from_json(own.bills[number])
            cheaper = msgspec.structs.replace(lines, total=lines.total - 1, payout=lines.payout - 1)
            own = msgspec.structs.replace(own, bills={**own.bills, number: cheaper.to_json()})
        case "dossier":
            body = kept.body.replace(b'"impossible":false', b'"impossible":true')
            own = msgspec.structs.replace(own, governance={"1": SaltedContent(kept.salt, body)})
        case "salt":
            own = msgspec.structs.replace(own, governance={"1": SaltedContent(chance.randbytes(16).hex(), kept.body)})
        case "no bill":
            own = msgspec.structs.replace(own, bills={})
        case _:
            own = msgspec.structs.replace(own, governance={})
    return Tampered(f"other {how} ({shape})", pack_files({**files, "contract.json": own.to_json()}), AuditStep.BLOBS)


def operator_terms(chance: random.Random, world: World) -> Tampered:
    """Terms or a hold that nobody had agreed to, committed to afterwards."""
    shape = chance.choice(CONTRACTS)
    bundle = world.read(shape)
    forged = Forgery.of(bundle)
    assert forged.contract is not None
    terms = from_canonical(forged.contract.terms)
    change: dict[str, Any] = chance.choice(
        [
            {"cpc_rate": Decimal("0.06")},
            {"max_cpa_total": Decimal("0.01")},
            {"platform_fee_rate": Decimal("0.3")},
            {"currency": "EUR"},
            {"hold_micros": chance.randrange(1, 80_000)},
        ]
    )
    if "hold_micros" in change:
        forged = forged.changed(AwardEntry, **change)
    else:
        forged = forged.under(terms=canonical({**terms, **change}))
    data = forged.committed().packed(world.signer, bundle)
    return Tampered(f"the operator's terms ({shape}): {change}", data, AuditStep.SETTLEMENT)


def operator_bill(chance: random.Random, world: World) -> Tampered:
    """A bill that the log repeats, and that verdict and terms do not lead to."""
    shape = chance.choice(("settled", "released", "resettled", "called off"))
    bundle = world.read(shape)
    forged = Forgery.of(bundle)
    assert forged.contract is not None
    number = int(chance.choice(sorted(forged.contract.bills)))
    owed = Bill.from_json(forged.contract.bills[str(number)])
    less = chance.randrange(1, 1_000)
    first, *others = owed.lines
    shifted = [msgspec.structs.replace(first, micros=first.micros - less), *others]
    change: dict[str, Any] = chance.choice(
        [
            {"payout": owed.payout - less},
            {"fee": owed.fee - less, "payout": owed.payout + less},
            {"lines": shifted},
            {"lines": others, "base": 0, "bonus": owed.bonus + owed.base},
            {"total": owed.total + less, "payout": owed.payout + less, "released": owed.released - less},
            {"released": owed.released + less},
            {"penalty": owed.penalty + less, "bonus": owed.bonus + less},
        ]
    )
    data = forged.with_bill(number, **change).committed().packed(world.signer, bundle)
    return Tampered(f"the operator's bill {number} ({shape}): {sorted(change)}", data, AuditStep.SETTLEMENT)


def operator_moves(chance: random.Random, world: World) -> Tampered:
    """Money that moves once more, once less or in another order than it can."""
    shape = chance.choice(("settled", "released", "resettled", "called off"))
    bundle = world.read(shape)
    forged = Forgery.of(bundle)
    moves = [
        n for n, one in enumerate(forged.entries) if isinstance(one, SettlementEntry | ReversalEntry | ReleaseEntry)
    ]
    entries = [*forged.entries]
    chosen = chance.choice(moves)
    how = chance.choice(["again", "at the end", "reversed", "released"])
    entry = entries[chosen]
    assert isinstance(entry, ContractEntry)
    head = (entry.at, entry.tenant, entry.outcome, entry.contract, 0)
    match how:
        case "again":
            entries.insert(chosen, entry)
        case "at the end":
            entries.append(entry)
        case "reversed":
            entries.insert(chosen, ReversalEntry(*head, 1, "USD", 1, "me", "no"))
        case _:
            entries.append(ReleaseEntry(*head, "USD", 90_000, chance.choice(["void", "expire"]), "me", "no"))
    data = forged._replace(entries=entries).renumbered().committed().packed(world.signer, bundle)
    return Tampered(f"the operator's moves: {how} {chosen} ({shape})", data, AuditStep.SETTLEMENT)


def operator_belief(chance: random.Random, world: World) -> Tampered:
    """Flags that were not raised, or a dossier that does not lead to those that were."""
    shape = chance.choice(("settled", "released", "resettled", "called off"))
    bundle = world.read(shape)
    forged = Forgery.of(bundle)
    check = forged.check
    how = chance.choice(["entry", "dossier", "planted", "work", "answer", "other work", "rules", "form"])
    match how:
        case "entry":
            forged = forged.changed(GovernanceEntry, flags=("made_up",))
        case "dossier":
            dossier = msgspec.structs.replace(check.dossier, leaked=["0" * 64], canaries=1)
            forged = forged.with_check(msgspec.structs.replace(check, dossier=dossier))
        case "planted":
            dossier = msgspec.structs.replace(check.dossier, canaries=check.dossier.canaries + 1)
            forged = forged.with_check(msgspec.structs.replace(check, dossier=dossier))
        case "work":
            assert forged.contract is not None
            planted = {**from_canonical(forged.contract.work), "impossible": True}
            forged = forged.under(work=canonical(planted))
        case "answer":
            said = msgspec.structs.replace(check.result, confidence=0.123)
            forged = forged.with_check(msgspec.structs.replace(check, result=said))
        case "other work":
            dossier = msgspec.structs.replace(check.dossier, output_chars=check.dossier.output_chars + 1)
            forged = forged.with_check(msgspec.structs.replace(check, dossier=dossier))
        case "rules":
            forged = forged.with_check(msgspec.structs.replace(check, rules={}))
        case _:
            forged = forged.with_dossier(check.to_json().replace(b",", b", "))
    data = forged.committed().packed(world.signer, bundle)
    return Tampered(f"the operator's belief: {how} ({shape})", data, AuditStep.GOVERNANCE)


def operator_award(chance: random.Random, world: World) -> Tampered:
    """A contract that was never made, was made twice, or of which a ground came later."""
    shape = chance.choice(CONTRACTS)
    bundle = world.read(shape)
    forged = Forgery.of(bundle)
    award = next(one for one in forged.entries if isinstance(one, AwardEntry))
    how = chance.choice(["never", "twice", "late", "other version", "asked twice", "other criteria"])
    entries = [*forged.entries]
    match how:
        case "never":
            entries.remove(award)
        case "twice":
            entries.append(award)
        case "late":
            entries = [*(one for one in entries if one is not award), award]
        case "other version":
            entries = forged.changed(SettlementEntry, version=9).entries
        case "asked twice":
            entries += [one for one in entries if isinstance(one, GovernanceEntry)]
        case _:
            entries = forged.changed(AwardEntry, criteria="0" * 64).entries
    data = forged._replace(entries=entries).renumbered().packed(world.signer, bundle)
    return Tampered(f"the operator's award: {how} ({shape})", data, AuditStep.SEQUENCE)


KINDS: dict[str, tuple[Tampering, ...]] = {
    "edit": (edit_zip, edit_byte, edit_byte, edit_byte, edit_field),
    "delete": (delete_entry, delete_file, delete_version, delete_salt, delete_proof, delete_consistency),
    "swap": (swap_entries, swap_files, swap_checkpoints, swap_versions, swap_bundles, swap_beginnings),
    "insert": (insert_entry, insert_version, insert_file, insert_contract, insert_around),
    "truncate": (truncate_tail, truncate_log, truncate_zip),
    "re-sign": (sign_again,),
    "wrong evidence": (wrong_evidence, operator_evidence, operator_value),
    "wrong verdict": (
        *(operator_verdict, operator_verdict, operator_digest, operator_statement),
        *(operator_order, operator_history, operator_erasure, operator_unerased, operator_late),
    ),
    "wrong money": (edit_contract, operator_terms, operator_bill, operator_moves, operator_belief, operator_award),
}
MAX_DRAWS = 1_000


def tampered(chance: random.Random, world: World, kind: str) -> Tampered:
    """One random tampering of a kind."""
    for _ in range(MAX_DRAWS):
        try:
            return chance.choice(KINDS[kind])(chance, world)
        except Unchanged:
            continue
    raise AssertionError(f"no {kind} in {MAX_DRAWS} draws")
