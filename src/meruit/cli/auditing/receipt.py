"""`meruit audit receipt`: print a receipt of a verdict, and check one offline."""

import click

from meruit.cli.auditing.inputs import key_option, load_key, load_quorum, read_content, witness_options
from meruit.cli.shared.open_store import open_records, resolve_outcome
from meruit.cli.terminal import (
    ExitCode,
    escape_control_characters,
    json_option,
    note,
    print_json,
    say,
    store_options,
    tenant_option,
)


class _ReceiptGroup(click.Group):
    """`meruit audit receipt OUTCOME_ID` prints a receipt, as `receipt show OUTCOME_ID` does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Add the subcommand that is meant where none is named."""
        if args and args[0] not in self.commands and not {"-h", "--help"} & {args[0]}:
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group("receipt", cls=_ReceiptGroup)
def receipt_group() -> None:
    """Print a receipt of a verdict; check a receipt offline.

    `meruit audit receipt OUTCOME_ID` is short for `meruit audit receipt show OUTCOME_ID`.
    """


@receipt_group.command()
@click.argument("outcome_id")
@click.option(
    "--version", type=click.IntRange(min=1), metavar="N", help="Version of the verdict (default: the latest)."
)
@store_options
@tenant_option
@click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    help="No effect on the receipt, which is always one line of JSON; errors become JSON.",
)
def show(*, outcome_id: str, version: int | None, data: str | None, database_url: str | None, tenant: str) -> int:
    """Print a receipt: proof that a verdict is in the log.

    OUTCOME_ID may be `latest`.
    """
    from meruit.audit.export import receipt as taken
    from meruit.model.access import Scope

    with open_records(data, database_url) as store:
        found = taken(store, Scope(tenant), resolve_outcome(store, tenant, outcome_id), version)
    print_json(found.to_json())
    return ExitCode.PASSED


@receipt_group.command()
@click.argument("file", metavar="RECEIPT.json")
@key_option
@witness_options
@json_option
def verify(*, file: str, key: str | None, witnesses: tuple[str, ...], required: int | None, as_json: bool) -> int:
    """Check a receipt offline: no service, database or network.

    Exit code 0 if it holds, else the code of the step of `meruit audit verify` that fails.
    """
    from meruit.audit.verify.receipt import MAX_RECEIPT_BYTES, verify_receipt
    from meruit.errors import BundleFlaw

    quorum = load_quorum(witnesses, required)
    pinned = None if key is None else load_key(key)
    try:
        found = verify_receipt(read_content(file, MAX_RECEIPT_BYTES), key=pinned, quorum=quorum)
    except BundleFlaw as flaw:
        say(f"receipt: FAILED at step {flaw.step}: {escape_control_characters(str(flaw))}", err=True)
        return flaw.step.exit_code
    if as_json:
        print_json(found.to_json())
        return ExitCode.PASSED
    summary = f"{found.outcome}, version {found.version}: {found.verdict}, success {str(found.success).lower()}"
    say(escape_control_characters(f"{summary}, recorded {found.at}"))
    say(escape_control_characters(f"entry {found.index:,} of {found.size:,}, signed by {found.key}"))
    say(escape_control_characters(f"witnesses: {found.witnesses}"))
    if pinned is None:
        note("the key is the receipt's own: compare it with what the operator publishes, or give --key")
    return ExitCode.PASSED
