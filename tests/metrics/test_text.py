"""Text metrics: equal to sacrebleu and rouge-score on whatever is written, and absent with a reason."""

import asyncio
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rouge_score import rouge_scorer
from sacrebleu import corpus_bleu
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from meruit.errors import MeruitError
from meruit.metrics.support import rouge
from meruit.metrics.support.bleu import words_13a
from meruit.metrics.text import (
    TextQualityExtractor,
    bleu_score,
    output_length,
    rouge1,
    rouge2,
    rouge_longest,
    word_count,
)
from meruit.model.evidence import Cause, Fault, Missing
from meruit.model.work import Work
from meruit.registry import Finding, metrics

COMPARED = [bleu_score, rouge1, rouge2, rouge_longest]
NEEDING_TEXT = [*COMPARED, output_length, word_count]

# Every rule of the tokenizers is touched by some piece, and pieces meet each other by chance.
PIECES = [
    *"aB5 .,-'\n\t&<>!?/\"_",
    *("the ", "cat ", "sat ", "The ", " on ", "mat. ", ", ", "... ", "3.14 ", "1,000 ", "5-3", "a-b"),
    *("..5", "5..", ",.,7", "-\n", "<skipped>", "\r\n"),
    *("&amp;", "&lt;", "&gt; ", "&quot;", "&amp;lt;", "&amp;amp;quot;", "&;"),
    *("é", "ß", "İ", "K", "Σς", "日本 ", "٣", "٣.٣", "\U0001f600", "\ud800"),
    *("\u00a0", "\u2028", "\x85", "\x1c"),
]
pieced = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)
texts = pieced | st.text(max_size=60)
references = texts.filter(bool)

_scorer = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"])
_tokenizer: Callable[[str], str] = Tokenizer13a()  # type: ignore[no-untyped-call]


def pair(reference: str, written: str) -> Work:
    return Work(output={"text": written}, input={"reference": reference})


def near(expected: float) -> Any:
    """From Python 3.12 on, sum() rounds otherwise than adding up, so sacrebleu's last bit depends on the version."""
    return expected if sys.version_info < (3, 12) else pytest.approx(expected, rel=0, abs=1e-12)


def expected_bleu(reference: str, written: str) -> float:
    # Rounding takes sacrebleu to 100.00000000000004 on equal texts; a share above one would be refused.
    return float(min(1.0, corpus_bleu([written], [[reference]]).score / 100))


def expected_rouge(reference: str, written: str) -> list[float]:
    return [score.fmeasure for score in _scorer.score(reference, written).values()]


def found_rouge(work: Work) -> list[Finding]:
    return [metric(work) for metric in (rouge1, rouge2, rouge_longest)]


@given(texts)
@example("..5 a..5 5...3 5..3 ,,5 5,,3 5.,.3")
@example("a-\n")
@example("x &amp;lt; y")
@settings(max_examples=500)
def test_words_are_cut_as_by_the_reference_tokenizer(written: str) -> None:
    assert words_13a(written) == _tokenizer(written.rstrip()).split()


@given(references, texts)
@example("a", "")
@example(" ", "a b c d")
@example("a b c d", "a b c d")
@example("a b c d e f g h", "a b c d")
@settings(max_examples=200)
def test_bleu_equals_the_reference_scorer_on_any_text(reference: str, written: str) -> None:
    assert bleu_score(pair(reference, written)) == near(expected_bleu(reference, written))


@given(references, texts)
@example("a", "")
@example("!", "a")
@example("a", "a")
@example("İstanbul K", "i stanbul k")
@settings(max_examples=200)
def test_rouge_equals_the_reference_scorer_on_any_text(reference: str, written: str) -> None:
    assert found_rouge(pair(reference, written)) == expected_rouge(reference, written)


def test_all_scores_are_equal_over_a_thousand_pairs() -> None:
    chance = random.Random(20)
    words = [
        "the",
        "The",
        "a",
        "claim",
        "paid",
        "in",
        "full,",
        "full.",
        "3.5",
        "1,200",
        "état",
        "x-ray",
        "(see",
        "it's",
    ]
    for _ in range(1_000):
        reference = " ".join(chance.choices(words, k=chance.randint(1, 25)))
        kept = [word for word in reference.split() if chance.random() < 0.8]
        written = " ".join(kept + chance.choices(words, k=chance.randint(0, 6)))
        work = pair(reference, written)
        assert bleu_score(work) == near(expected_bleu(reference, written))
        assert found_rouge(work) == expected_rouge(reference, written)


def test_scores_are_equal_on_longer_texts_where_runs_repeat() -> None:
    chance = random.Random(21)
    for vocabulary in (5, 40, 1_000):
        words = [f"w{number}" for number in range(vocabulary)]
        reference = " ".join(chance.choices(words, k=400))
        written = " ".join(word if chance.random() < 0.7 else chance.choice(words) for word in reference.split())
        assert bleu_score(pair(reference, written)) == near(expected_bleu(reference, written))
        assert found_rouge(pair(reference, written)) == expected_rouge(reference, written)


def test_bleu_of_a_perfect_match_is_exactly_one() -> None:
    written = "one two three four five six seven"
    assert corpus_bleu([written], [[written]]).score > 100
    assert bleu_score(pair(written, written)) == 1.0


words_of_few = st.lists(st.sampled_from("abcd"), max_size=30)


@given(words_of_few, words_of_few, st.sampled_from([0, 10**6]), st.sampled_from([1, 3, 1024]))
def test_the_common_subsequence_does_not_depend_on_how_it_is_sought(
    one: list[str], other: list[str], sieved_from: int, trim_every: int
) -> None:
    table = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i, left in enumerate(one, 1):
        for j, right in enumerate(other, 1):
            table[i][j] = table[i - 1][j - 1] + 1 if left == right else max(table[i - 1][j], table[i][j - 1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rouge, "SIEVED_FROM_CELLS", sieved_from)
        patch.setattr(rouge, "TRIM_EVERY", trim_every)
        assert rouge.common_length(one, other) == table[-1][-1]


def test_twenty_thousand_words_are_compared() -> None:
    """The usual table would have 400 million cells and take minutes."""
    chance = random.Random(22)
    words = [f"w{number}" for number in range(3_000)]
    reference = chance.choices(words, k=20_000)
    written = [word if chance.random() < 0.8 else chance.choice(words) for word in reference]
    work = pair(" ".join(reference), " ".join(written))
    found = [metric(work) for metric in COMPARED]
    assert all(isinstance(value, float) and 0.5 < value < 0.95 for value in found)


def test_a_text_of_ten_megabytes_is_refused_as_too_costly() -> None:
    work = pair("a few words of reference", "word " * 2_000_000)
    for metric in COMPARED:
        found = metric(work)
        assert isinstance(found, Missing)
        assert (found.cause, found.fault) == (Cause.TOO_COSTLY, Fault.SYSTEM)
        assert "2000000 words" in found.why


@pytest.mark.parametrize("limit", ["MAX_LCS_CELLS", "MAX_LCS_BITS"])
def test_a_limit_on_the_longest_subsequence_leaves_the_other_metrics_alone(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(rouge, "SIEVED_FROM_CELLS", 1)
    monkeypatch.setattr(rouge, limit, 5)
    work = pair("x a b c d y", "y b a d c x")
    found = rouge_longest(work)
    assert isinstance(found, Missing)
    assert (found.cause, found.fault) == (Cause.TOO_COSTLY, Fault.SYSTEM)
    assert rouge1(work) == 1.0


def test_texts_alike_at_both_ends_are_within_any_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rouge, "SIEVED_FROM_CELLS", 0)
    monkeypatch.setattr(rouge, "MAX_LCS_CELLS", 0)
    assert rouge_longest(pair("a b c d", "a b d")) == pytest.approx(6 / 7)


@pytest.mark.parametrize("metric", NEEDING_TEXT)
@pytest.mark.parametrize("output", [{}, {"text": None}, {"text": 5}, {"text": ["a"]}, {"text": b"a"}, {"text": {}}])
def test_no_text_is_missing_and_the_agents_fault(metric: Any, output: dict[str, Any]) -> None:
    found = metric(Work(output=output, input={"reference": "a b c d"}))
    assert isinstance(found, Missing)
    assert (found.cause, found.fault) == (Cause.METRIC_MISSING, Fault.AGENT)
    assert "text" in found.why


@pytest.mark.parametrize("metric", COMPARED)
@pytest.mark.parametrize(
    "given_input", [{}, {"reference": None}, {"reference": ""}, {"reference": 5}, {"reference": ["a"]}]
)
def test_no_reference_is_missing_and_the_authors_fault(metric: Any, given_input: dict[str, Any]) -> None:
    found = metric(Work(output={"text": "a b c d"}, input=given_input))
    assert isinstance(found, Missing)
    assert (found.cause, found.fault) == (Cause.METRIC_MISSING, Fault.AUTHOR)
    assert "reference" in found.why


def test_an_empty_text_is_a_text() -> None:
    work = pair("a b c d", "")
    assert [metric(work) for metric in NEEDING_TEXT] == [0.0, 0.0, 0.0, 0.0, 0, 0]


def test_length_counts_characters_and_words_are_parted_by_any_space() -> None:
    work = Work(output={"text": "naïve\u00a0 \U0001f600\n x"})
    assert output_length(work) == 11
    assert word_count(work) == 3


def test_rouge_types_share_one_cutting_into_words() -> None:
    work = pair("a b", "b c")
    found_rouge(work)
    assert list(work.derived.values()) == [(["a", "b"], ["b", "c"])]


def test_comparing_is_costly_and_counting_is_not() -> None:
    costly = {metric.name for metric in metrics if metric.family == "text" and metric.costly}
    assert costly == {"bleu_score", "rouge1", "rouge2", "rougeL"}


def test_the_extractor_finds_what_the_specification_lists() -> None:
    extractor = TextQualityExtractor()
    names = ["bleu_score", "output_length", "rouge1", "rouge2", "rougeL", "word_count"]
    assert sorted(extractor.supported_metrics()) == names
    found = asyncio.run(extractor.extract({"reference": "a b c d"}, {"text": "a b c d"}, {}))
    assert found == {
        "bleu_score": 1.0, "rouge1": 1.0, "rouge2": 1.0, "rougeL": 1.0, "output_length": 7, "word_count": 4
    }  # fmt: skip
    assert asyncio.run(extractor.extract({}, {"text": "a b"}, {})) == {"output_length": 3, "word_count": 2}


def test_the_extractor_computes_only_the_given_rouge_types() -> None:
    extractor = TextQualityExtractor(rouge_types=["rougeL"])
    assert sorted(extractor.supported_metrics()) == ["bleu_score", "output_length", "rougeL", "word_count"]
    assert sorted(TextQualityExtractor([]).supported_metrics()) == [
        "bleu_score",
        "output_length",
        "word_count",
    ]


def test_an_unknown_rouge_type_is_refused_with_the_nearest() -> None:
    with pytest.raises(MeruitError, match=r"'rougel' .*'rouge.'.*rouge1, rouge2, rougeL"):
        TextQualityExtractor(rouge_types=["rouge1", "rougel"])
