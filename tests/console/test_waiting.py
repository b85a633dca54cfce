"""What waits for a person: counted beside the menu, and again after each act."""

import re
from collections.abc import Iterator
from datetime import timedelta

import pytest
from tests.api.conftest import Deployment
from tests.console.browsing import fill, serve
from tests.console.conftest import SignIn

from meruit.app import build_engine
from meruit.config import Settings
from meruit.console.waiting import KEPT, NOTHING, WaitingCounts, count_waiting, forget_counts
from meruit.model.access import DEFAULT_TENANT, Role


def beside(page: str) -> dict[str, int]:
    """The numbers of the menu, by the address of their line."""
    lines = re.findall(r'<a href="(/[^"]*)"[^>]*>[^<]*<span class="count">([\d,]+)', page)
    return {path: int(number.replace(",", "")) for path, number in lines}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    location = fill(tmp_path_factory.mktemp("waiting") / "data")
    with serve(location, build_engine(Settings())) as (made, _):
        yield made


def test_the_menu_counts_what_waits(demo: Deployment) -> None:
    counted = count_waiting(demo.store, DEFAULT_TENANT, demo.store.surroundings.clock())
    assert (counted.holds, counted.warnings, counted.reviews, counted.runs, counted.letters) == (3, 2, 1, 1, 0)
    assert counted.total == 7
    page = demo.ask("GET", "/").text
    assert beside(page) == {"/": 7, "/holds": 3, "/usage": 2, "/reviews": counted.labels, "/agent-runs": 1}
    assert "7 things need you" in page


def test_counts_are_kept_for_a_moment_and_not_after_an_act(demo: Deployment) -> None:
    now = demo.store.surroundings.clock()
    forget_counts(demo.store, DEFAULT_TENANT)
    first = count_waiting(demo.store, DEFAULT_TENANT, now)
    assert count_waiting(demo.store, DEFAULT_TENANT, now + KEPT / 2) is first
    assert count_waiting(demo.store, DEFAULT_TENANT, now + KEPT) is not first
    again = count_waiting(demo.store, DEFAULT_TENANT, now)
    forget_counts(demo.store, DEFAULT_TENANT)
    assert count_waiting(demo.store, DEFAULT_TENANT, now) is not again
    # Old failures need nobody any more.
    assert count_waiting(demo.store, DEFAULT_TENANT, now + timedelta(days=8)).runs == 0


def test_an_agent_and_another_tenant_see_no_counts(console: Deployment, reader: SignIn) -> None:
    assert beside(reader(Role.AGENT, agent_id="a").get("/outcomes").text) == {}
    assert beside(reader(Role.AUDITOR, "empty").get("/").text) == {}
    assert WaitingCounts() == NOTHING
