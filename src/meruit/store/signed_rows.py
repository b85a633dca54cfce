"""Signatures on rows that open the service: without a signing key, a database writer cannot make one.

The key of this data folder counts by itself. Of other machines that share the database, those keys count that the log
provably admits, as far as this process has followed it.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from meruit.log.note import SigningKey
from meruit.store.sequences import SequenceMemory

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from meruit.store.log_guard import AdmittedKeys


@dataclass(frozen=True, slots=True)
class TrustedSigners:
    """Whose signatures on rows count."""

    signer: SigningKey
    keys: "Callable[[], AdmittedKeys | None]"
    """The keys of others that count."""
    sequences: SequenceMemory

    @property
    def origin(self) -> str:
        """The name of the log."""
        return self.signer.name

    def is_signed(
        self, connection: "Connection", content: bytes, signature: bytes, entry: tuple[int, bytes] | None = None
    ) -> bool:
        """Whether a key that counts has signed it; `entry` is the log's entry with it: position and body.

        A key that was retired later counts for an entry of its time. That entry must be proven to be in the log: a key
        may have been retired because it leaked.
        """
        if self.signer.verifier.verify(content, signature):
            return True
        keys = self.keys()
        if keys is None:
            return False
        if any(one.verify(content, signature) for one in keys.chain.in_force):
            return True
        if entry is None:
            return False
        seq, body = entry
        is_of_its_time = any(one.verify(content, signature) for one in keys.chain.signers_until(seq + 1))
        return is_of_its_time and keys.is_in_log(connection, seq, body)
