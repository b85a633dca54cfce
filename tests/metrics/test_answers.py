"""Answers compared with references: exact_match, one_of, contains_reference, edit_similarity, number_close."""

import re
import string
import unicodedata
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein

from meruit.errors import AuthorError
from meruit.metrics.contains_reference import contains_reference
from meruit.metrics.edit_similarity import edit_similarity
from meruit.metrics.exact_match import exact_match
from meruit.metrics.number_close import number_close
from meruit.metrics.one_of import one_of
from meruit.metrics.support.reference import MAX_CHARS, MAX_REFERENCES
from meruit.model.evidence import Cause, Fault, Measured, Missing
from meruit.model.work import Work
from meruit.registry import Ask, Finding

COMPARING = [exact_match, contains_reference, edit_similarity, number_close]
TEXTS = st.text(st.characters(codec="utf-8"), max_size=30)


def value(finding: Finding) -> Any:
    return finding.value if isinstance(finding, Measured) else finding


def missing(finding: Finding) -> tuple[Cause, Fault]:
    assert isinstance(finding, Missing), finding
    return finding.cause, finding.fault


def answer(text: Any, reference: Any) -> Work:
    return Work(output={"text": text}, input={"reference": reference})


# Whatever is compared.


@given(TEXTS.filter(str.strip))
def test_a_text_is_its_own_reference(text: str) -> None:
    work = answer(text, text)
    assert value(exact_match(Ask())(work)) is True
    assert value(contains_reference(Ask({"whole_word": False}))(work)) is True
    assert value(edit_similarity(Ask())(work)) == 1.0


@pytest.mark.parametrize("metric", COMPARING)
@pytest.mark.parametrize("reference", [None, "", [], {"a": 1}, [None]])
def test_a_reference_that_nothing_can_equal_is_the_authors_fault(metric: Any, reference: Any) -> None:
    assert missing(metric(Ask())(answer("42", reference)))[1] is Fault.AUTHOR


@pytest.mark.parametrize("metric", COMPARING)
@pytest.mark.parametrize("text", [None, [], {"a": 1}])
def test_an_answer_that_is_no_text_is_the_agents_fault(metric: Any, text: Any) -> None:
    assert missing(metric(Ask())(answer(text, "42")))[1] is Fault.AGENT


@pytest.mark.parametrize("metric", [*COMPARING, one_of])
@pytest.mark.parametrize(
    "params", [{"colour": 1}, {"field": ""}, {"field": "a..b"}, {"field": 3}, {"field": ".".join("a" * 50)}]
)
def test_a_param_that_cannot_be_meant_is_refused(metric: Any, params: dict[str, Any]) -> None:
    with pytest.raises(AuthorError):
        metric(Ask({"choices": ["a"], **params} if metric is one_of else params))


@pytest.mark.parametrize("metric", [exact_match, contains_reference, edit_similarity])
@pytest.mark.parametrize(
    "params", [{"normalize": ["lower"]}, {"normalize": 1}, {"normalize": [1]}, {"references": []}, {"references": [[]]}]
)
def test_a_normal_form_or_list_that_cannot_be_meant_is_refused(metric: Any, params: dict[str, Any]) -> None:
    with pytest.raises(AuthorError):
        metric(Ask(params))


@pytest.mark.parametrize("metric", [exact_match, contains_reference, edit_similarity, number_close])
def test_a_text_beyond_the_limit_is_not_judged(metric: Any) -> None:
    assert missing(metric(Ask())(answer("a" * (MAX_CHARS + 1), "42")))[0] is Cause.TOO_COSTLY
    assert missing(metric(Ask())(answer("a", "4" * (MAX_CHARS + 1))))[1] is Fault.AUTHOR


def test_more_references_than_the_limit_are_refused() -> None:
    with pytest.raises(AuthorError):
        exact_match(Ask({"references": ["a"] * (MAX_REFERENCES + 1)}))


# Normal forms.


def squad(text: str) -> str:
    """As the scorer of SQuAD has it."""
    text = "".join(char for char in text.lower() if char not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


@given(st.text(string.printable, max_size=40), st.text(string.printable, max_size=40))
def test_squad_is_the_scorers_own_form(text: str, reference: str) -> None:
    found = value(exact_match(Ask({"normalize": ["squad"]}))(answer(text, reference)))
    if not squad(reference):
        assert isinstance(found, Missing)
    else:
        assert found is (squad(text) == squad(reference))


def test_two_spellings_of_one_character_are_one() -> None:
    one, other = "caf\u00e9", unicodedata.normalize("NFD", "caf\u00e9")
    assert value(exact_match(Ask())(answer(one, other))) is True
    assert value(exact_match(Ask({"normalize": []}))(answer(one, other))) is False


@pytest.mark.parametrize(
    ("step", "text", "reference"),
    [
        ("case", "STRASSE", "straße"),
        ("accents", "cafe", "café"),
        ("width", "ＡＢＣ", "ABC"),
        ("whitespace", "a \n b", "a b"),
        ("punctuation", "«sí»", "sí"),
        ("articles", "The end", "an end"),
        ("strip", " a ", "a"),
    ],
)
def test_each_normal_form_does_what_it_says(step: str, text: str, reference: str) -> None:
    assert value(exact_match(Ask({"normalize": []}))(answer(text, reference))) is False
    assert value(exact_match(Ask({"normalize": [step]}))(answer(text, reference))) is True


def test_a_reference_that_its_normal_form_empties_is_the_authors_fault() -> None:
    assert missing(exact_match(Ask({"normalize": "punctuation"}))(answer("!", "?"))) == (
        Cause.AUTHOR_ERROR,
        Fault.AUTHOR,
    )


# Each metric.


def test_an_answer_may_lie_deep_in_the_output() -> None:
    work = Work(output={"items": [{"name": "a"}, {"name": "b", "ok": True, "n": 10**30}]})
    assert value(exact_match(Ask({"field": "items.1.name", "references": "b"}))(work)) is True
    assert value(exact_match(Ask({"field": "items.1.ok", "references": True}))(work)) is True
    assert value(exact_match(Ask({"field": "items.1.n", "references": str(10**30)}))(work)) is True
    for nowhere in ("items.2.name", "items.x", "items.1.name.x", "items." + "9" * 40):
        assert missing(exact_match(Ask({"field": nowhere, "references": "b"}))(work))[1] is Fault.AGENT


def test_one_of_takes_its_list_from_the_threshold_or_params() -> None:
    work = Work(output={"text": " YES\n"})
    assert value(one_of(Ask(wanted=("yes", "no")))(work)) is True
    assert value(one_of(Ask({"choices": "no"}))(work)) is False
    assert missing(one_of(Ask())(work))[1] is Fault.AUTHOR


@pytest.mark.parametrize(
    ("text", "reference", "found"),
    [
        ("It is 42.", "42", True),
        ("It is 142.", "42", False),
        ("C++ it is", "c++", True),
        ("私は東京に住んでいます", "東京", True),
        ("ไปกรุงเทพฯ", "กรุงเทพ", True),
        ("Москва-река", "москва", True),
        ("подмосковный", "москов", False),
        ("a  b", "a b", True),
    ],
)
def test_a_reference_is_found_as_whole_words_of_its_script(text: str, reference: str, found: bool) -> None:
    assert value(contains_reference(Ask())(answer(text, reference))) is found


def test_too_many_references_for_a_long_text_are_the_authors_fault() -> None:
    many = [f"reference {number}" for number in range(MAX_REFERENCES)]
    long = Work(output={"text": "a" * MAX_CHARS}, input={"references": many})
    assert value(contains_reference(Ask())(long)) is False
    wide = Work(output={"text": "\ufdfa" * (MAX_CHARS // 5)}, input={"references": many})
    assert missing(contains_reference(Ask({"normalize": ["width"]}))(wide)) == (Cause.TOO_COSTLY, Fault.AUTHOR)


@given(TEXTS, TEXTS.filter(bool))
def test_edit_similarity_is_levenshteins(text: str, reference: str) -> None:
    found = value(edit_similarity(Ask({"normalize": []}))(answer(text, reference)))
    assert found == pytest.approx(Levenshtein.normalized_similarity(text, reference))
    assert 0 <= found <= 1


def test_texts_too_long_for_each_other_are_not_compared() -> None:
    assert missing(edit_similarity(Ask())(answer("a" * 200_000, "b" * 200_000)))[0] is Cause.TOO_COSTLY


# Numbers.


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**12), max_value=10**12))
def test_a_number_is_found_however_it_is_written(number: Decimal) -> None:
    exact = Ask({"tolerance": 0})
    for text in (f"{number}", f"{number:,}", f"so {number:,} in all.", f"{number}".replace("-", "\u2212")):
        assert value(number_close(exact)(answer(text, str(number)))) is True, text
    german = f"{number:,}".translate(str.maketrans(",.", ".,"))
    assert value(number_close(Ask({"decimal": ",", "tolerance": 0}))(answer(german, german))) is True


@given(
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.floats(0, 10),
)
def test_the_tolerance_is_exact(found: float, right: float, tolerance: float) -> None:
    work = Work(output={"n": found}, input={"reference": right})
    off = abs(Decimal(repr(found)) - Decimal(repr(right)))
    near = value(number_close(Ask({"field": "n", "tolerance": tolerance}))(work))
    assert near is (off <= Decimal(repr(tolerance)))


@pytest.mark.parametrize(
    ("text", "params", "found"),
    [
        ("first 1, then 2", {"take": "first"}, False),
        ("first 1, then 2", {}, True),
        ("first 1, then 2", {"take": "only"}, False),
        ("2", {"take": "only"}, True),
        ("v2 x2 2x", {}, False),
        ("2.", {}, True),
        ("٢", {}, True),
        ("2e0", {}, True),
        ("2,000", {}, False),
        ("0.2e1", {}, True),
        ("-2", {}, False),
        ("AB-2", {}, False),
    ],
)
def test_which_number_counts(text: str, params: dict[str, Any], found: bool) -> None:
    assert value(number_close(Ask(params))(answer(text, 2))) is found


def test_numbers_without_bounds_are_not_judged_true() -> None:
    assert value(number_close(Ask())(answer("9" * 500, 2))) is False
    assert missing(number_close(Ask())(answer("2", float("nan"))))[1] is Fault.AUTHOR
    assert missing(number_close(Ask())(answer("2", "1 or 2")))[1] is Fault.AUTHOR
    assert missing(number_close(Ask({"field": "n"}))(Work(output={"n": None}, input={"reference": 2})))
    assert value(number_close(Ask({"field": "n"}))(Work(output={"n": True}, input={"reference": 1}))) is False


@pytest.mark.parametrize(
    "params",
    [
        *({"tolerance": -1}, {"tolerance": float("nan")}, {"relative": True}, {"take": "all"}, {"decimal": ";"}),
        *({"reference": "none"}, {"reference": True}, {"relative": "1%"}),
    ],
)
def test_a_tolerance_that_cannot_be_meant_is_refused(params: dict[str, Any]) -> None:
    with pytest.raises(AuthorError):
        number_close(Ask(params))


def test_the_criterion_may_name_the_number() -> None:
    assert value(number_close(Ask({"reference": "1,000"}))(Work(output={"text": "1000.0"}))) is True
