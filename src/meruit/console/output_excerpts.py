"""Excerpts of outputs, to be read side by side: each from where they begin to differ."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meruit.console.shape import main_text
from meruit.evaluations.evaluation import CaseSummary, EvaluationRecord
from meruit.evaluations.reader import Evaluations

EXCERPT = 280
"""Characters of an output that the list of cases shows."""
LEAD = 40
"""Characters before the first difference that an excerpt begins with, where the outputs begin alike."""
COMPARED_CHARACTERS = 1_000
"""How far outputs are looked at for their first difference."""

# Any: outputs are JSON.
OutputOrReason = tuple[Mapping[str, Any] | None, str]
"""An output, or None and why there is none."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The part of an output that the list of cases shows, or why there is none."""

    case: CaseSummary
    text: str
    is_output: bool


def read_excerpts(
    evaluations: Evaluations, compared: Sequence[EvaluationRecord], cases: Sequence[Sequence[CaseSummary | None]]
) -> dict[str, list[Excerpt | None]]:
    """What the outputs of evaluations say of each case, by its id; None for an evaluation that does not have it."""
    outputs: list[dict[str, OutputOrReason]] = []
    for evaluation, several in zip(compared, zip(*cases, strict=True), strict=False):
        known = [one for one in several if one is not None]
        read = evaluations.outputs(evaluation, known)
        outputs.append({one.case_id: output for one, output in zip(known, read, strict=True)})
    return {
        case_id: [*_cut_alike(sides, [side.get(case_id, (None, "")) for side in outputs])]
        for sides in cases
        for case_id in {one.case_id for one in sides if one is not None}
    }


def _cut_alike(cases: Sequence[CaseSummary | None], outputs: Sequence[OutputOrReason]) -> Iterator[Excerpt | None]:
    texts = [None if output is None else _as_text(output) for output, _ in outputs]
    start = find_start([text for text in texts if text is not None])
    for case, text, (_, message) in zip(cases, texts, outputs, strict=True):
        if case is None:
            yield None
        elif text is None or message:
            yield Excerpt(case, _cut(message, 0) or "Erased.", is_output=False)
        else:
            yield Excerpt(case, _cut(text, start), is_output=True)


# Any: an output is JSON.
def _as_text(output: Mapping[str, Any]) -> str:
    text = main_text(output)
    return json.dumps(output, ensure_ascii=False) if text is None else text


def find_start(texts: Sequence[str]) -> int:
    """Where excerpts of these texts begin, so that they show the first difference."""
    looked_at = zip(*(text[:COMPARED_CHARACTERS] for text in texts), strict=False)
    shared = next((at for at, letters in enumerate(looked_at) if len({*letters}) > 1), 0)
    # Texts that are the same, or one the beginning of another, are shown from their beginning.
    return shared - LEAD if shared > EXCERPT // 2 else 0


def _cut(text: str, start: int) -> str:
    """A part of a text on one line, with a mark where it was cut."""
    end = start + EXCERPT
    return ("…" if start else "") + " ".join(text[start:end].split()) + ("…" if len(text) > end else "")
