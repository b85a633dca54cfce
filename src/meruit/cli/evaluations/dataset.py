"""`meruit dataset`: cases that are kept by name and version."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from meruit.cli.shared.open_store import open_records
from meruit.cli.terminal import (
    ExitCode,
    escape_control_characters,
    format_cell,
    json_option,
    note,
    print_json,
    print_table,
    say,
    store_options,
    tenant_option,
)

LONGEST_TEXT = 60
"""Characters of an input or an output in a table."""


@click.group()
def dataset() -> None:
    """Keep files of cases by name and version, and see what changed."""


@dataset.command("add")
@click.argument("name", metavar="NAME")
@click.argument("data_file", metavar="FILE")
@click.option("--map", "mapping", metavar="MAP", help="Columns, as input.reference=answer,output.text=completion.")
@click.option(
    "--format", "format_name", metavar="FORMAT", help="One of jsonl, json, csv, tsv and parquet (default: by ending)."
)
@tenant_option
@store_options
@json_option
def add_command(  # noqa: PLR0913 - one an option
    *,
    name: str,
    data_file: str,
    mapping: str | None,
    format_name: str | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """Keep the cases of a file as the next version of a dataset.

    FILE is JSON Lines, JSON, CSV, TSV or Parquet, or - for JSON Lines on stdin. The same cases again are not a new
    version. `meruit eval run CRITERIA dataset:NAME` judges them.
    """
    import msgspec

    from meruit.app import open_store
    from meruit.config import location_of
    from meruit.evaluations.datafiles import ColumnMap, open_data
    from meruit.evaluations.datasets import Datasets

    columns = ColumnMap() if mapping is None else ColumnMap.parse(mapping)
    with _as_file(data_file, format_name) as (path, known_format):
        source = open_data(path, known_format)
        store = open_store(location_of(data, database_url), make=True)
        try:
            added = Datasets(store, tenant).add(name, lambda: source.cases(columns), Path(data_file).name)
        finally:
            store.close()
    if as_json:
        print_json(msgspec.json.encode(added))
    else:
        say(f"{added.name}@{added.version}: {added.rows:,} cases, digest {added.digest}")
    return ExitCode.PASSED


@contextmanager
def _as_file(data_file: str, format_name: str | None) -> Iterator[tuple[str, str | None]]:
    """The file; standard input becomes one, because a dataset is read twice."""
    if data_file != "-":
        yield data_file, format_name
        return
    with tempfile.NamedTemporaryFile(prefix="meruit-", suffix=".jsonl") as spooled:
        if sys.stdin is not None:
            shutil.copyfileobj(sys.stdin.buffer, spooled)
        spooled.flush()
        yield spooled.name, format_name or "jsonl"


@dataset.command("list")
@click.option("--name", metavar="NAME", help="Only versions of this dataset.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, metavar="N", help="Most rows.")
@click.option("--before", metavar="NAME@VERSION", help="Cursor: pass the `next` value of the previous page.")
@tenant_option
@store_options
@json_option
def list_command(
    *,
    name: str | None,
    limit: int,
    before: str | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """List datasets by name, the latest version of each first."""
    import msgspec

    from meruit.evaluations.datasets import Datasets, parse_cursor

    with open_records(data, database_url) as store:
        found = Datasets(store, tenant).page(name=name, before=parse_cursor(before), limit=limit)
    following = found[-1].reference if len(found) == limit else None
    if as_json:
        print_json(msgspec.json.encode({"datasets": found, "next": following}))
        return ExitCode.PASSED
    if not found:
        note("no datasets yet; `meruit dataset add` makes one")
        return ExitCode.PASSED
    rows = [
        (one.reference, f"{one.rows:,}", f"{one.created_at:%Y-%m-%d %H:%M}", one.source or "–", one.digest[:12])
        for one in found
    ]
    print_table(("dataset", "cases", "added (UTC)", "from", "digest"), rows)
    if following is not None:
        note(f"more with --before {following}")
    return ExitCode.PASSED


@dataset.command("show")
@click.argument("reference", metavar="NAME[@VERSION]")
@click.option("--limit", type=click.IntRange(1, 10_000), default=10, show_default=True, metavar="N", help="Most cases.")
@click.option("--after", type=click.IntRange(0), default=0, metavar="ROW", help="Cursor: `next` of the previous page.")
@tenant_option
@store_options
@json_option
def show_command(
    *, reference: str, limit: int, after: int, tenant: str, data: str | None, database_url: str | None, as_json: bool
) -> int:
    """Show a version of a dataset with its first cases."""
    import msgspec

    from meruit.evaluations.datasets import Datasets

    with open_records(data, database_url) as store:
        datasets = Datasets(store, tenant)
        found = datasets.find(reference)
        cases = [*datasets.cases(found, after=after, limit=limit)]
    following = after + limit if after + limit < found.rows else None
    if as_json:
        print_json(msgspec.json.encode({"dataset": found, "cases": cases, "next": following}))
        return ExitCode.PASSED
    say(f"{found.reference}: {found.rows:,} cases, added {found.created_at:%Y-%m-%d %H:%M} UTC")
    say(f"digest {found.digest}")
    say()
    rows = [
        (
            one.id + (f" #{one.repeat}" if one.repeat else ""),
            _shorten(one.input),
            _shorten(one.output),
            ", ".join(f"{name}={value}" for name, value in one.tags.items()) or "–",
        )
        for one in cases
    ]
    print_table(("case", "input", "output", "tags"), rows)
    if following is not None:
        note(f"more with --after {following}")
    return ExitCode.PASSED


def _shorten(part: object) -> str:
    if not part:
        return "–"
    text = " ".join(format_cell(str(part)).split())
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"


@dataset.command("diff")
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@click.option(
    "--limit", type=click.IntRange(0, 10_000), default=20, show_default=True, metavar="N", help="Cases listed of each."
)
@tenant_option
@store_options
@json_option
def diff_command(
    *, old: str, new: str, limit: int, tenant: str, data: str | None, database_url: str | None, as_json: bool
) -> int:
    """Show which cases two versions do not share.

    Name them as `capitals@1 capitals@2`. The exit code is 0 also when they differ.
    """
    import msgspec

    from meruit.evaluations.datasets import Datasets

    with open_records(data, database_url) as store:
        datasets = Datasets(store, tenant)
        found = datasets.diff(datasets.find(old), datasets.find(new))
    if as_json:
        print_json(msgspec.json.encode(found))
        return ExitCode.PASSED
    say(
        f"{found.old.reference} to {found.new.reference}: {len(found.added):,} added, {len(found.removed):,} removed, "
        f"{len(found.changed):,} changed, {found.same:,} the same"
    )
    changed = [f"{one.id} ({', '.join(one.parts)})" for one in found.changed]
    for title, cases in (("added", found.added), ("removed", found.removed), ("changed", changed)):
        if cases:
            more = f", and {len(cases) - limit:,} more" if len(cases) > limit else ""
            say(escape_control_characters(f"{title}: {', '.join(cases[:limit])}{more}"))
    return ExitCode.PASSED
