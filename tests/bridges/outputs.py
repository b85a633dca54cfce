"""An output model that every bridge is tried with."""

from pydantic import BaseModel

from meruit.errors import VerificationRejected

ENOUGH = 3
BROKEN = 99


class FinalResult(BaseModel):
    n: int
    attempt: int


class AgentOutput(BaseModel):
    n: int

    async def verify(self, attempt: int) -> FinalResult:
        """Three is enough; 99 breaks it."""
        if self.n == BROKEN:
            raise OSError("verifier down")
        if self.n < ENOUGH:
            raise VerificationRejected(f"{self.n} is too small", code="too_small")
        return FinalResult(n=self.n, attempt=attempt)


async def at_once(_seconds: float) -> None:
    """No pause before a verifier that broke is asked again."""
