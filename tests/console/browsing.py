"""The console in a real browser: one filled service, walked link by link."""

import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.api.conftest import PATIENCE_S, Deployment

from meruit.api.server import bind_port, run
from meruit.cli.demo.fill import Amounts, fill_store
from meruit.console.app import build_pages, find_handlers
from meruit.console.page import PAGE
from meruit.store.location import Location
from meruit.verify.engine import VerificationEngine

if TYPE_CHECKING:
    from playwright.sync_api import Page

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


@dataclass(frozen=True, slots=True)
class Seen:
    """What a browser found on one page."""

    address: str
    scrolls: dict[str, int]
    """By how many pixels the page is wider than each screen."""
    violations: list[str]
    """Rules of accessibility that it breaks, in both themes."""
    keyboard: list[str]
    """What cannot be reached or seen with the keyboard alone."""
    paper: list[str]
    """What is wrong when it is printed from the dark theme."""


@dataclass(frozen=True, slots=True)
class Walk:
    """What browsers found on all pages."""

    pages: dict[str, Seen] = field(default_factory=dict)
    """By template; pages that were asked for beside those by their address."""
    complaints: list[str] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)
    """Every address that a page leads to, and that page."""
    elsewhere: list[str] = field(default_factory=list)
    """Requests that left the origin."""

    def add(self, other: "Walk", kind: str) -> None:
        """Add the pages of another walk, whose names begin with its kind."""
        self.pages.update((f"{kind} {name}", seen) for name, seen in other.pages.items())
        self.complaints.extend(other.complaints)
        self.elsewhere.extend(other.elsewhere)


SCREENS = {"phone": 360, "twice as large": 640, "desk": 1280, "wide": 1920}
"""Widths of windows; a desk of 1,280 pixels at 200 % has room for 640."""
PAPER = 794
"""An A4 page, in pixels of CSS."""
FOCUS = """() => {
  const acts = [...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary")]
    .filter(at => at.checkVisibility() && !at.disabled);
  const name = at => at.outerHTML.slice(0, 120);
  const wrong = acts.filter(at => at.tabIndex < 0).map(at => `not reached: ${name(at)}`);
  wrong.push(...acts.filter(at => at.tabIndex > 0).map(at => `out of order: ${name(at)}`));
  if (!acts[0].matches(".skip")) wrong.push(`first: ${name(acts[0])}`);
  for (const at of acts) {
    at.focus({ focusVisible: true, preventScroll: true });
    const style = getComputedStyle(at);
    if (document.activeElement !== at) wrong.push(`takes no focus: ${name(at)}`);
    else if (style.outlineStyle === "none" || parseFloat(style.outlineWidth) < 2) wrong.push(`no ring: ${name(at)}`);
    at.blur();
  }
  return wrong;
}"""
PRINTED = """() => {
  const light = text => { const [r, g, b] = text.match(/[\\d.]+/g).map(Number); return 0.3 * r + 0.6 * g + 0.1 * b; };
  const wrong = [];
  if (document.querySelector("nav").checkVisibility()) wrong.push("the menu is printed");
  const buttons = [...document.querySelectorAll("main .btn, main button")].filter(at => at.checkVisibility());
  wrong.push(...buttons.map(at => `printed: ${at.outerHTML.slice(0, 120)}`));
  for (const at of document.querySelectorAll("h1, .answer, td, main p")) {
    if (at.checkVisibility() && at.innerText.trim() && light(getComputedStyle(at).color) > 150)
      wrong.push(`too light for paper: ${at.outerHTML.slice(0, 120)}`);
  }
  const over = document.documentElement.scrollWidth - innerWidth;
  if (over > 0) wrong.push(`${over} pixels wider than the paper`);
  return wrong;
}"""


def walk(page: "Page", site: str, more: Sequence[str] = (), *, follow: bool = True) -> Walk:
    """Open one page of each kind that links lead to, and those that are given; look at each in every way.

    Without `follow`, only those that are given are opened, and as they are: a page may go on computing.
    """
    found = Walk()
    _listen(page, site, found)
    waiting = ["/", *more] if follow else [*more]
    known = {*waiting}
    while waiting and len(found.pages) < MAX_PAGES:
        address = waiting.pop(0)
        template = address if address in more else template_of(address)
        if template is None or template in found.pages or address.partition("?")[0].endswith(DOWNLOADS):
            continue
        page.goto(site + address, wait_until="load")
        if follow:
            wait_for_figures(page)
        links: list[str] = page.evaluate(LINKS)
        found.pages[template] = look(page, address)
        found.links.update(dict.fromkeys(links, address))
        fresh = [one for one in links if one not in known and follow]
        known.update(fresh)
        waiting += fresh
    return found


def wait_for_figures(page: "Page") -> None:
    """Wait until the page has filled itself: what is not computed yet is asked for again."""
    from playwright.sync_api import expect

    # Not wait_for_function: from its second look on, the page's policy forbids what it evaluates.
    expect(page.locator("main [data-computing]")).to_have_count(0, timeout=60_000)


def look(page: "Page", address: str) -> Seen:
    """Look at the page that is open on all screens, in both themes, with the keyboard and on paper."""
    violations = _violations(page)
    keyboard: list[str] = page.evaluate(FOCUS)
    page.emulate_media(color_scheme="dark")
    # Only colours depend on the theme.
    violations += _violations(page, "{runOnly: ['color-contrast']}")
    page.emulate_media(media="print")
    page.set_viewport_size({"width": PAPER, "height": 900})
    paper: list[str] = page.evaluate(PRINTED)
    page.emulate_media(media="screen", color_scheme="light")
    scrolls: dict[str, int] = {}
    for name, width in SCREENS.items():
        page.set_viewport_size({"width": width, "height": 900})
        over: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if over > 0:
            scrolls[name] = over
    page.set_viewport_size({"width": 1280, "height": 900})
    return Seen(address, scrolls, violations, keyboard, paper)


def _listen(page: "Page", site: str, found: Walk) -> None:
    page.on("console", lambda message: found.complaints.append(f"{page.url}: {message.text}"))
    page.on("pageerror", lambda error: found.complaints.append(f"{page.url}: {error}"))
    page.on("dialog", lambda dialog: found.complaints.append(f"{page.url}: dialog {dialog.message}"))
    page.on("request", lambda request: found.elsewhere.extend([request.url][request.url.startswith(site) :]))


# Any: what axe answers is JSON.
def _violations(page: "Page", options: str = "{}") -> list[str]:
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE)
    answer: Any = page.evaluate(f"axe.run(document, {{resultTypes: ['violations'], ...{options}}})")
    return [f"{one['id']}: {node['html'][:160]}" for one in answer["violations"] for node in one["nodes"][:3]]
