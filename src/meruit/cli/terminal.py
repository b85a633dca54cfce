"""Options and output that all commands share: tables for people, JSON for programs, errors on stderr."""

import os
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from math import isnan
from typing import Any, NamedTuple, TypeVar

import click

from meruit.model.text import escape_control_characters as escape_control_characters  # noqa: PLC0414 - part of the command line's output

_Command = TypeVar("_Command", bound=Callable[..., Any])


class ExitCode(IntEnum):
    """How a command ended."""

    PASSED = 0
    NOT_PASSED = 1
    BAD_INPUT = 2
    COULD_NOT_VERIFY = 3
    CREDENTIALS = 4
    INTERRUPTED = 130


def refuse_nan(_context: click.Context, _option: click.Parameter, value: float | None) -> float | None:
    """Refuse a limit that is NaN: nothing is below or above it, so it would never hold anything back."""
    if value is not None and isnan(value):
        raise click.BadParameter("NaN is not a limit; give a number")
    return value


json_option = click.option("--json", "as_json", is_flag=True, help="Print one line of JSON; errors too.")
config_option = click.option(
    "--config",
    metavar="FILE",
    help="Settings file (default: $MERUIT_CONFIG, else config/outcome-verification.yaml).",
)

_data_option = click.option("--data", metavar="FOLDER", help="Data folder (default: $MERUIT_DATA, else ./meruit-data).")
_database_option = click.option(
    "--database-url",
    metavar="URL",
    help="PostgreSQL database, as postgresql://… (default: $MERUIT_DATABASE_URL, else SQLite in the data folder).",
)
MAX_LABEL = 200
"""Characters of an id or label."""
RECORDED_BY = "cli"
"""Who records reviews, labels and calibrations from here, as the log names it."""
MAX_CURSOR = 2**63 - 1
"""The largest integer that a database column holds."""


# Not a struct: `meruit --help` loads this module, and msgspec would be a quarter of its time.
class StoreAddress(NamedTuple):
    """The store and the tenant that the options name."""

    data: str | None
    database_url: str | None
    tenant: str


tenant_option = click.option("--tenant", default="default", show_default=True, metavar="NAME", help="Tenant.")


def store_options(command: _Command) -> _Command:
    """Add the options that locate the store."""
    return _data_option(_database_option(command))


_limit_option = click.option(
    "--limit", type=click.IntRange(1, 500), default=50, show_default=True, metavar="N", help="Maximum rows on a page."
)
_before_option = click.option(
    "--before",
    type=click.IntRange(1, MAX_CURSOR),
    metavar="SEQ",
    help="Cursor: pass the `next` value of the previous page.",
)


def page_options(command: _Command) -> _Command:
    """Add the options that select a page of a list."""
    return _limit_option(_before_option(command))


python_full_option = click.option(
    "--allow-python-full",
    is_flag=True,
    help="Allow code in the criteria to use the tier python-full (CPython in a jail).",
)

fresh_option = click.option("--fresh", is_flag=True, help="Ask judges again what they answered before.")

sources_option = click.option(
    "--allow-sources",
    is_flag=True,
    help="Allow tasks to name systems of their own. They may read your environment and run commands for tokens.",
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
"""Most characters of a decimal number in a table."""


def say(text: str | bytes = "", *, err: bool = False, newline: bool = True) -> None:
    """Write a line; a closed pipe does not change the exit code."""
    stream = sys.stderr if err else sys.stdout
    if isinstance(text, str):
        encoding = getattr(stream, "encoding", None) or "utf-8"
        text = text.encode(encoding, "replace").decode(encoding)
    try:
        click.echo(text, err=err, nl=newline)
    except BrokenPipeError:
        # Later writes, ours or the interpreter's last flush, go to /dev/null and raise nothing.
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, stream.fileno())
        os.close(devnull)


def print_error(message: str) -> None:
    """Print an error on stderr, one line for each of its lines."""
    for line in message.split("\n"):
        say(f"{paint('error', sys.stderr)}: {escape_control_characters(line)}", err=True)


def note(message: str) -> None:
    """Print a note on stderr."""
    say(f"note: {escape_control_characters(message)}", err=True)


def paint(word: str, stream: Any = None) -> str:
    """Colour a word for a terminal; leave it plain for a pipe or under NO_COLOR."""
    stream = stream or sys.stdout
    # A stream that was closed before we started is None.
    if os.environ.get("NO_COLOR") or stream is None or not stream.isatty():
        return word
    return click.style(word, fg=_COLOURS.get(word))


def print_json(text: bytes) -> None:
    """Print one JSON document on stdout."""
    say(text)


def check_stdin_used_once(*files: str | None) -> None:
    """Raise UsageError if two arguments are `-`: standard input can be read once."""
    if files.count("-") > 1:
        raise click.UsageError("only one file can be `-` (standard input)")


def _width(text: str) -> int:
    """Columns that the text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF") for char in text)


def _pad(cell: str, width: int) -> str:
    return cell + " " * (width - _width(cell))


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, painted: int | None = None) -> None:
    """Print columns under their headings; the last column is not padded."""
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
    """Shorten a value for a table; a number is cut, not rounded, so that 0.8999 never reads as 0.9."""
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
    """Show a progress bar on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    with click.progressbar(length=1, label=doing, file=sys.stderr, show_pos=True) as bar:

        def update_bar(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        yield update_bar
