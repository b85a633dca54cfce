"""The page: harmless whatever runs are called, and readable with the network cut, on a phone and in the dark."""

import asyncio
import contextlib
import re
import runpy
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reports.worlds import NOON, recorded, worlds

from meruit.model.metering import MeteredStep, UsageRecord
from meruit.model.task_run import ConfidenceInterval
from meruit.model.usage import Observation, Tokens, UsageStatus
from meruit.reports import charts, sections
from meruit.reports.compare import Point
from meruit.reports.markup import LONGEST, Markup, escape, join_markup, tag
from meruit.reports.number_format import format_money, format_number, format_p, format_places, format_share
from meruit.reports.page import PARTS, render
from meruit.reports.report import Report, build_report

EXAMPLE = Path(__file__).parents[2] / "examples" / "usage-report" / "make.py"
CHROMIUM = shutil.which("chromium")
HOSTILE = [
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(2)>",
    "</style></svg></title><script>alert(3)</script>",
    "]]><!--",
    "javascript:alert(4)",
    "\u202egnirts detrevni",
    "שלום <b>",
    "👩‍👩‍👧‍👦🇨🇭",
    "a\x00b\nc\x1b[31m",
    "x" * 200,
    "&lt;&amp;",
]


class Seen(HTMLParser):
    """What a browser would build."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in ("meta", "link", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def seen(page: bytes) -> Seen:
    found = Seen()
    found.feed(page.decode())
    found.close()
    assert found.open == []
    return found


def hostile() -> Report:
    records = [
        recorded(
            name,
            task,
            place,
            run_id=f"{name[:80]}{place}{task[:80]}",
            message=name * 40,
            status=UsageStatus.VERIFIED if place % 3 else UsageStatus.WARNING,
            cost=str(1 + place % 4),
            score=place % 10 / 10,
            steps=[MeteredStep(name, tokens=Tokens(100, 10, 1, 20, 10, 3))],
        )
        for place, (name, task) in enumerate((name, task) for name in HOSTILE for task in HOSTILE[:6])
    ]
    return build_report(records, question=HOSTILE[0], command=HOSTILE[1])


def example() -> Report:
    """The example's runs, as its script makes them."""
    made = runpy.run_path(str(EXAMPLE))
    records, attempts = made["world"]()
    return build_report(records, attempts)


@pytest.fixture(scope="module")
def report() -> Report:
    return example()


@pytest.fixture(scope="module")
def page(report: Report) -> str:
    return render(report).decode()


# Harmless.


def test_no_name_becomes_markup() -> None:
    found = seen(render(hostile()))
    assert not {"script", "img", "iframe", "object", "embed", "form", "input", "b", "link", "a:href"} & {*found.tags}
    assert not [name for name, _ in found.attributes if name.startswith("on") or name in ("src", "xlink:href")]
    assert all(value.startswith("#") for name, value in found.attributes if name == "href")
    assert HOSTILE[0] in "".join(found.text)


def test_no_control_character_reaches_the_page() -> None:
    text = render(hostile()).decode()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", text)
    assert r"a\x00b\nc\x1b[31m" in text


@given(st.text(max_size=300))
def test_any_text_comes_out_as_text(text: str) -> None:
    whole = str(tag("p", text, title=text))
    found = seen(whole.encode())
    assert found.tags == ["p"]
    assert {name for name, _ in found.attributes} == {"title"}
    assert "".join(found.text) == dict(found.attributes)["title"]


def test_markup_is_not_escaped_twice_and_nothing_is_nothing() -> None:
    assert tag("p", tag("b", "&"), None, ["x", None]) == "<p><b>&amp;</b>x</p>"
    assert join_markup("a", Markup("<br>")) == "a<br>"
    assert tag("i", class_="x", width=3.0, height=2.25, id=None) == '<i class="x" width="3" height="2.2"></i>'
    assert len(escape("y" * 5_000)) == LONGEST


@given(worlds())
def test_every_report_has_a_page_always_the_same(records: list[UsageRecord]) -> None:
    report = build_report(records)
    page = render(report)
    assert render(Report.from_json(report.to_json())) == page
    found = seen(page)
    assert [value for name, value in found.attributes if name == "id" and not value.startswith("x")] == [
        name for name, _, _ in PARTS
    ]


# What it shows.


def test_the_page_needs_nothing_from_elsewhere(page: str) -> None:
    assert "http" not in page.replace("http-equiv", "")
    assert "url(" not in page
    assert "@import" not in page
    assert "default-src 'none'" in page
    assert "<script" not in page


def test_the_header_has_the_facts_of_the_report(report: Report, page: str) -> None:
    for word in (
        "Population",
        "Excluded",
        "Prices",
        "Policy",
        "Digest",
        "Made again by",
        report.digest,
        report.question,
    ):
        assert word in page
    assert "example-prices 2026.3" in page
    assert "at least 60 minutes" in page


def test_every_excluded_run_is_there_with_its_message(report: Report, page: str) -> None:
    assert len(report.excluded) == report.runs - report.verified > 0
    for one in report.excluded:
        assert f"<bdi>{one.run}</bdi>" in page
        assert escape(one.message) in page


def test_links_lead_somewhere(page: str) -> None:
    targets = {*re.findall(r'href="#([^"]+)"', page)}
    assert targets <= {*re.findall(r'id="([^"]+)"', page)}
    assert any(one.startswith("x") for one in targets)


def test_drawings_and_tables_can_be_read_aloud(page: str) -> None:
    drawings = re.findall(r"<svg[^>]*>(.{0,9})", page)
    assert len(drawings) >= 10
    assert all(one.startswith("<title>") for one in drawings)
    assert page.count("<desc>") == len(drawings)
    assert page.count("<caption>") == page.count("<table>")
    assert '<html lang="en">' in page


def test_the_example_has_a_withdrawal_and_every_kind_of_drawing(report: Report, page: str) -> None:
    assert report.timeline.withdrawn == 1
    assert "✕" in page
    for title in (
        "Pareto front",
        "Paired differences",
        "Tokens per step",
        "Observations of runs",
        "From local to billed",
    ):
        assert title in page


def test_long_lists_are_cut_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "MOST_LISTED", 2)
    monkeypatch.setattr(charts, "MOST_PAIRS", 1)
    records = [
        recorded(agent, f"t{task}", status=UsageStatus.WARNING if task else UsageStatus.VERIFIED)
        for agent in "abc"
        for task in range(4)
    ]
    page = render(build_report(records)).decode()
    assert all(value in page for value in ("7 more runs", "2 more tasks", "2 more pairs"))


def test_a_chart_without_data_is_replaced_by_a_note() -> None:
    report = build_report([recorded("a", "", cost=None, tokens=None, status=UsageStatus.PENDING, attempts=0)])
    assert (report.comparisons, report.tasks) == ((), 0)
    page = render(report).decode()
    assert page.count("Not drawn") == 3
    assert "<figure>" not in page


def test_steps_with_unknown_tokens_are_counted() -> None:
    steps = [MeteredStep("plan", tokens=Tokens(5, 5)), MeteredStep("act")]
    looks = [Observation("1", NOON)]
    record = recorded("a", steps=steps)
    assert b": a: 1 steps" in render(build_report([record], lambda _run_id: looks))


@pytest.mark.parametrize("cost", [1e-9, 0.3, 1.0, 5e7])
def test_one_agent_is_a_front_of_its_own(cost: float) -> None:
    point = Point("a", cost, ConfidenceInterval(cost / 30, cost * 1e6), 0.5, None, on_front=True)
    drawing = charts.cost_against_value([point], "score", "USD")
    assert "polyline" not in drawing
    assert "log scale" in drawing
    assert "nan" not in drawing


# Words.


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, "–"),
        (1_234_567, "1,234,567"),
        (0.0421, "0.0421"),
        (1234.5, "1,234"),
        (0.00004, "4.00e-05"),
        (0.0, "0.0000"),
    ],
)
def test_numbers_have_the_digits_that_mean_something(value: float | None, told: str) -> None:
    assert format_number(value) == told


def test_words_for_what_is_unknown_and_what_is_tiny() -> None:
    assert (format_share(None), format_money(None, "USD"), format_p(None), format_places(None)) == ("–",) * 4
    assert (format_p(1e-12), format_p(0.0049), format_p(0.2)) == ("< 0.0001", "0.0049", "0.200")
    assert (format_places(ConfidenceInterval(1, 3)), format_places(ConfidenceInterval(2, 2))) == ("1 to 3", "2")


# A browser.


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")
def test_a_browser_without_a_network_shows_it_on_any_screen(report: Report, tmp_path: Path) -> None:
    from playwright.async_api import Browser, async_playwright

    (tmp_path / "report.html").write_bytes(render(report))
    (tmp_path / "hostile.html").write_bytes(render(hostile()))
    complaints: list[str] = []
    asked: list[str] = []

    # Any: what a page's script says.
    async def look(browser: Browser, name: str, script: str, **options: Any) -> Any:
        context = await browser.new_context(offline=True, **options)
        page = await context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on("request", lambda request: asked.append(request.url))
        await page.goto((tmp_path / name).as_uri())
        found = await page.evaluate(script)
        await context.close()
        return found

    async def run() -> None:
        async with async_playwright() as driver, contextlib.AsyncExitStack() as closing:
            browser = await driver.chromium.launch(
                executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
            )
            closing.push_async_callback(browser.close)
            phone = {"width": 390, "height": 844}
            for name in ("report.html", "hostile.html"):
                width = await look(browser, name, "document.documentElement.scrollWidth", viewport=phone)
                assert width == 390
            small = await look(
                browser,
                "report.html",
                "Math.min(...[...document.querySelectorAll('text')].map(one => one.getBoundingClientRect().height))",
                viewport=phone,
            )
            assert small > 9
            colours = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
            assert await look(browser, "report.html", colours, color_scheme="dark") == [
                "rgb(20, 23, 27)",
                "rgb(236, 238, 241)",
            ]
            assert await look(browser, "report.html", colours, color_scheme="light") == [
                "rgb(255, 255, 255)",
                "rgb(22, 25, 29)",
            ]

    asyncio.run(run())
    assert complaints == []
    assert {url.rpartition("/")[2] for url in asked} == {"report.html", "hostile.html"}
    assert len(asked) == 5
