"""Files as items: hashed completely, kept if small, with a name in text."""

from datetime import UTC, datetime
from hashlib import md5, sha256
from typing import Any

from meruit.errors import SourceError
from meruit.model.environment import Item, make_item, too_large_item
from meruit.sources.retry import SourceReading

MAX_BODY_BYTES = 4 * 1024 * 1024
"""The largest file that is kept; of a larger one only digest and size are recorded."""
MAX_DEPTH = 32
"""How deep folders are read."""
CHUNK_BYTES = 256 * 1024


class Intake:
    """A file that is read piece by piece: always hashed, kept if small."""

    def __init__(self) -> None:
        self.size = 0
        self.sha256 = sha256()
        self.md5 = md5(usedforsecurity=False)
        self._kept: bytearray | None = bytearray()

    def feed(self, piece: bytes) -> None:
        """Add the next piece."""
        self.size += len(piece)
        self.sha256.update(piece)
        self.md5.update(piece)
        if self._kept is not None:
            self._kept += piece
            if self.size > MAX_BODY_BYTES:
                self._kept = None

    def content(self) -> bytes | None:
        """Return the whole content; None for a file too large to keep."""
        return None if self._kept is None else bytes(self._kept)

    def item(self, key: str, modified: str | None) -> Item:
        """Build the item."""
        facts: dict[str, Any] = {"size": self.size} | ({} if modified is None else {"modified": modified})
        digest = self.sha256.hexdigest()
        content = self.content()
        if content is None:
            return too_large_item(key, digest, size=self.size, limit=MAX_BODY_BYTES, facts=facts)
        return make_item(key, content, version=digest, facts=facts)


def file_name(raw: bytes) -> str:
    """Return a file's name as text; bytes that are not UTF-8 are escaped, so that every name has a key."""
    return raw.decode("utf-8", "backslashreplace")


def add_unique(reading: SourceReading, one: Item) -> None:
    """Add a file; raises SourceError for a second one of its name."""
    if one.key in reading.items:
        raise SourceError(f"two files have the name {one.key}; rename one of them")
    reading.add(one)


def moment(seconds: float) -> str:
    """Format as RFC 3339, UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
