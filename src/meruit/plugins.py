"""What a plugin imports: the registries, and the values that plugins take and return.

A metric, check, flag, settlement rule, usage source, importer or exporter is one file that registers itself:

    from meruit.plugins import MetricType, Work, metrics
"""

from typing import TYPE_CHECKING

from meruit._lazy import lazy_names

if TYPE_CHECKING:
    from meruit.errors import AuthorError, ImportDamaged
    from meruit.evaluations.export import EvaluationExport
    from meruit.evaluations.importers.support.pieces import (
        Claim,
        ImportedCase,
        ImportNote,
        RunFacts,
        TokenClasses,
        build_case,
    )
    from meruit.evaluations.importers.support.source import ImportSource
    from meruit.evaluations.reader import CaseDetail
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
        exporters,
        flags,
        importers,
        metrics,
        settlement_rules,
        usage_followers,
        usage_sources,
    )

__all__ = [
    "Action",
    "Ask",
    "AuthorError",
    "CaseDetail",
    "Cause",
    "Checked",
    "Claim",
    "Dossier",
    "EvaluationExport",
    "Fault",
    "Finding",
    "ImportDamaged",
    "ImportNote",
    "ImportSource",
    "ImportedCase",
    "Line",
    "Measured",
    "MetricType",
    "Missing",
    "PricePart",
    "Provenance",
    "RunFacts",
    "SettlementContext",
    "Skipped",
    "Suspicion",
    "Terms",
    "TokenClasses",
    "UsageAccount",
    "UsageSource",
    "VerificationResult",
    "Work",
    "build_case",
    "checks",
    "exporters",
    "flags",
    "importers",
    "metrics",
    "settlement_rules",
    "usage_followers",
    "usage_sources",
]
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "errors": ("AuthorError", "ImportDamaged"),
        "evaluations.export": ("EvaluationExport",),
        "evaluations.importers.support.pieces": (
            "Claim",
            "ImportNote",
            "ImportedCase",
            "RunFacts",
            "TokenClasses",
            "build_case",
        ),
        "evaluations.importers.support.source": ("ImportSource",),
        "evaluations.reader": ("CaseDetail",),
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
            "exporters",
            "flags",
            "importers",
            "metrics",
            "settlement_rules",
            "usage_followers",
            "usage_sources",
        ),
    },
)
