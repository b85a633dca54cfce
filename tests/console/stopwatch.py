"""Answer the seven questions of the console with a stopwatch: `python -m tests.console.stopwatch`.

Each walk begins at the home page and only uses what is on the screen: a link that is not visible without scrolling is
counted as one scroll more. A person reads as well, so that READING_S is added for each page.
"""

import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.console.browsing import CHROMIUM, fill, serve

from meruit.app import build_engine
from meruit.config import Settings

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

READING_S = 4.0
"""What a newcomer takes to read the first sentence of a page and to find the next click."""
WINDOW = {"width": 1280, "height": 900}


@dataclass(slots=True)
class Hand:
    """A hand with a mouse, which counts what it does."""

    page: "Page"
    clicks: int = 0
    scrolls: int = 0

    def click(self, name: str, role: str = "link", at: str = "body") -> None:
        """Click what has this name, given as a pattern."""
        self.press(self.page.locator(at).get_by_role(role, name=re.compile(name)).first)  # type: ignore[arg-type]

    def press(self, target: "Locator") -> None:
        """Click an element; scroll to it first where it is not on the screen."""
        target.wait_for(state="visible")
        box = target.bounding_box()
        if box is None or box["y"] < 0 or box["y"] + box["height"] > WINDOW["height"]:
            self.scrolls += 1
        before = self.page.url
        target.click()
        self.clicks += 1
        # Every click of these walks leads to another address.
        self.page.wait_for_url(lambda url: url != before)
        self.page.wait_for_load_state()
        self.page.wait_for_timeout(150)

    def read(self, pattern: str, where: str = ".answer") -> str:
        """The text that answers; it must be on the screen."""
        found = self.page.locator(where, has_text=re.compile(pattern)).first
        found.wait_for(state="visible")
        box = found.bounding_box()
        if box is None or box["y"] > WINDOW["height"]:
            self.scrolls += 1
        return " ".join(found.inner_text().split())


def compare(hand: Hand) -> str:
    """Is B better than A, on what, and which cases broke?"""
    hand.click("^Compare$", at="nav")
    hand.click("^Compare$", "button", at="main")
    answer = hand.read("than A by|No clear difference")
    hand.press(hand.page.locator("#cases table tbody a").first)
    return answer


def develop(hand: Hand) -> str:
    """What did my agent hand in, why was it refused, what happened next?"""
    hand.click("^Agent runs", at="nav")
    hand.click("^failed", "button")
    hand.page.wait_for_url(re.compile("status=failed"))
    hand.press(hand.page.locator("table[data-rows] tbody a").first)
    return hand.read("rejections")


def operate(hand: Hand) -> str:
    """Is anything wrong, who needs me?"""
    return hand.read("need")


def pay(hand: Hand) -> str:
    """What is owed to whom and why; what must I decide?"""
    hand.click("^Holds", at="nav")
    hand.press(hand.page.locator("table[data-rows] tbody a").first)
    return hand.read("contract|held")


def benchmark(hand: Hand) -> str:
    """Which tasks separate agents; what exactly did this run change?"""
    hand.click("^Benchmarks$", at="nav")
    hand.click("^clinic-desk", at="main")
    separating = hand.read("separates agents")
    hand.click("^tern-1", at="main")
    hand.click("^fail$", at="main")
    return f"{separating} {hand.read('changed')}"


def bill(hand: Hand) -> str:
    """Which runs match the bill, which do not, since when?"""
    hand.click("^Usage", at="nav")
    hand.read("not match")
    hand.press(hand.page.locator("table[data-rows] tbody a", has_text="run-leaky").first)
    return hand.read("counts")


def label(hand: Hand) -> str:
    """Next case, please"""
    hand.press(hand.page.locator("tr", has_text="Review").get_by_role("link", name=re.compile("^Label")).first)
    hand.page.wait_for_selector("progress")
    return hand.read(".", where="h1")


QUESTIONS: tuple[Callable[[Hand], str], ...] = (compare, develop, operate, pay, benchmark, bill, label)


def main() -> None:
    """Answer each question in a fresh window, and print what it took."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder:
        location = fill(Path(folder) / "data")
        with serve(location, build_engine(Settings())) as (_, site), sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
            for ask in QUESTIONS:
                page = browser.new_page(viewport=WINDOW)  # type: ignore[arg-type]
                page.set_default_timeout(60_000)
                hand, start = Hand(page), time.monotonic()
                page.goto(site)
                answer = ask(hand)
                waited = time.monotonic() - start
                guess = waited + READING_S * (hand.clicks + 1)
                print(f"{ask.__doc__}\n  {hand.clicks} clicks, {hand.scrolls} scrolls, {waited:.1f} s of waiting, "
                      f"about {guess:.0f} s with reading\n  {answer}")  # fmt: skip
                page.close()
            browser.close()


if __name__ == "__main__":
    main()
