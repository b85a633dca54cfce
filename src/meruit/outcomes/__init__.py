"""Recorded outcomes: judge and record, export, rescore.

Read in this order:
    service.py      Registrar: judge work and record the outcome
    store/          write.py, read.py, erase.py, criteria.py (named criteria), batches.py (pages for bulk work)
    export.py       outcomes as JSON Lines or Parquet
    rescore/        run.py judges records by other criteria; reuse.py, columns.py and ray.py make it fast
"""

from typing import TYPE_CHECKING

from meruit._lazy import lazy_names

if TYPE_CHECKING:
    from meruit.model.access import Scope
    from meruit.model.outcome import Labels, OutcomeRecord
    from meruit.outcomes.reader import read_outcome
    from meruit.outcomes.service import Registrar, Submission
    from meruit.store.location import Location
    from meruit.store.store import Store

__all__ = [
    "Labels",
    "Location",
    "OutcomeRecord",
    "Registrar",
    "Scope",
    "Store",
    "Submission",
    "read_outcome",
]
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "model.access": ("Scope",),
        "model.outcome": (
            "Labels",
            "OutcomeRecord",
        ),
        "outcomes.reader": ("read_outcome",),
        "outcomes.service": (
            "Registrar",
            "Submission",
        ),
        "store.location": ("Location",),
        "store.store": ("Store",),
    },
)
