"""What a log sends to a witness: the body of `add-checkpoint`, as c2sp.org/tlog-witness writes it."""

import re
from base64 import b64encode
from collections.abc import Sequence
from typing import Self

import msgspec

from meruit.errors import NoteError
from meruit.log.merkle import HASH_BYTES
from meruit.log.note import strict_base64

MAX_PROOF_LINES = 63
MAX_REQUEST_BYTES = 64 * 1024
"""Of a whole request: a size, 63 hashes and a checkpoint with its signatures."""
_OLD = re.compile(r"old (0|[1-9][0-9]{0,18})")


class AddCheckpoint(msgspec.Struct, frozen=True):
    """A new checkpoint, and the proof that it extends the one of an old size."""

    old: int
    """The size of the log that the witness cosigned last; 0 for none."""
    proof: Sequence[bytes]
    note: str

    def to_bytes(self) -> bytes:
        """The body of the request."""
        lines = [f"old {self.old}", *(b64encode(one).decode() for one in self.proof), ""]
        return "".join(f"{line}\n" for line in lines).encode() + self.note.encode()

    @classmethod
    def parse(cls, body: bytes) -> Self:
        """Read a body; raises NoteError for what is not one."""
        if len(body) > MAX_REQUEST_BYTES:
            raise NoteError(f"a request has {MAX_REQUEST_BYTES} bytes at most")
        try:
            head, separator, note = body.decode().partition("\n\n")
        except UnicodeDecodeError:
            raise NoteError("the request is not UTF-8 text") from None
        size, *lines = head.split("\n")
        old = _OLD.fullmatch(size)
        if old is None or not separator:
            raise NoteError("a request is `old SIZE`, lines of the proof, an empty line and a checkpoint")
        if len(lines) > MAX_PROOF_LINES:
            raise NoteError(f"a proof has {MAX_PROOF_LINES} lines at most")
        return cls(old=int(old[1]), proof=[_hash(line) for line in lines], note=note)


def _hash(line: str) -> bytes:
    try:
        found = strict_base64(line)
    except ValueError:
        found = b""
    if len(found) != HASH_BYTES:
        raise NoteError(f"a line of the proof is a hash of {HASH_BYTES} bytes in base64, not {line[:100]!r}")
    return found
