"""`meruit audit`: taking an outcome out of the records, and checking one that somebody else took out."""

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
    store_options,
    tenant_option,
)

if TYPE_CHECKING:
    from meruit.audit.findings import Findings
    from meruit.log.note import VerifierKey


@click.group()
def audit() -> None:
    """Show that what was recorded is still what was recorded."""


@audit.command()
@click.argument("outcome_id")
@click.option("-o", "--output", "file", metavar="BUNDLE.zip", required=True, help="Where to write it; - is stdout.")
@store_options
@tenant_option
@json_option
def export(
    *, outcome_id: str, file: str, data: str | None, database_url: str | None, tenant: str, as_json: bool
) -> int:
    """Pack an outcome with all that a stranger needs to check it.

    The bundle holds the work, the criteria and every version of the verdict: hand it only to whoever may see them.
    """
    import msgspec

    # SQLAlchemy takes a moment to load, which `audit verify` must not need at all.
    from meruit.audit.export import export as packed
    from meruit.model.access import Scope

    if file == "-" and as_json:
        raise click.UsageError("- is standard output, for the bundle alone; give a file, and --json tells about it")
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
@click.argument("bundle", metavar="BUNDLE.zip")
@click.option("--key", metavar="VKEY|FILE", help="The key that must have signed it, as the operator publishes it.")
@click.option("--checkpoint", "kept", metavar="FILE", help="A checkpoint of the same log that you kept.")
@click.option("--run-code", is_flag=True, help="Also run the code that the criteria bring along, in the sandbox.")
@json_option
def verify(*, bundle: str, key: str | None, kept: str | None, run_code: bool, as_json: bool) -> int:
    """Check a bundle, with no service, no database and no network.

    Exit code 0 when every step holds; else the first that fails: 10 bundle, 11 signature, 12 inclusion,
    13 consistency, 14 sequence, 15 blobs, 16 metrics, 17 judge, 18 statement,
    19 governance, 20 settlement.
    """
    # Loading the metrics takes a moment that --help should not pay.
    from meruit.audit.bundle import MAX_BUNDLE_BYTES
    from meruit.audit.verify.outcome import verify as checked
    from meruit.log.note import MAX_NOTE_BYTES

    check_stdin_used_once(bundle, kept)
    pinned = _load_key(key) if key is not None else None
    checkpoint = _read_content(kept, MAX_NOTE_BYTES).decode(errors="replace") if kept is not None else None
    found = checked(_read_content(bundle, MAX_BUNDLE_BYTES), key=pinned, checkpoint=checkpoint, run_code=run_code)
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
    """Print the public key that signs for these records: publish it, so that others can pin it."""
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
    """Print the log's newest checkpoint, signed now where it has grown since the last."""
    import msgspec

    from meruit.store.checkpoint import checkpoint as signed

    with open_records(data, database_url) as store:
        found = signed(store)
    if as_json:
        print_json(msgspec.json.encode({"checkpoint": found.note, "size": found.size}))
    else:
        # The note ends its last line itself.
        say(found.note.removesuffix("\n"))
    return ExitCode.PASSED


@audit.command()
@click.argument("outcome_id")
@click.option("--version", type=click.IntRange(min=1), help="Of the verdict; else the latest.")
@store_options
@tenant_option
@click.option("--json", is_flag=True, expose_value=False, help="Changes nothing: a receipt is JSON, on one line.")
def receipt(*, outcome_id: str, version: int | None, data: str | None, database_url: str | None, tenant: str) -> int:
    """Print, as JSON, what proves later that a verdict was in the log."""
    from meruit.audit.export import receipt as taken
    from meruit.model.access import Scope

    with open_records(data, database_url) as store:
        found = taken(store, Scope(tenant), outcome_id, version)
    print_json(found.to_json())
    return ExitCode.PASSED


def _load_key(given: str) -> "VerifierKey":
    """A key as it is published, or the file that holds it."""
    from meruit.errors import NoteError
    from meruit.log.note import MAX_NOTE_BYTES, VerifierKey

    try:
        return VerifierKey.parse(given)
    except NoteError:
        if "+" in given and not Path(given).is_file():
            raise
    return VerifierKey.parse(_read_content(given, MAX_NOTE_BYTES).decode(errors="replace").strip())


def _read_content(file: str, most: int) -> bytes:
    """A file, or standard input for `-`, read to one byte past what can be meant."""
    from meruit.errors import MeruitError

    try:
        if file == "-":
            return sys.stdin.buffer.read(most + 1)
        with Path(file).open("rb") as found:
            return found.read(most + 1)
    except (OSError, ValueError) as problem:
        raise MeruitError(f"{file}: cannot be read: {getattr(problem, 'strerror', None) or problem}") from None


def _print(found: "Findings") -> None:
    for step in found.steps:
        state = paint(str(step.state)) + " " * (len("not reached") - len(step.state))
        say(f"{step.step:<12}{state}  {escape_control_characters(step.message)}".rstrip())
    for remark in found.notes:
        note(remark)
