"""A whole run of an evaluation: cases in, segments out, with limits, progress, and going on after a death."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from meruit.errors import MeruitError, TargetFailed
from meruit.evaluations.service import Evaluator, JudgedCase, SegmentBuffer
from meruit.evaluations.summary import Rate, SummaryBuilder
from meruit.evaluations.targets import Target, TargetOutput
from meruit.model.evaluation import Case, CaseError, EvaluationRecord
from meruit.verify.catalogue import CompiledCriteria

MAX_CONCURRENCY = 1_000
MAX_REPEAT = 1_000
FLUSH_S = 0.5
"""How long finished outputs of a target may wait to be recorded: a death loses no more than this."""
BACKOFF_S = 0.5
"""The pause before the first retry; it doubles each time."""
MAX_BACKOFF_S = 30.0
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
    """Most cases that are begun in a second."""
    cost_limit_micros: int | None = None
    """No case is begun once so much was spent."""

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
        if self.cost_limit_micros is not None and self.cost_limit_micros < 0:
            raise MeruitError("the cost limit is 0 or more")


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


@dataclass
class _Run:
    """What a run knows while it goes on."""

    evaluator: Evaluator
    evaluation: EvaluationRecord
    criteria: CompiledCriteria
    report: Report | None
    timer: Callable[[], float]
    spent_micros: int = 0
    judged: int = 0
    buffer: SegmentBuffer = field(default_factory=SegmentBuffer)
    began: float = 0.0
    reported: float = float("-inf")
    flushed: float = 0.0
    builder: SummaryBuilder = field(default_factory=lambda: SummaryBuilder(()))

    def __post_init__(self) -> None:
        self.began = self.flushed = self.timer()

    def add(self, case: Case) -> None:
        """Judge a case and keep it until its segment is full."""
        judged = self.evaluator.judge(self.criteria, case)
        self.judged += 1
        self.spent_micros += case.cost_micros or 0
        self.builder.add(judged.summary)
        self._record(self.buffer.add(judged))
        self.tell()

    def flush(self) -> None:
        """Record what has gathered."""
        self._record(self.buffer.take())

    def flush_if_due(self) -> None:
        """Record what has waited long enough."""
        if self.timer() - self.flushed >= FLUSH_S:
            self.flush()

    def _record(self, cases: list[JudgedCase]) -> None:
        if cases:
            self.evaluator.record(self.evaluation, cases)
            self.flushed = self.timer()

    def tell(self, *, last: bool = False) -> None:
        """Report progress, from time to time."""
        now = self.timer()
        if self.report is None or (not last and now - self.reported < PROGRESS_S):
            return
        self.reported = now
        done, planned = self.evaluation.cases + self.judged, self.evaluation.planned
        rate = self.builder.overall()
        self.report(EvaluationProgress(done, planned, rate, self.spent_micros, now - self.began, self.judged))


def run_cases(
    evaluator: Evaluator,
    evaluation: EvaluationRecord,
    criteria: CompiledCriteria,
    cases: Iterable[Case],
    *,
    report: Report | None = None,
    timer: Callable[[], float] = time.monotonic,
) -> EvaluationRecord:
    """Judge and record cases that have their outputs; those that are recorded already are passed over."""
    run = _Run(evaluator, evaluation, criteria, report, timer)
    for case in evaluator.missing(evaluation, _without_twins(cases)):
        run.add(case)
    run.flush()
    run.tell(last=True)
    return evaluator.finish(evaluation)


def _without_twins(cases: Iterable[Case]) -> Iterator[Case]:
    """The cases; raises MeruitError where two have one id."""
    # Hashes, because a million ids would take three times as much memory.
    seen: set[int] = set()
    for case in cases:
        key = hash((case.id, case.repeat))
        if key in seen:
            raise MeruitError(
                f"two cases have the id {case.id!r}; give each its own, or map another column to id (several tries of "
                "one case differ in `repeat`)"
            )
        seen.add(key)
        yield case


def repeat_cases(cases: Iterable[Case], times: int) -> Iterator[Case]:
    """Each case as often as it is to be tried."""
    for case in cases:
        for number in range(times):
            yield msgspec.structs.replace(case, repeat=number) if times > 1 else case


async def run_target(  # noqa: PLR0913 - one a choice
    evaluator: Evaluator,
    evaluation: EvaluationRecord,
    criteria: CompiledCriteria,
    cases: Iterable[Case],
    target: Target,
    limits: RunLimits = RunLimits(),  # noqa: B008 - frozen
    *,
    report: Report | None = None,
    timer: Callable[[], float] = time.monotonic,
) -> EvaluationRecord:
    """Have a target make the outputs, judge and record them; going on where an earlier process ended."""
    run = _Run(evaluator, evaluation, criteria, report, timer, spent_micros=evaluator.total_cost_micros(evaluation))
    waiting = evaluator.missing(evaluation, _without_twins(repeat_cases(cases, limits.repeat)))
    pace = _Pace(limits.rate_per_s)
    stopped = False
    async with _closing(target):
        running: set[asyncio.Task[Case]] = set()
        more = True
        while more or running:
            while more and len(running) < limits.concurrency:
                if limits.cost_limit_micros is not None and run.spent_micros >= limits.cost_limit_micros:
                    more, stopped = False, True
                    break
                case = next(waiting, None)
                if case is None:
                    more = False
                    break
                await pace.wait()
                running.add(asyncio.create_task(_make(target, case, limits)))
            if running:
                done, running = await asyncio.wait(running, timeout=FLUSH_S, return_when=asyncio.FIRST_COMPLETED)
                for one in done:
                    run.add(one.result())
            run.flush_if_due()
    run.flush()
    run.tell(last=True)
    if stopped:
        raise MeruitError(
            f"the cost limit is reached: {run.spent_micros / 1e6:.2f} dollars are spent, and "
            f"{run.evaluation.cases + run.judged} cases are recorded; run again with a higher limit to go on"
        )
    return evaluator.finish(evaluation)


@asynccontextmanager
async def _closing(target: Target) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await target.close()


class _Pace:
    """Lets cases begin at most so many a second."""

    def __init__(self, per_s: float | None) -> None:
        self._every_s = 0.0 if per_s is None else 1 / per_s
        self._next = 0.0

    async def wait(self) -> None:
        if self._every_s:
            now = asyncio.get_running_loop().time()
            self._next = max(self._next, now) + self._every_s
            await asyncio.sleep(self._next - self._every_s - now)


async def _make(target: Target, case: Case, limits: RunLimits) -> Case:
    """The case with its output, or with the reason why it has none."""
    problem: tuple[CaseError, str] = (CaseError.TARGET_ERROR, "")
    for attempt in range(limits.retries + 1):
        if attempt:
            await asyncio.sleep(min(BACKOFF_S * 2 ** (attempt - 1), MAX_BACKOFF_S))
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(limits.timeout_s):
                made = await target.make(case)
        except TimeoutError:
            problem = CaseError.TARGET_TIMEOUT, f"no output within {limits.timeout_s:g} s"
        except TargetFailed as failed:
            problem = CaseError.TARGET_ERROR, str(failed)
            if not failed.retry:
                break
        else:
            return _with_output(case, made, (asyncio.get_running_loop().time() - began) * 1_000)
    return msgspec.structs.replace(case, output=None, error=problem[0], error_message=problem[1])


def _with_output(case: Case, made: TargetOutput, took_ms: float) -> Case:
    # What the target says of its time comes before our clock, which includes the way there.
    metadata = {**case.metadata, "duration_ms": round(took_ms, 3), **made.metadata}
    return msgspec.structs.replace(case, output=made.output, metadata=metadata, cost_micros=made.cost_micros)
