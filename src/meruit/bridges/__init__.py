"""The gate inside other loops: plain functions, criteria files, and agent frameworks.

- function.py - `gate(fn)`: call a function until its output passes
- criteria_verifier.py - `criteria(file)`: a criteria file as the verifier
- pydantic_ai.py, openai_agents.py, langgraph.py - one framework each
- candidates.py, langchain_messages.py - helpers: find the candidate in text and messages
"""

from typing import TYPE_CHECKING

from meruit._lazy import lazy_names

if TYPE_CHECKING:
    from meruit.bridges.criteria_verifier import Verified, criteria
    from meruit.bridges.function import gate

__all__ = ["Verified", "criteria", "gate"]
# A module must not have the name of a public name: Python would replace the name by the module.
__getattr__, __dir__ = lazy_names(
    __name__, {"bridges.criteria_verifier": ("Verified", "criteria"), "bridges.function": ("gate",)}
)
