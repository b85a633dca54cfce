"""The limits of a run, and which setting takes precedence."""

from math import inf
from typing import Any

from meruit.errors import BudgetError
from meruit.model.record import Record

DEFAULT_ATTEMPTS = 5
MAX_ATTEMPTS = 1000
"""Largest number of attempts that can be set."""
ATTRIBUTE = "verify_max_attempts"
"""Class attribute with which an output model sets its budget."""


class GateLimits(Record, frozen=True):
    """Four separate limits; only rejections are attempts."""

    max_attempts: int = DEFAULT_ATTEMPTS
    no_progress: int = 3
    """Identical submissions in a row that end a run."""
    schema_errors: int = 3
    """Payloads in a row that do not match the schema of the output."""
    system_errors: int = 5
    """System errors of the verifier in a row."""


def budget(run: Any = None, agent: Any = None, model: Any = None) -> int:
    """The attempts of a run: its own setting, else its agent's, else its output model's, else 5."""
    for limit, whose in ((run, "the run's"), (agent, "the agent's"), (model, "the output model's")):
        if limit is not None:
            return validate_count(limit, f"{whose} {ATTRIBUTE}")
    return DEFAULT_ATTEMPTS


def validate_seconds(value: Any, what: str) -> float | None:
    """Check a time limit; None means no limit. Raises BudgetError."""
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < inf):
        return value
    raise BudgetError(f"{what} is {value!r}; it must be a number of seconds above 0, or None for no limit")


def validate_count(value: Any, what: str, most: int = MAX_ATTEMPTS) -> int:
    """Check a limit that is a whole number; raises BudgetError."""
    # True is an int to Python, but not a valid budget.
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise BudgetError(f"{what} is {value!r}; it must be a whole number from 1 to {most:,}")
    return value
