"""What people's labels say together. Pure."""

from collections.abc import Iterable, Mapping

from meruit.model.record import Record
from meruit.review.label import CANNOT_TELL, Label, LabelChoice, ReviewTerms


class CaseLabels(Record, frozen=True):
    """All that people say of one case."""

    answers: Mapping[str, bool | None]
    """Whether each labeller says that it is met; None for CANNOT_TELL."""
    drawn: bool
    """Whether chance put it in a queue; only then it estimates."""
    probability: float = 1.0
    """Of being drawn by chance and labelled."""
    stratum: str = ""
    drawn_by: str = ""
    """The reviews whose draws it is in; equal for cases of two evaluations that were drawn together."""

    @property
    def truth(self) -> bool | None:
        """What most people say; None where none decided or they are evenly divided."""
        return decide_truth(self.answers.values())


def decide_truth(answers: Iterable[bool | None]) -> bool | None:
    """What most of those who decided say; None where none did, or they are evenly divided."""
    sides = [answer for answer in answers if answer is not None]
    met = sum(sides)
    return None if 2 * met == len(sides) else 2 * met > len(sides)


def answer_of(terms: ReviewTerms, choice: str) -> bool | None:
    """Whether a choice means that the criterion is met; None for CANNOT_TELL."""
    return next((one.meets for one in terms.choices if one.name == choice), None)


def ratings_of(labels: Iterable[Label]) -> list[dict[str, str]]:
    """For each case the choice of each labeller who decided; for agreement."""
    found: dict[int, dict[str, str]] = {}
    for label in labels:
        case = found.setdefault(label.number, {})
        if label.choice != CANNOT_TELL:
            case[label.labeller] = label.choice
    return [*found.values()]


def choice_of_key(choices: Iterable[LabelChoice], key: str) -> str | None:
    """The choice that a key gives; None where it gives none."""
    return next((choice.name for choice in choices if choice.key == key), None)
