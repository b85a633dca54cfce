"""The Merkle tree of RFC 6962 over SHA-256: growing a log, and proving what it holds."""

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from hashlib import sha256
from typing import Self

import msgspec

HASH_BYTES = 32
LEAF = b"\x00"
"""Before an entry that is hashed."""
EMPTY_ROOT = sha256().digest()
"""The root of a log without entries."""
MAX_SIZE = 2**63 - 1
"""The most entries of a log; a proof that speaks of more is garbage, and is not worth the arithmetic."""
TILE_HEIGHT = 8
"""Levels of the tree between one stored row of hashes and the next: each hash covers 256 of the row below."""

Subtree = Callable[[int, int], bytes]
"""`subtree(start, level)`: the hash over leaves `start` to `start + 2**level`, start being a multiple of `2**level`."""


def leaf_hash(data: bytes) -> bytes:
    """The hash of one entry."""
    return sha256(LEAF + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of two neighbours; the first byte keeps it from ever being taken for an entry's."""
    return sha256(b"\x01" + left + right).digest()


class Frontier(msgspec.Struct, frozen=True):
    """All that a log must remember in order to grow: the roots of its complete subtrees."""

    size: int
    peaks: tuple[bytes, ...]
    """One for each bit of the size, the largest subtree first."""

    def extend(self, hashes: Sequence[bytes]) -> Self:
        """The frontier once entries with these leaf hashes are appended."""
        if {*map(len, hashes)} - {HASH_BYTES}:
            raise ValueError(f"a log grows by hashes of {HASH_BYTES} bytes: hash each entry with `leaf_hash` first")
        older = [*self.peaks]
        newer: list[bytes] = []
        row, waiting = [*hashes], self.size
        # One level of the tree at a time. This is the hot path: `node_hash` is written out.
        while row:
            if waiting & 1:
                row.insert(0, older.pop())
            if len(row) & 1:
                newer.append(row.pop())
            row = [sha256(b"\x01" + left + right).digest() for left, right in zip(row[::2], row[1::2], strict=True)]
            waiting >>= 1
        return msgspec.structs.replace(self, size=self.size + len(hashes), peaks=(*older, *reversed(newer)))

    def root(self) -> bytes:
        """The root of the whole log."""
        return _join_subtrees(self.peaks)

    def to_bytes(self) -> bytes:
        """The peaks, one after the other; the size is kept beside them."""
        return b"".join(self.peaks)

    @classmethod
    def from_bytes(cls, size: int, data: bytes) -> Self:
        """Read back what `to_bytes` wrote; raises `ValueError` when a log of this size has other peaks."""
        if not 0 <= size <= MAX_SIZE:
            raise ValueError(f"no log has {size} entries")
        if len(data) != HASH_BYTES * size.bit_count():
            raise ValueError(f"a log of {size} entries has {size.bit_count()} peaks, not {len(data)} bytes of them")
        return cls(size, tuple(data[at : at + HASH_BYTES] for at in range(0, len(data), HASH_BYTES)))


def range_root(start: int, end: int, subtree: Subtree) -> bytes:
    """The root over leaves `start` to `end`; start must be where the tree itself would begin so long a part."""
    if not 0 <= start <= end:
        raise ValueError(f"{start} to {end} is not a range of leaves")
    length = end - start
    if length and start % (1 << (length - 1).bit_length()):
        raise ValueError(f"no part of the tree holds just the leaves from {start} to {end}")
    parts: list[bytes] = []
    for level in reversed(range(length.bit_length())):
        if length >> level & 1:
            parts.append(subtree(start, level))
            start += 1 << level
    return _join_subtrees(parts)


def inclusion_proof(index: int, size: int, subtree: Subtree) -> list[bytes]:
    """What shows that the entry is in the log: RFC 6962, 2.1.1."""
    if not 0 <= index < size:
        raise ValueError(f"a log of {size} entries has no entry {index}")
    proof: list[bytes] = []
    start, end = 0, size
    while end - start > 1:
        middle = _middle(start, end)
        if index < middle:
            proof.append(range_root(middle, end, subtree))
            end = middle
        else:
            proof.append(range_root(start, middle, subtree))
            start = middle
    return proof[::-1]


def consistency_proof(old: int, new: int, subtree: Subtree) -> list[bytes]:
    """What shows that the log only grew: RFC 6962, 2.1.2; empty when there is nothing to show."""
    if not 0 <= old <= new:
        raise ValueError(f"a log of {new} entries never had {old}")
    if old == 0:
        return []
    proof: list[bytes] = []
    start, end = 0, new
    while old < end:
        middle = _middle(start, end)
        if old <= middle:
            proof.append(range_root(middle, end, subtree))
            end = middle
        else:
            proof.append(range_root(start, middle, subtree))
            start = middle
    # From the very first leaf on, it is the old root itself, which the verifier has already.
    if start:
        proof.append(range_root(start, end, subtree))
    return proof[::-1]


def is_included(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """Whether the proof leads from the leaf hash to the root: RFC 9162, 2.1.3.2.

    The size must come from the same signed checkpoint as the root: a proof alone fits some neighbouring sizes too.
    """
    if not 0 <= index < size <= MAX_SIZE or not _are_hashes(leaf, root, *proof):
        return False
    position, last = index, size - 1
    found = leaf
    for sibling in proof:
        if last == 0:
            return False
        if position & 1 or position == last:
            found = node_hash(sibling, found)
            position, last = _above_lone(position, last)
        else:
            found = node_hash(found, sibling)
        position, last = position >> 1, last >> 1
    return last == 0 and found == root


def is_consistent(old: int, new: int, proof: Sequence[bytes], old_root: bytes, new_root: bytes) -> bool:
    """Whether the proof shows that the old log is how the new one begins: RFC 9162, 2.1.4.2."""
    if not 0 <= old <= new <= MAX_SIZE or not _are_hashes(old_root, new_root, *proof):
        return False
    if old == 0 and old_root != EMPTY_ROOT:
        return False
    if old == new:
        return not proof and old_root == new_root
    if old == 0 or not proof:
        return old == 0 and not proof
    # A complete subtree is its own beginning; the proof leaves it out.
    first, *siblings = (old_root, *proof) if old & (old - 1) == 0 else proof
    position, last = old - 1, new - 1
    while position & 1:
        position, last = position >> 1, last >> 1
    found_old = found_new = first
    for sibling in siblings:
        if last == 0:
            return False
        if position & 1 or position == last:
            found_old, found_new = node_hash(sibling, found_old), node_hash(sibling, found_new)
            position, last = _above_lone(position, last)
        else:
            found_new = node_hash(found_new, sibling)
        position, last = position >> 1, last >> 1
    return last == 0 and found_old == old_root and found_new == new_root


def new_full_tiles(old_size: int, new_size: int) -> Iterator[tuple[int, int]]:
    """The nodes worth storing that become complete as the log grows, as (level, index), the lowest level first.

    Node (level, index) covers the leaves from `index * 256**level` to `(index + 1) * 256**level`.
    """
    if not 0 <= old_size <= new_size:
        raise ValueError(f"a log of {old_size} entries does not grow to {new_size}")
    level = 1
    # Where no node was finished, none can be above.
    while finished := range(old_size >> TILE_HEIGHT * level, new_size >> TILE_HEIGHT * level):
        for index in finished:
            yield level, index
        level += 1


def _join_subtrees(parts: Sequence[bytes]) -> bytes:
    """The root over complete subtrees, each smaller than the one before it."""
    return reduce(lambda right, left: node_hash(left, right), reversed(parts)) if parts else EMPTY_ROOT


def _middle(start: int, end: int) -> int:
    """Where the tree splits these leaves: after the largest power of two that leaves something on the right."""
    return start + (1 << (end - start - 1).bit_length() - 1)


def _above_lone(position: int, last: int) -> tuple[int, int]:
    """Past the levels on which the last node has no neighbour, and so is its own parent."""
    while position and not position & 1:
        position, last = position >> 1, last >> 1
    return position, last


def _are_hashes(*candidates: bytes) -> bool:
    return all(len(candidate) == HASH_BYTES for candidate in candidates)
