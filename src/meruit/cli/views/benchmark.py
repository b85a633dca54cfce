"""Benchmark runs as text: progress while they run, results when they have ended."""

import asyncio
import shutil
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from meruit.benchmarks.agent_process import AgentExit
from meruit.benchmarks.rollouts import Observer, Rollout, RolloutState
from meruit.cli.terminal import (
    ExitCode,
    escape_control_characters,
    format_cell,
    note,
    paint,
    print_json,
    print_table,
    say,
)
from meruit.model.kinds import DEFAULT_AXIS
from meruit.model.task_run import (
    BenchmarkRun,
    BenchmarkScore,
    CriterionRun,
    CriterionStatus,
    RunStatus,
    TaskRun,
    TaskRunAxis,
)
from meruit.model.verdict import Verdict

MAX_NAMED = 3
"""Most tasks that the progress line names."""
LIVE_S = 1.0
"""How often the progress line of a terminal is drawn."""
LOGGED_S = 30.0
"""How often running tasks are reported elsewhere, in seconds."""
MAX_LOGS = 10
"""Most logs that are listed after a run."""
_CLEAR = "\r\x1b[K"
MAX_FIELDS = 10
"""Most failing fields shown of one criterion."""
MAX_CELL = 60
"""Most characters of a value in a table."""
UNDECIDED_VERDICTS = (Verdict.INCONCLUSIVE, Verdict.ERROR)
_COUNTED_STATUSES = (RunStatus.COMPLETED, RunStatus.TIMED_OUT)
_FIELDS = ("fieldResults", "field_results", "assertionResults", "phraseResults")


class TaskRunDetails(msgspec.Struct, frozen=True):
    """A task run with everything that is printed about it."""

    run: TaskRun
    criteria: Sequence[CriterionRun]
    agent: AgentExit | None
    has_playground: bool
    """Whether its playground still exists."""
    required_fields: Mapping[int, set[str]]
    """Required fields of each criterion, by its position."""


def pluralize(number: int, thing: str) -> str:
    """A number and its noun."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def is_or_are(number: int) -> str:
    """The verb for a number of things."""
    return "is" if number == 1 else "are"


def version_judged_by(run: TaskRun) -> int | None:
    """The benchmark version that judged, if it is not the run's own."""
    return None if run.judged_version == run.version else run.judged_version


def worst_run(runs: Sequence[TaskRun]) -> TaskRun | None:
    """The counted run with the lowest score that did not pass."""
    counting = [run for run in runs if run.status in _COUNTED_STATUSES and run.verdict is not Verdict.PASS]
    return min(counting, key=lambda run: run.score or 0.0, default=None)


class _Going(msgspec.Struct, frozen=True):
    """A task run that has not ended."""

    run: TaskRun
    state: RolloutState
    since: float
    """When its agent began, or its environment was being prepared."""
    last_event: str | None = None


class Progress:
    """Progress on stderr: a line for each task run that ended, and what happens to those that run.

    Those are one live line on a terminal, and otherwise a line for each every half minute.
    """

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total = total
        self.done = 0
        self._clock = clock
        self._going: dict[str, _Going] = {}
        self._live = sys.stderr is not None and sys.stderr.isatty()

    def observer(self) -> Observer:
        """Callbacks for the runner."""
        return Observer(self._on_state, self._on_end)

    async def watch(self, last_event: Callable[[str], Awaitable[str | None]]) -> None:
        """Show the state, the seconds and the last event of each running task again and again, until cancelled."""
        while True:
            await asyncio.sleep(LIVE_S if self._live else LOGGED_S)
            await self.update(last_event)

    async def update(self, last_event: Callable[[str], Awaitable[str | None]]) -> None:
        """Show them once."""
        for run_id, one in [*self._going.items()]:
            seen = None if one.run.playground_id is None else await last_event(one.run.playground_id)
            # It may have ended meanwhile.
            if run_id in self._going:
                self._going[run_id] = msgspec.structs.replace(self._going[run_id], last_event=seen)
        if not self._live:
            for one in self._going.values():
                say(escape_control_characters(self._describe(one)), err=True)
        self._draw()

    def _on_state(self, run: TaskRun, state: RolloutState) -> None:
        known = self._going.get(run.id)
        since = self._clock() if known is None or state is RolloutState.RUNNING else known.since
        self._going[run.id] = _Going(
            run=run, state=state, since=since, last_event=None if known is None else known.last_event
        )
        self._draw()

    def _describe(self, one: _Going) -> str:
        text = f"{_attempt_label(one.run)} {one.state} {self._clock() - one.since:.0f} s"
        return text if one.last_event is None else f"{text}, last event: {one.last_event}"

    def _on_end(self, rollout: Rollout) -> None:
        self.done += 1
        self._going.pop(rollout.run.id, None)
        self.clear()
        width = len(str(self.total))
        say(f"[{self.done:{width}}/{self.total}] {escape_control_characters(_describe_rollout(rollout))}", err=True)
        self._draw()

    def clear(self) -> None:
        """Clear the live line."""
        if self._live:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()

    def _draw(self) -> None:
        if not (self._live and self._going):
            return
        names = [self._describe(one) for one in self._going.values()]
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        named = ", ".join(names[:MAX_NAMED]) + more
        line = f"{self.done} of {self.total} done; {escape_control_characters(named)}"
        # A line that wraps could not be cleared.
        sys.stderr.write(f"{_CLEAR}{line[: shutil.get_terminal_size().columns - 1]}")
        sys.stderr.flush()


def _attempt_label(run: TaskRun) -> str:
    return run.task if run.attempt == 1 else f"{run.task} (attempt {run.attempt})"


def _describe_rollout(rollout: Rollout) -> str:
    run = rollout.run
    ended = f"{_attempt_label(run)}: {run.verdict or run.status}"
    ended += f" {format_cell(run.score)}" if run.score is not None else ""
    if rollout.trouble is not None:
        what = "started" if run.started_at is None else "completed"
        return f"{ended}; could not be {what}: {rollout.trouble}"
    return f"{ended} ({_describe_agent(rollout.agent)})" if rollout.agent is not None else ended


def _describe_agent(agent: AgentExit) -> str:
    if agent.exit_code is None:
        return f"stopped after {agent.seconds:.1f} s"
    return f"{agent.seconds:.1f} s, exit code {agent.exit_code}"


def exit_code(found: BenchmarkRun) -> int:
    """Exit code for a benchmark run."""
    if found.result is None or found.result.verdict in UNDECIDED_VERDICTS:
        return ExitCode.COULD_NOT_VERIFY
    return ExitCode.PASSED if found.result.verdict is Verdict.PASS else ExitCode.NOT_PASSED


def print_run(
    found: BenchmarkRun,
    runs: Sequence[TaskRun],
    agents: Mapping[str, AgentExit | None],
    *,
    as_json: bool,
) -> None:
    """Print a benchmark run with its task runs; agents by the task run's id."""
    if as_json:
        several = [msgspec.to_builtins(run) | {"agent": msgspec.to_builtins(agents.get(run.id))} for run in runs]
        print_json(msgspec.json.encode({"benchmark_run": found, "task_runs": several}))
        return
    rows = [_row([run for run in runs if run.task == task]) for task in dict.fromkeys(run.task for run in runs)]
    print_table(("task", "attempts", "verdict", "score", "axes"), rows)
    say()
    if found.result is None:
        counts = ", ".join(f"{number:,} {status}" for status, number in sorted(found.counts.items()))
        say(f"not ended, no score yet: {counts}")
    else:
        for line in _result_lines(found.result, found.repeats):
            say(line)
    other = Counter(by for run in runs if (by := version_judged_by(run)) is not None)
    for version, times in sorted(other.items()):
        say(f"{pluralize(times, 'task run')} judged by {found.benchmark}@{version}")


def print_log_paths(runs: Sequence[TaskRun], agents: Mapping[str, AgentExit | None]) -> None:
    """Print the log paths of agents that were stopped or failed."""
    found = [(run, agent) for run in runs if (agent := agents.get(run.id)) is not None and agent.exit_code != 0]
    for run, agent in found[:MAX_LOGS]:
        note(f"{_attempt_label(run)}: {_describe_agent(agent)}; log: {agent.log}")
    if len(found) > MAX_LOGS:
        note(f"and {len(found) - MAX_LOGS:,} more")


def print_task_runs(runs: Sequence[TaskRun], agents: Mapping[str, AgentExit | None]) -> None:
    """Print each task run of a benchmark run, by its id."""
    rows = [
        (
            run.id,
            run.task,
            str(run.attempt),
            str(run.status).replace("_", " "),
            str(run.verdict or "–"),
            "–" if (agent := agents.get(run.id)) is None else _describe_agent(agent),
            run.outcome_id or "–",
        )
        for run in runs
    ]
    print_table(("task run", "task", "attempt", "status", "verdict", "agent", "outcome"), rows)


def _row(runs: Sequence[TaskRun]) -> tuple[str, ...]:
    words = [str(run.verdict or run.status) for run in runs]
    verdicts = [word if words.count(word) == 1 else f"{word} ×{words.count(word)}" for word in dict.fromkeys(words)]
    counting = [run for run in runs if run.status in _COUNTED_STATUSES]
    score = _mean([run.score or 0.0 for run in counting])
    names = {name for run in counting for name in run.axes}
    axes = [
        f"{_axis(name)} {_axis_cell([run.axes[name] for run in counting if name in run.axes])}"
        for name in sorted(names - {DEFAULT_AXIS}) + [DEFAULT_AXIS] * (DEFAULT_AXIS in names and len(names) > 1)
    ]
    return (runs[0].task, str(len(runs)), ", ".join(verdicts), format_cell(score), ", ".join(axes) or "–")


def _axis_cell(several: Sequence[TaskRunAxis]) -> str:
    """The mean of an axis; open where a part of it could not be judged."""
    scores = [one.score for one in several if one.score is not None]
    return "open" if len(scores) < len(several) else format_cell(_mean(scores))


def _axis(name: str) -> str:
    return "other" if name == DEFAULT_AXIS else name


def _mean(numbers: Sequence[float]) -> float | None:
    return sum(numbers) / len(numbers) if numbers else None


def _result_lines(result: BenchmarkScore, repeats: int) -> Iterator[str]:
    if not result.runs:
        yield f"verdict {paint(str(result.verdict))}, score –"
    else:
        yield from _score_lines(result, repeats)
    for number, what in ((result.inconclusive, "inconclusive"), (result.timed_out, "timed out")):
        if number:
            yield f"{number:,} {what}"
    if result.cancelled:
        number = len(result.cancelled)
        yield f"{number:,} cancelled, which {'does' if number == 1 else 'do'} not count"
    yield from result.reasons


def _score_lines(result: BenchmarkScore, repeats: int) -> Iterator[str]:
    apart = result.bounds.low != result.bounds.high
    between = f" (between {format_cell(result.bounds.low)} and {format_cell(result.bounds.high)})" if apart else ""
    yield f"verdict {paint(str(result.verdict))}, score {format_cell(result.score)}{between}"
    found = result.pass_rate_interval
    interval = "" if found is None else f" (95 % interval {found.low:.2f} to {found.high:.2f})"
    yield f"pass rate {format_cell(result.pass_rate)}{interval} over {pluralize(result.runs, 'task run')}"
    found = result.score_interval
    if found is not None:
        yield f"score interval {found.low:.2f} to {found.high:.2f} (95 %)"
    if result.worst_task is not None and len({one.score for one in result.tasks}) > 1:
        worst = next(one for one in result.tasks if one.task == result.worst_task)
        yield f"worst task {result.worst_task}, score {format_cell(worst.score)}"
    yield f"coverage {format_cell(result.coverage)}"
    if repeats > 1:
        yield f"pass@k {_by_k(result.pass_at_k)}"
        yield f"pass^k {_by_k(result.pass_hat_k)}"


def _by_k(chances: Mapping[str, float]) -> str:
    return ", ".join(f"{k}: {chance:.2f}" for k, chance in chances.items())


def print_task_run(details: TaskRunDetails, *, evidence: bool, as_json: bool) -> None:
    """Print a task run with its criteria and failing fields, and on request all evidence."""
    if as_json:
        print_json(msgspec.json.encode(_to_dict(details)))
        return
    run, criteria = details.run, details.criteria
    _print_labels(details)
    if run.verdict is None:
        return
    say()
    _print_criteria(criteria)
    for one in criteria:
        if one.status is CriterionStatus.FAILED:
            _print_failing(one, details.required_fields.get(one.position, set()))
    if evidence:
        for one in criteria:
            say(f"\n{escape_control_characters(one.label)} ({one.id}):")
            for line in msgspec.json.format(msgspec.json.encode(one.evidence)).decode().splitlines():
                say(escape_control_characters(line))
    say()
    say(f"verdict {paint(str(run.verdict))}, score {format_cell(run.score)}, coverage {format_cell(run.coverage)}")


def print_attempts(several: Sequence[TaskRunDetails], *, evidence: bool, as_json: bool) -> None:
    """Print all runs of one task in a benchmark run."""
    if as_json:
        print_json(msgspec.json.encode({"task_runs": [_to_dict(details) for details in several]}))
        return
    for number, details in enumerate(several):
        if number:
            say()
        print_task_run(details, evidence=evidence, as_json=False)


# Any: it becomes JSON.
def _to_dict(details: TaskRunDetails) -> dict[str, Any]:
    return {"task_run": details.run, "agent": details.agent, "criteria": details.criteria}


def _print_labels(details: TaskRunDetails) -> None:
    run, agent = details.run, details.agent
    by = version_judged_by(run)
    labels: dict[str, str | None] = {
        "task run": run.id,
        "task": f"{run.benchmark}@{run.version}/{run.task}, attempt {run.attempt}",
        "judged by": None if by is None else f"{run.benchmark}@{by}",
        "of": run.benchmark_run_id,
        "agent": run.agent_id,
        "status": str(run.status),
        "started": None if run.started_at is None else run.started_at.isoformat(timespec="seconds"),
        "ended": None if run.ended_at is None else run.ended_at.isoformat(timespec="seconds"),
        "command": None if agent is None else _describe_agent(agent),
        "log": None if agent is None else agent.log,
        "playground": run.playground_id if details.has_playground else None,
        "outcome": None if run.outcome_id is None else f"{run.outcome_id}, version {run.outcome_version}",
    }
    for name, value in labels.items():
        if value is not None:
            say(f"{name:12}{escape_control_characters(value)}")


def _print_criteria(criteria: Sequence[CriterionRun]) -> None:
    # The column is left out if no criterion names an axis.
    with_axes = any(one.axis != DEFAULT_AXIS for one in criteria)
    rows = [
        (
            one.label,
            one.check,
            *((_axis(one.axis),) if with_axes else ()),
            format_cell(one.weight),
            str(one.status),
            format_cell(one.score),
            one.details or "",
        )
        for one in criteria
    ]
    headings = ("criterion", "check", *(("axis",) if with_axes else ()), "weight", "status", "score", "details")
    print_table(headings, rows, painted=headings.index("status"))


def _print_failing(one: CriterionRun, musts: set[str]) -> None:
    """Print the failing fields of a criterion."""
    name = next((name for name in _FIELDS if name in one.evidence), None)
    failing = [] if name is None else [field for field in one.evidence[name] if not field.get("passed", True)]
    if not failing:
        return
    say(f"\n{escape_control_characters(one.label)}{' (required)' if one.required else ''}:")
    if name == "phraseResults":
        print_table(
            ("phrase", "found"),
            [(_cell(field.get("phrase")), _format_phrase_result(field)) for field in failing[:MAX_FIELDS]],
        )
    else:
        rows = [
            (_path(field, musts), _format_expected(field), _cell(field.get("actual"))) for field in failing[:MAX_FIELDS]
        ]
        print_table(("path", "expected", "found"), rows)
    if len(failing) > MAX_FIELDS:
        say(f"and {len(failing) - MAX_FIELDS:,} more; --evidence shows all")


# Any, from here on: evidence is JSON.
def _path(field: Mapping[str, Any], musts: set[str]) -> str:
    path = str(field.get("path"))
    of = f"{field['item']} {path}" if "item" in field else path
    return f"{of} (required)" if path in musts else of


def _format_phrase_result(field: Mapping[str, Any]) -> str:
    found = format_cell(bool(field.get("found")))
    return f"{found}: {field['why']}" if field.get("why") else found


def _format_expected(field: Mapping[str, Any]) -> str:
    op, expected = field.get("op"), field.get("expected")
    return _cell(expected) if op in (None, "equals", expected) else f"{op} {_cell(expected)}"


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= MAX_CELL else f"{text[: MAX_CELL - 1]}…"
