"""How the command line speaks: tables for people, JSON for programs, complaints on stderr."""

import os
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

import click

from meruit.model.text import escape_control_characters as escape_control_characters  # noqa: PLC0414 - part of how the command line speaks

_Command = TypeVar("_Command", bound=Callable[..., Any])


class ExitCode(IntEnum):
    """How a command ended."""

    PASSED = 0
    NOT_PASSED = 1
    BAD_INPUT = 2
    COULD_NOT_VERIFY = 3
    CREDENTIALS = 4
    INTERRUPTED = 130


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs, on one line.")
config_option = click.option(
    "--config", metavar="FILE", help="Settings; else $MERUIT_CONFIG, else config/outcome-verification.yaml."
)

_data_option = click.option(
    "--data", metavar="FOLDER", help="Where records are; else $MERUIT_DATA, else ./meruit-data."
)
_database_option = click.option(
    "--database-url", metavar="URL", help="postgresql://… instead of SQLite; else $MERUIT_DATABASE_URL."
)
MAX_LABEL = 200
"""Characters of an id or label."""
MAX_CURSOR = 2**63 - 1
"""No database counts further."""


class StoreAddress(NamedTuple):
    """Where records are, and whose, as the options say."""

    data: str | None
    database_url: str | None
    tenant: str


tenant_option = click.option("--tenant", default="default", show_default=True, help="Whose records.")


def store_options(command: _Command) -> _Command:
    """Say where the records are."""
    return _data_option(_database_option(command))


_limit_option = click.option(
    "--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="How many at most."
)
_before_option = click.option(
    "--before",
    type=click.IntRange(1, MAX_CURSOR),
    metavar="SEQ",
    help="Go on behind this place: the `next` of a page.",
)


def page_options(command: _Command) -> _Command:
    """Say which part of a list."""
    return _limit_option(_before_option(command))


python_full_option = click.option(
    "--allow-python-full",
    is_flag=True,
    help="Let the criteria's code ask for the tier python-full: CPython in a jail.",
)

sources_option = click.option(
    "--allow-sources",
    is_flag=True,
    help="Let tasks name systems of their own; they then read your environment and run commands for tokens.",
)

_COLOURS = {
    "met": "green",
    "passed": "green",
    "ready": "green",
    "not ready": "red",
    "pass": "green",
    "not met": "red",
    "fail": "red",
    "failed": "red",
    "error": "red",
    "indeterminate": "yellow",
    "inconclusive": "yellow",
    "partial": "yellow",
    "excluded": "bright_black",
    "skipped": "bright_black",
    "warning": "yellow",
}


LONGEST_DECIMAL = 8
"""Characters of a number with decimals that a table shows."""


def say(text: str | bytes = "", *, err: bool = False) -> None:
    """Write a line; a reader that has gone away changes nothing about how the command ends."""
    stream = sys.stderr if err else sys.stdout
    if isinstance(text, str):
        encoding = getattr(stream, "encoding", None) or "utf-8"
        text = text.encode(encoding, "replace").decode(encoding)
    try:
        click.echo(text, err=err)
    except BrokenPipeError:
        # What is still to be written, by us or when the interpreter ends, goes nowhere without a complaint.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def print_error(message: str) -> None:
    """Say on stderr what went wrong."""
    for line in message.split("\n"):
        say(f"{paint('error', sys.stderr)}: {escape_control_characters(line)}", err=True)


def note(message: str) -> None:
    """Say on stderr what is worth knowing."""
    say(f"note: {escape_control_characters(message)}", err=True)


def paint(word: str, stream: Any = None) -> str:
    """The word in its colour, where colours are wanted."""
    stream = stream or sys.stdout
    # A stream that was closed before we started is None.
    if os.environ.get("NO_COLOR") or stream is None or not stream.isatty():
        return word
    return click.style(word, fg=_COLOURS.get(word))


def print_json(text: bytes) -> None:
    """One JSON document on stdout."""
    say(text)


def check_stdin_used_once(*files: str | None) -> None:
    """Refuse a command line that names standard input for two things: it can be read once."""
    if files.count("-") > 1:
        raise click.UsageError("- is standard input, which can be read for one file only")


def _width(text: str) -> int:
    """How many columns a terminal takes for it."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF") for char in text)


def _pad(cell: str, width: int) -> str:
    return cell + " " * (width - _width(cell))


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, painted: int | None = None) -> None:
    """Columns under their headings; the last may be as long as it likes."""
    shown_rows = [headings, *([escape_control_characters(cell) for cell in row] for row in rows)]
    widths = [max(_width(row[column]) for row in shown_rows) for column in range(len(headings))]
    widths[-1] = 0
    for number, row in enumerate(shown_rows):
        cells = [_pad(cell, width) for cell, width in zip(row, widths, strict=True)]
        if painted is not None and number > 0:
            # Colour codes have no width, so a cell is padded first.
            cells[painted] = cells[painted].replace(row[painted], paint(row[painted]), 1)
        say("  ".join(cells).rstrip())


def format_cell(value: Any) -> str:
    """Make a value short enough for a table; cut, not rounded, so that it never looks like what it missed."""
    match value:
        case None:
            return "–"
        case bool():
            return str(value).lower()
        case float():
            full = f"{value!r}".removesuffix(".0")
            short = full if "e" in full or "." not in full[: LONGEST_DECIMAL - 1] else full[:LONGEST_DECIMAL]
            return full if full == short else f"{short}…"
        case dict():
            low, high = format_cell(value.get("min")), format_cell(value.get("max"))
            return f"{low} to {high}"
        case list() | tuple():
            return ", ".join(format_cell(item) for item in value)
        case _:
            return str(value)


@contextmanager
def show_progress(doing: str) -> Iterator[Callable[[int, int], None]]:
    """How far it is, on stderr: a bar where a person looks, else nothing until the caller sums up."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    with click.progressbar(length=1, label=doing, file=sys.stderr, show_pos=True) as bar:

        def update_bar(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        yield update_bar
