"""Make the pictures of the console in docs/images: `python -m tests.console.screenshots`."""

import re
import tempfile
from pathlib import Path

from tests.console.browsing import CHROMIUM, serve
from tests.console.browsing import fill as fill_few

from meruit.app import build_engine
from meruit.config import Settings

FOLDER = Path(__file__).parents[2] / "docs" / "images"
DESK, PHONE = (1280, 900), (360, 740)


def main() -> None:
    """Fill a store, open each page, keep its picture."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder:
        location = fill_few(Path(folder) / "data")
        with serve(location, build_engine(Settings())) as (_, site), sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
            page = browser.new_page(viewport={"width": DESK[0], "height": DESK[1]})

            def shoot(name: str, address: str, *, dark: bool = False, phone: bool = False) -> None:
                width, height = PHONE if phone else DESK
                page.set_viewport_size({"width": width, "height": height})
                page.emulate_media(color_scheme="dark" if dark else "light")
                page.goto(site + address)
                page.screenshot(path=FOLDER / f"console-{name}.png")

            page.goto(f"{site}/evaluations")
            ids = re.findall(r'href="/evaluations/(ev_\w+)"', page.content())
            compare = f"/compare?e={ids[2]}&e={ids[1]}"
            page.goto(f"{site}/evaluations/{ids[2]}")
            case = re.search(r'href="(/outcomes/out_\w+)"', page.content())
            shoot("home", "/")
            shoot("evaluation", f"/evaluations/{ids[2]}")
            shoot("compare", compare)
            shoot("compare-dark", compare, dark=True)
            shoot("compare-phone", compare, phone=True)
            if case is not None:
                shoot("case", case[1])
            browser.close()


if __name__ == "__main__":
    main()
