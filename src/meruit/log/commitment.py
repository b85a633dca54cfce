"""Speaking for content without holding it: a salted hash that outlives what it stands for."""

from collections.abc import Iterable
from hashlib import sha256

SALT_BYTES = 16
PURPOSE = b"meruit-blob-v1\n"
"""Keeps a commitment from ever being mistaken for another kind of hash over the same bytes."""


def commitment(salt: bytes, content: bytes) -> str:
    """The hash, in hex, that stands for content in the log.

    Salted because content can be erased, and its salt with it: what remains then says nothing, even about a content
    that could be guessed, such as a yes or a name.
    """
    if len(salt) != SALT_BYTES:
        raise ValueError(f"a salt has {SALT_BYTES} bytes, not {len(salt)}")
    return sha256(PURPOSE + salt + sha256(content).digest()).hexdigest()


def commitment_to(salt: bytes, digest: str) -> str:
    """The same from the content's SHA-256, for callers that have it already."""
    if len(salt) != SALT_BYTES:
        raise ValueError(f"a salt has {SALT_BYTES} bytes, not {len(salt)}")
    return sha256(PURPOSE + salt + bytes.fromhex(digest)).hexdigest()


def salt_of(written: str) -> bytes:
    """The bytes of a salt from its hex, empty for what is not written as we write one."""
    try:
        salt = bytes.fromhex(written)
    except ValueError:
        return b""
    return salt if salt.hex() == written else b""


def matches(committed: str, salt: bytes, content: bytes) -> bool:
    """Whether this is the content that was committed to."""
    return len(salt) == SALT_BYTES and committed == commitment(salt, content)


def matches_digest(committed: str, salt: bytes, digest: str) -> bool:
    """The same from the content's SHA-256; false for what is not one."""
    try:
        return committed == commitment_to(salt, digest)
    except ValueError:
        return False


def usage_evidence_bytes(run: bytes, looks: Iterable[bytes]) -> bytes:
    """What the audit log commits to: the run, and its observations so far, in order."""
    return b"\n".join((run, *looks))
