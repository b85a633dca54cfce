"""A second deployment as witness; a rollback, a fork and a truncated log, seen by `follow` and by `verify`."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from sqlalchemy import delete, select, update
from tests.faults.tampering import TENANT, open_store, put

from meruit.api.telemetry import Instruments
from meruit.api.witness_app import WitnessApp
from meruit.api.witnessing import FIRST_WAIT_S, MAX_WAIT_S, WitnessedState, Witnessing, witness_once
from meruit.audit.cosigning import WitnessClient, request_cosignatures
from meruit.audit.export import export, receipt
from meruit.audit.follow import FollowResult, follow, read_followed
from meruit.audit.known_witness import KnownWitness
from meruit.audit.log_sources import StoreLog
from meruit.audit.verify.outcome import verify_bundle
from meruit.audit.verify.receipt import verify_receipt
from meruit.audit.verify.signatures import WitnessQuorum
from meruit.audit.witness import TrustedLog, Witness, open_witness_key
from meruit.errors import AuditStep, BundleFlaw, LogContradiction, UnreadableFile, WitnessRefusal
from meruit.log.cosignature import WitnessKey, cosignatures
from meruit.log.key_chain import ROOT, admit_key
from meruit.log.merkle import Frontier
from meruit.log.note import SigningKey, split_note
from meruit.model.access import Scope
from meruit.sources.http import HttpClient
from meruit.sources.retry import BackoffSchedule, ReadPolicy
from meruit.store import tables
from meruit.store.key_admission import insert_key
from meruit.store.location import KEY_FILE
from meruit.store.store import Store

SCOPE = Scope(TENANT)
NOW = "2026-01-01T00:00:00Z"
ONCE = ReadPolicy(retry=BackoffSchedule(tries=1))


OPENED: list[Witness] = []


@pytest.fixture(autouse=True)
def _close_witnesses() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()


class Watched(NamedTuple):
    """A log, its witness, and a reader's file."""

    store: Store
    folder: Path
    known: KnownWitness
    client: WitnessClient
    file: Path

    def cosign(self, store: Store | None = None) -> Any:
        """Ask the witness about the newest checkpoint; its answer."""
        _, answers = asyncio.run(request_cosignatures(store or self.store, self.client, [self.known]))
        return answers[self.known.name]

    @property
    def quorum(self) -> WitnessQuorum:
        return WitnessQuorum((self.known.key,), 1)

    def look(self, store: Store | None = None, *, witnessed: bool = False) -> FollowResult:
        asked = self.quorum if witnessed else WitnessQuorum()
        return asyncio.run(follow(StoreLog(store or self.store), self.file, NOW, quorum=asked))


def witness_of(vkey: str, folder: Path, seed: int = 5) -> tuple[KnownWitness, WitnessClient]:
    signer = open_witness_key(folder, None, lambda count: bytes([seed] * count))
    made = Witness(folder, signer, [TrustedLog.parse(vkey)], lambda: 1_800_000_000)
    OPENED.append(made)
    # Any: httpx types ASGI apps in a way of its own.
    app: Any = WitnessApp(made)
    client = WitnessClient(HttpClient(transport=httpx.ASGITransport(app=app)))
    return KnownWitness("partner", "http://witness.example/prefix", made.key), client


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    store = open_store(tmp_path / "log")
    put(store)
    made = Watched(store, tmp_path / "log", *witness_of(store.signer.vkey, tmp_path / "witness"), tmp_path / "kept")
    yield made
    made.store.close()


def verified(bundle: bytes, quorum: WitnessQuorum) -> AuditStep | None:
    return verify_bundle(bundle, witnesses=quorum).failed


def test_each_checkpoint_extends_the_last(watched: Watched) -> None:
    assert watched.look().state == "first"
    assert watched.look().state == "same"
    outcome = put(watched.store)
    assert not isinstance(watched.cosign(), WitnessRefusal)
    found = watched.look(witnessed=True)
    assert (found.state, found.witnesses, found.witnessed) == ("extended", [watched.known.key.name], found.size)
    kept = read_followed(watched.file)
    assert kept is not None
    assert (len(kept.checkpoints), kept.contradictions) == (2, [])
    assert kept.witnessed is not None
    bundle = export(watched.store, SCOPE, outcome)
    assert verified(bundle, watched.quorum) is None
    # An entry that no witness has seen yet.
    late = put(watched.store)
    assert verified(export(watched.store, SCOPE, late), watched.quorum) is AuditStep.WITNESSES
    found = watched.look(witnessed=True)
    assert found.witnessed < found.size
    watched.cosign()
    assert verified(export(watched.store, SCOPE, late), watched.quorum) is None


def refused(watched: Watched, store: Store, code: str, witness_code: str) -> None:
    """The log is contradicted by its reader, by its witness, and by a reader of a bundle who trusts the witness."""
    for _ in range(2):
        with pytest.raises(LogContradiction) as found:
            watched.look(store)
        assert found.value.code == code
    kept = read_followed(watched.file)
    assert kept is not None
    assert {one.code for one in kept.contradictions} == {code}
    answer = watched.cosign(store)
    assert isinstance(answer, WitnessRefusal)
    assert answer.code == witness_code
    bundle = export(store, SCOPE, put(store))
    assert verified(bundle, WitnessQuorum()) is None
    found_step = verify_bundle(bundle, witnesses=watched.quorum)
    assert found_step.failed is AuditStep.WITNESSES
    assert AuditStep.WITNESSES.exit_code == 21


def test_a_rollback_is_seen(watched: Watched, tmp_path: Path) -> None:
    watched.store.close()
    shutil.copytree(watched.folder, tmp_path / "backup")
    grown = open_store(watched.folder, seed=2)
    for _ in range(3):
        put(grown)
    assert not isinstance(watched.cosign(grown), WitnessRefusal)
    assert watched.look(grown).state == "first"
    grown.close()
    # The operator restores an old copy of the database, with its key.
    restored = open_store(tmp_path / "backup", seed=3)
    refused(watched, restored, "log_rolled_back", "witness_ahead")
    restored.close()


def test_a_fork_is_seen(watched: Watched, tmp_path: Path) -> None:
    watched.store.close()
    shutil.copytree(watched.folder, tmp_path / "fork")
    grown = open_store(watched.folder, seed=2)
    put(grown)
    watched.cosign(grown)
    watched.look(grown)
    grown.close()
    # Other readers are shown another history, which is longer.
    forked = open_store(tmp_path / "fork", seed=3)
    for _ in range(3):
        put(forked, output={"text": "the dog sat"})
    refused(watched, forked, "log_forked", "witness_saw_fork")
    forked.close()


def test_a_fork_of_the_same_size_is_seen(watched: Watched, tmp_path: Path) -> None:
    watched.store.close()
    shutil.copytree(watched.folder, tmp_path / "fork")
    grown = open_store(watched.folder, seed=2)
    put(grown)
    watched.cosign(grown)
    watched.look(grown)
    grown.close()
    forked = open_store(tmp_path / "fork", seed=3)
    outcome = put(forked, output={"text": "the dog sat"})
    with pytest.raises(LogContradiction) as found:
        watched.look(forked)
    assert found.value.code == "log_forked"
    assert watched.cosign(forked).code == "witness_saw_fork"
    assert [*(tmp_path / "witness" / "forks").iterdir()]
    assert verified(export(forked, SCOPE, outcome), watched.quorum) is AuditStep.WITNESSES
    forked.close()


def truncate(store: Store, size: int) -> None:
    """Cut a log off as an insider with the database and the key would, and leave nothing behind."""
    with store.database.writer.begin() as connection:
        hashes = connection.execute(select(tables.log_leaves.c.hash).order_by(tables.log_leaves.c.seq)).scalars().all()
        connection.execute(delete(tables.log_leaves).where(tables.log_leaves.c.seq >= size))
        connection.execute(delete(tables.checkpoints).where(tables.checkpoints.c.size > size))
        frontier = Frontier(0, ()).extend([bytes(one) for one in hashes[:size]])
        connection.execute(update(tables.log_state).values(size=size, peaks=frontier.to_bytes()))


def test_a_truncated_log_is_seen(watched: Watched) -> None:
    outcome = put(watched.store)
    before = watched.look().size
    for _ in range(3):
        put(watched.store)
    watched.cosign()
    watched.look()
    watched.store.close()
    cut = open_store(watched.folder, seed=4)
    truncate(cut, before)
    cut.close()
    cut = open_store(watched.folder, seed=5)
    with pytest.raises(LogContradiction) as found:
        watched.look(cut)
    assert found.value.code == "log_rolled_back"
    assert watched.cosign(cut).code == "witness_ahead"
    assert verified(export(cut, SCOPE, outcome), watched.quorum) is AuditStep.WITNESSES
    cut.close()


def test_a_reader_who_asks_for_witnesses_is_not_shown_an_old_log(watched: Watched) -> None:
    """The log is cut off, but still serves a checkpoint that was cosigned when it was longer."""
    size = watched.look().size
    put(watched.store)
    watched.cosign()
    with watched.store.database.reading() as connection:
        rows = connection.execute(select(tables.checkpoints)).all()
    truncate(watched.store, size)
    with watched.store.database.writer.begin() as connection:
        for row in rows:
            if row.size > size:
                connection.execute(tables.checkpoints.insert().values(**row._asdict()))
    with pytest.raises(LogContradiction) as found:
        watched.look(witnessed=True)
    assert found.value.code in {"log_rolled_back", "log_forked"}


def test_too_few_witnesses_are_said_and_nothing_is_kept(watched: Watched, tmp_path: Path) -> None:
    with pytest.raises(LogContradiction) as found:
        watched.look(witnessed=True)
    assert found.value.code == "not_witnessed"
    assert not watched.file.exists()
    other, _ = witness_of(watched.store.signer.vkey, tmp_path / "other", seed=6)
    watched.cosign()
    both = WitnessQuorum((watched.known.key, other.key), 2)
    with pytest.raises(LogContradiction) as found:
        asyncio.run(follow(StoreLog(watched.store), watched.file, NOW, quorum=both))
    assert found.value.code == "not_witnessed"


def test_a_log_under_another_key_is_not_followed(watched: Watched) -> None:
    watched.look()
    other = SigningKey.generate(watched.store.signer.name, bytes(32)).verifier
    with pytest.raises(LogContradiction) as found:
        asyncio.run(follow(StoreLog(watched.store), watched.file, NOW, key=other))
    assert found.value.code == "key_changed"
    watched.file.unlink()
    with pytest.raises(LogContradiction) as found:
        asyncio.run(follow(StoreLog(watched.store), watched.file, NOW, key=other))
    assert found.value.code == "key_changed"


# Keys that replace each other.


def admit(store: Store, signer: SigningKey, new: SigningKey, *, role: str = "", retires: str = "") -> None:
    store.recorder.refuse_writes(None)
    store.recorder.write(
        lambda writing: insert_key(
            writing, admit_key(signer, writing.now.written, store.signer.name, new.vkey, role=role, retires=retires)
        ),
        sign_now=True,
    )


def reopened(watched: Watched, store: Store, signer: SigningKey) -> Store:
    """The same folder with another key in it."""
    store.close()
    (watched.folder / KEY_FILE).write_bytes(signer.to_pem())
    return open_store(watched.folder, seed=10 + sum(signer.to_pem()) % 200)


def key_of(store: Store, seed: int, name: str | None = None) -> SigningKey:
    return SigningKey.generate(name or store.signer.name, bytes([seed] * 32))


def test_a_rotation_is_followed(watched: Watched) -> None:
    store, old = watched.store, watched.store.signer
    assert watched.look().key == old.vkey
    for seed in (1, 2):
        new = key_of(store, seed)
        admit(store, store.signer, new, retires=store.signer.vkey)
        store = reopened(watched, store, new)
        put(store)
        found = watched.look(store)
        assert (found.state, found.rotated, found.key) == ("extended", True, new.vkey)
        assert (watched.look(store).rotated, watched.look(store).state) == (False, "same")
    # A reader who pinned the first key goes on, too.
    pinned = asyncio.run(follow(StoreLog(store), watched.file, NOW, key=old.verifier))
    assert (pinned.state, pinned.rotated) == ("same", False)
    store.close()


def test_a_second_machine_of_the_log_is_followed(watched: Watched) -> None:
    watched.look()
    other = key_of(watched.store, 1)
    admit(watched.store, watched.store.signer, other)
    put(watched.store)
    both = reopened(watched, watched.store, other)
    found = watched.look(both)
    assert (found.state, found.rotated) == ("extended", False)
    both.close()


def test_a_key_that_was_retired_is_not_believed_any_more(watched: Watched) -> None:
    store, old = watched.store, watched.store.signer
    watched.look()
    new = key_of(store, 1)
    admit(store, old, new, retires=old.vkey)
    store = reopened(watched, store, new)
    put(store)
    watched.look(store)
    put(store)

    class Thief(StoreLog):
        """Signs what is there with the key that was retired."""

        async def checkpoint(self, *, witnessed: bool) -> str:
            note = await super().checkpoint(witnessed=witnessed)
            return old.sign(split_note(note)[0])

    with pytest.raises(LogContradiction) as found:
        asyncio.run(follow(Thief(store), watched.file, NOW))
    assert found.value.code == "not_signed"
    store.close()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda proofs: [], "log_forked"),
        (lambda proofs: [replace(proofs[0], body=proofs[0].body.replace(b"meruit", b"merUit", 1))], "log_forked"),
        (lambda proofs: [*proofs, replace(proofs[0], index=1)], "key_not_proven"),
        (lambda proofs: [replace(proofs[0], proof=[bytes(32)])], "key_not_proven"),
    ],
)
def test_a_chain_that_does_not_hold_is_refused(watched: Watched, change: Any, code: str) -> None:
    class Liar(StoreLog):
        async def keys(self, size: int) -> Any:
            return change([*await super().keys(size)])

    watched.look()
    put(watched.store)
    with pytest.raises(LogContradiction) as found:
        asyncio.run(follow(Liar(watched.store), watched.file, NOW))
    assert found.value.code == code


def test_an_entry_that_admits_nothing_is_refused(watched: Watched) -> None:
    """A database writer adds a key; the service signs the log that has it, and no reader believes it."""
    watched.look()
    stranger = key_of(watched.store, 1)
    admit(watched.store, stranger, stranger)
    with pytest.raises(LogContradiction) as found:
        watched.look()
    assert found.value.code == "key_not_admitted"


def test_a_late_root_needs_the_consent_of_readers(watched: Watched) -> None:
    """Whoever steals the signing key can install a root; its keys are not followed until the reader accepts it."""
    store = watched.store
    watched.look()
    root, new = key_of(store, 3, "meruit-root"), key_of(store, 4)
    admit(store, store.signer, root, role=ROOT)
    shown = watched.look()
    assert (shown.state, shown.root, shown.root_accepted) == ("extended", root.vkey, False)
    admit(store, root, new, retires=store.signer.vkey)
    store = reopened(watched, store, new)
    with pytest.raises(LogContradiction) as found:
        watched.look(store)
    assert found.value.code == "root_not_accepted"
    accepted = asyncio.run(follow(StoreLog(store), watched.file, NOW, accept_root=root.verifier))
    assert (accepted.rotated, accepted.key, accepted.root_accepted) == (True, new.vkey, True)
    # A root that is accepted names its successor.
    following = key_of(store, 5, "meruit-root")
    admit(store, root, following, role=ROOT)
    assert (watched.look(store).root, watched.look(store).root_accepted) == (following.vkey, True)
    store.close()


def test_a_root_of_the_first_look_is_known(watched: Watched) -> None:
    store = watched.store
    root, new = key_of(store, 3, "meruit-root"), key_of(store, 4)
    admit(store, store.signer, root, role=ROOT)
    assert (watched.look().root, watched.look().root_accepted) == (root.vkey, True)
    admit(store, root, new, retires=store.signer.vkey)
    store = reopened(watched, store, new)
    assert watched.look(store).rotated
    store.close()


def test_a_rollback_behind_a_rotation_is_seen(watched: Watched, tmp_path: Path) -> None:
    watched.store.close()
    shutil.copytree(watched.folder, tmp_path / "backup")
    store = open_store(watched.folder, seed=2)
    watched.look(store)
    new = key_of(store, 1)
    admit(store, store.signer, new, retires=store.signer.vkey)
    store = reopened(watched, store, new)
    put(store)
    watched.look(store)
    store.close()
    restored = open_store(tmp_path / "backup", seed=3)
    with pytest.raises(LogContradiction) as found:
        watched.look(restored)
    assert found.value.code == "log_rolled_back"
    restored.close()


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1]", b'{"format":"x","key":"k","checkpoints":[],"contradictions":[]}']
)
def test_a_file_that_was_damaged_is_not_overwritten(watched: Watched, content: bytes) -> None:
    watched.file.write_bytes(content)
    with pytest.raises(UnreadableFile):
        watched.look()
    assert watched.file.read_bytes() == content


def test_cosignatures_survive_another_machine_with_its_own_key(watched: Watched) -> None:
    """The note is signed again by the key of the machine that exports; what witnesses signed stays."""
    watched.cosign()
    with watched.store.database.reading() as connection:
        note = connection.execute(select(tables.checkpoints.c.note).order_by(tables.checkpoints.c.size.desc())).scalar()
    assert len(cosignatures(str(note), [watched.known.key])) == 1


def test_a_receipt_is_checked_offline_with_its_witnesses(watched: Watched) -> None:
    outcome = put(watched.store)
    watched.cosign()
    data = receipt(watched.store, SCOPE, outcome).to_json()
    found = verify_receipt(data, key=watched.store.signer.verifier, quorum=watched.quorum)
    assert (found.outcome, found.version, found.verdict) == (outcome, 1, "pass")
    other = SigningKey.generate(watched.store.signer.name, bytes(32))
    said = json.loads(data)
    stranger = WitnessQuorum((WitnessKey("x", bytes(32)),), 1)
    for change, step, asked in [
        ({}, AuditStep.WITNESSES, {"quorum": stranger}),
        ({}, AuditStep.SIGNATURE, {"key": other.verifier}),
        ({"vkey": other.vkey}, AuditStep.SIGNATURE, {}),
        ({"vkey": "nothing"}, AuditStep.SIGNATURE, {}),
        ({"index": said["index"] - 1}, AuditStep.INCLUSION, {}),
        ({"proof": []}, AuditStep.INCLUSION, {}),
        ({"outcome": "out_other"}, AuditStep.SEQUENCE, {}),
        ({"version": 2}, AuditStep.SEQUENCE, {}),
        ({"format": "other"}, AuditStep.BUNDLE, {}),
        ({"proof": None}, AuditStep.BUNDLE, {}),
    ]:
        # Any: keyword arguments of two types.
        more: Any = asked
        with pytest.raises(BundleFlaw) as flaw:
            verify_receipt(json.dumps({**said, **change}).encode(), **more)
        assert flaw.value.step is step, change
    with pytest.raises(BundleFlaw):
        verify_receipt(b"not json")


# The service asks in the background.


def test_the_service_asks_and_waits_longer_after_each_refusal(watched: Watched) -> None:
    witnessing, instruments = Witnessing([watched.known], 1), Instruments()

    def tick(client: WitnessClient, now: float) -> WitnessedState:
        asyncio.run(witness_once(watched.store, witnessing, instruments, client, now))
        return witnessing.state

    calls = list[int]()

    def refuse(_request: httpx.Request) -> httpx.Response:
        calls.append(1)
        return httpx.Response(404)

    gone = WitnessClient(HttpClient(transport=httpx.MockTransport(refuse)))
    assert witnessing.state is WitnessedState.WAITING
    waits, now = [], 0.0
    for _ in range(12):
        assert tick(gone, now) is WitnessedState.WAITING
        assert tick(gone, now) is WitnessedState.WAITING
        waits.append(witnessing.asked["partner"].not_before - now)
        now = witnessing.asked["partner"].not_before
    assert (waits[0], waits[1], waits[-1], len(calls)) == (FIRST_WAIT_S, 2 * FIRST_WAIT_S, MAX_WAIT_S, 12)
    assert witnessing.statuses()[0].code == "witness_unknown_log"
    assert tick(watched.client, now) is WitnessedState.WITNESSED
    assert b"meruit_audit_witnessed_entries 0.0" not in instruments.exposition()
    put(watched.store)
    # What was added is signed for, and cosigned, although no other request comes.
    assert tick(watched.client, now) is WitnessedState.WITNESSED
    with watched.store.database.reading() as connection:
        newest = connection.execute(select(tables.log_state.c.size)).scalar_one()
    assert witnessing.newest == newest


def test_a_witness_that_saw_another_history_turns_the_state_red(watched: Watched) -> None:
    witnessing = Witnessing([watched.known], 1)
    ahead = httpx.MockTransport(lambda _: httpx.Response(409, text="99999\n"))
    client = WitnessClient(HttpClient(transport=ahead))
    asyncio.run(witness_once(watched.store, witnessing, Instruments(), client, 0.0))
    assert witnessing.state is WitnessedState.CONTRADICTED


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (httpx.Response(200, text=""), "witness_unsigned"),
        (httpx.Response(200, content=b"\xff\n\xe2\x80\x94 x AAAA\n"), "witness_unsigned"),
        (httpx.Response(409, text="many"), "witness_unreadable"),
        (httpx.Response(409, text="1\n"), "witness_busy"),
        (httpx.Response(403), "witness_unknown_key"),
        (httpx.Response(422), "witness_saw_fork"),
        (httpx.Response(500), "witness_unreadable"),
        (httpx.Response(302, headers={"location": "http://other.example"}), "witness_unreadable"),
    ],
)
def test_what_a_witness_answers_has_a_code(watched: Watched, reply: httpx.Response, code: str) -> None:
    client = WitnessClient(HttpClient(transport=httpx.MockTransport(lambda _: reply)))
    answer = watched._replace(client=client).cosign()
    assert isinstance(answer, WitnessRefusal)
    assert answer.code == code


def test_a_witness_that_cannot_be_reached_is_said(watched: Watched) -> None:
    def fail(_request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    client = WitnessClient(HttpClient(transport=httpx.MockTransport(fail), policy=ONCE))
    answer = watched._replace(client=client).cosign()
    assert isinstance(answer, WitnessRefusal)
    assert answer.code == "witness_unreachable"
