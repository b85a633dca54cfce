"""`meruit audit`: export an outcome as a proof bundle, check such a bundle, and check a whole store."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from meruit.cli.auditing.follow import consistency_command, follow_command
from meruit.cli.auditing.inputs import key_option, load_key, load_quorum, read_content, witness_options
from meruit.cli.auditing.keys import admit_command, root_command, rotate_command
from meruit.cli.auditing.receipt import receipt_group
from meruit.cli.auditing.witness import witness_group
from meruit.cli.shared.open_store import open_records, resolve_outcome
from meruit.cli.terminal import (
    ExitCode,
    check_stdin_used_once,
    escape_control_characters,
    json_option,
    note,
    paint,
    print_json,
    say,
    show_progress,
    store_options,
    tenant_option,
)

if TYPE_CHECKING:
    from meruit.audit.findings import Findings


@click.group()
def audit() -> None:
    """Export proof bundles; check bundles, logs and witnesses."""


for _command in (
    follow_command,
    consistency_command,
    receipt_group,
    witness_group,
    admit_command,
    root_command,
    rotate_command,
):
    audit.add_command(_command)


@audit.command()
@click.argument("outcome_id")
@click.option("-o", "--output", "file", metavar="BUNDLE.zip", required=True, help="File to write; - is stdout.")
@store_options
@tenant_option
@json_option
def export(
    *, outcome_id: str, file: str, data: str | None, database_url: str | None, tenant: str, as_json: bool
) -> int:
    """Write a bundle that proves an outcome to a third party.

    The bundle holds the work, the criteria and every version of the verdict. Give it only to readers who may see them.
    OUTCOME_ID may be `latest`.
    """
    import msgspec

    # `audit verify` must work without SQLAlchemy.
    from meruit.audit.export import export as packed
    from meruit.model.access import Scope

    if file == "-" and as_json:
        raise click.UsageError("`-o -` and --json both write to stdout; give -o a file")
    with open_records(data, database_url) as store:
        outcome_id = resolve_outcome(store, tenant, outcome_id)
        bundle = packed(store, Scope(tenant), outcome_id)
    if file == "-":
        sys.stdout.buffer.write(bundle)
        sys.stdout.buffer.flush()
    else:
        Path(file).write_bytes(bundle)
        if as_json:
            print_json(msgspec.json.encode({"outcome": outcome_id, "file": file, "bytes": len(bundle)}))
        else:
            note(f"{file}: {len(bundle):,} bytes")
    return ExitCode.PASSED


@audit.command()
@store_options
@json_option
def check(*, data: str | None, database_url: str | None, as_json: bool) -> int:
    """Check a whole store: its log, checkpoints and recorded rows.

    Recomputes every leaf, tile, root and signed checkpoint, and compares every row that the log commits to. Reads
    everything. Exit codes: 0 nothing contradicts the log, 1 something does; each problem is printed.
    """
    from meruit.audit.check import check_store

    with open_records(data, database_url) as store, show_progress("checking") as progress:
        found = check_store(store, progress)
    if as_json:
        print_json(found.to_json())
    else:
        for one in found.problems:
            say(escape_control_characters(f"{one.code} {one.where}: {one.message}"))
        unsigned = f", the last {found.unsigned:,} not signed yet" if found.unsigned else ""
        counted = f"{found.size:,} leaves{unsigned}, {found.checkpoints:,} checkpoints, {found.rows:,} rows"
        say(f"{'the store agrees with its log' if found.sound else 'the store contradicts its log'}: {counted}")
    return ExitCode.PASSED if found.sound else ExitCode.NOT_PASSED


@audit.command()
@click.argument("bundle", metavar="BUNDLE.zip")
@key_option
@click.option(
    "--checkpoint",
    "checkpoint_file",
    metavar="FILE",
    help="An earlier checkpoint of the same log; the bundle's log must extend it.",
)
@witness_options
@click.option("--run-code", is_flag=True, help="Also run the custom code of the criteria, in the sandbox.")
@json_option
def verify(
    *,
    bundle: str,
    key: str | None,
    checkpoint_file: str | None,
    witnesses: tuple[str, ...],
    required: int | None,
    run_code: bool,
    as_json: bool,
) -> int:
    """Check a bundle offline: no service, database or network.

    Exit code 0 if every step holds, else the code of the first step that fails: 10 bundle, 11 signature, 12 inclusion,
    13 consistency, 14 sequence, 15 blobs, 16 metrics, 17 judge, 18 statement,
    19 governance, 20 settlement, 21 witnesses.
    """
    # Imported here so that --help is quick.
    from meruit.audit.bundle import MAX_BUNDLE_BYTES
    from meruit.audit.verify.outcome import verify_bundle
    from meruit.log.note import MAX_NOTE_BYTES

    check_stdin_used_once(bundle, checkpoint_file)
    pinned = load_key(key) if key is not None else None
    quorum = load_quorum(witnesses, required)
    checkpoint = None
    if checkpoint_file is not None:
        checkpoint = read_content(checkpoint_file, MAX_NOTE_BYTES).decode(errors="replace")
    found = verify_bundle(
        read_content(bundle, MAX_BUNDLE_BYTES), key=pinned, checkpoint=checkpoint, witnesses=quorum, run_code=run_code
    )
    if as_json:
        print_json(found.to_json())
    else:
        _print(found)
    if found.failed is None:
        return ExitCode.PASSED
    (what,) = (step.message for step in found.steps if step.step is found.failed)
    say(f"audit verify: FAILED at step {found.failed}: {escape_control_characters(what)}", err=True)
    return found.failed.exit_code


@audit.command()
@store_options
@json_option
def key(*, data: str | None, database_url: str | None, as_json: bool) -> int:
    """Print the public key that signs the log.

    Publish the key, so that readers can pin it.
    """
    import msgspec

    with open_records(data, database_url) as store:
        vkey = store.signer.vkey
    if as_json:
        print_json(msgspec.json.encode({"vkey": vkey}))
    else:
        say(vkey)
    return ExitCode.PASSED


@audit.command()
@store_options
@json_option
def checkpoint(*, data: str | None, database_url: str | None, as_json: bool) -> int:
    """Print the newest signed checkpoint of the log."""
    import msgspec

    from meruit.store.checkpoint import checkpoint as signed

    with open_records(data, database_url) as store:
        found = signed(store)
    if as_json:
        print_json(msgspec.json.encode({"checkpoint": found.note, "size": found.size}))
    else:
        # The note ends with a newline.
        say(found.note.removesuffix("\n"))
    return ExitCode.PASSED


def _print(found: "Findings") -> None:
    for step in found.steps:
        state = paint(str(step.state)) + " " * (len("not reached") - len(step.state))
        say(f"{step.step:<12}{state}  {escape_control_characters(step.message)}".rstrip())
    for remark in found.notes:
        note(remark)
