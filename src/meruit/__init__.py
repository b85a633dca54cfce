"""Meruit: proves whether an AI agent's work was done, how well, what it cost, and what is owed.

Every public name can be imported from here; each is loaded when first used, so that `import meruit` is cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meruit.config import Settings, load_criteria
    from meruit.documents.authoring import parse_criteria
    from meruit.engine.catalogue import Prepared
    from meruit.engine.custom import CustomCode
    from meruit.engine.registrar import Registrar, Submission
    from meruit.engine.verify import VerificationEngine
    from meruit.judge.verdict import rejudge
    from meruit.metrics.content import ContainsExtractor
    from meruit.metrics.custom import CustomExtractor
    from meruit.metrics.extractor import MetricExtractor
    from meruit.metrics.labels import ClassificationExtractor
    from meruit.metrics.latency import LatencyExtractor
    from meruit.metrics.text import TextQualityExtractor
    from meruit.model.criterion import Assertion, CustomMetric, SuccessCriteria, SuccessCriterion
    from meruit.model.errors import ConfigError, CriteriaError, MeruitError
    from meruit.model.evidence import Cause, Checked, Fault, Measured, Missing, Provenance, Skipped
    from meruit.model.governance import GovernanceClient, GovernanceResult
    from meruit.model.kinds import Aggregation, ComparisonOperator, MetricType, MissingPolicy, Scale, Tier
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
    from meruit.registry import Ask
    from meruit.sandbox.contract import Failure, SandboxResult
    from meruit.sandbox.sandbox import Sandbox
    from meruit.stores.location import Location
    from meruit.stores.store import Store

_HOMES = {
    "config": ("Settings", "load_criteria"),
    "documents.authoring": ("parse_criteria",),
    "engine.catalogue": ("Prepared",),
    "engine.custom": ("CustomCode",),
    "engine.registrar": ("Registrar", "Submission"),
    "engine.verify": ("VerificationEngine",),
    "judge.verdict": ("rejudge",),
    "metrics.content": ("ContainsExtractor",),
    "metrics.custom": ("CustomExtractor",),
    "metrics.extractor": ("MetricExtractor",),
    "metrics.labels": ("ClassificationExtractor",),
    "metrics.latency": ("LatencyExtractor",),
    "metrics.text": ("TextQualityExtractor",),
    "model.criterion": ("Assertion", "CustomMetric", "SuccessCriteria", "SuccessCriterion"),
    "model.errors": ("ConfigError", "CriteriaError", "MeruitError"),
    "model.evidence": ("Cause", "Checked", "Fault", "Measured", "Missing", "Provenance", "Skipped"),
    "model.governance": ("GovernanceClient", "GovernanceResult"),
    "model.kinds": ("Aggregation", "ComparisonOperator", "MetricType", "MissingPolicy", "Scale", "Tier"),
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
    "registry": ("Ask",),
    "sandbox.contract": ("Failure", "SandboxResult"),
    "sandbox.sandbox": ("Sandbox",),
    "stores.location": ("Location",),
    "stores.store": ("Store",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Aggregation",
    "Ask",
    "Assertion",
    "AxisScore",
    "Bounds",
    "Cause",
    "Checked",
    "ClassificationExtractor",
    "ComparisonOperator",
    "ConfigError",
    "ContainsExtractor",
    "CriteriaError",
    "CriterionResult",
    "CustomCode",
    "CustomExtractor",
    "CustomMetric",
    "Failure",
    "Fault",
    "GovernanceClient",
    "GovernanceResult",
    "GovernanceStatus",
    "Labels",
    "LatencyExtractor",
    "Location",
    "Measured",
    "MeruitError",
    "MetricExtractor",
    "MetricType",
    "Missing",
    "MissingPolicy",
    "OutcomeRecord",
    "Prepared",
    "Provenance",
    "Reason",
    "ReasonCode",
    "Registrar",
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
    "TextQualityExtractor",
    "Tier",
    "Verdict",
    "VerificationEngine",
    "VerificationResult",
    "Work",
    "load_criteria",
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
