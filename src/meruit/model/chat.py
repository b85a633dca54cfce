"""What passes between an agent and its model, in the words of chat endpoints."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from meruit.model.record import Record

MOST_TOKENS = 2**53
"""More than anybody can be billed for: a provider that counts nonsense cannot make a sum that no record holds."""


class Usage(Record, frozen=True):
    """Tokens, as the model's provider counted them for one answer, or their sum."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    requests: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        """Both together, as far as anybody counts."""
        return Usage(
            min(self.input_tokens + other.input_tokens, MOST_TOKENS),
            min(self.output_tokens + other.output_tokens, MOST_TOKENS),
            min(self.cached_tokens + other.cached_tokens, MOST_TOKENS),
            min(self.requests + other.requests, MOST_TOKENS),
        )


class ToolCall(Record, frozen=True):
    """A tool that the model wants called."""

    id: str
    name: str
    arguments: str
    """JSON, as the model wrote it: whether it can be read is for the caller to see."""


class ModelAnswer(Record, frozen=True):
    """One answer of a model."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    finish: str = "stop"
    """Why it stopped, in the provider's words."""
    model: str = ""
    id: str = ""
    """The provider's own name for the answer, for the bill."""


class ToolSpec(Record, frozen=True):
    """A tool as a model is told of it."""

    name: str
    description: str
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    """JSON Schema."""


class ChatModel(Protocol):
    """A model that can be asked."""

    async def answer(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[ToolSpec], force: str | None = None
    ) -> ModelAnswer:
        """The next message of the conversation; `force` names the tool that it must call.

        Raises Unreachable where trying again may help.
        """
        ...
