"""Limits that several processes on one machine share: a temporary file without a name, and locks on its bytes.

The kernel frees the locks of a process that dies, so that nothing has to be cleaned up after it.
"""

import fcntl
import math
import mmap
import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

SECRET_BYTES = 32
TABLES = 8
"""Most kinds of buckets."""
ROWS, WAYS = 2048, 8
"""A name has one row, and any place in it: together more names than one process keeps."""
_NAME_BYTES = 16
_ENTRY = struct.Struct(f"={_NAME_BYTES}sd")
_ROW_BYTES = _ENTRY.size * WAYS
_FILE_BYTES = SECRET_BYTES + TABLES * ROWS * _ROW_BYTES
_SLOT_BITS = 6
MAX_SLOTS = 1 << _SLOT_BITS
"""Most slots of one name."""
_ROW_LOCKS = 1 << 62
"""Where the locks of rows begin; those of slots are below."""


class SharedLimits:
    """The file that all workers of a service have open."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, _FILE_BYTES)
        self.secret = self._memory[:SECRET_BYTES]
        """Random, and the same in all workers."""
        self._held: set[tuple[str, int]] = set()

    @classmethod
    def create(cls) -> "SharedLimits":
        """Make a new file; it is gone when the last process that has it open ends."""
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, _FILE_BYTES)
        os.pwrite(descriptor, os.urandom(SECRET_BYTES), 0)
        return cls(descriptor)

    def close(self) -> None:
        """Close the file, which frees every slot of this process."""
        self._memory.close()
        os.close(self.descriptor)

    def table(self, number: int) -> "SharedTimes":
        """The times of one kind of buckets."""
        return SharedTimes(self, number)

    def acquire(self, name: str, most: int = 1) -> int | None:
        """Take one of the slots of a name until it is released; None where all are taken, here or elsewhere."""
        first = int.from_bytes(self.digest(name)[:7]) << _SLOT_BITS
        for slot in range(most):
            if (name, slot) in self._held:
                # The kernel would give this process its own lock again.
                continue
            try:
                fcntl.lockf(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, first + slot)
            except OSError:
                continue
            self._held.add((name, slot))
            return slot
        return None

    def release(self, name: str, slot: int) -> None:
        """Free a slot."""
        self._held.discard((name, slot))
        fcntl.lockf(self.descriptor, fcntl.LOCK_UN, 1, (int.from_bytes(self.digest(name)[:7]) << _SLOT_BITS) + slot)

    def digest(self, name: str) -> bytes:
        """What stands for a name; with the secret, so that no client can choose names that share a row."""
        return blake2b(name.encode("utf-8", "surrogatepass"), key=self.secret, digest_size=_NAME_BYTES).digest()

    @property
    def memory(self) -> mmap.mmap:
        """The file as memory."""
        return self._memory


class SharedTimes:
    """A time for each name. Of names that share a row, the one with the earliest time gives way."""

    def __init__(self, limits: SharedLimits, number: int) -> None:
        if not 0 <= number < TABLES:
            raise ValueError(f"there are {TABLES} tables, and no table {number}")
        self._limits = limits
        self._first_row = number * ROWS

    def _row(self, digest: bytes) -> int:
        return self._first_row + int.from_bytes(digest[:4]) % ROWS

    @contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Let no other process change the name's time meanwhile."""
        where = _ROW_LOCKS + self._row(self._limits.digest(name))
        fcntl.lockf(self._limits.descriptor, fcntl.LOCK_EX, 1, where)
        try:
            yield
        finally:
            fcntl.lockf(self._limits.descriptor, fcntl.LOCK_UN, 1, where)

    def get(self, name: str) -> float | None:
        """The time of a name; None where it is not known."""
        digest = self._limits.digest(name)
        for _, known, time in self._entries(self._row(digest)):
            # A process that was killed while it wrote may have left half a number.
            if known == digest and math.isfinite(time):
                return time
        return None

    def put(self, name: str, time: float) -> None:
        """Set the time of a name; call it inside `hold`."""
        digest = self._limits.digest(name)
        entries = [*self._entries(self._row(digest))]
        same = [place for place, known, _ in entries if known == digest]
        place = same[0] if same else min(entries, key=lambda entry: entry[2])[0]
        _ENTRY.pack_into(self._limits.memory, place, digest, time)

    def _entries(self, row: int) -> Iterator[tuple[int, bytes, float]]:
        start = SECRET_BYTES + row * _ROW_BYTES
        for place in range(start, start + _ROW_BYTES, _ENTRY.size):
            known, time = _ENTRY.unpack_from(self._limits.memory, place)
            yield place, known, time
