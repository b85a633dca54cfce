"""Show the records of a store in a browser, read-only, on this machine."""

import webbrowser
from typing import TYPE_CHECKING

from meruit.cli.terminal import note, print_json, say

if TYPE_CHECKING:
    from meruit.store.store import Store

HOST = "127.0.0.1"


def view_records(store: "Store", *, tenant: str, port: int, open_browser: bool, as_json: bool) -> None:
    """Serve the console of a tenant until Ctrl-C; nothing is delivered, expired or changed meanwhile."""
    # The service takes a moment to load.
    import msgspec

    from meruit.api.app import assemble_service, build_app, build_hosting
    from meruit.api.logging import configure_logs
    from meruit.api.server import ShutdownSignal, bind_port, run
    from meruit.app import build_engine
    from meruit.config import Settings
    from meruit.console.app import build_pages
    from meruit.model.access import Caller, Role

    settings, stopping = Settings(), ShutdownSignal()
    with bind_port(HOST, port) as listener:
        configure_logs("error")
        hosting = build_hosting(store, settings, enabled=False)
        service = assemble_service(build_engine(settings), settings, store, stopping, hosting)
        pages = build_pages(store, visitor=Caller(tenant, Role.AUDITOR, ""))

        def ready(url: str) -> None:
            if as_json:
                print_json(msgspec.json.encode({"url": url}))
            else:
                say(f"showing {store.database.location.display_name} on {url}")
                note("read-only, for this machine; end it with Ctrl-C")
            if open_browser and not webbrowser.open(url):
                note("no browser was found; open the address yourself")

        app = build_app(service, pages, working=False)
        run(app, HOST, port, ready=ready, stopping=stopping, listener=listener, log_level="error")
