"""The gate inside loops that others own: plain functions, criteria files, and the frameworks people use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meruit.bridges.criteria_verifier import Verified, criteria
    from meruit.bridges.function import gate

__all__ = ["Verified", "criteria", "gate"]
# No module has the name of what it gives: Python would put the module in its place.
_HOMES = {"Verified": "criteria_verifier", "criteria": "criteria_verifier", "gate": "function"}


def __getattr__(name: str) -> Any:
    """Load a bridge when it is first used: none brings another's framework along."""
    if name not in _HOMES:
        raise AttributeError(f"module 'meruit.bridges' has no attribute {name!r}")
    return getattr(import_module(f"meruit.bridges.{_HOMES[name]}"), name)
