"""What a target made and is not recorded yet: a small file, so that no death pays for an output twice."""

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from meruit.errors import EvaluationConflict
from meruit.evaluations.evaluation import Case, CaseError
from meruit.model.decoding import json_decoder
from meruit.model.record import Record

FOLDER = "evaluation-runs"
"""In the folder of the records."""

CaseKey = tuple[str, int]
"""The id of a case and which try of it."""


class MadeOutput(Record, frozen=True, omit_defaults=True):
    """What came of asking a target for one case."""

    case_id: str
    repeat: int = 0
    output: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] = {}
    error: CaseError | None = None
    error_message: str = ""
    cost_micros: int | None = None

    @classmethod
    def of(cls, case: Case) -> "MadeOutput":
        """The part of a case that a target is asked for."""
        return cls(case.id, case.repeat, case.output, case.metadata, case.error, case.error_message, case.cost_micros)

    def fill(self, case: Case) -> Case:
        """The case with it."""
        return msgspec.structs.replace(
            case,
            output=self.output,
            metadata=self.metadata,
            error=self.error,
            error_message=self.error_message,
            cost_micros=self.cost_micros,
        )


class _Line(Record, frozen=True, omit_defaults=True):
    """One of the three is there."""

    lost: int = 0
    begun: CaseKey | None = None
    made: MadeOutput | None = None


_READER = json_decoder(_Line)


class RunJournal:
    """The journal of one run. A line is in the hands of the system when its method returns."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._begun: set[CaseKey] = set()
        self.made: dict[CaseKey, MadeOutput] = {}
        """Outputs that are not recorded yet."""
        self.lost = 0
        """Outputs that were asked for by processes that died before the answer came; they may have cost something."""
        for line in _read_lines(file):
            self._follow(line)
        self.lost += len(self._begun)
        self._begun.clear()
        self._descriptor = self._write_again()

    def _follow(self, line: _Line) -> None:
        self.lost += line.lost
        if line.begun is not None:
            self._begun.add(line.begun)
        if line.made is not None:
            key = line.made.case_id, line.made.repeat
            self._begun.discard(key)
            self.made[key] = line.made

    def begin(self, case: Case) -> None:
        """Note that a target is about to be asked."""
        self._add(_Line(begun=(case.id, case.repeat)))

    def end(self, case: Case) -> None:
        """Note what it made."""
        self._add(_Line(made=MadeOutput.of(case)))

    def _add(self, line: _Line) -> None:
        self._follow(line)
        os.write(self._descriptor, msgspec.json.encode(line) + b"\n")

    def forget(self, recorded: Iterable[CaseKey]) -> None:
        """Drop outputs that are recorded, so that no copy of them stays behind."""
        for key in recorded:
            self.made.pop(key, None)
        os.close(self._descriptor)
        self._descriptor = self._write_again()

    def _write_again(self) -> int:
        """Write what is still needed, and open the file for more."""
        lines = [_Line(lost=self.lost)]
        lines += [_Line(begun=key) for key in self._begun]
        lines += [_Line(made=one) for one in self.made.values()]
        unfinished = self._file.with_suffix(".new")
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        os.write(descriptor, b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        unfinished.replace(self._file)
        return descriptor

    def close(self) -> None:
        """Let go of the file; it stays for a run that goes on."""
        os.close(self._descriptor)

    def remove(self) -> None:
        """Remove it, once all is recorded."""
        self._file.unlink(missing_ok=True)


def _read_lines(file: Path) -> Iterator[_Line]:
    """The lines of a journal; the last one may be cut off."""
    try:
        written = file.read_bytes()
    except FileNotFoundError:
        return
    for line in written.split(b"\n")[:-1]:
        try:
            yield _READER.decode(line)
        except msgspec.DecodeError:
            # A line of a full disk: its output is made again.
            continue


def has_journal(folder: Path, evaluation_id: str) -> bool:
    """Whether a target began to make outputs of an evaluation, and did not end."""
    return (folder / FOLDER / f"{evaluation_id}.jsonl").exists()


@contextmanager
def open_journal(folder: Path, evaluation_id: str) -> Iterator[RunJournal]:
    """The journal of an evaluation; raises EvaluationConflict while another process on this machine has it."""
    inside = folder / FOLDER
    inside.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = inside / f"{evaluation_id}.lock"
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EvaluationConflict(
                "another process runs this evaluation; wait until it ends, or choose another name"
            ) from None
        journal = RunJournal(inside / f"{evaluation_id}.jsonl")
        try:
            yield journal
        finally:
            journal.close()
        journal.remove()
        lock.unlink(missing_ok=True)
    finally:
        os.close(descriptor)
