"""Make the pictures of the console in docs/images: `python -m tests.console.screenshots`."""

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.console.browsing import CHROMIUM, fill, serve

from meruit.app import build_engine
from meruit.config import Settings

if TYPE_CHECKING:
    from playwright.sync_api import Page

FOLDER = Path(__file__).parents[2] / "docs" / "images"
DESK, PHONE = (1280, 900), (360, 740)
FOUND = {
    "case": ("/evaluations/{evaluation}", r"/outcomes/out_\w+"),
    "contract": ("/holds", r"/contracts/con_\w+"),
    "agent-run": ("/agent-runs?status=failed", r"/agent-runs/run_\w+"),
    "benchmark-run": ("/benchmarks/clinic-desk", r"/benchmark-runs/brn_\w+"),
    "task-run": ("{benchmark-run}", r"/task-runs/trn_\w+"),
    "review": ("/reviews", r"/reviews/rev_\w+"),
}
"""Pages of one record: where a link to it is, and what the link is."""
FIXED = {
    "home": "/",
    "evaluations": "/evaluations",
    "holds": "/holds",
    "ledger": "/ledger",
    "usage": "/usage",
    "usage-run": "/usage/run-leaky",
    "leaderboard": "/benchmarks/clinic-desk",
    "audit": "/audit",
    "tenants": "/tenants",
    "reference": "/reference/evaluations",
}
DARK, ON_PHONE = ("compare", "task-run"), ("compare", "home")


def main() -> None:
    """Fill a store, open each page, keep its picture."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder:
        location = fill(Path(folder) / "data")
        with serve(location, build_engine(Settings())) as (_, site), sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
            page = browser.new_page(viewport={"width": DESK[0], "height": DESK[1]})
            page.set_default_timeout(120_000)
            for name, address in find_pages(page, site).items():
                shoot(page, site + address, name)
                if name in DARK:
                    shoot(page, site + address, f"{name}-dark", dark=True)
                if name in ON_PHONE:
                    shoot(page, site + address, f"{name}-phone", phone=True)
            browser.close()


def find_pages(page: "Page", site: str) -> dict[str, str]:
    """The address of each picture, by its name."""
    page.goto(f"{site}/evaluations")
    ids = re.findall(r'href="/evaluations/(ev_\w+)"', page.content())
    found = {**FIXED, "evaluation": f"/evaluations/{ids[2]}", "compare": f"/compare?e={ids[2]}&e={ids[1]}"}
    for name, (place, link) in FOUND.items():
        page.goto(site + place.format_map({**found, "evaluation": ids[2]}))
        named = re.search(rf'href="({link})"', page.content())
        if named is None:
            raise SystemExit(f"{place} has no link to {name}")
        found[name] = named[1]
    found["review-case"] = f"{found['review']}/label"
    return found


def shoot(page: "Page", address: str, name: str, *, dark: bool = False, phone: bool = False) -> None:
    """Keep the picture of one page."""
    width, height = PHONE if phone else DESK
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme="dark" if dark else "light")
    page.goto(address)
    page.screenshot(path=FOLDER / f"console-{name}.png")


if __name__ == "__main__":
    main()
