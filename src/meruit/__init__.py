"""Meruit: proves whether an AI agent's work was done, how well, what it cost, and what is owed.

Import what most programs need from here. Each name is loaded when it is first used, so that `import meruit` is cheap.
Other public packages: `meruit.plugins`, `meruit.gate`, `meruit.bridges`, `meruit.usage`, `meruit.contracts`,
`meruit.outcomes`, `meruit.evaluations`, `meruit.audit`, `meruit.reports`, `meruit.judge`, `meruit.playground`,
`meruit.testing`.
"""

from typing import TYPE_CHECKING, Any

from meruit._lazy import lazy_names

if TYPE_CHECKING:
    from meruit.app import build_engine, open_market, open_records
    from meruit.bridges.criteria_verifier import Verified, criteria
    from meruit.config import Settings
    from meruit.contracts.bill import calculate_cost
    from meruit.contracts.client import Market
    from meruit.contracts.marketplace import Marketplace
    from meruit.documents.authoring import parse_criteria
    from meruit.errors import (
        AgentError,
        ConfigError,
        CouldNotVerify,
        CriteriaError,
        CriteriaNotMet,
        Failure,
        MeruitError,
        ModelRefused,
        Unreachable,
        VerificationExhausted,
        VerificationRejected,
        VerificationWaiting,
    )
    from meruit.gate.agent import Agent, RunResult
    from meruit.gate.chat.endpoint import ChatEndpoint
    from meruit.gate.context import AgentContext, ExecutionContext
    from meruit.gate.gate import Gate
    from meruit.gate.state import VerificationOutcome, VerificationState
    from meruit.gate.team import Team, WorkItem
    from meruit.gate.tools import Deferred, Pause, tool
    from meruit.gate.verdict import Passed, Rejected
    from meruit.governance.dossier import HandedIn
    from meruit.governance.evaluate import govern
    from meruit.governance.remote import RemoteGovernance
    from meruit.governance.rule_governance import RuleGovernance
    from meruit.judge.verdict import rejudge
    from meruit.metrics.custom import CustomExtractor
    from meruit.metrics.support.extractor import MetricExtractor
    from meruit.metrics.support.families import (
        ClassificationExtractor,
        ContainsExtractor,
        LatencyExtractor,
        TextQualityExtractor,
    )
    from meruit.model.chat import ChatModel, ModelAnswer, ToolCall, ToolSpec
    from meruit.model.contract import Budget, Contract, ContractState, Execution, Terms, WorkSubmission
    from meruit.model.criterion import Assertion, CustomMetric, SuccessCriteria, SuccessCriterion, validate_threshold
    from meruit.model.evidence import Cause, Checked, Fault, Measured, Missing, Provenance, Skipped
    from meruit.model.governance import Disposition, Dossier, Flag, GovernanceClient, GovernanceResult, Policy
    from meruit.model.kinds import Aggregation, ComparisonOperator, MetricType, MissingPolicy, Scale, Tier
    from meruit.model.metering import AttributionKey, AttributionKind, MeteredRun
    from meruit.model.money import Bill, Cost
    from meruit.model.outcome import Labels, OutcomeRecord
    from meruit.model.usage import Observation, Tokens, UsagePolicy, UsageRun, UsageStatus, UsageStep, UsageVerdict
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
    from meruit.outcomes.service import Registrar, Submission
    from meruit.registry import Ask
    from meruit.sandbox.contract import SandboxResult
    from meruit.sandbox.sandbox import Sandbox
    from meruit.store.location import Location
    from meruit.store.store import Store
    from meruit.usage.decision import decide
    from meruit.usage.meter import RunMeter, metered_run
    from meruit.verify.catalogue import CompiledCriteria
    from meruit.verify.custom_code import CustomCode
    from meruit.verify.engine import VerificationEngine
    from meruit.verify.extractor_registry import extractor_registry
    from meruit.verify.load import load_criteria

_HOMES = {
    "app": ("build_engine", "open_market", "open_records"),
    "bridges.criteria_verifier": ("Verified", "criteria"),
    "gate.agent": ("Agent", "RunResult"),
    "gate.gate": ("Gate",),
    "gate.verdict": ("Passed", "Rejected"),
    "gate.team": ("Team", "WorkItem"),
    "gate.tools": ("Deferred", "Pause", "tool"),
    "gate.context": ("AgentContext", "ExecutionContext"),
    "gate.state": ("VerificationOutcome", "VerificationState"),
    "contracts.client": ("Market",),
    "config": ("Settings",),
    "verify.load": ("load_criteria",),
    "documents.authoring": ("parse_criteria",),
    "verify.catalogue": ("CompiledCriteria",),
    "verify.custom_code": ("CustomCode",),
    "governance.dossier": ("HandedIn",),
    "usage.meter": ("RunMeter", "metered_run"),
    "outcomes.service": ("Registrar", "Submission"),
    "verify.engine": ("VerificationEngine",),
    "verify.extractor_registry": ("extractor_registry",),
    "contracts.marketplace": ("Marketplace",),
    "judge.verdict": ("rejudge",),
    "metrics.custom": ("CustomExtractor",),
    "metrics.support.extractor": ("MetricExtractor",),
    "metrics.support.families": (
        "ClassificationExtractor",
        "ContainsExtractor",
        "LatencyExtractor",
        "TextQualityExtractor",
    ),
    "model.chat": ("ChatModel", "ModelAnswer", "ToolCall", "ToolSpec"),
    "model.contract": ("Budget", "Contract", "ContractState", "Execution", "Terms", "WorkSubmission"),
    "model.criterion": ("Assertion", "CustomMetric", "SuccessCriteria", "SuccessCriterion", "validate_threshold"),
    "errors": (
        "AgentError",
        "ConfigError",
        "CouldNotVerify",
        "CriteriaError",
        "CriteriaNotMet",
        "Failure",
        "MeruitError",
        "ModelRefused",
        "Unreachable",
        "VerificationExhausted",
        "VerificationRejected",
        "VerificationWaiting",
    ),
    "model.evidence": ("Cause", "Checked", "Fault", "Measured", "Missing", "Provenance", "Skipped"),
    "model.governance": ("Disposition", "Dossier", "Flag", "GovernanceClient", "GovernanceResult", "Policy"),
    "model.kinds": ("Aggregation", "ComparisonOperator", "MetricType", "MissingPolicy", "Scale", "Tier"),
    "model.metering": ("AttributionKey", "AttributionKind", "MeteredRun"),
    "model.money": ("Bill", "Cost"),
    "model.outcome": ("Labels", "OutcomeRecord"),
    "model.usage": ("Observation", "Tokens", "UsagePolicy", "UsageRun", "UsageStatus", "UsageStep", "UsageVerdict"),
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
    "contracts.bill": ("calculate_cost",),
    "registry": ("Ask",),
    "sandbox.contract": ("SandboxResult",),
    "sandbox.sandbox": ("Sandbox",),
    "gate.chat.endpoint": ("ChatEndpoint",),
    "governance.remote": ("RemoteGovernance",),
    "governance.rule_governance": ("RuleGovernance",),
    "store.location": ("Location",),
    "store.store": ("Store",),
    "governance.evaluate": ("govern",),
    "usage.decision": ("decide",),
}

__all__ = [
    "Agent",
    "AgentContext",
    "AgentError",
    "Aggregation",
    "Ask",
    "Assertion",
    "AttributionKey",
    "AttributionKind",
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
    "CompiledCriteria",
    "ConfigError",
    "ContainsExtractor",
    "Contract",
    "ContractState",
    "Cost",
    "CouldNotVerify",
    "CriteriaError",
    "CriteriaNotMet",
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
    "Observation",
    "OutcomeRecord",
    "Passed",
    "Pause",
    "Policy",
    "Provenance",
    "Reason",
    "ReasonCode",
    "Registrar",
    "Rejected",
    "RemoteGovernance",
    "RuleGovernance",
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
    "VerificationWaiting",
    "Verified",
    "Work",
    "WorkItem",
    "WorkSubmission",
    "build_engine",
    "calculate_cost",
    "criteria",
    "decide",
    "extractor_registry",
    "govern",
    "load_criteria",
    "metered_run",
    "open_market",
    "open_records",
    "parse_criteria",
    "rejudge",
    "tool",
    "validate_threshold",
]


_load, __dir__ = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    """Load a public name from its home, once."""
    if name == "__version__":
        from importlib.metadata import version

        return version("meruit")
    return _load(name)
