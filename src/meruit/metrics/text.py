"""Text metrics: length, and similarity to the reference."""

from collections.abc import Sequence

from meruit.errors import MeruitError, nearest
from meruit.metrics.support.bleu import bleu, words_13a
from meruit.metrics.support.extractor import Family
from meruit.metrics.support.rouge import rouge_l, rouge_pairs, rouge_words, words_alphanumeric
from meruit.model.evidence import Cause, Fault, Missing
from meruit.model.kinds import MetricType
from meruit.model.work import Work
from meruit.registry import Finding, Metric, metrics

ROUGE_TYPES = ("rouge1", "rouge2", "rougeL")

MAX_WORDS = 1_000_000
"""The longest text that is compared, in words: some seconds and half a gigabyte."""


class TextQualityExtractor(Family):
    """Extract text metrics from `output.text`, and `input.reference` where it is compared."""

    family = "text"

    def __init__(self, rouge_types: Sequence[str] = ROUGE_TYPES) -> None:
        for name in rouge_types:
            if name not in ROUGE_TYPES:
                close, known = nearest(name, ROUGE_TYPES), ", ".join(ROUGE_TYPES)
                raise MeruitError(f"unknown ROUGE type {name!r}{close}; use one of {known}")
        self.rouge_types = tuple(rouge_types)

    def members(self) -> list[Metric]:
        """The metrics of the family, without unused ROUGE types."""
        unwanted = {*ROUGE_TYPES} - {*self.rouge_types}
        return [metric for metric in super().members() if metric.name not in unwanted]


def _text(work: Work) -> str | Missing:
    text = work.output.get("text")
    if isinstance(text, str):
        return text
    if text is None:
        return Missing("the output has no text", fault=Fault.AGENT)
    return Missing(f"the output's text is not a text but {type(text).__name__}", fault=Fault.AGENT)


def _pair(work: Work) -> tuple[str, str] | Missing:
    """The reference, and what was written."""
    reference = work.input.get("reference")
    if not isinstance(reference, str | None):
        why = f"the input's reference is not a text but {type(reference).__name__}"
        return Missing(why, fault=Fault.AUTHOR)
    if not reference:
        return Missing("the input has no reference to compare with", fault=Fault.AUTHOR)
    text = _text(work)
    return text if isinstance(text, Missing) else (reference, text)


def _words(work: Work) -> tuple[list[str], list[str]] | Missing:
    """The words that ROUGE compares; all its types share them."""
    pair = _pair(work)
    if isinstance(pair, Missing):
        return pair
    reference, text = pair
    return _within_limit(words_alphanumeric(reference), words_alphanumeric(text))


def _within_limit(reference: list[str], text: list[str]) -> tuple[list[str], list[str]] | Missing:
    for whose, words in (("reference", reference), ("text", text)):
        if len(words) > MAX_WORDS:
            return _too_costly(f"the {whose} has {len(words)} words, and at most {MAX_WORDS} are compared")
    return reference, text


def _too_costly(why: str) -> Missing:
    return Missing(why, cause=Cause.TOO_COSTLY, fault=Fault.SYSTEM)


def _example(text: str, reference: str) -> Work:
    return Work(output={"text": text}, input={"reference": reference})


_SAME = _example("The claim was paid in full.", "The claim was paid in full.")
_CLOSE = _example("the cat sat on the mat", "the cat lay on the mat")
_APART = _example("nothing alike", "the cat sat on the mat")


@metrics.add(
    "bleu_score",
    kind=MetricType.BLEU_SCORE,
    costly=True,
    examples=[
        (_SAME, 1.0),
        (_example("the cat sat on the mat today", "the cat sat on the mat"), 0.8091067115702206),
        (_APART, 0.0),
        (Work(output={"text": "no reference"}), Missing),
    ],
)
def bleu_score(work: Work) -> Finding:
    """BLEU of the text against the reference, between 0 and 1; equal to sacrebleu's, over 100."""
    pair = _pair(work)
    if isinstance(pair, Missing):
        return pair
    words = _within_limit(words_13a(pair[0]), words_13a(pair[1]))
    return words if isinstance(words, Missing) else bleu(*words)


@metrics.add(
    "rouge1",
    kind=MetricType.ROUGE_SCORE,
    costly=True,
    examples=[(_SAME, 1.0), (_CLOSE, 5 / 6), (_APART, 0.0), (Work(output={"text": "no reference"}), Missing)],
)
def rouge1(work: Work) -> Finding:
    """The share of words that text and reference have in common (F-measure)."""
    words = work.derive(_words)
    return words if isinstance(words, Missing) else rouge_words(*words)


@metrics.add(
    "rouge2",
    kind=MetricType.ROUGE_SCORE,
    costly=True,
    examples=[(_SAME, 1.0), (_CLOSE, 0.6), (_APART, 0.0), (Work(output={"text": "no reference"}), Missing)],
)
def rouge2(work: Work) -> Finding:
    """The share of pairs of words that text and reference have in common (F-measure)."""
    words = work.derive(_words)
    return words if isinstance(words, Missing) else rouge_pairs(*words)


@metrics.add(
    "rougeL",
    kind=MetricType.ROUGE_SCORE,
    costly=True,
    examples=[(_SAME, 1.0), (_CLOSE, 5 / 6), (_APART, 0.0), (Work(output={"text": "no reference"}), Missing)],
)
def rouge_longest(work: Work) -> Finding:
    """How much of text and reference is one sequence of words, gaps allowed (F-measure)."""
    words = work.derive(_words)
    if isinstance(words, Missing):
        return words
    found = rouge_l(*words)
    if found is None:
        reference, text = map(len, words)
        return _too_costly(f"{text} words and {reference} are too many for a longest common subsequence")
    return found


@metrics.add(
    "output_length",
    kind=MetricType.COUNT,
    examples=[(Work(output={"text": "héllo"}), 5), (Work(output={"text": ""}), 0), (Work(), Missing)],
)
def output_length(work: Work) -> Finding:
    """Characters in the text (`output.text`)."""
    text = _text(work)
    return text if isinstance(text, Missing) else len(text)


@metrics.add(
    "word_count",
    kind=MetricType.COUNT,
    examples=[
        (Work(output={"text": "three short words"}), 3),
        (Work(output={"text": " "}), 0),
        (Work(), Missing),
    ],
)
def word_count(work: Work) -> Finding:
    """Words in the text, separated by white space."""
    text = _text(work)
    return text if isinstance(text, Missing) else len(text.split())
