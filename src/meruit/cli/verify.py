"""`meruit verify`: one piece of work against its criteria."""

import click

from meruit.cli.output import ExitCode, config_option, json_option, note, once, print_json, python_full_option


@click.command()
@click.argument("criteria", metavar="CRITERIA.yaml")
@click.option("--output", "output_file", metavar="OUT.json", required=True, help="What the agent returned; - is stdin.")
@click.option("--input", "input_file", metavar="IN.json", help="What it was given, references included.")
@click.option("--metadata", "metadata_file", metavar="META.json", help="How the run went: duration_ms and so on.")
@click.option("--contract-id", default="local", show_default=True, help="Written into the result.")
@config_option
@python_full_option
@json_option
def verify(  # noqa: PLR0913 - one an option
    *,
    criteria: str,
    output_file: str,
    input_file: str | None,
    metadata_file: str | None,
    contract_id: str,
    config: str | None,
    allow_python_full: bool,
    as_json: bool,
) -> int:
    """Judge one piece of work by its criteria.

    Exit code 0 when it succeeded, 1 when it did not, 3 when something needed could not be measured.
    """
    # Loading pydantic and the metrics takes a moment that --help should not pay.
    from meruit.cli.loading import load
    from meruit.config import load_payload
    from meruit.engine.sound import prepare

    once(criteria, output_file, input_file, metadata_file, config)
    if not contract_id.isprintable():
        raise click.UsageError("--contract-id holds characters that cannot be printed")
    settings, engine, wanted = load(criteria, config, allow_python_full=allow_python_full)
    prepared = prepare(engine, wanted, "standard input" if criteria == "-" else criteria)
    result = engine.verify_sync(
        contract_id,
        load_payload(input_file) if input_file is not None else {},
        load_payload(output_file),
        prepared,
        load_payload(metadata_file) if metadata_file is not None else {},
    )
    for notice in settings.notices():
        note(notice)
    if as_json:
        print_json(result.to_json())
    else:
        from meruit.cli.verdicts import print_verification

        print_verification(result)
    if result.success:
        return ExitCode.PASSED
    return ExitCode.COULD_NOT_VERIFY if result.verdict in ("inconclusive", "error") else ExitCode.NOT_PASSED
