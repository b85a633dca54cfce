"""What all lists share on the command line: a span of time, and CSV to the terminal or a file."""

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from meruit.cli.terminal import escape_control_characters, note, say

if TYPE_CHECKING:
    from meruit.documents.csv_table import Cell

_Command = TypeVar("_Command", bound=Callable[..., Any])
_DAY = r"\d{4}-\d\d-\d\d"
_MOMENT = re.compile(rf"({_DAY})([Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d))?", re.ASCII)
STDOUT = "-"


class CsvTarget(NamedTuple):
    """Where CSV goes."""

    file: str
    """`-` is stdout."""
    bom: bool


class ListRequest(NamedTuple):
    """How much of a list is asked for, and in which form."""

    before: int | None
    limit: int
    csv: CsvTarget | None
    as_json: bool
    everything: bool
    """Whether no limit was typed; CSV then has the whole list."""


def parse_moment(ctx: click.Context, param: click.Parameter, typed: str | None) -> datetime | None:
    """Parse a day, which begins at midnight UTC, or a moment with its time zone."""
    if typed is None:
        return None
    try:
        found = datetime.fromisoformat(typed.upper()) if _MOMENT.fullmatch(typed) else None
        found = found.astimezone(UTC) if found is not None and found.tzinfo is not None else found
    except (ValueError, OverflowError):
        found = None
    if found is None:
        wrong = f"{typed!r} is not a valid date: write 2026-11-30, or 2026-11-30T12:00:00Z"
        raise click.BadParameter(escape_control_characters(wrong), ctx, param)
    return found.replace(tzinfo=UTC)


def span_options(begin: str = "--since", end: str = "--until") -> Callable[[_Command], _Command]:
    """Add the options that bound a list in time."""
    since = click.option(
        begin, "since", callback=parse_moment, metavar="DATE", help="First day or moment (default: the beginning)."
    )
    until = click.option(end, "until", callback=parse_moment, metavar="DATE", help="End, exclusive (default: now).")
    return lambda command: since(until(command))


def check_span(since: datetime | None, until: datetime | None, names: tuple[str, str] = ("--since", "--until")) -> None:
    """Raise UsageError for a span that holds no moment."""
    if since is not None and until is not None and until <= since:
        raise click.UsageError(f"{names[1]} must be later than {names[0]}; it is exclusive")


_csv_option = click.option(
    "--csv",
    "csv_file",
    is_flag=False,
    flag_value=STDOUT,
    metavar="[FILE]",
    help="Write CSV with a line of headings to FILE, or without FILE to stdout.",
)
_bom_option = click.option(
    "--bom", is_flag=True, help="With --csv: begin with a byte order mark, by which Excel knows UTF-8."
)


def csv_options(command: _Command) -> _Command:
    """Add the options that write CSV."""
    return _csv_option(_bom_option(command))


def csv_target(csv_file: str | None, *, bom: bool, as_json: bool = False) -> CsvTarget | None:
    """Where CSV goes, None for none; raises UsageError for options that exclude each other."""
    if csv_file is None:
        if bom:
            raise click.UsageError("--bom needs --csv")
        return None
    if as_json:
        raise click.UsageError("--csv and --json cannot be combined; give one of them")
    return CsvTarget(csv_file, bom)


def was_given(option: str) -> bool:
    """Whether the user typed an option of the running command."""
    return click.get_current_context().get_parameter_source(option) is click.core.ParameterSource.COMMANDLINE


def list_request(before: int | None, limit: int, csv_file: str | None, *, bom: bool, as_json: bool) -> ListRequest:
    """The request of the running command; raises UsageError for options that exclude each other."""
    return ListRequest(
        before, limit, csv_target(csv_file, bom=bom, as_json=as_json), as_json, everything=not was_given("limit")
    )


def print_csv(target: CsvTarget, headings: Sequence[str], rows: "Iterable[Sequence[Cell]]") -> None:
    """Write a table as CSV, a few rows at a time; a file appears under its name once it is complete."""
    # Imported here, and below, so that --help is quick.
    from meruit.documents.csv_table import write_csv

    chunks = write_csv(headings, rows, bom=target.bom)
    if target.file == STDOUT:
        for chunk in chunks:
            say(chunk, newline=False)
        return
    from meruit.outcomes.export import atomic_file

    with atomic_file(Path(target.file)) as file:
        file.writelines(chunks)
    note(f"CSV written to {target.file}")
