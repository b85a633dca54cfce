"""Cases from files: JSON Lines, JSON, CSV, Parquet, or standard input; streamed, never held whole."""

import csv
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import orjson

from meruit.errors import DocumentError, MeruitError, Problem, UnreadableFile
from meruit.evaluations.evaluation import Case
from meruit.files import display_name, read_bytes
from meruit.suggestions import nearest

MAX_LINE_BYTES = 64 * 1024 * 1024
"""The longest row that is read."""
MAX_PROBLEMS = 20
"""Problems of a file that are listed."""
MAX_DIGITS = 4_300
"""Of an integer that is read."""
CHUNK_BYTES = 1 << 20
BOM = b"\xef\xbb\xbf"
"""What some programs write before UTF-8."""
FORMATS = ("jsonl", "json", "csv", "tsv", "parquet")
SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
PARTS = ("input", "output", "metadata", "tags")
"""What a mapping fills by dotted names."""
SINGLE = ("id", "group", "repeat", "claimed", "cost")
"""What a mapping fills by a bare name."""
# A column that many tools call by one of these names means this, where no mapping is given.
KNOWN_COLUMNS = {
    **dict.fromkeys(("id", "case_id", "uuid"), "id"),
    **dict.fromkeys(("input", "prompt", "question"), "input"),
    **dict.fromkeys(("output", "completion", "response", "prediction", "text"), "output"),
    **dict.fromkeys(("reference", "target", "expected", "ideal", "label", "ground_truth_text"), "input.reference"),
    **dict.fromkeys(("references",), "input.references"),
    **dict.fromkeys(("metadata",), "metadata"),
    **dict.fromkeys(("group", "group_id"), "group"),
    **dict.fromkeys(("tags",), "tags"),
    **dict.fromkeys(("repeat", "epoch"), "repeat"),
    **dict.fromkeys(("claimed",), "claimed"),
    **dict.fromkeys(("duration_ms", "latency_ms"), "metadata.duration_ms"),
    **dict.fromkeys(("ttfb_ms", "time_to_first_byte"), "metadata.ttfb_ms"),
    **dict.fromkeys(("processing_ms", "processing_time"), "metadata.processing_ms"),
}
NAMING = ("id", "repeat")
"""What tells cases from each other."""
TIMES = frozenset(target for target in KNOWN_COLUMNS.values() if target.startswith("metadata."))
"""What metrics of latency read: numbers."""
# A mapping may name a part as a column is often named, and a time by the metric that reads it.
OTHER_TARGETS = {
    **KNOWN_COLUMNS,
    **{f"metadata.{name}": target for name, target in KNOWN_COLUMNS.items() if target.startswith("metadata.")},
}

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ColumnMap:
    """Which column fills which part of a case: `input.reference=answer,output.text=completion`."""

    targets: tuple[tuple[str, str], ...] = ()
    """Pairs of a target, as `output.text`, and the column that fills it."""

    @classmethod
    def parse(cls, written: str) -> "ColumnMap":
        """Read a mapping as users write it; raises MeruitError for what is not one."""
        found: dict[str, str] = {}
        for pair in filter(None, (part.strip() for part in written.split(","))):
            target, separator, column = (side.strip() for side in pair.partition("="))
            if not separator or not target or not column:
                raise MeruitError(f"--map takes TARGET=COLUMN pairs, as output.text=completion, not {pair!r}")
            target = OTHER_TARGETS.get(target, target)
            _check_target(target)
            if target in found:
                raise MeruitError(f"--map fills {target} twice, from {found[target]!r} and {column!r}")
            found[target] = column
        return cls(tuple(found.items()))

    def apply(self, row: Row, default_id: str, *, has_types: bool = True) -> Case:
        """The case that a row describes; raises MeruitError naming what it lacks.

        A table without types has texts only: facts about the run that are JSON are read as such.
        """
        if not self.targets:
            return _case_by_names(row, default_id, has_types=has_types)
        values: dict[str, Any] = {}
        for target, column in self.targets:
            if column not in row:
                raise MeruitError(f"no column is named {column!r}{nearest(column, row)}; there are {_columns(row)}")
            values[target] = row[column] if has_types else _from_cell(target, row[column])
        for target, column in _naming_columns(tuple(row), self.targets):
            values[target] = row[column]
        return _case(values, default_id)


@lru_cache(maxsize=256)
def _naming_columns(columns: tuple[str, ...], mapped: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Columns with usual names for id and repeat of a case, unless a mapping says otherwise; with their targets.

    Named by the numbers of their rows, cases of files in another order would be compared wrongly.
    """
    targets, used = {target for target, _ in mapped}, {column for _, column in mapped}
    usual = {KNOWN_COLUMNS.get(column): column for column in reversed(columns) if column not in used}
    return tuple((target, usual[target]) for target in NAMING if target in usual and target not in targets)


def _check_target(target: str) -> None:
    part, _, rest = target.partition(".")
    if target in SINGLE or (part in PARTS and (rest or part != "tags") and all(target.split("."))):
        return
    known = [*SINGLE, *(f"{name}.NAME" for name in PARTS)]
    raise MeruitError(f"--map cannot fill {target!r}{nearest(target, known)}; it fills {', '.join(known)}")


def _columns(row: Row) -> str:
    return ", ".join(map(repr, list(row)[:MAX_PROBLEMS])) or "none"


class _Layout(msgspec.Struct, frozen=True):
    """What columns with the usual names mean."""

    single: tuple[tuple[str, str], ...]
    """Pairs of a target and its column."""
    whole: tuple[tuple[str, str], ...]
    """Pairs of a part and the column that is all of it."""
    inside: tuple[tuple[str, str, str], ...]
    """A part, a key of it, and its column."""
    others: tuple[str, ...]
    plain: tuple[str, str, str] | None
    """The columns of id, input and output, where there are no others."""


@lru_cache(maxsize=256)
def _layout(columns: tuple[str, ...]) -> _Layout:
    """The layout of a row; most rows of a file have the same columns."""
    found: dict[str, str] = {}
    for column in columns:
        target = KNOWN_COLUMNS.get(column)
        if target in TIMES and column != (own := target.removeprefix("metadata.")) and own in columns:
            # A file may have both names, and for two times.
            target = f"metadata.{column}"
        if target is None:
            continue
        if target in found:
            raise MeruitError(f"two columns say what the {target} is, {column!r} is one; choose with --map")
        found[target] = column
    dotted = ((target.partition("."), column) for target, column in found.items() if "." in target)
    return _Layout(
        single=tuple(pair for pair in found.items() if pair[0] in SINGLE),
        whole=tuple(pair for pair in found.items() if pair[0] in PARTS),
        inside=tuple((part, key, column) for (part, _, key), column in dotted),
        others=tuple(column for column in columns if column not in KNOWN_COLUMNS),
        plain=(found["id"], found["input"], found["output"])
        if len(columns) == len(found) and found.keys() == {"id", "input", "output"}
        else None,
    )


def _from_cell(target: str, cell: Any) -> Any:
    """A fact about the run from a cell that is a text: a number, true, false, a list or an object of JSON is that.

    A version as 1.10 or a hash as 12e5 is not a number: it would be written in another way.
    """
    if not target.startswith("metadata.") or target.endswith((".id", "_id")) or not isinstance(cell, str):
        return cell
    try:
        found = load(cell)
    except (ValueError, RecursionError):
        return cell
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    if isinstance(found, str) or (is_number and target not in TIMES and str(found) != cell.strip()):
        return cell
    return found


def _case_by_names(row: Row, default_id: str, *, has_types: bool = True) -> Case:
    """A case from columns with the usual names; what has another name becomes a part of the input."""
    layout = _layout(tuple(row))
    if layout.plain is not None:
        # What most files of stored outputs look like: there is nothing to convert.
        id_column, input_column, output_column = layout.plain
        name, given, made = row[id_column], row[input_column], row[output_column]
        if name.__class__ is str and name and given.__class__ is dict and made.__class__ is dict:
            return Case(name, given, made)
    parts: dict[str, Any] = {"input": {}, "output": None, "metadata": {}, "tags": {}}
    input_is_object = False
    for name, column in layout.whole:
        value = row[column]
        parts[name] = _whole(name, value, parts[name])
        input_is_object |= name == "input" and isinstance(value, Mapping)
    for name, key, column in layout.inside:
        if row[column] is not None or name == "input":
            parts[name][key] = row[column] if has_types else _from_cell(f"{name}.{key}", row[column])
    # Where the input is an object of its own, other columns are facts about the case.
    rest = parts["metadata"] if input_is_object else parts["input"]
    for column in layout.others:
        value = row[column]
        if value is not None:
            rest[column] = value
    return _make_case(parts, {target: row[column] for target, column in layout.single}, default_id)


def _case(values: Mapping[str, Any], default_id: str) -> Case:
    """A case from targets as a mapping names them."""
    parts: dict[str, Any] = {"input": {}, "output": None, "metadata": {}, "tags": {}}
    single: dict[str, Any] = {}
    for target, value in values.items():
        name, path = _steps(target)
        if not name:
            single[target] = value
        elif not path:
            parts[name] = _whole(name, value, parts[name])
        elif len(path) == 1:
            parts[name] = {**(parts[name] or {}), path[0]: value}
        else:
            parts[name] = _put(parts[name] or {}, path, value)
    return _make_case(parts, single, default_id)


@lru_cache(maxsize=256)
def _steps(target: str) -> tuple[str, tuple[str, ...]]:
    """The part that a target fills and the path in it; no part where it fills a field of its own."""
    name, _, path = target.partition(".")
    return ("", ()) if target in SINGLE else (name, tuple(path.split(".")) if path else ())


def _make_case(parts: Mapping[str, Any], single: Mapping[str, Any], default_id: str) -> Case:
    tags = parts["tags"]
    return Case(
        id=_text(single.get("id"), "id") or default_id,
        input=parts["input"],
        output=parts["output"],
        metadata=parts["metadata"],
        group=_text(single.get("group"), "group"),
        tags={str(name): _text(value, f"tags.{name}") or "-" for name, value in tags.items()} if tags else tags,
        repeat=_whole_number(single.get("repeat")),
        claimed=_text(single.get("claimed"), "claimed"),
        cost_micros=_micros(single.get("cost")),
    )


def _whole(name: str, value: Any, before: Any) -> Any:
    """A whole part of a case from one column: an object as it is, a text as `text` (`prompt` of an input)."""
    if value is None:
        return before
    if isinstance(value, str) and name in ("metadata", "tags"):
        value = _parse_object(value, name)
    if isinstance(value, Mapping):
        return {**before, **value} if before else {**value}
    if name in ("input", "output"):
        return {**(before or {}), ("prompt" if name == "input" else "text"): value}
    raise MeruitError(f"{name} is an object, not {type(value).__name__}")


def _parse_object(value: str, name: str) -> Any:
    if not value.strip():
        return {}
    try:
        return load(value)
    except (ValueError, RecursionError):
        raise MeruitError(f"{name} is an object of JSON, not {value[:40]!r}") from None


def _put(part: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """The part with a value at a path; objects on the way are made."""
    inside = part.get(path[0], {})
    if len(path) > 1 and not isinstance(inside, Mapping):
        raise MeruitError(f"{path[0]!r} is a value and cannot hold {'.'.join(path[1:])!r} too")
    return {**part, path[0]: value if len(path) == 1 else _put(inside, path[1:], value)}


def _text(value: Any, what: str) -> str | None:
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise MeruitError(f"{what} is a text, not {type(value).__name__}")


def _whole_number(value: Any) -> int:
    if value is None or value == "":
        return 0
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if isinstance(value, bool) or number < 0 or number != float(value):
        raise MeruitError(f"repeat is a whole number from 0 up, not {value!r}")
    return number


def _micros(value: Any) -> int | None:
    if value is None or value == "":
        return None
    try:
        dollars = float(value)
    except (TypeError, ValueError):
        dollars = -1.0
    if not 0 <= dollars < 1e9:
        raise MeruitError(f"cost is an amount of dollars, not {value!r}")
    return round(dollars * 1_000_000)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of cases: its format, how many bytes it has, and their digest."""

    path: str
    format: str
    digest: str | None
    """SHA-256 of its bytes; None for standard input."""
    rows: int | None
    """How many rows it has, where that is cheap to know."""

    def cases(self, columns: ColumnMap = ColumnMap()) -> Iterator[Case]:  # noqa: B008 - frozen
        """Its cases, in order; raises DocumentError with the row that is wrong."""
        return self.to_cases(self._rows(), columns, 1)

    @property
    def delimiter(self) -> str:
        """What separates the cells of a row."""
        return "\t" if self.format == "tsv" else ","

    def to_cases(self, rows: Iterator[Any], columns: ColumnMap, first: int) -> Iterator[Case]:
        """The cases that rows describe, of which the first has a number; raises DocumentError with the row."""
        has_types = self.format not in ("csv", "tsv")
        for number, row in enumerate(rows, first):
            if row.__class__ is not dict and not isinstance(row, Mapping):
                problem = f"a row is an object, not {type(row).__name__}"
                raise DocumentError(display_name(self.path), [Problem(f"row {number}", problem)])
            try:
                case = columns.apply(row, str(number), has_types=has_types)
            except MeruitError as refused:
                raise DocumentError(display_name(self.path), [Problem(f"row {number}", str(refused))]) from None
            yield case

    def rows_as_read(self) -> Iterator[Row]:
        """Its rows that are objects, before any column is mapped."""
        return (row for row in self._rows() if isinstance(row, Mapping))

    def _rows(self) -> Iterator[Any]:
        if self.format == "parquet":
            yield from _parquet_rows(self.path)
        elif self.format == "json":
            yield from _json_rows(self.path)
        else:
            with open_file(self.path) as file:
                if self.format == "jsonl":
                    yield from read_jsonl(file, self.path)
                else:
                    yield from read_csv(file, self.path, self.delimiter)


def open_data(path: str, format_name: str | None = None) -> DataFile:
    """A file of cases, or standard input for `-`; its format by name, or else by its ending."""
    if format_name is not None and format_name not in FORMATS:
        raise MeruitError(
            f"no format is named {format_name!r}{nearest(format_name, FORMATS)}; use {', '.join(FORMATS)}"
        )
    if path == "-":
        return DataFile(path, format_name or "jsonl", None, None)
    found = format_name or SUFFIXES.get(Path(path).suffix.casefold())
    if found is None:
        raise MeruitError(
            f"the ending of {path!r} does not say the format; name one with --format, of {', '.join(FORMATS)}"
        )
    _refuse_pipe(path)
    digest, lines = _measure(path)
    rows = lines if found == "jsonl" else _count_parquet(path) if found == "parquet" else None
    return DataFile(path, found, digest, rows)


def _refuse_pipe(path: str) -> None:
    """Refuse what has no content left when it is read a second time."""
    place = Path(path)
    # What does not exist is named by the attempt to open it.
    if place.exists() and not place.is_file() and not place.is_dir():
        problem = "is not a regular file, and data is read twice; use - and send it to standard input, or save it first"
        raise UnreadableFile(display_name(path), [Problem("", problem)])


def _measure(path: str) -> tuple[str, int]:
    """The digest of a file's bytes, and how many lines it has, blank ones included."""
    hashed, lines, last = sha256(), 0, b"\n"
    with open_file(path) as file:
        while chunk := file.read(CHUNK_BYTES):
            hashed.update(chunk)
            lines += chunk.count(b"\n")
            last = chunk[-1:]
    return hashed.hexdigest(), lines + (last != b"\n")


@contextmanager
def open_file(path: str) -> Iterator[BinaryIO]:
    """A file, or standard input for `-`; raises UnreadableFile."""
    if path == "-":
        # Standard input that was closed before we started is None.
        yield sys.stdin.buffer if sys.stdin is not None else io.BytesIO()
        return
    try:
        with Path(path).open("rb") as file:
            yield file
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise UnreadableFile(display_name(path), [Problem("", f"cannot be read: {reason}")]) from None


def complain(path: str, message: str, line: int | None = None) -> DocumentError:
    """What is wrong with a file."""
    return DocumentError(display_name(path), [Problem(where="", message=message, line=line)])


def read_line(file: BinaryIO, path: str, number: int) -> bytes:
    """The next line, with its end; empty after the last. Raises DocumentError for one that is too long."""
    line = file.readline(MAX_LINE_BYTES + 1)
    if len(line) > MAX_LINE_BYTES:
        raise _long_line(path, number)
    return line


def _long_line(path: str, number: int) -> DocumentError:
    return complain(path, f"a line of more than {MAX_LINE_BYTES // 2**20} MiB", number)


def read_jsonl(file: BinaryIO, path: str, lines_before: int = 0) -> Iterator[Any]:
    """The rows of JSON Lines; `lines_before` of the file come before them."""
    number, read = lines_before, file.readline
    while line := read(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise _long_line(path, number)
        line = line.removeprefix(BOM) if number == 1 else line
        # A line that is not blank begins with something, as a rule: then nothing has to be stripped.
        if (not line or line[:1].isspace()) and not line.strip():
            continue
        try:
            row = load(line)
        except (ValueError, RecursionError) as problem:
            raise _complain_of_json(path, line, problem, number) from None
        yield row


# Exact for integers of up to MAX_DIGITS digits, which orjson would round.
load = msgspec.json.Decoder().decode


def _complain_of_json(path: str, text: bytes, problem: Exception, line: int | None = None) -> DocumentError:
    """What is wrong with a text that is not JSON, and where."""
    try:
        text.decode()
    except UnicodeDecodeError as bad:
        return complain_of_bytes(path, bad, line)
    reason = "too many levels" if isinstance(problem, RecursionError) else str(problem)
    if "out of range" in reason:
        allowed = f"integers have at most {MAX_DIGITS:,} digits, others are under 1.8e308; write it as a text"
        return complain(path, f"a number is out of range: {allowed}", line)
    # This reader says it better.
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as better:
        where = f"column {better.colno}" if line is not None else f"line {better.lineno}, column {better.colno}"
        reason = f"{better.msg} ({where})"
    hint = "; NaN and Infinity are not JSON, write null" if b"NaN" in text or b"Infinity" in text else ""
    return complain(path, f"not JSON: {reason}{hint}", line)


def _json_rows(path: str) -> Iterator[Any]:
    text = read_bytes(path).removeprefix(BOM)
    try:
        content = load(text)
    except (ValueError, RecursionError) as problem:
        raise _complain_of_json(path, text, problem) from None
    if not isinstance(content, list):
        raise complain(path, "a JSON file of cases is a list of objects; for one object a line, use --format jsonl")
    yield from content


def read_csv(file: BinaryIO, path: str, delimiter: str, lines_before: int = 0) -> Iterator[Row]:
    """The rows below the names of columns; `lines_before` of the file are left out between them."""
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    csv.field_size_limit(MAX_LINE_BYTES)
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    try:
        header = next(reader, None)
        if header is None:
            return
        if len(header) == 1 and ";" in header[0]:
            raise complain(
                path, f"cells are separated by {delimiter!r}, and these seem to be by ';'; save it with commas", 1
            )
        twice = [(header.index(name), place) for place, name in enumerate(header) if header.index(name) != place]
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise complain(
                    path, f"{len(cells)} cells, but the header names {len(header)}", reader.line_num + lines_before
                )
            for first, second in twice:
                # An index that is written as a column too is harmless.
                if cells[first] != cells[second]:
                    raise complain(
                        path,
                        f"two columns are named {header[first]!r} and differ; rename one of them",
                        reader.line_num + lines_before,
                    )
            # An empty cell is nothing, as spreadsheets write it.
            yield {name: cell or None for name, cell in zip(header, cells, strict=True)}
    except UnicodeDecodeError as problem:
        raise complain_of_bytes(path, problem) from None
    except csv.Error as problem:
        raise complain(path, f"not CSV: {problem}", reader.line_num + lines_before) from None
    finally:
        text.detach()


def complain_of_bytes(path: str, problem: UnicodeDecodeError, line: int | None = None) -> DocumentError:
    """What is wrong with a file that is not text."""
    return complain(path, f"not UTF-8 (byte {problem.object[problem.start]:#04x}); save it as UTF-8", line)


@contextmanager
def parquet_file(path: str) -> Iterator[Any]:
    """A Parquet file, open; raises DocumentError for one that is not."""
    # A large package that other formats do not need.
    import pyarrow as pa  # type: ignore[import-untyped]  # it has no types of its own
    import pyarrow.parquet as parquet  # type: ignore[import-untyped]

    try:
        with open_file(path) as file, parquet.ParquetFile(file) as opened:
            yield opened
    except pa.ArrowException as problem:
        raise complain(path, f"not Parquet: {problem}") from None


def plain_rows(batch: Any) -> Iterator[Row]:
    """The rows of a batch of Arrow's, as JSON holds them."""
    for row in batch.to_pylist():
        yield orjson.loads(orjson.dumps(row, default=str))


def _parquet_rows(path: str) -> Iterator[Row]:
    with parquet_file(path) as opened:
        for batch in opened.iter_batches(batch_size=1_024):
            yield from plain_rows(batch)


def _count_parquet(path: str) -> int:
    with parquet_file(path) as opened:
        return int(opened.metadata.num_rows)
