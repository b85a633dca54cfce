"""`meruit audit witness`: run a witness for other logs, and ask witnesses for this one."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from meruit.cli.auditing.inputs import read_content
from meruit.cli.shared.open_store import open_records
from meruit.cli.terminal import (
    ExitCode,
    config_option,
    escape_control_characters,
    json_option,
    note,
    print_json,
    say,
    store_options,
)

if TYPE_CHECKING:
    from meruit.audit.witness import TrustedLog

_folder_option = click.option(
    "--folder",
    metavar="FOLDER",
    default="meruit-witness",
    show_default=True,
    help="Folder of the witness: its key, and the newest checkpoint of each log.",
)
_name_option = click.option(
    "--name",
    metavar="NAME",
    help="Name of a new witness, such as witness.example.com/w1 (default: meruit-witness- and random digits).",
)


@click.group("witness")
def witness_group() -> None:
    """Run a witness for other logs, or ask witnesses of yours.

    A witness cosigns a checkpoint only if it extends all that it saw of the log before. The protocol is
    c2sp.org/tlog-witness.
    """


@witness_group.command()
@_folder_option
@_name_option
@click.option(
    "--log",
    "logs",
    multiple=True,
    required=True,
    metavar="VKEY|FILE",
    help="Key of a log to cosign, as `meruit audit key` prints it, or a file with keys, one a line; may be repeated. "
    "Write ORIGIN=VKEY where the origin of the log is not the name of the key.",
)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8485,
    show_default=True,
    metavar="PORT",
    help="Port to listen on; 0 for any free port.",
)
@json_option
def serve(*, folder: str, name: str | None, logs: tuple[str, ...], host: str, port: int, as_json: bool) -> int:
    """Serve a witness over HTTP until Ctrl-C.

    The folder must survive: a witness that forgets what it cosigned could cosign a fork.
    """
    import os
    import time

    import msgspec

    from meruit.api.logging import configure_logs
    from meruit.api.server import run
    from meruit.api.witness_app import WitnessApp
    from meruit.audit.witness import Witness, open_witness_key

    trusted = _load_logs(logs)
    signer = open_witness_key(Path(folder), name, os.urandom)
    witness = Witness(Path(folder), signer, trusted, lambda: int(time.time()))

    def ready(url: str) -> None:
        if as_json:
            print_json(msgspec.json.encode({"url": url, "vkey": witness.key.vkey, "logs": witness.origins}))
        else:
            note(f"the key of this witness is {witness.key.vkey}")
            say(f"witnessing {', '.join(witness.origins)} on {url}")

    try:
        configure_logs()
        run(WitnessApp(witness), host, port, ready=ready)
    finally:
        witness.close()
    return ExitCode.PASSED


@witness_group.command()
@_folder_option
@_name_option
@json_option
def key(*, folder: str, name: str | None, as_json: bool) -> int:
    """Print the public key of a witness; a new folder gets a new key.

    Publish the key: readers give it with --witness.
    """
    import os

    import msgspec

    from meruit.audit.witness import open_witness_key
    from meruit.log.cosignature import witness_key

    vkey = witness_key(open_witness_key(Path(folder), name, os.urandom)).vkey
    if as_json:
        print_json(msgspec.json.encode({"vkey": vkey}))
    else:
        say(vkey)
    return ExitCode.PASSED


@witness_group.command()
@store_options
@config_option
@json_option
def request(*, data: str | None, database_url: str | None, config: str | None, as_json: bool) -> int:
    """Ask the configured witnesses to cosign the newest checkpoint.

    A running service does this by itself. Exit codes: 0 as many as the quorum have cosigned, 1 fewer.
    """
    import asyncio

    import msgspec

    from meruit.audit.cosigning import WitnessClient, request_cosignatures
    from meruit.config import Settings
    from meruit.errors import ConfigError, Problem, WitnessRefusal

    settings = Settings.load(config).audit
    if not settings.witnesses:
        raise ConfigError("configuration", [Problem("audit.witnesses", "no witness is named; name one, then ask it")])
    with open_records(data, database_url) as store:
        signed, answers = asyncio.run(request_cosignatures(store, WitnessClient(), settings.known_witnesses))
    cosigned = sum(not isinstance(one, WitnessRefusal) for one in answers.values())
    replies = {
        name: {"code": one.code, "message": str(one)}
        if isinstance(one, WitnessRefusal)
        else {"code": "cosigned", "time_s": one.time_s}
        for name, one in answers.items()
    }
    if as_json:
        print_json(msgspec.json.encode({"size": signed.size, "cosigned": cosigned, "witnesses": replies}))
    else:
        for name, one in replies.items():
            detail = f" {one['message']}" if "message" in one else ""
            say(escape_control_characters(f"{name}: {one['code']}{detail}"))
        say(f"{cosigned} of {len(replies)} witnesses cosigned {signed.size:,} entries; the quorum is {settings.needed}")
    return ExitCode.PASSED if cosigned >= settings.needed else ExitCode.NOT_PASSED


def _load_logs(given: tuple[str, ...]) -> "list[TrustedLog]":
    from meruit.audit.witness import TrustedLog
    from meruit.log.note import MAX_NOTE_BYTES

    found = []
    for one in given:
        lines = [one]
        if Path(one).is_file():
            lines = read_content(one, MAX_NOTE_BYTES).decode(errors="replace").splitlines()
        found += [TrustedLog.parse(line) for line in lines if line.strip() and not line.startswith("#")]
    return found
