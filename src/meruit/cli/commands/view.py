"""`meruit view`: the records of a folder in a browser."""

import click

from meruit.cli.terminal import ExitCode, json_option, store_options, tenant_option


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="PORT",
    help="Port to listen on (default: any free port).",
)
@click.option("--open/--no-open", "open_browser", default=True, help="Whether to open the browser (default: yes).")
@tenant_option
@store_options
@json_option
def view(
    *, port: int, open_browser: bool, tenant: str, data: str | None, database_url: str | None, as_json: bool
) -> int:
    """Show what is recorded, in a browser.

    The pages are read-only and only this machine can open them; no key is needed. To act, or to let others in, run
    `meruit serve`.
    """
    # Imported here so that --help is quick.
    from contextlib import closing

    from meruit.app import open_store
    from meruit.cli.shared.viewing import view_records
    from meruit.config import location_of

    with closing(open_store(location_of(data, database_url))) as store:
        view_records(store, tenant=tenant, port=port, open_browser=open_browser, as_json=as_json)
    return ExitCode.PASSED
