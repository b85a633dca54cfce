"""Ray's workers record what this process would. Most tasks run here at once; one test starts Ray itself."""

import csv
import itertools
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from meruit import VerificationEngine
from meruit.errors import DocumentError, InvalidCase, MeruitError
from meruit.evaluations import ray_run
from meruit.evaluations.datafiles import ColumnMap, DataFile, open_data
from meruit.evaluations.file_shares import cut_file
from meruit.evaluations.ray_run import RayRun
from meruit.evaluations.reader import Evaluations
from meruit.evaluations.run import run_cases
from meruit.evaluations.service import Evaluator
from meruit.store.location import Location
from meruit.store.store import Store
from meruit.verify.catalogue import CompiledCriteria

RAY_S = 300
"""Ray starts within seconds, unless the machine is busy."""
CRITERIA = {"criteria": [{"metric": "exact_match", "metric_type": "boolean", "comparison": "eq", "threshold": True}]}


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of Ray that run where they are asked for."""

    @contextmanager
    def session(_workers: int) -> Iterator[Future[None]]:
        up = Future[None]()
        up.set_result(None)
        yield up

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
    monkeypatch.setattr(ray, "put", lambda value: value)


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
    file, criteria = write(tmp_path, some(2_500)), evaluator.compile(CRITERIA)
    assert [share.rows_before for share in cut_file(file)] == [0, 2_048]
    here = evaluator.start("here", criteria)
    run_cases(evaluator, here, criteria, file.cases())
    there = evaluator.start("there", criteria)
    done = RayRun(VerificationEngine, "default").run(evaluator, there, criteria, file, ColumnMap())
    assert (done.status, done.cases, done.segments) == ("finished", 2_500, 5)
    assert rows_of(reader, "there") == rows_of(reader, "here")


@pytest.mark.usefixtures("at_once")
def test_a_run_goes_on_where_it_ended(evaluator: Evaluator, reader: Evaluations, tmp_path: Path) -> None:
    file, criteria = write(tmp_path, some(2_100)), evaluator.compile(CRITERIA)
    started = evaluator.start("later", criteria)
    judged = [evaluator.judge(criteria, case) for case in file.cases()]
    # All of the first share, and a part of the second.
    for first in range(0, 2_048, 512):
        evaluator.record(started, judged[first : first + 512])
    evaluator.record(started, judged[2_048:2_060])
    done = RayRun(VerificationEngine, "default").run(evaluator, reader.find("later"), criteria, file, ColumnMap())
    assert (done.status, done.cases) == ("finished", 2_100)
    assert [one["case_id"] for one in rows_of(reader, "later")] == [str(n + 1) for n in range(2_100)]


class Starting(Future[None]):
    """Ray that is up, or refuses, once it was asked so often whether it is."""

    def __init__(self, times: int, refusal: MeruitError | None = None) -> None:
        super().__init__()
        self._left, self._refusal = times, refusal

    def done(self) -> bool:
        self._left -= 1
        if self._left < 0 and not super().done():
            if self._refusal is None:
                self.set_result(None)
            else:
                self.set_exception(self._refusal)
        return super().done()

    def result(self, timeout: float | None = None) -> None:
        self._left = 0
        self.done()
        return super().result(timeout)


def start_slowly(monkeypatch: pytest.MonkeyPatch, starting: Starting) -> None:
    @contextmanager
    def session(_workers: int) -> Iterator[Future[None]]:
        yield starting

    monkeypatch.setattr(ray_run, "ray_session", session)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("times", [1, 2, 9])
def test_this_process_judges_until_ray_is_up(
    evaluator: Evaluator, reader: Evaluations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    start_slowly(monkeypatch, Starting(times))
    file, criteria = write(tmp_path, some(5_000)), evaluator.compile(CRITERIA)
    run_cases(evaluator, evaluator.start("here", criteria), criteria, file.cases())
    there = evaluator.start("there", criteria)
    done = RayRun(VerificationEngine, "default").run(evaluator, there, criteria, file, ColumnMap())
    assert (done.status, done.cases) == ("finished", 5_000)
    assert rows_of(reader, "there") == rows_of(reader, "here")


@pytest.mark.usefixtures("at_once")
def test_a_run_that_is_judged_whole_does_not_wait_for_ray(
    evaluator: Evaluator, reader: Evaluations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, criteria = write(tmp_path, some(3_000)), evaluator.compile(CRITERIA)
    # Ray would refuse after the last share.
    start_slowly(monkeypatch, Starting(2, MeruitError("Ray did not start")))
    started = evaluator.start("later", criteria)
    done = RayRun(VerificationEngine, "default").run(evaluator, started, criteria, file, ColumnMap())
    assert (done.status, done.cases) == ("finished", 3_000)


@pytest.mark.usefixtures("at_once")
def test_what_was_judged_before_ray_failed_is_kept(
    evaluator: Evaluator, reader: Evaluations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, criteria = write(tmp_path, some(5_000)), evaluator.compile(CRITERIA)
    run, started = RayRun(VerificationEngine, "default"), evaluator.start("later", criteria)
    start_slowly(monkeypatch, Starting(1, MeruitError("Ray did not start")))
    with pytest.raises(MeruitError, match="did not start"):
        run.run(evaluator, started, criteria, file, ColumnMap())
    assert reader.find("later").cases == 2_048
    start_slowly(monkeypatch, Starting(0))
    assert run.run(evaluator, reader.find("later"), criteria, file, ColumnMap()).cases == 5_000


@pytest.mark.usefixtures("at_once")
def test_an_id_of_an_earlier_share_is_refused(evaluator: Evaluator, tmp_path: Path) -> None:
    criteria = evaluator.compile(CRITERIA)
    rows = [{**row, "id": str(n)} for n, row in enumerate(some(2_500))]
    file = write(tmp_path, [*rows, {**rows[0], "id": "7"}])
    with pytest.raises(InvalidCase, match="'7'"):
        RayRun(VerificationEngine, "default").run(
            evaluator, evaluator.start("twins", criteria), criteria, file, ColumnMap()
        )


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
    with pytest.raises(MeruitError, match="jsonl, csv, tsv, parquet"):
        run.run(evaluator, evaluator.start("-", criteria), criteria, DataFile("-", "jsonl", None, None), ColumnMap())
    (tmp_path / "late.csv").write_text("id,output\n" + "".join(f"{n},x\n" for n in range(2_050)) + "9,x,y\n")
    with pytest.raises(DocumentError) as refused:
        run.run(
            evaluator,
            evaluator.start("late", criteria),
            criteria,
            open_data(str(tmp_path / "late.csv")),
            ColumnMap(),
        )
    assert refused.value.problems[0].line == 2_052


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_workers_read_tables_too(evaluator: Evaluator, reader: Evaluations, tmp_path: Path, kind: str) -> None:
    criteria = evaluator.compile(CRITERIA)
    rows = [
        {**row, "output": f'"{row["output"]}"\nétale,' if n % 7 == 0 else row["output"]}
        for n, row in enumerate(some(2_200))
    ]
    path = tmp_path / f"outputs.{kind}"
    if kind == "csv":
        with path.open("w", encoding="utf-8-sig", newline="") as opened:
            writer = csv.DictWriter(opened, [*rows[0]])
            writer.writeheader()
            writer.writerows(rows)
    else:
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=900)
    file = open_data(str(path))
    run_cases(evaluator, evaluator.start("here", criteria), criteria, file.cases())
    there = evaluator.start("there", criteria)
    done = RayRun(VerificationEngine, "default").run(evaluator, there, criteria, file, ColumnMap())
    assert done.cases == 2_200
    assert rows_of(reader, "there") == rows_of(reader, "here")


@pytest.mark.parametrize(
    ("rows", "row_s", "worth"),
    [
        (40, 0.001, False),
        # The first rows take long because caches are empty.
        (1_000, 0.001, False),
        (1_000, 0.046, True),
        (40, 2.0, True),
        (20, 2.0, False),
        (0, 1.0, False),
    ],
)
def test_ray_is_for_what_takes_long_here(
    rows: int, row_s: float, worth: bool, evaluator: Evaluator, criteria: CompiledCriteria, tmp_path: Path
) -> None:
    asked = itertools.count()

    def timer() -> float:
        # Asked at the beginning, after each row, and after the first of them once more.
        number = next(asked)
        return number * row_s + (0.5 if number > 0 and row_s < 0.01 else 0.0)

    path = tmp_path / "outputs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in some(rows)), encoding="utf-8")
    file = open_data(str(path))
    assert ray_run.is_worth_ray(evaluator, criteria, file, ColumnMap(), timer=timer) is worth


def test_what_ray_refuses_is_not_tried_here(evaluator: Evaluator, criteria: CompiledCriteria, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[")
    assert ray_run.is_worth_ray(evaluator, criteria, open_data(str(tmp_path / "a.json")), ColumnMap())


def test_ray_itself_records_what_this_process_does(tmp_path: Path, meruit_at_hand: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'meruit[ray]'")
    write(tmp_path, some(2_100))
    (tmp_path / "criteria.json").write_text(json.dumps(CRITERIA))
    run = ["eval", "run", "criteria.json", "outputs.jsonl", "--json", "--data", "records"]
    said = []
    for program, own in (
        ([str(meruit_at_hand / "meruit")], ["--name", "here", "--engine", "ray"]),
        ([sys.executable, "-m", "meruit"], ["--name", "there", "--engine", "ray", "--workers", "1"]),
    ):
        ended = subprocess.run(
            [*program, *run, *own], cwd=tmp_path, capture_output=True, text=True, timeout=RAY_S, check=False
        )
        assert ended.returncode == 0, ended.stderr
        said.append(ended.stderr)
    # So few rows are judged without Ray, unless workers are asked for.
    assert ["--workers" in one for one in said] == [True, False]
    store = Store.open(Location(tmp_path / "records"))
    reader = Evaluations(store, "default")
    try:
        assert rows_of(reader, "there") == rows_of(reader, "here")
        assert reader.find("there").cases == 2_100
    finally:
        store.close()
