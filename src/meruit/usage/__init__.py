"""Token usage: meter runs, reconcile them with the provider's counts, decide what is verified, and price it.

Read in this order:

- meter.py, responses.py - record the calls of a run while it works
- decision.py, fold.py, rules.py, observation.py - the verdict on a run, from its observations
- schedule.py - when to observe a run again
- progress.py - both, from the next observation alone
- reconcile/ - request the providers' counts, and record an observation of each run
- attribution/ - which of a provider's counts belong to which run
- providers/ - the usage APIs, one file each
- cost.py, price_table.py, pricing.py - what the tokens cost
- files.py - metrics.json and runs_manifest.json
- store/ - tables and SQL
- followers.py - write usage together with its consequences for contracts
"""

from typing import TYPE_CHECKING

from meruit._lazy import lazy_names

if TYPE_CHECKING:
    from meruit.errors import FetchError
    from meruit.model.metering import (
        AttributionKey,
        AttributionKind,
        CallState,
        MeteredCall,
        MeteredRun,
        MeteredStep,
        PriceQuote,
        RunCosts,
        UsageRecord,
    )
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
    "CallState",
    "FetchError",
    "MeteredCall",
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
            "CallState",
            "MeteredCall",
            "MeteredRun",
            "MeteredStep",
            "PriceQuote",
            "RunCosts",
            "UsageRecord",
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
