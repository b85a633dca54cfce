"""How the command line speaks: tables for people, JSON for programs, complaints on stderr."""

import os
import sys
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import click


class ExitCode(IntEnum):
    """How a command ended."""

    PASSED = 0
    NOT_PASSED = 1
    BAD_INPUT = 2
    COULD_NOT_VERIFY = 3
    INTERRUPTED = 130


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs, on one line.")
config_option = click.option(
    "--config", metavar="FILE", help="Settings; else $MERUIT_CONFIG, else config/outcome-verification.yaml."
)

_COLOURS = {
    "met": "green",
    "pass": "green",
    "not met": "red",
    "fail": "red",
    "error": "red",
    "indeterminate": "yellow",
    "inconclusive": "yellow",
    "partial": "yellow",
    "excluded": "bright_black",
    "warning": "yellow",
}


def complain(message: str) -> None:
    """Say on stderr what went wrong."""
    for line in message.splitlines():
        click.echo(f"{paint('error', sys.stderr)}: {line}", err=True)


def note(message: str) -> None:
    """Say on stderr what is worth knowing."""
    click.echo(f"note: {message}", err=True)


def paint(word: str, stream: Any = None) -> str:
    """The word in its colour, where colours are wanted."""
    if os.environ.get("NO_COLOR") or not (stream or sys.stdout).isatty():
        return word
    return click.style(word, fg=_COLOURS.get(word))


def print_json(text: bytes) -> None:
    """One JSON document on stdout."""
    click.echo(text)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, painted: int | None = None) -> None:
    """Columns under their headings; the last may be as long as it likes."""
    widths = [max(len(row[column]) for row in [headings, *rows]) for column in range(len(headings))]
    widths[-1] = 0
    click.echo("  ".join(cell.ljust(width) for cell, width in zip(headings, widths, strict=True)).rstrip())
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        if painted is not None:
            # Colour codes have no width, so a cell is padded first.
            cells[painted] = cells[painted].replace(row[painted], paint(row[painted]), 1)
        click.echo("  ".join(cells).rstrip())


def shown(value: Any) -> str:
    """A value short enough for a table, yet never rounded up to what it did not reach."""
    match value:
        case None:
            return "–"
        case bool():
            return str(value).lower()
        case float():
            # A value just short of a round number must not look like it.
            full, short = f"{value!r}".removesuffix(".0"), f"{value:.6g}"
            return full if len(full) <= len(short) or float(short) == round(value, 2) else short
        case dict():
            low, high = shown(value.get("min")), shown(value.get("max"))
            return f"{low} to {high}"
        case list() | tuple():
            return ", ".join(shown(item) for item in value)
        case _:
            return str(value)
