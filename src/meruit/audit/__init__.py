"""Bundles that let a third party check an outcome and its payment: written, signed, read.

Read in this order:
    export.py       gather a bundle from the store
    bundle.py       the files of a bundle, packed and read in one form only
    findings.py     what checking comes to, step by step
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
