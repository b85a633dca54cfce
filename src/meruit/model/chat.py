"""Messages between an agent and its model, as chat endpoints have them."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from meruit.model.record import Record

MOST_TOKENS = 2**53
"""The largest token count; a provider's nonsense cannot make a sum that records cannot hold."""


class Usage(Record, frozen=True):
    """Tokens that the provider counted for one answer, or a sum of them.

    Answers without a valid count add nothing but `uncounted`: the counts are then what is known at least.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    requests: int = 0
    uncounted: int = 0
    """Requests whose tokens are unknown: the endpoint sent no usage block, or not a valid one."""

    @property
    def is_known(self) -> bool:
        """Whether every request has a count."""
        return not self.uncounted

    def __add__(self, other: "Usage") -> "Usage":
        """Add two counts, up to the largest count."""
        return Usage(
            input_tokens=min(self.input_tokens + other.input_tokens, MOST_TOKENS),
            output_tokens=min(self.output_tokens + other.output_tokens, MOST_TOKENS),
            cached_tokens=min(self.cached_tokens + other.cached_tokens, MOST_TOKENS),
            requests=min(self.requests + other.requests, MOST_TOKENS),
            uncounted=min(self.uncounted + other.uncounted, MOST_TOKENS),
        )


class ToolCall(Record, frozen=True):
    """A tool that the model wants called."""

    id: str
    name: str
    arguments: str
    """JSON as the model wrote it; it may be invalid."""


class ModelAnswer(Record, frozen=True):
    """One answer of a model."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    finish: str = "stop"
    """The provider's reason for stopping."""
    model: str = ""
    id: str = ""
    """The provider's id of the answer, for the bill."""


class ToolSpec(Record, frozen=True):
    """A tool as it is described to a model."""

    name: str
    description: str
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    """JSON Schema."""


class ChatModel(Protocol):
    """A chat model."""

    async def answer(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[ToolSpec], force: str | None = None
    ) -> ModelAnswer:
        """The next message of the conversation; `force` names the tool that it must call.

        Raises Unreachable where trying again may help.
        """
        ...
