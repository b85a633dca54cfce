"""Cosignatures: timestamped Ed25519 signatures of witnesses on checkpoints, by c2sp.org/tlog-cosignature."""

import struct
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Self

import msgspec

from meruit.errors import NoteError
from meruit.log.note import NoteSignature, SigningKey, VerifierKey, split_note, strict_base64

COSIGNATURE_V1 = b"\x04"
"""The signature type of a timestamped Ed25519 cosignature, as C2SP signed-note numbers them."""
MAX_TIME_S = 2**63 - 1
_TIME = struct.Struct(">Q")
_SIGNATURE_BYTES = _TIME.size + 64
_KEY_ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class WitnessKey:
    """The public half of a witness's key."""

    name: str
    public: bytes

    def __post_init__(self) -> None:
        # The rules for names and lengths are those of any key.
        VerifierKey(self.name, self.public)

    @classmethod
    def parse(cls, vkey: str) -> Self:
        """Read a witness key as it is published: `name+id+key`, of type 4."""
        name, key_id, encoded = (*vkey.strip().split("+", 2), "", "")[:3]
        try:
            material = strict_base64(encoded)
        except ValueError:
            material = b""
        if material[:1] != COSIGNATURE_V1:
            raise NoteError(
                f"{vkey[:200]!r} is not the key of a witness: `name+8 hex digits+base64` of an Ed25519 cosignature "
                "key; `meruit audit witness key` prints it"
            )
        key = cls(name, material[1:])
        if key.key_id != key_id:
            raise NoteError(f"the key of {name!r} has the id {key.key_id}, not {key_id}: a part of it was changed")
        return key

    @property
    def key_id(self) -> str:
        """Eight hex digits, other than those of the same key as a log's."""
        digest = sha256(b"%b\n%b%b" % (self.name.encode(), COSIGNATURE_V1, self.public)).digest()
        return digest[:_KEY_ID_BYTES].hex()

    @property
    def vkey(self) -> str:
        """The key as it is published; `parse` reads it."""
        return f"{self.name}+{self.key_id}+{b64encode(COSIGNATURE_V1 + self.public).decode()}"

    def time_of(self, text: str, one: NoteSignature) -> int | None:
        """When this witness cosigned the text, in seconds since 1970; None for what it did not sign."""
        if (one.name, one.key_id) != (self.name, self.key_id) or len(one.signature) != _SIGNATURE_BYTES:
            return None
        (time_s,) = _TIME.unpack_from(one.signature)
        if not 0 < time_s <= MAX_TIME_S:
            return None
        verifier = VerifierKey(self.name, self.public)
        return int(time_s) if verifier.verify(_message(text, time_s), one.signature[_TIME.size :]) else None


class Cosignature(msgspec.Struct, frozen=True):
    """A witness has seen a checkpoint, and that it extends all that it saw of the log before."""

    witness: WitnessKey
    time_s: int
    """By the clock of the witness, in seconds since 1970."""
    line: str
    """As a note holds it, with its newline."""


def cosign(signer: SigningKey, text: str, time_s: int) -> str:
    """The signature line of a witness on the text of a checkpoint."""
    if not 0 < time_s <= MAX_TIME_S:
        raise NoteError(f"a cosignature has a time after 1970, not {time_s}")
    signature = _TIME.pack(time_s) + signer.sign_bytes(_message(text, time_s))
    return NoteSignature(name=signer.name, key_id=witness_key(signer).key_id, signature=signature).line()


def witness_key(signer: SigningKey) -> WitnessKey:
    """The public key of a witness that signs with this key."""
    return WitnessKey(signer.name, signer.verifier.public)


def cosignatures(note: str, witnesses: Iterable[WitnessKey]) -> list[Cosignature]:
    """The valid cosignatures on a note by these witnesses, one each; raises NoteError for what is not a note."""
    text, signed = split_note(note)
    return find_cosignatures(text, signed, witnesses)


def find_cosignatures(text: str, signed: Sequence[NoteSignature], witnesses: Iterable[WitnessKey]) -> list[Cosignature]:
    """The newest valid cosignature of each witness among some signatures on a text; names may not count twice."""
    found: dict[bytes, Cosignature] = {}
    for witness in witnesses:
        for one in signed:
            time_s = witness.time_of(text, one)
            # One key under two names is one witness: what is signed does not hold the name.
            if time_s is not None and (witness.public not in found or found[witness.public].time_s < time_s):
                found[witness.public] = Cosignature(witness=witness, time_s=time_s, line=one.line())
    return [*found.values()]


def add_cosignatures(note: str, new: Iterable[Cosignature]) -> str:
    """The note with these cosignatures, each in place of an older one by the same key."""
    text, signed = split_note(note)
    added = {(one.witness.name, one.witness.key_id): one.line for one in new}
    others = [one.line() for one in signed if (one.name, one.key_id) not in added]
    return f"{text}\n{''.join([*others, *added.values()])}"


def _message(text: str, time_s: int) -> bytes:
    return f"cosignature/v1\ntime {time_s}\n{text}".encode()
