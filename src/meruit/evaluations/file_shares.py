"""Parts of a file of cases that several processes read apart, each its own."""

import csv
import io
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import msgspec

from meruit.errors import MeruitError
from meruit.evaluations.datafiles import (
    BOM,
    ColumnMap,
    DataFile,
    Row,
    complain,
    complain_of_bytes,
    open_file,
    parquet_file,
    plain_rows,
    read_csv,
    read_jsonl,
    read_line,
)
from meruit.evaluations.evaluation import Case
from meruit.files import display_name

SHARE_ROWS, SHARE_BYTES = 2_048, 8 * 1024 * 1024
"""Of a file of lines: four segments, as a rule."""
GROUP_ROWS, GROUP_BYTES = 65_536, 64 * 1024 * 1024
"""Of a row group of Parquet, which has to be read from its beginning."""
FORMATS = ("jsonl", "csv", "tsv", "parquet")
"""Formats of which parts can be read apart."""


class FileShare(msgspec.Struct, frozen=True):
    """A part of a file."""

    start: int
    """Its first byte; in Parquet, its first row of its row group."""
    end: int
    rows_before: int
    lines_before: int
    """The number of its row group, in Parquet."""
    header: int = 0
    """How many bytes the names of columns take, at the beginning of the file."""


class _Extent(msgspec.Struct, frozen=True):
    """How far a few rows of a file reach."""

    size: int
    """In bytes."""
    lines: int
    rows: int


def can_cut(file: DataFile) -> bool:
    """Whether parts of the file can be read apart."""
    return file.format in FORMATS and file.path != "-"


def cut_file(file: DataFile) -> Iterator[FileShare]:
    """The parts of a file, in order; raises MeruitError for a format that is read as a whole only."""
    if not can_cut(file):
        raise MeruitError(f"{display_name(file.path)} cannot be read in parts; use {', '.join(FORMATS)}")
    if file.format == "parquet":
        yield from _cut_groups(file.path)
        return
    with open_file(file.path) as opened:
        if file.format == "jsonl":
            yield from _gather(_line_extents(opened, file.path), 0, 0)
            return
        records = _record_extents(opened, file.path, file.delimiter)
        header = next(records, None)
        if header is not None:
            yield from _gather(records, header.size, header.lines, header.size)


def has_rows(file: DataFile, least: int) -> bool:
    """Whether the file has so many rows or more, as far as that can be known without reading all of it."""
    if file.rows is not None:
        return file.rows >= least
    return any(share.rows_before >= least for share in cut_file(file))


def read_share(file: DataFile, share: FileShare, columns: ColumnMap) -> Iterator[Case]:
    """The cases of a part, with the ids that they have in the whole file."""
    return file.to_cases(_rows_of(file, share), columns, share.rows_before + 1)


def _rows_of(file: DataFile, share: FileShare) -> Iterator[Any]:
    if file.format == "parquet":
        yield from _group_rows(file.path, share)
        return
    with open_file(file.path) as opened:
        names = opened.read(share.header)
        opened.seek(share.start)
        part = io.BytesIO(names + opened.read(share.end - share.start))
    if file.format == "jsonl":
        yield from read_jsonl(part, file.path, share.lines_before)
    else:
        lines_skipped = share.lines_before - names.count(b"\n")
        yield from read_csv(part, file.path, file.delimiter, lines_skipped)


def _gather(found: Iterable[_Extent], start: int, line: int, header: int = 0) -> Iterator[FileShare]:
    at, rows, first, first_line = start, 0, 0, line
    for one in found:
        at, line, rows = at + one.size, line + one.lines, rows + one.rows
        if rows - first >= SHARE_ROWS or at - start >= SHARE_BYTES:
            yield FileShare(start=start, end=at, rows_before=first, lines_before=first_line, header=header)
            start, first, first_line = at, rows, line
    if at > start:
        yield FileShare(start=start, end=at, rows_before=first, lines_before=first_line, header=header)


def _line_extents(file: BinaryIO, path: str) -> Iterator[_Extent]:
    number = 0
    while line := read_line(file, path, number + 1):
        number += 1
        yield _Extent(len(line), 1, bool((line.removeprefix(BOM) if number == 1 else line).strip()))


def _record_extents(file: BinaryIO, path: str, delimiter: str) -> Iterator[_Extent]:
    """The rows of a CSV file, the names of columns first; a row with quotes may have several lines."""
    number = 0
    while line := read_line(file, path, number + 1):
        if b'"' not in line:
            number += 1
            # A lone CR ends a row too.
            yield _Extent(len(line), 1, sum(map(bool, line.replace(b"\r", b"\n").split(b"\n"))))
            continue
        lines = [line]
        try:
            cells = next(csv.reader(_follow(file, path, lines, number), delimiter=delimiter, strict=True))
        except (csv.Error, StopIteration) as problem:
            raise complain(path, f"cannot be cut at a row: {problem}; use --engine local", number + 1) from None
        except UnicodeDecodeError as problem:
            raise complain_of_bytes(path, problem) from None
        number += len(lines)
        yield _Extent(sum(map(len, lines)), len(lines), bool(cells))


def _follow(file: BinaryIO, path: str, lines: list[bytes], number: int) -> Iterator[str]:
    """The first line as text, then as many more as are asked for; each is added to the list."""
    yield lines[0].decode("utf-8-sig" if number == 0 else "utf-8")
    while line := read_line(file, path, number + len(lines) + 1):
        lines.append(line)
        yield line.decode()


def _cut_groups(path: str) -> Iterator[FileShare]:
    rows = 0
    with parquet_file(path) as opened:
        for number in range(opened.num_row_groups):
            group = opened.metadata.row_group(number)
            row_bytes = max(1, group.total_byte_size // max(1, group.num_rows))
            step = max(SHARE_ROWS, min(GROUP_ROWS, GROUP_BYTES // row_bytes))
            for start in range(0, group.num_rows, step):
                end = min(start + step, group.num_rows)
                yield FileShare(start=start, end=end, rows_before=rows + start, lines_before=number)
            rows += group.num_rows


def _group_rows(path: str, share: FileShare) -> Iterator[Row]:
    with parquet_file(path) as opened:
        at = 0
        for batch in opened.iter_batches(batch_size=SHARE_ROWS, row_groups=[share.lines_before]):
            first, last = max(share.start - at, 0), min(share.end - at, batch.num_rows)
            at += batch.num_rows
            if first < last:
                yield from plain_rows(batch.slice(first, last - first))
            if at >= share.end:
                return
