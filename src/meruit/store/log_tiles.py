"""The hashes of the audit log as the database keeps them, for proofs that read a few hundred at most."""

from typing import TYPE_CHECKING

from meruit.errors import StoreError
from meruit.log.merkle import TILE_HEIGHT, node_hash
from meruit.store.database import fetch

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meruit.store.driver import DriverConnection
WIDTH = 1 << TILE_HEIGHT
# As text: every 256th record asks, and building a query costs more than answering it.
_LEAVES = "SELECT hash FROM log_leaves WHERE seq >= ? AND seq < ? ORDER BY seq"
_TILES = "SELECT hash FROM log_tiles WHERE seq >= ? AND seq < ? AND level = ? ORDER BY seq"


class Tiles:
    """Complete subtrees of the log, from its leaves and from the roots kept of every 256 of them."""

    def __init__(self, connection: "Connection | DriverConnection") -> None:
        self._connection = connection

    def subtree(self, start: int, level: int) -> bytes:
        """The hash over the leaves from start to start + 2**level."""
        height, rest = divmod(level, TILE_HEIGHT)
        return _fold(self._hashes(height, start >> (height * TILE_HEIGHT), 1 << rest))

    def tile_root(self, level: int, seq: int) -> bytes:
        """The root to be kept of 256 hashes of the level below."""
        return _fold(self._hashes(level - 1, seq * WIDTH, WIDTH))

    def _hashes(self, level: int, first: int, count: int) -> list[bytes]:
        asked = (_LEAVES, first, first + count) if level == 0 else (_TILES, first, first + count, level)
        found = [bytes(row[0]) for row in fetch(self._connection, *asked)]
        if len(found) != count:
            raise StoreError(
                f"the audit log lacks {count - len(found)} of {count} hashes from {first} on level {level}: "
                "the database was changed from outside; restore it from a copy"
            )
        return found


def _fold(hashes: list[bytes]) -> bytes:
    while len(hashes) > 1:
        hashes = [node_hash(left, right) for left, right in zip(hashes[::2], hashes[1::2], strict=True)]
    return hashes[0]
