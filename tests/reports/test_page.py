"""The page: harmless whatever runs are called, and readable with the network cut, on a phone and in the dark."""

import html
import re
import runpy
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from tests.pages.browsing import CHROMIUM, Screen, Visit, visit
from tests.reports.worlds import NOON, recorded, worlds

from meruit.model.metering import MeteredStep, UsageRecord
from meruit.model.task_run import ConfidenceInterval
from meruit.model.usage import Observation, Tokens, UsageStatus
from meruit.pages.drawing import Dot, Label, Stroke
from meruit.reports import charts
from meruit.reports import page as page_module
from meruit.reports.compare import Point
from meruit.reports.page import SECTIONS, render
from meruit.reports.report import Report, build_report

EXAMPLE = Path(__file__).parents[2] / "examples" / "usage-report" / "make.py"
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


@given(worlds())
def test_every_report_has_a_page_always_the_same(records: list[UsageRecord]) -> None:
    report = build_report(records)
    page = render(report)
    assert render(Report.from_json(report.to_json())) == page
    found = seen(page)
    ids = [value for name, value in found.attributes if name == "id" and not value.startswith("x")]
    assert ids == ["main", "answer", *SECTIONS, "contents"]


# What it shows.


def test_the_page_needs_nothing_from_elsewhere(page: str) -> None:
    assert "http" not in page.replace("http-equiv", "")
    assert "url(" not in page
    assert "@import" not in page
    assert "default-src 'none'" in page
    assert "unsafe-inline" not in page
    assert "<script" not in page
    assert " style=" not in page


def test_the_answer_comes_first_and_large(report: Report, page: str) -> None:
    header = page.partition("<section")[0]
    shown = html.unescape(header).replace("\u00a0", " ")
    assert re.search(r'<p class="answer"[^>]*>(.*?)</p>', shown, re.DOTALL).group(1) == report.answer  # type: ignore[union-attr]
    assert shown.index(report.question) < shown.index(report.answer) < shown.index(report.basis)


def test_the_page_says_whose_counts_these_are(report: Report) -> None:
    figure = r"<dt>{}</dt><dd class=\"big num\">([0-9,]+)"
    names = ("Counted by the provider", "Imported from files", "Not verified")
    for found in (report, hostile()):
        header = render(found).decode().partition("<section")[0]
        shown = [int(re.search(figure.format(name), header).group(1)) for name in names]  # type: ignore[union-attr]
        counted = [found.verified_by_provider, found.verified_by_file]
        assert shown == [*counted, found.runs - sum(counted)]
    assert (report.verified_by_provider, report.verified_by_file, report.runs) == (63, 0, 72)


@pytest.mark.parametrize("include_imported", [False, True])
def test_imported_counts_have_a_mark_of_their_own(include_imported: bool) -> None:
    records = [recorded("a", f"t{task}", imported=task < 2) for task in range(5)]
    found = build_report(records, include_imported=include_imported)
    assert (found.verified_by_provider, found.verified_by_file, found.verified) == (3, 2, 5 if include_imported else 3)
    header, _, body = render(found).decode().partition("<section")
    assert ("imported</span> counted: --include-imported" in header) is include_imported
    assert body.count('<td data-l="status"><span class="v pass">verified</span> <span class="tag">imported</span>') == (
        2 if include_imported else 4
    )


def test_the_page_has_the_facts_of_the_report(report: Report, page: str) -> None:
    for word in ("example-prices 2026.3", "at least 60 minutes", report.digest, html.escape(report.question)):
        assert word in page


def test_a_report_from_python_has_no_command_to_print(page: str) -> None:
    assert "build_report()" in page
    assert "<pre>" not in page


def test_a_long_command_is_printed_whole() -> None:
    command = f"meruit report build {'--framework x ' * 100}--from -"
    page = render(build_report([recorded("a")], command=command)).decode()
    assert f"<pre><code>{command}</code></pre>" in page
    assert "standard input" in page


def test_every_excluded_run_is_there_with_its_message(report: Report, page: str) -> None:
    assert len(report.excluded) == report.runs - report.verified > 0
    for one in report.excluded:
        assert f"<bdi>{one.run}</bdi>" in page
        assert one.message in html.unescape(page)


def test_links_lead_somewhere(page: str) -> None:
    targets = {*re.findall(r'href="#([^"]+)"', page)}
    assert targets <= {*re.findall(r'id="([^"]+)"', page)}
    assert any(one.startswith("x") for one in targets)


def test_the_example_has_a_withdrawal_and_every_kind_of_drawing(report: Report, page: str) -> None:
    assert report.timeline.withdrawn == 1
    assert "✕" in page
    assert len(re.findall(r'aria-label="[^"]*Pareto front: [^"]+"', page)) == 1
    assert len(re.findall(r'aria-label="Tokens per step of \w+: [^"]+"', page)) == len(report.agents)
    plots = len(report.comparisons) + len(report.timeline.rows)
    assert page.count('<td class="plot') > plots


def test_long_lists_are_cut_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "MOST_LISTED", 2)
    records = [
        recorded(agent, f"t{task}", status=UsageStatus.WARNING if task else UsageStatus.VERIFIED)
        for agent in "abc"
        for task in range(4)
    ]
    page = render(build_report(records)).decode()
    assert all(value in page for value in ("7 more runs", "2 more tasks"))


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
    across = [one.x for one in drawing.shapes if isinstance(one, (Dot, Label))]
    assert not [one for one in drawing.shapes if isinstance(one, Stroke) and one.style == "front"]
    assert all(0 <= one <= 100 for one in across)


# A browser.

DESKTOP, PHONE = Screen(1280, 800), Screen(390, 844)
SCREENS = (
    DESKTOP,
    PHONE,
    Screen(1280, 800, "dark"),
    Screen(390, 844, "dark"),
    Screen(360, 740),
    Screen(820, 1180),
    Screen(1040, 700),
    Screen(1920, 1080),
    # As wide as A4 with Chromium's margins.
    Screen(718, 1000, media="print"),
)
SCRIPTS = {
    "answer": "JSON.parse(JSON.stringify(document.getElementById('answer').getBoundingClientRect()))",
    "colours": "[getComputedStyle(document.documentElement).backgroundColor, getComputedStyle(document.body).color]",
}


@pytest.fixture(scope="module")
def visits(report: Report, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, Screen], Visit]:
    if CHROMIUM is None:
        pytest.skip("no chromium is installed")
    many = [recorded(f"agent {number}", f"t{task}", cost="0.1") for number in range(12) for task in range(6)]
    pages = {
        "report.html": render(report),
        "hostile.html": render(hostile()),
        "many.html": render(build_report(many)),
        "bare.html": render(build_report([recorded("a", "", success=None, status=UsageStatus.PENDING, attempts=0)])),
    }
    return visit(tmp_path_factory.mktemp("pages"), pages, SCREENS, SCRIPTS)


def test_nothing_is_off_screen_at_any_width(visits: dict[tuple[str, Screen], Visit]) -> None:
    assert {key: one.off_screen for key, one in visits.items() if one.off_screen} == {}
    assert {key: one.width for key, one in visits.items() if one.width > key[1].width} == {}


@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_answer_is_seen_without_scrolling(visits: dict[tuple[str, Screen], Visit], screen: Screen) -> None:
    for (name, one), found in visits.items():
        if one == screen:
            place = found.answers["answer"]
            assert 0 < place["top"] < place["bottom"] < screen.height, name
            assert place["height"] > 20


def test_the_page_keeps_the_basics_of_accessibility(visits: dict[tuple[str, Screen], Visit]) -> None:
    assert {key: one.audit for key, one in visits.items() if one.audit and key[1].media == "screen"} == {}


def test_a_browser_asks_for_the_page_alone_and_has_no_complaint(visits: dict[tuple[str, Screen], Visit]) -> None:
    assert {key: one.complaints for key, one in visits.items() if one.complaints} == {}
    assert {key: one.requests for key, one in visits.items() if one.requests != [key[0]]} == {}


def test_the_page_follows_the_theme_of_the_system(visits: dict[tuple[str, Screen], Visit]) -> None:
    light, dark = (visits["report.html", Screen(1280, 800, theme)].answers["colours"] for theme in ("light", "dark"))
    assert light == ["rgb(255, 255, 255)", "rgb(26, 27, 29)"]
    assert dark == ["rgb(19, 20, 23)", "rgb(236, 236, 239)"]
