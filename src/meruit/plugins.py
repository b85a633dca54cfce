"""What a plugin imports: the registries, and the values that plugins take and return.

A metric, check, flag, settlement rule or usage source is one file that registers itself:

    from meruit.plugins import MetricType, Work, metrics
"""

from typing import TYPE_CHECKING

from meruit._lazy import lazy_names

if TYPE_CHECKING:
    from meruit.errors import AuthorError
    from meruit.model.contract import Terms
    from meruit.model.evidence import Cause, Checked, Fault, Measured, Missing, Provenance, Skipped
    from meruit.model.governance import Action, Dossier, Suspicion
    from meruit.model.kinds import MetricType
    from meruit.model.metering import UsageAccount, UsageSource
    from meruit.model.money import Line, PricePart
    from meruit.model.verdict import VerificationResult
    from meruit.model.work import Work
    from meruit.registry import (
        Ask,
        Finding,
        SettlementContext,
        checks,
        flags,
        metrics,
        settlement_rules,
        usage_followers,
        usage_sources,
    )

__all__ = [
    "Action",
    "Ask",
    "AuthorError",
    "Cause",
    "Checked",
    "Dossier",
    "Fault",
    "Finding",
    "Line",
    "Measured",
    "MetricType",
    "Missing",
    "PricePart",
    "Provenance",
    "SettlementContext",
    "Skipped",
    "Suspicion",
    "Terms",
    "UsageAccount",
    "UsageSource",
    "VerificationResult",
    "Work",
    "checks",
    "flags",
    "metrics",
    "settlement_rules",
    "usage_followers",
    "usage_sources",
]
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "errors": ("AuthorError",),
        "model.contract": ("Terms",),
        "model.evidence": (
            "Cause",
            "Checked",
            "Fault",
            "Measured",
            "Missing",
            "Provenance",
            "Skipped",
        ),
        "model.governance": (
            "Action",
            "Dossier",
            "Suspicion",
        ),
        "model.kinds": ("MetricType",),
        "model.metering": (
            "UsageAccount",
            "UsageSource",
        ),
        "model.money": (
            "Line",
            "PricePart",
        ),
        "model.verdict": ("VerificationResult",),
        "model.work": ("Work",),
        "registry": (
            "Ask",
            "Finding",
            "SettlementContext",
            "checks",
            "flags",
            "metrics",
            "settlement_rules",
            "usage_followers",
            "usage_sources",
        ),
    },
)
