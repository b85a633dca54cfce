"""Follow the log from one transaction to the next: it must only grow, as the process that signs has seen it grow.

The state of the log is a row, which a database writer can change with all leaves and hashes. So a process remembers the
end of the log that it wrote or checked last. When it first writes, it begins with the newest signed checkpoint, and the
log must extend what the data folder knows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meruit.errors import LogRewritten, LogRolledBack, NoteError, RecordTampered, StoreError
from meruit.log.entries import Entry, read_entry
from meruit.log.key_chain import KeyChain
from meruit.log.merkle import TILE_HEIGHT, Frontier, inclusion_proof, is_included, leaf_hash
from meruit.log.note import SigningKey, open_checkpoint
from meruit.store.checkpoint_file import CheckpointFile
from meruit.store.database import fetch
from meruit.store.key_admission import add_key, fetch_key_leaves, read_key_chain
from meruit.store.log_seal import is_possibly_sealed, is_sealed_by_us
from meruit.store.log_tiles import Tiles
from meruit.store.rows import Rows
from meruit.store.sequences import SequenceMemory

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meruit.store.driver import DriverConnection
    from meruit.store.transaction import LogState, WriteTransaction

PAGE = 4_096
"""Leaves that are read at once."""
WIDTH = 1 << TILE_HEIGHT
# As text: machines that share a database ask this before each group.
_ADDED = "SELECT hash, tenant, contract_id, contract_seq FROM log_leaves WHERE seq >= ? AND seq < ? ORDER BY seq"
_NEWEST = "SELECT size, note FROM checkpoints ORDER BY size DESC LIMIT 1"
_HASHES = "SELECT hash FROM log_leaves WHERE seq >= ? AND seq < ? ORDER BY seq"
_SEQUENCE = "SELECT seq, contract_seq, body FROM log_leaves WHERE tenant = ? AND contract_id = ? ORDER BY contract_seq"
_VERIFIED_TILES = Rows[bytes]("verified_tile", lasting=True)
"""Roots of 256 leaves that were proven to be in the log."""


@dataclass(frozen=True, slots=True)
class AdmittedKeys:
    """The keys that the log admits, and the log by which they are proven."""

    chain: KeyChain
    log: Frontier

    def is_in_log(self, connection: "Connection", seq: int, body: bytes) -> bool:
        """Whether an entry is proven to be in that log; false too where the reader's snapshot is older than it."""
        tiles, root = Tiles(connection), self.log.root()
        return 0 <= seq < self.log.size and _is_proven(body, seq, self.log.size, tiles, root)


class LogGuard:
    """What one process knows of the log."""

    def __init__(
        self,
        signer: SigningKey,
        sequences: SequenceMemory,
        file: CheckpointFile,
        when_keys_change: "Callable[[Connection | DriverConnection], None]" = lambda _: None,
    ) -> None:
        self._signer, self._origin = signer, signer.name
        self._keys: AdmittedKeys | None = None
        """None until the log was followed. Only the thread that writes sets it: a reader may see an older log."""
        self.is_shared = False
        """Whether other keys may sign the log too."""
        self._sequences = sequences
        self._when_keys_change = when_keys_change
        self._file = file
        self._known: Frontier | None = None

    @property
    def known(self) -> Frontier | None:
        """The end of the log that this process wrote or checked last; None where it has written nothing yet."""
        return self._known

    def follow(self, connection: "Connection | DriverConnection", state: "LogState") -> None:
        """Check that the log in the database extends what is known; raises LogRewritten.

        Where other processes have added keys, `when_keys_change` is called, which may raise.
        """
        if state.frontier == self._known:
            return
        known = self._read_first_frontier(connection, state) if self._known is None else self._known
        if state.frontier.size < known.size:
            raise LogRolledBack(state.frontier.size, known.size)
        is_first = self._known is None
        if is_first:
            self.is_shared = len(read_key_chain(connection, self._origin).in_force) > 1
        found, has_keys = self._extend(connection, known, state.frontier.size)
        if found != state.frontier:
            raise LogRewritten(f"its {found.size:,} entries do not extend those that were signed")
        if has_keys and not is_first:
            self.is_shared = True
        if has_keys or is_first:
            self._keys = read_proven_keys(connection, self._origin, found)
        if known.size < found.size:
            self._check_seal(state)
        if has_keys and not is_first:
            self._when_keys_change(connection)
        self._known = found

    def _extend(self, connection: "Connection | DriverConnection", known: Frontier, size: int) -> tuple[Frontier, bool]:
        """The frontier with the entries up to a size, and whether there is one about keys; raises LogRewritten."""
        has_keys = False
        while known.size < size:
            first, last = known.size, min(known.size + PAGE, size)
            rows = fetch(connection, _ADDED, first, last)
            if len(rows) != last - first:
                raise LogRewritten(f"it lacks entries between {first:,} and {last:,}")
            known = known.extend([bytes(hashed) for hashed, *_ in rows])
            # A key belongs to the deployment and to no tenant.
            has_keys = has_keys or any(not tenant for _, tenant, *_ in rows)
            for _, tenant, contract_id, contract_seq in rows:
                if contract_id is not None and contract_seq is not None:
                    self._sequences.add(tenant, contract_id, contract_seq)
        return known, has_keys

    def _check_seal(self, state: "LogState") -> None:
        """Check that the entries which others added were added by holders of a signing key; raises LogRewritten."""
        if is_sealed_by_us(state.seal, self._signer, state.frontier):
            return
        # Another key: one of a machine that shares the database, or one that was replaced.
        keys = KeyChain(self._origin) if self._keys is None else self._keys.chain
        if not is_possibly_sealed(state.seal, self._signer, state.frontier, keys):
            raise LogRewritten(f"no key that it admits has sealed its {state.frontier.size:,} entries")

    @property
    def proven_keys(self) -> AdmittedKeys | None:
        """The keys that the log provably admits, as far as it was followed; None before that."""
        return self._keys

    def advance(self, frontier: Frontier, keys: AdmittedKeys | None, *, is_shared: bool) -> None:
        """Remember the end of the log that this process has made durable, and its keys where it changed them."""
        if keys is not None:
            self._keys, self.is_shared = keys, is_shared
        self._known = frontier

    def _read_first_frontier(self, connection: "Connection | DriverConnection", state: "LogState") -> Frontier:
        """What to begin with: the longer one of what the folder knows and what the database has signed."""
        kept = self._file.read()
        if kept is None:
            return self._read_signed_frontier(connection)
        if kept.origin != self._origin:
            raise LogRewritten(
                f"the database holds the log {self._origin!r}, and this data folder knows {kept.origin!r}"
            )
        if kept.size > state.frontier.size:
            raise LogRolledBack(state.frontier.size, kept.size)
        frontier = _read_stored_frontier(connection, kept.size)
        if frontier.root() != kept.root:
            raise LogRewritten(f"its first {kept.size:,} entries are not those that this data folder knows")
        signed = self._read_signed_frontier(connection)
        return signed if signed.size > frontier.size else frontier

    def _read_signed_frontier(self, connection: "Connection | DriverConnection") -> Frontier:
        """The log as its newest checkpoint signs it; raises LogRewritten where the leaves are others."""
        found = fetch(connection, _NEWEST)
        if not found:
            return Frontier(0, ())
        size, note = found[0]
        frontier = _read_stored_frontier(connection, size)
        for key in read_key_chain(connection, self._origin).signers_until(size):
            try:
                signed = open_checkpoint(note, key)
            except NoteError:
                continue
            if (signed.origin, signed.size, signed.root) != (self._origin, size, frontier.root()):
                raise LogRewritten(f"its first {size:,} entries are not those that were signed")
            self._file.keep(size, note)
            return frontier
        raise LogRewritten(f"no key that it admits has signed its checkpoint of {size:,} entries")


def read_proven_keys(connection: "Connection | DriverConnection", origin: str, frontier: Frontier) -> AdmittedKeys:
    """The chain of keys from entries that are proven to be in the log: its rows may have been changed."""
    chain, tiles, root = KeyChain(origin), Tiles(connection), frontier.root()
    for seq, body in fetch_key_leaves(connection):
        if 0 <= seq < frontier.size and _is_proven(body, seq, frontier.size, tiles, root):
            add_key(chain, seq, body)
    return AdmittedKeys(chain, frontier)


def _is_proven(body: bytes, seq: int, size: int, tiles: Tiles, root: bytes) -> bool:
    try:
        return is_included(leaf_hash(body), seq, size, inclusion_proof(seq, size, tiles.subtree), root)
    except StoreError:
        # Hashes are missing: nothing is proven.
        return False


def _read_stored_frontier(connection: "Connection | DriverConnection", size: int) -> Frontier:
    try:
        return read_frontier(size, Tiles(connection))
    except StoreError as problem:
        raise LogRewritten(str(problem)) from None


def read_frontier(size: int, tiles: Tiles) -> Frontier:
    """The frontier of the first so many entries, from the stored hashes."""
    peaks, start = [], 0
    for level in reversed(range(size.bit_length())):
        if size >> level & 1:
            peaks.append(tiles.subtree(start, level))
            start += 1 << level
    return Frontier(size, tuple(peaks))


def find_forged_leaf(writing: "WriteTransaction", leaves: Sequence[tuple[int, bytes]]) -> int | None:
    """The first of these leaves, each a position and its bytes, that is not in the log; None where all are.

    The log is that which the guard has followed, so leaves that were changed together with their hashes are found.
    """
    tiles: dict[int, list[tuple[int, bytes]]] = {}
    for seq, body in leaves:
        tiles.setdefault(seq >> TILE_HEIGHT, []).append((seq, body))
    for tile, several in tiles.items():
        first = tile << TILE_HEIGHT
        count = min(WIDTH, writing.log_size - first)
        hashes = [bytes(row[0]) for row in writing.fetch(_HASHES, first, first + count)]
        if len(hashes) != count or not _is_tile_of_log(writing, tile, hashes):
            return several[0][0]
        for seq, body in several:
            if leaf_hash(body) != hashes[seq - first]:
                return seq
    return None


def read_proven_entries(writing: "WriteTransaction", tenant: str, name: str) -> list[Entry]:
    """The entries of one sequence that were committed before this group; raises RecordTampered.

    It is raised where an entry is not in the log, where one is missing, or where more of them were there before.
    """
    rows = writing.fetch(_SEQUENCE, tenant, name)
    leaves = [(int(seq), bytes(body)) for seq, _, body in rows]
    forged = find_forged_leaf(writing, leaves)
    if forged is not None:
        raise RecordTampered(f"entry {forged} of the audit log was changed")
    if [number for _, number, _ in rows] != [*range(1, len(rows) + 1)]:
        raise RecordTampered(f"entries of {name!r} are missing in the audit log")
    writing.require_entries(tenant, name, len(rows))
    return [read_entry(body) for _, body in leaves]


def _is_tile_of_log(writing: "WriteTransaction", tile: int, hashes: Sequence[bytes]) -> bool:
    own, frontier, first = Frontier(0, ()).extend(hashes), writing.log_frontier, tile << TILE_HEIGHT
    if len(hashes) < WIDTH:
        # The last leaves, whose peaks are the log's own.
        return own.peaks == frontier.peaks[len(frontier.peaks) - len(own.peaks) :]
    known = _VERIFIED_TILES.get(writing, tile)
    if known is not None:
        return own.root() == known
    try:
        # The siblings of one leaf are made of all others of its tile.
        proof = inclusion_proof(first, frontier.size, writing.tiles().subtree)
    except StoreError:
        return False
    if not is_included(hashes[0], first, frontier.size, proof, frontier.root()):
        return False
    _VERIFIED_TILES.put(writing, own.root(), tile)
    return True
