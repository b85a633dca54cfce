"""`Agent`: an agent's definition that can be run in this process; a worker runs it durably."""

import asyncio
from typing import Any

import msgspec

from meruit.errors import AgentError, CouldNotVerify, VerificationExhausted
from meruit.gate.context import ExecutionContext
from meruit.gate.definition import AgentDefinition
from meruit.gate.journal import MemoryJournal
from meruit.gate.loop import RunDone, RunFailed, drive
from meruit.gate.run import AgentRun, RunRequest, RunState
from meruit.gate.state import VerificationEnding, VerificationState
from meruit.model.chat import Usage
from meruit.model.time import from_micros


class RunResult(msgspec.Struct, frozen=True):
    """The result of a run."""

    # Any: the return value of the agent's verifier, or its output where it has none.
    output: Any
    attempts_used: int
    usage: Usage
    turns: int


class Agent(AgentDefinition):
    """A model with instructions and tools, whose output counts once it is verified."""

    async def run(
        self,
        query: str,
        *,
        payload: dict[str, Any] | None = None,
        verify_max_attempts: int | None = None,
        deps: Any = None,
    ) -> RunResult:
        """Run in this process, without a record; raises VerificationExhausted, CouldNotVerify or AgentError."""
        if not query.strip():
            raise AgentError(f"the query for agent {self.name!r} is empty; pass a text")
        request = RunRequest(query, payload or {}, verify_max_attempts)
        state = VerificationState(limits=self.limits(verify_max_attempts))
        run = AgentRun(
            id="run",
            seq=0,
            agent=self.name,
            status=RunState.RUNNING,
            request=request,
            created_at=from_micros(0),
            created_by="",
            verification=state,
        )
        journal = MemoryJournal()
        while True:
            end = await drive(self, run, journal, ExecutionContext(run_id=run.id, deps=deps))
            match end:
                case RunDone():
                    return self._result(end)
                case RunFailed():
                    raise _failure(end)
                case _ if end.waiting_for is not None:
                    raise AgentError(
                        f"agent {self.name!r} waits for {end.note or end.waiting_for}, and this run keeps no record; "
                        "queue it for a worker, which can wait: queue_run(store, agent, query)"
                    )
                case _:
                    await asyncio.sleep(end.pause_s or 0.0)

    def run_sync(self, query: str, **named: Any) -> RunResult:
        """Run in this process, for callers without an event loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.run(query, **named))
        raise AgentError("an event loop is running: write `await agent.run(…)`")

    def _result(self, end: RunDone) -> RunResult:
        output = end.returned
        if end.result is not None:
            plain = msgspec.json.decode(end.result)
            output = plain if self.output is None else self.output.restore(plain)
        return RunResult(output=output, attempts_used=end.attempts_used, usage=end.usage, turns=end.turn)


def _failure(end: RunFailed) -> Exception:
    if end.ending == VerificationEnding.SYSTEM_ERROR:
        return CouldNotVerify(end.error)
    return VerificationExhausted(end.ending, end.attempts_used, end.error, end.code)
