"""Keywords, patterns, fields and schemas in an output."""

import asyncio
import subprocess
import sys
import time
import unicodedata
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.errors import AuthorError
from meruit.metrics.content import (
    contains_keywords,
    has_required_fields,
    matches_pattern,
    matches_schema,
)
from meruit.metrics.support.families import ContainsExtractor
from meruit.metrics.support.keywords import MAX_WANTED, MAX_WANTED_CHARS
from meruit.model.evidence import Cause, Fault, Measured, Missing
from meruit.model.text import UnicodeForm
from meruit.model.work import Work
from meruit.registry import Ask, Finding, metrics

FAMILY = [metric for metric in metrics if metric.family == "content"]
NO_NUL = st.characters(exclude_characters="\0")
RECURSIVE = {"anyOf": [{"properties": {"a": {"$ref": "#"}}}, {"properties": {"a": {"$ref": "#"}}}]}


def text(value: Any, **given: Any) -> Work:
    return Work(output={"text": value}, input=given)


def measured(finding: Finding) -> Measured:
    assert isinstance(finding, Measured), finding
    return finding


def missing(finding: Finding) -> Missing:
    assert isinstance(finding, Missing), finding
    return finding


def keywords(*wanted: str, **params: Any) -> Any:
    return contains_keywords(Ask(params, wanted))


@pytest.mark.parametrize("metric", FAMILY, ids=lambda metric: metric.name)
def test_every_example_is_true(metric: Any) -> None:
    assert metric.examples
    for example in metric.examples:
        finding = metric.prepare(example.ask)(example.work)
        if example.expect is Missing:
            missing(finding)
        else:
            assert (finding.value if isinstance(finding, Measured) else finding) == example.expect


def test_the_family_is_the_specified_extractor() -> None:
    extractor = ContainsExtractor()
    assert set(extractor.supported_metrics()) == {
        "contains_keywords",
        "matches_pattern",
        "matches_schema",
        "has_required_fields",
    }
    task_input = {
        "required_keywords": ["yes"],
        "required_fields": ["text", "id"],
        "output_schema": {"type": "array"},
    }
    found = asyncio.run(extractor.extract(task_input, {"text": "Yes."}, {}))
    assert found == {"contains_keywords": 1.0, "has_required_fields": 0.5, "matches_schema": 0.0}


@pytest.mark.parametrize("metric", FAMILY, ids=lambda metric: metric.name)
def test_an_unknown_param_is_refused_with_the_nearest_one(metric: Any) -> None:
    known = next(iter(metric.params))
    with pytest.raises(AuthorError, match=f"'{known}'"):
        metric.prepare(Ask({known + "x": 1}))


# Keywords.


def test_the_threshold_names_the_keywords_before_params_and_input_do() -> None:
    work = text("one two three", required_keywords=["absent"])
    assert measured(keywords("one", keywords=["absent"])(work)).value == 1.0
    assert measured(keywords(keywords=["one", "absent"])(work)).value == 0.5
    assert measured(keywords()(work)).value == 0.0


def test_what_was_found_and_what_was_not_is_listed_as_written() -> None:
    finding = measured(keywords("Two", "four", "ONE")(text("one two three")))
    assert finding.details == {"found": ["Two", "ONE"], "missing": ["four"]}


def test_nothing_to_look_for_is_the_authors_doing() -> None:
    for work in (text("x"), text("x", required_keywords=[]), text("x", required_keywords=None)):
        finding = missing(keywords()(work))
        assert (finding.fault, finding.cause) == (Fault.AUTHOR, Cause.METRIC_MISSING)


@pytest.mark.parametrize("value", [None, 5, ["a"], b"a"])
def test_a_text_that_is_none_is_missing_and_the_agents_doing(value: Any) -> None:
    for measure in (
        keywords("a"),
        keywords("a", whole_word=True),
        keywords("a", whole_word=True, case_sensitive=True),
        matches_pattern(Ask({"pattern": "a"})),
    ):
        finding = missing(measure(text(value)))
        assert (finding.fault, finding.cause) == (Fault.AGENT, Cause.METRIC_MISSING)


def test_without_a_text_the_whole_output_is_searched() -> None:
    work = Work(output=MappingProxyType({"answer": {"city": "Zürich"}}))
    assert measured(keywords("zürich", "city")(work)).value == 1.0
    assert "not JSON" in missing(keywords("a")(Work(output={"a": {1, 2}}))).why


def test_case_is_ignored_in_every_script_unless_it_matters() -> None:
    assert measured(keywords("STRASSE", "ΣΊΣΥΦΟΣ")(text("Straße des Σίσυφος"))).value == 1.0
    assert measured(keywords("Cat", "cat", case_sensitive=True)(text("cat"))).value == 0.5


@pytest.mark.parametrize(
    ("keyword", "searched", "found"),
    [
        ("cat", "concatenate", False),
        ("cat", "the cat.", True),
        ("cat", "concatenate cat", True),
        ("cat", "cat_food", False),
        ("cat", "cat9", False),
        ("C++", "I like C++!", True),
        ("C++", "(c++)", True),
        ("C++", "xC++", False),
        ("C++", "C++11", True),
        ("C", "C++", True),
        (".net", "asp.net", True),
        (".net", "asp.nets", False),
        (".net", "use .NET", True),
        ("über", "drüber", False),
        ("über", "ÜBER alles", True),
        ("caf", "café", False),
        ("cafe", "cafe\u0301", False),
        ("кот", "который", False),
        ("кот", "мой кот", True),
        ("a\nb", "x a\nb y", True),
        ("machine learning", "of Machine learning.", True),
        ("machine learning", "machine learnings", False),
        ("machine learning", "machine  learning", False),
        ("don't", "I don't", True),
        ("don't", "don'ts", False),
        ("a a", "xa a a", True),
        ("++", "C++x", True),
        ("cafe\u0301", "un cafe\u0301!", True),
        ("cafe\u0301 noir", "cafe\u0301 noir\u0301", False),
        ("a b", "a\0b a\0 b", False),
        ("a.", "a\0.", False),
        ("a.", "\0a.", True),
        ("x\ud800", "y x\ud800 z", True),
    ],
)
def test_a_whole_word_has_no_letter_next_to_it(keyword: str, searched: str, found: bool) -> None:
    assert measured(keywords(keyword, whole_word=True)(text(searched))).value == float(found)


FORMS: tuple[UnicodeForm, UnicodeForm] = ("NFC", "NFD")


@pytest.mark.parametrize("params", [{}, {"whole_word": True}, {"case_sensitive": True}])
def test_a_letter_and_its_accent_may_be_one_character_or_two(params: dict[str, Any]) -> None:
    one, two = (unicodedata.normalize(form, "Café ệ") for form in FORMS)
    for written, searched in ((one, two), (two, one)):
        assert measured(keywords(written, **params)(text(f"the {searched} here"))).value == 1.0
    # With its accent a letter is another one, however that is written.
    assert measured(keywords("cafe ", **params)(text("cafe\u0301 "))).value == 0.0
    both = measured(keywords("\u00e9t\u00e9", "e\u0301te\u0301", **params)(text("\u00e9t\u00e9")))
    assert (both.value, both.details) == (1.0, {"found": ["\u00e9t\u00e9"], "missing": []})


def test_equal_keywords_count_once() -> None:
    finding = measured(keywords("cat", "Cat", "dog", "dog")(text("CAT")))
    assert (finding.value, finding.details) == (0.5, {"found": ["cat"], "missing": ["dog"]})


def test_whole_numbers_are_looked_for_as_text() -> None:
    assert measured(keywords(keywords=[7, -12, "1.50"])(text("7 items at 1.50, then -12"))).value == 1.0
    assert measured(keywords(keywords=42)(text("the answer is 42"))).value == 1.0


@pytest.mark.parametrize("number", [1.10, 2.0, Decimal("1.10"), True])
@pytest.mark.parametrize(
    ("metric", "param", "given_as"),
    [
        (contains_keywords, "keywords", "required_keywords"),
        (matches_pattern, "patterns", "pattern"),
        (has_required_fields, "fields", "required_fields"),
    ],
)
def test_a_number_whose_spelling_is_lost_must_be_quoted(metric: Any, param: str, given_as: str, number: Any) -> None:
    with pytest.raises(AuthorError, match="quote it"):
        metric(Ask({param: [number]}))
    finding = missing(metric(Ask())(text("1.15", **{given_as: [number]})))
    assert (finding.fault, finding.cause) == (Fault.AUTHOR, Cause.AUTHOR_ERROR)
    assert "quote it" in finding.why


@pytest.mark.parametrize(
    "wanted",
    [
        [""],
        [" \n"],
        [True],
        [None],
        [["a"]],
        [float("nan")],
        [10**5_000],
        [Decimal("sNaN")],
        [],
        {"a": 1},
        ["x"] * (MAX_WANTED + 1),
    ],
    ids=["empty", "blank", "true", "null", "list", "nan", "digits", "signal", "none", "object", "many"],
)
def test_what_cannot_be_looked_for_is_refused(wanted: Any) -> None:
    with pytest.raises(AuthorError):
        keywords(keywords=wanted)
    if wanted != []:
        finding = missing(keywords()(text("x", required_keywords=wanted)))
        assert (finding.fault, finding.cause) == (Fault.AUTHOR, Cause.AUTHOR_ERROR)


def test_a_flag_is_true_or_false() -> None:
    with pytest.raises(AuthorError, match="whole_word"):
        keywords("a", whole_word="yes")


def test_ten_megabytes_are_searched_at_once() -> None:
    start = time.process_time()
    assert measured(keywords("needle")(text("hay " * 2_500_000 + "needle"))).value == 1.0
    assert measured(keywords("a" * 1_000, whole_word=True)(text("a" * 10_000_000))).value == 0.0
    assert time.process_time() - start < 30


def test_a_whole_word_is_found_however_often_it_was_part_of_another() -> None:
    searched = text("concat" * 100_001 + " cat")
    assert measured(keywords("cat", whole_word=True)(searched)).value == 1.0
    assert measured(keywords("a-a", whole_word=True)(text("aa-a" * 100_001 + " a-a"))).value == 1.0
    assert measured(keywords("cat", whole_word=True)(text("concat " * 100_001))).value == 0.0


def test_a_thousand_whole_words_take_no_longer_than_one() -> None:
    start = time.process_time()
    wanted = ["a" * length for length in range(1, 1_000)]
    assert measured(keywords(*wanted, whole_word=True)(text("a" * 2_000_000 + " aa"))).value == 1 / len(wanted)
    assert time.process_time() - start < 30


def test_phrases_that_overlap_themselves_take_linear_time() -> None:
    start = time.process_time()
    wanted = "a-a" * 600
    assert measured(keywords(wanted, whole_word=True)(text("z" + "a-a" * 1_000_000))).value == 0.0
    assert measured(keywords(wanted, whole_word=True)(text("z" + "a-a" * 1_000_000 + " " + wanted))).value == 1.0
    assert time.process_time() - start < 30


@pytest.mark.parametrize("whole", [False, True])
def test_more_keywords_than_can_be_searched_for_cost_too_much(whole: bool) -> None:
    wanted = [f"a {number}" for number in range(MAX_WANTED)]
    measure = keywords(*wanted, whole_word=whole)
    assert measured(measure(text("a 1 " * 1_000))).value == 1 / MAX_WANTED
    finding = missing(measure(text("a 1 " * 1_000_000)))
    assert (finding.fault, finding.cause) == (Fault.AUTHOR, Cause.TOO_COSTLY)
    assert "list fewer" in finding.why


def test_nul_is_in_no_keyword_that_is_a_whole_word() -> None:
    with pytest.raises(AuthorError, match="NUL"):
        keywords("a\0", whole_word=True)
    assert measured(keywords("a\0")(text("a\0"))).value == 1.0


def stands_alone(keyword: str, searched: str) -> bool:
    """The rule in its own words, however long it takes."""

    def joins(char: str) -> bool:
        return char.isalnum() or char == "_" or unicodedata.category(char).startswith("M")

    return any(
        not (start and joins(keyword[0]) and joins(searched[start - 1]))
        and not (end < len(searched) and joins(keyword[-1]) and joins(searched[end]))
        for start in range(len(searched))
        for end in [start + len(keyword)]
        if searched[start:end] == keyword
    )


@given(
    searched=st.text("ab_-. \u0301é\0", max_size=30),
    wanted=st.lists(st.text("ab_-. \u0301é", min_size=1, max_size=4).filter(str.strip), min_size=1, unique=True),
)
def test_whole_words_are_those_that_stand_alone(searched: str, wanted: list[str]) -> None:
    finding = measured(keywords(*wanted, whole_word=True, case_sensitive=True)(text(searched)))
    assert finding.details is not None
    assert finding.details["found"] == [keyword for keyword in wanted if stands_alone(keyword, searched)]


@given(
    st.text(max_size=30),
    st.lists(st.text(NO_NUL, min_size=1, max_size=4).filter(str.strip), min_size=1, max_size=4),
    st.booleans(),
)
def test_the_value_is_the_share_found(searched: str, wanted: list[str], whole: bool) -> None:
    finding = measured(keywords(*wanted, whole_word=whole)(text(searched)))
    assert finding.details is not None
    found, lost = finding.details["found"], finding.details["missing"]
    assert finding.value == len(found) / (len(found) + len(lost))
    assert all(word.casefold() in searched.casefold() or whole for word in found)
    if not whole:
        assert {word.casefold() for word in found + lost} == {word.casefold() for word in wanted}


# Patterns.


def pattern(*wanted: str, **params: Any) -> Any:
    return matches_pattern(Ask(params, wanted))


def test_patterns_come_from_the_threshold_then_params_then_input() -> None:
    work = text("AB-12", pattern="x", output_pattern="12")
    assert measured(pattern("^AB", pattern="x")(work)).value == 1.0
    assert measured(pattern(patterns=["^AB", "x"])(work)).details == {"found": ["^AB"], "missing": ["x"]}
    assert measured(pattern()(work)).value == 0.0
    assert measured(pattern()(text("AB-12", output_pattern=["12", "34"]))).value == 0.5
    assert missing(pattern()(text("AB-12"))).fault is Fault.AUTHOR


def test_full_and_ignore_case_do_what_they_say() -> None:
    assert measured(pattern("b+", full=True)(text("abb"))).value == 0.0
    assert measured(pattern("ab+", full=True)(text("abb"))).value == 1.0
    assert measured(pattern("ÄB")(text("äb"))).value == 0.0
    assert measured(pattern("ÄB", ignore_case=True)(text("äb"))).value == 1.0


def test_a_pattern_counts_characters_not_bytes() -> None:
    assert measured(pattern("^.{3}$")(text("日本語"))).value == 1.0


@pytest.mark.parametrize("bad", ["(a", "(?=a)b", r"(a)\1", "(?<!a)b", "a{5000}", "\ud800"])
def test_a_pattern_that_cannot_run_in_linear_time_is_refused(bad: str) -> None:
    with pytest.raises(AuthorError, match="pattern"):
        pattern(pattern=bad)
    finding = missing(pattern()(text("x", pattern=bad)))
    assert (finding.fault, finding.cause) == (Fault.AUTHOR, Cause.AUTHOR_ERROR)


def test_a_refusal_says_what_the_engine_lacks() -> None:
    with pytest.raises(AuthorError, match="RE2"):
        pattern(pattern="(?=a)b")


def test_a_refused_pattern_writes_nothing_to_the_terminal() -> None:
    code = (
        "from meruit.metrics.content import matches_pattern as m\n"
        "from meruit.errors import AuthorError\n"
        "from meruit.registry import Ask\n"
        "try: m(Ask({'pattern': '(?=a)'}))\n"
        "except AuthorError: pass\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_two_ways_of_naming_patterns_are_not_mixed() -> None:
    with pytest.raises(AuthorError, match="pattern and patterns"):
        pattern(pattern="a", patterns=["b"])


def test_an_overlong_pattern_is_refused() -> None:
    with pytest.raises(AuthorError, match=str(MAX_WANTED_CHARS)):
        pattern(pattern="a" * (MAX_WANTED_CHARS + 1))


def test_half_a_character_in_the_text_is_missing_not_a_crash() -> None:
    assert "half" in missing(pattern("a")(text("a\ud800"))).why


@pytest.mark.parametrize("bad", ["^(a+)+$", "^(a|a)*$", "^(a|aa)+$", "(.*a){20}$"])
def test_exponential_patterns_are_harmless(bad: str) -> None:
    start = time.process_time()
    assert measured(pattern(bad)(text("a" * 1_000_000 + "!"))).value == 0.0
    assert time.process_time() - start < 30


def test_large_patterns_on_a_large_text_cost_too_much() -> None:
    finding = missing(pattern("[^z]*a[^z]{500}b")(text("ab" * 1_000_000)))
    assert (finding.fault, finding.cause) == (Fault.AUTHOR, Cause.TOO_COSTLY)


# Fields.


def test_a_null_field_is_absent_unless_null_is_fine() -> None:
    work = Work(output={"a": None, "b": 0, "c": ""}, input={"required_fields": ["a", "b", "c", "d"]})
    assert measured(has_required_fields(Ask())(work)).details == {"found": ["b", "c"], "missing": ["a", "d"]}
    assert measured(has_required_fields(Ask({"null_ok": True}))(work)).value == 0.75
    assert measured(has_required_fields(Ask({"fields": ["a"]}, ("b",)))(work)).value == 1.0


def test_required_fields_given_as_one_text_are_one_field() -> None:
    assert measured(has_required_fields(Ask())(Work(output={"id": 1}, input={"required_fields": "id"}))).value == 1.0


# Schemas.


def schema(value: Any) -> Any:
    return matches_schema(Ask({"schema": value}))


def test_the_whole_output_is_held_against_the_schema() -> None:
    measure = schema({"properties": {"n": {"type": "integer"}}, "required": ["n"]})
    assert measure(Work(output={"n": 1})) == 1.0
    assert measure(Work(output=MappingProxyType({"n": 1}))) == 1.0
    finding = measured(measure(Work(output={"n": "1"})))
    assert finding.value == 0.0
    assert finding.details is not None
    (error,) = finding.details["errors"]
    assert error == {"path": "/n", "message": error["message"]}
    assert all(value in error["message"] for value in ('"1"', '"integer"'))


def test_params_come_before_the_input_schema() -> None:
    work = Work(output={}, input={"output_schema": {"required": ["x"]}})
    assert schema({"type": "object"})(work) == 1.0
    assert measured(matches_schema(Ask())(work)).value == 0.0


@pytest.mark.parametrize(
    "bad", [{"type": "strin"}, "x", [], {}, True, {"$ref": "http://127.0.0.1:9/"}, {"pattern": "(?=a)"}]
)
def test_a_schema_that_cannot_be_used_is_the_authors_error(bad: Any) -> None:
    with pytest.raises(AuthorError):
        schema(bad)
    finding = missing(matches_schema(Ask())(Work(output={}, input={"output_schema": bad})))
    assert (finding.fault, finding.cause) == (Fault.AUTHOR, Cause.AUTHOR_ERROR)


def test_no_schema_is_missing_and_the_authors_doing() -> None:
    for given_input in ({}, {"output_schema": None}):
        assert missing(matches_schema(Ask())(Work(input=given_input))).fault is Fault.AUTHOR


def test_an_unknown_result_is_missing() -> None:
    nested: dict[str, Any] = {}
    for _ in range(40):
        nested = {"a": nested}
    finding = missing(schema(RECURSIVE)(Work(output=nested)))
    assert (finding.fault, finding.cause) == (Fault.AUTHOR, Cause.TOO_COSTLY)


def test_a_format_is_not_checked_and_the_metric_says_so() -> None:
    assert schema({"properties": {"mail": {"format": "email"}}})(Work(output={"mail": "none"})) == 1.0
    assert "`format`" in metrics.get("matches_schema").params["schema"]
