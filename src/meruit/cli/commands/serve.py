"""`meruit serve`: the HTTP service."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

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
    from socket import socket

    from meruit.api.processes.inheritance import WorkerProcess
    from meruit.api.server import ShutdownSignal
    from meruit.config import Settings
    from meruit.gate.runner.engine import AgentRoster
    from meruit.store.location import Location
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
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    metavar="N",
    help="Processes that serve the address together. More than one needs PostgreSQL, and serves no playgrounds.",
)
@click.option(
    "--as-worker", "inherited", hidden=True, metavar="JSON", help="What a worker inherits; its parent sets it."
)
@store_options
@config_option
@python_full_option
@json_option
@click.pass_context
def serve(  # noqa: PLR0913 - one an option
    context: click.Context,
    *,
    host: str,
    port: int,
    playgrounds: bool,
    public_url: str | None,
    agents: tuple[str, ...],
    workers: int,
    inherited: str | None,
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

    With --workers N on PostgreSQL, N processes accept requests on the same address. One that dies is replaced.
    """
    # Imported here so that --help is quick.
    from meruit.config import Settings, location_of

    settings = Settings.load(config)
    roster = _load_worker_agents(agents)
    location = location_of(data, database_url)
    options = ServeOptions(
        host=host,
        port=port,
        playgrounds=playgrounds,
        public_url=public_url,
        agents=agents,
        workers=workers,
        config=config,
        allow_python_full=allow_python_full,
        as_json=as_json,
    )
    if inherited is not None:
        _serve_as_worker(options, settings, location, roster, inherited)
    elif workers > 1:
        chosen = context.get_parameter_source("playgrounds") is click.core.ParameterSource.COMMANDLINE
        _check_several(options, location, playgrounds_chosen=playgrounds and chosen)
        _serve_by_several(options, location, roster)
    else:
        _serve_alone(options, settings, location, roster)
    return ExitCode.PASSED


class ServeOptions(NamedTuple):
    """The options of the command that all its ways of serving need."""

    host: str
    port: int
    playgrounds: bool
    public_url: str | None
    agents: tuple[str, ...]
    workers: int
    config: str | None
    allow_python_full: bool
    as_json: bool


def _check_several(options: ServeOptions, location: "Location", *, playgrounds_chosen: bool) -> None:
    """Refuse what several processes cannot do; raises MeruitError."""
    from meruit.errors import MeruitError

    asked = f"--workers {options.workers}"
    if os.name != "posix":
        raise MeruitError(f"{asked} is not possible on this system; leave --workers out, and start one service")
    if location.kind == "sqlite":
        raise MeruitError(
            f"{asked} needs PostgreSQL: a SQLite file has one writer at a time, so that more processes would only wait "
            "for each other; pass --database-url postgresql://…, or leave --workers out"
        )
    if playgrounds_chosen:
        raise MeruitError(
            f"{asked} serves no playgrounds: a playground runs in one process, and requests go to any of several; "
            "leave --playgrounds out, and start another `meruit serve` without --workers for them"
        )


def _serve_alone(
    options: ServeOptions, settings: "Settings", location: "Location", roster: "AgentRoster | None"
) -> None:
    """Serve in this process."""
    from meruit.api.server import bind_port
    from meruit.app import open_store

    store = open_store(location, make=True)
    try:
        has_keys = _check_store(store, options.host, roster)
        # The port is bound before the sandbox test, which takes a while.
        with bind_port(options.host, options.port) as listener:
            _note_begin(location, has_keys=has_keys)
            _serve_requests(
                options,
                settings,
                store,
                roster,
                listener,
                ready=lambda url: _print_address(url, as_json=options.as_json),
            )
    finally:
        store.close()


def _serve_by_several(options: ServeOptions, location: "Location", roster: "AgentRoster | None") -> None:
    """Serve in several other processes, and replace one that dies."""
    from functools import partial

    from meruit.api.logging import configure_logs
    from meruit.api.processes.supervisor import Supervisor, start_process
    from meruit.api.server import bind_port, url_of
    from meruit.app import open_store
    from meruit.config import DATABASE_VARIABLE

    # Tables and the signing key are created here, once, and not by all workers together.
    store = open_store(location, make=True)
    try:
        has_keys = _check_store(store, options.host, roster)
    finally:
        store.close()
    with bind_port(options.host, options.port) as listener:
        _note_begin(location, has_keys=has_keys)
        note(f"{options.workers} workers; playgrounds are not served")
        configure_logs()
        # Not on the command line, which other users of the machine can read.
        environ = {DATABASE_VARIABLE: location.url or ""}
        supervisor = Supervisor(
            options.workers,
            listener,
            lambda inherited: start_process(worker_command(options, location, inherited.index), inherited, environ),
        )
        supervisor.run(partial(_print_address, url_of(options.host, listener), as_json=options.as_json))


def worker_command(options: ServeOptions, location: "Location", index: int) -> list[str]:
    """The command of a worker, without what it inherits; only the first one runs agents too."""
    command = [sys.executable, "-m", "meruit", "serve", "--workers", str(options.workers), "--no-playgrounds"]
    command += ["--host", options.host, "--data", str(location.folder)]
    if options.public_url is not None:
        command += ["--public-url", options.public_url]
    if options.config is not None:
        command += ["--config", options.config]
    if options.allow_python_full:
        command.append("--allow-python-full")
    if index == 0:
        command += [part for one in options.agents for part in ("--agents", one)]
    return [*command, "--as-worker"]


def _serve_as_worker(
    options: ServeOptions,
    settings: "Settings",
    location: "Location",
    roster: "AgentRoster | None",
    inherited: str,
) -> None:
    """Serve in this process beside others, on a port that the parent bound."""
    from meruit.api.processes.inheritance import WorkerProcess
    from meruit.app import open_store

    process = WorkerProcess.take_over(inherited)
    store = open_store(location)
    try:
        store.require_admitted()
        store.require_known_log()
        _serve_requests(
            options,
            settings,
            store,
            roster,
            process.listener,
            ready=lambda _url: process.report_ready(),
            process=process,
        )
    finally:
        store.close()


def _check_store(store: "Store", host: str, roster: "AgentRoster | None") -> bool:
    """Check that the store may be served, and return whether it has keys; raises MeruitError."""
    from meruit.api.server import is_loopback
    from meruit.errors import MeruitError
    from meruit.store.access import keys

    store.require_admitted()
    store.require_known_log()
    _check_no_other_worker(store, roster)
    has_keys = keys.are_required(store)
    if not has_keys and not is_loopback(host):
        raise MeruitError(
            f"other machines can reach {host}, but no API key exists; run `meruit keys create NAME --role admin` first"
        )
    return has_keys


def _note_begin(location: "Location", *, has_keys: bool) -> None:
    note(f"records are in {location.display_name}")
    if not has_keys:
        note(
            "no API keys exist, so requests of this machine may do everything; "
            "`meruit keys create NAME --role admin` creates one"
        )
    note("testing the sandbox …")


def _serve_requests(
    options: ServeOptions,
    settings: "Settings",
    store: "Store",
    roster: "AgentRoster | None",
    listener: "socket",
    *,
    ready: Callable[[str], None],
    process: "WorkerProcess | None" = None,
) -> None:
    """Serve until a signal; calls `ready` with the URL once requests are accepted."""
    from meruit.api.app import build_app, build_hosting, build_service
    from meruit.api.logging import configure_logs
    from meruit.api.server import ShutdownSignal, run
    from meruit.console.app import build_pages

    configure_logs()
    stopping = ShutdownSignal()
    hosting = build_hosting(
        store,
        settings,
        bind=options.host.strip("[]"),
        environ=os.environ,
        enabled=options.playgrounds,
    )
    service = build_service(
        settings,
        store,
        stopping,
        allow_python_full=options.allow_python_full,
        hosting=hosting,
        process=process,
    )
    app = build_app(service, build_pages(store, process=process))
    if process is not None:
        process.wait_for_start()
        process.watch_parent(stopping.begin)

    def begin(url: str) -> None:
        hosting.public_url = (options.public_url or url).rstrip("/")
        ready(url)

    with _run_worker(store, roster, stopping):
        run(
            app,
            options.host,
            options.port,
            ready=begin,
            stopping=stopping,
            listener=listener,
            trusted_proxies=settings.service.trusted_proxies,
        )


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
