"""Writing an evaluation in a format that other tools read: what an exporter is given, and where its text goes."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from errno import EISDIR
from functools import cached_property
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import msgspec

from meruit.errors import MeruitError, UnknownName
from meruit.evaluations.evaluation import STATUS_LETTERS, EvaluationRecord
from meruit.evaluations.reader import CaseDetail, Evaluations
from meruit.evaluations.summary import OPEN, EvaluationSummary
from meruit.log.note import SigningKey
from meruit.model.criterion import SuccessCriteria
from meruit.model.verdict import CriterionResult, Status
from meruit.registry import exporters

MAX_TEXT = 2_000
"""Characters of an input, an output or a reason in the message of a failure."""


@dataclass(frozen=True)
class EvaluationExport:
    """All that an exporter may write of an evaluation."""

    reader: Evaluations
    evaluation: EvaluationRecord

    @cached_property
    def criteria(self) -> SuccessCriteria:
        """What its cases are judged by."""
        return self.reader.criteria(self.evaluation)

    @cached_property
    def summary(self) -> EvaluationSummary:
        """Its numbers."""
        return self.reader.summary(self.evaluation)

    @property
    def signer(self) -> SigningKey:
        """The key that signs statements of this store."""
        return self.reader.signer

    def cases(self) -> Iterator[CaseDetail]:
        """Its cases in order, streamed; from the first one each time."""
        return self.reader.details(self.evaluation)


def case_name(case: CaseDetail) -> str:
    """The id of a case, with the number of its try where there are several: `fr #2`."""
    one = case.summary
    return one.case_id + (f" #{one.repeat}" if one.repeat else "")


_WORDS = {letter: status.value for status, letter in STATUS_LETTERS.items()}
_COLUMNS = (
    *("case_id", "repeat", "verdict", "success", "score", "claimed", "error", "error_message", "group", "latency_ms"),
    *("cost", "outcome_id", "tags"),
)
_WORK = ("input", "output", "metadata")


def row_headings(criteria: Sequence[str]) -> list[str]:
    """The columns of a table of cases."""
    return [*_COLUMNS, *(f"criterion.{name}" for name in criteria), *_WORK]


def flat_row(case: CaseDetail, criteria: Sequence[str]) -> dict[str, str | float | bool | None]:
    """A case as one row of a table: the work as JSON, one column for each criterion."""
    one = case.summary
    letters = dict(zip(criteria, one.statuses, strict=False))
    values: list[str | float | bool | None] = [
        *(one.case_id, one.repeat, one.verdict.value, one.success, one.score, one.claimed),
        *(None if one.error is None else one.error.value, case.error_message or None, one.group, one.latency_ms),
        *(None if one.cost_micros is None else one.cost_micros / 1e6, one.outcome_id, _json(one.tags or None)),
        *(_WORDS[letters[name]] if name in letters else None for name in criteria),
        *(_json(part) for part in (case.input, case.output, case.metadata)),
    ]
    return dict(zip(row_headings(criteria), values, strict=True))


# Any: parts of the work are JSON.
def _json(part: Any) -> str | None:
    return None if part is None else msgspec.json.encode(part).decode()


def is_open(case: CaseDetail) -> bool:
    """Whether a case could not be judged: neither a pass nor a failure."""
    return case.summary.verdict in OPEN


def unmet(case: CaseDetail) -> list[str]:
    """Why a case is not a pass: its error, and each criterion that it does not meet or that could not be measured."""
    if case.result is None:
        return [case.error_message or "the content of this case was erased"]
    judged = case.result.criterion_results
    reasons = [case.error_message] if case.error_message else []
    reasons += [describe(one) for one in judged if one.status in (Status.NOT_MET, Status.INDETERMINATE)]
    return reasons or [reason.message for reason in case.result.reasons]


def describe(one: CriterionResult) -> str:
    """One criterion with what was measured and what was asked for, as text without markup."""
    if one.error is not None:
        return f"{one.criterion_id}: {one.error}"
    asked = "" if one.comparison is None else f", not {one.comparison.value} {one.threshold!r}"
    return f"{one.criterion_id}: {one.value_on_scale!r}{asked}" if one.value is not None else one.criterion_id


def shorten(text: str, longest: int = MAX_TEXT) -> str:
    """The beginning of a long text."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def export_format(format_name: str | None, target: str) -> str:
    """The name of a format as it was given, or else by the ending of the file; raises UnknownName, listing all."""
    if format_name == "html" or (format_name is None and target.casefold().endswith(".html")):
        raise UnknownName("an evaluation as HTML is written by `meruit eval page NAME -o FILE`")
    if format_name is not None:
        return exporters.get(format_name).name
    found = exporters.by_ending(target)
    if found is None:
        known = ", ".join(exporters.names())
        raise UnknownName(f"the ending of {target!r} does not say the format; name one with --format, of {known}")
    return found.name


def write_export(exported: EvaluationExport, format_name: str, target: str) -> None:
    """Write an evaluation to a file, or to standard output for `-`; a file is there whole or not at all."""
    chunks = _to_bytes(exporters.get(format_name).write(exported))
    if target == "-":
        for chunk in chunks:
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
        return
    _replace_file(Path(target), chunks)


def check_writable(target: str) -> None:
    """Raise MeruitError for a file that could not be written, before there is anything to write."""
    file = Path(target)
    if target == "-" or (file.exists() and not file.is_file() and not file.is_dir()):
        return
    try:
        if file.is_dir():
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
        # As `_replace_file` writes it: in its folder, under another name.
        with NamedTemporaryFile(dir=file.parent, prefix=f".{file.name}."):
            pass
    except OSError as problem:
        raise _unwritable(file, problem) from None


def _unwritable(file: Path, problem: OSError) -> MeruitError:
    return MeruitError(f"{str(file)!r} cannot be written: {problem.strerror or problem}")


def _to_bytes(chunks: Iterable[str | bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk.encode() if isinstance(chunk, str) else chunk


def _replace_file(file: Path, chunks: Iterable[bytes]) -> None:
    try:
        # What is not a file, such as a pipe or /dev/stdout, cannot be replaced.
        if file.exists() and not file.is_file():
            with file.open("wb") as opened:
                opened.writelines(chunks)
            return
        with NamedTemporaryFile(dir=file.parent, prefix=f".{file.name}.", delete=False) as opened:
            try:
                opened.writelines(chunks)
                opened.close()
                # A temporary file is for its owner alone; the written one has the rights of any new file.
                Path(opened.name).chmod(0o666 & ~_umask())
                Path(opened.name).replace(file)
            except BaseException:
                with suppress(FileNotFoundError):
                    Path(opened.name).unlink()
                raise
    except OSError as problem:
        raise _unwritable(file, problem) from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
