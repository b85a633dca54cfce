"""`meruit audit follow` and `meruit audit consistency`: a log only grows, seen from outside."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from meruit.cli.auditing.inputs import (
    key_option,
    load_key,
    load_quorum,
    open_log,
    read_content,
    url_option,
    witness_options,
)
from meruit.cli.terminal import (
    ExitCode,
    check_stdin_used_once,
    escape_control_characters,
    json_option,
    note,
    print_json,
    refuse_nan,
    say,
    store_options,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from meruit.audit.follow import FollowResult, LogSource
    from meruit.errors import LogContradiction
    from meruit.log.note import Checkpoint, VerifierKey

MAX_WAIT_S = 7 * 24 * 3600.0


@click.command("follow")
@click.argument("file", metavar="FILE")
@url_option
@store_options
@key_option
@witness_options
@click.option(
    "--accept-root",
    metavar="VKEY|FILE",
    help="Root key that the log got after your first check, and that you accept.",
)
@click.option(
    "--watch",
    "every_s",
    type=click.FloatRange(min=1.0, max=MAX_WAIT_S),
    callback=refuse_nan,
    metavar="SECONDS",
    help="Repeat every so many seconds until Ctrl-C, or until the log contradicts the file.",
)
@json_option
def follow_command(  # noqa: PLR0913 - one an option
    *,
    file: str,
    url: str | None,
    data: str | None,
    database_url: str | None,
    key: str | None,
    witnesses: tuple[str, ...],
    required: int | None,
    accept_root: str | None,
    every_s: float | None,
    as_json: bool,
) -> int:
    """Keep checkpoints in FILE, each proven to extend the last.

    FILE is yours: keep it where the operator of the log cannot write. A key that replaces another is followed where the
    log admits it. Exit codes: 0 the log extends what you kept, 1 it was rolled back or forked, is not signed by its
    key, or has too few witnesses; FILE then keeps both checkpoints.
    """
    import asyncio
    import functools

    from meruit.audit.follow import follow

    quorum = load_quorum(witnesses, required)
    pinned = None if key is None else load_key(key)
    root = None if accept_root is None else load_key(accept_root)
    with open_log(url, data, database_url) as source:
        try:
            asked = functools.partial(follow, source, Path(file), key=pinned, quorum=quorum, accept_root=root)
            return asyncio.run(_follow(asked, every_s, as_json=as_json))
        except KeyboardInterrupt:
            return ExitCode.PASSED


async def _follow(look: "Callable[[str], Awaitable[FollowResult]]", every_s: float | None, *, as_json: bool) -> int:
    import asyncio

    from meruit.audit.follow import NOT_WITNESSED
    from meruit.errors import LogContradiction, ProofUnavailable
    from meruit.model.time import to_rfc3339
    from meruit.store.store import utc_now

    while True:
        try:
            found = await look(to_rfc3339(utc_now()))
        except LogContradiction as contradiction:
            _print_contradiction(contradiction, as_json=as_json)
            # Witnesses sign within a minute; all else stays as it is.
            if every_s is None or contradiction.code != NOT_WITNESSED:
                return ExitCode.NOT_PASSED
        except ProofUnavailable as problem:
            if every_s is None:
                raise
            note(str(problem))
        else:
            _print(found, as_json=as_json)
        if every_s is None:
            return ExitCode.PASSED
        await asyncio.sleep(every_s)


def _print(found: "FollowResult", *, as_json: bool) -> None:
    if as_json:
        print_json(found.to_json())
        return
    seen = f"; {found.witnessed:,} cosigned by {', '.join(found.witnesses)}" if found.witnesses else ""
    match found.state:
        case "first":
            say(escape_control_characters(f"first check: {found.size:,} entries{seen}"))
            if not found.pinned:
                note("the key is the log's own: compare it with what the operator publishes, or give --key")
        case "same":
            say(escape_control_characters(f"no new entries: {found.size:,}{seen}"))
        case _:
            say(escape_control_characters(f"extended: {found.before:,} to {found.size:,} entries, proven{seen}"))
    if found.rotated:
        say(escape_control_characters(f"the log replaced its key, proven: it is {found.key} now"))
    if not found.root_accepted:
        note(
            f"the log got the root key {found.root} after your first check: ask the operator whether it is theirs, "
            "then give --accept-root; keys that it admits are not accepted until then"
        )


def _print_contradiction(found: "LogContradiction", *, as_json: bool) -> None:
    if as_json:
        import msgspec

        print_json(msgspec.json.encode({"state": found.code, "message": str(found)}))
    else:
        say(escape_control_characters(f"CONTRADICTION {found.code}: {found}"))


@click.command("consistency")
@click.argument("old", metavar="OLD.txt")
@click.argument("new", metavar="NEW.txt")
@click.option(
    "--proof",
    "proof_file",
    metavar="FILE",
    help="Proof as /v1/audit/consistency returns it; then no service and no store is asked.",
)
@url_option
@store_options
@key_option
@json_option
def consistency_command(  # noqa: PLR0913 - one an option
    *,
    old: str,
    new: str,
    proof_file: str | None,
    url: str | None,
    data: str | None,
    database_url: str | None,
    key: str | None,
    as_json: bool,
) -> int:
    """Prove that one checkpoint extends another.

    Both are files with signed checkpoints. The proof comes from --proof, else from --url, else from the data folder.
    Exit codes: 0 the log only grew between them, 1 it was rolled back or forked.
    """
    import asyncio

    from meruit.audit.follow import check_consistency
    from meruit.audit.log_sources import read_proof
    from meruit.errors import LogContradiction

    check_stdin_used_once(old, new, proof_file)
    pinned = None if key is None else load_key(key)
    first, last = _read_signed(old, pinned), _read_signed(new, pinned)
    try:
        if first.size > last.size or first.origin != last.origin:
            check_consistency(first, last, ())
        if proof_file is not None:
            proof: Sequence[bytes] = read_proof(read_content(proof_file, MAX_PROOF_BYTES), proof_file)
        else:
            with open_log(url, data, database_url) as source:
                proof = asyncio.run(_prove(source, first.size, last.size))
        check_consistency(first, last, proof)
    except LogContradiction as contradiction:
        _print_contradiction(contradiction, as_json=as_json)
        return ExitCode.NOT_PASSED
    if as_json:
        import msgspec

        print_json(msgspec.json.encode({"state": "extended", "before": first.size, "size": last.size}))
    else:
        say(f"the log of {last.size:,} entries extends the one of {first.size:,}")
        if pinned is None:
            note("no key was given, so the signatures were not checked; give --key")
    return ExitCode.PASSED


MAX_PROOF_BYTES = 64 * 1024


async def _prove(source: "LogSource", old: int, new: int) -> "Sequence[bytes]":
    return await source.consistency(old, new)


def _read_signed(file: str, key: "VerifierKey | None") -> "Checkpoint":
    """Read the checkpoint in a file; with a key, it must have signed it."""
    from meruit.log.note import MAX_NOTE_BYTES, open_checkpoint, read_checkpoint, split_note

    text = read_content(file, MAX_NOTE_BYTES).decode(errors="replace")
    return read_checkpoint(split_note(text)[0]) if key is None else open_checkpoint(text, key)
