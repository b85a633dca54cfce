"""Meruit: proves whether an AI agent's work was done, how well, what it cost, and what is owed.

Every public name can be imported from here; each is loaded when first used, so that `import meruit` is cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meruit.app import open_market, open_records
    from meruit.bridges.by_criteria import Verified, criteria
    from meruit.config import Settings, load_criteria
    from meruit.documents.authoring import parse_criteria
    from meruit.engine.agent import Agent, RunResult
    from meruit.engine.catalogue import Prepared
    from meruit.engine.custom import CustomCode
    from meruit.engine.definition import AgentError
    from meruit.engine.dossier import HandedIn
    from meruit.engine.gating import Gate, Passed, Rejected
    from meruit.engine.market import Market
    from meruit.engine.metering import RunMeter, metered_run
    from meruit.engine.registrar import Registrar, Submission
    from meruit.engine.team import Team, WorkItem
    from meruit.engine.tools import Deferred, Pause, tool
    from meruit.engine.verify import VerificationEngine
    from meruit.engine.work import Marketplace
    from meruit.gate.context import AgentContext, ExecutionContext
    from meruit.gate.state import VerificationOutcome, VerificationState
    from meruit.gate.verdict import CouldNotVerify, VerificationExhausted, VerificationRejected
    from meruit.judge.verdict import rejudge
    from meruit.metrics.content import ContainsExtractor
    from meruit.metrics.custom import CustomExtractor
    from meruit.metrics.extractor import MetricExtractor
    from meruit.metrics.labels import ClassificationExtractor
    from meruit.metrics.latency import LatencyExtractor
    from meruit.metrics.text import TextQualityExtractor
    from meruit.model.chat import ChatModel, ModelAnswer, ToolCall, ToolSpec
    from meruit.model.contract import Budget, Contract, ContractState, Execution, Terms, WorkSubmission
    from meruit.model.criterion import Assertion, CustomMetric, SuccessCriteria, SuccessCriterion
    from meruit.model.errors import ConfigError, CriteriaError, MeruitError, Unreachable
    from meruit.model.evidence import Cause, Checked, Fault, Measured, Missing, Provenance, Skipped
    from meruit.model.governance import Disposition, Dossier, Flag, GovernanceClient, GovernanceResult, Policy
    from meruit.model.kinds import Aggregation, ComparisonOperator, MetricType, MissingPolicy, Scale, Tier
    from meruit.model.metering import Lane, LaneKind, MeteredRun
    from meruit.model.money import Bill, Cost
    from meruit.model.outcome import Labels, OutcomeRecord
    from meruit.model.usage import Attempt, Tokens, UsagePolicy, UsageRun, UsageStatus, UsageStep, UsageVerdict
    from meruit.model.verdict import (
        AxisScore,
        Bounds,
        CriterionResult,
        GovernanceStatus,
        Reason,
        ReasonCode,
        Status,
        Verdict,
        VerificationResult,
    )
    from meruit.model.work import Work
    from meruit.money.bill import calculate_cost
    from meruit.registry import Ask
    from meruit.sandbox.contract import Failure, SandboxResult
    from meruit.sandbox.sandbox import Sandbox
    from meruit.sources.chat import ChatEndpoint, ModelRefused
    from meruit.sources.governance import RemoteGovernance
    from meruit.stores.location import Location
    from meruit.stores.store import Store
    from meruit.trust.governance import govern
    from meruit.trust.usage import decide

_HOMES = {
    "app": ("open_market", "open_records"),
    "bridges.by_criteria": ("Verified", "criteria"),
    "engine.agent": ("Agent", "RunResult"),
    "engine.gating": ("Gate", "Passed", "Rejected"),
    "engine.team": ("Team", "WorkItem"),
    "engine.tools": ("Deferred", "Pause", "tool"),
    "gate.context": ("AgentContext", "ExecutionContext"),
    "gate.state": ("VerificationOutcome", "VerificationState"),
    "gate.verdict": ("CouldNotVerify", "VerificationExhausted", "VerificationRejected"),
    "engine.market": ("Market",),
    "config": ("Settings", "load_criteria"),
    "documents.authoring": ("parse_criteria",),
    "engine.catalogue": ("Prepared",),
    "engine.custom": ("CustomCode",),
    "engine.definition": ("AgentError",),
    "engine.dossier": ("HandedIn",),
    "engine.metering": ("RunMeter", "metered_run"),
    "engine.registrar": ("Registrar", "Submission"),
    "engine.verify": ("VerificationEngine",),
    "engine.work": ("Marketplace",),
    "judge.verdict": ("rejudge",),
    "metrics.content": ("ContainsExtractor",),
    "metrics.custom": ("CustomExtractor",),
    "metrics.extractor": ("MetricExtractor",),
    "metrics.labels": ("ClassificationExtractor",),
    "metrics.latency": ("LatencyExtractor",),
    "metrics.text": ("TextQualityExtractor",),
    "model.chat": ("ChatModel", "ModelAnswer", "ToolCall", "ToolSpec"),
    "model.contract": ("Budget", "Contract", "ContractState", "Execution", "Terms", "WorkSubmission"),
    "model.criterion": ("Assertion", "CustomMetric", "SuccessCriteria", "SuccessCriterion"),
    "model.errors": ("ConfigError", "CriteriaError", "MeruitError", "Unreachable"),
    "model.evidence": ("Cause", "Checked", "Fault", "Measured", "Missing", "Provenance", "Skipped"),
    "model.governance": ("Disposition", "Dossier", "Flag", "GovernanceClient", "GovernanceResult", "Policy"),
    "model.kinds": ("Aggregation", "ComparisonOperator", "MetricType", "MissingPolicy", "Scale", "Tier"),
    "model.metering": ("Lane", "LaneKind", "MeteredRun"),
    "model.money": ("Bill", "Cost"),
    "model.outcome": ("Labels", "OutcomeRecord"),
    "model.usage": ("Attempt", "Tokens", "UsagePolicy", "UsageRun", "UsageStatus", "UsageStep", "UsageVerdict"),
    "model.verdict": (
        "AxisScore",
        "Bounds",
        "CriterionResult",
        "GovernanceStatus",
        "Reason",
        "ReasonCode",
        "Status",
        "Verdict",
        "VerificationResult",
    ),
    "model.work": ("Work",),
    "money.bill": ("calculate_cost",),
    "registry": ("Ask",),
    "sandbox.contract": ("Failure", "SandboxResult"),
    "sandbox.sandbox": ("Sandbox",),
    "sources.chat": ("ChatEndpoint", "ModelRefused"),
    "sources.governance": ("RemoteGovernance",),
    "stores.location": ("Location",),
    "stores.store": ("Store",),
    "trust.governance": ("govern",),
    "trust.usage": ("decide",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Agent",
    "AgentContext",
    "AgentError",
    "Aggregation",
    "Ask",
    "Assertion",
    "Attempt",
    "AxisScore",
    "Bill",
    "Bounds",
    "Budget",
    "Cause",
    "ChatEndpoint",
    "ChatModel",
    "Checked",
    "ClassificationExtractor",
    "ComparisonOperator",
    "ConfigError",
    "ContainsExtractor",
    "Contract",
    "ContractState",
    "Cost",
    "CouldNotVerify",
    "CriteriaError",
    "CriterionResult",
    "CustomCode",
    "CustomExtractor",
    "CustomMetric",
    "Deferred",
    "Disposition",
    "Dossier",
    "Execution",
    "ExecutionContext",
    "Failure",
    "Fault",
    "Flag",
    "Gate",
    "GovernanceClient",
    "GovernanceResult",
    "GovernanceStatus",
    "HandedIn",
    "Labels",
    "Lane",
    "LaneKind",
    "LatencyExtractor",
    "Location",
    "Market",
    "Marketplace",
    "Measured",
    "MeruitError",
    "MeteredRun",
    "MetricExtractor",
    "MetricType",
    "Missing",
    "MissingPolicy",
    "ModelAnswer",
    "ModelRefused",
    "OutcomeRecord",
    "Passed",
    "Pause",
    "Policy",
    "Prepared",
    "Provenance",
    "Reason",
    "ReasonCode",
    "Registrar",
    "Rejected",
    "RemoteGovernance",
    "RunMeter",
    "RunResult",
    "Sandbox",
    "SandboxResult",
    "Scale",
    "Settings",
    "Skipped",
    "Status",
    "Store",
    "Submission",
    "SuccessCriteria",
    "SuccessCriterion",
    "Team",
    "Terms",
    "TextQualityExtractor",
    "Tier",
    "Tokens",
    "ToolCall",
    "ToolSpec",
    "Unreachable",
    "UsagePolicy",
    "UsageRun",
    "UsageStatus",
    "UsageStep",
    "UsageVerdict",
    "Verdict",
    "VerificationEngine",
    "VerificationExhausted",
    "VerificationOutcome",
    "VerificationRejected",
    "VerificationResult",
    "VerificationState",
    "Verified",
    "Work",
    "WorkItem",
    "WorkSubmission",
    "calculate_cost",
    "criteria",
    "decide",
    "govern",
    "load_criteria",
    "metered_run",
    "open_market",
    "open_records",
    "parse_criteria",
    "rejudge",
    "tool",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its home, once."""
    if name == "__version__":
        from importlib.metadata import version

        return version("meruit")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'meruit' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"meruit.{home}"), name)
    return value


def __dir__() -> list[str]:
    """Every public name."""
    return sorted(__all__)
