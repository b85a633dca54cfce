"""Output models whose annotations are text when they are looked at."""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Any, Optional

from pydantic import BaseModel

from meruit.gate import context  # noqa: TC001 - annotations are looked up
from meruit.gate.context import AgentContext

if TYPE_CHECKING:
    # Names that only a type checker looks for, one of them in vain.
    from nowhere import FinalResult  # type: ignore[import-not-found]

    from meruit.gate.context import ExecutionContext


class Remembering(AgentContext):
    """An agent's own context."""

    lessons: int = 3


class Result(BaseModel):
    """What is accepted."""

    lessons: int


class Postponed(BaseModel):
    """Wants each thing in another spelling."""

    async def verify(
        self,
        mine: Remembering,
        quoted: "Remembering",
        dotted: context.AgentContext,
        unseen: ExecutionContext,
        maybe: Optional[ExecutionContext] = None,  # noqa: UP045 - as people write it
        either: None | ExecutionContext = None,  # noqa: RUF036 - as people write it
        plain: int = 3,
    ) -> Result:
        return Result(lessons=mine.lessons)


class Unseen(BaseModel):
    """Returns what nobody can look up."""

    def verify(self) -> FinalResult:
        return None


class UnseenOrNone(BaseModel):
    """Returns what nobody can look up, or nothing."""

    def verify(self) -> FinalResult | None:
        return None


class SaysNone(BaseModel):
    """Returns nothing, in so many words."""

    def verify(self) -> None:
        return None


class Own(BaseModel):
    """Names itself."""

    def verify(self) -> Own | typing.Any:
        return self


class Nonsense(BaseModel):
    """Annotated with what is no type."""

    def verify(self, attempt: 1 / 0) -> Any:  # type: ignore[valid-type]  # It is nonsense.
        return attempt
