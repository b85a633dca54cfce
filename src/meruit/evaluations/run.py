"""A whole run of an evaluation: cases in, segments out, with limits, progress, and going on after a death."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec

from meruit.errors import DocumentError, EvaluationConflict, InvalidCase, MeruitError
from meruit.evaluations.bulk_judge import BulkJudge
from meruit.evaluations.case_judge import FinishedSegment, JudgedCase, JudgeLimits, SegmentBuffer
from meruit.evaluations.evaluation import Case, CaseSummary, EvaluationRecord
from meruit.evaluations.reader import Evaluations
from meruit.evaluations.service import Evaluator
from meruit.evaluations.summary import OPEN, Rate, RateTally
from meruit.log.segment import MAX_CASES
from meruit.model.canonical import payload_digest
from meruit.verify.catalogue import CompiledCriteria

MAX_CONCURRENCY = 1_000
MAX_REPEAT = 1_000
REPORT_CASES = 32
"""Stored outputs that are judged before the time is asked for again."""
SEGMENTS_TOGETHER = 4
"""Segments of stored outputs that share a transaction: its commit costs about as much for several as for one."""
PROGRESS_S = 0.2
"""How often progress is reported."""


@dataclass(frozen=True, slots=True)
class RunLimits:
    """How a target is asked."""

    concurrency: int = 8
    repeat: int = 1
    """How often each case is tried."""
    retries: int = 2
    timeout_s: float = 120.0
    """For one try."""
    rate_per_s: float | None = None
    """Most outputs that are begun in a second, further tries included."""
    cost_limit_micros: int | None = None
    """No case is begun once so much was spent."""
    judge_tokens: int | None = None
    """Tokens of judges for the whole evaluation, where that is stricter than the settings."""

    @property
    def judges(self) -> JudgeLimits:
        """How judges are asked."""
        return JudgeLimits(self.concurrency, self.judge_tokens)

    def __post_init__(self) -> None:
        """Refuse limits that cannot be meant."""
        for name, value, most in (
            ("concurrency", self.concurrency, MAX_CONCURRENCY),
            ("repeat", self.repeat, MAX_REPEAT),
        ):
            if not 1 <= value <= most:
                raise MeruitError(f"{name} is 1 to {most}, not {value}")
        if self.retries < 0:
            raise MeruitError(f"retries are 0 or more, not {self.retries}")
        for name, number in (("timeout", self.timeout_s), ("rate", self.rate_per_s)):
            if number is not None and not 0 < number < float("inf"):
                raise MeruitError(f"{name} is a positive number, not {number}")
        for what, limit in (("cost limit", self.cost_limit_micros), ("limit of judges' tokens", self.judge_tokens)):
            if limit is not None and limit < 0:
                raise MeruitError(f"the {what} is 0 or more")


@dataclass(frozen=True, slots=True)
class EvaluationProgress:
    """How far a run is."""

    done: int
    """Cases recorded or judged, those of earlier processes included."""
    planned: int | None
    rate: Rate
    """Of what this process has judged."""
    spent_micros: int
    elapsed_s: float
    judged: int
    """By this process."""

    @property
    def per_s(self) -> float:
        """Cases a second, of this process."""
        return self.judged / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def remaining_s(self) -> float | None:
        """The time left, where the number of cases is known."""
        if self.planned is None or not self.judged:
            return None
        return max(0, self.planned - self.done) / self.per_s


Report = Callable[[EvaluationProgress], None]


def check_same_reading(
    reader: Evaluations, evaluation: EvaluationRecord, cases: Iterable[Case], *, has_target: bool
) -> None:
    """Refuse to go on with a file whose columns are mapped in another way: the cases would be of two kinds.

    The first recorded case is compared with the file's; it is among the first ones that were read.
    """
    recorded = next(reader.details(evaluation, limit=1), None)
    if recorded is None or recorded.input is None:
        return
    one, read_again = recorded.summary, islice(cases, MAX_CASES + MAX_CONCURRENCY)
    # With a target, the tries of a case are those of --repeat.
    fits = (case for case in read_again if case.id == one.case_id and (has_target or case.repeat == one.repeat))
    case = next(fits, None)
    theirs: list[Any] = [recorded.input, one.group, one.tags, one.claimed]
    ours: list[Any] = [] if case is None else [case.input, case.group, case.tags, case.claimed]
    if case is not None and not has_target:
        # A target makes the output and the cost, and adds to the metadata.
        theirs += [recorded.output or {}, recorded.metadata or {}, one.cost_micros]
        ours += [case.output or {}, case.metadata, case.cost_micros]
    if case is None or any(payload_digest(a) != payload_digest(b) for a, b in zip(theirs, ours, strict=True)):
        raise EvaluationConflict(
            f"the evaluation {evaluation.name!r} was begun with cases that were read otherwise (--map, --pass-score), "
            f"and {evaluation.cases:,} of them are recorded; choose another name, or continue as it was begun"
        )


@dataclass
class RunState:
    """What a run knows while it goes on."""

    evaluator: Evaluator
    evaluation: EvaluationRecord
    criteria: CompiledCriteria
    report: Report | None
    timer: Callable[[], float]
    spent_micros: int = 0
    judged: int = 0
    """By this process."""
    buffer: SegmentBuffer = field(default_factory=SegmentBuffer)
    began: float = 0.0
    reported: float = float("-inf")
    tally: RateTally = field(default_factory=lambda: RateTally(clustered=False))
    recorded: int = 0
    """Cases that are known to be recorded; more of them in the store come from another process."""

    def __post_init__(self) -> None:
        self.began = self.timer()
        self.recorded = self.evaluation.cases

    def count(self, judged: JudgedCase) -> list[JudgedCase]:
        """Count a judged case; a segment to record, where it fills one."""
        self.count_summary(judged.summary)
        return self.buffer.add(judged)

    def count_summary(self, case: CaseSummary) -> None:
        """Count a case that is judged."""
        self.judged += 1
        self.spent_micros += case.cost_micros or 0
        self.tally.add(passed=case.success, open_=case.verdict in OPEN, group=case.case_id)

    def count_share(self, judged: int, passed: int, open_: int, spent_micros: int) -> None:
        """Count cases that another process judged."""
        self.judged += judged
        self.spent_micros += spent_micros
        self.tally.passed += passed
        self.tally.open += open_
        self.tally.failed += judged - passed - open_

    def record(self, cases: list[JudgedCase]) -> None:
        """Record a segment, unless it is empty."""
        if cases:
            self.evaluator.record(self.evaluation, cases, recorded=self.recorded)
            self.recorded += len(cases)

    def record_segments(self, segments: Sequence[FinishedSegment]) -> None:
        """Record several together."""
        if segments:
            self.evaluator.record_all(self.evaluation, segments, recorded=self.recorded)
            self.recorded += sum(len(one.summaries) for one in segments)

    def finish(self) -> EvaluationRecord:
        """Finish the evaluation; raises NoCases where it has none."""
        return self.evaluator.finish(self.evaluation)

    @contextmanager
    def count_recorded_at_fault(self) -> Iterator[None]:
        """Say in an error of the data how many cases are recorded, because mended data may need another name."""
        try:
            yield
        except (DocumentError, InvalidCase) as fault:
            known = self.evaluator.find(self.evaluation.id)
            if not known.cases:
                raise
            recorded = f"{known.cases:,} cases are recorded under the name {known.name!r} already"
            # Where the data has no digest, other data goes on behind them.
            after = "the mended data goes on" if known.dataset_digest is None else "the mended file needs another name"
            if isinstance(fault, InvalidCase):
                raise InvalidCase(f"{fault}; {recorded}; {after}") from None
            *others, last = fault.problems
            last = last._replace(message=f"{last.message}; {recorded}; {after}")
            raise DocumentError(fault.name, [*others, last]) from None

    def count_bulk(self, bulk: BulkJudge) -> None:
        """Take over what was counted in bulk."""
        self.judged, self.spent_micros = bulk.judged, bulk.spent_micros
        self.tally.passed, self.tally.open = bulk.passed, bulk.open
        self.tally.failed = bulk.judged - bulk.passed - bulk.open

    def report_progress(self, *, last: bool = False) -> None:
        """Report progress, from time to time."""
        now = self.timer()
        if self.report is None or (not last and now - self.reported < PROGRESS_S):
            return
        self.reported = now
        done, planned = self.evaluation.cases + self.judged, self.evaluation.planned
        rate = self.tally.rate()
        self.report(
            EvaluationProgress(
                done=done,
                planned=planned,
                rate=rate,
                spent_micros=self.spent_micros,
                elapsed_s=now - self.began,
                judged=self.judged,
            )
        )


def run_cases(
    evaluator: Evaluator,
    evaluation: EvaluationRecord,
    criteria: CompiledCriteria,
    cases: Iterable[Case],
    *,
    limits: JudgeLimits = JudgeLimits(),  # noqa: B008 - frozen
    report: Report | None = None,
    timer: Callable[[], float] = time.monotonic,
) -> EvaluationRecord:
    """Judge and record cases that have their outputs; those that are recorded already are passed over."""
    run = RunState(evaluator=evaluator, evaluation=evaluation, criteria=criteria, report=report, timer=timer)
    missing = evaluator.missing(evaluation, without_twins(cases))
    with run.count_recorded_at_fault():
        if criteria.asked:
            # Judges take seconds, several are asked at a time, and each case is reported.
            for judged in evaluator.judge_all(evaluation, criteria, missing, limits):
                run.record(run.count(judged))
                run.report_progress()
            run.record(run.buffer.take())
        else:
            _run_plain(run, missing)
    run.report_progress(last=True)
    return run.finish()


def _run_plain(run: RunState, cases: Iterable[Case]) -> None:
    """Judge and record cases that no judge is asked about."""
    bulk, finished = run.evaluator.bulk_judge(run.criteria), list[FinishedSegment]()
    try:
        for number, case in enumerate(cases):
            if segment := bulk.add(case):
                finished.append(segment)
                if len(finished) == SEGMENTS_TOGETHER:
                    together, finished = finished, []
                    run.record_segments(together)
            # Asking for the time for each of them would take longer than judging.
            if number % REPORT_CASES == 0:
                run.count_bulk(bulk)
                run.report_progress()
        if segment := bulk.take():
            finished.append(segment)
    finally:
        # Also where the data has a fault or the run is interrupted: whole segments before that are recorded.
        run.record_segments(finished)
    run.count_bulk(bulk)


def without_twins(cases: Iterable[Case]) -> Iterator[Case]:
    """The cases; raises InvalidCase where two have one id."""
    guard = TwinGuard()
    # As `check` does, written out: it is done for each case.
    seen, add = guard.seen, guard.seen.add
    for case in cases:
        key = hash((case.id, case.repeat))
        if key in seen:
            guard.check(case.id, case.repeat)
        add(key)
        yield case


class TwinGuard:
    """Remembers which cases came before."""

    def __init__(self) -> None:
        # Hashes, because a million ids would take three times as much memory.
        self.seen: set[int] = set()

    def check(self, case_id: str, repeat: int) -> None:
        """Raise InvalidCase for a case that came before."""
        key = hash((case_id, repeat))
        if key in self.seen:
            raise InvalidCase(
                f"two cases have the id {case_id!r}; give each its own, or map another column to id (several tries of "
                "one case differ in `repeat`)"
            )
        self.seen.add(key)

    def check_all(self, cases: Sequence[tuple[str, int]]) -> None:
        """The same for several."""
        keys = {*map(hash, cases)}
        if len(keys) == len(cases) and self.seen.isdisjoint(keys):
            self.seen |= keys
        else:
            for case_id, repeat in cases:
                self.check(case_id, repeat)


def repeat_cases(cases: Iterable[Case], times: int) -> Iterator[Case]:
    """Each case as often as it is to be tried."""
    for case in cases:
        for number in range(times):
            yield msgspec.structs.replace(case, repeat=number) if times > 1 else case
