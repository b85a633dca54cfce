"""`meruit serve`: the HTTP service."""

import os

import click

from meruit.cli.output import (
    ExitCode,
    config_option,
    json_option,
    note,
    print_json,
    python_full_option,
    say,
    store_options,
)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--port", type=click.IntRange(0, 65535), default=8484, show_default=True, help="0 for any free one.")
@click.option(
    "--playgrounds/--no-playgrounds",
    default=True,
    show_default=True,
    help="Whether agents find systems here to act on; their MLLP and SFTP listen where the service does.",
)
@click.option(
    "--public-url", metavar="URL", help="Where others reach this service, for the addresses that agents are given."
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
    data: str | None,
    database_url: str | None,
    config: str | None,
    allow_python_full: bool,
    as_json: bool,
) -> int:
    """Serve verification over HTTP, with records that last.

    Without options: SQLite in ./meruit-data, on this machine only, no set-up. Ends on SIGTERM or Ctrl-C, after the
    requests it has begun.
    """
    # The web framework takes a moment to load.
    from meruit.api.build import build_app, build_service, host_of
    from meruit.api.logs import configure_logs
    from meruit.api.server import Stopping, is_loopback, reserve, run
    from meruit.app import open_store
    from meruit.config import Settings, location_of
    from meruit.model.errors import MeruitError
    from meruit.stores import keys

    settings = Settings.load(config)
    location = location_of(data, database_url)
    store = open_store(location, make=True)
    try:
        with store.database.reading() as connection:
            has_keys = keys.any_exists(connection)
        if not has_keys and not is_loopback(host):
            raise MeruitError(
                f"{host} can be reached from other machines, and there is no key yet: "
                "`meruit keys create NAME --role admin` makes one"
            )
        # Taken before the sandbox is tried, which takes a while.
        with reserve(host, port) as listener:
            note(f"records are in {location.shown}")
            if not has_keys:
                note("no keys yet: this machine may do everything; `meruit keys create NAME --role admin` changes that")
            note("trying the sandbox …")
            configure_logs()
            stopping = Stopping()
            hosting = host_of(
                *(store, settings),
                bind=host.strip("[]"),
                environ=os.environ,
                enabled=playgrounds,
            )
            service = build_service(settings, store, stopping, allow_python_full=allow_python_full, hosting=hosting)

            def ready(url: str) -> None:
                hosting.public_url = (public_url or url).rstrip("/")
                _tell(url, as_json=as_json)

            run(
                build_app(service),
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


def _tell(url: str, *, as_json: bool) -> None:
    """Where it listens, once it does."""
    if as_json:
        import msgspec

        print_json(msgspec.json.encode({"url": url}))
    else:
        say(f"serving on {url}")
