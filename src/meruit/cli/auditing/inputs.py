"""Keys, checkpoints and logs that the options of `meruit audit` name."""

import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meruit.audit.follow import LogSource
    from meruit.audit.verify.signatures import WitnessQuorum
    from meruit.log.note import VerifierKey

# Any: click's decorators take commands of any signature.
_Command = TypeVar("_Command", bound=Callable[..., Any])

key_option = click.option(
    "--key",
    metavar="VKEY|FILE",
    help="Key that must have signed it, as the operator published it, or a file with it.",
)
_witness_option = click.option(
    "--witness",
    "witnesses",
    multiple=True,
    metavar="VKEY|FILE",
    help="Key of a witness that you trust, or a file with keys, one a line; may be repeated.",
)
_required_option = click.option(
    "--require-witnesses",
    "required",
    type=click.IntRange(min=0),
    metavar="N",
    help="How many of these witnesses must have cosigned the checkpoint (default: all, 0 without --witness).",
)
url_option = click.option("--url", metavar="URL", help="Service that has the log; $MERUIT_KEY is sent as its API key.")


def witness_options(command: _Command) -> _Command:
    """Add the options that name witnesses and how many are needed."""
    return _witness_option(_required_option(command))


def load_key(given: str) -> "VerifierKey":
    """Read a published key, or the file that holds it."""
    from meruit.errors import NoteError
    from meruit.log.note import MAX_NOTE_BYTES, VerifierKey

    try:
        return VerifierKey.parse(given)
    except NoteError:
        if "+" in given and not Path(given).is_file():
            raise
    return VerifierKey.parse(read_content(given, MAX_NOTE_BYTES).decode(errors="replace").strip())


def load_quorum(witnesses: tuple[str, ...], required: int | None) -> "WitnessQuorum":
    """Read the keys of witnesses; raises UsageError where more are required than given."""
    from meruit.audit.verify.signatures import WitnessQuorum
    from meruit.log.cosignature import WitnessKey
    from meruit.log.note import MAX_NOTE_BYTES

    keys: dict[bytes, WitnessKey] = {}
    for given in witnesses:
        lines = [given]
        if Path(given).is_file():
            lines = read_content(given, MAX_NOTE_BYTES).decode(errors="replace").splitlines()
        for line in lines:
            if line.strip() and not line.startswith("#"):
                key = WitnessKey.parse(line)
                keys[key.public] = key
    needed = len(keys) if required is None else required
    if needed > len(keys):
        raise click.UsageError(
            f"--require-witnesses {needed} needs at least as many keys; {len(keys)} given with --witness"
        )
    return WitnessQuorum((*keys.values(),), needed)


def read_content(file: str, most: int) -> bytes:
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


@contextmanager
def open_log(url: str | None, data: str | None, database_url: str | None) -> "Iterator[LogSource]":
    """Open the log of a service, or of a store on this machine."""
    import os

    from meruit.audit.log_sources import ServiceLog, StoreLog
    from meruit.cli.shared.open_store import open_records

    if url is not None:
        if data is not None or database_url is not None:
            raise click.UsageError("give --url, or --data and --database-url, not both")
        yield ServiceLog(url, os.environ)
        return
    with open_records(data, database_url) as store:
        yield StoreLog(store)
