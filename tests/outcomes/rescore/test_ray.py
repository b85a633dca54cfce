"""Ray's workers judge what this process would: the same outcomes, the same records."""

import json
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from meruit import SuccessCriteria, VerificationEngine
from meruit.errors import MeruitError, StoreError
from meruit.model.access import Scope
from meruit.outcomes import records as outcomes
from meruit.outcomes.records import OutcomeFilter
from meruit.outcomes.rescore import ray as cluster
from meruit.outcomes.rescore.ray import NoRecords, RayRescore, _options, ray_session
from meruit.outcomes.rescore.run import LocalRunner, OutcomeSpan, RescoreSummary, Skip, rescore
from meruit.outcomes.service import Registrar, Submission
from meruit.store.location import Location
from meruit.store.store import Store

NOW = datetime(2026, 7, 1, 12, 30, 0, 123456, tzinfo=UTC)
WORDS = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 2}
LENGTH = {"metric": "output_length", "metric_type": "count", "comparison": "gte", "threshold": 12}
OLD = SuccessCriteria.model_validate({"criteria": [WORDS]})
NEW = SuccessCriteria.model_validate({"criteria": [{**WORDS, "threshold": 3}]})
MEASURED = SuccessCriteria.model_validate({"criteria": [WORDS, LENGTH]})
RAY_S = 300
"""Ray starts within seconds, unless the machine is busy."""
OUTCOMES = 40


class Workers:
    """Stands where Ray stands: tasks run where they are asked for, and what crosses is pickled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        self.up = Future[None]()
        self.up.set_result(None)
        self.before_answer: Any = lambda: None
        workers = self

        @contextmanager
        def session(_workers: int) -> Iterator[Future[None]]:
            yield workers.up

        class Remote:
            def __init__(self, function: Any) -> None:
                self._function = function

            def remote(self, *arguments: Any) -> Any:
                workers.asked += 1
                done = pickle.loads(pickle.dumps(self._function(*pickle.loads(pickle.dumps(arguments)))))
                workers.before_answer()
                return done

        ray = pytest.importorskip("ray")
        monkeypatch.setattr(cluster, "ray_session", session)
        monkeypatch.setattr(cluster, "SPAN_ROWS", 15)
        monkeypatch.setattr(ray, "remote", Remote)
        monkeypatch.setattr(ray, "get", lambda answer: answer)
        monkeypatch.setattr(ray, "put", lambda value: value)


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Workers:
    return Workers(monkeypatch)


def fill(folder: Path) -> Store:
    store = Store.open(Location(folder))
    registrar = Registrar(VerificationEngine(), store)
    ready = registrar.compile(OLD)
    for number in range(OUTCOMES):
        work = Submission({}, {"text": "word " * (number % 5)}, {"duration_ms": number})
        registrar.record_sync("default", registrar.judge_sync(ready, work))
    return store


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """Two stores of the same outcomes."""
    fill(tmp_path / "here").close()
    subprocess.run(["cp", "-r", str(tmp_path / "here"), str(tmp_path / "there")], check=True)
    both = Store.open(Location(tmp_path / "here")), Store.open(Location(tmp_path / "there"))
    yield both
    for one in both:
        one.close()


# Any: the options of a rescore.
def here(store: Store, criteria: SuccessCriteria, **more: Any) -> RescoreSummary:
    return rescore(
        *(store, VerificationEngine(), "default", criteria),
        **{"narrowed": None, "reason": "r", "now": NOW, "progress": lambda *_: None, **more},
        runner=LocalRunner(),
    )


def there(store: Store, criteria: SuccessCriteria, workers: int | None = 2, **more: Any) -> RescoreSummary:
    return RayRescore(VerificationEngine, workers).rescore(
        *(store, VerificationEngine(), "default", criteria),
        **{"narrowed": None, "reason": "r", "now": NOW, "progress": lambda *_: None, **more},
    )


def said(summary: RescoreSummary) -> dict[str, Any]:
    return {**summary.to_dict(), "seconds": 0}


def written(store: Store) -> list[bytes]:
    """What each outcome says now."""
    with store.database.reading() as connection:
        found = outcomes.page(connection, Scope("default"), limit=100)[0]
        records = [outcomes.full_record(connection, Scope("default"), one.id, store.blobs) for one in found]
    return [one.verification_result.to_json() for one in records if one.verification_result is not None]


@pytest.mark.parametrize("criteria", [NEW, MEASURED])
@pytest.mark.parametrize("more", [{}, {"again": True}, {"dry_run": True}, {"narrowed": OutcomeFilter(verdict="pass")}])
def test_workers_record_the_same_bytes(
    stores: tuple[Store, Store], workers: Workers, criteria: SuccessCriteria, more: dict[str, Any]
) -> None:
    told: list[tuple[int, int]] = []
    expected = here(stores[0], criteria, **more)
    summary = there(stores[1], criteria, **more, progress=lambda *now: told.append(now))
    assert said(summary) == said(expected)
    assert workers.asked == -(-expected.examined // 15)
    assert told[-1] == (expected.examined, expected.examined)
    assert written(stores[1]) == written(stores[0])
    assert said(there(stores[1], criteria, **more)) == said(here(stores[0], criteria, **more))


def test_an_outcome_that_was_rescored_meanwhile_is_left(stores: tuple[Store, Store], workers: Workers) -> None:
    other = SuccessCriteria.model_validate({"criteria": [{**WORDS, "threshold": 4}]})
    overtakings = iter([True])

    def overtake() -> None:
        if next(overtakings, False):
            here(stores[1], other, narrowed=OutcomeFilter(verdict="fail"))

    workers.before_answer = overtake
    summary = there(stores[1], NEW)
    # Its newer version is judged again; none is lost, and none counted twice.
    assert (summary.examined, summary.rescored, summary.skipped) == (OUTCOMES, OUTCOMES, {})
    assert here(stores[1], NEW).skipped == {Skip.ALREADY: OUTCOMES}


def test_few_outcomes_are_judged_without_ray(stores: tuple[Store, Store], workers: Workers) -> None:
    assert said(there(stores[1], NEW, None)) == said(here(stores[0], NEW))
    assert workers.asked == 0


@pytest.mark.parametrize(("seconds", "asked"), [(16.0, 0), (28.0, 2)])
def test_ray_is_for_what_takes_long_here(
    stores: tuple[Store, Store], workers: Workers, seconds: float, asked: int
) -> None:
    times = iter([0.0, 0.0, seconds, seconds, seconds, seconds])
    runner = RayRescore(VerificationEngine, timer=lambda: next(times))
    done = runner.rescore(
        *(stores[1], VerificationEngine(), "default", NEW),
        narrowed=None,
        reason="r",
        now=NOW,
        progress=lambda *_: None,
    )
    assert (done.rescored, workers.asked, runner.has_begun) == (OUTCOMES, asked, asked > 0)


def test_this_process_judges_until_ray_is_up(stores: tuple[Store, Store], workers: Workers) -> None:
    workers.up = Future()
    assert said(there(stores[1], NEW)) == said(here(stores[0], NEW))
    assert workers.asked == 0


def test_a_problem_of_a_worker_is_met_here_again(
    stores: tuple[Store, Store], workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_job", lambda _shared: (_ for _ in ()).throw(MeruitError("no disk")))
    assert said(there(stores[1], NEW)) == said(here(stores[0], NEW))
    assert workers.asked == 3


def test_a_worker_without_the_records_says_so(stores: tuple[Store, Store], tmp_path: Path) -> None:
    shared = cluster.SharedRescore(
        *(Location(tmp_path / "elsewhere"), "default", b"{}", b"", NOW, None, "r"), again=False, dry_run=False
    )
    refused = cluster.try_span(shared, OutcomeSpan(0, 1))
    assert isinstance(refused, NoRecords)


def test_ray_listens_to_this_machine_only_unless_told_of_a_cluster() -> None:
    here = _options(None, 3, "/tmp/x")
    assert (here["address"], here["_node_ip_address"], here["include_dashboard"], here["num_cpus"]) == (
        *("local", "127.0.0.1"),
        *(False, 3),
    )
    there = _options("ray://head:10001", 3, "/tmp/x")
    assert there["address"] == "ray://head:10001"
    assert "num_cpus" not in there


def test_without_ray_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in cluster._QUIET | cluster._ALONE:
        monkeypatch.setenv(name, "0")
    with pytest.raises(MeruitError, match=r"pip install 'meruit\[ray\]'"), ray_session(2):
        pass


def test_ray_is_asked_for_before_anything_is_judged(
    stores: tuple[Store, Store], workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MeruitError, match=r"pip install 'meruit\[ray\]'"):
        there(stores[0], NEW)
    assert workers.asked == 0


def test_workers_that_find_no_records_end_the_rescore(
    stores: tuple[Store, Store], workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "FILE", "not-here.db")
    with pytest.raises(StoreError, match="Postgres"):
        there(stores[0], NEW)
    assert workers.asked > 0


@pytest.mark.parametrize("is_main", [True, False])
def test_sigterm_ends_the_session_in_order(monkeypatch: pytest.MonkeyPatch, is_main: bool) -> None:
    ray = pytest.importorskip("ray")
    ended: list[str] = []
    monkeypatch.setattr(cluster, "_start", lambda *_: None)
    monkeypatch.setattr(ray, "shutdown", lambda: ended.append("Ray"))
    before = signal.getsignal(signal.SIGTERM)

    def run() -> None:
        with ray_session(2) as starting:
            starting.result()
            if is_main:
                signal.raise_signal(signal.SIGTERM)

    if is_main:
        with pytest.raises(SystemExit) as end:
            run()
        assert end.value.code == 128 + signal.SIGTERM
    else:
        with ThreadPoolExecutor(1) as other:
            other.submit(run).result()
    assert ended == ["Ray"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_two_workers_and_this_process_record_the_same_bytes(tmp_path: Path, meruit_at_hand: Path) -> None:
    store = Store.open(Location(tmp_path / "here"))
    registrar = Registrar(VerificationEngine(), store)
    ready = registrar.compile(OLD)
    for number in range(30):
        work = Submission({}, {"text": "word " * (number % 5)}, {"duration_ms": number})
        registrar.record_sync("default", registrar.judge_sync(ready, work))
    store.close()
    length = {"metric": "output_length", "metric_type": "count", "comparison": "gte", "threshold": 12}
    (tmp_path / "new.json").write_text(json.dumps({"criteria": [WORDS, length]}))
    copied = ["cp", "-r", str(tmp_path / "here"), str(tmp_path / "there")]
    subprocess.run(copied, check=True)
    said = {}
    for folder, engine in (("here", ["local"]), ("there", ["ray", "--workers", "2"])):
        program = [str(meruit_at_hand / "meruit")] if engine == ["local"] else [sys.executable, "-m", "meruit"]
        command = ["rescore", "new.json", "--all", "--reason", "r", "--data", folder, "--json", "--engine", *engine]
        ended = subprocess.run(
            [*program, *command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=RAY_S,
            check=False,
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        said[folder] = {**json.loads(ended.stdout), "seconds": 0}
    assert said["here"] == said["there"]
    assert said["here"]["measured"] == 30
    written = []
    for folder in said:
        command = ["outcome", "export", "-o", f"{folder}.jsonl", "--all-versions", "--data", folder]
        subprocess.run([meruit_at_hand / "meruit", *command], cwd=tmp_path, check=True, timeout=RAY_S)
        lines = [json.loads(line) for line in (tmp_path / f"{folder}.jsonl").read_text().splitlines()]
        # When it was rescored is all that may differ.
        for line in lines:
            del line["verification_result"]["verified_at"]
        written.append([json.dumps(line) for line in lines])
    assert written[0] == written[1]
    assert len(written[0]) == 60
