"""Rows of exports as JSON Lines, JSON (a list, or a list under a key), CSV or Parquet."""

from collections.abc import Iterator, Mapping
from typing import Any

from meruit.errors import DocumentError, ImportDamaged
from meruit.evaluations.datafiles import SUFFIXES, open_data
from meruit.evaluations.importers.support.json_stream import CUT, load, load_lines, split_document
from meruit.evaluations.importers.support.pieces import ImportNote, mapping
from meruit.evaluations.importers.support.source import ImportSource

TABLES = ("csv", "tsv", "parquet")


def read_table(
    source: ImportSource, lists: frozenset[str] = frozenset({""})
) -> Iterator[Mapping[str, Any] | ImportNote]:
    """The rows, in order; a note in place of those that are cut off."""
    ending = SUFFIXES.get(source.path.suffix.casefold())
    text = source.head.lstrip()
    if ending in TABLES or not text.startswith((b"{", b"[")):
        yield from _columns(source, ending if ending in TABLES else "csv")
    elif text.startswith(b"[") or any(name and source.says(name) and _is_document(source) for name in lists):
        with source.open() as file:
            for path, element in split_document(file, lists):
                if path == CUT:
                    yield ImportNote("the file is cut off; only what comes before is imported", partial=True)
                elif path or text.startswith(b"["):
                    if element and element != b"[]":
                        yield mapping(load(element))
                elif _has_more(mapping(load(element))):
                    yield ImportNote("the file is one page of several, and cases are missing", partial=True)
    else:
        with source.open() as file:
            for row in load_lines(file):
                if row == CUT:
                    yield ImportNote("the last line is cut off; only what comes before is imported", partial=True)
                else:
                    yield mapping(row)


def _has_more(page: Mapping[str, Any]) -> bool:
    """Whether the page of an API says that there are others."""
    meta = mapping(page.get("meta"))
    pages = meta.get("totalPages")
    return page.get("has_more") is True or bool(meta.get("cursor")) or (isinstance(pages, int) and pages > 1)


def _is_document(source: ImportSource) -> bool:
    """Whether the file is one object rather than one a line."""
    first = source.head.lstrip().partition(b"\n")[0]
    try:
        load(first)
    except ImportDamaged:
        return True
    return source.head.strip() == first.strip()


def _columns(source: ImportSource, format_name: str | None) -> Iterator[Mapping[str, Any]]:
    """Rows of a table; a cell that holds JSON is read as such."""
    try:
        for row in open_data(str(source.path), format_name).rows_as_read():
            yield {name: _cell(value) for name, value in row.items()}
    except DocumentError as problem:
        raise ImportDamaged(str(problem)) from None


def _cell(value: Any) -> Any:
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return value
    try:
        return load(value.encode())
    except (ImportDamaged, UnicodeEncodeError):
        return value
