"""A run whose outputs a target makes: several at a time, within limits, each paid for once even after a death."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

import msgspec

from meruit.errors import CostLimitReached, TargetFailed
from meruit.evaluations.case_judge import JudgedCase
from meruit.evaluations.evaluation import Case, CaseError, EvaluationRecord
from meruit.evaluations.journal import MadeOutput, RunJournal
from meruit.evaluations.run import Report, RunLimits, RunState, repeat_cases, without_twins
from meruit.evaluations.service import Evaluator
from meruit.evaluations.targets import Target, TargetOutput
from meruit.model.canonical import payload_bytes
from meruit.verify.catalogue import CompiledCriteria

FLUSH_S = 0.5
"""How long finished outputs wait to be recorded together; the journal keeps them until then."""
BACKOFF_S = 0.5
"""The pause before the first retry; it doubles each time."""
MAX_BACKOFF_S = 30.0


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
    spent, dearest = evaluator.spending(evaluation)
    run = RunState(
        evaluator=evaluator, evaluation=evaluation, criteria=criteria, report=report, timer=timer, spent_micros=spent
    )
    waiting = evaluator.missing(evaluation, without_twins(repeat_cases(cases, limits.repeat)))
    try:
        with run.count_recorded_at_fault(), evaluator.journal(evaluation) as journal:
            await _TargetRun(run, target, limits, journal, dearest).finish(waiting)
    finally:
        await target.close()
    return run.finish()


class _TargetRun:
    """Keeps a target busy, and records what it makes."""

    def __init__(
        self, run: RunState, target: Target, limits: RunLimits, journal: RunJournal, dearest_micros: int
    ) -> None:
        self._run, self._target, self._limits, self._journal = run, target, limits, journal
        self._dearest_micros = dearest_micros
        self._carried_micros = sum(one.cost_micros or 0 for one in journal.made.values())
        self._pace = _Pace(limits.rate_per_s)
        self._running: set[asyncio.Task[JudgedCase]] = set()
        self._flushed = run.timer()

    async def finish(self, waiting: Iterator[Case]) -> None:
        """Go on until no case is left; raises CostLimitReached at the cost limit."""
        try:
            stopped = await self._drive(waiting)
        finally:
            for task in self._running:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*self._running, return_exceptions=True)
            # Also on the way out, as after Ctrl-C: what is made is kept.
            await self._record(self._run.buffer.take())
        self._run.report_progress(last=True)
        if stopped:
            raise CostLimitReached(self._describe_limit())

    async def _drive(self, waiting: Iterator[Case]) -> bool:
        """Whether the cost limit ended it."""
        more, stopped = True, False
        while more or self._running:
            while more and len(self._running) < self._limits.concurrency and not self._pace.wait_s():
                if self._is_spent():
                    more, stopped = False, True
                elif (case := next(waiting, None)) is None:
                    more = False
                else:
                    self._begin(case)
            await self._collect(min(FLUSH_S, self._pace.wait_s() or FLUSH_S) if more else FLUSH_S)
        return stopped

    def _begin(self, case: Case) -> None:
        made = self._journal.made.get((case.id, case.repeat))
        if made is None:
            self._pace.take()
            self._journal.begin(case)
        else:
            self._carried_micros -= made.cost_micros or 0
        self._running.add(asyncio.create_task(self._judge(case, made)))

    async def _judge(self, case: Case, made: MadeOutput | None) -> JudgedCase:
        if made is None:
            case = await _make(self._target, case, self._limits, self._pace)
            self._journal.end(case)
        else:
            case = made.fill(case)
        # In a thread, because a metric may take as long as a target.
        run = self._run
        return await asyncio.to_thread(run.evaluator.judge, run.criteria, case, run.evaluation, self._limits.judges)

    async def _collect(self, patience_s: float) -> None:
        done: set[asyncio.Task[JudgedCase]] = set()
        if self._running:
            done, self._running = await asyncio.wait(
                self._running, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED
            )
        else:
            await asyncio.sleep(patience_s)
        for one in done:
            judged = one.result()
            self._dearest_micros = max(self._dearest_micros, judged.summary.cost_micros or 0)
            await self._record(self._run.count(judged))
        self._run.report_progress()
        if self._run.timer() - self._flushed >= FLUSH_S:
            await self._record(self._run.buffer.take())

    async def _record(self, cases: list[JudgedCase]) -> None:
        self._flushed = self._run.timer()
        if cases:
            await asyncio.to_thread(self._run.record, cases)
            self._journal.forget((one.summary.case_id, one.summary.repeat) for one in cases)

    def _is_spent(self) -> bool:
        limit = self._limits.cost_limit_micros
        # What died unanswered may have cost as much as the dearest output so far.
        lost_micros = self._journal.lost * self._dearest_micros
        return limit is not None and self._run.spent_micros + self._carried_micros + lost_micros >= limit

    def _describe_limit(self) -> str:
        lost = self._journal.lost
        died = f" ({lost} outputs of processes that died may have cost more)" if lost else ""
        recorded = self._run.evaluation.cases + self._run.judged
        return (
            f"the cost limit is reached: {self._run.spent_micros / 1e6:.2f} dollars are spent{died}, and "
            f"{recorded} cases are recorded; run again with a higher limit to go on"
        )


class _Pace:
    """Lets outputs begin at most so many a second."""

    def __init__(self, per_s: float | None) -> None:
        self._every_s = 0.0 if per_s is None else 1 / per_s
        self._next = 0.0

    def wait_s(self) -> float:
        """How long until the next may begin."""
        return max(0.0, self._next - asyncio.get_running_loop().time()) if self._every_s else 0.0

    def take(self) -> None:
        """Begin one."""
        self._next = max(self._next, asyncio.get_running_loop().time()) + self._every_s


async def _make(target: Target, case: Case, limits: RunLimits, pace: _Pace) -> Case:
    """The case with its output, or with the reason why it has none."""
    problem: tuple[CaseError, str] = (CaseError.TARGET_ERROR, "")
    for attempt in range(limits.retries + 1):
        if attempt:
            await asyncio.sleep(min(BACKOFF_S * 2 ** (attempt - 1), MAX_BACKOFF_S))
            # An endpoint that refuses because of its rate counts every try.
            wait_s = pace.wait_s()
            pace.take()
            await asyncio.sleep(wait_s)
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(limits.timeout_s):
                made = await target.make(case)
            return _with_output(case, made, (asyncio.get_running_loop().time() - began) * 1_000)
        except TimeoutError:
            problem = CaseError.TARGET_TIMEOUT, f"no output within {limits.timeout_s:g} s"
        except TargetFailed as failed:
            problem = CaseError.TARGET_ERROR, str(failed)
            if not failed.retry:
                break
    return msgspec.structs.replace(case, output=None, error=problem[0], error_message=problem[1])


def _with_output(case: Case, made: TargetOutput, took_ms: float) -> Case:
    for name, part in (("output", made.output), ("metadata", made.metadata)):
        if payload_bytes(part) is None:
            raise TargetFailed(f"a target's {name} is plain JSON, without NaN, dates or objects", retry=False)
    # What the target says of its time comes before our clock, which includes the way there.
    metadata = {**case.metadata, "duration_ms": round(took_ms, 3), **made.metadata}
    return msgspec.structs.replace(case, output=made.output, metadata=metadata, cost_micros=made.cost_micros)
