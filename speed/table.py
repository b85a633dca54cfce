"""Every figure of docs/performance.md in one run: `make bench ARGS=--table` writes that page.

The figures take turns, round after round, so that a busy moment of the machine costs all of them alike. Each is given
as the median of the rounds, with the lowest and the highest.
"""

import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson

from meruit.api.bodies.gc import freeze_gc
from meruit.evaluations.datafiles import open_data
from meruit.evaluations.run import run_cases
from meruit.evaluations.service import Evaluator
from meruit.judge.batch import judge_columns
from meruit.judge.plan import Trait, compile_plan
from meruit.metrics.content import matches_schema
from meruit.model.criterion import SuccessCriteria
from meruit.model.kinds import Tier
from meruit.model.work import Work
from meruit.outcomes.rescore.run import LocalRunner, rescore
from meruit.outcomes.service import Registrar
from meruit.registry import Ask
from meruit.sandbox.sandbox import Sandbox
from meruit.store.location import Location
from meruit.store.store import Store, utc_now
from meruit.verify.engine import VerificationEngine
from speed import batch, gate, growth, plain, sandbox, schema, service, text, verify

ROUNDS = 5
PAGE = Path("docs/performance.md")
REQUESTS = 960
_LOOP = "of the plain loop"
AIMED_LOOP_US = 48.6
"""What the plain loop took for an output on the machine that the aims were compared on before."""
_TIMES = ("µs", "ns a row", "s")
"""Units that depend on the machine."""


class Spent(NamedTuple):
    """What one round cost, in the figure's unit."""

    cpu: float
    wall: float


class Figure(NamedTuple):
    """One line of the table."""

    name: str
    unit: str
    before: str
    """As measured on 16 November 2026 on the same kind of machine."""
    aim: float
    measure: Callable[[], Spent]
    more_is_better: bool = False

    def is_met(self, value: float) -> bool:
        """Whether a value reaches the aim."""
        return value >= self.aim if self.more_is_better else value <= self.aim


def _timed(act: Callable[[], object]) -> Spent:
    """Seconds of the whole process, its threads included, and of the clock."""
    gc.collect()
    # Else the collector would scan in some rounds, and not in others, all modules that this whole table has loaded.
    gc.freeze()
    try:
        wall, cpu = time.perf_counter(), time.process_time()
        act()
        return Spent(time.process_time() - cpu, time.perf_counter() - wall)
    finally:
        gc.unfreeze()


class _PlainLoop:
    """The plain loop over the stored outputs, timed once for each round."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts
        self.spent = Spent(1.0, 1.0)

    def measure(self) -> Spent:
        """Milliseconds of the loop for 1,000 outputs."""

        def run() -> None:
            assert plain.loop(self._texts) == plain.PASSED

        self.spent = _timed(run)
        return Spent(*(value / len(self._texts) * 1e6 for value in self.spent))

    def share(self, act: Callable[[], object]) -> Spent:
        """What the act costs as a part of the loop."""
        ours = _timed(act)
        return Spent(ours.cpu / self.spent.cpu, ours.wall / self.spent.wall)


def _in_memory(texts: list[str]) -> None:
    engine = VerificationEngine()
    criteria = engine.compile(plain.CRITERIA)
    judged = [engine.verify_sync("c", {}, orjson.loads(one), criteria) for one in texts]
    assert sum(one.success for one in judged) == plain.PASSED


class _Recorded:
    """Outputs of a file as evaluations in a store that is there already: judged and recorded with their evidence."""

    def __init__(self, folder: Path, file: Path) -> None:
        self._store, self._file, self._number = Store.open(Location(folder)), file, 0

    def close(self) -> None:
        self._store.close()

    def run(self) -> None:
        """One more evaluation of the file."""
        self._number += 1
        evaluator = Evaluator(Registrar(VerificationEngine(), self._store), "default")
        criteria = evaluator.compile(SuccessCriteria.model_validate(plain.CRITERIA))
        started = evaluator.start(f"bench {self._number}", criteria, planned=plain.STORED)
        run_cases(evaluator, started, criteria, open_data(str(self._file)).cases())


class _Rescored:
    """Outcomes in a store that are judged again: from evidence, or measured again."""

    def __init__(self, folder: Path, texts: list[str]) -> None:
        from meruit.outcomes.service import Submission
        from meruit.outcomes.store.write import RecordAll

        self._store = Store.open(Location(folder))
        self._number = 0
        registrar = Registrar(VerificationEngine(), self._store)
        ready = registrar.compile(plain.CRITERIA)
        for start in range(0, len(texts), 500):
            some = [Submission({}, orjson.loads(one), {}) for one in texts[start : start + 500]]
            drafts = tuple(registrar.draft("default", registrar.judge_sync(ready, one)) for one in some)
            self._store.recorder.write(RecordAll("default", drafts))

    def close(self) -> None:
        self._store.close()

    def run(self, *, measured: bool) -> None:
        """Judge all again by criteria that were not used before."""
        self._number += 1
        keywords, confidence, matches = (dict(one) for one in plain.CRITERIA["criteria"])
        if measured:
            matches["params"] = {"schema": {**plain.SCHEMA, "$comment": str(self._number)}}
        else:
            confidence["threshold"] = 0.8 + self._number / 10_000
        # The schema of the last time stays, or else the evidence would not fit.
        self._schema = matches["params"] = (
            matches["params"] if measured else getattr(self, "_schema", matches["params"])
        )
        criteria = SuccessCriteria.model_validate({"criteria": [keywords, confidence, matches]})
        summary = rescore(
            self._store,
            VerificationEngine(),
            "default",
            criteria,
            narrowed=None,
            reason="benchmark",
            runner=LocalRunner(),
            now=utc_now(),
            progress=lambda _done, _total: None,
        )
        assert (summary.measured if measured else summary.from_evidence) == plain.STORED, summary


def _engine(count: int) -> Spent:
    """Microseconds of one verification by so many cheap criteria."""
    engine = VerificationEngine()
    made = {"text": verify.TEXT, "confidence": 0.9, "predictions": []}
    criteria = engine.compile({"criteria": [{**verify.CHEAP[n % 10], "id": str(n)} for n in range(count)]})
    calls = max(5, 2_000 // count)

    def run() -> None:
        for _ in range(calls):
            engine.verify_sync("c", verify.INPUT, made, criteria, verify.METADATA)

    best = min(_timed(run) for _ in range(5))
    return Spent(best.cpu / calls * 1e6, best.wall / calls * 1e6)


def _columns(rows: int) -> Spent:
    """Nanoseconds for each row."""
    plan = compile_plan(batch.CRITERIA, lambda _name: Trait())
    rng = np.random.default_rng(7)
    columns = {
        "accuracy": np.where(rng.random(rows) < 0.05, np.nan, rng.random(rows)),
        "latency_ms": rng.random(rows) * 4000,
        "output_length": rng.integers(0, 800, rows).astype(float),
    }
    best = min(_timed(lambda: judge_columns(plan, columns)) for _ in range(3))
    return Spent(best.cpu / rows * 1e9, best.wall / rows * 1e9)


def _file(place: Path) -> Spent:
    """Nanoseconds for each row, from a Parquet file of metrics to one of verdicts."""
    import pyarrow as pa  # type: ignore[import-untyped]  # it has no types of its own
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    from meruit.outcomes.rescore.columns import judge_file

    rows, rng, engine = 10**6, np.random.default_rng(7), VerificationEngine()
    source = place / "metrics.parquet"
    if not source.exists():
        numbers = {"accuracy": rng.random(rows), "latency_ms": rng.random(rows) * 4000}
        pq.write_table(pa.table({**numbers, "output_length": rng.integers(0, 800, rows)}), source)
    criteria = engine.compile(batch.CRITERIA)
    best = min(
        _timed(lambda: judge_file(source, engine, criteria, place / "verdicts.parquet", lambda _done, _total: None))
        for _ in range(3)
    )
    return Spent(best.cpu / rows * 1e9, best.wall / rows * 1e9)


def _failing_schema() -> Spent:
    """Microseconds of a 5 KB document that does not match."""
    ask = matches_schema(Ask({"schema": schema.SCHEMA}))
    document = {**schema.DOCUMENT, "currency": "XXX"}

    def run() -> None:
        for _ in range(200):
            ask(Work(output=document))

    best = min(_timed(run) for _ in range(5))
    return Spent(best.cpu / 200 * 1e6, best.wall / 200 * 1e6)


def _text() -> Spent:
    """How many times the reference libraries take."""
    ours, baseline = text._measured(100)  # noqa: SLF001 - the suite's own measurement
    return Spent(baseline / ours, baseline / ours)


def _gate() -> Spent:
    """Microseconds of a recorded submission, 256 runs at once."""
    with gate._store() as store:  # noqa: SLF001 - as above
        took: list[float] = []
        # As in `meruit worker` and `meruit serve`: else the collector scans all that the other figures keep.
        with freeze_gc():
            spent = _timed(
                lambda: took.append(gate._each_us(lambda: gate._gated(store), gate.RUNS // 4, gate.AT_ONCE))  # noqa: SLF001
            )
        # It runs twice, and says what the better one took.
        submissions = 2 * (gate.RUNS // 4) * len(gate.CANDIDATES)
        return Spent(spent.cpu / submissions * 1e6, took[0] / len(gate.CANDIDATES))


def _sandbox(tier: Tier, case: int) -> Spent:
    """How many times a plain subprocess takes, by the clock: most of it is spent in other processes."""
    _name, code, _expression, output = sandbox.CASES[case]
    context = {"output": output}
    with Sandbox(tier) as opened:
        ours, theirs = partial(sandbox._ours, opened, code, context), partial(sandbox._plain, code, context)  # noqa: SLF001
        ours()
        both = [(sandbox._us(ours, sandbox.IN_A_ROW), sandbox._us(theirs, 1)) for _ in range(5)]  # noqa: SLF001
    ratio = min(other for _, other in both) / min(one for one, _ in both)
    return Spent(ratio, ratio)


def _command(*arguments: str, program: str | None = None) -> Spent:
    """Seconds of a process that finds its modules compiled, as after an installation."""
    command = [sys.executable, "-c", program] if program else [sys.executable, "-m", "meruit", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    begun, before = time.perf_counter(), os.times()
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = os.times()
    cpu = after.children_user - before.children_user + after.children_system - before.children_system
    return Spent(cpu, time.perf_counter() - begun)


def _server(url: str) -> Spent:
    """CPU and clock of the server for each request, in microseconds."""
    process = service._PROCESSES[url]  # noqa: SLF001 - as above
    before = _cpu_of(process)
    took = service.block(url, service.VERIFY, REQUESTS)
    sent = REQUESTS // service.CONNECTIONS * service.CONNECTIONS
    return Spent((_cpu_of(process) - before) / sent * 1e6, took.seconds_each * 1e6)


def _cpu_of(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class _Ratio:
    """How many times another server takes, from the last rounds of both."""

    def __init__(self, ours: str, other: str) -> None:
        self._ours, self._other = ours, other

    def measure(self) -> Spent:
        ours, other = _server(self._ours), _server(self._other)
        return Spent(other.cpu / ours.cpu, other.wall / ours.wall)


@contextmanager
def _figures() -> Iterator[list[Figure]]:
    texts = plain.stored()
    loop = _PlainLoop(texts)
    with ExitStack() as open_until_done, tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        rows = place / "outputs.jsonl"
        rows.write_text(
            "".join(f'{{"id": "q{number}", "input": {{}}, "output": {one}}}\n' for number, one in enumerate(texts))
        )
        criteria, made = place / "criteria.json", place / "output.json"
        criteria.write_text(json.dumps(plain.CRITERIA))
        made.write_text(json.dumps(plain.output(1)))
        kept = _Rescored(place / "kept", texts)
        open_until_done.callback(kept.close)
        recorded_cases = _Recorded(place / "cases", rows)
        open_until_done.callback(recorded_cases.close)
        ours, ordinary = (open_until_done.enter_context(service.server(name)) for name in ("ours", "ordinary"))
        for url in (ours, ordinary):
            service.block(url, service.VERIFY, service.WARM_UP)
        mine, _theirs = open_until_done.enter_context(service.postgres())
        cluster = open_until_done.enter_context(service.server("ours", mine))
        service.block(cluster, service.VERIFY, service.WARM_UP)
        judged = ("verify", str(criteria), "--output", str(made))
        unrecorded, recorded = (*judged, "--no-record"), (*judged, "--record", "--data", str(place / "data"))
        _command(*recorded)
        python, full = Tier.PYTHON, Tier.PYTHON_FULL
        share = loop.share
        yield [
            Figure("the plain loop itself, an output", "µs", "–", float("inf"), loop.measure),
            Figure("verify in memory", _LOOP, "0.90", 0.35, lambda: share(partial(_in_memory, texts))),
            Figure("first record in bulk", _LOOP, "2.66", 0.5, lambda: share(recorded_cases.run)),
            Figure(
                "measured again from stored outputs",
                _LOOP,
                "2.74",
                0.6,
                lambda: share(partial(kept.run, measured=True)),
            ),
            Figure("rescore from evidence", _LOOP, "1.96", 0.25, lambda: share(partial(kept.run, measured=False))),
            Figure("engine, 2 cheap criteria", "µs", "14", 6, partial(_engine, 2)),
            Figure("engine, 10 cheap criteria", "µs", "40", 14, partial(_engine, 10)),
            Figure("engine, 1,000 cheap criteria", "µs", "1,567", 700, partial(_engine, 1_000)),
            Figure("POST /v1/verify, durable, SQLite", "µs", "954", 400, partial(_server, ours)),
            Figure("POST /v1/verify, durable, Postgres", "µs", "1,158", 500, partial(_server, cluster)),
            Figure(
                "FastAPI + SQLAlchemy beside it, SQLite", "times", "1.2–1.6", 3, _Ratio(ours, ordinary).measure, True
            ),
            Figure("gate, a recorded submission", "µs", "240", 120, _gate),
            Figure("columns, 1 million rows", "ns a row", "43–89", 25, partial(_columns, 10**6)),
            Figure("columns, 10 million rows", "ns a row", "118", 25, partial(_columns, 10**7)),
            Figure("columns, a file of 1 million rows to Parquet", "ns a row", "1,207", 200, partial(_file, place)),
            Figure("schema, 5 KB, failing", "µs", "1,062", 50, _failing_schema),
            Figure("text metrics, 100 words, reference libraries", "times", "14.5", 20, _text, True),
            Figure("sandbox `python`, trivial, a subprocess", "times", "49", 80, lambda: _sandbox(python, 0), True),
            Figure("sandbox `python`, 10 KB, a subprocess", "times", "–", 50, lambda: _sandbox(python, 1), True),
            Figure("sandbox `python-full` in a row, a subprocess", "times", "7", 12, lambda: _sandbox(full, 0), True),
            Figure("`import meruit`", "s", "0.027", 0.05, lambda: _command(program="import meruit")),
            Figure("`meruit --help`", "s", "0.17", 0.12, lambda: _command("--help")),
            Figure("`meruit verify --no-record`", "s", "0.37", 0.15, lambda: _command(*unrecorded)),
            Figure("`meruit verify --record`", "s", "0.71", 0.25, lambda: _command(*recorded)),
        ]


def write_page(rounds: int = ROUNDS) -> None:
    """Measure every figure so many times, and write the page after each round."""
    load, _, _ = os.getloadavg()
    grown = growth.to_markdown(growth.growth())
    with _figures() as figures:
        seen: dict[str, list[Spent]] = {figure.name: [] for figure in figures}
        for number in range(1, rounds + 1):
            for figure in figures:
                spent = figure.measure()
                seen[figure.name].append(spent)
                print(f"{number}/{rounds} {figure.name}: {spent.cpu:.4g} {figure.unit}", flush=True)
            slower = statistics.median(one.cpu for one in seen[figures[0].name]) / AIMED_LOOP_US
            lines = [_line(figure, seen[figure.name], slower) for figure in figures]
            today = datetime.now(UTC).date().isoformat()
            table = "\n".join(lines)
            PAGE.write_text(
                _PAGE.format(
                    growth=grown,
                    table=table,
                    rounds=number,
                    today=today,
                    cores=os.cpu_count(),
                    load=load,
                    slower=slower,
                    aimed=AIMED_LOOP_US,
                )
            )


def _line(figure: Figure, rounds: list[Spent], slower: float) -> str:
    cpu = [one.cpu for one in rounds]
    middle, wall = statistics.median(cpu), statistics.median(one.wall for one in rounds)
    if figure.aim == float("inf"):
        aim, met = "–", "–"
    else:
        compared = middle / slower if figure.unit in _TIMES else middle
        aim = f"{'≥' if figure.more_is_better else '≤'} {figure.aim:g}"
        met = f"{'yes' if figure.is_met(compared) else 'no'}{f', {_show(compared)}' if compared != middle else ''}"
    spread = f"{_show(min(cpu))}–{_show(max(cpu))}"
    shown = (figure.name, figure.unit, figure.before, aim, _show(middle), spread, _show(wall), met)
    return f"| {' | '.join(shown)} |"


def _show(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}"


_PAGE = """# Performance: what it costs, beside what it should cost

`make bench ARGS=--table` measures every figure of this page in one run and writes the page. The figures take turns,
{rounds} times each, so that a busy moment of the machine costs all of them alike. This run is of {today}, on a machine
with {cores} cores, whose load was {load:.1f} before it began.

**The plain loop** is what you would write with care: `json.loads`, a `jsonschema` validator built once, floats in a
list, and no record of anything. It judges 5,000 stored outputs of about 600 characters by keywords, a threshold and a
JSON Schema. A share of 0.3 means that Meruit takes 0.3 of the time of that loop for the same outputs.

"Before" is what was recorded for the version of 16 November 2026, in a run of its own. CPU is the median of the rounds,
spread its lowest and highest value, wall the median by the clock. "Met" compares the median of CPU with the aim. The
aims for times were compared on a machine whose plain loop takes {aimed} µs for an output. Here it takes
{slower:.2f} times as long, so times are divided by that before they are compared, and the quotient is shown. Ratios are
compared as they are.

| figure | unit | before | aim | CPU | spread | wall | met |
|---|---|---|---|---|---|---|---|
{table}

A ratio to a baseline, as a share of the plain loop or a multiple of another library, holds on a busy machine. A time
does not: next to other work it is more than on an idle machine, as the spread shows.

## Where the rest of the time goes

- **First record in bulk**: eight SHA-256 calls, canonical JSON and a slim row for each case are what is left; results
  that differ in numbers only are made once.
- **Rescoring**: up to 512 new versions share one blob, one entry of the log, one event and one row, and four such
  segments share a transaction. A fifth of the rest is the database's: one update for each outcome with its index, and
  the commit. A fifth is the SHA-256 calls that commit to each result of 2 KB, two fifths are writing its result, line,
  entry and event. Results that stand in rows, as those of single requests do until their first rescore, take about
  twice as long.
- **Measured again**: the same, and reading, hashing and parsing each output. The metrics themselves take an eighth.
- **The engine on cheap criteria**: three digests, one result struct for each criterion, and the time of day are what is
  left. A result that is kept also costs the garbage collector its share, which is in the figure of 5,000 outputs.
- **Text metrics**: cutting both texts into words and numbering the words take half of the time. An eighth counts words
  in loops of Python; the rest looks up the longer runs of words, all at once, and puts the scores together.
- **Sandbox**: three quarters of a `python` call on 10 KB is the interpreter's own work on 1,400 words. A `python-full`
  call costs about 2 ms of CPU beside the host: copying and ending 200 mappings and 3,000 pages takes 0.8 ms, and about
  330 faults on private pages and libraries take 0.7 ms. With an idle core, part of that overlaps with the next call.
  Where other work takes that core, a call takes twice as long, and so the figure varies.
- **The service**: parsing HTTP, authentication, telemetry and the durable transaction, shared by the callers of one
  moment, take more than judging does.
- **The gate**: each submission is written as rows and log entries of its own run, in a transaction that it may share.
- **Start-up**: pydantic, click and msgspec take two thirds of the time of `verify`; the models of criteria and settings
  take most of the rest. A record on SQLite needs the driver and a signature besides, but not SQLAlchemy.

## How cost grows with what is recorded

`python -m speed.growth` measures one action over a past of so many outcomes, contracts, observations or submissions, in
milliseconds of CPU. What is read by key stays flat, and so does one more observation or submission of the same run.

{growth}

`make bench` prints further ratios, and how cost grows with size.
"""
