"""Follow a log from outside: keep its checkpoints, and prove that each new one extends the last.

The file belongs to the reader. With it, an operator cannot roll a log back, cut it off or show another history.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from meruit.audit.verify.signatures import NO_WITNESSES, WitnessQuorum
from meruit.errors import LogContradiction, NoteError, Problem, ProofUnavailable, UnreadableFile
from meruit.log.cosignature import cosignatures
from meruit.log.entries import KeyEntry, read_entry
from meruit.log.key_chain import ROOT, KeyChain, KeyProof
from meruit.log.merkle import is_consistent, is_included, leaf_hash
from meruit.log.note import Checkpoint, VerifierKey, open_checkpoint, read_checkpoint, split_note
from meruit.model.decoding import decode_json
from meruit.model.record import Record

FORMAT = "meruit-follow/1"
MAX_KEPT = 10_000
"""Checkpoints that a file keeps, the newest ones."""
MAX_CONTRADICTIONS = 100
NOT_WITNESSED = "not_witnessed"
"""The code where too few witnesses have cosigned; unlike others, it may pass."""


class LogSource(Protocol):
    """Where a log can be read."""

    async def key(self) -> str:
        """The key that signs it now, as it publishes it."""

    async def checkpoint(self, *, witnessed: bool) -> str:
        """The newest signed checkpoint, or the newest of those with most cosignatures."""

    async def consistency(self, old: int, new: int) -> Sequence[bytes]:
        """The proof that the log of the new size extends that of the old one."""

    async def keys(self, size: int) -> Sequence[KeyProof]:
        """Every entry about keys among the first so many, in order, each with its proof."""


class KeptCheckpoint(Record, frozen=True, forbid_unknown_fields=True):
    """A checkpoint, and when it was received."""

    at: str
    note: str


class KeptContradiction(Record, frozen=True, forbid_unknown_fields=True):
    """What a log showed that contradicts what was kept: two signed notes that convict its operator."""

    at: str
    code: str
    kept: str
    shown: str


class KeptKey(Record, frozen=True, forbid_unknown_fields=True):
    """An entry of the log that admits or retires a key."""

    index: int
    body: str


class FollowedLog(Record, frozen=True, forbid_unknown_fields=True):
    """The file of a reader: one log, its key, and its checkpoints, the oldest first."""

    format: str
    key: str
    """The key that the log is known by; after a rotation, the one that replaced it."""
    checkpoints: list[KeptCheckpoint]
    contradictions: list[KeptContradiction]
    witnessed: KeptCheckpoint | None = None
    """The newest with enough cosignatures, where they were asked for."""
    keys: list[KeptKey] = msgspec.field(default_factory=list)
    """The entries about keys that were proven so far."""
    root: str = ""
    """The root key that the reader accepts: that of the first check, or one that was accepted since."""

    @property
    def known_keys(self) -> set[str]:
        """The key that the log is known by, and those that it had before."""
        return {self.key, *(decode_json(one.body, KeyEntry).vkey for one in self.keys)}

    @property
    def last(self) -> KeptCheckpoint:
        """The newest that was proven."""
        return self.checkpoints[-1]


class FollowResult(Record, frozen=True):
    """How one look at the log ended."""

    state: str
    """`first`, `same` or `extended`; a contradiction is raised instead."""
    size: int
    before: int
    """The size before; 0 for the first check."""
    witnesses: list[str]
    """The trusted witnesses that cosigned the newest checkpoint which enough of them did."""
    witnessed: int
    """The size of that checkpoint; 0 where no witness is asked for."""
    pinned: bool
    """False where the key of the first check was taken from the log itself."""
    key: str = ""
    """The key that the log is known by now."""
    rotated: bool = False
    """Whether the log has replaced the key since the last look, by a chain of admissions that was proven."""
    root: str = ""
    """The root key that the log has now; empty for none."""
    root_accepted: bool = True
    """False where the log got this root after your first check and you did not accept it."""


async def follow(
    source: LogSource,
    file: Path,
    now: str,
    *,
    key: VerifierKey | None = None,
    quorum: WitnessQuorum = NO_WITNESSES,
    accept_root: VerifierKey | None = None,
) -> FollowResult:
    """Read the newest checkpoint, prove that it extends the last in the file, and keep it.

    A key that replaced the known one is followed, if the log admits it. Raises LogContradiction where the log does not
    extend what was kept; then the file keeps both notes as evidence.
    """
    kept = read_followed(file)
    if kept is not None and key is not None and key.vkey not in kept.known_keys:
        raise LogContradiction("key_changed", f"{file} follows the log of {kept.key}, not of the key that you gave")
    trusted = VerifierKey.parse(kept.key) if kept is not None else key or VerifierKey.parse(await source.key())
    # This one first: the log may grow in between, and never has fewer entries than one of its checkpoints.
    cosigned = await source.checkpoint(witnessed=True) if quorum.required else ""
    shown = await source.checkpoint(witnessed=False)
    # The file is the reader's own: what it holds was verified when it was kept.
    last = None if kept is None else read_checkpoint(split_note(kept.last.note)[0])
    try:
        new = _read_shown(shown, trusted)
        keys = await _read_keys(source, new, kept, trusted, accept_root)
        _open(shown, keys.signers)
        await _compare(source, new, last)
        witnesses = await _check_cosigned(source, cosigned, new, keys, quorum) if cosigned else []
    except LogContradiction as found:
        if kept is not None and found.code != NOT_WITNESSED and len(kept.contradictions) < MAX_CONTRADICTIONS:
            contradiction = KeptContradiction(now, found.code, kept.last.note, shown)
            _write(file, msgspec.structs.replace(kept, contradictions=[*kept.contradictions, contradiction]))
        raise
    if kept is None or last is None:
        followed = FollowedLog(FORMAT, trusted.vkey, [KeptCheckpoint(now, shown)], [])
        state = "first"
    else:
        state = "same" if new.size == last.size else "extended"
        newest = kept.checkpoints if state == "same" else [*kept.checkpoints, KeptCheckpoint(now, shown)]
        followed = msgspec.structs.replace(kept, checkpoints=newest[-MAX_KEPT:])
    followed = msgspec.structs.replace(followed, keys=keys.entries, key=keys.known, root=keys.accepted_root)
    if cosigned:
        followed = msgspec.structs.replace(followed, witnessed=KeptCheckpoint(now, cosigned))
    if followed != kept:
        _write(file, followed)
    return FollowResult(
        state=state,
        size=new.size,
        before=0 if last is None else last.size,
        witnesses=witnesses,
        witnessed=_open(cosigned, keys.all_signers).size if cosigned else 0,
        pinned=kept is not None or key is not None,
        key=keys.known,
        rotated=keys.known != trusted.vkey,
        root=keys.root,
        root_accepted=keys.root == keys.accepted_root,
    )


@dataclass(frozen=True, slots=True)
class _Keys:
    """What the chain of keys says at the size of a checkpoint."""

    signers: list[VerifierKey]
    """Those that may sign it."""
    all_signers: list[VerifierKey]
    """And those that may have signed earlier ones."""
    known: str
    entries: list[KeptKey]
    root: str
    accepted_root: str


async def _read_keys(
    source: LogSource,
    new: Checkpoint,
    kept: FollowedLog | None,
    trusted: VerifierKey,
    accept_root: VerifierKey | None,
) -> _Keys:
    """Follow the chain of keys to the checkpoint; raises LogContradiction."""
    proofs = await source.keys(new.size)
    chain = KeyChain(trusted.name)
    accepted = "" if kept is None else kept.root
    entries = [KeptKey(one.index, one.body.decode(errors="replace")) for one in proofs]
    known = [] if kept is None else [one for one in kept.keys if one.index < new.size]
    if entries[: len(known)] != known:
        raise LogContradiction("log_forked", "the log shows other entries about its keys than it did before")
    for place, one in enumerate(proofs):
        if not is_included(leaf_hash(one.body), one.index, new.size, one.proof, new.root):
            raise LogContradiction("key_not_proven", f"entry {one.index} about keys is not in the log")
        accepted = _admit(chain, one, accepted, accept_root, is_new=kept is not None and place >= len(known))
    if not (chain.is_in_force(trusted.vkey) or chain.was_in_force(trusted.vkey)):
        if kept is not None and len(known) < len(kept.keys):
            raise LogContradiction("log_rolled_back", "the log no longer has the entry that admits its key")
        raise LogContradiction("key_changed", f"the log does not admit {trusted.vkey}, which you know it by")
    signers = chain.signers_at(new.size)
    root = "" if chain.root is None else chain.root.vkey
    if kept is None or (accept_root is not None and accept_root.vkey == root):
        accepted = root
    stays = chain.is_in_force(trusted.vkey) or not chain.in_force
    return _Keys(
        signers=signers,
        all_signers=chain.signers_until(0),
        known=trusted.vkey if stays else chain.in_force[-1].vkey,
        entries=entries,
        root=root,
        accepted_root=accepted,
    )


def _admit(chain: KeyChain, one: KeyProof, accepted: str, accept_root: VerifierKey | None, *, is_new: bool) -> str:
    """Follow one entry; answers the root that the reader accepts after it."""
    try:
        entry = read_entry(one.body)
    except msgspec.DecodeError:
        entry = None
    if not isinstance(entry, KeyEntry):
        raise LogContradiction("key_not_proven", f"entry {one.index} is not about keys")
    before = "" if chain.root is None else chain.root.vkey
    why = chain.admit(one.index, entry)
    if why:
        raise LogContradiction("key_not_admitted", f"entry {one.index} does not admit a key: {why}")
    if not is_new or entry.by != before or not before:
        return accepted
    if accepted != before and (accept_root is None or accept_root.vkey != before):
        # A thief of a signing key can install a root, so what a late root does needs the reader's consent.
        raise LogContradiction(
            "root_not_accepted",
            f"entry {one.index} was signed by the root key {before}, which the log got after your first check; ask the "
            "operator by another way whether it is theirs, then give it with --accept-root",
        )
    # A root that you accept may name its successor.
    return entry.vkey if entry.role == ROOT else before


async def _compare(source: LogSource, new: Checkpoint, last: Checkpoint | None) -> None:
    """Raise LogContradiction unless the checkpoint that the log shows extends the last one."""
    if last is None:
        return
    if new.size < last.size:
        raise LogContradiction(
            "log_rolled_back",
            f"the log had {last.size:,} entries when you last looked, and shows {new.size:,} now: it was rolled back "
            "or cut off",
        )
    if new.size == last.size and new.root != last.root:
        raise LogContradiction("log_forked", f"the log shows another history of the same {new.size:,} entries")
    if new.size > last.size:
        proof = await source.consistency(last.size, new.size)
        check_consistency(last, new, proof)


def check_consistency(old: Checkpoint, new: Checkpoint, proof: Sequence[bytes]) -> None:
    """Raise LogContradiction unless the proof shows that the new log extends the old one."""
    if old.origin != new.origin:
        raise LogContradiction("other_log", f"these are two logs: {old.origin!r} and {new.origin!r}")
    if old.size > new.size:
        raise LogContradiction("log_rolled_back", f"the old checkpoint has {old.size:,} entries, the new {new.size:,}")
    if not is_consistent(old.size, new.size, proof, old.root, new.root):
        raise LogContradiction(
            "log_forked",
            f"the log of {new.size:,} entries does not extend the one of {old.size:,}: it was rewritten or forked",
        )


def _read_shown(note: str, key: VerifierKey) -> Checkpoint:
    """The checkpoint as it is shown, with any signature; raises LogContradiction."""
    try:
        found = read_checkpoint(split_note(note)[0])
    except NoteError as problem:
        raise LogContradiction("not_signed", f"the log shows something that is not a checkpoint: {problem}") from None
    if found.origin != key.name:
        raise LogContradiction("other_log", f"the checkpoint is of the log {found.origin!r}, the key of {key.name!r}")
    return found


def _open(note: str, keys: Sequence[VerifierKey]) -> Checkpoint:
    """The checkpoint that one of the keys signed; raises LogContradiction."""
    for key in keys:
        try:
            return open_checkpoint(note, key)
        except NoteError:
            continue
    raise LogContradiction("not_signed", "the checkpoint is not signed by a key that the log admits")


async def _check_cosigned(
    source: LogSource, note: str, new: Checkpoint, keys: _Keys, quorum: WitnessQuorum
) -> list[str]:
    """The witnesses of a checkpoint that the newest one must extend; raises LogContradiction."""
    cosigned = _open(note, keys.all_signers)
    if cosigned.size < new.size:
        check_consistency(cosigned, new, await source.consistency(cosigned.size, new.size))
    else:
        check_consistency(cosigned, new, ())
    found = cosignatures(note, quorum.keys)
    if len(found) < quorum.required:
        raise LogContradiction(
            NOT_WITNESSED,
            f"{len(found)} of your {len(quorum.keys)} witnesses cosigned the checkpoint, and {quorum.required} must; "
            "try again in a minute. If they never sign, the log was rolled back or forked",
        )
    return [one.witness.name for one in found]


def read_followed(file: Path) -> FollowedLog | None:
    """Read a reader's file, None where there is none yet; raises UnreadableFile."""
    if not file.exists():
        return None
    found = None
    try:
        found = FollowedLog.from_json(file.read_bytes())
        VerifierKey.parse(found.key)
        reason: object = f"its format is not {FORMAT}, or it has no checkpoint"
    except (OSError, ValueError, NoteError) as problem:
        reason = getattr(problem, "strerror", None) or problem
    if found is None or found.format != FORMAT or not found.checkpoints:
        raise UnreadableFile(
            str(file), [Problem("", f"is not a file of `meruit audit follow`: {reason}; restore it from a copy")]
        )
    return found


def _write(file: Path, content: FollowedLog) -> None:
    """Replace the file so that it is never half written."""
    unfinished = file.with_name(f"{file.name}.new")
    with unfinished.open("wb") as opened:
        opened.write(msgspec.json.format(content.to_json(), indent=1))
        opened.flush()
        os.fsync(opened.fileno())
    unfinished.replace(file)


def unreadable(where: str, what: str) -> ProofUnavailable:
    """The error for an answer that is not a checkpoint or a proof."""
    return ProofUnavailable(f"{where} answered with something that is not {what}; check the URL")
