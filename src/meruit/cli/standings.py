"""How runs of benchmarks are told: while they go on, and when they have ended."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from meruit.cli.output import ExitCode, note, paint, print_json, say, shown, table, visible
from meruit.engine.rollouts import Observer, Rollout
from meruit.engine.running import AgentRan
from meruit.model.run import BenchmarkRun, BenchmarkScore, CriterionRun, RunStatus, TaskRun
from meruit.model.verdict import Verdict

MAX_NAMED = 3
"""Tasks under way that the live line names."""
MAX_LOGS = 10
"""Logs that are named when a run has ended."""
_CLEAR = "\r\x1b[K"
_COULD_NOT = (Verdict.INCONCLUSIVE, Verdict.ERROR)


class Progress:
    """A line for each task run that has ended, on stderr, and below them on a terminal what is under way."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self._going: dict[str, str] = {}
        self._live = sys.stderr is not None and sys.stderr.isatty()

    def observer(self) -> Observer:
        """Whom to tell."""
        return Observer(self._began, self._ended)

    def _began(self, run: TaskRun) -> None:
        self._going[run.id] = _attempt(run)
        self._draw()

    def _ended(self, rollout: Rollout) -> None:
        self.done += 1
        self._going.pop(rollout.run.id, None)
        self.clear()
        width = len(str(self.total))
        say(f"[{self.done:{width}}/{self.total}] {visible(_told(rollout))}", err=True)
        self._draw()

    def clear(self) -> None:
        """Take the live line away."""
        if self._live:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()

    def _draw(self) -> None:
        if not (self._live and self._going):
            return
        names = [*self._going.values()]
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        named = ", ".join(names[:MAX_NAMED]) + more
        sys.stderr.write(f"{_CLEAR}{self.done} of {self.total} done; under way: {visible(named)}")
        sys.stderr.flush()


def _attempt(run: TaskRun) -> str:
    return run.task if run.attempt == 1 else f"{run.task} (attempt {run.attempt})"


def _told(rollout: Rollout) -> str:
    run = rollout.run
    ended = f"{_attempt(run)}: {run.verdict or run.status}"
    ended += f" {shown(run.score)}" if run.score is not None else ""
    if rollout.trouble is not None:
        return f"{ended}; it could not be begun: {rollout.trouble}"
    return f"{ended} ({_agent_told(rollout.agent)})" if rollout.agent is not None else ended


def _agent_told(agent: AgentRan) -> str:
    if agent.exit_code is None:
        return f"stopped after {agent.seconds:.1f} s"
    return f"{agent.seconds:.1f} s, exit code {agent.exit_code}"


def exit_code(found: BenchmarkRun) -> int:
    """What a benchmark run comes to for a shell."""
    if found.result is None or found.result.verdict in _COULD_NOT:
        return ExitCode.COULD_NOT_VERIFY
    return ExitCode.PASSED if found.result.verdict is Verdict.PASS else ExitCode.NOT_PASSED


def print_run(
    found: BenchmarkRun,
    runs: Sequence[TaskRun],
    agents: Mapping[str, AgentRan | None],
    *,
    as_json: bool,
) -> None:
    """A benchmark run with its task runs; agents by the task run's id."""
    if as_json:
        several = [msgspec.to_builtins(run) | {"agent": msgspec.to_builtins(agents.get(run.id))} for run in runs]
        print_json(msgspec.json.encode({"benchmark_run": found, "task_runs": several}))
        return
    rows = [_row([run for run in runs if run.task == task]) for task in dict.fromkeys(run.task for run in runs)]
    table(("task", "attempts", "verdict", "score", "axes"), rows)
    say()
    if found.result is None:
        standing = ", ".join(f"{number:,} {status}" for status, number in sorted(found.counts.items()))
        say(f"not ended, so there is no score: {standing}")
    else:
        for line in _result_lines(found.result, found.repeats):
            say(line)


def name_logs(runs: Sequence[TaskRun], agents: Mapping[str, AgentRan | None]) -> None:
    """Say where to look for what agents said that did not end by themselves, or not well."""
    found = [(run, agent) for run in runs if (agent := agents.get(run.id)) is not None and agent.exit_code != 0]
    for run, agent in found[:MAX_LOGS]:
        note(f"{_attempt(run)}: {_agent_told(agent)}; what it said: {agent.log}")
    if len(found) > MAX_LOGS:
        note(f"and {len(found) - MAX_LOGS:,} more")


def print_task_runs(runs: Sequence[TaskRun], agents: Mapping[str, AgentRan | None]) -> None:
    """Each task run of a benchmark run, by its id."""
    rows = [
        (
            run.id,
            run.task,
            str(run.attempt),
            str(run.status).replace("_", " "),
            str(run.verdict or "–"),
            "–" if (agent := agents.get(run.id)) is None else _agent_told(agent),
            run.outcome_id or "–",
        )
        for run in runs
    ]
    table(("task run", "task", "attempt", "status", "verdict", "agent", "outcome"), rows)


def _row(runs: Sequence[TaskRun]) -> tuple[str, ...]:
    words = [str(run.verdict or run.status) for run in runs]
    verdicts = [word if words.count(word) == 1 else f"{word} ×{words.count(word)}" for word in dict.fromkeys(words)]
    counted = [run for run in runs if run.status in (RunStatus.COMPLETED, RunStatus.TIMED_OUT)]
    score = _mean([run.score or 0.0 for run in counted])
    names = dict.fromkeys(name for run in counted for name in run.axes)
    axes = [
        f"{name} {shown(_mean([run.axes[name].score for run in counted if name in run.axes]))}"
        for name in sorted(names)
    ]
    return (runs[0].task, str(len(runs)), ", ".join(verdicts), shown(score), ", ".join(axes) or "–")


def _mean(numbers: Sequence[float]) -> float | None:
    return sum(numbers) / len(numbers) if numbers else None


def _result_lines(result: BenchmarkScore, repeats: int) -> Iterator[str]:
    apart = result.bounds.low != result.bounds.high
    between = f" (between {shown(result.bounds.low)} and {shown(result.bounds.high)})" if apart else ""
    yield f"verdict {paint(str(result.verdict))}, score {shown(result.score)}{between}"
    found = result.pass_rate_interval
    interval = "" if found is None else f" (95 % interval {found.low:.2f} to {found.high:.2f})"
    yield f"pass rate {shown(result.pass_rate)}{interval} over {result.runs:,} task runs"
    found = result.score_interval
    if found is not None:
        yield f"score interval {found.low:.2f} to {found.high:.2f} (95 %)"
    if result.worst_task is not None:
        worst = next(one for one in result.tasks if one.task == result.worst_task)
        yield f"worst task {result.worst_task}, score {shown(worst.score)}"
    yield f"coverage {shown(result.coverage)}"
    if repeats > 1:
        yield f"pass@k {_by_k(result.pass_at_k)}"
        yield f"pass^k {_by_k(result.pass_hat_k)}"
    for number, what in ((result.inconclusive, "inconclusive"), (result.timed_out, "timed out")):
        if number:
            yield f"{number:,} {what}"
    if result.cancelled:
        yield f"{len(result.cancelled):,} cancelled, which do not count"
    yield from result.reasons


def _by_k(chances: Mapping[str, float]) -> str:
    return ", ".join(f"{k}: {chance:.2f}" for k, chance in chances.items())


def print_task_run(
    run: TaskRun, criteria: Sequence[CriterionRun], agent: AgentRan | None, *, evidence: bool, as_json: bool
) -> None:
    """A task run with its criteria, and all the evidence where that is wanted."""
    if as_json:
        print_json(msgspec.json.encode({"task_run": run, "agent": agent, "criteria": criteria}))
        return
    labels: dict[str, Any] = {
        "task run": run.id,
        "task": f"{run.benchmark}@{run.version}/{run.task}, attempt {run.attempt}",
        "of": run.benchmark_run_id,
        "agent": run.agent_id,
        "status": str(run.status),
        "started": None if run.started_at is None else run.started_at.isoformat(timespec="seconds"),
        "ended": None if run.ended_at is None else run.ended_at.isoformat(timespec="seconds"),
        "command": None if agent is None else _agent_told(agent),
        "log": None if agent is None else agent.log,
        "playground": run.playground_id,
        "outcome": None if run.outcome_id is None else f"{run.outcome_id}, version {run.outcome_version}",
    }
    for name, value in labels.items():
        if value is not None:
            say(f"{name:12}{visible(str(value))}")
    if run.verdict is None:
        return
    say()
    rows = [
        (
            one.label,
            one.check,
            one.axis,
            shown(one.weight),
            str(one.status),
            shown(one.score),
            one.details or "",
        )
        for one in criteria
    ]
    table(("criterion", "check", "axis", "weight", "status", "score", "details"), rows, painted=4)
    if evidence:
        for one in criteria:
            say(f"\n{visible(one.label)} ({one.id}):")
            for line in msgspec.json.format(msgspec.json.encode(one.evidence)).decode().splitlines():
                say(visible(line))
    say()
    say(f"verdict {paint(str(run.verdict))}, score {shown(run.score)}, coverage {shown(run.coverage)}")
