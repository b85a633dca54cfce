"""Ray's workers record what this process would. Tasks run here at once; tests of rescoring start Ray itself."""

import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from meruit import VerificationEngine
from meruit.errors import DocumentError, MeruitError
from meruit.evaluations import ray_run
from meruit.evaluations.datafiles import ColumnMap, DataFile, open_data
from meruit.evaluations.ray_run import RayRun
from meruit.evaluations.reader import Evaluations
from meruit.evaluations.run import run_cases
from meruit.evaluations.service import Evaluator

CRITERIA = {"criteria": [{"metric": "exact_match", "metric_type": "boolean", "comparison": "eq", "threshold": True}]}


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of Ray that run where they are asked for."""

    @contextmanager
    def session(_workers: int) -> Iterator[None]:
        yield

    class Remote:
        def __init__(self, function: Any) -> None:
            self._function = function

        def remote(self, *arguments: Any) -> Any:
            # What crosses to a worker and back is pickled.
            return pickle.loads(pickle.dumps(self._function(*pickle.loads(pickle.dumps(arguments)))))

    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray_run, "ray_session", session)
    monkeypatch.setattr(ray, "remote", Remote)
    monkeypatch.setattr(ray, "get", lambda answer: answer)


def write(folder: Path, rows: list[Any]) -> DataFile:
    path = folder / "outputs.jsonl"
    path.write_text("\ufeff\n" + "\n\n".join(map(json.dumps, rows)), encoding="utf-8")
    return open_data(str(path))


def some(count: int) -> list[Any]:
    return [{"prompt": f"{n}?", "reference": "yes", "output": "yes" if n % 3 else "no"} for n in range(count)]


def rows_of(reader: Evaluations, name: str) -> list[Any]:
    own = ("outcome_id",)
    return [
        {key: value for key, value in one.summary.to_dict().items() if key not in own} | {"work": one.output}
        for one in reader.details(reader.find(name))
    ]


@pytest.mark.usefixtures("at_once")
def test_the_records_are_those_of_a_run_without_ray(evaluator: Evaluator, reader: Evaluations, tmp_path: Path) -> None:
    file, criteria = write(tmp_path, some(1_100)), evaluator.compile(CRITERIA)
    assert [share.rows_before for share in file.shares()] == [0, 512, 1_024]
    here = evaluator.start("here", criteria)
    run_cases(evaluator, here, criteria, file.cases())
    there = evaluator.start("there", criteria)
    done = RayRun(VerificationEngine, "default").run(evaluator, there, criteria, file, ColumnMap())
    assert (done.status, done.cases, done.segments) == ("finished", 1_100, 3)
    assert rows_of(reader, "there") == rows_of(reader, "here")


@pytest.mark.usefixtures("at_once")
def test_a_run_goes_on_where_it_ended(evaluator: Evaluator, reader: Evaluations, tmp_path: Path) -> None:
    file, criteria = write(tmp_path, some(1_030)), evaluator.compile(CRITERIA)
    started = evaluator.start("later", criteria)
    judged = [evaluator.judge(criteria, case) for case in file.cases()]
    # All of the first share, and a part of the second.
    evaluator.record(started, judged[:512])
    evaluator.record(started, judged[512:520])
    done = RayRun(VerificationEngine, "default").run(evaluator, reader.find("later"), criteria, file, ColumnMap())
    assert (done.status, done.cases) == ("finished", 1_030)
    assert [one["case_id"] for one in rows_of(reader, "later")] == [str(n + 1) for n in range(1_030)]


@pytest.mark.usefixtures("at_once")
def test_what_is_wrong_is_said_as_without_ray(evaluator: Evaluator, tmp_path: Path) -> None:
    criteria, run = evaluator.compile(CRITERIA), RayRun(VerificationEngine, "default")
    broken = write(tmp_path, [*some(600), ["not a row"]])
    with pytest.raises(DocumentError) as refused:
        run.run(evaluator, evaluator.start("broken", criteria), criteria, broken, ColumnMap())
    assert refused.value.problems[0].where == "row 601"
    twins = write(tmp_path, [{"id": "a", "output": "x"}] * 2)
    with pytest.raises(MeruitError, match="'a'"):
        run.run(evaluator, evaluator.start("twins", criteria), criteria, twins, ColumnMap())
    with pytest.raises(MeruitError, match="JSON Lines"):
        run.run(
            evaluator, evaluator.start("csv", criteria), criteria, DataFile("a.csv", "csv", None, None), ColumnMap()
        )
