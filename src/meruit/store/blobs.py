"""Evidence, found by the digest of its content: small pieces in the database, large ones as files beside it."""

import errno
import hashlib
import os
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from meruit.errors import EvidenceDamaged, StoreError, StoreUnavailable
from meruit.store.database import fetch
from meruit.store.location import Location
from meruit.store.transaction import Blob

if TYPE_CHECKING:
    from sqlalchemy import Connection

INLINE_BYTES = 64 * 1024
"""Up to this size SQLite keeps a piece faster than a file system would, and within the record's own transaction."""

_CONTENT = "SELECT content FROM blobs WHERE tenant = ? AND address = ?"


class EvidencePart(msgspec.Struct, frozen=True):
    """One piece of evidence on its way into the store."""

    address: str
    content: bytes
    file: Path | None = None
    """Where it lies, when that is not the database."""

    def blob(self, tenant: str) -> Blob:
        """The row that refers to it."""
        if self.file is None:
            return Blob(tenant=tenant, address=self.address, size=len(self.content), content=self.content)
        return Blob(tenant=tenant, address=self.address, size=len(self.content), content=None, restore=self.restore)

    def restore(self) -> None:
        """Write the file again if the same content was erased since."""
        if self.file is not None and not self.file.exists():
            _write(self.file, self.content)


def in_database(content: bytes) -> EvidencePart:
    """A piece of any size that is kept in the database, so that it is there with its record or not at all."""
    return EvidencePart(sha256(content).hexdigest(), content)


class BlobStore:
    """Where the pieces are."""

    def __init__(self, location: Location) -> None:
        self._folder = location.folder / "blobs"
        # Machines that share a Postgres share no folder.
        self._inline_bytes = INLINE_BYTES if location.kind == "sqlite" else None

    def part(self, tenant: str, content: bytes, address: str | None = None) -> EvidencePart:
        """A piece ready to be recorded; what is large is on disk when this returns, before any record names it."""
        address = address or sha256(content).hexdigest()
        if self._inline_bytes is None or len(content) <= self._inline_bytes:
            return EvidencePart(address, content)
        file = self._file(tenant, address)
        _write(file, content)
        return EvidencePart(address=address, content=content, file=file)

    def content(self, connection: "Connection", tenant: str, address: str) -> bytes:
        """The piece of that address; raises StoreError when it is gone or no longer what it was."""
        found = fetch(connection, _CONTENT, tenant, address)
        if not found:
            raise EvidenceDamaged(f"the evidence {address} is not in the store")
        try:
            content: bytes = self._file(tenant, address).read_bytes() if found[0][0] is None else found[0][0]
        except FileNotFoundError:
            raise EvidenceDamaged(f"the evidence {address} is gone; restore it from a copy") from None
        except OSError as problem:
            raise StoreError(f"the evidence {address} cannot be read: {problem.strerror}") from None
        if sha256(content).hexdigest() != address:
            raise EvidenceDamaged(f"the evidence {address} was changed after it was recorded; restore it from a copy")
        return content

    def find_damage(self, tenant: str, address: str, content: bytes | None, size: int) -> str | None:
        """What is wrong with a stored piece, given what its row holds; None where it is whole."""
        try:
            if content is None:
                with self._file(tenant, address).open("rb") as opened:
                    digest, length = hashlib.file_digest(opened, "sha256").hexdigest(), opened.tell()
            else:
                digest, length = sha256(bytes(content)).hexdigest(), len(content)
        except OSError as problem:
            return f"its file cannot be read ({problem.strerror})"
        if digest != address:
            return "its content"
        return None if length == size else "its size"

    def discard(self, tenant: str, address: str) -> None:
        """Remove the file of a piece that nothing refers to any more."""
        self._file(tenant, address).unlink(missing_ok=True)

    def _file(self, tenant: str, address: str) -> Path:
        return self._folder / tenant / address[:2] / address


def _write(file: Path, content: bytes) -> None:
    """The whole file or none, and on disk before any record names it."""
    unfinished = file.with_name(f"{file.name}.{os.urandom(8).hex()}")
    try:
        if file.exists() and file.read_bytes() == content:
            return
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        unfinished.replace(file)
        # A name is on disk only with the folder that holds it; the outer two may be as new as the file.
        for folder in list(file.parents)[:3]:
            _sync(folder)
    except OSError as problem:
        unfinished.unlink(missing_ok=True)
        # A disk that is full is not the caller's mistake, and may have room again.
        kind = StoreUnavailable if problem.errno in {errno.ENOSPC, errno.EDQUOT} else StoreError
        raise kind(f"evidence cannot be written to {file.parent}: {problem.strerror}") from None


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
