"""JSON Lines: one case a line, with its work, its verdict, and what its origin claims."""

from collections.abc import Iterator

import msgspec

from meruit.evaluations.export import EvaluationExport
from meruit.registry import exporters


@exporters.add("jsonl", ending=".jsonl")
def write_jsonl(exported: EvaluationExport) -> Iterator[bytes]:
    """JSON Lines, everything: one case a line, with its work, evidence, verdict and claim."""
    encoder = msgspec.json.Encoder()
    for case in exported.cases():
        yield encoder.encode(case) + b"\n"
