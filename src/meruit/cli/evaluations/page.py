"""`meruit eval page`: one evaluation, or two compared, as one HTML file."""

from pathlib import Path

import click

from meruit.cli.shared.open_store import open_records
from meruit.cli.terminal import ExitCode, json_option, note, print_json, store_options, tenant_option


@click.command("page")
@click.argument("name", metavar="NAME")
@click.argument("other", metavar="[OTHER]", required=False)
@click.option("-o", "--output", "file", required=True, metavar="FILE", help="HTML file to write.")
@tenant_option
@store_options
@json_option
def page_command(
    *, name: str, other: str | None, file: str, tenant: str, data: str | None, database_url: str | None, as_json: bool
) -> int:
    """Write an evaluation, or a comparison, as one HTML file.

    The file needs no network: it lists every case with its work and evidence, with filters, and a link to each case.
    With OTHER, NAME is the one that is compared with.
    """
    import msgspec

    from meruit.evaluations.page.render import render_comparison, render_evaluation
    from meruit.evaluations.reader import Evaluations
    from meruit.outcomes.export import atomic_file

    with open_records(data, database_url) as store:
        reader = Evaluations(store, tenant)
        first = reader.find(name)
        page = (
            render_evaluation(reader, first) if other is None else render_comparison(reader, first, reader.find(other))
        )
    with atomic_file(Path(file)) as written:
        written.write(page)
    if as_json:
        print_json(msgspec.json.encode({"file": file, "bytes": len(page)}))
    else:
        note(f"wrote {file} ({len(page) / 1e6:.1f} MB)")
    return ExitCode.PASSED
