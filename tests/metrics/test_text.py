"""Text metrics: equal to sacrebleu and rouge-score on whatever is written, and absent with a reason."""

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sacrebleu import corpus_bleu
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
from tests.sampling import examples

from meruit.errors import AuthorError, MeruitError
from meruit.metrics import text
from meruit.metrics.support import bleu, rouge, word_numbers
from meruit.metrics.support.bleu import ORDERS, words_13a
from meruit.metrics.support.families import TextQualityExtractor
from meruit.metrics.support.rouge import words_alphanumeric
from meruit.metrics.support.tokenizers import Tokenizer
from meruit.metrics.support.word_numbers import NumberedPair, number_words
from meruit.metrics.text import MAX_CHARS, WordReader, output_length, word_count
from meruit.model.evidence import Cause, Fault, Missing
from meruit.model.work import Work
from meruit.registry import Ask, Finding, InputProblem, metrics

bleu_score, rouge1, rouge2, rouge_longest = (
    metric(Ask()) for metric in (text.bleu_score, text.rouge1, text.rouge2, text.rouge_longest)
)
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

_tokenizer: Callable[[str], str] = Tokenizer13a()  # type: ignore[no-untyped-call]


def pair(reference: str, written: str) -> Work:
    return Work(output={"text": written}, input={"reference": reference})


def near(expected: float) -> Any:
    """From Python 3.12 on, sum() rounds otherwise than adding up, so sacrebleu's last bit depends on the version."""
    return expected if sys.version_info < (3, 12) else pytest.approx(expected, rel=0, abs=1e-12)


def expected_bleu(reference: str, written: str) -> float:
    # Rounding takes sacrebleu to 100.00000000000004 on equal texts; a share above one would be refused.
    return float(min(1.0, corpus_bleu([written], [[reference]]).score / 100))


@cache
def rouge_of_google() -> Any:
    # It loads nltk and all that nltk finds, which takes seconds: only in the worker that compares with it.
    from rouge_score import rouge_scorer

    return rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"])


def expected_rouge(reference: str, written: str) -> list[float]:
    return [score.fmeasure for score in rouge_of_google().score(reference, written).values()]


def found_rouge(work: Work) -> list[Finding]:
    return [metric(work) for metric in (rouge1, rouge2, rouge_longest)]


def with_tokenizer(metric: str, tokenizer: str, work: Work) -> Finding:
    return metrics.get(metric).prepare(Ask({"tokenizer": tokenizer}))(work)


def is_authors_fault(found: Finding) -> bool:
    return isinstance(found, Missing) and (found.cause, found.fault) == (Cause.METRIC_MISSING, Fault.AUTHOR)


@given(texts)
@example("..5 a..5 5...3 5..3 ,,5 5,,3 5.,.3")
@example("a-\n")
@example("x &amp;lt; y")
@examples(60)
def test_words_are_cut_as_by_the_reference_tokenizer(written: str) -> None:
    assert words_13a(written) == _tokenizer(written.rstrip()).split()


@given(references, texts)
@example("a", "")
@example(" ", "a b c d")
@example("a b c", "a b c d")
@example("a b c", "a b c")
@example("a b c d", "a b c d")
@example("a b c d e f g h", "a b c d")
@examples(60)
def test_bleu_equals_the_reference_scorer_on_any_text(reference: str, written: str) -> None:
    found = bleu_score(pair(reference, written))
    reference_words, words = words_13a(reference), words_13a(written)
    if not reference_words or (len(reference_words) < ORDERS and 0 < len(words) < ORDERS):
        assert is_authors_fault(found)
        assert expected_bleu(reference, written) == 0
    elif not isinstance(found, Missing):
        assert found == near(expected_bleu(reference, written))
    else:
        assert is_authors_fault(found)
        assert not any(map(str.isalpha, "".join(reference_words)))


@given(references, texts)
@example("a", "")
@example("!", "a")
@example("a", "a")
@example("İstanbul K", "i stanbul k")
@example("5 日本", "5 日本")
@examples(60)
def test_rouge_equals_the_reference_scorer_on_any_text(reference: str, written: str) -> None:
    found, words = found_rouge(pair(reference, written)), words_alphanumeric(reference)
    all_letters_dropped = any(map(str.isalpha, reference)) and not any(map(str.isalpha, "".join(words)))
    if not words or all_letters_dropped:
        assert all(map(is_authors_fault, found))
        return
    expected: list[Any] = expected_rouge(reference, written)
    if len(words) == 1:
        # A single word has no pairs, so that ROUGE-2 would be 0 for the reference itself.
        assert is_authors_fault(found[1])
        assert expected[1] == 0
        found[1] = expected[1]
    assert found == expected


# Words of any script.


CYRILLIC, CHINESE = "Иск оплачен полностью.", "索赔已全额支付。"


@pytest.mark.parametrize("reference", [CYRILLIC, CHINESE, "訴訟 42", "№ 42: счёт", "!!!", " ", "ＡＢＣ"])
def test_a_reference_without_a_word_is_the_authors_fault(reference: str) -> None:
    for found in found_rouge(pair(reference, reference)):
        assert is_authors_fault(found)
        assert isinstance(found, Missing)
        assert found.details == {"tokenizer": "rouge"}
        assert "params.tokenizer" in found.why


def test_an_unusable_reference_is_found_before_an_unusable_text() -> None:
    for output in ({}, {"text": 5}, {"text": ""}):
        assert is_authors_fault(rouge1(Work(output=output, input={"reference": CYRILLIC})))


def test_a_number_is_a_reference_for_every_tokenizer() -> None:
    assert rouge1(pair("42", "42")) == 1.0
    assert with_tokenizer("rouge1", "unicode", pair("42", "42")) == 1.0


@pytest.mark.parametrize("metric", ["rouge1", "rouge2", "rougeL"])
@pytest.mark.parametrize("tokenizer", ["unicode", "char", "intl", "zh", "13a"])
@pytest.mark.parametrize("written", [CYRILLIC, "索赔 已 全额 支付", "Ünïcödé wörds", "สวัสดี ชาวโลก"])
def test_a_perfect_answer_in_any_script_is_perfect(metric: str, tokenizer: str, written: str) -> None:
    assert with_tokenizer(metric, tokenizer, pair(written, written)) == 1.0


@pytest.mark.parametrize("tokenizer", ["unicode", "char", "zh"])
def test_a_perfect_answer_in_chinese_has_bleu_1(tokenizer: str) -> None:
    assert with_tokenizer("bleu_score", tokenizer, pair(CHINESE, CHINESE)) == 1.0
    close = with_tokenizer("bleu_score", tokenizer, pair(CHINESE, "索赔已经全额支付。"))
    assert isinstance(close, float)
    assert 0.3 < close < 1


@pytest.mark.parametrize("tokenizer", ["13a", "intl"])
def test_bleu_of_texts_below_four_words_is_the_authors_fault(tokenizer: str) -> None:
    for reference, written in ((CHINESE, CHINESE), ("Paid in", "Paid in"), ("Paid in", "Refused")):
        found = with_tokenizer("bleu_score", tokenizer, pair(reference, written))
        assert is_authors_fault(found)
        assert isinstance(found, Missing)
        assert found.details is not None
        assert (found.details["tokenizer"], found.details["words"] < ORDERS) == (tokenizer, True)
    assert with_tokenizer("bleu_score", tokenizer, pair("Paid in full", "")) == 0.0


def test_rouge_ignores_case_in_every_script_and_bleu_does_not() -> None:
    work = pair("ИСК ОПЛАЧЕН ПОЛНОСТЬЮ СЕГОДНЯ", "иск оплачен полностью сегодня")
    assert with_tokenizer("rougeL", "unicode", work) == 1.0
    assert with_tokenizer("bleu_score", "unicode", work) == 0.0


def test_accents_written_in_two_ways_are_equal_to_unicode() -> None:
    assert with_tokenizer("rouge1", "unicode", pair("caf\u00e9", "cafe\u0301")) == 1.0


SACREBLEU = ("13a", "intl", "zh", "char")


@pytest.mark.parametrize("tokenizer", SACREBLEU)
@given(references, texts)
@example("索赔已全额支付。共3.5万元", "索赔已经全额支付，共3.5万元。")
@example("«Да», сказал он в 1995-м. € 5", "«Да», сказал он в 1995. $ 5")
@examples(50)
def test_bleu_equals_the_reference_scorer_for_each_tokenizer(tokenizer: str, reference: str, written: str) -> None:
    found = with_tokenizer("bleu_score", tokenizer, pair(reference, written))
    if not isinstance(found, Missing):
        expected = corpus_bleu([written], [[reference]], tokenize=tokenizer).score / 100
        assert found == near(float(min(1.0, expected)))


@pytest.mark.parametrize("metric", ["bleu_score", "rouge1", "rouge2", "rougeL"])
def test_the_default_names_ask_for_the_default(metric: str) -> None:
    usual = "13a" if metric == "bleu_score" else "rouge"
    work = pair("The claim was paid, in full.", "The claim is paid in full!")
    assert with_tokenizer(metric, usual, work) == metrics.get(metric).prepare(Ask())(work)


@pytest.mark.parametrize("metric", ["bleu_score", "rouge1", "rouge2", "rougeL"])
@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (Ask({"tokenizer": "unicod"}), "'unicode'"),
        (Ask({"tokenizer": None}), "unicode"),
        (Ask({"tokenizer": ["char"]}), "char"),
        (Ask({"tokeniser": "char"}), "'tokenizer'"),
        (Ask(wanted=("cat",)), "contains_keywords"),
    ],
)
def test_what_a_criterion_cannot_ask_is_refused(metric: str, ask: Ask, named: str) -> None:
    with pytest.raises(AuthorError, match=named):
        metrics.get(metric).prepare(ask)


def problems(metric: str, reference: Any, **params: str) -> list[tuple[str, bool]]:
    inspect = metrics.get(metric).inspect_input
    assert inspect is not None
    found: list[InputProblem] = [*inspect(Ask(params), {"reference": reference})]
    return [(problem.code, problem.proven) for problem in found]


def test_lost_letters_of_a_reference_are_found() -> None:
    assert problems("rougeL", CYRILLIC) == [("reference_without_words", True)]
    assert problems("rougeL", "Счёт of 42 euros") == [("reference_loses_letters", False)]
    assert problems("rouge1", "le café") == [("reference_loses_letters", False)]
    assert problems("rouge2", "счёт paid") == [("reference_too_short", True), ("reference_loses_letters", False)]


def test_a_reference_that_bleu_cannot_cut_is_found() -> None:
    assert problems("bleu_score", CHINESE) == [("reference_too_short", True), ("reference_not_cut", False)]
    assert problems("bleu_score", "支付 支付 支付 支付") == [("reference_not_cut", False)]
    assert problems("bleu_score", "Paid in full") == [("reference_too_short", True)]
    assert problems("bleu_score", CYRILLIC + " Да.") == []


@pytest.mark.parametrize("tokenizer", ["unicode", "char", "zh"])
def test_tokenizers_for_every_script_lose_nothing(tokenizer: str) -> None:
    for metric in ("bleu_score", "rouge1", "rouge2", "rougeL"):
        assert problems(metric, CHINESE, tokenizer=tokenizer) == []


@pytest.mark.parametrize("reference", [None, 5, ""])
def test_an_absent_reference_loses_no_letters(reference: Any) -> None:
    assert problems("rougeL", reference) == []


# Cost and limits.


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
        reference = " ".join(chance.choices(words, k=chance.randint(5, 25)))
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


@given(
    words_of_few, words_of_few, st.sampled_from([0, 10**6]), st.sampled_from([1, 3, 1024]), st.sampled_from([0, 10**6])
)
def test_the_common_subsequence_does_not_depend_on_how_it_is_sought(
    one: list[str], other: list[str], sieved_from: int, trim_every: int, native: int
) -> None:
    table = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i, left in enumerate(one, 1):
        for j, right in enumerate(other, 1):
            table[i][j] = table[i - 1][j - 1] + 1 if left == right else max(table[i - 1][j], table[i][j - 1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rouge, "SIEVED_FROM_CELLS", sieved_from)
        patch.setattr(rouge, "TRIM_EVERY", trim_every)
        patch.setattr(rouge, "MAX_NATIVE_CELLS", native)
        numbers = number_words(one, other)
        assert rouge.common_length(numbers.reference, numbers.text) == table[-1][-1]


@given(words_of_few, words_of_few)
def test_overlaps_do_not_depend_on_how_they_are_counted(one: list[str], other: list[str]) -> None:
    written = pair(" ".join(one), " ".join(other))
    found = [metric(written) for metric in COMPARED]
    with pytest.MonkeyPatch.context() as patch:
        # As texts are counted that are short, but whose numbers are not bytes.
        patch.setattr(word_numbers, "MAX_BYTES", 0)
        assert found == [metric(pair(" ".join(one), " ".join(other))) for metric in COMPARED]
        # As longer ones.
        patch.setattr(word_numbers, "MAX_FOLLOWED", 0)
        assert found == [metric(pair(" ".join(one), " ".join(other))) for metric in COMPARED]
        # As texts of many words: in slices, and without a call of seconds.
        patch.setattr(word_numbers, "SLICE_WORDS", 3)
        patch.setattr(rouge, "MAX_NATIVE_CELLS", 0)
        assert found == [metric(pair(" ".join(one), " ".join(other))) for metric in COMPARED]
        # As texts with too many words for such numbers.
        patch.setattr(word_numbers, "MAX_NUMBERED", 0)
        assert found == [metric(pair(" ".join(one), " ".join(other))) for metric in COMPARED]


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=60),
    st.lists(st.integers(0, 15), max_size=60),
    st.sampled_from([0, word_numbers.MAX_SOUGHT, word_numbers.MAX_BYTES]),
)
@example([*range(1, 60)], [*range(60)], 0)
@example([1, 2, 1, 3, 1, 4, 1, 2], [1, 2, 1, 2, 1, 2, 1, 3], 0)
def test_runs_of_short_texts_are_counted_however_they_are_found(one: list[int], other: list[int], sought: int) -> None:
    runs = word_numbers.place_words(number_words(one, other))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_numbers, "MAX_SOUGHT", sought)
        for order in range(2, ORDERS + 1):
            assert runs is not None
            runs = word_numbers.place_longer(runs)
            assert (len(runs.reference), len(runs.text)) == (
                max(0, len(one) - order + 1),
                max(0, len(other) - order + 1),
            )
            had, found = (Counter(zip(*[words[at:] for at in range(order)], strict=False)) for words in (one, other))
            assert word_numbers.count_placed(runs) == (had & found).total()


@pytest.mark.parametrize("base", [255, 256, 257, word_numbers.MAX_NUMBERED + 1])
def test_runs_of_the_largest_numbers_are_told_apart(base: int, monkeypatch: pytest.MonkeyPatch) -> None:
    most = base - 1
    pair = NumberedPair([most] * 6, [most, most, most, most, most - 1, most, most], base)
    assert list(word_numbers.count_shared_runs(pair, ORDERS)) == [4, 2, 1]
    monkeypatch.setattr(word_numbers, "MAX_NUMBERED", 0)
    assert list(word_numbers.count_shared_runs(pair, ORDERS)) == [4, 2, 1]


@pytest.mark.parametrize("words", [word_numbers.MAX_BYTES - 1, word_numbers.MAX_BYTES, word_numbers.MAX_BYTES + 1])
@pytest.mark.parametrize("known", [4, 40, 1_000])
def test_texts_are_compared_where_numbers_cease_to_be_bytes(words: int, known: int) -> None:
    chance, vocabulary = random.Random(words), [f"w{number}" for number in range(known)]
    one = chance.choices(vocabulary, k=words - words // 2)
    other = one[: words // 4] + chance.choices(vocabulary, k=words // 2 - words // 4)
    reference, written = " ".join(one), " ".join(other)
    assert bleu_score(pair(reference, written)) == near(expected_bleu(reference, written))
    assert found_rouge(pair(reference, written)) == expected_rouge(reference, written)


def test_twenty_thousand_words_are_compared() -> None:
    """The usual table would have 400 million cells and take minutes."""
    chance = random.Random(22)
    words = [f"w{number}" for number in range(3_000)]
    reference = chance.choices(words, k=20_000)
    written = [word if chance.random() < 0.8 else chance.choice(words) for word in reference]
    work = pair(" ".join(reference), " ".join(written))
    found = [metric(work) for metric in COMPARED]
    assert all(isinstance(value, float) and 0.5 < value < 0.95 for value in found)


WORDS = st.lists(st.sampled_from("abcdefgh"), max_size=40)


@given(WORDS, WORDS, st.integers(1, 5))
def test_long_texts_are_counted_in_slices_with_equal_results(one: list[str], other: list[str], most: int) -> None:
    def figures() -> list[float | None]:
        pair = number_words(one, other)
        # Without the ways of short texts.
        runs = [rouge.rouge_runs(pair, order) for order in (1, 2)]
        return [*runs, rouge.rouge_l(one, other), bleu.bleu(one, other)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_numbers, "MAX_NUMBERED", 0)
        patch.setattr(word_numbers, "MAX_BYTES", 0)
        patch.setattr(word_numbers, "MAX_FOLLOWED", 0)
        patch.setattr(rouge, "MAX_NATIVE_CELLS", 0)
        whole = figures()
        patch.setattr(word_numbers, "SLICE_WORDS", most)
        assert figures() == whole
        sizes = [len(some) for some in word_numbers.in_slices(one)]
    assert (sum(sizes), max(sizes, default=0) <= most) == (len(one), True)


@pytest.mark.parametrize(
    ("text", "why"), [("word " * 200_001, "1000005 characters"), ("a b " * 125_001, "250002 words")]
)
def test_a_text_beyond_a_limit_is_refused_as_too_costly(text: str, why: str) -> None:
    for work in (pair("a few words of reference", text), pair(text, "a few words")):
        for metric in COMPARED:
            found = metric(work)
            assert isinstance(found, Missing)
            assert (found.cause, found.fault) == (Cause.TOO_COSTLY, Fault.SYSTEM)
            assert why in found.why


def test_a_text_that_is_too_long_is_not_cut_into_words() -> None:
    def cut(text: str) -> list[str]:
        assert len(text) <= MAX_CHARS, "other threads would wait"
        return text.split()

    reader = WordReader(Tokenizer("any", cut), lower=False)
    assert isinstance(reader(pair("a few words", "." * (MAX_CHARS + 1))), Missing)


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
    with_tokenizer("rougeL", "char", work)
    assert list(work.derived.values()) == [(bytes([1, 2]), bytes([2, 0]), 3)] * 2


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
