"""Candidates in what models write: the arguments of a call, or an answer in plain text."""

from typing import Any

import msgspec

from meruit.gate.definition import Candidate, OutputType


# Any: an output of the author's own type, or whatever was written in its place.
def candidate_in(output: OutputType, text: str) -> Any:
    """The output that is written there, or what is written instead of one, which the gate refuses and explains."""
    read = output.read(text)
    if isinstance(read, Candidate):
        return read.output
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
