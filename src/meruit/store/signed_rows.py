"""Signatures on rows that open the service: without a signing key, a database writer cannot make one.

The key of this data folder counts by itself. Of other machines that share the database, those keys count that the log
provably admits, as far as this process has followed it.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from meruit.log.note import SigningKey
from meruit.store.sequences import SequenceMemory

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from meruit.log.key_chain import KeyChain


# Any: columns of several types.
def signed_content(purpose: str, origin: str, *values: Any) -> bytes:
    """What a signature on a row of this log is about."""
    return msgspec.json.encode([purpose, origin, *values])


@dataclass(frozen=True, slots=True)
class TrustedSigners:
    """Whose signatures on rows count."""

    signer: SigningKey
    keys: "Callable[[Connection], KeyChain]"
    """The keys of others that count."""
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
        chain = self.keys(connection)
        others = chain.in_force if at is None else chain.signers_until(at + 1)
        return any(one.verify(content, signature) for one in others)
