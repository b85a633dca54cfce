"""The OpenAI Agents SDK: `run_with_gate` in place of `Runner.run`."""

import asyncio

from agents import Agent, Usage, set_tracing_disabled
from agents.testing import ModelStep, ScriptedModel, assistant_message
from pydantic import BaseModel

from meruit import VerificationRejected
from meruit.bridges.openai_agents import run_with_gate


class AgentOutput(BaseModel):
    """What the model proposes."""

    city: str

    def verify(self, attempt: int) -> str:
        """Look the city up."""
        print(f"attempt {attempt}: {self.city}")
        if self.city != "Canberra":
            raise VerificationRejected(f"{self.city} is not the capital of Australia", code="wrong_city")
        return f"{self.city}, as the atlas says"


def step(text: str) -> ModelStep:
    """Stand in for one answer of a model, as the SDK's own tests do."""
    return ModelStep([assistant_message(text)], Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15))


set_tracing_disabled(True)
model = ScriptedModel([step("It is Sydney."), step('{"city": "Sydney"}'), step('{"city": "Canberra"}')])
agent = Agent("geographer", model=model, output_type=AgentOutput)
ended = asyncio.run(run_with_gate(agent, "What is the capital of Australia?", max_attempts=3))
print(ended.output)
print("rejected:", ended.attempts_used, "- tokens of all answers:", ended.usage.total_tokens)
