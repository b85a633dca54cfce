"""Any function, held to what its output must withstand."""

from pydantic import BaseModel

from meruit import VerificationExhausted, VerificationRejected
from meruit.bridges import gate

LONGEST = 40


class Headline(BaseModel):
    """What the function proposes."""

    text: str

    def verify(self) -> str:
        """Accept what fits the page."""
        if len(self.text) > LONGEST:
            raise VerificationRejected(f"{len(self.text)} characters; {LONGEST} fit", code="too_long")
        return self.text


DRAFTS = iter(["A headline that goes on and on, far beyond the page", "Agents must prove it, says study"])


@gate
def write(topic: str, feedback: str | None = None) -> Headline:
    """Stand in for any call of a model; `feedback` is the last rejection."""
    if feedback is not None:
        print(feedback)
    return Headline(text=next(DRAFTS))


print("printed:", write("agents"))

try:
    gate(lambda: Headline(text="x" * 99), Headline, max_attempts=1)()
except VerificationExhausted as over:
    print(over)
