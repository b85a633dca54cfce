"""The console as people use it: in a browser, with mouse and keyboard, in both themes and on a phone."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.console.browsing import CHROMIUM, SCREENS, Walk, fill, serve, walk

from meruit.evaluations.evaluation import Case
from meruit.evaluations.run import run_cases
from meruit.evaluations.service import Evaluator
from meruit.model.access import DEFAULT_TENANT
from meruit.verify.engine import VerificationEngine

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no browser")
HOSTILE = "<img src=x onerror=alert(1)>\u202e\"'><script>alert(2)</script>{{7*7}}"
OURS = {"/", "/evaluations", "/evaluations/{evaluation_id:str}", "/compare", "/outcomes", "/outcomes/{outcome_id:str}"}


@pytest.fixture(scope="module")
def site(engine: VerificationEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a service with the demo's records and a hostile evaluation."""
    with serve(fill(tmp_path_factory.mktemp("demo") / "data"), engine) as (made, address):
        evaluator = Evaluator(made.service.registrar, DEFAULT_TENANT)
        rule = {"id": HOSTILE[:60], "metric": "word_count", "metric_type": "count", "comparison": "lte", "threshold": 3}
        compiled = evaluator.compile({"criteria": [rule]})
        started = evaluator.start("<script>alert(3)</script>", compiled, tags={"<b>tag</b>": "<i>value</i>"})
        huge = {"text": HOSTILE + "x" * 200_000, "<u>key</u>": HOSTILE}
        cases = [Case(id=f"<b>{number}</b>", input={"message": HOSTILE}, output=huge) for number in range(3)]
        run_cases(evaluator, started, compiled, iter(cases))
        yield address


@pytest.fixture(scope="module")
def browser(site: str) -> "Iterator[Browser]":
    """One browser for all."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield made
        made.close()


@pytest.fixture(scope="module")
def walked(browser: "Browser", site: str) -> Walk:
    """Every kind of page, and every screen."""
    return walk(browser, site)


@pytest.fixture
def page(browser: "Browser", site: str) -> "Iterator[Page]":
    """A new page at home."""
    made = browser.new_page(viewport={"width": 1280, "height": 900})
    made.set_default_timeout(60_000)
    made.goto(site)
    yield made
    made.close()


def test_every_page_is_a_link_away(walked: Walk) -> None:
    assert {template for template, _ in walked.pages} >= OURS


def test_no_page_scrolls_sideways(walked: Walk) -> None:
    assert [seen for seen in walked.pages.values() if seen.scrolls > seen.width] == []
    assert {screen for _, screen in walked.pages} == set(SCREENS)


def test_no_page_breaks_a_rule_of_accessibility(walked: Walk) -> None:
    assert {key: seen.violations for key, seen in walked.pages.items() if seen.violations} == {}


def test_no_request_leaves_the_origin_and_nothing_is_executed(walked: Walk) -> None:
    assert (walked.elsewhere, walked.complaints) == ([], [])


def test_an_engineer_sees_which_cases_broke(page: "Page") -> None:
    page.get_by_role("link", name="Evaluations").click()
    for agent in ("heron-2", "heron-3"):
        page.get_by_role("checkbox", name=f"support-replies, {agent}").check()
    page.get_by_role("button", name="Compare the selected").click()
    assert re.search(r"than A by|No clear difference", page.locator(".answer").inner_text())
    assert page.get_by_role("table", name="Difference of each criterion").get_by_role("row").count() >= 5
    page.get_by_role("button", name=re.compile("^broken|^fixed")).first.click()
    page.locator("table[data-rows] tbody tr a").first.click()
    page.wait_for_url(re.compile("case="))
    assert page.locator(".diff .work").inner_text()
    page.get_by_role("link", name="Open the case").first.click()
    page.wait_for_url(re.compile("/outcomes/out_"))
    assert page.locator(".crit").count() == 4


def test_an_operator_sees_what_waits(page: "Page") -> None:
    assert "need" in page.locator(".answer").inner_text()
    assert page.get_by_role("link", name="Decide").count() >= 2


def test_the_keyboard_is_enough(page: "Page") -> None:
    page.keyboard.press("g")
    page.keyboard.press("e")
    page.wait_for_url(re.compile("/evaluations$"))
    page.wait_for_selector("table[data-rows]")
    for key in ("j", "j", "j", "o"):
        page.keyboard.press(key)
    page.wait_for_url(re.compile("/evaluations/ev_"))
    page.wait_for_selector(".crumbs")
    page.keyboard.press("j")
    page.keyboard.press("o")
    page.wait_for_url(re.compile("/outcomes/out_"))
    first = page.url
    page.wait_for_selector("[data-key=']']")
    page.keyboard.press("]")
    page.wait_for_url(lambda url: url != first)
    page.keyboard.press("?")
    assert page.locator("#keys").is_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"


def test_a_filter_is_part_of_the_address_and_back_works(page: "Page", site: str) -> None:
    page.goto(f"{site}/outcomes")
    page.get_by_role("button", name="fail", exact=True).click()
    page.wait_for_url(re.compile("verdict=fail"))
    page.wait_for_selector(".chip[aria-pressed=true]")
    marks = page.locator("tbody .v").all_inner_texts()
    assert set(marks) == {"fail"}
    page.go_back()
    page.wait_for_url(re.compile("/outcomes$"))


def test_a_page_says_that_it_is_live(page: "Page") -> None:
    page.wait_for_selector("[data-live-mark]:not([hidden])", timeout=60_000)


def test_the_theme_is_kept(page: "Page") -> None:
    page.get_by_role("button", name="Theme").click()
    page.reload()
    assert page.locator("html").get_attribute("data-theme") == "dark"
