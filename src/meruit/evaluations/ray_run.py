"""An evaluation of stored outputs on Ray's workers: each reads its share of the file and packs finished segments.

This process only appends them, in the order of the file. So the records are those of a run without Ray.
"""

import pickle
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any

import msgspec

from meruit.errors import MeruitError
from meruit.evaluations.bulk_judge import BulkJudge
from meruit.evaluations.case_judge import CaseJudge, FinishedSegment, pack_segment
from meruit.evaluations.datafiles import ColumnMap, DataFile
from meruit.evaluations.evaluation import EvaluationRecord
from meruit.evaluations.file_shares import FORMATS, FileShare, can_cut, cut_file, has_rows, read_share
from meruit.evaluations.run import Report, RunState, TwinGuard
from meruit.evaluations.segment import unpack
from meruit.evaluations.service import Evaluator
from meruit.outcomes.records import criteria_from
from meruit.outcomes.rescore.ray import DEFAULT_WORKERS, ray_session
from meruit.store.store import ClockAndEntropy
from meruit.verify.catalogue import CompiledCriteria
from meruit.verify.engine import VerificationEngine

MAX_JOBS = 4
"""How many evaluations a worker keeps ready."""
WAITING_SHARES = 2
"""Shares for each worker that are judged or wait to be recorded."""
LEAST_S = 45.0
"""Judging that takes less is done here: starting Ray takes eight seconds or more, and this process records alone."""
WARM_ROWS, SAMPLE_ROWS, SAMPLE_S = 64, 512, 1.0
"""Rows and seconds that say how long a file takes; the first rows fill caches."""


class SharedRun(msgspec.Struct, frozen=True):
    """What a worker makes its part of a run from: bytes and texts, so that equal ones are known to be equal."""

    criteria: bytes
    engine: bytes
    """How to make the engine, pickled."""
    tenant: str
    file: DataFile
    columns: ColumnMap


class RayRun:
    """Judges the shares of a file on Ray's workers: on this machine, or on RAY_ADDRESS's cluster.

    `make_engine` is called once in each worker, so it must be something that can be pickled.
    """

    def __init__(
        self, make_engine: Callable[[], VerificationEngine], tenant: str, workers: int = DEFAULT_WORKERS
    ) -> None:
        self._engine, self._tenant, self._workers = pickle.dumps(make_engine), tenant, workers

    def run(
        self,
        evaluator: Evaluator,
        evaluation: EvaluationRecord,
        criteria: CompiledCriteria,
        file: DataFile,
        columns: ColumnMap,
        *,
        report: Report | None = None,
        timer: Callable[[], float] = time.monotonic,
    ) -> EvaluationRecord:
        """Judge and record the cases of a file; those that are recorded already are passed over."""
        _refuse_unfit(file, criteria)
        # Workers have another folder.
        file = DataFile(str(Path(file.path).resolve()), file.format, file.digest, file.rows)
        shared = SharedRun(criteria=criteria.body, engine=self._engine, tenant=self._tenant, file=file, columns=columns)
        state = RunState(evaluator=evaluator, evaluation=evaluation, criteria=criteria, report=report, timer=timer)
        recorder = _InOrder(state)
        with state.count_recorded_at_fault(), ray_session(self._workers):
            import ray

            # Any: Ray has no types that say more.
            remote: Any = ray.remote(try_share)
            waiting: deque[tuple[FileShare, Any]] = deque()
            for share in recorder.find_unrecorded(shared):
                waiting.append((share, remote.remote(shared, share)))
                if len(waiting) >= WAITING_SHARES * self._workers:
                    recorder.record(shared, *_result(ray, *waiting.popleft()))
            while waiting:
                recorder.record(shared, *_result(ray, *waiting.popleft()))
        state.report_progress(last=True)
        return state.finish()


def is_worth_ray(
    evaluator: Evaluator,
    criteria: CompiledCriteria,
    file: DataFile,
    columns: ColumnMap,
    *,
    timer: Callable[[], float] = time.perf_counter,
) -> bool:
    """Whether judging the file here would take longer than LEAST_S, by its first rows; True for what Ray refuses."""
    if not can_cut(file) or criteria.asked:
        return True
    bulk, began, rows, took = evaluator.bulk_judge(criteria), timer(), 0, 0.0
    for number, case in enumerate(islice(file.cases(columns), WARM_ROWS + SAMPLE_ROWS), 1):
        bulk.add(case)
        rows, took = rows + 1, timer() - began
        if took >= SAMPLE_S:
            break
        if number == WARM_ROWS:
            began, rows = timer(), 0
    return rows > 0 and has_rows(file, ceil(LEAST_S * rows / max(took, 1e-9)))


def _result(ray: Any, share: FileShare, reference: Any) -> tuple[FileShare, list[FinishedSegment] | str]:
    try:
        return share, _READER.decode(ray.get(reference))
    except ray.exceptions.RayError as problem:
        raise MeruitError(f"a worker of Ray failed: {problem}; run the command again to continue") from None


def _refuse_unfit(file: DataFile, criteria: CompiledCriteria) -> None:
    if not can_cut(file):
        raise MeruitError(f"--engine ray reads a file that workers can read in parts: {', '.join(FORMATS)}")
    if criteria.asked:
        raise MeruitError("these criteria ask judges, and their votes are kept by this process: use --engine local")


class _InOrder:
    """Records segments in the order of the file, each case once."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._twins = TwinGuard()

    def find_unrecorded(self, shared: SharedRun) -> Iterator[FileShare]:
        """The shares that hold something new; a run that goes on reads the ids of the others."""
        for share in cut_file(shared.file):
            if self._state.evaluation.cases:
                keys = [(case.id, case.repeat) for case in read_share(shared.file, share, shared.columns)]
                if not {*keys} - self._find_known([case_id for case_id, _ in keys]):
                    for key in keys:
                        self._twins.check(*key)
                    continue
            yield share

    def _find_known(self, ids: list[str]) -> set[tuple[str, int]]:
        return self._state.evaluator.find_known(self._state.evaluation, ids)

    def record(self, shared: SharedRun, share: FileShare, segments: list[FinishedSegment] | str) -> None:
        """Record what came of a share."""
        if isinstance(segments, str):
            # Judged here once more, so that the error is the one that a run without Ray raises.
            segments = judge_share(shared, share)
        for segment in segments:
            for case in segment.summaries:
                self._twins.check(case.case_id, case.repeat)
            new = self._without_known(segment)
            for case in new.summaries:
                self._state.count_summary(case)
            if new.summaries:
                self._state.evaluator.record_finished(self._state.evaluation, new)
            self._state.report_progress()

    def _without_known(self, segment: FinishedSegment) -> FinishedSegment:
        if not self._state.evaluation.cases:
            return segment
        known = self._find_known([case.case_id for case in segment.summaries])
        unknown = [
            (summary, content)
            for summary, content in zip(segment.summaries, unpack(segment.blob), strict=True)
            if (summary.case_id, summary.repeat) not in known
        ]
        if len(unknown) in (0, len(segment.summaries)):
            return segment if unknown else FinishedSegment(summaries=(), root=b"", blob=b"")
        return pack_segment(*map(list, zip(*unknown, strict=True)))


def try_share(shared: SharedRun, share: FileShare) -> bytes:
    """Judge a share: what runs in a worker. A problem comes back as text, because not every error can travel.

    As bytes of our own: Ray would spend as long on each case as judging it takes.
    """
    try:
        return msgspec.msgpack.encode(judge_share(shared, share))
    except MeruitError as problem:
        return msgspec.msgpack.encode(str(problem))


_READER: msgspec.msgpack.Decoder[list[FinishedSegment] | str] = msgspec.msgpack.Decoder(list[FinishedSegment] | str)


def judge_share(shared: SharedRun, share: FileShare) -> list[FinishedSegment]:
    """The finished segments of a share."""
    bulk, finished = BulkJudge(*_job(shared.criteria, shared.engine, shared.tenant)), list[FinishedSegment]()
    for case in read_share(shared.file, share, shared.columns):
        if segment := bulk.add(case):
            finished.append(segment)
    if segment := bulk.take():
        finished.append(segment)
    return finished


@lru_cache(maxsize=MAX_JOBS)
def _job(criteria: bytes, engine: bytes, tenant: str) -> tuple[CaseJudge, CompiledCriteria]:
    """The engine and the criteria, made once a worker."""
    # Written only by the process that started this worker.
    make_engine: Callable[[], VerificationEngine] = pickle.loads(engine)  # noqa: S301
    made = make_engine()
    return CaseJudge(made, tenant, ClockAndEntropy()), made.compile(criteria_from(criteria))
