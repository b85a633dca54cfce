"""`meruit serve`: the HTTP service."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from meruit.cli.terminal import (
    ExitCode,
    config_option,
    json_option,
    note,
    print_json,
    python_full_option,
    say,
    store_options,
)

if TYPE_CHECKING:
    from meruit.api.server import ShutdownSignal
    from meruit.gate.runner.engine import AgentRoster
    from meruit.store.store import Store


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8484,
    show_default=True,
    metavar="PORT",
    help="Port to listen on; 0 for any free port.",
)
@click.option(
    "--playgrounds/--no-playgrounds",
    default=True,
    show_default=True,
    help="Whether to serve playgrounds too (default: yes); MLLP and SFTP listen on the same address.",
)
@click.option(
    "--public-url",
    metavar="URL",
    help="URL of this service as agents reach it (default: the address that it listens on).",
)
@click.option(
    "--agents",
    metavar="MODULE:AGENTS",
    multiple=True,
    help="Also run a worker for these agents, as `meruit worker` does; may be repeated.",
)
@store_options
@config_option
@python_full_option
@json_option
def serve(  # noqa: PLR0913 - one an option
    *,
    host: str,
    port: int,
    playgrounds: bool,
    public_url: str | None,
    agents: tuple[str, ...],
    data: str | None,
    database_url: str | None,
    config: str | None,
    allow_python_full: bool,
    as_json: bool,
) -> int:
    """Serve the HTTP API, and the console at `/` for a browser.

    Without options, the service uses SQLite in ./meruit-data and listens on this machine only. On SIGTERM or Ctrl-C it
    completes open requests, then ends.

    Agents run in workers, never inside a request. With --agents, this process runs a worker too.
    """
    # Imported here so that --help is quick.
    from meruit.api.app import build_app, build_hosting, build_service
    from meruit.api.logging import configure_logs
    from meruit.api.server import ShutdownSignal, bind_port, is_loopback, run
    from meruit.app import open_store
    from meruit.config import Settings, location_of
    from meruit.console.app import build_pages
    from meruit.errors import MeruitError
    from meruit.store import keys

    settings = Settings.load(config)
    roster = _load_worker_agents(agents)
    location = location_of(data, database_url)
    store = open_store(location, make=True)
    try:
        store.require_admitted()
        _check_no_other_worker(store, roster)
        with store.database.reading() as connection:
            has_keys = keys.any_exists(connection)
        if not has_keys and not is_loopback(host):
            raise MeruitError(
                f"other machines can reach {host}, but no API key exists; "
                "run `meruit keys create NAME --role admin` first"
            )
        # The port is bound before the sandbox test, which takes a while.
        with bind_port(host, port) as listener:
            note(f"records are in {location.display_name}")
            if not has_keys:
                note(
                    "no API keys exist, so requests of this machine may do everything; "
                    "`meruit keys create NAME --role admin` creates one"
                )
            note("testing the sandbox …")
            configure_logs()
            stopping = ShutdownSignal()
            hosting = build_hosting(
                *(store, settings),
                bind=host.strip("[]"),
                environ=os.environ,
                enabled=playgrounds,
            )
            service = build_service(settings, store, stopping, allow_python_full=allow_python_full, hosting=hosting)

            def ready(url: str) -> None:
                hosting.public_url = (public_url or url).rstrip("/")
                _print_address(url, as_json=as_json)

            with _run_worker(store, roster, stopping):
                run(
                    build_app(service, build_pages(store)),
                    host,
                    port,
                    ready=ready,
                    stopping=stopping,
                    listener=listener,
                    trusted_proxies=settings.service.trusted_proxies,
                )
    finally:
        store.close()
    return ExitCode.PASSED


def _load_worker_agents(agents: tuple[str, ...]) -> "AgentRoster | None":
    """Agents of the worker in this process; None if it runs no worker."""
    if not agents:
        return None
    from meruit.cli.shared.load_agents import load_roster

    return load_roster(agents)


def _check_no_other_worker(store: "Store", roster: "AgentRoster | None") -> None:
    """Raise WorkerRefused before the service listens, if another worker has the SQLite file."""
    if roster is not None:
        from meruit.cli.shared.load_agents import check_no_other_worker

        check_no_other_worker(store)


@contextmanager
def _run_worker(store: "Store", roster: "AgentRoster | None", stopping: "ShutdownSignal") -> Iterator[None]:
    """Run a worker in this process; if it fails, the service ends too."""
    if roster is None:
        yield
        return
    from meruit.cli.shared.load_agents import WorkerThread

    note(f"working for {', '.join(roster.names)}")
    worker = WorkerThread(store, roster, failed=stopping.begin)
    worker.start()
    try:
        yield
    finally:
        worker.stop()


def _print_address(url: str, *, as_json: bool) -> None:
    """Print the URL once the service listens."""
    if as_json:
        import msgspec

        print_json(msgspec.json.encode({"url": url}))
    else:
        say(f"serving on {url}")
