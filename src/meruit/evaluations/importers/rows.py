"""Plain rows: JSON Lines, JSON, CSV, TSV and Parquet, with the usual columns or those that `--map` names."""

from collections.abc import Iterator

from meruit.errors import DocumentError
from meruit.evaluations.datafiles import SUFFIXES, open_data
from meruit.evaluations.importers.support.pieces import Claim, ImportedCase, ImportNote, Piece, RunFacts, verdict_word
from meruit.evaluations.importers.support.source import ImportSource
from meruit.registry import importers


def is_rows(source: ImportSource) -> bool:
    """Recognise a file by its ending, or by a first row."""
    if source.is_folder:
        return False
    return source.path.suffix.casefold() in SUFFIXES or bool(source.first_row)


@importers.add(
    "rows",
    recognise=is_rows,
    last=True,
    examples=[({"rows.csv": "id,prompt,output,claimed\na,?,yes,pass\nb,?,no,\n"}, {"a": "pass", "b": None})],
)
def read_rows(source: ImportSource) -> Iterator[Piece]:
    """Plain JSON Lines, JSON, CSV, TSV or Parquet; `--map claimed=COLUMN` names the origin's verdict."""
    yield RunFacts({"origin": "rows"})
    ending = SUFFIXES.get(source.path.suffix.casefold())
    found = open_data(str(source.path), ending or _guess(source))
    cases = found.cases(source.columns)
    read = 0
    while True:
        try:
            case = next(cases, None)
        except DocumentError as problem:
            # A last line that is cut off is what a process that was killed leaves behind.
            if not read or not _ends_inside_a_line(source) or found.format != "jsonl":
                raise
            yield ImportNote(f"the last line is cut off ({problem})", partial=True)
            return
        if case is None:
            return
        read += 1
        yield ImportedCase(case, Claim(success=verdict_word(case.claimed)))


def _guess(source: ImportSource) -> str:
    text = source.head.lstrip()
    return "json" if text.startswith(b"[") else "jsonl" if text.startswith(b"{") else "csv"


def _ends_inside_a_line(source: ImportSource) -> bool:
    with source.open() as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"
