"""BLEU and ROUGE of one pair of texts, against sacrebleu and rouge-score; and how their cost grows."""

import itertools
import math
import random
import time
from collections.abc import Iterator
from typing import Any

from rouge_score import rouge_scorer
from sacrebleu import corpus_bleu

from meruit.metrics.text import bleu_score, rouge1, rouge2, rouge_longest
from meruit.model.work import Work
from meruit.registry import Ask
from speed.measure import Row, interleaved

TARGETS = {100: 20, 500: 60, 2_000: 250}
PAIRS = 20
"""Different pairs in one measurement; each call also makes its pair unlike any before."""

COMMON = [
    "the",
    "of",
    "and",
    "a",
    "to",
    "in",
    "is",
    "that",
    "for",
    "it",
    "as",
    "was",
    "with",
    "be",
    "by",
    "on",
]
RARE = [f"{start}{vowel}{end}" for start in "bcdfglmnprst" for vowel in "aeiou" for end in ("ld", "nt", "rs", "t")]

_scorer = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"])
_MEASURES = tuple(metric(Ask()) for metric in (bleu_score, rouge1, rouge2, rouge_longest))


def rows() -> Iterator[Row]:
    for words, target in TARGETS.items():
        ours_us, baseline_us = _measured(words)
        yield Row(f"text metrics, {words:,} words", ours_us, baseline_us, "sacrebleu + rouge-score", target)


def growth() -> Iterator[tuple[str, int, float]]:
    """Milliseconds for texts of more and more words."""
    for words in (200, 2_000, 20_000):
        reference, text = _pair(random.Random(words), words)
        for name, metric in (("rougeL", rouge_longest), ("bleu_score", bleu_score)):
            best = float("inf")
            for _ in range(5):
                work = Work(output={"text": text}, input={"reference": reference})
                measure = metric(Ask())
                start = time.process_time_ns()
                measure(work)
                best = min(best, (time.process_time_ns() - start) / 1e6)
            yield name, words, best


def _measured(words: int) -> tuple[float, float]:
    chance = random.Random(words)
    pairs = [_pair(chance, words) for _ in range(PAIRS)]
    for reference, text in pairs:
        for ours, theirs in zip(_ours(reference, text), _baseline(reference, text), strict=True):
            assert math.isclose(ours, theirs, rel_tol=0, abs_tol=1e-12)
    # No text comes twice, so that sacrebleu's memory of the texts it has seen helps neither side.
    mine, theirs = (_unlike(pairs, side) for side in "ab")
    return interleaved(lambda: _ours(*next(mine)), lambda: _baseline(*next(theirs)), seconds=2.0)


def _unlike(pairs: list[tuple[str, str]], side: str) -> Iterator[tuple[str, str]]:
    for number, (reference, text) in zip(itertools.count(), itertools.cycle(pairs), strict=False):
        yield f"{side}{number} {reference}", f"{side}{number} {text}"


def _ours(reference: str, text: str) -> tuple[Any, ...]:
    work = Work(output={"text": text}, input={"reference": reference})
    return tuple(measure(work) for measure in _MEASURES)


def _baseline(reference: str, text: str) -> tuple[Any, ...]:
    scores = _scorer.score(reference, text)
    return corpus_bleu([text], [[reference]]).score / 100, *(score.fmeasure for score in scores.values())


def _pair(chance: random.Random, words: int) -> tuple[str, str]:
    """A reference, and the same with a third of its words changed."""
    reference = [_word(chance) for _ in range(words)]
    text = [_word(chance) if chance.random() < 1 / 3 else word for word in reference]
    return " ".join(reference), " ".join(text)


def _word(chance: random.Random) -> str:
    if chance.random() < 0.02:
        return f"{chance.random() * 100:.2f}"
    word = chance.choice(COMMON if chance.random() < 0.45 else RARE)
    return word + chance.choices(("", ",", ".", ":"), (85, 8, 6, 1))[0]
