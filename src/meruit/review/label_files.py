"""Labels as files: JSON Lines and CSV, out and in."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any

from meruit.errors import InvalidReview
from meruit.model.record import Record
from meruit.review.label import CANNOT_TELL, Label, ReviewDraw, ReviewRecord
from meruit.review.truth import answer_of

COLUMNS = (
    *("number", "case_id", "repeat", "kind", "stratum", "probability"),
    *("labeller", "choice", "meets", "note", "version", "at"),
)
MAX_ROWS = 100_000
"""Labels of one file."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet would take for a formula."""


class LabelFormat(StrEnum):
    """The form of a file of labels."""

    JSONL = "jsonl"
    CSV = "csv"


class GivenLabel(Record, frozen=True):
    """A label as a file gives it, with the number of its case."""

    number: int
    labeller: str
    choice: str
    note: str


def write_labels(
    form: LabelFormat, review: ReviewRecord, draws: Iterable[ReviewDraw], labels: Iterable[Label]
) -> Iterator[str]:
    """The lines of a file with every label and how its case was drawn."""
    cases = {draw.number: draw for draw in draws}
    rows = (_row(review, cases[label.number], label) for label in labels)
    if form is LabelFormat.JSONL:
        yield from (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        return
    yield _csv_line(COLUMNS)
    for row in rows:
        yield _csv_line(["" if row[name] is None else _plain(row[name]) for name in COLUMNS])


def read_labels(text: str, form: LabelFormat, draws: Iterable[ReviewDraw], labeller: str | None) -> list[GivenLabel]:
    """Read a file; raises InvalidReview, naming the line of the first row that cannot be used.

    A row needs `choice`, and `number` or `case_id` (with `repeat` where a case was tried again). `labeller` of the file
    comes before the one given here.
    """
    numbers = {(draw.case_id, draw.repeat): draw.number for draw in draws}
    found: list[GivenLabel] = []
    for line, row in _rows(text, form):
        if len(found) == MAX_ROWS:
            raise InvalidReview(f"a file has at most {MAX_ROWS:,} labels; divide it")
        found.append(_parse_label(line, row, numbers, labeller))
    if not found:
        raise InvalidReview("the file holds no labels")
    return found


# Any, here and below: a row is JSON, or text.
def _rows(text: str, form: LabelFormat) -> Iterator[tuple[int, Mapping[str, Any]]]:
    if form is LabelFormat.CSV:
        reader = csv.DictReader(io.StringIO(text.removeprefix("\ufeff")), strict=True)
        try:
            for row in reader:
                yield reader.line_num, row
        except csv.Error as problem:
            raise InvalidReview(f"line {reader.line_num}: not CSV ({problem})") from None
        return
    for line, written in enumerate(text.splitlines(), 1):
        if not written.strip():
            continue
        try:
            row = json.loads(written)
        except (ValueError, RecursionError):
            raise InvalidReview(f"line {line}: not JSON") from None
        if not isinstance(row, dict):
            raise InvalidReview(f"line {line}: a label is an object, not {type(row).__name__}")
        yield line, row


def _parse_label(
    line: int, row: Mapping[str, Any], numbers: Mapping[tuple[str, int], int], labeller: str | None
) -> GivenLabel:
    who = row.get("labeller") or labeller
    choice, note = row.get("choice"), row.get("note") or ""
    if not isinstance(who, str):
        raise InvalidReview(f"line {line}: no labeller; add the column, or name one for all")
    if not isinstance(choice, str) or not choice:
        raise InvalidReview(f"line {line}: no choice")
    if not isinstance(note, str):
        raise InvalidReview(f"line {line}: the note is not text")
    return GivenLabel(_number(line, row, numbers), who, choice, note)


def _number(line: int, row: Mapping[str, Any], numbers: Mapping[tuple[str, int], int]) -> int:
    try:
        if row.get("case_id"):
            return numbers[str(row["case_id"]), int(row.get("repeat") or 0)]
        number = int(row["number"])
    except KeyError:
        raise InvalidReview(f"line {line}: no case of this review is named by case_id or number") from None
    except (TypeError, ValueError):
        raise InvalidReview(f"line {line}: number and repeat are whole numbers") from None
    if number not in numbers.values():
        raise InvalidReview(f"line {line}: the review has no case {number}")
    return number


def _row(review: ReviewRecord, draw: ReviewDraw, label: Label) -> dict[str, Any]:
    meets = None if label.choice == CANNOT_TELL else answer_of(review.terms, label.choice)
    return {
        "number": draw.number,
        "case_id": draw.case_id,
        "repeat": draw.repeat,
        "kind": draw.kind.value,
        "stratum": draw.stratum,
        "probability": draw.probability,
        "labeller": label.labeller,
        "choice": label.choice,
        "meets": meets,
        "note": label.note,
        "version": label.version,
        "at": label.at.isoformat(),
    }


def _csv_line(cells: Iterable[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def _plain(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(_FORMULA) else text
