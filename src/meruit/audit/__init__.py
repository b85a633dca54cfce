"""Bundles that let a third party check an outcome and its payment; followers and witnesses of the log.

Read in this order:
    export.py       gather a bundle from the store
    bundle.py       the files of a bundle, packed and read in one form only
    findings.py     what checking comes to, step by step
    follow.py       a reader's file of checkpoints; log_sources.py reads a service or a store
    witness.py      a witness for other logs; cosigning.py asks witnesses for this one
    check.py        a whole store against its log
    verify/         entries.py (log), outcome.py (metrics, judge), settlement.py (governance, money), usage.py (tokens)
"""

from typing import TYPE_CHECKING

from meruit._lazy import lazy_names

if TYPE_CHECKING:
    from meruit.audit.findings import Findings
    from meruit.audit.verify.outcome import verify_bundle
    from meruit.errors import AuditStep

__all__ = [
    "AuditStep",
    "Findings",
    "verify_bundle",
]
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "audit.findings": ("Findings",),
        "audit.verify.outcome": ("verify_bundle",),
        "errors": ("AuditStep",),
    },
)
