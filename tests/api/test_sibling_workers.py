"""Two workers of one service: what one knows, the other knows at once."""

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.api.conftest import Deployment

from meruit.api import integrity
from meruit.api.integrity import IntegrityState
from meruit.api.processes import siblings
from meruit.api.processes.inheritance import WorkerProcess
from meruit.api.processes.limits import SharedLimits
from meruit.api.processes.siblings import Siblings
from meruit.api.witnessing import Patience
from meruit.audit.check import LogProblem
from meruit.store.location import Location
from meruit.verify.engine import VerificationEngine

PATIENCE_S = 60.0
BODY = {
    "criteria": {"criteria": [{"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 1}]},
    "output": {"text": "done"},
}


@pytest.fixture
def workers(engine: VerificationEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Deployment]]:
    # A busy machine takes longer than the limits of a service; and the first check comes when a test has ended.
    monkeypatch.setattr(siblings, "ANSWER_S", PATIENCE_S)
    monkeypatch.setattr(integrity, "DELAY_S", 3600.0)
    limits = SharedLimits.create()
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
    spare = socket.socketpair()
    made = [
        Deployment(
            Location(tmp_path / "data"),
            engine,
            process=WorkerProcess(
                index=index,
                listener=spare[0],
                control=spare[1],
                siblings=Siblings(index, inbox, [outbox for _, outbox in pairs]),
                limits=limits,
            ),
        )
        for index, (inbox, _) in enumerate(pairs)
    ]
    yield made
    for one in made:
        one.close()
    for end in (*spare, *pairs[0], *pairs[1]):
        end.close()
    limits.close()


def _wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_events_of_one_wake_the_other_before_its_next_read(workers: list[Deployment]) -> None:
    first, second = workers
    # The reader of the second would see the event at its next read only, which never comes here.
    noticed: list[int] = []
    second.service.dispatcher.notice_events = noticed.append  # type: ignore[method-assign, assignment]
    assert first.ask("POST", "/v1/verify", json=BODY).is_success
    _wait_until(lambda: noticed != [])


def test_a_new_key_closes_both_at_once(workers: list[Deployment]) -> None:
    first, second = workers
    assert second.ask("GET", "/v1/outcomes").is_success
    forgotten: list[bool] = []
    forget = second.service.authenticator.forget_keys

    def note() -> None:
        forget()
        forgotten.append(True)

    second.service.authenticator.forget_keys = note  # type: ignore[method-assign]
    secret = first.ask("POST", "/v1/keys", json={"name": "a", "role": "admin"}).json()["secret"]
    _wait_until(lambda: forgotten != [])
    assert second.ask("GET", "/v1/outcomes").status_code == 401
    assert second.ask("GET", "/v1/outcomes", key=secret).is_success


def test_what_the_checks_of_the_first_found_is_the_health_of_both(workers: list[Deployment]) -> None:
    first, second = workers
    problem = LogProblem("row", "outcomes", "differs")
    first.service.integrity.state, first.service.integrity.problems = IntegrityState.BROKEN, [problem] * 30
    first.service.witnessing.asked["w"] = Patience(size=7, code="cosigned")
    _wait_until(lambda: second.service.integrity.state is IntegrityState.BROKEN)
    assert second.ask("GET", "/health").json()["status"] == "degraded"
    assert second.service.integrity.problems == [problem] * 20
    assert second.service.witnessing.asked == {"w": Patience(size=7, code="cosigned")}


def test_metrics_are_those_of_both_with_the_worker_as_label(workers: list[Deployment]) -> None:
    assert workers[0].ask("POST", "/v1/verify", json=BODY).is_success
    for one in workers:
        text = one.ask("GET", "/metrics").text
        assert 'meruit_worker_up{worker="1"} 1\n' in text
        assert 'meruit_worker_up{worker="2"} 1\n' in text
        assert 'meruit_recorded_total{worker="1",tenant="default"} 1.0\n' in text
        assert text.count("# HELP meruit_recorded_total ") == 1
