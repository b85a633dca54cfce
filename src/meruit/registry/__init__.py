"""Plugins: what each kind says about itself, and how it is found.

Read in this order:

- plugins.py - the kinds of plugins
- loading.py - find them: a file in the plugin's package, or an entry point of an installed package
- metric_registry.py - the metrics, of which only those that are asked for are loaded
- registries.py - the other kinds, each with the decorator that adds one
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from meruit.errors import AssertionFaults, AuthorError
from meruit.registry.loading import find_entry_points
from meruit.registry.metric_registry import MetricNames, MetricRegistry
from meruit.registry.plugins import (
    Ask,
    Check,
    CheckExample,
    Example,
    Exporter,
    Finding,
    FlagExample,
    FlagRule,
    Importer,
    InputProblem,
    Measure,
    Metric,
    SettlementContext,
    SettlementRule,
    UsageProvider,
)
from meruit.registry.registries import (
    CheckRegistry,
    ExporterRegistry,
    FlagRegistry,
    ImporterRegistry,
    SettlementRegistry,
    UsageFollowerRegistry,
    UsageRegistry,
)
from meruit.suggestions import nearest

if TYPE_CHECKING:
    from meruit.model.criterion import Assertion

__all__ = [
    "Ask",
    "Check",
    "CheckExample",
    "CheckRegistry",
    "Example",
    "Exporter",
    "Finding",
    "FlagExample",
    "FlagRule",
    "Importer",
    "InputProblem",
    "Measure",
    "Metric",
    "MetricNames",
    "MetricRegistry",
    "SettlementContext",
    "SettlementRule",
    "UsageProvider",
    "UsageRegistry",
    "checks",
    "exporters",
    "faults_of",
    "find_entry_points",
    "flags",
    "importers",
    "metrics",
    "settlement_rules",
    "usage_followers",
    "usage_sources",
]

metrics = MetricRegistry("metrics", "; `meruit metrics` lists all")
checks = CheckRegistry("checks", "; `meruit checks` lists all")
flags = FlagRegistry("governance.flags", "; `meruit governance rules` lists all")
settlement_rules = SettlementRegistry("contracts.rules", "; `meruit ledger rules` lists all")
usage_sources = UsageRegistry("usage.providers", "; `meruit usage sources` lists all", "usage source")
usage_followers = UsageFollowerRegistry("contracts.usage_followers", noun="usage follower")
exporters = ExporterRegistry("evaluations.exporters", noun="export format")
importers = ImporterRegistry("evaluations.importers", noun="import format")


def faults_of(assertion: "Assertion") -> Sequence[tuple[tuple[str | int, ...], str]]:
    """The faults of an assertion, each with its path; empty where it is valid."""
    check = checks.find(assertion.check)
    if check is None:
        return [(("assert",), f"no check is named {assertion.check!r}{nearest(assertion.check, checks.names())}")]
    try:
        check.prepare(assertion)
    except AssertionFaults as refused:
        return refused.faults
    except AuthorError as refused:
        return [((), str(refused))]
    return []
