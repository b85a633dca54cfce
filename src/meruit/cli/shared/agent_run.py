"""An agent run on the command line: drive it, watch it and print it."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

import msgspec

from meruit.cli.shared.load_agents import stop_on_signals
from meruit.cli.terminal import ExitCode, escape_control_characters, note, print_error, print_table, say
from meruit.events import records as outbox
from meruit.gate import records as agent_reading
from meruit.gate.ask_verifier import VerifierReport
from meruit.gate.journal import TIMED_OUT
from meruit.gate.limits import MAX_ATTEMPTS
from meruit.gate.records import DEFERRED, MEMBERS, WAIT, DeferredCandidate
from meruit.gate.run import FINAL_STATES, AgentRun, GateSubmission, RunFailureReason, RunState
from meruit.gate.runner.engine import AgentRoster
from meruit.gate.runner.worker import run_worker
from meruit.gate.state import VERIFIER_WAIT, VerificationEnding
from meruit.gate.submission import MAX_DEFERRALS
from meruit.gate.team import signal_of
from meruit.gate.verdict import Deferral, Rejection
from meruit.model.chat import ModelAnswer, Usage
from meruit.model.events import EventType, OutboxEvent
from meruit.model.time import to_micros
from meruit.store.store import Store

POLL_S = 0.05
"""Seconds between two queries for new events."""
TURN = "turn:"
"""Prefix of the journal steps that hold a model's answer."""
SYSTEM_FAILURES = frozenset({VerificationEnding.SYSTEM_ERROR, RunFailureReason.ERROR, RunFailureReason.POISON})
"""Endings that are not caused by an agent's output."""


class AgentRunWatch(msgspec.Struct, frozen=True):
    """A run and the members of its team."""

    store: Store
    tenant: str
    run_id: str

    def run(self) -> AgentRun:
        """Read the run; raises NotFound."""
        with self.store.database.reading() as connection:
            return agent_reading.find(connection, self.tenant, self.run_id)

    def members(self) -> list[AgentRun]:
        """Members of a team run."""
        with self.store.database.reading() as connection:
            return agent_reading.members(connection, self.tenant, self.run_id)

    def submissions(self) -> list[GateSubmission]:
        """Submissions of the run."""
        with self.store.database.reading() as connection:
            return agent_reading.submissions(connection, self.tenant, self.run_id)

    def events(self, after: int, limit: int = 500) -> list[OutboxEvent]:
        """Events of the run and its members after a cursor."""
        subjects = frozenset({self.run_id, *(one.id for one in self.members())})
        with self.store.database.reading() as connection:
            return outbox.events_after(connection, after, tenant=self.tenant, limit=limit, subjects=subjects)

    def all_events(self) -> Iterator[OutboxEvent]:
        """All events so far."""
        place = self.run().seq - 1
        while found := self.events(place):
            yield from found
            place = found[-1].seq

    def steps(self) -> dict[str, bytes]:
        """The journal of the run."""
        with self.store.database.reading() as connection:
            return agent_reading.steps(connection, self.tenant, self.run_id)

    # Any: the agent defines its candidates.
    def candidate(self, submission_id: str) -> Any:
        """A candidate as it was submitted."""
        with self.store.database.reading() as connection:
            return agent_reading.candidate(connection, self.tenant, self.run_id, submission_id)

    def message(self, run_id: str, submission_id: str) -> str:
        """Why a submission was rejected."""
        with self.store.database.reading() as connection:
            verdict = agent_reading.find_verdict(connection, self.tenant, run_id, submission_id)
        return verdict.message if isinstance(verdict, Rejection) else ""

    async def follow(self, report: Callable[[OutboxEvent], None]) -> None:
        """Pass each event on until the run has ended."""
        place = self.run().seq - 1
        while True:
            # Read before the events, so that no event before the end is missed.
            over = self.run().status in FINAL_STATES
            found = self.events(place)
            for one in found:
                report(one)
                place = one.seq
            if over and not found:
                return
            if not found:
                await asyncio.sleep(POLL_S)


async def drive_to_end(watched: AgentRunWatch, roster: AgentRoster | None) -> bool:
    """Wait for the end of a run, with a worker in this process unless another has it; False if interrupted."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    # A worker in this process reports its progress in order; of one elsewhere only the events are known.
    report = _print_progress if roster is None else _note_waiting
    with stop_on_signals(stopping):
        watching = loop.create_task(watched.follow(lambda one: report(watched, one)))
        halted = loop.create_task(stopping.wait())
        waited: set[asyncio.Task[Any]] = {watching, halted}
        working = None
        if roster is not None:
            working = loop.create_task(
                run_worker(
                    watched.store,
                    roster,
                    only=watched.run_id,
                    stopping=stopping,
                    watch=lambda run, text: _print_run_line(watched, run, text),
                )
            )
            waited.add(working)
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        stopping.set()
        if working is not None:
            await working
        if watching.done():
            await watching
            return True
        watching.cancel()
        return watched.run().status in FINAL_STATES


def exit_code_of(run: AgentRun) -> ExitCode:
    """Exit code for a run that has ended."""
    if run.status is RunState.COMPLETED:
        return ExitCode.PASSED
    return ExitCode.COULD_NOT_VERIFY if run.ending in SYSTEM_FAILURES else ExitCode.NOT_PASSED


def run_to_json(watched: AgentRunWatch, run: AgentRun) -> bytes:
    """A run with its submissions, as JSON."""
    members = [{**one.to_dict(), "signal": signal_of(one)} for one in watched.members()]
    more = {
        "submissions": watched.submissions(),
        "members": members,
        "has_worker": has_worker(watched.store, run.agent),
    }
    return msgspec.json.encode({**run.to_dict(), **more})


def has_worker(store: Store, agent: str) -> bool:
    """Whether a worker serves an agent now."""
    return agent in _agents_with_worker(store)


def agents_lacking_worker(store: Store, runs: Iterable[AgentRun]) -> list[str]:
    """Agents of unfinished runs that no worker serves."""
    driven = {run.agent for run in runs if run.status not in FINAL_STATES and not run.is_hosted}
    return sorted(driven - _agents_with_worker(store))


def _agents_with_worker(store: Store) -> set[str]:
    with store.database.reading() as connection:
        living = agent_reading.live_workers(connection, to_micros(store.surroundings.clock()))
    return {name for worker in living for name in worker.agents}


def attempts_of(run: AgentRun) -> str:
    """Attempts used, and the budget if the run has one; a team may have none."""
    used, most = run.verification.attempts_used, run.verification.limits.max_attempts
    return str(used) if most > MAX_ATTEMPTS else f"{used} of {most}"


def describe_state(run: AgentRun, *, has_worker: bool) -> str:
    """Describe the state of a run in a few words."""
    if run.ending is not None:
        return run.ending
    if run.waiting_for is not None:
        return run.note or run.waiting_for
    if run.is_hosted:
        return "in its host's own loop"
    if run.status not in FINAL_STATES and not has_worker:
        return "no worker serves this agent"
    return run.error or ""


def print_end(run: AgentRun) -> None:
    """Print the result of a run on stdout, or the error on stderr."""
    if run.status is RunState.COMPLETED:
        print_result(run)
    elif run.status is RunState.FAILED:
        print_error(f"{run.id} failed ({run.ending}, {attempts_of(run)} attempts used): {_error_line(run)}")
    else:
        print_error(f"{run.id} was {run.status}")


def print_result(run: AgentRun) -> None:
    """Print the result of a run."""
    result = run.result
    # The model's text is untrusted: control characters are escaped, lines stay lines.
    text = result if isinstance(result, str) else msgspec.json.format(msgspec.json.encode(result)).decode()
    for line in text.split("\n"):
        say(escape_control_characters(line))


def print_run(watched: AgentRunWatch, run: AgentRun) -> None:
    """Print a run with its turns."""
    for name, value in _facts(watched, run).items():
        if value is not None:
            say(f"{name:12}{escape_control_characters(value)}")
    members = watched.members()
    if members:
        say()
        rows = [(one.item or "", str(signal_of(one)), one.agent, one.id) for one in members]
        print_table(("item", "signal", "agent", "run"), rows)
    _print_turns(watched)
    if run.status is RunState.COMPLETED:
        say()
        print_result(run)


def _facts(watched: AgentRunWatch, run: AgentRun) -> dict[str, str | None]:
    over = run.status in FINAL_STATES
    pausing = run.status is RunState.QUEUED and run.error is not None and run.wake_at is not None
    return {
        "run": run.id,
        "agent": run.agent,
        "status": _status(watched, run),
        "asked": run.request.query or None,
        "queued": f"{_second(run.created_at)} by {run.created_by}",
        "ended": None if run.ended_at is None else _second(run.ended_at),
        "attempts": f"{attempts_of(run)} used",
        "waits for": _describe_wait(run),
        "tokens": _describe_usage(run.usage) if run.usage.requests else None,
        "retries": str(run.retries) if run.retries else None,
        "taken over": f"{run.takeovers} times" if run.takeovers else None,
        "part of": run.parent_id,
        "error" if over else "last error": _error_line(run),
        "next try": _second(run.wake_at) if pausing and run.wake_at is not None else None,
    }


def _describe_usage(usage: Usage) -> str:
    """The tokens of a run; unknown, never zero, where the endpoint did not count them."""
    counts = f"{usage.input_tokens} in, {usage.output_tokens} out"
    if usage.is_known:
        return counts
    if usage.uncounted == usage.requests:
        return "unknown: the endpoint sent no usage"
    return f"at least {counts}; {usage.uncounted} of {usage.requests} answers had no usage"


def _status(watched: AgentRunWatch, run: AgentRun) -> str:
    if run.ending:
        return f"{run.status}: {run.ending}"
    if run.is_hosted and run.status is RunState.RUNNING:
        return f"{run.status}, in its host's own loop"
    if run.status in FINAL_STATES or run.status is RunState.WAITING or has_worker(watched.store, run.agent):
        return str(run.status)
    return f"{run.status}; no worker serves {run.agent!r}: `meruit worker MODULE:AGENT` starts one"


def _describe_wait(run: AgentRun) -> str | None:
    if run.waiting_for is None or run.waiting_for == MEMBERS:
        return run.waiting_for
    return f"{run.note or run.waiting_for}: `meruit agent resume {run.id} VALUE` gives it the value"


def _second(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")


def _error_line(run: AgentRun) -> str | None:
    """The first line of the error; the full feedback to the model is printed below its turn."""
    return None if run.error is None else " ".join(run.error.split())


def _print_turns(watched: AgentRunWatch) -> None:
    steps, submissions = watched.steps(), watched.submissions()
    if not any(key.startswith(TURN) for key in steps):
        _print_host_submissions(watched, steps, submissions)
    for number in sorted(int(key.removeprefix(TURN)) for key in steps if key.startswith(TURN)):
        say()
        say(f"turn {number}")
        answer = ModelAnswer.from_json(steps[f"{TURN}{number}"])
        if answer.text:
            say(f"  {escape_control_characters(answer.text)}")
        for place, call in enumerate(answer.calls):
            say(f"  → {escape_control_characters(call.name)} {escape_control_characters(call.arguments)}")
            _print_reply(steps, f"{number}.{place}")
        _print_waits(steps, number)
        for one in submissions:
            if one.turn == number:
                _print_submission(one)


def _print_host_submissions(watched: AgentRunWatch, steps: dict[str, bytes], submissions: list[GateSubmission]) -> None:
    """Print what a host's own loop submitted; it records no answers of its model."""
    for one in submissions:
        say()
        say(f"submission {one.number}" + (f", turn {one.turn}" if one.turn else ""))
        _print_candidate(watched.candidate(one.submission_id))
        _print_submission(one)
    for key in sorted((key for key in steps if key.startswith(DEFERRED)), key=len):
        asked = key.removeprefix(DEFERRED)
        say()
        say(f"waited for {asked}")
        _print_candidate(msgspec.json.decode(DeferredCandidate.from_json(steps[key]).candidate))
        _print_given(steps, asked)


def _print_candidate(candidate: Any) -> None:
    say(f"  → {escape_control_characters(msgspec.json.encode(candidate).decode())}")


def _print_waits(steps: dict[str, bytes], turn: int) -> None:
    """Print what the verifier asked for in a turn, and the answers."""
    for again in range(MAX_DEFERRALS + 1):
        recorded = steps.get(f"verify:{turn}:{again}")
        if recorded is None:
            return
        answer = VerifierReport.from_json(recorded).said
        if isinstance(answer, Deferral) and answer.pause_s is None:
            _print_reply_text(f"verify waits: {answer.note}")
            _print_given(steps, f"{VERIFIER_WAIT}{turn}:{again}")


def _print_given(steps: dict[str, bytes], key: str) -> None:
    given = steps.get(f"{WAIT}{key}")
    if given == TIMED_OUT:
        _print_reply_text("no answer came in time")
    elif given is not None:
        value = msgspec.json.decode(given)
        _print_reply_text(f"given: {value if isinstance(value, str) else given.decode()}")


def _print_reply(steps: dict[str, bytes], key: str) -> None:
    """Print the reply of a tool, or the value that was given for it."""
    if f"tool:{key}" in steps:
        step = msgspec.json.decode(steps[f"tool:{key}"])
        _print_reply_text(f"waits: {step['reply']}" if step.get("waits") else step.get("reply", ""))
    _print_given(steps, key)


def _print_reply_text(text: str) -> None:
    first, *rest = text.split("\n")
    say(f"  ← {escape_control_characters(first)}")
    for line in rest:
        say(f"    {escape_control_characters(line)}")


def _print_submission(one: GateSubmission) -> None:
    counted = f", attempt {one.attempt}" if one.counted else ""
    code = f" [{one.code}]" if one.code else ""
    block = f"\n{one.feedback}" if one.feedback else ""
    _print_reply_text(f"{str(one.outcome).replace('_', ' ')}{counted}{code}{block}")


def print_event(one: OutboxEvent) -> None:
    """Print one event."""
    data = one.event.data
    more = [f"{name}={data[name]}" for name in _EVENT_FIELDS if data.get(name) is not None]
    say(
        escape_control_characters(
            f"{one.event.timestamp}  {one.event.event_type}  {one.subject}  {' '.join(more)}"
        ).rstrip()
    )


_EVENT_FIELDS = (
    "attempt",
    "attempts_used",
    "max_attempts",
    "code",
    "reason",
    "ending",
    "waiting_for",
    "note",
    "submission_id",
)


def _print_progress(watched: AgentRunWatch, one: OutboxEvent) -> None:
    """Print the progress that an event means."""
    data: dict[str, Any] = one.event.data
    run_id = one.subject
    match one.event.event_type:
        case EventType.VERIFICATION_PASSED:
            _print_run_line(watched, run_id, f"verified, at attempt {data['attempt']}")
        case EventType.VERIFICATION_REJECTED:
            code = f" [{data['code']}]" if data.get("code") else ""
            used = f"{data['attempts_used']} of {data['max_attempts']} attempts used"
            _print_run_line(
                watched, run_id, f"rejected, {used}{code}: {watched.message(run_id, data['submission_id'])}"
            )
        case EventType.VERIFICATION_EXHAUSTED:
            _print_run_line(watched, run_id, f"verification ended: {data['reason']}")
        case EventType.AGENT_RUN_WAITING if data["waiting_for"] != MEMBERS:
            _print_run_line(watched, run_id, f"waits for {data.get('note') or data['waiting_for']}")
        case _:
            pass
    _note_waiting(watched, one)


def _note_waiting(_watched: AgentRunWatch, one: OutboxEvent) -> None:
    """Print what the operator must do for the run to continue."""
    if one.event.event_type == EventType.AGENT_RUN_WAITING and one.event.data["waiting_for"] != MEMBERS:
        note(f"`meruit agent resume {one.subject} VALUE` gives it the value")


def _print_run_line(watched: AgentRunWatch, run_id: str, text: str) -> None:
    """Print a line of progress, with the member's name if a team member made it."""
    name = "" if run_id == watched.run_id else f"{run_id.removeprefix(f'{watched.run_id}.')}: "
    say(escape_control_characters(f"{name}{text}"), err=True)
