"""For whom judges are asked: the tenant whose records keep the votes, and the account that their tokens count for."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec

from meruit.model.access import DEFAULT_TENANT

VERIFICATION = "verification"
"""The account of work that is not part of an evaluation."""


class JudgingScope(msgspec.Struct, frozen=True):
    """For whom judges are asked."""

    tenant: str = DEFAULT_TENANT
    account: str = VERIFICATION
    """The id of an evaluation, or VERIFICATION."""
    max_tokens: int | None = None
    """The limit of this account, where it is stricter than the settings."""
    max_cost: float | None = None
    """The same in US dollars."""


_SCOPE: ContextVar[JudgingScope] = ContextVar("judging_scope", default=JudgingScope())  # noqa: B039 - frozen


def current_scope() -> JudgingScope:
    """The scope that the caller is in."""
    return _SCOPE.get()


@contextmanager
def judging_for(scope: JudgingScope) -> Iterator[None]:
    """Ask judges for this scope; threads and tasks that are begun inside inherit it."""
    token = _SCOPE.set(scope)
    try:
        yield
    finally:
        _SCOPE.reset(token)
