"""The newest end of the audit log that this data folder knows, in a file beside the signing key.

A database writer can delete the newest entries together with their checkpoints: what is left is a sound, shorter log.
The file is not in the database, so the next process of the folder still knows how long the log was, and its root.
"""

from contextlib import suppress
from hashlib import sha256
from os import getpid
from pathlib import Path

from meruit.errors import NoteError, StoreError
from meruit.log.note import Checkpoint, read_checkpoint, split_note
from meruit.store.location import Location

NAME = "last-checkpoint"
PRIVATE = 0o600
_ID_CHARS = 12


class CheckpointFile:
    """Keeps the newest checkpoint that was signed or seen."""

    def __init__(self, location: Location) -> None:
        # A folder may be used with several databases of a server, one after the other.
        digest = "" if location.url is None else f"-{sha256(location.display_name.encode()).hexdigest()[:_ID_CHARS]}"
        self.path = location.folder / f"{NAME}{digest}.txt"

    def read(self) -> Checkpoint | None:
        """What is kept; None where nothing is. Raises StoreError."""
        try:
            note = self.path.read_text(encoding="utf-8")
            # A power cut may leave the file empty: it is not synced for each checkpoint.
            return read_checkpoint(split_note(note)[0]) if note else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, NoteError) as problem:
            reason = getattr(problem, "strerror", None) or problem
            raise StoreError(f"{self.path} cannot be read: {reason}; restore it from a copy, or remove it") from None

    def keep(self, size: int, note: str) -> None:
        """Keep a checkpoint unless a longer one is kept; what cannot be written is left for the next one."""
        with suppress(OSError, StoreError):
            kept = self.read()
            if kept is None or kept.size < size:
                unfinished = self.path.with_name(f"{self.path.name}.{getpid()}")
                unfinished.touch(mode=PRIVATE)
                unfinished.write_text(note, encoding="utf-8")
                unfinished.replace(self.path)

    def set_aside(self) -> Path:
        """Rename the file, so that it stays as evidence and does not count any more."""
        kept = self.read()
        aside = self.path.with_name(f"{self.path.stem}-{0 if kept is None else kept.size}.set-aside.txt")
        return self.path.replace(aside)
