"""One key that asks for much leaves threads, and rounds of the event loop, to others."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.api.conftest import CRITERIA, PATIENCE_S, WORK, Deploy, Deployment, new_tenant

from meruit.api.db_threads import MAX_THREADS, MOST_OF_ONE_KEY
from meruit.api.file_stream import MAX_OPEN_EXPORTS
from meruit.api.routes import evaluations
from meruit.console.background import THREADS
from meruit.model.access import Role
from meruit.outcomes.service import SMALL_WORK, Registrar
from meruit.store.database import MAX_READERS
from meruit.verify import engine, measure


class Held:
    """A function that begins, and ends when it is let go."""

    def __init__(self) -> None:
        self.running = threading.Semaphore(0)
        self.may_end = threading.Event()

    def __call__(self, *_: Any, **__: Any) -> Any:
        self.running.release()
        assert self.may_end.wait(PATIENCE_S)
        raise RuntimeError("let go")


def hold_reads(patch: pytest.MonkeyPatch, held: Held) -> str:
    patch.setattr("meruit.outcomes.records.page_criteria", held)
    return "/v1/criteria"


def hold_slow_work(patch: pytest.MonkeyPatch, held: Held) -> str:
    patch.setattr(evaluations, "_reader", held)
    return "/v1/evaluations/any"


@pytest.mark.parametrize("hold", [hold_reads, hold_slow_work])
def test_a_key_that_waits_for_slow_answers_holds_up_no_other(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch, hold: Callable[[pytest.MonkeyPatch, Held], str]
) -> None:
    service, held = deploy(), Held()
    noisy, quiet = service.key(Role.OPERATOR, new_tenant()), service.key(Role.OPERATOR, new_tenant())
    path = hold(monkeypatch, held)

    async def ask() -> list[int]:
        asked = [asyncio.create_task(service.asked("GET", path, key=noisy)) for _ in range(2 * MAX_THREADS)]
        for _ in range(MOST_OF_ONE_KEY):
            assert await asyncio.to_thread(held.running.acquire, timeout=PATIENCE_S)
        others = [
            await service.asked("GET", "/health"),
            await service.asked("GET", "/v1/outcomes", key=quiet),
            await service.asked("POST", "/v1/verify", key=quiet, json={"criteria": CRITERIA, **WORK}),
        ]
        # Nothing more of the key has begun.
        assert not held.running.acquire(blocking=False)
        held.may_end.set()
        await asyncio.gather(*asked, return_exceptions=True)
        return [one.status_code for one in others]

    assert service.run(ask()) == [200, 200, 200]


def test_one_key_cannot_have_every_connection_to_the_database() -> None:
    # Reads, slow work that reads, files under way and figures; one is left for the health of the service.
    assert 2 * MOST_OF_ONE_KEY + MAX_OPEN_EXPORTS + THREADS < MAX_READERS


def judged_on_loop(service: Deployment, patch: pytest.MonkeyPatch, body: dict[str, Any]) -> bool:
    """Whether the work was measured on the event loop."""
    threads = list[threading.Thread]()
    original = measure.measure

    def note(*given: Any) -> Any:
        threads.append(threading.current_thread())
        return original(*given)

    patch.setattr(engine, "measure", note)
    assert service.ask("POST", "/v1/verify", key=service.key(), json=body).status_code == 200
    patch.undo()
    return threads == [service._thread]


def test_work_with_many_questions_is_judged_beside_the_loop(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    service = deploy()
    one = {"metric": "edit_similarity", "metric_type": "percentage", "comparison": "gte", "threshold": 0.5}
    text = "x" * (SMALL_WORK // 10)
    work = {"input": {f"f{number}": text for number in range(2)}, "output": {"text": text}}
    for questions, on_loop in ((1, True), (40, False)):
        criteria = [{**one, "id": f"c{number}", "params": {"field": f"f{number}"}} for number in range(questions)]
        body = {"criteria": {"criteria": criteria}, **work}
        assert judged_on_loop(service, monkeypatch, body) is on_loop


def test_new_criteria_are_compiled_beside_the_loop(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    service = deploy()
    threads = list[threading.Thread]()
    compile_criteria = Registrar._compile

    def note(*given: Any) -> Any:
        threads.append(threading.current_thread())
        return compile_criteria(*given)

    monkeypatch.setattr(Registrar, "_compile", note)
    body = {"criteria": CRITERIA, **WORK}
    assert [service.ask("POST", "/v1/verify", key=service.key(), json=body).status_code for _ in range(3)] == [200] * 3
    assert len(threads) == 1
    assert threads[0] is not service._thread
