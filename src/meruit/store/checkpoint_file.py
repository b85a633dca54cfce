"""The newest end of the audit log that this data folder knows, in a file beside the signing key.

A database writer can delete the newest entries together with their checkpoints: what is left is a sound, shorter log.
The file is not in the database, so the next process of the folder still knows how long the log was, and its root.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkstemp

from meruit.errors import KeptCheckpointDamaged, NoteError, StoreError
from meruit.log.note import Checkpoint, read_checkpoint, split_note
from meruit.store.location import Location

NAME = "last-checkpoint.txt"


class CheckpointFile:
    """Keeps the newest checkpoint that was signed or seen."""

    def __init__(self, location: Location) -> None:
        self.path = location.file_about_records(NAME)
        self._has_failed = False

    def read(self) -> Checkpoint | None:
        """What is kept; None where nothing is. Raises KeptCheckpointDamaged."""
        try:
            note = self.path.read_text(encoding="utf-8")
            # A power cut may leave the file empty: it is not synced for each checkpoint.
            return read_checkpoint(split_note(note)[0]) if note else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, NoteError) as problem:
            reason = getattr(problem, "strerror", None) or problem
            raise KeptCheckpointDamaged(
                f"{self.path} cannot be read: {reason}; restore it from a copy, or remove it"
            ) from None

    def keep(self, size: int, note: str, *, synced: bool = False) -> None:
        """Keep a checkpoint unless a longer one is kept; what cannot be written is left for the next one."""
        try:
            with self._one_writer():
                kept = self.read()
                if kept is None or kept.size < size:
                    self._replace(note, synced=synced)
        except (OSError, StoreError) as problem:
            if not self._has_failed:
                # Loaded here: most processes never need it, and each would wait for it.
                from logging import getLogger

                getLogger(__name__).warning("the newest checkpoint cannot be kept in the data folder: %s", problem)
            self._has_failed = True
        else:
            self._has_failed = False

    @contextmanager
    def _one_writer(self) -> Iterator[None]:
        """Processes of one folder take turns: else a shorter checkpoint could replace a longer one."""
        descriptor = os.open(self.path.parent, os.O_RDONLY)
        try:
            # Some network file systems lock no folders.
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _replace(self, note: str, *, synced: bool) -> None:
        # Only the owner may read it, and no other process uses its name.
        descriptor, unfinished = mkstemp(prefix=f"{self.path.name}.", dir=self.path.parent)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - an open descriptor
                file.write(note)
                if synced:
                    file.flush()
                    os.fsync(descriptor)
            Path(unfinished).replace(self.path)
        except BaseException:
            Path(unfinished).unlink(missing_ok=True)
            raise

    def set_aside(self) -> Path:
        """Rename the file, so that it stays as evidence and does not count any more."""
        kept = self.read()
        name = f"{self.path.stem}-{0 if kept is None else kept.size}"
        aside = self.path.with_name(f"{name}.set-aside.txt")
        number = 1
        while aside.exists():
            number += 1
            aside = self.path.with_name(f"{name}-{number}.set-aside.txt")
        return self.path.replace(aside)
