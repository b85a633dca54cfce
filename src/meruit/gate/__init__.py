"""Agents behind a verification gate: an output counts once its verifier accepts it, within a budget of attempts.

Read in this order:

- state.py, limits.py, verdict.py - the pure state machine: what a submission costs and when a run is over
- accounting.py, feedback.py - the result of a submission and the feedback for the model
- candidate.py, verifier.py, ask_verifier.py, interpret.py - the hash of a candidate; find and call `verify`, and
  what its return value or exception means
- submission.py - submit a candidate: ask the verifier, account for the verdict; the one path for all loops
- journal.py - storage of submissions and steps, in memory or in the store
- timeline.py - what happened in a run, in order, for readers
- gate.py - `Gate`, for a host's own loop
- definition.py, tools.py, context.py, run.py, agent.py, loop.py - `Agent` and the loop that drives its runs
- team.py - several agents with a plan
- client.py - queue durable runs from Python, and answer them
- store/ - tables and SQL; runner/ - workers; chat/ - models over HTTP
"""

from typing import TYPE_CHECKING

from meruit._lazy import lazy_names

if TYPE_CHECKING:
    from meruit.errors import (
        AgentError,
        BudgetError,
        CouldNotVerify,
        SubmissionConflict,
        VerificationExhausted,
        VerificationRejected,
        VerificationWaiting,
    )
    from meruit.gate.agent import Agent, RunResult
    from meruit.gate.client import cancel_run, queue_run, read_run, resume_run
    from meruit.gate.context import AgentContext, ExecutionContext
    from meruit.gate.gate import Gate
    from meruit.gate.runner.engine import AgentRoster
    from meruit.gate.runner.worker import run_worker
    from meruit.gate.state import VerificationOutcome, VerificationState
    from meruit.gate.team import Team, WorkItem
    from meruit.gate.tools import Deferred, Pause, tool
    from meruit.gate.verdict import Passed, Rejected

__all__ = [
    "Agent",
    "AgentContext",
    "AgentError",
    "AgentRoster",
    "BudgetError",
    "CouldNotVerify",
    "Deferred",
    "ExecutionContext",
    "Gate",
    "Passed",
    "Pause",
    "Rejected",
    "RunResult",
    "SubmissionConflict",
    "Team",
    "VerificationExhausted",
    "VerificationOutcome",
    "VerificationRejected",
    "VerificationState",
    "VerificationWaiting",
    "WorkItem",
    "cancel_run",
    "queue_run",
    "read_run",
    "resume_run",
    "run_worker",
    "tool",
]
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "errors": (
            "AgentError",
            "BudgetError",
            "CouldNotVerify",
            "SubmissionConflict",
            "VerificationExhausted",
            "VerificationRejected",
            "VerificationWaiting",
        ),
        "gate.agent": (
            "Agent",
            "RunResult",
        ),
        "gate.client": (
            "cancel_run",
            "queue_run",
            "read_run",
            "resume_run",
        ),
        "gate.context": (
            "AgentContext",
            "ExecutionContext",
        ),
        "gate.gate": ("Gate",),
        "gate.runner.engine": ("AgentRoster",),
        "gate.runner.worker": ("run_worker",),
        "gate.state": (
            "VerificationOutcome",
            "VerificationState",
        ),
        "gate.team": (
            "Team",
            "WorkItem",
        ),
        "gate.tools": (
            "Deferred",
            "Pause",
            "tool",
        ),
        "gate.verdict": (
            "Passed",
            "Rejected",
        ),
    },
)
