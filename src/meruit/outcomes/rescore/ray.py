"""Batches judged by Ray's workers: the same function, elsewhere; only this process reads and writes records."""

import logging
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from meruit.documents.sanitize import describe
from meruit.errors import MeruitError
from meruit.model.canonical import canonical
from meruit.model.verdict import VerificationResult
from meruit.outcomes.rescore.run import JudgedBatches, RescoreBatch, RescoreRow, RescoreTask, judge_rows
from meruit.outcomes.store.read import OutcomeWork, criteria_from
from meruit.outcomes.store.rescored import RescoredResult
from meruit.verify.engine import VerificationEngine

DEFAULT_WORKERS = 2
SPAN_ROWS = 10_000
"""Outcomes that are with the workers at a time."""
SPAN_BYTES = 64 * 1024 * 1024
"""Work that is with the workers at a time, unless a single batch is larger."""
TASK_ROWS = 250
"""Outcomes that a worker is given at a time, at most."""
OBJECT_STORE_BYTES = 256 * 1024 * 1024
MAX_TASKS = 4
"""How many sets of criteria a worker keeps ready."""
_QUIET = {
    # Nothing leaves this machine; stdout and stderr belong to the command.
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}
_ALONE = {
    # Without a cluster there is no other machine, and no need to ask the network for our own address.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}


class _SerializedTask(msgspec.Struct, frozen=True):
    """What a worker makes its task from: bytes, so that equal ones are known to be equal."""

    criteria: bytes
    engine: bytes
    """How to make the engine, pickled."""
    now: str


class RayRunner:
    """Judges on Ray's workers, a bounded number of batches at a time: on this machine, or on RAY_ADDRESS's cluster.

    `make_engine` is called once in each worker, so it must be something that can be pickled.
    """

    def __init__(self, make_engine: Callable[[], VerificationEngine], workers: int = DEFAULT_WORKERS) -> None:
        self._engine = pickle.dumps(make_engine)
        self._workers = workers

    def judge(self, task: RescoreTask, waiting: Iterator[RescoreBatch]) -> JudgedBatches:
        """Each batch with a result for each of its lines, in the order they come."""
        criteria = canonical(task.criteria.model_dump(exclude_defaults=True))
        sent = _SerializedTask(criteria=criteria, engine=self._engine, now=task.now.isoformat())
        with ray_session(self._workers) as starting:
            starting.result()
            data = _ray_data()
            for span in _spans(waiting):
                results = self._span(data, sent, [line.row for batch in span for line in batch.lines])
                start = 0
                for batch in span:
                    yield batch, [RescoredResult.of(one) for one in results[start : start + len(batch.lines)]]
                    start += len(batch.lines)

    # Any: Ray Data has no types that say more.
    def _span(self, data: Any, sent: _SerializedTask, rows: Sequence[RescoreRow]) -> list[VerificationResult]:
        if not rows:
            return []
        found: list[VerificationResult | None] = [None] * len(rows)
        tables = list(_tables(rows, min(TASK_ROWS, -(-len(rows) // self._workers))))
        judged = data.from_arrow(tables).map_batches(
            judge_table,
            fn_kwargs={"sent": sent},
            batch_format="pyarrow",
            batch_size=None,
            compute=data.TaskPoolStrategy(size=min(self._workers, len(tables))),
        )
        for block in judged.iter_batches(batch_format="pyarrow", batch_size=None):
            for place, written in zip(block["place"].to_pylist(), block["result"].to_pylist(), strict=True):
                found[place] = VerificationResult.from_json(written)
        whole = [result for result in found if result is not None]
        if len(whole) < len(rows):
            raise MeruitError(f"Ray answered for {len(whole)} of {len(rows)} outcomes; run the command again")
        return whole


def _spans(waiting: Iterator[RescoreBatch]) -> Iterator[list[RescoreBatch]]:
    """Batches in groups of a bounded size."""
    span: list[RescoreBatch] = []
    rows = size = 0
    for batch in waiting:
        heavy = sum(len(part or b"") for line in batch.lines for part in line.row.work)
        if span and (rows + len(batch.lines) > SPAN_ROWS or size + heavy > SPAN_BYTES):
            yield span
            span, rows, size = [], 0, 0
        span.append(batch)
        rows, size = rows + len(batch.lines), size + heavy
    if span:
        yield span


# What crosses: Any is a table of pyarrow's.


def _tables(rows: Sequence[RescoreRow], size: int) -> Iterator[Any]:
    """Rows as Ray carries them, some for each time that a worker is asked."""
    import pyarrow as pa  # type: ignore[import-untyped]  # it has no types of its own

    schema = pa.schema(
        [
            ("place", pa.int64()),
            ("old", pa.large_binary()),
            ("sources", pa.list_(pa.int32())),
            *((name, pa.large_binary()) for name in OutcomeWork._fields),
        ]
    )
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        yield pa.table(
            {
                "place": range(start, start + len(some)),
                "old": [row.result.to_json() for row in some],
                "sources": [row.sources for row in some],
                **{name: [getattr(row.work, name) for row in some] for name in OutcomeWork._fields},
            },
            schema=schema,
        )


def judge_table(table: Any, sent: _SerializedTask) -> Any:
    """Judge a table of rows: what runs in a worker."""
    import pyarrow as pa

    rows = [
        RescoreRow(
            stored=VerificationResult.from_json(one["old"]),
            sources=None if one["sources"] is None else tuple(one["sources"]),
            work=OutcomeWork(*(one[name] for name in OutcomeWork._fields)),
        )
        for one in table.to_pylist()
    ]
    results = [result.to_json() for result in judge_rows(_task(sent), rows)]
    return pa.table({"place": table["place"], "result": pa.array(results, pa.large_binary())})


@lru_cache(maxsize=MAX_TASKS)
def _task(sent: _SerializedTask) -> RescoreTask:
    """The engine and the criteria, made once a worker."""
    # Written only by the process that started this worker.
    make_engine: Callable[[], VerificationEngine] = pickle.loads(sent.engine)  # noqa: S301
    return RescoreTask(make_engine(), criteria_from(sent.criteria), datetime.fromisoformat(sent.now))


# Ray itself.


def _ray_data() -> Any:
    """Ray's data library, without its bars of progress."""
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    return ray.data


@contextmanager
def ray_session(workers: int) -> Iterator[Future[None]]:
    """Ray's workers, which end with this block; they start while it does something else.

    The future raises MeruitError where they do not start.
    """
    address = os.environ.get("RAY_ADDRESS")
    for name, value in (_QUIET if address else _QUIET | _ALONE).items():
        os.environ.setdefault(name, value)
    if find_spec("ray") is None:
        raise MeruitError("--engine ray needs Ray: pip install 'meruit[ray]'")
    with (
        # Where Ray itself would put it: the names of its sockets must be short.
        TemporaryDirectory(prefix="meruit-ray-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        ThreadPoolExecutor(1) as thread,
    ):
        starting = thread.submit(_start, address, workers, folder)
        try:
            yield starting
        finally:
            # A start cannot be interrupted.
            if starting.exception() is None:
                import ray

                ray.shutdown()


def _start(address: str | None, workers: int, folder: str) -> None:
    # Loading Ray takes a moment as well.
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        ray.init(**_options(address, workers, folder))
    # Where this machine is too busy, Ray raises a bare Exception, or ends the program.
    except (Exception, SystemExit) as problem:  # noqa: BLE001
        ray.shutdown()
        raise MeruitError(f"Ray did not start: {describe(problem)}; try again, or use --engine local") from None


def _options(address: str | None, workers: int, folder: str) -> dict[str, Any]:
    """How Ray starts: on its own variable's cluster, else here, reachable from this machine only."""
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address:
        return {"address": address, **quiet}
    return {
        "address": "local",
        "num_cpus": workers,
        "include_dashboard": False,
        "object_store_memory": OBJECT_STORE_BYTES,
        "_node_ip_address": "127.0.0.1",
        "_temp_dir": folder,
        **quiet,
    }
