"""The smallest agent that is done only when its output is verified."""

from pydantic import BaseModel

from meruit import Agent, VerificationRejected
from meruit.testing import ScriptedModel, submits


class AgentOutput(BaseModel):
    """What the model proposes."""

    total: int

    def verify(self) -> str:
        """Accept the right sum, and return what the caller gets."""
        if self.total != sum(range(1, 101)):
            raise VerificationRejected("that is not the sum of 1 to 100", code="wrong_sum")
        return f"the sum is {self.total}"


# A script in place of a model; for a real one, meruit.gate.chat.endpoint.ChatEndpoint.
model = ScriptedModel([submits(total=5000), submits(total=5050)])
agent = Agent("adder", "Add up the numbers.", model, output_type=AgentOutput)
result = agent.run_sync("What is the sum of 1 to 100?")
print(result.output)
print("rejected", result.attempts_used, "time(s) in", result.turns, "turns")
