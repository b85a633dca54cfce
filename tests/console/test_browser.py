"""The console as people use it: in a browser, with mouse and keyboard, in both themes and on a phone."""

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from tests.api.conftest import Deployment
from tests.api.test_auth import agent_run_ready_for, usage_run_ready_for
from tests.console.browsing import (
    CHROMIUM,
    DOWNLOADS,
    PATTERNS,
    Walk,
    fill,
    serve,
    template_of,
    wait_for_figures,
    walk,
)
from tests.console.conftest import Reader, cookie_of, sign_in
from tests.sampling import sample

from meruit.console.background import Computing
from meruit.evaluations.evaluation import Case
from meruit.evaluations.reader import Evaluations
from meruit.evaluations.run import run_cases
from meruit.evaluations.service import Evaluator
from meruit.events.records import AddWebhook
from meruit.model.access import DEFAULT_TENANT, Role
from meruit.review.service import ReviewRequest, Reviews
from meruit.verify.engine import VerificationEngine

if TYPE_CHECKING:
    from playwright._impl._api_structures import SetCookieParam
    from playwright.sync_api import BrowserContext, Page

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no browser")
HOSTILE = "<img src=x onerror=alert(1)>\u202e\"'><script>alert(2)</script>{{7*7}}"
FOR_AGENTS = {"/statement"}
"""Pages that only an agent's key opens."""
FILES = {"/openapi.json", *(f"/outcomes/{{outcome_id:str}}{one}" for one in DOWNLOADS)}
IDS = re.compile(r"\b(?:out|con|ev|run|brn|trn|rev|wrk)_[0-9a-f]{30,}")
NAMES = ("support-replies", "heron-", "clinic-desk", "flood report", "town-council", "run-leaky", "stilt", HOSTILE[:20])


@dataclass(frozen=True, slots=True)
class Site:
    """A service with the demo's records, and the addresses of pages with hostile text in every field."""

    deployment: Deployment
    address: str
    hostile: list[str]


def plant_hostile(made: Deployment, key: str) -> Iterator[str]:
    """Records of every kind with hostile text in each field, one of them a megabyte long; their addresses."""
    evaluator = Evaluator(made.service.registrar, DEFAULT_TENANT)
    rule = {"id": HOSTILE[:60], "metric": "word_count", "metric_type": "count", "comparison": "lte", "threshold": 3}
    compiled = evaluator.compile({"criteria": [rule]})
    started = evaluator.start("<script>alert(3)</script>", compiled, tags={"<b>tag</b>": "<i>value</i>"})
    cases = [
        Case(
            id=f"<b>{number}</b>",
            input={"message": HOSTILE, "reference": HOSTILE[::-1]},
            output={"text": HOSTILE + "x" * (1_000_000 if number else 10), "<u>key</u>": HOSTILE},
            tags={"<b>tag</b>": HOSTILE[:28]},
        )
        for number in range(3)
    ]
    run_cases(evaluator, started, compiled, iter(cases))
    yield f"/evaluations/{started.id}"
    for case in Evaluations(made.store, DEFAULT_TENANT).cases(started, limit=2):
        yield f"/outcomes/{case.outcome_id}"
    reviews = Reviews(made.store, DEFAULT_TENANT)
    wanted = ReviewRequest("<i>review", started.id, None, question=HOSTILE, instructions=HOSTILE, random=2, seed=1)
    review = reviews.create(wanted, by="test")
    reviews.label(review, 1, labeller="<i>person", choice="yes", note=HOSTILE, by="test")
    yield from (f"/reviews/{review.id}", f"/reviews/{review.id}/label")
    yield f"/usage/{usage_run_ready_for(made, DEFAULT_TENANT, 'acknowledge', lambda _: HOSTILE)}"
    yield f"/agent-runs/{agent_run_ready_for(made, DEFAULT_TENANT, 'resume', lambda _: HOSTILE)}"
    work = {"title": HOSTILE.replace("\u202e", ""), "consumer_id": "=1+1<b>", "terms": {"cpc_rate": "0.05"}}
    offered = made.ask("POST", "/v1/work", key=key, json=work).json()["id"]
    asked = {"work_id": offered, "agent_id": "<i>robot"}
    yield f"/contracts/{made.ask('POST', '/v1/contracts', key=key, json=asked).json()['id']}"
    made.key(Role.AGENT, name=HOSTILE)
    address = "http://127.0.0.1:9/<b>hook</b>?" + "x" * 1_000
    hook = AddWebhook(DEFAULT_TENANT, address, frozenset({"outcome.erased"}), made.store.surroundings.entropy)
    yield f"/webhooks/{made.store.recorder.write(hook).webhook.id}"
    yield "/search?q=%3Cscript%3Ealert(4)%3C/script%3E"
    yield "/compare/preferences?" + "&".join(
        f"e={one.id}" for one in Evaluations(made.store, DEFAULT_TENANT).page(limit=2)
    )


@pytest.fixture(scope="module")
def site(engine: VerificationEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A service with the demo's records, hostile ones, and keys."""
    with serve(fill(tmp_path_factory.mktemp("demo") / "data"), engine) as (made, address):
        yield Site(made, address, [*plant_hostile(made, made.key(Role.ADMIN))])


@pytest.fixture(scope="module")
def context(site: Site) -> "Iterator[BrowserContext]":
    """One browser for all, signed in as an admin."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        made = browser.new_context(viewport={"width": 1280, "height": 900})
        made.set_default_timeout(60_000)
        made.add_cookies([_session(site, site.deployment.key(Role.ADMIN))])
        yield made
        browser.close()


@pytest.fixture(scope="module")
def walked(context: "BrowserContext", site: Site) -> Walk:
    """Every kind of page, seen in every way."""
    page = context.new_page()
    ids = [one.id for one in Evaluations(site.deployment.store, DEFAULT_TENANT).page(limit=4)][1:]
    compared = "/compare?" + "&".join(f"e={one}" for one in ids)
    found = walk(page, site.address, [*site.hostile, compared])
    page.close()
    found.add(_walk_computing(context, site, [compared, f"/evaluations/{ids[0]}", *COMPUTED]), "computing")
    found.add(_walk_as_agent(context, site), "agent")
    return found


COMPUTED = ("/outcomes?sort=score", "/usage?sort=-cost")


def _walk_computing(context: "BrowserContext", site: Site, addresses: Sequence[str]) -> Walk:
    """Pages whose figures are not ready."""

    # Any: what figures are asked by.
    async def compute_on(*_asked: Any, **_more: Any) -> Computing:
        return Computing(3, 10, 5)

    figures = site.deployment.app._app.service.state["console"].figures
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "ask", compute_on)
        page = context.new_page()
        found = walk(page, site.address, addresses, follow=False)
        assert page.locator("[data-computing]").count() == 1
        page.close()
    return found


def _walk_as_agent(context: "BrowserContext", site: Site) -> Walk:
    """What an agent sees of its own work."""
    assert context.browser is not None
    key = site.deployment.key(Role.AGENT, DEFAULT_TENANT, agent_id="honest")
    with closing(context.browser.new_context(viewport={"width": 1280, "height": 900})) as own:
        own.set_default_timeout(60_000)
        own.add_cookies([_session(site, key)])
        return walk(own.new_page(), site.address)


def _session(site: Site, key: str) -> "SetCookieParam":
    name, _, session = cookie_of(sign_in(site.deployment, key)).partition("=")
    return {"name": name, "value": session, "url": site.address}


@pytest.fixture
def page(context: "BrowserContext", site: Site) -> "Iterator[Page]":
    """A new page at home."""
    made = context.new_page()
    made.goto(site.address)
    yield made
    made.close()


def test_every_page_is_a_link_away(walked: Walk) -> None:
    seen = {template_of(one.address) for one in walked.pages.values()}
    assert set(PATTERNS.values()) - seen == FILES
    assert {f"agent {one}" for one in FOR_AGENTS} <= {*walked.pages}


def test_no_page_scrolls_sideways(walked: Walk) -> None:
    assert {name: seen.scrolls for name, seen in walked.pages.items() if seen.scrolls} == {}


def test_no_page_breaks_a_rule_of_accessibility(walked: Walk) -> None:
    assert {name: seen.violations for name, seen in walked.pages.items() if seen.violations} == {}


def test_every_act_is_reached_and_seen_with_the_keyboard(walked: Walk) -> None:
    assert {name: seen.keyboard for name, seen in walked.pages.items() if seen.keyboard} == {}


def test_every_page_can_be_printed(walked: Walk) -> None:
    assert {name: seen.paper for name, seen in walked.pages.items() if seen.paper} == {}


def test_no_request_leaves_the_origin_and_nothing_is_executed(walked: Walk) -> None:
    assert (walked.elsewhere, walked.complaints) == ([], [])


def test_every_link_leads_to_a_page(walked: Walk, site: Site) -> None:
    admin = Reader(site.deployment, cookie_of(sign_in(site.deployment, site.deployment.key(Role.ADMIN))))
    # Hostile records name contracts that do not exist.
    known = sorted(link for link, page in walked.links.items() if page not in site.hostile)
    chosen = sample(known, 6, name="links")
    replies = {link: admin.get(link).status_code for link in chosen}
    assert {(link, walked.links[link]): status for link, status in replies.items() if status >= 400} == {}


def test_roles_and_tenants_see_only_what_is_theirs(walked: Walk, site: Site) -> None:
    def sign(role: Role, tenant: str, agent: str | None = None) -> Reader:
        return Reader(
            site.deployment, cookie_of(sign_in(site.deployment, site.deployment.key(role, tenant, agent_id=agent)))
        )

    stranger, auditor = sign(Role.ADMIN, "another"), sign(Role.AUDITOR, DEFAULT_TENANT)
    agent = sign(Role.AGENT, DEFAULT_TENANT, "honest")
    for seen in walked.pages.values():
        for one, allowed in ((stranger, ()), (agent, ("flood report",))):
            reply = one.get(seen.address)
            main = reply.text.partition("<main")[2]
            assert reply.status_code in (200, 302, 303, 400, 403, 404, 409), seen.address
            known = (*allowed, *(name for name in NAMES if name in seen.address))
            assert [name for name in NAMES if name in main and name not in known] == [], seen.address
            # The reference has examples of its own.
            if one is stranger and not seen.address.startswith("/reference"):
                assert {*IDS.findall(main)} <= {*IDS.findall(seen.address)}, seen.address
        forms = re.findall(r'<form[^>]*method="post" action="([^"]*)"', auditor.get(seen.address).text)
        assert set(forms) <= {"/sign-out", "/audit/check"}, seen.address


# The seven questions, each answered by clicking as the person would who asks it.


def answer_of(page: "Page") -> str:
    """The sentence that a page begins with."""
    return str(page.locator(".answer").inner_text())


def click(page: "Page", link: str, *, at: str = "main") -> str:
    """Follow a link, and read the sentence of the page that it leads to."""
    before = page.url
    # A line of the menu may have a number beside its word.
    name = re.compile(rf"^{re.escape(link)}( [\d,]+ waits? for a person)?$")
    page.locator(at).get_by_role("link", name=name).first.click()
    page.wait_for_url(lambda url: url != before)
    page.wait_for_load_state()
    return answer_of(page)


def test_an_engineer_sees_which_cases_broke(page: "Page") -> None:
    click(page, "Evaluations", at="nav")
    for agent in ("heron-2", "heron-3"):
        page.get_by_role("checkbox", name=f"support-replies, {agent}").check()
    page.get_by_role("button", name="Compare the selected").click()
    page.wait_for_url(re.compile("/compare"))
    wait_for_figures(page)
    assert re.search(r"than A by|No clear difference", answer_of(page))
    assert page.get_by_role("table", name="Difference of each criterion").get_by_role("row").count() >= 5
    page.get_by_role("button", name=re.compile("^broken|^fixed")).first.click()
    page.locator("table[data-rows] tbody tr a").first.click()
    page.wait_for_url(re.compile("case="))
    assert page.locator(".diff .work").inner_text()
    page.get_by_role("link", name="Open the case").first.click()
    page.wait_for_url(re.compile("/outcomes/out_"))
    assert page.locator(".crit").count() == 4


def test_a_developer_sees_what_was_handed_in_and_why_it_was_refused(page: "Page") -> None:
    click(page, "Agent runs", at="nav")
    page.get_by_role("button", name=re.compile("^failed")).click()
    page.wait_for_url(re.compile("status=failed"))
    page.locator("table[data-rows] tbody tr a").first.click()
    page.wait_for_url(re.compile("/agent-runs/run_"))
    assert "3 rejections" in answer_of(page)
    assert page.get_by_role("table", name="What was handed in").get_by_text("low_water").count() == 3
    assert page.locator(".tl ins").count() == page.locator(".tl del").count() == 2


def test_an_operator_sees_what_waits_and_decides_it(page: "Page") -> None:
    assert "need" in answer_of(page)
    page.locator("tr", has_text="Hold").get_by_role("link", name=re.compile("^Decide")).click()
    page.wait_for_url(re.compile("/contracts/con_"))
    assert "0.18 USD is held" in answer_of(page)
    page.get_by_role("link", name="Release", exact=True).click()
    dialog = page.locator("#dialog[open]")
    # A second look: balances now and after, and the amount on the button.
    assert dialog.get_by_role("row").filter(has_text="agent:cheating").inner_text().split()[1:] == ["0.00", "0.153"]
    assert "0.18 USD" in dialog.get_by_role("button", name="Release").inner_text()
    dialog.get_by_role("link", name="Cancel").click()
    assert page.locator("#dialog[open]").count() == 0


def test_finance_sees_what_is_owed_to_whom_and_why(page: "Page") -> None:
    click(page, "Ledger", at="nav")
    click(page, "agent:honest")
    assert re.search(r"[\d.]+ USD", answer_of(page))
    page.locator("table tbody tr a").first.click()
    page.wait_for_url(re.compile("/contracts/con_"))
    assert "was paid" in answer_of(page)
    lines = page.locator("table.bill tbody tr").all_inner_texts()
    assert any("cpc" in one and "completed" in one for one in lines)
    click(page, "Holds", at="nav")
    assert page.locator("table[data-rows] tbody tr").count() >= 3


def test_a_benchmark_author_sees_what_separates_agents_and_what_a_run_changed(page: "Page") -> None:
    click(page, "Benchmarks", at="nav")
    page.locator("main").get_by_role("link", name=re.compile("clinic-desk")).first.click()
    page.wait_for_url(re.compile("/benchmarks/clinic-desk"))
    assert "leads" in answer_of(page)
    assert "separates agents" in answer_of(page)
    click(page, "tern-1")
    page.get_by_role("link", name="fail", exact=True).first.click()
    page.wait_for_url(re.compile("/task-runs/trn_"))
    assert "changed" in answer_of(page)
    assert page.locator(".crit, .ev").count()


def test_who_pays_for_models_sees_which_runs_do_not_match(page: "Page") -> None:
    click(page, "Usage", at="nav")
    assert "not match" in answer_of(page)
    page.get_by_role("button", name=re.compile("^warning")).click()
    page.wait_for_url(re.compile("status=warning"))
    assert "differ" in click(page, "run-leaky") or "counts 4,000" in answer_of(page)
    assert page.get_by_role("heading", name="What would change it").is_visible()
    assert page.locator("main svg[role=img]").count()


def test_a_labeller_gets_the_next_case(page: "Page") -> None:
    from playwright.sync_api import expect

    click(page, "Review", at="nav")
    click(page, "replies of heron-3")
    click(page, "Label the next case")
    done = page.locator("progress").get_attribute("value") or ""
    assert page.locator(".work").count() >= 2
    page.keyboard.press("1")
    expect(page.locator("progress")).not_to_have_attribute("value", done, timeout=60_000)
    page.keyboard.press("u")
    page.wait_for_url(re.compile(r"case=\d+"))
    assert page.get_by_role("heading", name="Change a label").is_visible()


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
    page.wait_for_selector("[data-key=j]")
    page.keyboard.press("j")
    page.wait_for_url(lambda url: url != first)
    page.wait_for_selector("[data-key=k]")
    page.keyboard.press("k")
    page.wait_for_url(first)
    page.keyboard.press("?")
    assert page.locator("#keys").is_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"


def test_tab_leads_through_a_page_in_its_order(page: "Page") -> None:
    acts = "[...document.querySelectorAll('a[href], button, input:not([type=hidden]), summary')]"
    seen = []
    for _ in range(24):
        page.keyboard.press("Tab")
        seen.append(page.evaluate(f"{acts}.filter(at => at.checkVisibility()).indexOf(document.activeElement)"))
    assert seen == [*range(24)]


def test_a_filter_is_part_of_the_address_and_back_works(page: "Page", site: Site) -> None:
    page.goto(f"{site.address}/outcomes")
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
