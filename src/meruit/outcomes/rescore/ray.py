"""Outcomes judged again by Ray's workers: each reads its span of the store and packs finished segments.

This process only appends them, in the order of the outcomes. So the records are those of a rescore without Ray.
"""

import logging
import os
import pickle
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from importlib.util import find_spec
from itertools import chain
from tempfile import TemporaryDirectory
from typing import Any, Self

import msgspec

from meruit.documents.sanitize import describe
from meruit.errors import MeruitError, StoreError, VersionOvertaken
from meruit.model.canonical import canonical
from meruit.model.criterion import SuccessCriteria
from meruit.model.decoding import msgpack_decoder
from meruit.model.time import to_micros
from meruit.outcomes.rescore.run import (
    LocalRunner,
    OutcomeScan,
    OutcomeSpan,
    Progress,
    RescoreSummary,
    RescoreTally,
    RescoreTask,
    VersionWriter,
    judge_scan,
    write_together,
)
from meruit.outcomes.store.batches import OutcomePlace
from meruit.outcomes.store.read import OutcomeFilter, criteria_from
from meruit.outcomes.store.rescored import (
    AddRescored,
    RescoredDraft,
    RescoredVerdict,
    RescoredVersions,
    SingleVersion,
)
from meruit.outcomes.store.write import RecordedVersion
from meruit.store.blobs import BlobStore
from meruit.store.database import Database, connect
from meruit.store.location import FILE, Location
from meruit.store.store import ClockAndEntropy, Store
from meruit.store.transaction import WriteTransaction
from meruit.verify.engine import VerificationEngine

DEFAULT_WORKERS = 2
LEAST_S = 45.0
"""What takes less is judged by one process: starting Ray takes seconds, and one process records."""
SPAN_ROWS = 2_048
"""Outcomes that a worker is given at a time: four segments, as a rule."""
WAITING_SPANS = 2
"""Spans for each worker that are judged or wait to be recorded."""
OBJECT_STORE_BYTES = 256 * 1024 * 1024
SIGNALLED = 128
"""Exit code of a process that a signal ended, less the signal's number."""
MAX_TASKS = 4
"""How many rescores a worker keeps ready."""
_QUIET = {
    # Nothing leaves this machine; stdout and stderr belong to the command.
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}
_ALONE = {
    # Without a cluster there is no other machine, and no need to ask the network for our own address.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}


class SharedRescore(msgspec.Struct, frozen=True):
    """What a worker makes its part of a rescore from; equal ones are known to be equal."""

    location: Location
    tenant: str
    criteria: bytes
    engine: bytes
    """How to make the engine, pickled."""
    now: datetime
    narrowed: OutcomeFilter | None
    reason: str
    again: bool
    dry_run: bool


class JudgedSpan(msgspec.Struct, frozen=True):
    """What a worker answers."""

    tally: RescoreTally
    """As if all versions were recorded."""
    examined: int
    versions: bytes
    """Some SentVersions. As bytes: Ray would spend as long on each version as recording it takes."""


class NoRecords(msgspec.Struct, frozen=True):
    """What a worker answers that does not find the store."""

    message: str


class RayRescore:
    """A rescore on Ray's workers: on this machine, or on RAY_ADDRESS's cluster.

    `make_engine` is called once in each worker, so it must be something that can be pickled. Without a number of
    workers, this process judges alone as long as the rest takes less than LEAST_S.
    """

    def __init__(
        self,
        make_engine: Callable[[], VerificationEngine],
        workers: int | None = None,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = pickle.dumps(make_engine)
        self._asked, self._workers = workers is not None, workers or DEFAULT_WORKERS
        self._timer = timer
        self.has_begun = False
        """Whether Ray was used."""

    def rescore(  # noqa: PLR0913 - one a decision
        self,
        store: Store,
        engine: VerificationEngine,
        tenant: str,
        criteria: SuccessCriteria,
        *,
        narrowed: OutcomeFilter | None,
        reason: str,
        now: datetime,
        progress: Progress,
        dry_run: bool = False,
        again: bool = False,
    ) -> RescoreSummary:
        """Judge stored outcomes by these criteria, as `run.rescore` does."""
        # Asked now: whether Ray is worth its start is known in the middle of the work.
        require_ray()
        began = self._timer()
        task = RescoreTask(engine, criteria, now)
        # Workers have another folder.
        location = msgspec.structs.replace(store.database.location, folder=store.database.location.folder.resolve())
        shared = SharedRescore(
            location=location,
            tenant=tenant,
            criteria=canonical(task.criteria.model_dump(exclude_defaults=True)),
            engine=self._engine,
            now=now,
            narrowed=narrowed,
            reason=reason,
            again=again,
            dry_run=dry_run,
        )
        state = _SpanRecorder(store, task, shared, progress)
        spans = state.reading.spans(SPAN_ROWS)
        with ExitStack() as session:
            starting: Future[None] | None = None
            for span in spans:
                if starting is None and (self._asked or state.remaining_s(self._timer() - began) >= LEAST_S):
                    starting, self.has_begun = session.enter_context(ray_session(self._workers)), True
                if starting is not None and starting.done():
                    starting.result()
                    self._judge_elsewhere(state, shared, chain((span,), spans))
                else:
                    state.judge(span)
        reading = state.reading
        return reading.tally.summary(task, reading.examined, dry_run=dry_run, seconds=self._timer() - began)

    def _judge_elsewhere(self, state: "_SpanRecorder", shared: SharedRescore, spans: Iterator[OutcomeSpan]) -> None:
        import ray

        # Any: Ray has no types that say more.
        remote: Any = ray.remote(try_span)
        everywhere, waiting = ray.put(shared), deque[tuple[OutcomeSpan, Any]]()
        for span in spans:
            waiting.append((span, remote.remote(everywhere, span)))
            if len(waiting) >= WAITING_SPANS * self._workers:
                state.record(*_result(ray, *waiting.popleft()))
        while waiting:
            state.record(*_result(ray, *waiting.popleft()))


def _result(ray: Any, span: OutcomeSpan, reference: Any) -> tuple[OutcomeSpan, JudgedSpan | str]:
    try:
        judged = ray.get(reference)
    except ray.exceptions.RayError as problem:
        raise MeruitError(f"a worker of Ray failed: {problem}; run the command again to continue") from None
    if isinstance(judged, NoRecords):
        raise StoreError(judged.message)
    return span, judged


class _SpanRecorder:
    """Records spans in the order of the outcomes."""

    def __init__(self, store: Store, task: RescoreTask, shared: SharedRescore, progress: Progress) -> None:
        self._store, self._task, self._shared, self._progress = store, task, shared, progress
        self.reading = OutcomeScan(store, shared.tenant, task, shared.narrowed, again=shared.again)

    def remaining_s(self, elapsed_s: float) -> float:
        """How long the rest takes, if it goes on as it went so far; 0 before anything is done."""
        done = self.reading.examined
        return (self.reading.total - done) * elapsed_s / done if done else 0.0

    def judge(self, span: OutcomeSpan) -> None:
        """Judge a span in this process."""
        write = None
        if not self._shared.dry_run:
            surroundings, append = self._store.surroundings, partial(write_together, self._store.recorder.write)
            write = VersionWriter(surroundings, append, self._shared.tenant, self._task, self._shared.reason)
        shared = self._shared
        part = OutcomeScan(self._store, shared.tenant, self._task, shared.narrowed, again=shared.again, span=span)
        judge_scan(part, self._task, LocalRunner(), write, lambda _: None)
        self._count(part.tally, part.examined)

    def record(self, span: OutcomeSpan, judged: JudgedSpan | str) -> None:
        """Record what a worker answered."""
        if isinstance(judged, str):
            # Judged here once more, so that the error is the one that a rescore without Ray raises.
            self.judge(span)
            return
        parts = [one.to_write(self._task, self._shared) for one in _READER.decode(judged.versions)]
        try:
            if parts:
                self._store.recorder.write(_AddAll(parts))
        except VersionOvertaken:
            self.judge(span)
        else:
            self._count(judged.tally, judged.examined)

    def _count(self, tally: RescoreTally, examined: int) -> None:
        self.reading.tally.merge(tally)
        self.reading.examined += examined
        self._progress(self.reading.examined, self.reading.total)


@dataclass(frozen=True, slots=True)
class _AddAll:
    """Versions that are recorded all together, or not at all."""

    parts: Sequence[AddRescored]

    def __call__(self, writing: WriteTransaction) -> None:
        """Write them; raises VersionOvertaken where one does not follow the version it expects."""
        for one in self.parts:
            if len(one(writing)) < len(one.versions):
                raise VersionOvertaken


# What crosses.


class SentVersions(msgspec.Struct, frozen=True, array_like=True):
    """The versions of one segment, without what only packing them needed."""

    # As plain tuples: what has names takes twice as long.
    outcomes: Sequence[tuple[str, int, int, str, float, int, str, str, int]]
    verdicts: list[RescoredVerdict]
    """Each once."""
    verdict_of: list[int]
    singles: dict[int, SingleVersion]
    """By the place of the outcome."""
    draft: RescoredDraft | None

    @classmethod
    def of(cls, write: AddRescored) -> Self:
        """Of what a worker would have written."""
        numbers: dict[RescoredVerdict, int] = {}
        return cls(
            outcomes=write.versions.outcomes,
            verdict_of=[numbers.setdefault(one, len(numbers)) for one in write.versions.verdicts],
            verdicts=[*numbers],
            singles=write.versions.singles,
            draft=write.draft,
        )

    def to_write(self, task: RescoreTask, shared: SharedRescore) -> AddRescored:
        """The same write, which fits all versions or none."""
        versions = RescoredVersions()
        versions.outcomes = [OutcomePlace(*one) for one in self.outcomes]
        versions.verdicts = [self.verdicts[one] for one in self.verdict_of]
        versions.singles = self.singles
        digest, at = task.compiled.plan.digest, to_micros(shared.now)
        return AddRescored(shared.tenant, shared.criteria, digest, versions, shared.reason, at, self.draft)


_READER = msgpack_decoder(list[SentVersions])


# In a worker.


@dataclass(frozen=True, slots=True)
class _Records:
    """What a worker reads of a store: it writes nothing, and has no key that signs."""

    database: Database
    blobs: BlobStore
    surroundings: ClockAndEntropy


def try_span(shared: SharedRescore, span: OutcomeSpan) -> JudgedSpan | NoRecords | str:
    """Judge a span: what runs in a worker. A problem comes back as text, because not every error can travel."""
    location = shared.location
    if location.url is None and not (location.folder / FILE).exists():
        where = f"a worker of Ray finds no records in {location.folder}"
        return NoRecords(f"{where}: keep them in Postgres, which all machines reach, or use --engine local")
    try:
        return judge_span(shared, span)
    except MeruitError as problem:
        return str(problem)


def judge_span(shared: SharedRescore, span: OutcomeSpan) -> JudgedSpan:
    """The versions of a span, ready to be recorded."""
    records, task = _job(shared)
    sent: list[SentVersions] = []

    def keep(several: Sequence[AddRescored]) -> list[list[RecordedVersion]]:
        sent.extend(SentVersions.of(one) for one in several)
        return [[RecordedVersion(row[0], row[2] + 1, 0) for row in one.versions.outcomes] for one in several]

    write = None
    if not shared.dry_run:
        write = VersionWriter(records.surroundings, keep, shared.tenant, task, shared.reason)
    reading = OutcomeScan(records, shared.tenant, task, shared.narrowed, again=shared.again, span=span)
    judge_scan(reading, task, LocalRunner(), write, lambda _: None)
    return JudgedSpan(reading.tally, reading.examined, msgspec.msgpack.encode(sent))


@lru_cache(maxsize=MAX_TASKS)
def _job(shared: SharedRescore) -> tuple[_Records, RescoreTask]:
    """The records, the engine and the criteria, made once a worker."""
    location = shared.location
    # Written only by the process that started this worker.
    make_engine: Callable[[], VerificationEngine] = pickle.loads(shared.engine)  # noqa: S301
    task = RescoreTask(make_engine(), criteria_from(shared.criteria), shared.now)
    return _Records(connect(location), BlobStore(location), ClockAndEntropy()), task


# Ray itself.


@contextmanager
def ray_session(workers: int) -> Iterator[Future[None]]:
    """Ray's workers, which end with this block; they start while it does something else.

    The future raises MeruitError where they do not start.
    """
    address = os.environ.get("RAY_ADDRESS")
    for name, value in (_QUIET if address else _QUIET | _ALONE).items():
        os.environ.setdefault(name, value)
    require_ray()
    with (
        _end_by_sigterm(),
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


def require_ray() -> None:
    """Raise MeruitError where Ray is not installed."""
    if find_spec("ray") is None:
        raise MeruitError("--engine ray needs Ray: pip install 'meruit[ray]'")


@contextmanager
def _end_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end this block in order: Ray sets a handler only where it starts in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(SIGNALLED + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
