"""Text metrics: length, and similarity to the reference."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from meruit.errors import AuthorError
from meruit.metrics.support.bleu import ORDERS, bleu
from meruit.metrics.support.keywords import check_params
from meruit.metrics.support.rouge import rouge_runs, rouge_sequence
from meruit.metrics.support.tokenizers import TOKENIZERS, Tokenizer, has_unspaced_letters, letters_lost
from meruit.metrics.support.word_numbers import NumberedPair, number_words
from meruit.model.evidence import Cause, Fault, Missing
from meruit.model.kinds import MetricType
from meruit.model.text import count_words, strip_invisible
from meruit.model.work import Work
from meruit.registry import Ask, Finding, InputProblem, Measure, metrics
from meruit.suggestions import nearest

MAX_CHARS = 1_000_000
"""The longest text that is cut into words: other threads wait while it is searched for the places."""
MAX_WORDS = 250_000
"""The longest text that is compared, in words."""
MAX_LETTERS_SHOWN = 10
"""Lost letters that a message names."""

BLEU_TOKENIZER, ROUGE_TOKENIZER = "13a", "rouge"
"""The default tokenizers: those of sacrebleu and rouge-score."""


# What is compared.


def _text(work: Work) -> str | Missing:
    text = work.output.get("text")
    if isinstance(text, str):
        return text
    if text is None:
        return Missing("the output has no text", fault=Fault.AGENT)
    return Missing(f"the output's text is not a text but {type(text).__name__}", fault=Fault.AGENT)


def _visible_text(work: Work) -> str | Missing:
    """The text without invisible characters."""
    text = work.output.get("text")
    return strip_invisible(text) if isinstance(text, str) else _text(work)


def _reference(work_input: Mapping[str, Any]) -> str | Missing:
    reference = work_input.get("reference")
    if isinstance(reference, str) and reference:
        return reference
    if reference is not None and not isinstance(reference, str):
        why = f"the input's reference is not a text but {type(reference).__name__}"
        return Missing(why, fault=Fault.AUTHOR)
    return Missing("the input has no reference to compare with", fault=Fault.AUTHOR)


class WordPair(NamedTuple):
    """Reference and text, cut into words."""

    reference: list[str]
    text: list[str]


@dataclass(frozen=True, slots=True, eq=False)
class WordReader:
    """Cuts reference and text into words; a work keeps what each reader read."""

    tokenizer: Tokenizer
    lower: bool
    """ROUGE compares in lower case, BLEU as written."""

    def __call__(self, work: Work) -> WordPair | Missing:
        """Read both; an unusable reference is found before an unusable text."""
        reference = _short(_reference(work.input), "reference")
        words = reference if isinstance(reference, Missing) else self.read_reference(reference)
        if isinstance(words, Missing):
            return words
        text = _short(_text(work), "text")
        return text if isinstance(text, Missing) else _within_limit(words, self._cut(text))

    def number(self, work: Work) -> NumberedPair | Missing:
        """Read both, as numbers that stand for the words."""
        words = self(work)
        return words if isinstance(words, Missing) else number_words(*words)

    def read_reference(self, reference: str) -> list[str] | Missing:
        """The words of a reference; Missing where no letter of it is left."""
        words = self._cut(reference)
        # Numbers alone would be another text, on which every text with the same numbers is perfect.
        if words and (reference.isascii() or _has_letters("".join(words)) or not _has_letters(reference)):
            return words
        why = f"the tokenizer {self.tokenizer.name!r} finds no word in the reference; {_advise(self.tokenizer)}"
        return Missing(why, fault=Fault.AUTHOR, details={"tokenizer": self.tokenizer.name})

    def _cut(self, text: str) -> list[str]:
        return self.tokenizer.cut(text.lower() if self.lower else text)


_READERS = {
    (name, lower): WordReader(tokenizer, lower) for name, tokenizer in TOKENIZERS.items() for lower in (False, True)
}
"""One for each use, so that all types of ROUGE share their words."""


def _has_letters(text: str) -> bool:
    return any(map(str.isalpha, text))


def _advise(tokenizer: Tokenizer) -> str:
    if tokenizer.name == "char":
        return "write a reference"
    return f"set params.tokenizer to {'char' if tokenizer.name == 'unicode' else 'unicode'}, or write another reference"


def _short(text: str | Missing, whose: str) -> str | Missing:
    if isinstance(text, str) and len(text) > MAX_CHARS:
        return _too_costly(f"the {whose} has {len(text)} characters, and at most {MAX_CHARS} are compared")
    return text


def _within_limit(reference: list[str], text: list[str]) -> WordPair | Missing:
    if len(reference) <= MAX_WORDS and len(text) <= MAX_WORDS:
        return WordPair(reference, text)
    whose, words = ("reference", reference) if len(reference) > MAX_WORDS else ("text", text)
    return _too_costly(f"the {whose} has {len(words)} words, and at most {MAX_WORDS} are compared")


def _too_costly(why: str) -> Missing:
    return Missing(why, cause=Cause.TOO_COSTLY, fault=Fault.SYSTEM)


def _too_short(metric: str, words: int, needed: int, tokenizer: Tokenizer) -> Missing:
    """The reference has too few words for the metric, so that even an equal text would score 0."""
    why = (
        f"the reference has fewer than {needed} words as the tokenizer {tokenizer.name!r} cuts it, and {metric} of "
        f"an equal text would be 0; set params.tokenizer to unicode, zh or char, or use rouge1"
    )
    return Missing(why, fault=Fault.AUTHOR, details={"tokenizer": tokenizer.name, "words": words})


# The tokenizer that a criterion asks for.


TOKENIZER_PARAM = {
    "tokenizer": "how reference and text are cut into words: `13a` (the default of BLEU), `rouge` (the default of "
    "ROUGE, which drops all but ASCII letters and digits), `unicode` (words of any script), `intl`, `zh` or `char`"
}


def _word_reader(ask: Ask, metric: str, usual: str) -> WordReader:
    """What reads the words for a criterion; raises AuthorError for an unknown tokenizer."""
    check_params(ask, metric, TOKENIZER_PARAM)
    if ask.wanted:
        raise AuthorError(f"{metric} looks for nothing; contains_keywords does, for example")
    name = ask.params.get("tokenizer", usual)
    if not isinstance(name, str) or name not in TOKENIZERS:
        close, known = nearest(str(name), TOKENIZERS), ", ".join(TOKENIZERS)
        raise AuthorError(f"the param tokenizer must be one of {known}, not {name!r}{close}")
    return _READERS[name, usual == ROUGE_TOKENIZER]


def _inspect_reference(
    ask: Ask, work_input: Mapping[str, Any], *, metric: str, usual: str, needed: int
) -> Iterator[InputProblem]:
    """What is wrong with a reference as this criterion's tokenizer reads it."""
    reader, reference = _word_reader(ask, metric, usual), _reference(work_input)
    if isinstance(reference, Missing):
        return
    words = reader.read_reference(reference)
    if isinstance(words, Missing):
        yield InputProblem("reference_without_words", words.why, proven=True)
        return
    if len(words) < needed:
        yield InputProblem(
            "reference_too_short", _too_short(metric, len(words), needed, reader.tokenizer).why, proven=True
        )
    tokenizer = reader.tokenizer
    lost = letters_lost(reference.lower() if reader.lower else reference, words)
    if lost:
        shown = " ".join(lost[:MAX_LETTERS_SHOWN]) + (" …" if len(lost) > MAX_LETTERS_SHOWN else "")
        message = f"the tokenizer {tokenizer.name!r} drops letters of the reference ({shown}); {_advise(tokenizer)}"
        yield InputProblem("reference_loses_letters", message)
    elif tokenizer.needs_spaces and has_unspaced_letters(reference):
        message = (
            f"the tokenizer {tokenizer.name!r} does not cut the reference into words where it has no spaces; "
            "set params.tokenizer to unicode, zh or char"
        )
        yield InputProblem("reference_not_cut", message)


# The metrics.


def _example(text: str, reference: str) -> Work:
    return Work(output={"text": text}, input={"reference": reference})


_SAME = _example("The claim was paid in full.", "The claim was paid in full.")
_CLOSE = _example("the cat sat on the mat", "the cat lay on the mat")
_APART = _example("nothing alike", "the cat sat on the mat")
_CYRILLIC = _example("Иск оплачен сегодня", "Иск оплачен полностью")
_CHINESE = _example("索赔已全额支付。", "索赔已全额支付。")


@metrics.add(
    "bleu_score",
    kind=MetricType.BLEU_SCORE,
    costly=True,
    params=TOKENIZER_PARAM,
    inspect_input=partial(_inspect_reference, metric="bleu_score", usual=BLEU_TOKENIZER, needed=ORDERS),
    examples=[
        (_SAME, 1.0),
        (_example("the cat sat on the mat today", "the cat sat on the mat"), 0.8091067115702206),
        (_APART, 0.0),
        (_CHINESE, Missing),
        (_CHINESE, 1.0, Ask({"tokenizer": "zh"})),
        (Work(output={"text": "no reference"}), Missing),
    ],
)
def bleu_score(ask: Ask) -> Measure:
    """BLEU of the text against the reference, between 0 and 1; equal to sacrebleu's, over 100."""
    read = _word_reader(ask, "bleu_score", BLEU_TOKENIZER)

    def measure(work: Work) -> Finding:
        words = read(work)
        if isinstance(words, Missing):
            return words
        if len(words.reference) < ORDERS and 0 < len(words.text) < ORDERS:
            # BLEU of two such texts is 0 whatever they are, which says nothing about the work.
            return _too_short("bleu_score", len(words.reference), ORDERS, read.tokenizer)
        return bleu(*words)

    return measure


def _prepare_rouge(ask: Ask, name: str, compute: Callable[[NumberedPair], Finding], *, needed: int = 1) -> Measure:
    read = _word_reader(ask, name, ROUGE_TOKENIZER)
    number = read.number

    def measure(work: Work) -> Finding:
        # All types of ROUGE share the words, as numbers.
        words = work.derive(number)
        if isinstance(words, Missing):
            return words
        if len(words.reference) < needed:
            return _too_short(name, len(words.reference), needed, read.tokenizer)
        return compute(words)

    return measure


@metrics.add(
    "rouge1",
    kind=MetricType.ROUGE_SCORE,
    costly=True,
    params=TOKENIZER_PARAM,
    inspect_input=partial(_inspect_reference, metric="rouge1", usual=ROUGE_TOKENIZER, needed=1),
    examples=[
        (_SAME, 1.0),
        (_CLOSE, 5 / 6),
        (_APART, 0.0),
        (_CYRILLIC, Missing),
        (_CYRILLIC, 2 / 3, Ask({"tokenizer": "unicode"})),
        (Work(output={"text": "no reference"}), Missing),
    ],
)
def rouge1(ask: Ask) -> Measure:
    """The share of words that text and reference have in common (F-measure)."""
    return _prepare_rouge(ask, "rouge1", partial(rouge_runs, order=1))


@metrics.add(
    "rouge2",
    kind=MetricType.ROUGE_SCORE,
    costly=True,
    params=TOKENIZER_PARAM,
    inspect_input=partial(_inspect_reference, metric="rouge2", usual=ROUGE_TOKENIZER, needed=2),
    examples=[
        (_SAME, 1.0),
        (_CLOSE, 0.6),
        (_APART, 0.0),
        (_CYRILLIC, 0.5, Ask({"tokenizer": "unicode"})),
        (Work(output={"text": "no reference"}), Missing),
    ],
)
def rouge2(ask: Ask) -> Measure:
    """The share of pairs of words that text and reference have in common (F-measure)."""
    return _prepare_rouge(ask, "rouge2", partial(rouge_runs, order=2), needed=2)


@metrics.add(
    "rougeL",
    kind=MetricType.ROUGE_SCORE,
    costly=True,
    params=TOKENIZER_PARAM,
    inspect_input=partial(_inspect_reference, metric="rougeL", usual=ROUGE_TOKENIZER, needed=1),
    examples=[
        (_SAME, 1.0),
        (_CLOSE, 5 / 6),
        (_APART, 0.0),
        (_CHINESE, 1.0, Ask({"tokenizer": "char"})),
        (Work(output={"text": "no reference"}), Missing),
    ],
)
def rouge_longest(ask: Ask) -> Measure:
    """How much of text and reference is one sequence of words, gaps allowed (F-measure)."""
    return _prepare_rouge(ask, "rougeL", _longest_sequence)


def _longest_sequence(words: NumberedPair) -> Finding:
    found = rouge_sequence(words)
    if found is None:
        reference, text = len(words.reference), len(words.text)
        return _too_costly(f"{text} words and {reference} are too many for a longest common subsequence")
    return found


@metrics.add(
    "output_length",
    kind=MetricType.COUNT,
    examples=[
        (Work(output={"text": "héllo"}), 5),
        (Work(output={"text": "two\u200b\u200b words \u2060 "}), 9),
        (Work(output={"text": ""}), 0),
        (Work(), Missing),
    ],
)
def output_length(work: Work) -> Finding:
    """Characters in the text (`output.text`), without invisible ones and without spaces around it."""
    text = work.derive(_visible_text)
    return text if isinstance(text, Missing) else len(text.strip())


@metrics.add(
    "word_count",
    kind=MetricType.COUNT,
    examples=[
        (Work(output={"text": "three short words"}), 3),
        (Work(output={"text": " "}), 0),
        (Work(output={"text": "one \u200b \u3164 two"}), 2),
        (Work(), Missing),
    ],
)
def word_count(work: Work) -> Finding:
    """Words in the text, separated by white space; invisible characters are not words."""
    text = work.derive(_visible_text)
    return text if isinstance(text, Missing) else count_words(text)
