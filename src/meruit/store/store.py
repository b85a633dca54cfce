"""A store in use: the database, its one writer, the evidence, and the key that signs for it."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from meruit.errors import KeyNotAdmitted, MeruitError, StoreError
from meruit.log.entries import KeyEntry
from meruit.log.key_chain import KeyChain, admit_key
from meruit.log.merkle import Frontier
from meruit.log.note import SigningKey
from meruit.model.time import to_micros
from meruit.store.blobs import BlobStore
from meruit.store.database import Database, fetch
from meruit.store.key_admission import insert_key, read_key_chain
from meruit.store.location import KEY_FILE, Location
from meruit.store.migrate import open_database
from meruit.store.recorder import Recorder
from meruit.store.signed_rows import TrustedSigners
from meruit.store.transaction import WriteTransaction, id_of

if TYPE_CHECKING:
    from sqlalchemy import Connection

ENTROPY_BYTES = 4096
"""Asked of the system at a time; each question costs as much as a small record."""


def utc_now() -> datetime:
    """The time, with its zone."""
    return datetime.now(UTC)


class Entropy:
    """The system's randomness, fetched in pages; a forked process fetches its own."""

    def __init__(self, source: Callable[[int], bytes] = os.urandom) -> None:
        self._source = source
        self._page, self._used = b"", 0
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forget)

    def __call__(self, count: int) -> bytes:
        """So many random bytes."""
        if count > ENTROPY_BYTES:
            return self._source(count)
        with self._lock:
            if self._used + count > len(self._page):
                self._page, self._used = self._source(ENTROPY_BYTES), 0
            self._used += count
            return self._page[self._used - count : self._used]

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._page = b""
        self._used = 0


_SHARED = Entropy()


class ClockAndEntropy(msgspec.Struct, frozen=True):
    """Time and chance, which a test or a replay may choose."""

    clock: Callable[[], datetime] = utc_now
    entropy: Callable[[int], bytes] = _SHARED

    def new_id(self, kind: str) -> str:
        """A unique id; ids sort by time: `out_0065…`."""
        return id_of(kind, to_micros(self.clock()), self.entropy)


@dataclass(frozen=True, slots=True)
class SigningState:
    """Whether this process may sign the log, and which root the log has."""

    code: str
    """`ok`, or the code of what forbids it."""
    root: str
    """`none`, `founding` for a root as old as the log, `late` for one that was installed afterwards."""


class Store:
    """Everything that is kept, behind one door."""

    def __init__(self, database: Database, signer: SigningKey, surroundings: ClockAndEntropy) -> None:
        self.database = database
        self.signer = signer
        self.surroundings = surroundings
        self.blobs = BlobStore(database.location)
        self._refusal: KeyNotAdmitted | None = None
        self._chain: tuple[int, KeyChain] | None = None
        """The keys, and how many entries about them there were."""
        self.recorder = Recorder(database, signer, clock=surroundings.clock, entropy=surroundings.entropy)
        self.trusted = TrustedSigners(signer, self.recorder.proven_keys, self.recorder.sequences)

    @classmethod
    def open(
        cls,
        location: Location,
        surroundings: ClockAndEntropy = ClockAndEntropy(),  # noqa: B008 - frozen
        *,
        new_key: bool = False,
    ) -> "Store":
        """Open a store, made when new; raises StoreError when it cannot be used.

        With `new_key`, a signing key that was lost is replaced; else the loss raises StoreError.
        """
        database = open_database(location)
        try:
            origin = _origin(database, surroundings)
            if not new_key:
                _refuse_lost_key(database)
            signer = _signing_key(location.folder / KEY_FILE, origin, surroundings)
            store = cls(database, signer, surroundings)
        except BaseException:
            database.close()
            raise
        try:
            store.admit_own_key()
        except BaseException:
            store.close()
            raise
        return store

    def admit_key(self, signer: SigningKey, vkey: str, retires: str, *, role: str = "") -> None:
        """Record that a key is admitted; raises KeyNotAdmitted where the signer may not do that."""
        origin = self.signer.name
        chain = self.key_chain()
        if chain.is_in_force(vkey):
            raise KeyNotAdmitted(f"the log admits {vkey} already")
        why = chain.admit(1, admit_key(signer, "", origin, vkey, role=role, retires=retires))
        if why:
            raise KeyNotAdmitted(f"{vkey} cannot be admitted: {why}")

        def write(writing: WriteTransaction) -> None:
            insert_key(writing, admit_key(signer, writing.now.written, origin, vkey, role=role, retires=retires))

        # The key that signs the checkpoint of this entry may be the one that it admits.
        self.recorder.refuse_writes(None)
        self.recorder.write(write)
        self.admit_own_key()

    def admit_own_key(self) -> None:
        """Admit the key of this folder where the log is empty; else refuse to write with a key outside the chain."""
        self._refusal = None
        chain = self.key_chain()
        if not chain.is_in_force(self.signer.vkey):
            # Of several processes that begin a log at once, one is first; the others look again.
            self.recorder.write(lambda writing: _admit_first(writing, self.signer.vkey))
            chain = self.key_chain()
        if not chain.is_in_force(self.signer.vkey):
            self._refusal = KeyNotAdmitted(_how_to_admit(self.signer.vkey, has_root=chain.root is not None))
        self.recorder.refuse_writes(self._refusal)

    def require_admitted(self) -> None:
        """Raise KeyNotAdmitted unless the log admits the key of this folder."""
        if self._refusal is not None:
            raise self._refusal

    def require_known_log(self) -> None:
        """Raise LogRewritten unless the log extends what this process and its data folder know."""
        self.recorder.write(lambda _: None)

    def key_chain(self) -> KeyChain:
        """The keys that the log admits."""
        with self.database.asking() as connection:
            return read_key_chain(connection, self.signer.name)

    def read_signing(self, connection: "Connection") -> SigningState:
        """Whether this process may sign the log, also where another one has just retired its key."""
        ((count,),) = fetch(connection, _COUNT_KEYS)
        if self._chain is None or self._chain[0] != count:
            self._chain = count, read_key_chain(connection, self.signer.name)
        chain, blocked = self._chain[1], self.recorder.blocked_by
        root = "none" if chain.root is None else "late" if chain.has_late_root else "founding"
        if blocked is not None:
            return SigningState(blocked.code, root)
        return SigningState("ok" if chain.is_in_force(self.signer.vkey) else KeyNotAdmitted.code, root)

    def close(self) -> None:
        """Write what waits, and let go of everything."""
        self.recorder.close()
        self.database.close()


_COUNT_KEYS = "SELECT (SELECT count(*) FROM log_keys) FROM log_state"
_ORIGIN = "SELECT origin FROM log_state"
_NEW_LOG = (
    "INSERT INTO log_state (id, origin, size, peaks, outcomes, events, checkpoint_at, seal) "
    "VALUES (1, ?, 0, ?, 0, 0, 0, ?)"
)


def _origin(database: Database, surroundings: ClockAndEntropy) -> str:
    """The log's own name, given once."""
    with database.asking() as connection:
        found = connection.fetch(_ORIGIN)
    if not found:
        with database.writing() as writing:
            if writing.style == "postgresql":
                writing.run("LOCK TABLE log_state IN EXCLUSIVE MODE")
            found = writing.fetch(_ORIGIN)
            if not found:
                found = [(f"meruit-{surroundings.entropy(8).hex()}",)]
                writing.run(_NEW_LOG, found[0][0], Frontier(0, ()).to_bytes(), b"")
    return str(found[0][0])


def _refuse_lost_key(database: Database) -> None:
    """Whoever pinned the key must hear of another; machines that share a Postgres each begin without one."""
    location = database.location
    if location.kind == "postgresql" or (location.folder / KEY_FILE).exists():
        return
    with database.asking() as connection:
        has_keys = bool(connection.fetch("SELECT vkey FROM log_keys LIMIT 1"))
    # Asked again: another process that opens the new store writes the file first, and then the log's first key.
    if has_keys and not (location.folder / KEY_FILE).exists():
        raise StoreError(
            f"the signing key {location.folder / KEY_FILE} is gone: restore it from a copy. Without one, "
            "`meruit db replace-key --root ROOT.pem` makes another that your root key admits"
        )


def _signing_key(file: Path, origin: str, surroundings: ClockAndEntropy) -> SigningKey:
    """The key in the file, made when there is none; only its owner may read it."""
    try:
        if not file.exists():
            made = SigningKey.generate(origin, surroundings.entropy(32)).to_pem()
            unfinished = file.with_name(f"{file.name}.{surroundings.entropy(8).hex()}")
            with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
                opened.write(made)
                opened.flush()
                os.fsync(opened.fileno())
            try:
                # Of several that start at once, the first one's key is everybody's.
                os.link(unfinished, file)
            except FileExistsError:
                pass
            finally:
                unfinished.unlink()
        return SigningKey.from_pem(origin, file.read_bytes())
    except (OSError, ValueError, MeruitError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise StoreError(f"the signing key {file} cannot be used: {reason}") from None


def _admit_first(writing: WriteTransaction, vkey: str) -> None:
    """Admit the first key of an empty log; later keys need one that is in force."""
    if not writing.fetch("SELECT seq FROM log_leaves LIMIT 1"):
        insert_key(writing, KeyEntry(writing.now.written, vkey))


def _how_to_admit(vkey: str, *, has_root: bool) -> str:
    root = ", or here with your root key: `meruit audit admit --root ROOT.pem`" if has_root else ""
    return (
        f"the log does not admit the signing key of this data folder, {vkey}: nothing is written or signed with it. "
        f"Admit it on a machine whose key is in force: `meruit audit admit '{vkey}'`{root}"
    )
