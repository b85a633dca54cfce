"""What the pure steps of checking a bundle accept, and what they say about what they do not."""

import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from io import BytesIO
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.audit.flaws import check_sentence
from tests.faults.tampering import TENANT, Forgery, World, _consistency, _root, _subtree, make_world

from meruit.audit import bundle as bundles
from meruit.audit.bundle import Bundle, ConsistencyProof, LoggedEntry, pack, pack_files, read, statement_about, unpack
from meruit.audit.findings import AuditStepState, Findings, StepFinding
from meruit.audit.verify.entries import check, findings
from meruit.errors import AuditStep, BundleFlaw
from meruit.log.entries import (
    PARTS,
    CriteriaEntry,
    Entry,
    ErasureEntry,
    EvidenceEntry,
    KeyEntry,
    VerdictEntry,
    entry_bytes,
)
from meruit.log.merkle import inclusion_proof, leaf_hash
from meruit.log.note import Checkpoint
from meruit.log.statement import envelope

pytestmark = pytest.mark.golden


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("records"))


def failing(data: bytes, step: AuditStep, **how: Any) -> str:
    """What is said about the bundle, once it fails where it should."""
    flaw = check(data, **how).flaw
    assert flaw is not None
    assert flaw.step is step, flaw
    check_sentence(str(flaw))
    return str(flaw)


def changed(world: World, change: Callable[[Bundle], Bundle], shape: str = "single") -> bytes:
    return pack(change(world.read(shape)))


def test_each_step_has_its_exit_code() -> None:
    assert {str(step): step.exit_code for step in AuditStep} == {
        "bundle": 10,
        "signature": 11,
        "inclusion": 12,
        "consistency": 13,
        "sequence": 14,
        "blobs": 15,
        "metrics": 16,
        "judge": 17,
        "statement": 18,
        "governance": 19,
        "settlement": 20,
        "witnesses": 21,
    }


def test_equal_files_give_equal_bytes(world: World) -> None:
    data = world.bundles["versions"]
    assert pack(read(unpack(data))) == data
    files = unpack(data)
    assert pack_files(dict(reversed(files.items()))) == data


def test_a_bundle_may_be_packed_anew_by_another_program(world: World) -> None:
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as opened:
        opened.mkdir("work")
        for name, content in reversed(unpack(world.bundles["single"]).items()):
            opened.writestr(name, content)
    assert check(packed.getvalue()).flaw is None


class Pipe(BytesIO):
    """What can be written once and in order only."""

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        raise OSError


def piped(world: World) -> bytes:
    """A bundle whose files are followed by their sizes, as a program writes it that does not know them before."""
    packed = Pipe()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, content in unpack(world.bundles["single"]).items():
            opened.writestr(name, content)
    return packed.getvalue()


def test_a_bundle_may_be_packed_anew_into_a_pipe(world: World) -> None:
    data = piped(world)
    assert check(data).flaw is None
    failing(data.replace(b"PK\x07\x08", b"PK\x07\x09", 1), AuditStep.BUNDLE)


def spliced(data: bytes, place: int, junk: bytes, *, listed: int = 0) -> bytes:
    """A zip with something more in it, whose end tells the new place (and size) of its list."""
    end = bytearray(data[-22:])
    size, start = (int.from_bytes(end[at : at + 4], "little") for at in (12, 16))
    end[12:20] = (size + listed).to_bytes(4, "little") + (start + len(junk) - listed).to_bytes(4, "little")
    body = data[:-22]
    return body[:place] + junk + body[place:] + end


def test_a_zip_reads_in_one_way_only(world: World) -> None:
    data = world.bundles["single"]
    listed, end = data.index(b"PK\x01\x02"), len(data) - 22
    second = data.index(b"PK\x03\x04", 4)
    for what, twofold in {
        "junk before": b"junk" + data,
        "junk behind": data + b"junk",
        "a comment": data[:-2] + b"\x04\x00junk",
        "junk before the list": spliced(data, listed, b"junk"),
        "junk behind the list": spliced(data, end, b"junk"),
        "junk in the list": spliced(data, end, b"junk", listed=4),
        "another count": data[: end + 8] + b"\x01\x00\x01\x00" + data[end + 12 :],
        "another disk": data[: end + 4] + b"\x01\x00" + data[end + 6 :],
        "a file that is not listed": spliced(data, listed, data[:second]),
        "another size in the file": data[:22] + b"\x01\x00\x00\x00" + data[26:],
        "another name in the file": data.replace(b"checkpoint.txt", b"checkpoint.TXT", 1),
    }.items():
        assert check(twofold).flaw is not None, what
        assert "zip" in failing(twofold, AuditStep.BUNDLE), what


def test_nothing_hides_between_two_files(world: World) -> None:
    """Also where every later place is told as it then is."""
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as opened:
        for name, content in unpack(world.bundles["single"]).items():
            opened.writestr(name, content)
            packed.write(b"junk")
            opened.start_dir = packed.tell()
    failing(packed.getvalue(), AuditStep.BUNDLE)


def test_nothing_hides_behind_the_packed_content_of_a_file(world: World) -> None:
    files = unpack(world.bundles["single"])
    (name, content), *_ = files.items()
    packed = zlib.compress(content, wbits=-15) + b"hidden"
    facts = struct.pack("<5H3L2H", 20, 0, 8, 0, 33, zlib.crc32(content), len(packed), len(content), len(name), 0)
    member = b"PK\x03\x04" + facts + name.encode() + packed
    listed = b"PK\x01\x02" + struct.pack("<H", 20) + facts + bytes(14) + name.encode()
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, len(listed), len(member), 0)
    assert name in failing(member + listed + end, AuditStep.BUNDLE)


def test_criteria_are_short(world: World) -> None:
    long = {"0" * 64: bytes(bundles.MAX_CRITERIA_BYTES + 1)}
    with pytest.raises(BundleFlaw, match="longer than 5000000 bytes"):
        changed(world, lambda whole: msgspec.structs.replace(whole, criteria=long))


def test_a_sound_bundle_is_read_whole(world: World) -> None:
    for shape, data in world.bundles.items():
        found = check(data, world.signer.verifier)
        assert found.flaw is None, shape
        assert [one.step for one in found.passed] == [*AuditStep][:7]
        assert found.history is not None
        assert found.bundle is not None
        assert [verdict.version for verdict in found.history.verdicts] == found.bundle.manifest.versions


@given(st.binary(max_size=2_000))
def test_no_bytes_make_it_raise(data: bytes) -> None:
    assert check(data).flaw is not None


@given(st.dictionaries(st.sampled_from(sorted(bundles.ALWAYS)), st.binary(max_size=100)))
def test_no_files_make_it_raise(files: dict[str, bytes]) -> None:
    assert check(pack_files(files)).flaw is not None


def test_findings_tell_every_step_once() -> None:
    flaw = BundleFlaw(AuditStep.INCLUSION, "not there")
    passed = [
        StepFinding(AuditStep.BUNDLE, AuditStepState.OK, ""),
        StepFinding(AuditStep.SIGNATURE, AuditStepState.OK, ""),
        StepFinding(AuditStep.WITNESSES, AuditStepState.SKIPPED, ""),
    ]
    found = findings("out_1", passed, flaw, ["a note"])
    assert [one.step for one in found.steps] == [*AuditStep]
    assert [one.state for one in found.steps[:5]] == [
        AuditStepState.OK,
        AuditStepState.OK,
        AuditStepState.SKIPPED,
        AuditStepState.FAILED,
        AuditStepState.NOT_REACHED,
    ]
    assert found.failed is AuditStep.INCLUSION
    assert Findings.from_json(found.to_json()) == found


def test_no_bundle_is_written_that_could_not_be_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = world.read("single")
    monkeypatch.setattr(bundles, "MAX_FILE_BYTES", 10)
    with pytest.raises(BundleFlaw, match="longer than 10 bytes"):
        pack(whole)


def test_a_key_file_holds_one_key(world: World) -> None:
    data = changed(world, lambda whole: msgspec.structs.replace(whole, key=whole.key.rstrip("\n")))
    failing(data, AuditStep.SIGNATURE)
    data = changed(world, lambda whole: msgspec.structs.replace(whole, key="a key"))
    assert "key.txt" in failing(data, AuditStep.SIGNATURE)


def test_what_is_to_be_text_is_text(world: World) -> None:
    files = unpack(world.bundles["single"])
    with pytest.raises(BundleFlaw, match=r"key\.txt"):
        read({**files, "key.txt": b"\xff"})


def test_a_pinned_key_must_be_the_one(world: World) -> None:
    said = failing(world.bundles["single"], AuditStep.SIGNATURE, pinned=world.stranger.verifier)
    assert world.signer.verifier.vkey in said


def test_the_log_is_the_one_that_the_key_is_named_for(world: World) -> None:
    note = world.signer.sign(Checkpoint("another-log", 3, bytes(32)).text())
    data = changed(world, lambda whole: msgspec.structs.replace(whole, first_checkpoint=note))
    assert "'another-log'" in failing(data, AuditStep.SIGNATURE)


def test_a_kept_checkpoint_is_compared_where_it_can_be(world: World) -> None:
    data, key = world.bundles["versions"], world.signer
    whole = world.read("versions")
    for note in (whole.checkpoint, whole.first_checkpoint):
        found = check(data, trusted=note)
        assert found.flaw is None
        check_sentence(found.notes[-1])
    size = int(whole.checkpoint.split("\n")[1])
    between = check(data, trusted=key.sign(Checkpoint(key.name, size - 1, bytes(32)).text()))
    assert between.flaw is None
    check_sentence(between.notes[-1])
    rewritten = key.sign(Checkpoint(key.name, size, bytes(32)).text())
    assert "two histories" in failing(data, AuditStep.CONSISTENCY, trusted=rewritten)
    foreign = world.stranger.sign(Checkpoint(key.name, size, bytes(32)).text())
    failing(data, AuditStep.SIGNATURE, trusted=foreign)
    other = key.sign(Checkpoint("other", size, bytes(32)).text())
    assert "'other'" in failing(data, AuditStep.SIGNATURE, trusted=other)


def resigned(world: World, change: Callable[[dict[str, Any]], None]) -> bytes:
    """The bundle with a statement that the key signed, and that says something else."""
    whole = world.read("single")
    found = check(world.bundles["single"])
    assert found.signed is not None
    statement = json.loads(json.dumps(found.signed.statement))
    change(statement)
    return pack(msgspec.structs.replace(whole, statement=envelope(statement, world.signer)))


@pytest.mark.parametrize(
    "change",
    [
        lambda statement: statement.pop("subject"),
        lambda statement: statement.update(subject=[]),
        lambda statement: statement.update(subject=7),
        lambda statement: statement.update(subject=["text"]),
        lambda statement: statement["subject"][0].pop("annotations"),
        lambda statement: statement["subject"][0]["annotations"].pop("log_size"),
        lambda statement: statement["subject"][0]["annotations"].update(log_size="many"),
        lambda statement: statement["subject"][0]["annotations"].update(more=1),
    ],
)
def test_a_statement_says_what_the_bundle_must_hold(world: World, change: Callable[[dict[str, Any]], None]) -> None:
    failing(resigned(world, change), AuditStep.SEQUENCE)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        ("log_size", 1),
        ("first_log_size", 1),
        ("outcome", "out_x"),
        ("contract", "c-x"),
        ("contract_seq", 1),
        ("contract_seq", 9),
        ("version", 2),
    ],
)
def test_a_statement_about_something_else_is_refused(world: World, annotation: str, value: object) -> None:
    failing(
        resigned(world, lambda statement: statement["subject"][0]["annotations"].update({annotation: value})),
        AuditStep.SEQUENCE,
    )


def forged(world: World, change: Callable[[Forgery], Forgery], shape: str = "single") -> bytes:
    whole = world.read(shape)
    return change(Forgery.of(whole)).packed(world.signer, whole)


def replaced(kind: type, **fields: Any) -> Callable[[Forgery], Forgery]:
    """Every entry of a kind, otherwise."""
    return lambda forgery: forgery._replace(
        entries=[
            msgspec.structs.replace(entry, **fields) if isinstance(entry, kind) else entry for entry in forgery.entries
        ]
    )


@pytest.mark.parametrize(
    "change",
    [
        replaced(KeyEntry, vkey="another"),
        replaced(CriteriaEntry, digest="0" * 64),
        replaced(CriteriaEntry, tenant="other"),
        replaced(EvidenceEntry, tenant="other"),
        replaced(EvidenceEntry, contract="other"),
        replaced(VerdictEntry, contract_seq=7),
        replaced(VerdictEntry, version=2),
        replaced(VerdictEntry, evidence_index=0),
        replaced(VerdictEntry, criteria_index=0),
    ],
)
def test_a_signed_log_that_cannot_be_true_is_refused(world: World, change: Callable[[Forgery], Forgery]) -> None:
    failing(forged(world, change), AuditStep.SEQUENCE)


def test_evidence_comes_first_and_once(world: World) -> None:
    def twice(forgery: Forgery) -> Forgery:
        again = next(one for one in forgery.entries if isinstance(one, EvidenceEntry))
        return forgery._replace(entries=[*forgery.entries, msgspec.structs.replace(again, contract_seq=3)])

    failing(forged(world, twice), AuditStep.SEQUENCE)

    def not_at_all(forgery: Forgery) -> Forgery:
        entries: list[Entry] = [one for one in forgery.entries if not isinstance(one, EvidenceEntry)]
        return forgery._replace(entries=entries)

    failing(forged(world, not_at_all), AuditStep.SEQUENCE)


def test_criteria_come_before_what_is_judged_by_them(world: World) -> None:
    def late(forgery: Forgery) -> Forgery:
        """Key, evidence, criteria, verdict."""
        key, criteria, evidence, verdict = sorted(forgery.entries, key=lambda one: _ORDER.index(type(one).__name__))
        moved = msgspec.structs.replace(verdict, criteria_index=2, evidence_index=1)
        return forgery._replace(entries=[key, evidence, criteria, moved])

    failing(forged(world, late), AuditStep.SEQUENCE)


_ORDER = [kind.__name__ for kind in (KeyEntry, CriteriaEntry, EvidenceEntry, VerdictEntry)]


def test_the_first_checkpoint_covers_the_criteria(world: World) -> None:
    whole = world.read("single")
    honest = Forgery.of(whole)
    hashes = [leaf_hash(entry_bytes(entry)) for entry in honest.entries]
    early = Checkpoint(world.signer.name, 1, _root(hashes[:1]))
    data = honest.packed(world.signer, whole, (early, _consistency(1, hashes)))
    failing(data, AuditStep.SEQUENCE)


def test_criteria_of_a_later_version_may_come_after_the_evidence(world: World) -> None:
    found = check(world.bundles["versions"])
    assert found.history is not None
    first, second, third = found.history.verdicts
    assert first.criteria_index < first.evidence_index < second.criteria_index == third.criteria_index


def test_criteria_that_nobody_was_judged_by_have_no_place(world: World) -> None:
    def more(forgery: Forgery) -> Forgery:
        extra = CriteriaEntry("2026", "acme", "0" * 64)
        return forgery._replace(entries=[*forgery.entries, extra])

    failing(forged(world, more), AuditStep.SEQUENCE)


def test_a_bundle_without_entries_of_the_contract_is_refused(world: World) -> None:
    def none(whole: Bundle) -> Bundle:
        keys = [one for one in whole.entries if b'"kind":"key"' in one.body]
        return msgspec.structs.replace(whole, entries=keys)

    failing(changed(world, none), AuditStep.SEQUENCE)


def logged_as(world: World, body: bytes) -> bytes:
    """A signed log whose key entry is written in some other way."""
    whole = world.read("single")
    bodies = [entry_bytes(entry) for entry in Forgery.of(whole).entries]
    bodies[0] = body
    hashes = [leaf_hash(one) for one in bodies]
    size = len(hashes)
    name = world.signer.name
    found = check(world.bundles["single"])
    assert found.signed is not None
    statement = found.signed.statement
    statement["subject"][0]["annotations"].update(log_size=size, first_log_size=1)
    return pack(
        msgspec.structs.replace(
            whole,
            checkpoint=world.signer.sign(Checkpoint(name, size, _root(hashes)).text()),
            first_checkpoint=world.signer.sign(Checkpoint(name, 1, _root(hashes[:1])).text()),
            consistency=ConsistencyProof(_consistency(1, hashes)),
            entries=[
                LoggedEntry(number, one, inclusion_proof(number, size, _subtree(hashes)))
                for number, one in enumerate(bodies)
            ],
            statement=envelope(statement, world.signer),
        )
    )


@pytest.mark.parametrize("body", [b"{}", b"", b"\xff", b'{"kind":"wish"}', b"[" * 10_000])
def test_an_entry_of_an_unknown_kind_is_refused(world: World, body: bytes) -> None:
    assert "entry 0" in failing(logged_as(world, body), AuditStep.SEQUENCE)


def test_an_entry_has_one_form(world: World) -> None:
    body = b'{"vkey":"a","at":"2026","kind":"key"}'
    failing(logged_as(world, body), AuditStep.SEQUENCE)


def test_what_was_erased_may_be_gone_and_nothing_else(world: World) -> None:
    found = check(world.bundles["erased"])
    assert found.flaw is None
    check_sentence(found.passed[-1].message)
    assert found.history is not None
    assert found.history.erased == {*PARTS, "result"}

    def of_input(forgery: Forgery) -> Forgery:
        entries = [
            msgspec.structs.replace(one, parts=("input",)) if isinstance(one, ErasureEntry) else one
            for one in forgery.entries
        ]
        return forgery._replace(entries=entries)

    assert "work/output.json" in failing(forged(world, of_input, "erased"), AuditStep.BLOBS)


def erasing(*parts: str) -> Callable[[Forgery], Forgery]:
    """An erasure at the end of the log of a single outcome, with all content left where it was."""
    return lambda forgery: forgery._replace(
        entries=[
            *forgery.entries,
            ErasureEntry("2026", TENANT, forgery.outcome, forgery.outcome, 3, parts, "asked for"),
        ]
    )


@pytest.mark.parametrize(
    ("part", "file"),
    [("input", "work/input"), ("output", "work/output"), ("metadata", "work/metadata"), ("result", "verdicts/1")],
)
def test_what_was_erased_does_not_come_back(world: World, part: str, file: str) -> None:
    assert file in failing(forged(world, erasing(part)), AuditStep.BLOBS)


@pytest.mark.parametrize("part", [*PARTS, "result"])
def test_no_verdict_follows_an_erasure(world: World, part: str) -> None:
    def late(forgery: Forgery) -> Forgery:
        *before, verdict = forgery.entries
        assert isinstance(verdict, VerdictEntry)
        *_, erasure = erasing(part)(forgery).entries
        again = msgspec.structs.replace(verdict, version=2, contract_seq=4)
        return forgery._replace(entries=[*before, verdict, erasure, again])

    whole = world.read("single")
    manifest = msgspec.structs.replace(whole.manifest, versions=[1, 2])
    data = late(Forgery.of(whole)).packed(world.signer, msgspec.structs.replace(whole, manifest=manifest))
    assert "version 2" in failing(data, AuditStep.SEQUENCE)


@pytest.mark.parametrize("salt", ["", "zz", "00" * 15, "AB" * 16, "0 " * 16])
def test_a_salt_has_one_form(world: World, salt: str) -> None:
    data = changed(
        world, lambda whole: msgspec.structs.replace(whole, salts=msgspec.structs.replace(whole.salts, output=salt))
    )
    assert "work/output.json" in failing(data, AuditStep.BLOBS)


def test_a_statement_without_a_result_names_no_criteria(world: World) -> None:
    found = check(world.bundles["erased"])
    assert found.history is not None
    said = statement_about(found.history.verdicts[-1], found.history.about, {}, None)
    assert said["predicate"]["passedTests"] == said["predicate"]["failedTests"] == []
    assert len(said["subject"]) == 1


def test_long_texts_of_strangers_are_cut() -> None:
    assert len(bundles.short("x" * 5_000)) < 120
