"""What all lists share on the command line: a span of time, and CSV or XLSX to a file."""

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from meruit.cli.terminal import escape_control_characters, note, say

if TYPE_CHECKING:
    from meruit.documents.csv_table import Cell

_Command = TypeVar("_Command", bound=Callable[..., Any])
_DAY = r"\d{4}-\d\d-\d\d"
_MOMENT = re.compile(rf"({_DAY})([Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d))?", re.ASCII)
STDOUT = "-"


class TableTarget(msgspec.Struct, frozen=True):
    """The file that a table is written to, and its format."""

    file: str
    """`-` is stdout."""
    bom: bool
    is_xlsx: bool


class ListRequest(msgspec.Struct, frozen=True):
    """How much of a list is asked for, and in which form."""

    before: int | None
    limit: int
    table: TableTarget | None
    as_json: bool
    everything: bool
    """Whether no limit was typed; a table then has the whole list."""


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


_xlsx_option = click.option("--xlsx", "xlsx_file", metavar="FILE", help="Write an Excel workbook to FILE.")


def csv_options(command: _Command) -> _Command:
    """Add the options that write CSV."""
    return _csv_option(_bom_option(command))


# Any: the arguments of a command are those of its options.
def table_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that write CSV or XLSX; the command gets them as one `table`."""

    @wraps(command)
    def call(*, csv_file: str | None, bom: bool, xlsx_file: str | None, as_json: bool, **others: Any) -> Any:
        table = _table_target(csv_file, xlsx_file, bom=bom, as_json=as_json)
        return command(table=table, as_json=as_json, **others)

    return csv_options(_xlsx_option(call))


def _table_target(csv_file: str | None, xlsx_file: str | None, *, bom: bool, as_json: bool) -> TableTarget | None:
    """Where the table goes, None for none; raises UsageError for options that exclude each other."""
    if bom and csv_file is None:
        raise click.UsageError("--bom needs --csv")
    file = csv_file or xlsx_file
    if file is None:
        return None
    if csv_file is not None and xlsx_file is not None:
        raise click.UsageError("--csv and --xlsx cannot be combined; give one of them")
    if as_json:
        option = "--csv" if xlsx_file is None else "--xlsx"
        raise click.UsageError(f"{option} and --json cannot be combined; give one of them")
    if xlsx_file == STDOUT:
        raise click.UsageError("--xlsx needs the name of a file: a workbook is not text")
    return TableTarget(file, bom, is_xlsx=xlsx_file is not None)


def was_given(option: str) -> bool:
    """Whether the user typed an option of the running command."""
    return click.get_current_context().get_parameter_source(option) is click.core.ParameterSource.COMMANDLINE


def list_request(before: int | None, limit: int, table: TableTarget | None, *, as_json: bool) -> ListRequest:
    """The request of the running command."""
    return ListRequest(before=before, limit=limit, table=table, as_json=as_json, everything=not was_given("limit"))


def write_table(target: TableTarget, headings: Sequence[str], rows: "Iterable[Sequence[Cell]]") -> None:
    """Write a table as CSV or XLSX, a few rows at a time; a file appears under its name once it is complete."""
    # Imported here, and below, so that --help is quick.
    from meruit.documents.csv_table import write_csv

    if target.file == STDOUT:
        for chunk in write_csv(headings, rows, bom=target.bom):
            say(chunk, newline=False)
        return
    from meruit.outcomes.export import atomic_file

    with atomic_file(Path(target.file)) as file:
        if target.is_xlsx:
            from meruit.documents.xlsx_table import write_xlsx

            write_xlsx(file, headings, rows)
        else:
            file.writelines(write_csv(headings, rows, bom=target.bom))
    note(f"{'XLSX' if target.is_xlsx else 'CSV'} written to {target.file}")
