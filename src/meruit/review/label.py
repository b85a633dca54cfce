"""Reviews: a queue of cases that people label, and their labels."""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum

import msgspec

from meruit.model.canonical import digest
from meruit.model.record import Record

CANNOT_TELL = "cannot_tell"
"""The choice that every review has besides its own."""
CANNOT_TELL_KEY = "?"
DrawnCase = tuple[int, str, int, str, str, float | None]
"""Number, case, repeat, kind, stratum and probability of a draw."""


class DrawKind(StrEnum):
    """Why a case is in the queue."""

    RANDOM = "random"
    """Drawn by chance with a known probability; only these estimate anything."""
    DISAGREEMENT = "disagreement"
    """Its judge's votes differ, or another tool's verdict does; for reading."""
    DOUBT = "doubt"
    """Its judge did not decide; for reading."""


class LabelChoice(Record, frozen=True):
    """One answer that a labeller may give."""

    name: str
    key: str
    """The one key that gives it."""
    meets: bool
    """Whether a case with this label meets the criterion."""


class ReviewTerms(Record, frozen=True):
    """What labellers are asked, and how the cases were drawn."""

    question: str
    choices: tuple[LabelChoice, ...]
    instructions: str = ""
    shows: tuple[str, ...] = ("input", "output")
    """The parts of a case that labellers see; never a verdict, a vote or a label of another person."""
    labellers: tuple[str, ...] = ()
    """Who may label; empty for anyone."""
    per_case: int = 1
    """How many people label each case."""
    stratum_tag: str | None = None
    """The tag whose values are the strata of the random draw."""
    seed: int = 0
    """Of the draw and of the order."""
    same_cases_as: str | None = None
    """The id of the review whose draw this one repeats, for another evaluation of the same cases."""


class ReviewRecord(Record, frozen=True):
    """A review and how far it is."""

    id: str
    name: str
    evaluation_id: str
    evaluation: str
    """The name of the evaluation."""
    criterion: str | None
    """The criterion that is labelled; None for the whole verdict."""
    terms: ReviewTerms
    cases: int
    """In the queue."""
    labels: int
    """Recorded so far, with those that were superseded."""
    population: int
    """Cases that could be drawn."""
    created_at: datetime
    created_by: str


class ReviewDraw(Record, frozen=True):
    """A case in the queue of a review."""

    number: int
    """Its place in the queue, from 1."""
    case_id: str
    repeat: int
    kind: DrawKind
    stratum: str = ""
    probability: float | None = None
    """Of being drawn; None where it was not left to chance."""


class Label(Record, frozen=True):
    """What a person says of one case; a later version supersedes it."""

    number: int
    """The place of its case in the queue."""
    labeller: str
    version: int
    choice: str
    note: str
    at: datetime
    by: str
    """Who recorded it: an API key, the command line, or an import."""
    leaf: int
    """Its entry in the audit log."""
    note_erased: bool = False
    """Whether the note was erased; the choice stays provable."""


def draws_digest(criterion: str | None, terms: ReviewTerms, draws: Iterable[DrawnCase]) -> str:
    """What the log commits to of a queue; probabilities as text, because the log's digests know no floats."""
    return digest(
        {
            "criterion": criterion or "",
            "terms": terms.to_json().decode(),
            "draws": [[*facts, repr(probability)] for *facts, probability in draws],
        }
    )


def label_content(case: str, choice: str, note_hash: str) -> bytes:
    """What the log commits to of a label; `case` is its id, `#` and the repeat.

    Of the note it has a salted hash, so that a note can be erased and the rest of the label still be proven.
    """
    return msgspec.json.encode({"case": case, "choice": choice, "note": note_hash}, order="sorted")
