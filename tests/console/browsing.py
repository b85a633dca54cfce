"""The console in a real browser: one filled service, walked link by link."""

import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from tests.api.conftest import PATIENCE_S, Deployment
from tests.sampling import sample

from meruit.api.server import bind_port, run
from meruit.cli.demo.fill import Amounts, fill_store
from meruit.console.app import build_pages, find_handlers
from meruit.console.page import PAGE
from meruit.store.location import Location
from meruit.verify.engine import VerificationEngine

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium")
AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
FEW = Amounts(cases=60, outcomes_a_day=3, attempts=1, labels=12)
MAX_PAGES = 80
DOWNLOADS = ("/receipt", "/bundle", "/work")
LINKS = """
[...document.querySelectorAll('a[href]')]
  .filter(link => !link.hasAttribute('download') && link.origin === location.origin)
  .map(link => link.pathname + link.search)
"""
PATTERNS = {
    re.compile(re.sub(r"\\\{[^}]*\\\}", "[^/]+", re.escape(info.path)) + "$"): info.path
    for one in find_handlers()
    if (info := one.opt.get(PAGE)) is not None
}


def template_of(address: str) -> str | None:
    """The page that an address leads to; None where it is no page."""
    path = urlsplit(address).path
    # Fixed paths first: /keys/new is not a key.
    return next(
        (PATTERNS[one] for one in sorted(PATTERNS, key=lambda one: "[^/]+" in one.pattern) if one.match(path)), None
    )


def fill(folder: Path) -> Location:
    """The demo's records, fewer of them."""
    stories = files("meruit.cli.demo") / "stories"
    location = Location(folder)
    fill_store(location, lambda story, name: (stories / story / name).read_text("utf-8"), datetime.now(UTC), FEW)
    return location


@contextmanager
def serve(location: Location, engine: VerificationEngine) -> Iterator[tuple[Deployment, str]]:
    """A service with its console on a port, as a browser reaches it."""
    made = Deployment(location, engine, living=False, pages=build_pages)
    ready, addresses = threading.Event(), list[str]()

    def note(url: str) -> None:
        addresses.append(url)
        ready.set()

    listener = bind_port("127.0.0.1", 0)
    server = threading.Thread(
        target=run,
        args=(made.app, "127.0.0.1", 0),
        kwargs={"ready": note, "stopping": made.service.stopping, "listener": listener, "log_level": "error"},
        daemon=True,
    )
    server.start()
    assert ready.wait(PATIENCE_S)
    try:
        yield made, addresses[0]
    finally:
        made.service.stopping.begin()
        server.join(PATIENCE_S)
        made.close()


class Seen(NamedTuple):
    """What a browser found on one page."""

    address: str
    width: int
    scrolls: int
    violations: list[str]


class Walk(NamedTuple):
    """What a browser found on all pages."""

    pages: dict[tuple[str, str], Seen]
    """By template and screen."""
    complaints: list[str]
    elsewhere: list[str]
    """Requests that left the origin."""


SCREENS = {"phone": (360, "light"), "light": (1280, "light"), "dark": (1280, "dark"), "wide": (1920, "light")}


def walk(browser: "Browser", site: str) -> Walk:
    """Open one page of each kind that links lead to, and a sample of them on the other screens."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    found = Walk({}, [], [])
    _listen(page, site, found)
    waiting, chosen, known = ["/"], dict[str, str](), {"/"}
    while waiting and len(chosen) < MAX_PAGES:
        address = waiting.pop(0)
        template = template_of(address)
        if template is None or template in chosen or address.partition("?")[0].endswith(DOWNLOADS):
            continue
        page.goto(site + address, wait_until="load")
        chosen[template] = address
        links: list[str] = page.evaluate(LINKS)
        fresh = [one for one in links if one not in known]
        known.update(fresh)
        waiting += fresh
    for name, (width, theme) in SCREENS.items():
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        for template in sample(list(chosen), 1 if name == "light" else 3, name=name):
            address = chosen[template]
            page.goto(site + address, wait_until="load")
            violations = _violations(page) if name in ("light", "dark") else []
            scrolls: int = page.evaluate("document.documentElement.scrollWidth")
            found.pages[template, name] = Seen(address, width, scrolls, violations)
    page.close()
    return found


def _listen(page: "Page", site: str, found: Walk) -> None:
    page.on("console", lambda message: found.complaints.append(f"{page.url}: {message.text}"))
    page.on("pageerror", lambda error: found.complaints.append(f"{page.url}: {error}"))
    page.on("dialog", lambda dialog: found.complaints.append(f"{page.url}: dialog {dialog.message}"))
    page.on("request", lambda request: found.elsewhere.extend([request.url][request.url.startswith(site) :]))


# Any: what axe answers is JSON.
def _violations(page: "Page") -> list[str]:
    page.evaluate(AXE)
    answer: Any = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [f"{one['id']}: {node['html'][:160]}" for one in answer["violations"] for node in one["nodes"][:3]]
