"""Signed notes and the checkpoints of a log, as c2sp.org/signed-note and c2sp.org/tlog-checkpoint write them."""

import re
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Self

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from meruit.errors import NoteError
from meruit.log.merkle import EMPTY_ROOT, HASH_BYTES, MAX_SIZE
from meruit.model.record import Record

MAX_NOTE_BYTES = 1_000_000
MAX_SIGNATURES = 100
"""On one note; C2SP signed-note asks for room for sixteen."""
KEY_BYTES = 32
"""Of an Ed25519 key, and of the seed of one."""

_ED25519 = b"\x01"
"""The signature type, as C2SP signed-note numbers them."""
_KEY_ID_BYTES = 4
_PEM_BEGIN, _PEM_END = b"-----BEGIN PRIVATE KEY-----", b"-----END PRIVATE KEY-----"
_PKCS8_HEAD = bytes.fromhex("302e020100300506032b657004220420")
"""RFC 8410: what precedes the seed of an Ed25519 key."""
_DASH = "— "
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}")
_KEY_ID = re.compile(r"[0-9a-f]{8}")
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f]")
"""What no note may hold; lines end in a plain newline."""


@dataclass(frozen=True, slots=True)
class VerifierKey:
    """The public half of a key: all that is needed to check what was signed."""

    name: str
    public: bytes

    def __post_init__(self) -> None:
        if not _is_name(self.name):
            raise NoteError(f"a key's name has no spaces, plus or control signs and is not empty: not {self.name!r}")
        if len(self.public) != KEY_BYTES:
            raise NoteError(f"an Ed25519 key has {KEY_BYTES} bytes, not {len(self.public)}")

    @classmethod
    def parse(cls, vkey: str) -> Self:
        """Read a verifier key as it is published: `name+id+key`."""
        name, key_id, encoded = (*vkey.split("+", 2), "", "")[:3]
        try:
            material = strict_base64(encoded)
        except ValueError:
            material = b""
        if not _KEY_ID.fullmatch(key_id) or not material:
            raise NoteError(f"a verifier key reads `name+8 hex digits+base64`; this one is {vkey!r}")
        if material[:1] != _ED25519:
            raise NoteError(f"the key of {name!r} is not an Ed25519 key; this version verifies no other kind")
        key = cls(name, material[1:])
        if key.key_id != key_id:
            raise NoteError(f"the key of {name!r} has the id {key.key_id}, not {key_id}: a part of it was changed")
        return key

    @property
    def key_id(self) -> str:
        """Distinguishes this key from others of its name: eight hex digits."""
        digest = sha256(b"%b\n%b%b" % (self.name.encode(), _ED25519, self.public)).digest()
        return digest[:_KEY_ID_BYTES].hex()

    @property
    def vkey(self) -> str:
        """The key as it is published; `parse` reads it."""
        return f"{self.name}+{self.key_id}+{_base64(_ED25519 + self.public)}"

    def verify(self, data: bytes, signature: bytes) -> bool:
        """Whether this key signed exactly this."""
        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(signature, data)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, slots=True)
class SigningKey:
    """Both halves of a key; the secret one is never printed."""

    verifier: VerifierKey
    _secret: Ed25519PrivateKey = field(repr=False, compare=False)

    @classmethod
    def generate(cls, name: str, seed: bytes) -> Self:
        """A key from 32 random bytes, which the caller brings and forgets."""
        if len(seed) != KEY_BYTES:
            raise NoteError(f"a key grows from {KEY_BYTES} random bytes, not {len(seed)}")
        return cls._of(name, Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def from_pem(cls, name: str, pem: bytes) -> Self:
        """Read back what `to_pem` wrote, or another private key in PEM."""
        seed = _seed_of(pem)
        if seed is not None:
            return cls._of(name, Ed25519PrivateKey.from_private_bytes(seed))
        # The readers of all formats take longer to load than a log entry takes to sign.
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            secret = load_pem_private_key(pem, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as problem:
            raise NoteError(f"the key of {name!r} is not an unencrypted private key in PEM") from problem
        if not isinstance(secret, Ed25519PrivateKey):
            raise NoteError(
                f"the key of {name!r} is not an Ed25519 key; `openssl genpkey -algorithm ed25519` makes one"
            )
        return cls._of(name, secret)

    @classmethod
    def _of(cls, name: str, secret: Ed25519PrivateKey) -> Self:
        return cls(VerifierKey(name, secret.public_key().public_bytes_raw()), secret)

    def to_pem(self) -> bytes:
        """The secret itself, unencrypted: for a file that only its owner can read."""
        encoded = b64encode(_PKCS8_HEAD + self._secret.private_bytes_raw())
        return b"%b\n%b\n%b\n" % (_PEM_BEGIN, encoded, _PEM_END)

    @property
    def name(self) -> str:
        """Who signs."""
        return self.verifier.name

    @property
    def key_id(self) -> str:
        """Distinguishes this key from others of its name: eight hex digits."""
        return self.verifier.key_id

    @property
    def vkey(self) -> str:
        """The public half, as it is published."""
        return self.verifier.vkey

    def sign(self, text: str) -> str:
        """The whole note: the text, an empty line, the signature."""
        if not text.endswith("\n") or not _is_plain(text):
            raise NoteError("the text of a note ends in a newline and holds no other control characters")
        signature = NoteSignature(name=self.name, key_id=self.key_id, signature=self.sign_bytes(text.encode()))
        return f"{text}\n{signature.line()}"

    def sign_bytes(self, data: bytes) -> bytes:
        """The bare Ed25519 signature."""
        return self._secret.sign(data)

    def derive_secret(self, purpose: str) -> bytes:
        """A secret of 32 bytes that only holders of the key can derive, another one for each purpose."""
        return sha256(b"%b\n%b" % (purpose.encode(), self._secret.private_bytes_raw())).digest()


def _seed_of(pem: bytes) -> bytes | None:
    """The seed of a key as `to_pem` writes it; None for any other."""
    lines = pem.split(b"\n")
    if len(lines) != 4 or (lines[0], *lines[2:]) != (_PEM_BEGIN, _PEM_END, b""):
        return None
    try:
        decoded = b64decode(lines[1], validate=True)
    except ValueError:
        return None
    is_usual = decoded.startswith(_PKCS8_HEAD) and len(decoded) == len(_PKCS8_HEAD) + KEY_BYTES
    return decoded.removeprefix(_PKCS8_HEAD) if is_usual else None


class Checkpoint(Record, frozen=True):
    """A whole log in three lines: whose it is, how long it is, and its root."""

    origin: str
    size: int
    root: bytes

    def __post_init__(self) -> None:
        if not self.origin or "\n" in self.origin or not _is_plain(self.origin):
            raise ValueError("the origin of a checkpoint is one line of text")
        if not 0 <= self.size <= MAX_SIZE:
            raise ValueError(f"no log has {self.size} entries")
        if len(self.root) != HASH_BYTES:
            raise ValueError(f"a root has {HASH_BYTES} bytes, not {len(self.root)}")
        if self.size == 0 and self.root != EMPTY_ROOT:
            raise ValueError("the root is not that of an empty log")

    def text(self) -> str:
        """What is signed."""
        return f"{self.origin}\n{self.size}\n{_base64(self.root)}\n"


def open_checkpoint(note: str, key: VerifierKey) -> Checkpoint:
    """The checkpoint in a note that this key signed.

    Lines after the third, which C2SP tlog-checkpoint leaves to others, are signed but mean nothing to us. Whether the
    origin is the expected one is for the caller to ask.
    """
    return read_checkpoint(open_note(note, key))


def read_checkpoint(text: str) -> Checkpoint:
    """The checkpoint in the text of a note, which the caller has verified or does not trust; raises NoteError."""
    lines = text.split("\n")[:-1]
    if len(lines) < 3 or not all(lines):
        raise NoteError("malformed checkpoint: it has at least three lines, and none is empty")
    origin, size, root = lines[:3]
    if not _DECIMAL.fullmatch(size):
        raise NoteError(f"malformed checkpoint: {size!r} is not a valid log size")
    try:
        return Checkpoint(origin, int(size), strict_base64(root))
    except ValueError as problem:
        raise NoteError(f"malformed checkpoint: {problem}") from problem


def open_note(note: str, key: VerifierKey) -> str:
    """The text of a note that this key signed; the signatures of other keys are not looked at."""
    text, signed = split_note(note)
    ours = [one.signature for one in signed if (one.name, one.key_id) == (key.name, key.key_id)]
    if not ours:
        raise NoteError(f"the note has no signature by {key.name}+{key.key_id}")
    if not all(key.verify(text.encode(), signature) for signature in ours):
        raise NoteError(f"bad signature: {key.name}+{key.key_id} did not sign this text")
    return text


# Any: what JSON has.
def signed_content(purpose: str, origin: str, *values: Any) -> bytes:
    """What a signature on a row or on the end of a log is about; the purpose keeps one from standing for another."""
    return msgspec.json.encode([purpose, origin, *values])


def strict_base64(text: str) -> bytes:
    """The bytes of standard base64, in the one way to write them; raises `ValueError` for every other."""
    decoded = b64decode(text)
    # The decoder forgives foreign characters and loose bits; two texts for one signature would be one too many.
    if _base64(decoded) != text:
        raise ValueError("this is not how base64 is written")
    return decoded


class NoteSignature(msgspec.Struct, frozen=True):
    """One signature line of a note."""

    name: str
    key_id: str
    """Eight hex digits."""
    signature: bytes

    def line(self) -> str:
        """The line as a note holds it, with its newline."""
        return f"{_DASH}{self.name} {_base64(bytes.fromhex(self.key_id) + self.signature)}\n"


def split_note(note: str) -> tuple[str, list[NoteSignature]]:
    """The text of a note, and its signatures, none of them verified."""
    # Counted in characters first, so that no more than that is ever encoded.
    if len(note) > MAX_NOTE_BYTES or not _is_plain(note) or len(note.encode()) > MAX_NOTE_BYTES:
        raise NoteError(f"malformed note: it is at most {MAX_NOTE_BYTES} bytes of UTF-8 without control characters")
    text, separator, signatures = note.rpartition("\n\n")
    lines = signatures.split("\n")
    if not separator or len(lines) < 2 or lines.pop():
        raise NoteError("malformed note: it is a text, an empty line, and lines with signatures")
    if len(lines) > MAX_SIGNATURES:
        raise NoteError(f"malformed note: it has more than {MAX_SIGNATURES} signatures")
    return f"{text}\n", [read_signature(line) for line in lines]


def read_signature(line: str) -> NoteSignature:
    """Read one signature line, without its newline; raises NoteError."""
    name, _, encoded = line.removeprefix(_DASH).partition(" ")
    try:
        decoded = strict_base64(encoded)
    except ValueError:
        decoded = b""
    if not line.startswith(_DASH) or not _is_name(name) or len(decoded) <= _KEY_ID_BYTES:
        raise NoteError(f"malformed note: a signature reads `{_DASH}name base64`, not {line[:100]!r}")
    return NoteSignature(name=name, key_id=decoded[:_KEY_ID_BYTES].hex(), signature=decoded[_KEY_ID_BYTES:])


def _is_name(name: str) -> bool:
    return bool(name) and "+" not in name and not any(map(str.isspace, name)) and _is_plain(name)


def _is_plain(text: str) -> bool:
    """Whether it can be written in UTF-8 and holds no control characters but newlines."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return not _CONTROL.search(text)


def _base64(data: bytes) -> str:
    return b64encode(data).decode()
