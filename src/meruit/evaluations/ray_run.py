"""An evaluation of stored outputs on Ray's workers: each reads its share of the file and packs finished segments.

This process only appends them, in the order of the file. So the records are those of a run without Ray.
"""

import pickle
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from math import ceil
from pathlib import Path
from typing import Any

from meruit.errors import MeruitError
from meruit.evaluations.case_judge import FinishedSegment, pack_segment
from meruit.evaluations.datafiles import ColumnMap, DataFile
from meruit.evaluations.evaluation import EvaluationRecord
from meruit.evaluations.file_shares import FORMATS, FileShare, can_cut, cut_file, has_rows, read_share
from meruit.evaluations.ray_worker import JudgedShare, SharedRun, judge_share, read_reply, try_share
from meruit.evaluations.run import Report, RunState, TwinGuard
from meruit.evaluations.segment import unpack
from meruit.evaluations.service import Evaluator
from meruit.outcomes.rescore.ray import DEFAULT_WORKERS, LEAST_S, ray_session
from meruit.verify.catalogue import CompiledCriteria
from meruit.verify.engine import VerificationEngine

WAITING_SHARES = 2
"""Shares for each worker that are judged or wait to be recorded."""
WARM_ROWS, SAMPLE_ROWS, SAMPLE_S = 64, 512, 1.0
"""Rows and seconds that say how long a file takes; the first rows fill caches."""


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
        recorder = _ShareRecorder(state)
        shares = recorder.find_unrecorded(shared)
        with state.count_recorded_at_fault(), ray_session(self._workers) as starting:
            for share in shares:
                if starting.done():
                    starting.result()
                    self._judge_elsewhere(recorder, shared, chain((share,), shares))
                else:
                    # Until Ray is up, this process judges, and maybe all of them.
                    recorder.record(judge_share(shared, share))
        state.report_progress(last=True)
        return state.finish()

    def _judge_elsewhere(self, recorder: "_ShareRecorder", shared: SharedRun, shares: Iterator[FileShare]) -> None:
        import ray

        # Any: Ray has no types that say more.
        remote: Any = ray.remote(try_share)
        everywhere, waiting = ray.put(shared), deque[tuple[FileShare, Any]]()
        for share in shares:
            waiting.append((share, remote.remote(everywhere, share)))
            if len(waiting) >= WAITING_SHARES * self._workers:
                recorder.record(_result(ray, shared, *waiting.popleft()))
        while waiting:
            recorder.record(_result(ray, shared, *waiting.popleft()))


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


def _result(ray: Any, shared: SharedRun, share: FileShare, reference: Any) -> JudgedShare:
    try:
        judged = read_reply(ray.get(reference))
    except ray.exceptions.RayError as problem:
        raise MeruitError(f"a worker of Ray failed: {problem}; run the command again to continue") from None
    # Judged here once more, so that the error is the one that a run without Ray raises.
    return judge_share(shared, share) if isinstance(judged, str) else judged


def _refuse_unfit(file: DataFile, criteria: CompiledCriteria) -> None:
    if not can_cut(file):
        raise MeruitError(f"--engine ray reads a file that workers can read in parts: {', '.join(FORMATS)}")
    if criteria.asked:
        raise MeruitError("these criteria ask judges, and their votes are kept by this process: use --engine local")


class _ShareRecorder:
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

    def record(self, judged: JudgedShare) -> None:
        """Record what came of a share."""
        for segment in judged.segments:
            self._twins.check_all([(case.case_id, case.repeat) for case in segment.summaries])
        if self._state.evaluation.cases:
            self._record_unknown(judged.segments)
        else:
            self._state.count_share(judged.judged, judged.passed, judged.open, judged.spent_micros)
            self._state.record_segments(judged.segments)
        self._state.report_progress()

    def _record_unknown(self, segments: Sequence[FinishedSegment]) -> None:
        new = [one for one in map(self._without_known, segments) if one.summaries]
        for segment in new:
            for case in segment.summaries:
                self._state.count_summary(case)
        self._state.record_segments(new)

    def _without_known(self, segment: FinishedSegment) -> FinishedSegment:
        known = self._find_known([case.case_id for case in segment.summaries])
        unknown = [
            (summary, content)
            for summary, content in zip(segment.summaries, unpack(segment.blob), strict=True)
            if (summary.case_id, summary.repeat) not in known
        ]
        if len(unknown) in (0, len(segment.summaries)):
            return segment if unknown else FinishedSegment(summaries=(), root=b"", blob=b"")
        return pack_segment(*map(list, zip(*unknown, strict=True)))
