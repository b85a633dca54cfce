"""`meruit audit`: export an outcome as a proof bundle, check such a bundle, and check a whole store."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from meruit.cli.shared.open_store import open_records
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
    from meruit.log.note import VerifierKey


@click.group()
def audit() -> None:
    """Export outcomes as proof bundles; check bundles and stores."""


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
    """
    import msgspec

    # `audit verify` must work without SQLAlchemy.
    from meruit.audit.export import export as packed
    from meruit.model.access import Scope

    if file == "-" and as_json:
        raise click.UsageError("`-o -` and --json both write to stdout; give -o a file")
    with open_records(data, database_url) as store:
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
    from meruit.audit.check import check_log

    with (
        open_records(data, database_url) as store,
        store.database.reading() as connection,
        show_progress("checking") as progress,
    ):
        found = check_log(connection, progress)
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
@click.option(
    "--key",
    metavar="VKEY|FILE",
    help="Key that must have signed the bundle, as the operator published it, or a file with it.",
)
@click.option(
    "--checkpoint",
    "checkpoint_file",
    metavar="FILE",
    help="An earlier checkpoint of the same log; the bundle's log must extend it.",
)
@click.option("--run-code", is_flag=True, help="Also run the custom code of the criteria, in the sandbox.")
@json_option
def verify(*, bundle: str, key: str | None, checkpoint_file: str | None, run_code: bool, as_json: bool) -> int:
    """Check a bundle offline: no service, database or network.

    Exit code 0 if every step holds, else the code of the first step that fails: 10 bundle, 11 signature, 12 inclusion,
    13 consistency, 14 sequence, 15 blobs, 16 metrics, 17 judge, 18 statement,
    19 governance, 20 settlement.
    """
    # Imported here so that --help is quick.
    from meruit.audit.bundle import MAX_BUNDLE_BYTES
    from meruit.audit.verify.outcome import verify_bundle
    from meruit.log.note import MAX_NOTE_BYTES

    check_stdin_used_once(bundle, checkpoint_file)
    pinned = _load_key(key) if key is not None else None
    checkpoint = None
    if checkpoint_file is not None:
        checkpoint = _read_content(checkpoint_file, MAX_NOTE_BYTES).decode(errors="replace")
    found = verify_bundle(_read_content(bundle, MAX_BUNDLE_BYTES), key=pinned, checkpoint=checkpoint, run_code=run_code)
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


@audit.command()
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
def receipt(*, outcome_id: str, version: int | None, data: str | None, database_url: str | None, tenant: str) -> int:
    """Print a receipt: proof that a verdict is in the log."""
    from meruit.audit.export import receipt as taken
    from meruit.model.access import Scope

    with open_records(data, database_url) as store:
        found = taken(store, Scope(tenant), outcome_id, version)
    print_json(found.to_json())
    return ExitCode.PASSED


def _load_key(given: str) -> "VerifierKey":
    """Read a published key, or the file that holds it."""
    from meruit.errors import NoteError
    from meruit.log.note import MAX_NOTE_BYTES, VerifierKey

    try:
        return VerifierKey.parse(given)
    except NoteError:
        if "+" in given and not Path(given).is_file():
            raise
    return VerifierKey.parse(_read_content(given, MAX_NOTE_BYTES).decode(errors="replace").strip())


def _read_content(file: str, most: int) -> bytes:
    """Read a file, or standard input for `-`, up to one byte past the limit."""
    from meruit.errors import Problem, UnreadableFile

    try:
        if file == "-":
            return sys.stdin.buffer.read(most + 1)
        with Path(file).open("rb") as found:
            return found.read(most + 1)
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise UnreadableFile(file, [Problem("", f"cannot be read: {reason}")]) from None


def _print(found: "Findings") -> None:
    for step in found.steps:
        state = paint(str(step.state)) + " " * (len("not reached") - len(step.state))
        say(f"{step.step:<12}{state}  {escape_control_characters(step.message)}".rstrip())
    for remark in found.notes:
        note(remark)
