"""`meruit eval export`: write an evaluation in a format that other tools read."""

import click

from meruit.cli.shared.open_store import open_records
from meruit.cli.terminal import ExitCode, json_option, note, print_json, store_options, tenant_option


@click.command("export")
@click.argument("name", metavar="NAME")
@click.option("--format", "format_name", metavar="FORMAT", help="Format, as junit or ctrf (default: by ending).")
@click.option("-o", "--output", "target", default="-", metavar="FILE", help="File to write (default: stdout).")
@tenant_option
@store_options
@json_option
def export_command(
    *,
    name: str,
    format_name: str | None,
    target: str,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """Write an evaluation as a file for other tools.

    A file is replaced whole, or not touched where something goes wrong. With --json and a file, the last line says what
    was written.
    """
    import msgspec

    from meruit.evaluations.evaluation import EvaluationStatus
    from meruit.evaluations.export import EvaluationExport, export_format, write_export
    from meruit.evaluations.reader import Evaluations

    chosen = export_format(format_name, target)
    with open_records(data, database_url) as store:
        reader = Evaluations(store, tenant)
        found = reader.find(name)
        write_export(EvaluationExport(reader, found), chosen, target)
        if found.status is not EvaluationStatus.FINISHED:
            note(f"{found.name} is not finished: only the {found.cases:,} cases recorded so far are written")
    if as_json and target != "-":
        print_json(msgspec.json.encode({"evaluation_id": found.id, "cases": found.cases, "file": target}))
    return ExitCode.PASSED
