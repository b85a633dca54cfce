"""The verdicts of a session while it goes on: a file in the folder of the records, so that no death loses them."""

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from meruit.model.decoding import json_decoder
from meruit.model.record import Record
from meruit.pytest_plugin.fixture import VerifiedCase

FOLDER = "pytest-sessions"
"""In the folder of the records."""


class SessionHeader(Record, frozen=True):
    """What the verdicts of a journal are recorded as."""

    name: str
    tags: Mapping[str, str]


class _SessionLine(Record, frozen=True, omit_defaults=True):
    """One of the two is there; of several headers the last one holds."""

    header: SessionHeader | None = None
    verdict: VerifiedCase | None = None


_READER = json_decoder(_SessionLine)


class SessionJournal:
    """The journal of one session, made with the first verdict. Other sessions leave it alone while this one lives."""

    def __init__(self, folder: Path, session: str, header: SessionHeader) -> None:
        self._file = folder / FOLDER / f"{session}-{os.getpid()}.jsonl"
        self._header = header
        self._descriptor: int | None = None

    def add(self, several: Iterable[VerifiedCase]) -> None:
        """Keep verdicts; they are in the hands of the system when this returns."""
        self._write(*(_SessionLine(verdict=one) for one in several))

    def change_header(self, header: SessionHeader) -> None:
        """Say what the verdicts are recorded as from here on."""
        self._write(_SessionLine(header=header))

    def _write(self, *lines: _SessionLine) -> None:
        if self._descriptor is None:
            self._descriptor = self._make()
        os.write(self._descriptor, b"".join(msgspec.json.encode(line) + b"\n" for line in lines))

    def _make(self) -> int:
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Locked before it has its name: another session would take it for one that was left behind.
        unfinished = self._file.with_suffix(".new")
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, msgspec.json.encode(_SessionLine(header=self._header)) + b"\n")
        unfinished.replace(self._file)
        return descriptor

    def remove(self) -> None:
        """Remove it, once all is recorded."""
        self._file.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Let go of the file; if it is still there, the next session records it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """The journal of a session that was killed."""

    file: Path
    header: SessionHeader
    verdicts: list[VerifiedCase]


def find_left_behind(folder: Path) -> Iterator[LeftBehind]:
    """The journals of sessions that are dead; each is ours alone until the next one is asked for."""
    for file in sorted((folder / FOLDER).glob("*.jsonl")):
        try:
            descriptor = os.open(file, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lines = [*_read_lines(file)]
            headers = [line.header for line in lines if line.header is not None]
            if headers:
                yield LeftBehind(file, headers[-1], [line.verdict for line in lines if line.verdict is not None])
        except (BlockingIOError, FileNotFoundError):
            # A session that lives, or one whose journal another session has recorded meanwhile.
            continue
        finally:
            os.close(descriptor)


def _read_lines(file: Path) -> Iterator[_SessionLine]:
    """The lines; the last one may be cut off."""
    for line in file.read_bytes().split(b"\n")[:-1]:
        try:
            yield _READER.decode(line)
        except msgspec.DecodeError:
            continue
