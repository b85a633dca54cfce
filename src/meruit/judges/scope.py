"""For whom judges are asked: the tenant whose records keep the votes, and the account that their tokens count for."""

from contextlib import AbstractContextManager
from contextvars import ContextVar, Token

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


class _InScope:
    """The scope while a block runs. A class of its own, because a generator takes as long as a digest."""

    __slots__ = ("_before", "_scope")

    def __init__(self, scope: JudgingScope) -> None:
        self._scope = scope

    def __enter__(self) -> None:
        self._before: Token[JudgingScope] = _SCOPE.set(self._scope)

    def __exit__(self, *_raised: object) -> None:
        _SCOPE.reset(self._before)


def judging_for(scope: JudgingScope) -> AbstractContextManager[None]:
    """Ask judges for this scope; threads and tasks that are begun inside inherit it."""
    return _InScope(scope)
