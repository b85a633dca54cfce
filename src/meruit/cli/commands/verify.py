"""`meruit verify`: one piece of work against its criteria."""

import click

from meruit.cli.terminal import (
    MAX_LABEL,
    ExitCode,
    StoreAddress,
    check_stdin_used_once,
    config_option,
    fresh_option,
    json_option,
    print_json,
    python_full_option,
    store_options,
    tenant_option,
)


@click.command()
@click.argument("criteria", metavar="CRITERIA.yaml")
@click.option(
    "--output", "output_file", metavar="OUT.json", required=True, help="Output of the agent, a JSON file; - is stdin."
)
@click.option("--input", "input_file", metavar="IN.json", help="Input of the agent, a JSON file, references included.")
@click.option(
    "--metadata",
    "metadata_file",
    metavar="META.json",
    help="Metadata of the run, a JSON file with duration_ms and the like.",
)
@click.option(
    "--contract-id", metavar="ID", help="Contract id in the result (default: local, or the outcome's id with --record)."
)
@click.option("--agent-id", metavar="ID", help="Agent id in the record.")
@click.option(
    "--record/--no-record",
    "wants_record",
    default=None,
    help="Record the outcome in the store (default: verification.store_outcomes of the settings).",
)
@tenant_option
@store_options
@config_option
@fresh_option
@python_full_option
@json_option
def verify(  # noqa: PLR0913 - one an option
    *,
    criteria: str,
    output_file: str,
    input_file: str | None,
    metadata_file: str | None,
    contract_id: str | None,
    agent_id: str | None,
    wants_record: bool | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    config: str | None,
    fresh: bool,
    allow_python_full: bool,
    as_json: bool,
) -> int:
    """Judge one piece of work by its criteria.

    Exit codes: 0 the work succeeded, 1 it did not, 3 a required value could not be measured.
    """
    # Imported here so that --help is quick.
    from meruit.cli.shared.engine import load_engine
    from meruit.verify.load import load_payload

    check_stdin_used_once(criteria, output_file, input_file, metadata_file, config)
    for option, label in (("--contract-id", contract_id), ("--agent-id", agent_id)):
        if label is not None and not (label.isprintable() and 0 < len(label) <= MAX_LABEL):
            raise click.UsageError(f"{option} must be 1 to {MAX_LABEL} printable characters")
    settings, engine, wanted = load_engine(
        criteria, config, allow_python_full=allow_python_full, governed=True, fresh=fresh
    )
    compiled = engine.compile_or_raise(wanted, "standard input" if criteria == "-" else criteria)
    work = (
        load_payload(input_file) if input_file is not None else {},
        load_payload(output_file),
        load_payload(metadata_file) if metadata_file is not None else {},
    )
    if settings.records_outcomes if wants_record is None else wants_record:
        from meruit.cli.shared.record_outcome import verify_and_record

        place = StoreAddress(data=data, database_url=database_url, tenant=tenant)
        result = verify_and_record(engine, compiled, work, place, contract_id=contract_id, agent_id=agent_id)
    else:
        result = engine.verify_sync(contract_id or "local", work[0], work[1], compiled, work[2])
    if as_json:
        print_json(result.to_json())
    else:
        from meruit.cli.views.verdict import print_verification

        print_verification(result)
    if result.success:
        return ExitCode.PASSED
    return ExitCode.COULD_NOT_VERIFY if result.verdict in ("inconclusive", "error") else ExitCode.NOT_PASSED
