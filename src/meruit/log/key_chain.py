"""Which keys may sign a log: the first admits itself, every later one is admitted by a key in force or by the root."""

from base64 import b64encode
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

from meruit.errors import NoteError
from meruit.log.entries import KeyEntry
from meruit.log.note import SigningKey, VerifierKey, strict_base64

ROOT = "root"
"""The role of an operator's offline key: it admits keys, and signs no checkpoint."""
FOUNDING_INDEX = 1
"""The entry of a root that is as old as its log: right after the first key, before anything was recorded."""
_PURPOSE = "meruit-key-admission-v1"


@dataclass(frozen=True, slots=True)
class KeyProof:
    """An entry that admits a key, and the proof that the log has it."""

    index: int
    body: bytes
    proof: Sequence[bytes]


def admit_key(signer: SigningKey, at: str, origin: str, vkey: str, *, role: str = "", retires: str = "") -> KeyEntry:
    """The entry by which a key admits another; `retires` names a key that may not sign from here on."""
    signature = signer.sign_bytes(_message(origin, vkey, role, retires))
    return KeyEntry(at, vkey, signer.vkey, b64encode(signature).decode(), role, retires)


class KeyChain:
    """The keys of a log as its entries admit them, one after the other."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.root: VerifierKey | None = None
        self.root_index: int | None = None
        """The entry that installed the first root."""
        self._in_force: dict[str, VerifierKey] = {}
        self._retired: dict[str, tuple[VerifierKey, int]] = {}
        """With the index of the entry that retired each."""

    def copy(self) -> "KeyChain":
        """The same keys, to be continued without a change to these."""
        made = copy(self)
        vars(made).update(_in_force=dict(self._in_force), _retired=dict(self._retired))
        return made

    @property
    def has_late_root(self) -> bool:
        """Whether the root came after other entries: a holder of the signing key at that time may have installed it."""
        return self.root_index is not None and self.root_index > FOUNDING_INDEX

    @property
    def in_force(self) -> list[VerifierKey]:
        """The keys that may sign now."""
        return [*self._in_force.values()]

    def signers_at(self, size: int) -> list[VerifierKey]:
        """The keys that may sign a checkpoint of the entries so far, which are as many."""
        # The transaction that retires a key is still signed by it.
        leaving = [key for key, index in self._retired.values() if size == index + 1]
        return [*self._in_force.values(), *leaving]

    def signers_until(self, size: int) -> list[VerifierKey]:
        """The keys that may have signed a checkpoint of so many entries, at the time or later."""
        leaving = [key for key, index in self._retired.values() if size <= index + 1]
        return [*self._in_force.values(), *leaving]

    def is_in_force(self, vkey: str) -> bool:
        """Whether the key may sign now."""
        return vkey in self._in_force

    def was_in_force(self, vkey: str) -> bool:
        """Whether the key was retired."""
        return vkey in self._retired

    def admit(self, index: int, entry: KeyEntry) -> str:
        """Add the key of an entry; answers why it is not admitted, empty when it is."""
        try:
            key = VerifierKey.parse(entry.vkey)
        except NoteError:
            return "its key cannot be read"
        why = self._why_refused(index, entry, key)
        if why:
            return why
        if entry.retires:
            self._retired[entry.retires] = (self._in_force.pop(entry.retires), index)
        if entry.role == ROOT:
            self.root = key
            self.root_index = index if self.root_index is None else self.root_index
        else:
            self._in_force[entry.vkey] = key
        return ""

    def _why_refused(self, index: int, entry: KeyEntry, key: VerifierKey) -> str:
        if entry.role not in ("", ROOT) or (entry.role != ROOT and key.name != self.origin):
            return f"it is not a key of the log {self.origin!r}"
        if entry.retires and entry.retires not in self._in_force:
            return "it retires a key that is not in force"
        if not self._in_force and not self._retired and self.root is None:
            first = index == 0 and not entry.by and not entry.role
            return "" if first else "only the first entry of a log admits a key by itself"
        return self._why_unsigned(entry)

    def _why_unsigned(self, entry: KeyEntry) -> str:
        if not entry.by:
            return "no key in force and no root key admits it"
        is_root = self.root is not None and entry.by == self.root.vkey
        admitting = self.root if is_root else self._in_force.get(entry.by)
        if admitting is None or (entry.role == ROOT and self.root is not None and not is_root):
            return "it is admitted by a key that may not do that"
        if entry.retires and not is_root and entry.retires != entry.by:
            return "a signing key retires only itself; the root key retires others"
        try:
            signature = strict_base64(entry.signature)
        except ValueError:
            signature = b""
        if not admitting.verify(_message(self.origin, entry.vkey, entry.role, entry.retires), signature):
            return "the signature that admits it is not valid"
        return ""


def _message(origin: str, vkey: str, role: str, retires: str) -> bytes:
    return "".join(f"{line}\n" for line in (_PURPOSE, origin, role, vkey, retires)).encode()
