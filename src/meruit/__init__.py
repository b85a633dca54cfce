"""Meruit: proves whether an AI agent's work was done, how well, what it cost, and what is owed.

Every public name can be imported from here; each is loaded when first used, so that `import meruit` is cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meruit.app import open_market
    from meruit.config import Settings, load_criteria
    from meruit.documents.authoring import parse_criteria
    from meruit.engine.catalogue import Prepared
    from meruit.engine.custom import CustomCode
    from meruit.engine.dossier import HandedIn
    from meruit.engine.market import Market
    from meruit.engine.registrar import Registrar, Submission
    from meruit.engine.verify import VerificationEngine
    from meruit.engine.work import Marketplace
    from meruit.judge.verdict import rejudge
    from meruit.metrics.content import ContainsExtractor
    from meruit.metrics.custom import CustomExtractor
    from meruit.metrics.extractor import MetricExtractor
    from meruit.metrics.labels import ClassificationExtractor
    from meruit.metrics.latency import LatencyExtractor
    from meruit.metrics.text import TextQualityExtractor
    from meruit.model.contract import Budget, Contract, ContractState, Execution, Terms, WorkSubmission
    from meruit.model.criterion import Assertion, CustomMetric, SuccessCriteria, SuccessCriterion
    from meruit.model.errors import ConfigError, CriteriaError, MeruitError
    from meruit.model.evidence import Cause, Checked, Fault, Measured, Missing, Provenance, Skipped
    from meruit.model.governance import Disposition, Dossier, Flag, GovernanceClient, GovernanceResult, Policy
    from meruit.model.kinds import Aggregation, ComparisonOperator, MetricType, MissingPolicy, Scale, Tier
    from meruit.model.money import Bill, Cost
    from meruit.model.outcome import Labels, OutcomeRecord
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
    from meruit.sources.governance import RemoteGovernance
    from meruit.stores.location import Location
    from meruit.stores.store import Store
    from meruit.trust.governance import govern

_HOMES = {
    "app": ("open_market",),
    "engine.market": ("Market",),
    "config": ("Settings", "load_criteria"),
    "documents.authoring": ("parse_criteria",),
    "engine.catalogue": ("Prepared",),
    "engine.custom": ("CustomCode",),
    "engine.dossier": ("HandedIn",),
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
    "model.contract": ("Budget", "Contract", "ContractState", "Execution", "Terms", "WorkSubmission"),
    "model.criterion": ("Assertion", "CustomMetric", "SuccessCriteria", "SuccessCriterion"),
    "model.errors": ("ConfigError", "CriteriaError", "MeruitError"),
    "model.evidence": ("Cause", "Checked", "Fault", "Measured", "Missing", "Provenance", "Skipped"),
    "model.governance": ("Disposition", "Dossier", "Flag", "GovernanceClient", "GovernanceResult", "Policy"),
    "model.kinds": ("Aggregation", "ComparisonOperator", "MetricType", "MissingPolicy", "Scale", "Tier"),
    "model.money": ("Bill", "Cost"),
    "model.outcome": ("Labels", "OutcomeRecord"),
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
    "sources.governance": ("RemoteGovernance",),
    "stores.location": ("Location",),
    "stores.store": ("Store",),
    "trust.governance": ("govern",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Aggregation",
    "Ask",
    "Assertion",
    "AxisScore",
    "Bill",
    "Bounds",
    "Budget",
    "Cause",
    "Checked",
    "ClassificationExtractor",
    "ComparisonOperator",
    "ConfigError",
    "ContainsExtractor",
    "Contract",
    "ContractState",
    "Cost",
    "CriteriaError",
    "CriterionResult",
    "CustomCode",
    "CustomExtractor",
    "CustomMetric",
    "Disposition",
    "Dossier",
    "Execution",
    "Failure",
    "Fault",
    "Flag",
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
    "MetricExtractor",
    "MetricType",
    "Missing",
    "MissingPolicy",
    "OutcomeRecord",
    "Policy",
    "Prepared",
    "Provenance",
    "Reason",
    "ReasonCode",
    "Registrar",
    "RemoteGovernance",
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
    "Terms",
    "TextQualityExtractor",
    "Tier",
    "Verdict",
    "VerificationEngine",
    "VerificationResult",
    "Work",
    "WorkSubmission",
    "calculate_cost",
    "govern",
    "load_criteria",
    "open_market",
    "parse_criteria",
    "rejudge",
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
