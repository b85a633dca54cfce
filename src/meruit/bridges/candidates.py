"""Find the candidate in the arguments of a tool call or in an answer in plain text."""

from typing import Any

import msgspec

from meruit.gate.definition import Candidate, OutputType


# Any: an output of the author's own type, or the text in its place.
def candidate_in(output: OutputType, text: str) -> Any:
    """Parse the output; text that is not a valid output is returned for the gate to reject with its problems."""
    read = output.read(text)
    if isinstance(read, Candidate):
        return read.output
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
