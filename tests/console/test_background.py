"""Figures beside the request: a page never waits for them, each is computed once, and a failure is told once."""

import asyncio
import re
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.api.conftest import Deployment
from tests.console.conftest import SignIn

from meruit.cli.demo.support_replies import CRITERIA, make_cases
from meruit.console import background
from meruit.console.background import BackgroundFigures, Computing, Progress
from meruit.console.pages import compare
from meruit.errors import ApiProblem
from meruit.evaluations.evaluation import EvaluationRecord
from meruit.evaluations.reader import Evaluations
from meruit.evaluations.run import run_cases
from meruit.evaluations.service import Evaluator
from meruit.model.access import Role
from meruit.review.results import CorrectedRate, ReviewResults
from meruit.review.service import ReviewRequest, Reviews


class Slow:
    """Figures that are ready when the test says so."""

    def __init__(self) -> None:
        self.go, self.calls = threading.Event(), 0

    def __call__(self, progress: Progress) -> str:
        self.calls += 1
        progress.advance(3)
        self.go.wait()
        return "figures"


def test_a_page_sees_how_far_figures_are_and_then_the_figures() -> None:
    async def walk() -> None:
        figures, slow = BackgroundFigures(patience_s=0.0), Slow()
        waiting = [await figures.ask("key", slow, total=10) for _ in range(3)]
        assert all(isinstance(one, Computing) and one.total == 10 for one in waiting)
        file = asyncio.ensure_future(figures.wait_for("key", slow, total=10))
        slow.go.set()
        assert await file == "figures"
        assert await figures.ask("key", slow) == "figures"
        assert slow.calls == 1

    asyncio.run(walk())


def test_progress_never_passes_its_total() -> None:
    progress = Progress(total=4)
    for _ in range(3):
        progress.advance(2)
    assert progress.done == 4


def test_a_failure_is_raised_and_the_next_page_tries_again() -> None:
    def fail(_: Progress) -> str:
        raise ValueError("no")

    async def walk() -> None:
        figures = BackgroundFigures()
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                await figures.wait_for("key", fail)
        assert await figures.wait_for("key", lambda _: 0) == 0
        # Figures that are nothing are figures too.
        assert await figures.ask("key", lambda _: 1) == 0

    asyncio.run(walk())


def test_changing_figures_are_shown_for_a_while_if_they_took_long() -> None:
    async def walk(took_s: float) -> list[int]:
        now, made = [0.0], list[int]()

        def compute(_: Progress) -> int:
            now[0] += took_s
            made.append(len(made))
            return len(made)

        figures, seen = BackgroundFigures(clock=lambda: now[0]), list[int]()
        for later in (0.0, 4.0, 2.0, 14.0):
            now[0] += later
            seen.append(await figures.wait_for("key", compute, changing=True))
        return seen

    # Quick ones are always new; others for five seconds, or for three times as long as they took.
    assert [asyncio.run(walk(took)) for took in (0.1, 1.0, 6.0)] == [[1, 2, 3, 4], [1, 1, 2, 3], [1, 1, 1, 2]]


def test_who_goes_away_does_not_end_the_work_of_others() -> None:
    async def walk() -> None:
        figures, slow = BackgroundFigures(), Slow()
        gone = asyncio.ensure_future(figures.wait_for("key", slow))
        await asyncio.sleep(0)
        gone.cancel()
        slow.go.set()
        assert await figures.wait_for("key", slow) == "figures"
        assert slow.calls == 1

    asyncio.run(walk())


def test_too_much_at_once_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "MAX_RUNNING", 2)

    async def walk() -> None:
        figures, slow = BackgroundFigures(patience_s=0.0), Slow()
        for key in ("a", "b"):
            assert isinstance(await figures.ask(key, slow), Computing)
        with pytest.raises(ApiProblem) as refused:
            await figures.ask("c", slow)
        assert refused.value.status == 503
        slow.go.set()
        assert await figures.wait_for("a", slow) == "figures"

    asyncio.run(walk())


@pytest.fixture
def grouped(console: Deployment) -> list[EvaluationRecord]:
    """Two evaluations whose cases have groups: they are compared case by case."""
    evaluator, made = Evaluator(console.service.registrar, "grouped"), []
    compiled = evaluator.compile(CRITERIA)
    for agent in ("heron-2", "heron-3"):
        started = evaluator.start(f"{agent} {len(Evaluations(console.store, 'grouped').page())}", compiled)
        cases = [msgspec.structs.replace(one, group=f"group {at % 5}") for at, one in enumerate(make_cases(agent, 20))]
        run_cases(evaluator, started, compiled, cases)
        made.append(evaluator.find(started.id))
    return made


def hold(monkeypatch: pytest.MonkeyPatch, console: Deployment, name: str) -> Callable[[], None]:
    """Let a reading of evaluations wait until the function that is given back is called."""
    go, whole = threading.Event(), getattr(Evaluations, name)

    def wait(*values: Any, **named: Any) -> Any:
        go.wait()
        return whole(*values, **named)

    monkeypatch.setattr(Evaluations, name, wait)
    monkeypatch.setattr(console.app._app.service.state["console"].figures, "patience_s", 0.0)
    return go.set


def test_a_compared_case_is_shown_before_its_place_is_known(
    console: Deployment, reader: SignIn, grouped: list[EvaluationRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, cases = reader(Role.AUDITOR, "grouped"), Evaluations(console.store, "grouped").cases(grouped[0])
    address = f"/compare?e={grouped[0].id}&e={grouped[1].id}&case={next(cases).case_id}"
    release = hold(monkeypatch, console, "changes")
    try:
        waiting = one.get(address).text
        assert ("data-computing" in waiting, "Open the case" in waiting) == (True, True)
    finally:
        release()
    monkeypatch.setattr(console.app._app.service.state["console"].figures, "patience_s", 60.0)
    ready = one.get(address).text
    assert ("data-computing" in ready, "Open the case" in ready) == (False, True)
    assert re.search(r"1 of \d+</span></h1>|data-key", ready)
    assert one.get(address + "x").status_code == 404
    # Large evaluations are not walked case by case.
    monkeypatch.setattr(compare, "MAX_PAIRED", 3)
    alone = one.get(address).text
    assert ("Open the case" in alone, 'data-key="j"' in alone) == (True, False)


@pytest.mark.parametrize(
    ("held", "path"), [("compare_several", "/compare?e={0}&e={1}"), ("figures", "/evaluations/{0}")]
)
def test_a_page_says_that_it_is_computing(
    console: Deployment,
    reader: SignIn,
    grouped: list[EvaluationRecord],
    monkeypatch: pytest.MonkeyPatch,
    held: str,
    path: str,
) -> None:
    one, address = reader(Role.AUDITOR, "grouped"), path.format(*(each.id for each in grouped))
    release = hold(monkeypatch, console, held)
    try:
        waiting = one.get(address)
        assert (waiting.status_code, "data-computing" in waiting.text) == (200, True)
    finally:
        release()
    monkeypatch.setattr(console.app._app.service.state["console"].figures, "patience_s", 60.0)
    ready = one.get(address).text
    assert ("data-computing" in ready, "By criterion" in ready or "Difference in points" in ready) == (False, True)


def test_corrected_rates_are_computed_once_for_each_state_of_the_labels(
    console: Deployment, reader: SignIn, grouped: list[EvaluationRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    whole = ReviewResults.corrected_rates

    def note(own: ReviewResults, found: EvaluationRecord) -> list[CorrectedRate]:
        asked.append(found.id)
        return whole(own, found)

    monkeypatch.setattr(ReviewResults, "corrected_rates", note)
    monkeypatch.setattr(console.app._app.service.state["console"].figures, "patience_s", 60.0)
    one, reviews = reader(Role.AUDITOR, "grouped"), Reviews(console.store, "grouped")
    address = f"/evaluations/{grouped[0].id}"
    for _ in range(3):
        one.get(address)
    assert len(asked) == 1
    review = reviews.create(ReviewRequest(f"of {grouped[0].id}", grouped[0].id, random=3, seed=3), by="test")
    one.get(address)
    for choice in ("yes", "no"):
        # A label that replaces another counts as well.
        reviews.label(review, 1, labeller="zoe", choice=choice, by="test")
        one.get(address)
        one.get(address)
    assert len(asked) == 4
