"""Signatures on rows that open the service: without a signing key, a database writer cannot make one.

The key of this data folder counts by itself. Of other machines that share the database, those keys count that the log
admits, as far as this process has followed it. Their entries are proven: rows of the log can be changed too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from meruit.errors import StoreError
from meruit.log.key_chain import KeyChain
from meruit.log.merkle import Frontier, inclusion_proof, is_included, leaf_hash
from meruit.log.note import SigningKey
from meruit.store.key_admission import add_key, fetch_key_leaves
from meruit.store.log_tiles import Tiles
from meruit.store.sequences import SequenceMemory

if TYPE_CHECKING:
    from sqlalchemy import Connection


# Any: columns of several types.
def signed_content(purpose: str, origin: str, *values: Any) -> bytes:
    """What a signature on a row of this log is about."""
    return msgspec.json.encode([purpose, origin, *values])


@dataclass(frozen=True, slots=True)
class TrustedSigners:
    """Whose signatures on rows count."""

    signer: SigningKey
    known: Callable[[], Frontier | None]
    """The end of the log that this process has followed."""
    sequences: SequenceMemory

    @property
    def origin(self) -> str:
        """The name of the log."""
        return self.signer.name

    def have_signed(self, connection: "Connection", content: bytes, signature: bytes, at: int | None = None) -> bool:
        """Whether a key that counts has signed it; `at` is the entry of the log that has the signature, if one has.

        Keys that were retired later count for what an entry of their time has.
        """
        if self.signer.verifier.verify(content, signature):
            return True
        chain = self._read_chain(connection)
        others = chain.in_force if at is None else chain.signers_until(at + 1)
        return any(one.verify(content, signature) for one in others)

    def _read_chain(self, connection: "Connection") -> KeyChain:
        chain, known, tiles = KeyChain(self.origin), self.known(), Tiles(connection)
        if known is None:
            return chain
        root = known.root()
        for seq, body in fetch_key_leaves(connection):
            if 0 <= seq < known.size and _is_proven(body, seq, known.size, tiles, root):
                add_key(chain, seq, body)
        return chain


def _is_proven(body: bytes, seq: int, size: int, tiles: Tiles, root: bytes) -> bool:
    try:
        return is_included(leaf_hash(body), seq, size, inclusion_proof(seq, size, tiles.subtree), root)
    except StoreError:
        # Hashes are missing: nothing is proven.
        return False
