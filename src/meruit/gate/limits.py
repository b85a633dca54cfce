"""How often a run may try, and whose word on it counts."""

from math import inf
from typing import Any

from meruit.errors import BudgetError
from meruit.model.record import Record

DEFAULT_ATTEMPTS = 5
MAX_ATTEMPTS = 1000
"""A budget beyond it is no budget."""
ATTRIBUTE = "verify_max_attempts"
"""What an output model may say for itself."""


class GateLimits(Record, frozen=True):
    """Four meters, each of its own: only rejections are attempts."""

    max_attempts: int = DEFAULT_ATTEMPTS
    no_progress: int = 3
    """Identical resubmissions in a row that end a run."""
    schema_errors: int = 3
    """Payloads in a row that are not of the output's shape."""
    system_errors: int = 5
    """Times in a row that a verifier may break."""


def budget(run: Any = None, agent: Any = None, model: Any = None) -> int:
    """The attempts that a run has: its own word before its agent's, the agent's before its output model's, or 5."""
    for said, whose in ((run, "the run's"), (agent, "the agent's"), (model, "the output model's")):
        if said is not None:
            return validate_count(said, f"{whose} {ATTRIBUTE}")
    return DEFAULT_ATTEMPTS


def validate_seconds(said: Any, what: str) -> float | None:
    """A time limit, None for no limit; raises BudgetError."""
    if said is None or (isinstance(said, int | float) and not isinstance(said, bool) and 0 < said < inf):
        return said
    raise BudgetError(f"{what} is {said!r}; it must be a number of seconds above 0, or None for no limit")


def validate_count(said: Any, what: str, most: int = MAX_ATTEMPTS) -> int:
    """A count that can be used up; raises BudgetError."""
    # True is an int to Python, and never a budget.
    if isinstance(said, bool) or not isinstance(said, int) or not 1 <= said <= most:
        raise BudgetError(f"{what} is {said!r}; it must be a whole number from 1 to {most:,}")
    return said
