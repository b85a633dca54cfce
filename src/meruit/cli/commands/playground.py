"""`meruit playground`: systems on this machine that agents can act on."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from meruit.cli.terminal import ExitCode, escape_control_characters, json_option, note, print_json, print_table, say

if TYPE_CHECKING:
    import asyncio

    from meruit.cli.shared.playground_files import PlaygroundFolder
    from meruit.playground.host import Playground
    from meruit.playground.seed import Seed
    from meruit.playground.state import PlaygroundEvent

POLL_S = 0.3
"""Seconds between two queries for new events."""
MAX_QUOTA_MB = 1_000_000
BYTES_PER_MB = 1024 * 1024
MAX_LISTED = 3
"""Most playgrounds that are printed with all endpoints."""

data_option = click.option("--data", metavar="FOLDER", help="Data folder (default: $MERUIT_DATA, else ./meruit-data).")
playground_argument = click.argument("playground_id", metavar="ID")


@click.group()
def playground() -> None:
    """Serve systems that agents can act on; reset or copy them.

    A playground has a FHIR store, an HL7 listener, a payer's portal, an SFTP server, an X12 endpoint and a telephone.
    Each system logs its events. One secret opens all of them.
    """


def _playground_folder(data: str | None) -> "PlaygroundFolder":
    from meruit.cli.shared.playground_files import PlaygroundFolder
    from meruit.config import location_of

    return PlaygroundFolder(location_of(data).folder)


@playground.command()
@click.option("--seed", "seed_file", metavar="FILE.yaml", help="Initial content of a new playground.")
@data_option
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8585,
    show_default=True,
    metavar="PORT",
    help="Port to listen on; 0 for any free port.",
)
@click.option(
    "--quota",
    type=click.IntRange(1, MAX_QUOTA_MB),
    default=256,
    show_default=True,
    metavar="MB",
    help="Size limit of each playground in MB, history and checkpoints included.",
)
@json_option
def up(*, seed_file: str | None, data: str | None, host: str, port: int, quota: int, as_json: bool) -> int:
    """Serve the playgrounds of the data folder.

    Creates a playground if the folder has none, or if --seed is given. Ends on SIGTERM or Ctrl-C. Playgrounds stay in
    the folder, and the next `up` serves them again.
    """
    # Imported here, and below, so that --help is quick.
    import asyncio

    from meruit.api.server import bind_port
    from meruit.playground.host import lock_directory
    from meruit.playground.load import load_seed

    seed = load_seed(seed_file) if seed_file is not None else None
    # A bad address is reported before anything is created.
    bind_port(host, port).close()
    directory = _playground_folder(data).directory
    with lock_directory(directory):
        asyncio.run(_serve(directory, seed, (host, port), quota * BYTES_PER_MB, as_json=as_json))
    return ExitCode.PASSED


async def _serve(
    directory: Path, seed: "Seed | None", where: tuple[str, int], quota_bytes: int, *, as_json: bool
) -> None:
    import msgspec

    from meruit.playground.host import Host

    stopping = _stop_event()
    async with Host(directory, bind=where[0], quota_bytes=quota_bytes) as host:
        host.public_url = url = _local_url(await host.serve_http(where[1]), where[0])
        made = await host.create(seed) if seed is not None or not host.listing() else None
        several = host.listing()
        if as_json:
            print_json(msgspec.json.encode({"url": url, "playgrounds": several}))
        else:
            note(f"playgrounds are in {directory}")
            _print_playgrounds(url, several if made is None else [made, *(one for one in several if one.id != made.id)])
        await stopping.wait()


def _local_url(url: str, bind: str) -> str:
    """The URL for this machine; prints a warning if other machines can connect."""
    import ipaddress
    import socket
    from urllib.parse import urlsplit

    try:
        address = ipaddress.ip_address(bind or "0.0.0.0")  # noqa: S104 - what no address means to a socket
    except ValueError:
        address = None
    if bind == "localhost" or (address is not None and address.is_loopback):
        return url
    note("other machines can connect: neither HTTP nor MLLP is encrypted")
    if address is None or not address.is_unspecified:
        return url
    here = "[::1]" if address.version == 6 else "127.0.0.1"
    note(f"on other machines, use this machine's name ({socket.gethostname()}) instead of {here}")
    return f"http://{here}:{urlsplit(url).port}"


def _stop_event() -> "asyncio.Event":
    """An event that SIGINT and SIGTERM set."""
    import asyncio
    import signal
    import threading

    stopping = asyncio.Event()
    # Only the main thread can handle signals.
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    return stopping


def _print_playgrounds(url: str, several: "list[Playground]") -> None:
    for one in several[:MAX_LISTED]:
        ends = one.endpoints
        facts = {
            "playground": one.id,
            "secret": one.secret,
            "FHIR": ends.fhir,
            "portal": None if ends.portal is None else f"{ends.portal} (log in as clerk with the secret)",
            "X12": ends.x12,
            "call": ends.call,
            "fax": ends.fax,
            "inbox": ends.inbox,
            "CDS": ends.cds,
            "events": ends.events,
            "MLLP": ends.mllp if ends.mllp_secret_in is None else f"{ends.mllp} (the secret in {ends.mllp_secret_in})",
            "SFTP": None if ends.sftp is None else f"{ends.sftp} (as {one.id} with the secret)",
            "missing": ends.trouble,
        }
        for name, value in facts.items():
            if value is not None:
                say(f"{name:12}{escape_control_characters(value)}")
        say()
    if len(several) > MAX_LISTED:
        say(f"and {len(several) - MAX_LISTED:,} more; --json shows all\n")
    say("try:")
    for line in _example_commands(several[0]):
        say(f"  {line}")
    say(f"\nserving on {url}; Ctrl-C ends it")


def _example_commands(one: "Playground") -> list[str]:
    """Commands to try in another terminal."""
    ends = one.endpoints
    lines = [f"curl -H 'Authorization: Bearer {one.secret}' '{ends.fhir}/Patient'"]
    if ends.sftp is not None:
        host, _, port = ends.sftp.rpartition(":")
        lines.append(f"sftp -P {port} {one.id}@{host.strip('[]')}    # the password is the secret")
    if ends.portal is not None:
        lines.append(f"xdg-open '{ends.portal}'    # clerk, and the secret")
    return lines


@playground.command(name="list")
@data_option
@json_option
def list_playgrounds(*, data: str | None, as_json: bool) -> int:
    """List the playgrounds of the data folder, oldest first."""
    import msgspec

    from meruit.cli.shared.playground_files import summarize_playground

    found = [summarize_playground(state) for state in _playground_folder(data).states()]
    if as_json:
        print_json(msgspec.json.encode({"playgrounds": found}))
        return ExitCode.PASSED
    rows = [
        (
            one.id,
            one.created_at[:19].replace("T", " "),
            ", ".join(f"{number:,} {kind}" for kind, number in one.items.items()) or "nothing",
            ", ".join(one.checkpoints),
            one.benchmark_run_id or "–",
        )
        for one in found
    ]
    print_table(("playground", "made (UTC)", "holds", "checkpoints", "benchmark run"), rows)
    return ExitCode.PASSED


@playground.command()
@playground_argument
@click.argument("name", metavar="NAME")
@data_option
@json_option
def checkpoint(*, playground_id: str, name: str, data: str | None, as_json: bool) -> int:
    """Save the state of a playground under a name."""
    with _playground_folder(data).open_state(playground_id) as state:
        state.checkpoint(name)
    return _print_done({"playground": playground_id, "checkpoint": name}, f"saved as {name}", as_json=as_json)


@playground.command()
@playground_argument
@click.argument("name", metavar="[NAME]", default="start")
@data_option
@json_option
def reset(*, playground_id: str, name: str, data: str | None, as_json: bool) -> int:
    """Reset a playground to a checkpoint (default: its start)."""
    with _playground_folder(data).open_state(playground_id) as state:
        state.reset(name)
    return _print_done({"playground": playground_id, "checkpoint": name}, f"reset to {name}", as_json=as_json)


@playground.command()
@playground_argument
@data_option
@json_option
def branch(*, playground_id: str, data: str | None, as_json: bool) -> int:
    """Copy a playground and print the id of the copy."""
    made = _playground_folder(data).branch(playground_id)
    note("a running `meruit playground up` does not serve the copy; the next one does")
    return _print_done({"playground": made, "branched_from": playground_id}, made, as_json=as_json)


@playground.command()
@playground_argument
@data_option
@json_option
def remove(*, playground_id: str, data: str | None, as_json: bool) -> int:
    """Remove a playground and its content."""
    _playground_folder(data).remove(playground_id)
    note("a running `meruit playground up` may still serve it until it ends")
    return _print_done({"removed": playground_id}, f"removed {playground_id}", as_json=as_json)


def _print_done(facts: dict[str, str], text: str, *, as_json: bool) -> int:
    import msgspec

    if as_json:
        print_json(msgspec.json.encode(facts))
    else:
        say(text)
    return ExitCode.PASSED


@playground.command()
@playground_argument
@click.option(
    "--after",
    type=click.IntRange(0),
    default=0,
    metavar="SEQ",
    help="Cursor: show events after this sequence number (default: 0).",
)
@click.option("--follow", is_flag=True, help="Continue until Ctrl-C; with --json, one event a line.")
@data_option
@json_option
def events(*, playground_id: str, after: int, follow: bool, data: str | None, as_json: bool) -> int:
    """Show the events of a playground, oldest first.

    Events of the seed are left out.
    """
    import msgspec

    from meruit.playground.events import page

    gathered: "list[PlaygroundEvent]" = []
    with _playground_folder(data).open_state(playground_id) as state:
        while True:
            found = page(state, after)
            after = found.next
            if as_json and not follow:
                gathered += found.events
            elif not _write([msgspec.json.encode(one).decode() if as_json else _line(one) for one in found.events]):
                break
            if found.events:
                continue
            if not follow:
                break
            time.sleep(POLL_S)
    if as_json and not follow:
        print_json(msgspec.json.encode({"events": gathered, "next": after}))
    return ExitCode.PASSED


def _write(lines: list[str]) -> bool:
    """Write lines and flush; False if the pipe is closed."""
    try:
        for line in lines:
            click.echo(escape_control_characters(line))
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # `say` redirects stdout to /dev/null, so that the last flush raises nothing.
        say()
        return False
    return True


def _line(event: "PlaygroundEvent") -> str:
    facts = " ".join(f"{name}={value}" for name, value in event.facts.items())
    return f"{event.seq:>6}  {event.at}  {event.type:16}  {event.key or '–'}  {facts}".rstrip()
