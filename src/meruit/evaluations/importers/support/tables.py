"""Rows of exports as JSON Lines, JSON (a list, or a list under a key), CSV or Parquet."""

from collections.abc import Iterator, Mapping
from typing import Any

from meruit.errors import DocumentError, ImportDamaged
from meruit.evaluations.datafiles import SUFFIXES, open_data
from meruit.evaluations.importers.support.json_stream import CUT, has_list, load, load_lines, split_document
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
    elif text.startswith(b"[") or _is_document(text, lists):
        with source.open() as file:
            for path, element in split_document(file, lists):
                if path == CUT:
                    yield ImportNote("the file is cut off; only what comes before is imported", partial=True)
                elif path or text.startswith(b"["):
                    # Last comes the list without its elements.
                    if element.strip() not in (b"", b"[]"):
                        yield mapping(load(element))
                else:
                    yield from _read_rest(mapping(load(element)), lists)
    else:
        with source.open() as file:
            for row in load_lines(file):
                if row == CUT:
                    yield ImportNote("the last line is cut off; only what comes before is imported", partial=True)
                else:
                    yield mapping(row)


def _read_rest(document: Mapping[str, Any], lists: frozenset[str]) -> Iterator[Mapping[str, Any] | ImportNote]:
    """What a document without the elements of its lists says: a page has a list, and anything else is a row."""
    if not any(isinstance(document.get(name), list) for name in lists):
        yield document
    elif _has_more(document):
        yield ImportNote("the file is one page of several, and cases are missing", partial=True)


def _has_more(page: Mapping[str, Any]) -> bool:
    """Whether the page of an API says that there are others."""
    meta = mapping(page.get("meta"))
    pages = meta.get("totalPages")
    return page.get("has_more") is True or bool(meta.get("cursor")) or (isinstance(pages, int) and pages > 1)


def _is_document(head: bytes, lists: frozenset[str]) -> bool:
    """Whether the file is a page, or one object over several lines, rather than one object a line."""
    first, end, others = head.partition(b"\n")
    try:
        load(first)
    except ImportDamaged:
        # Either the object goes on in the next line, or this line is longer than what is looked at.
        return bool(end) or has_list(first, lists)
    return not others.strip() and has_list(first, lists)


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
