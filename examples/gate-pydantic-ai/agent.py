"""pydantic-ai: one line makes an agent's run end when its output is verified."""

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from meruit import VerificationExhausted, VerificationRejected
from meruit.bridges.pydantic_ai import gate_output


class FinalResult(BaseModel):
    """What the caller gets."""

    city: str
    checked_in: str


class AgentOutput(BaseModel):
    """What the model proposes."""

    city: str

    async def verify(self, attempt: int) -> FinalResult:
        """Look the city up."""
        print(f"attempt {attempt}: {self.city}")
        if self.city != "Canberra":
            raise VerificationRejected(f"{self.city} is not the capital of Australia", code="wrong_city")
        return FinalResult(city=self.city, checked_in="the atlas")


CITIES = ["Sydney", "Melbourne", "Canberra"]


def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Stand in for a model, as pydantic-ai's own tests do."""
    turn = sum(isinstance(one, ModelResponse) for one in messages)
    return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, {"city": CITIES[turn]})])


agent = Agent(FunctionModel(scripted), output_type=gate_output(AgentOutput, max_attempts=3))
print(repr(agent.run_sync("What is the capital of Australia?").output))

hasty = Agent(FunctionModel(scripted), output_type=gate_output(AgentOutput, max_attempts=2))
try:
    hasty.run_sync("What is the capital of Australia?")
except VerificationExhausted as over:
    print(over)
