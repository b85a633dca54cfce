"""A witness: cosigns the checkpoints of other logs, and only those that extend all that it has seen of them.

Speaks c2sp.org/tlog-witness. Its key and its memory are a folder of its own, apart from every log.
"""

import fcntl
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import IO

import msgspec

from meruit.errors import NoteError, WitnessUnusable
from meruit.log.cosignature import WitnessKey, add_cosignatures, cosign, cosignatures, witness_key
from meruit.log.merkle import EMPTY_ROOT, is_consistent
from meruit.log.note import Checkpoint, SigningKey, VerifierKey, open_note, read_checkpoint, split_note
from meruit.log.witness_request import AddCheckpoint

KEY_FILE, NAME_FILE, LOGS, FORKS, LOCK = "witness-key.pem", "name.txt", "logs", "forks", "lock"
SIZE_TYPE, TEXT_TYPE = "text/x.tlog.size", "text/plain; charset=utf-8"
MAX_FORKS = 100
"""Proofs of a fork that are kept; one is enough to convict."""


class WitnessReply(msgspec.Struct, frozen=True):
    """The reply to one request."""

    status: HTTPStatus
    body: str
    content_type: str = TEXT_TYPE


class TrustedLog(msgspec.Struct, frozen=True):
    """A log that a witness knows: its origin line, and a key that may sign for it."""

    origin: str
    key: VerifierKey

    @classmethod
    def parse(cls, given: str) -> "TrustedLog":
        """Read `VKEY`, or `ORIGIN=VKEY` where the origin is not the name of the key; raises NoteError."""
        head, separator, rest = given.strip().partition("=")
        # Base64 ends in `=`, too.
        if separator and "+" in rest:
            return cls(head, VerifierKey.parse(rest))
        key = VerifierKey.parse(given.strip())
        return cls(key.name, key)


class Witness:
    """The state of a witness, in a folder that one process uses at a time."""

    def __init__(self, folder: Path, signer: SigningKey, logs: Sequence[TrustedLog], now_s: Callable[[], int]) -> None:
        """Open the folder; raises WitnessUnusable if another process uses it, or its memory is gone."""
        self._folder = folder
        self._signer = signer
        self._logs: Mapping[str, list[VerifierKey]] = {
            origin: [one.key for one in logs if one.origin == origin] for origin in {one.origin for one in logs}
        }
        self._now_s = now_s
        # The size is compared and replaced in one go, else a slow request could undo a quick one.
        self._turn = threading.Lock()
        self._claim = _claim(folder)

    @property
    def key(self) -> WitnessKey:
        """The public key that readers need."""
        return witness_key(self._signer)

    @property
    def origins(self) -> list[str]:
        """The logs that it knows, sorted."""
        return sorted(self._logs)

    def close(self) -> None:
        """Let another process use the folder."""
        self._claim.close()

    def add_checkpoint(self, body: bytes) -> WitnessReply:
        """Answer a request to cosign a checkpoint; what is cosigned is on disk first."""
        try:
            request = AddCheckpoint.parse(body)
            text, _ = split_note(request.note)
        except NoteError as problem:
            return WitnessReply(HTTPStatus.BAD_REQUEST, f"{problem}\n")
        origin = text.partition("\n")[0]
        keys = self._logs.get(origin)
        if keys is None:
            return WitnessReply(HTTPStatus.NOT_FOUND, "this witness does not know the log\n")
        try:
            signed = _drop_untrusted_signatures(request.note, keys)
        except NoteError as problem:
            return WitnessReply(HTTPStatus.FORBIDDEN, f"{problem}\n")
        try:
            checkpoint = read_checkpoint(text)
        except NoteError as problem:
            wrong_root = text.split("\n")[1] == "0"
            status = HTTPStatus.UNPROCESSABLE_ENTITY if wrong_root else HTTPStatus.BAD_REQUEST
            return WitnessReply(status, f"{problem}\n")
        if request.old > checkpoint.size:
            return WitnessReply(HTTPStatus.BAD_REQUEST, "the old size is above that of the checkpoint\n")
        with self._turn:
            return self._extend(request, checkpoint, text, signed)

    def latest(self, origin_hash: str) -> str | None:
        """The newest checkpoint that was cosigned of a log, by the SHA-256 of its origin in hex; None for none."""
        if origin_hash not in {_hash_of(origin) for origin in self._logs}:
            return None
        file = self._folder / LOGS / origin_hash
        return file.read_text(encoding="utf-8") if file.exists() else None

    def _extend(self, request: AddCheckpoint, new: Checkpoint, text: str, signed: str) -> WitnessReply:
        known = self._find_known(new.origin)
        size, root = (0, EMPTY_ROOT) if known is None else (known.size, known.root)
        if request.old != size:
            return WitnessReply(status=HTTPStatus.CONFLICT, body=f"{size}\n", content_type=SIZE_TYPE)
        if not is_consistent(size, new.size, request.proof, root, new.root):
            if size == new.size and root != new.root:
                self._keep_fork(new, signed)
            return WitnessReply(HTTPStatus.UNPROCESSABLE_ENTITY, f"the proof does not lead from {size} entries here\n")
        line = cosign(self._signer, text, self._now_s())
        (cosigned,) = cosignatures(f"{text}\n{line}", [self.key])
        _write(self._folder / LOGS / _hash_of(new.origin), add_cosignatures(signed, [cosigned]))
        return WitnessReply(HTTPStatus.OK, line)

    def _find_known(self, origin: str) -> Checkpoint | None:
        file = self._folder / LOGS / _hash_of(origin)
        if not file.exists():
            return None
        note = file.read_text(encoding="utf-8")
        known = None
        try:
            known = read_checkpoint(split_note(note)[0])
            ours = cosignatures(note, [self.key])
        except NoteError:
            ours = []
        if known is None or not ours:
            raise WitnessUnusable(f"{file} was damaged or changed; restore it from a copy")
        return known

    def _keep_fork(self, new: Checkpoint, signed: str) -> None:
        """Keep what proves that a log signed two histories of one size."""
        folder = self._folder / FORKS
        if len([*folder.iterdir()]) < MAX_FORKS:
            _write(folder / f"{_hash_of(new.origin)}-{new.size}-{new.root[:8].hex()}", signed)


def open_witness_key(folder: Path, name: str | None, entropy: Callable[[int], bytes]) -> SigningKey:
    """The key of a witness, made with its folder when new; raises WitnessUnusable."""
    try:
        if not (folder / KEY_FILE).exists():
            _make_folder(folder, name or f"meruit-witness-{entropy(8).hex()}", entropy)
        recorded = (folder / NAME_FILE).read_text(encoding="utf-8").strip()
        if name not in (None, recorded):
            raise WitnessUnusable(
                f"the witness in {folder} has the name {recorded!r}; give another folder for {name!r}"
            )
        if not all((folder / part).is_dir() for part in (LOGS, FORKS)):
            raise WitnessUnusable(
                f"{folder / LOGS} is gone: a witness that has forgotten what it cosigned could cosign a fork. "
                "Restore the folder from a copy, or begin a new witness with a new key in an empty folder"
            )
        return SigningKey.from_pem(recorded, (folder / KEY_FILE).read_bytes())
    except (OSError, UnicodeDecodeError, NoteError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise WitnessUnusable(f"the witness in {folder} cannot be used: {reason}") from None


def _make_folder(folder: Path, name: str, entropy: Callable[[int], bytes]) -> None:
    """Make all of it, the key last: what has a key is complete."""
    made = SigningKey.generate(name, entropy(32))
    for part in (LOGS, FORKS):
        (folder / part).mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(folder / NAME_FILE, f"{name}\n")
    _write(folder / KEY_FILE, made.to_pem().decode())


def _drop_untrusted_signatures(note: str, keys: Sequence[VerifierKey]) -> str:
    """The note with the signatures of trusted keys only; raises NoteError where there is none, or a false one."""
    text, signed = split_note(note)
    trusted = {(key.name, key.key_id): key for key in keys}
    ours = [one for one in signed if (one.name, one.key_id) in trusted]
    if not ours:
        raise NoteError("no key that this witness trusts for the log has signed the checkpoint")
    for one in ours:
        open_note(note, trusted[one.name, one.key_id])
    return f"{text}\n{''.join(one.line() for one in ours)}"


def _claim(folder: Path) -> IO[bytes]:
    """Take the folder for this process; raises WitnessUnusable if another has it."""
    file = (folder / LOCK).open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise WitnessUnusable(f"another process uses the witness in {folder}; stop it first") from None
    return file


def _hash_of(origin: str) -> str:
    return sha256(origin.encode()).hexdigest()


def _write(file: Path, content: str) -> None:
    """Replace a file so that it is never half written, and is there after a crash."""
    unfinished = file.with_name(f"{file.name}.new")
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    unfinished.replace(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
