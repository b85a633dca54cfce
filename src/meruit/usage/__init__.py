"""Tokens: metered, reconciled with the provider, decided, priced."""

from typing import TYPE_CHECKING

from meruit._lazy import lazy_names

if TYPE_CHECKING:
    from meruit.errors import FetchError
    from meruit.model.metering import AttributionKey, AttributionKind, MeteredRun, MeteredStep, UsageRecord
    from meruit.model.prices import PriceQuote, RunCosts
    from meruit.model.usage import (
        Assurance,
        Observation,
        Tokens,
        UsagePolicy,
        UsageRun,
        UsageStatus,
        UsageStep,
        UsageVerdict,
        sum_tokens,
    )
    from meruit.usage.decision import decide
    from meruit.usage.meter import RunMeter, end_run, metered_run

__all__ = [
    "Assurance",
    "AttributionKey",
    "AttributionKind",
    "FetchError",
    "MeteredRun",
    "MeteredStep",
    "Observation",
    "PriceQuote",
    "RunCosts",
    "RunMeter",
    "Tokens",
    "UsagePolicy",
    "UsageRecord",
    "UsageRun",
    "UsageStatus",
    "UsageStep",
    "UsageVerdict",
    "decide",
    "end_run",
    "metered_run",
    "sum_tokens",
]
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "errors": ("FetchError",),
        "model.metering": (
            "AttributionKey",
            "AttributionKind",
            "MeteredRun",
            "MeteredStep",
            "UsageRecord",
        ),
        "model.prices": (
            "PriceQuote",
            "RunCosts",
        ),
        "model.usage": (
            "Assurance",
            "Observation",
            "Tokens",
            "UsagePolicy",
            "UsageRun",
            "UsageStatus",
            "UsageStep",
            "UsageVerdict",
            "sum_tokens",
        ),
        "usage.decision": ("decide",),
        "usage.meter": (
            "RunMeter",
            "end_run",
            "metered_run",
        ),
    },
)
