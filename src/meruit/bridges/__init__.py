"""The gate inside loops that others own: plain functions, criteria files, and the frameworks people use."""

from typing import TYPE_CHECKING

from meruit._lazy import lazy_names

if TYPE_CHECKING:
    from meruit.bridges.criteria_verifier import Verified, criteria
    from meruit.bridges.function import gate

__all__ = ["Verified", "criteria", "gate"]
# No module has the name of what it gives: Python would put the module in its place.
__getattr__, __dir__ = lazy_names(
    __name__, {"bridges.criteria_verifier": ("Verified", "criteria"), "bridges.function": ("gate",)}
)
