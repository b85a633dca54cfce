"""A finished piece of work: the agent's input, its output, and execution metadata."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from meruit.model.canonical import strict_bytes

T = TypeVar("T")

PRIVATE_INPUTS = frozenset(
    {
        "reference",
        "references",
        "expected_tool_calls",
        "ground_truth",
        "output_schema",
        "required_keywords",
        "required_fields",
        "pattern",
        "output_pattern",
    }
)
"""Parts of the input that only the judge may see; an agent is never shown them."""

CLAIMED = "claimed"
"""The key of execution metadata with the agent's own claims; only code that asks for claims reads it."""
ORIGIN = "origin"
"""The metadata of an imported case that hold what its origin claims of it."""


_UNKNOWN = object()


class Work(msgspec.Struct, frozen=True, eq=False):
    """One finished piece of work, as the metrics see it."""

    output: Mapping[str, Any] = {}
    input: Mapping[str, Any] = {}
    metadata: Mapping[str, Any] = {}
    derived: dict[Any, Any] = msgspec.field(default_factory=dict)
    """Values that several metrics share, computed once; see `derive`."""

    def derive(self, compute: "Callable[[Work], T]") -> T:
        """The result of `compute`, remembered for the life of this work."""
        derived = self.derived
        found = derived.get(compute, _UNKNOWN)
        if found is _UNKNOWN:
            found = derived[compute] = compute(self)
        # The dict is keyed by the function that made the value, so its type is that function's.
        return found  # type: ignore[no-any-return]


def written_output(work: Work) -> bytes | None:
    """The output as sorted JSON; None where it is not JSON that every reader takes. Use `work.derive`."""
    try:
        return strict_bytes(work.output)
    except (TypeError, RecursionError):
        return None
