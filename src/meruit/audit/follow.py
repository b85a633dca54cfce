"""Follow a log from outside: keep its checkpoints, and prove that each new one extends the last.

The file belongs to the reader. With it, an operator cannot roll a log back, cut it off or show another history.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from meruit.audit.verify.entries import NO_WITNESSES, WitnessQuorum
from meruit.errors import LogContradiction, NoteError, Problem, ProofUnavailable, UnreadableFile
from meruit.log.cosignature import cosignatures
from meruit.log.merkle import is_consistent
from meruit.log.note import Checkpoint, VerifierKey, open_checkpoint
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


class FollowedLog(Record, frozen=True, forbid_unknown_fields=True):
    """The file of a reader: one log, its key, and its checkpoints, the oldest first."""

    format: str
    key: str
    """The key that the log is known by."""
    checkpoints: list[KeptCheckpoint]
    contradictions: list[KeptContradiction]
    witnessed: KeptCheckpoint | None = None
    """The newest with enough cosignatures, where they were asked for."""

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
    """The size before; 0 for the first look."""
    witnesses: list[str]
    """The trusted witnesses that cosigned the newest checkpoint which enough of them did."""
    witnessed: int
    """The size of that checkpoint; 0 where no witness is asked for."""
    pinned: bool
    """False where the key of the first look was taken from the log itself."""


async def follow(
    source: LogSource,
    file: Path,
    now: str,
    *,
    key: VerifierKey | None = None,
    quorum: WitnessQuorum = NO_WITNESSES,
) -> FollowResult:
    """Read the newest checkpoint, prove that it extends the last in the file, and keep it.

    Raises LogContradiction where it does not; then the file keeps both notes as evidence.
    """
    kept = read_followed(file)
    trusted = key or VerifierKey.parse(await source.key() if kept is None else kept.key)
    if kept is not None and trusted.vkey != kept.key:
        raise LogContradiction("key_changed", f"{file} follows the log of {kept.key}, not of the key that you gave")
    # This one first: the log may grow in between, and never has fewer entries than one of its checkpoints.
    cosigned = await source.checkpoint(witnessed=True) if quorum.required else ""
    shown = await source.checkpoint(witnessed=False)
    last = None if kept is None else open_checkpoint(kept.last.note, trusted)
    try:
        new = await _compare(source, shown, last, trusted)
        witnesses = await _check_cosigned(source, cosigned, new, trusted, quorum) if cosigned else []
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
    if cosigned:
        followed = msgspec.structs.replace(followed, witnessed=KeptCheckpoint(now, cosigned))
    if followed != kept:
        _write(file, followed)
    return FollowResult(
        state=state,
        size=new.size,
        before=0 if last is None else last.size,
        witnesses=witnesses,
        witnessed=open_checkpoint(cosigned, trusted).size if cosigned else 0,
        pinned=kept is not None or key is not None,
    )


async def _compare(source: LogSource, shown: str, last: Checkpoint | None, trusted: VerifierKey) -> Checkpoint:
    """The checkpoint that the log shows; raises LogContradiction unless it extends the last one."""
    new = _open(shown, trusted)
    if last is None:
        return new
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
    return new


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


def _open(note: str, key: VerifierKey) -> Checkpoint:
    """The checkpoint that the key signed; raises LogContradiction."""
    try:
        found = open_checkpoint(note, key)
    except NoteError as problem:
        raise LogContradiction("not_signed", f"the checkpoint is not signed by {key.vkey}: {problem}") from None
    if found.origin != key.name:
        raise LogContradiction("other_log", f"the checkpoint is of the log {found.origin!r}, the key of {key.name!r}")
    return found


async def _check_cosigned(
    source: LogSource, note: str, new: Checkpoint, trusted: VerifierKey, quorum: WitnessQuorum
) -> list[str]:
    """The witnesses of a checkpoint that the newest one must extend; raises LogContradiction."""
    cosigned = _open(note, trusted)
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
