"""The revision loop as a pure state machine: what a submission costs, what the model is told, when a run is over."""

from typing import TYPE_CHECKING

from meruit._lazy import lazy_names

if TYPE_CHECKING:
    from meruit.errors import AgentError, BudgetError, CouldNotVerify, VerificationExhausted, VerificationRejected
    from meruit.gate.agent import Agent, RunResult
    from meruit.gate.context import AgentContext, ExecutionContext
    from meruit.gate.gate import Gate, Passed, Rejected
    from meruit.gate.runner.engine import AgentRoster
    from meruit.gate.runner.worker import run_worker
    from meruit.gate.state import VerificationOutcome, VerificationState
    from meruit.gate.team import Team, WorkItem
    from meruit.gate.tools import Deferred, Pause, tool

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
    "Team",
    "VerificationExhausted",
    "VerificationOutcome",
    "VerificationRejected",
    "VerificationState",
    "WorkItem",
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
            "VerificationExhausted",
            "VerificationRejected",
        ),
        "gate.agent": (
            "Agent",
            "RunResult",
        ),
        "gate.context": (
            "AgentContext",
            "ExecutionContext",
        ),
        "gate.gate": (
            "Gate",
            "Passed",
            "Rejected",
        ),
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
    },
)
