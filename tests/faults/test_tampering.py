"""A bundle that was changed never passes, and the first step that fails is the one that the change must break."""

import io
import json
import os
import random
import struct
import subprocess
import sys
import zipfile
import zlib
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from tests.faults.tampering import CONTRACTS, KINDS, LATENCY, Forgery, World, make_world, tampered

from meruit.audit.bundle import FORMAT, MAX_BUNDLE_BYTES, MAX_CRITERIA_BYTES, MAX_FILES, pack_files, unpack
from meruit.audit.findings import AuditStepState
from meruit.audit.verify.outcome import MAX_CRITERIA, verify_bundle
from meruit.errors import AuditStep
from meruit.log.entries import CriteriaEntry, Entry, VerdictEntry
from meruit.model.canonical import canonical

SHARDS = 6
EACH = 30
"""Of every kind in every shard: 1,620 tamperings in all."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("records"))


def test_there_are_a_thousand_tamperings() -> None:
    assert SHARDS * EACH * len(KINDS) >= 1_000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_tampering_goes_unnoticed(world: World, kind: str, shard: int) -> None:
    chance = random.Random(f"{kind} {shard}")
    for _ in range(EACH):
        forged = tampered(chance, world, kind)
        found = verify_bundle(forged.data, key=world.signer.verifier if forged.pinned else None)
        assert found.failed is forged.expected, (forged.what, found)
        states = [step.state for step in found.steps]
        failed = [*AuditStep].index(forged.expected)
        assert states[failed:] == [
            AuditStepState.FAILED,
            *[AuditStepState.NOT_REACHED] * (len(AuditStep) - failed - 1),
        ], forged.what


PLAIN = ("single", "versions", "shared", "expression", "big", "assertion")


@pytest.mark.parametrize("shape", [*PLAIN, "erased", *CONTRACTS])
@pytest.mark.parametrize("pinned", [True, False])
def test_what_nobody_touched_passes(world: World, shape: str, pinned: bool) -> None:
    found = verify_bundle(world.bundles[shape], key=world.signer.verifier if pinned else None, run_code=True)
    assert found.failed is None, found
    assert {step.state for step in found.steps} <= {AuditStepState.OK, AuditStepState.SKIPPED}
    assert len(found.steps) == len(AuditStep)
    skipped = any(remark.startswith(("not rerun", "not recomputed")) for remark in found.notes)
    assert skipped == (shape == "paid and erased"), found.notes


@pytest.mark.parametrize("shape", [*PLAIN, *CONTRACTS])
def test_a_forger_without_a_lie_passes(world: World, shape: str) -> None:
    """Else the tamperings of dishonest operators would fail for the forger's mistakes."""
    bundle = world.read(shape)
    data = Forgery.of(bundle).committed().packed(world.signer, bundle)
    assert verify_bundle(data, key=world.signer.verifier).failed is None


def _zip(*files: tuple[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, content in files:
            opened.writestr(name, content)
    return packed.getvalue()


def _files(world: World) -> list[tuple[str, bytes]]:
    return [*unpack(world.bundles["single"]).items()]


def _claiming(data: bytes, offset: int, value: bytes) -> bytes:
    """A zip whose list says otherwise of its first file."""
    place = data.index(b"PK\x01\x02") + offset
    return data[:place] + value + data[place + len(value) :]


def _bare(name: str, packed: bytes, crc: int, size: int) -> bytes:
    """A zip of one deflated file, of which it says what it is told to."""
    facts = struct.pack("<5H3L2H", 20, 0, 8, 0, 33, crc, len(packed), size, len(name), 0)
    member = b"PK\x03\x04" + facts + name.encode() + packed
    listed = b"PK\x01\x02" + struct.pack("<H", 20) + facts + struct.pack("<3H2L", 0, 0, 0, 0, 0) + name.encode()
    return member + listed + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, len(listed), len(member), 0)


def _bomb(name: str, claimed: int) -> bytes:
    """About a megabyte that unpacks to a gigabyte, and says that it is much less."""
    packing = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    block = packing.compress(bytes(2**24)) + packing.flush(zlib.Z_FULL_FLUSH)
    return _bare(name, block * 64 + packing.flush(), 0, claimed)


DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000


def hostile(world: World) -> dict[str, bytes]:
    files = _files(world)
    bundle = world.bundles["single"]
    manifest = dict(files)["manifest.json"]
    others = [(name, content) for name, content in files if name != "manifest.json"]
    flooded = _zip(*((f"verdicts/{number}.json", b"") for number in range(1, MAX_FILES + 2)))
    return {
        "nothing": b"",
        "no zip": b"this is no zip at all",
        "a zip without files": _zip(),
        "a bomb": _zip(("work/output.json", bytes(65 * 1024 * 1024))),
        "many bombs": _zip(*((f"verdicts/{number}.json", bytes(60 * 1024 * 1024)) for number in range(1, 6))),
        "a bomb that lies about its size": _claiming(_zip(("key.txt", bytes(10**7))), 24, struct.pack("<I", 100)),
        "a bomb that says nothing of its size": _bomb("work/output.json", 10),
        "a bomb of a name that no bundle holds": _bomb("bomb.json", 10),
        "long criteria": _zip(*files, (f"criteria/{'0' * 64}.json", bytes(MAX_CRITERIA_BYTES + 1))),
        "less than it says": _bare("key.txt", zlib.compress(b"short", wbits=-15), zlib.crc32(b"short"), 9),
        "something hidden in a folder": _bare("work/", b"\x03\x00hidden", 0, 0),
        "something before it": b"#!/bin/sh\n" + bundle,
        "something behind it": bundle + b"\n",
        "another zip before it": world.bundles["versions"] + bundle,
        "another zip behind it": bundle + world.bundles["versions"],
        "too many files": flooded,
        "far too many files": b"PK\x01\x02" * (3 * MAX_FILES),
        "too long": bytes(MAX_BUNDLE_BYTES + 1),
        "a file above": _zip(*files, ("../../etc/cron.d/evil", b"")),
        "an absolute file": _zip(*files, ("/tmp/evil", b"")),
        "a file of another system": _zip(*files, ("C:\\evil", b"")),
        "a hidden name": _zip(*others, ("manifest.json_.txt", manifest)).replace(
            b"manifest.json_", b"manifest.json\x00"
        ),
        "a folder": _zip(*files, ("other/", b"")),
        "a folder that is a file": _zip(*files, ("work/", b"hidden")),
        "encrypted": _claiming(bundle, 8, b"\x01\x00"),
        "packed in an unknown way": _claiming(bundle, 10, struct.pack("<H", 99)),
        "packed in a slow way": _claiming(bundle, 10, struct.pack("<H", zipfile.ZIP_LZMA)),
        "deep JSON": _zip(*others, ("manifest.json", DEEP)),
        "a list": _zip(*others, ("manifest.json", b"[]")),
        "null": _zip(*others, ("manifest.json", b"null")),
        "not UTF-8": _zip(*others, ("manifest.json", b"\xff\xfe")),
        "huge numbers": _zip(*others, ("manifest.json", manifest.replace(b"[1]", b"[" + b"9" * 5_000 + b"]"))),
        "infinite numbers": _zip(*others, ("manifest.json", manifest.replace(b"[1]", b"[1e999]"))),
        "another format": _zip(*others, ("manifest.json", manifest.replace(FORMAT.encode(), b"meruit-bundle/2"))),
        "spaces": _zip(*others, ("manifest.json", manifest.replace(b",", b", "))),
        "a key twice": _zip(*others, ("manifest.json", b'{"format":"x",' + manifest[1:])),
        "a loop": _claiming(bundle, 42, struct.pack("<I", 2**32 - 1)),
    }


def test_hostile_zips_fail_at_the_first_step(world: World) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = _zip(*_files(world), _files(world)[0])
    for what, data in {**hostile(world), "a name twice": twice}.items():
        found = verify_bundle(data)
        assert found.failed is AuditStep.BUNDLE, (what, found)
        assert found.steps[0].message, what


WEIGHED = """
import sys
from pathlib import Path
from meruit.audit.verify.entries import check

flaw = check(Path(sys.argv[1]).read_bytes()).flaw
(peak,) = (line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(flaw.step, peak)
"""
MAX_PEAK_KB = 300_000


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system does not tell how much was used")
@pytest.mark.parametrize("claimed", [10, 60 * 1024 * 1024, 2**32 - 1])
def test_a_bomb_takes_little_memory(tmp_path: Path, claimed: int) -> None:
    bomb = tmp_path / "bomb.zip"
    bomb.write_bytes(_bomb("work/output.json", claimed))
    command = [sys.executable, "-c", WEIGHED, str(bomb)]
    step, peak = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout.split()
    assert step == AuditStep.BUNDLE
    assert int(peak) < MAX_PEAK_KB


NASTY = [b"[]", b"{}", b"null", b"0", b'""', b"NaN", b"1e999", b"9" * 5_000, DEEP, b"\xff", b"", b'{"a":1,"a":2}']


@pytest.mark.parametrize("nasty", range(len(NASTY)))
def test_an_operator_who_commits_to_garbage_is_told_where(world: World, nasty: int) -> None:
    """Signed, included and committed to, so that it reaches the metrics and the judge."""
    bundle = world.read("single")
    honest = Forgery.of(bundle)
    garbage = NASTY[nasty]
    for part in ("input", "output", "metadata"):
        forged = honest._replace(work={**honest.work, part: garbage}).committed()
        found = verify_bundle(forged.packed(world.signer, bundle))
        # `{}` is work, only not the work that was judged; an empty metadata changes the latency alone.
        assert found.failed in (AuditStep.METRICS, AuditStep.JUDGE), (part, garbage[:20], found)
    # The forger states what the honest result says; what he hands over is something else.
    packed = unpack(honest._replace(entries=_recommitted(honest, garbage)).packed(world.signer, bundle))
    found = verify_bundle(pack_files({**packed, "verdicts/1.json": garbage}))
    assert found.failed is AuditStep.METRICS, found


def _recommitted(forgery: Forgery, result: bytes) -> list[Entry]:
    return forgery._replace(results={1: result}).committed().entries


def test_criteria_that_are_none_are_told(world: World) -> None:
    for body in (b"[]", b"{}", b'{"criteria":1}', DEEP, b'{"$x":1}', b"\xff", b"null"):
        packed = verify_bundle(_with_criteria(world, body))
        assert packed.failed is AuditStep.METRICS, (body[:20], packed)


def test_more_criteria_than_anyone_means_are_not_compiled(world: World) -> None:
    for count, why in ((MAX_CRITERIA + 1, "more than 1,000 criteria"), (MAX_CRITERIA, "not one of these criteria")):
        for body in ({"criteria": [LATENCY] * count}, {"success_criteria": {"criteria": [LATENCY] * count}}):
            found = verify_bundle(_with_criteria(world, canonical(body)))
            assert found.failed is AuditStep.METRICS, count
            assert why in found.steps[7].message


def _with_criteria(world: World, body: bytes) -> bytes:
    """A log in which other criteria are committed to, under the same result."""
    bundle = world.read("single")
    digest = sha256(body).hexdigest()
    forged = Forgery.of(bundle)
    entries = [
        msgspec.structs.replace(entry, digest=digest)
        if isinstance(entry, CriteriaEntry)
        else msgspec.structs.replace(entry, criteria=digest)
        if isinstance(entry, VerdictEntry)
        else entry
        for entry in forged.entries
    ]
    return forged._replace(entries=entries, criteria={digest: body}).packed(world.signer, bundle)


GUARD = """
import os, sys

FORBIDDEN = {"sqlite3", "_sqlite3", "sqlalchemy", "alembic", "httpx", "starlette", "uvicorn", "urllib.request"}
READ_ONLY = os.O_RDONLY

def watch(event, arguments):
    if event == "import" and arguments[0].split(".")[0] in FORBIDDEN:
        raise ImportError(f"{arguments[0]} must not be needed")
    if event.startswith(("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostby", "socket.sendto",
                         "sqlite3.", "subprocess.", "os.exec", "os.posix_spawn", "os.fork", "os.system")):
        raise RuntimeError(f"{event} must not happen")
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        raise RuntimeError(f"{arguments[0]} must not be written")

sys.dont_write_bytecode = True
sys.addaudithook(watch)
from meruit.cli import main
main()
"""


def _guarded(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MERUIT", "COV", "PYTEST"))
    }
    return subprocess.run(
        [sys.executable, "-c", GUARD, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("shape", ["versions", "resettled"])
def test_checking_needs_no_network_no_database_and_leaves_nothing(world: World, tmp_path: Path, shape: str) -> None:
    bundle, empty = tmp_path / "bundle.zip", tmp_path / "empty"
    bundle.write_bytes(world.bundles[shape])
    empty.mkdir()
    done = _guarded(empty, "audit", "verify", str(bundle), "--key", world.signer.vkey, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["failed"] is None
    assert [*empty.iterdir()] == []


def test_the_guard_of_that_test_guards(world: World, tmp_path: Path) -> None:
    done = _guarded(tmp_path, "audit", "key")
    assert "must not be needed" in done.stderr
