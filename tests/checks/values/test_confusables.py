"""Look-alike and invisible characters: they hide nothing from who forbids, and win nothing for who is asked."""

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checks.questions import Sending, held
from tests.checks.shelves import scored, snapshot, work

from meruit.checks.matching.matchers import Dialect, matcher
from meruit.checks.values.confusables import LETTERS, MAX_DEPTH, is_plain, unmask, unmask_value
from meruit.model.environment import SourceKind, as_work_part
from meruit.model.evidence import Checked
from meruit.model.work import Work

ANYTHING = st.text(st.characters(exclude_categories=()))
INVISIBLE = ["\u00ad", "\u034f", "\u200b", "\u200d", "\u202e", "\u2060", "\ufe0f", "\U000e0061", "\U000e0100", "\x00"]
SECRETS = ["s\u0435cret", "se\u200bcret", "s\u00adecret", "ѕесrеt", "\uff53ecret", "sec\ufe0fret", "s\u0332ecret"]
"""Each reads `secret`."""


@given(ANYTHING)
def test_what_was_unmasked_holds_no_more_masks(text: str) -> None:
    seen = unmask(text)
    assert unmask(seen) == seen
    assert all(unicodedata.category(one) != "Cf" for one in seen)
    assert not set(seen) & LETTERS.keys()


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_plain_text_is_what_it_is(text: str) -> None:
    assert is_plain(text)
    assert unmask(text) == text


@given(st.text("secrt xyz", max_size=12), st.lists(st.tuples(st.integers(0, 12), st.sampled_from(INVISIBLE))))
def test_invisible_characters_change_nothing(text: str, hidden: list[tuple[int, str]]) -> None:
    masked = text
    for place, one in hidden:
        masked = masked[:place] + one + masked[place:]
    assert unmask(masked) == text


@pytest.mark.parametrize("text", ["é", "Ünal", "naïve", "中文", "שָׁלוֹם", "हिन्दी", "0O1l", "жд", "5 < 6"])
def test_other_letters_accents_and_digits_stay(text: str) -> None:
    assert unmask(text) == unicodedata.normalize("NFKC", text)


def test_blanks_that_are_letters_part_words() -> None:
    assert unmask("you\u3164have\uffa0been\u2800seen") == "you have been seen"


@pytest.mark.parametrize("written", SECRETS)
@pytest.mark.parametrize(
    "forbidding",
    [
        {"not": {"contains": "secret"}},
        {"not": {"says": "secret"}},
        {"not": {"matches": ".*secret.*"}},
        {"not": "secret"},
        {"not_in": ["secret", "other"]},
        {"none": {"contains": "secret"}},
        {"none": "secret"},
        {"all": {"not": "secret"}},
        {"exists": True, "not": "secret"},
        {"not": {"one_of": ["secret", {"says": "other"}]}},
        {"not": {"all_of": [{"contains": "sec"}, {"contains": "ret"}]}},
        {"not": {"any": "secret"}},
        {"not": {"set": ["secret"]}},
        {"not": {"coding": "secret"}},
        {"not": {"not": {"not": "secret"}}},
    ],
    ids=str,
)
def test_a_negation_is_not_passed_by_who_writes_the_word_otherwise(forbidding: dict[str, Any], written: str) -> None:
    judge = matcher(forbidding).judge
    assert judge(("secret",)) is not None
    assert judge((written,)) is not None
    assert judge(("harmless",)) is None


def test_the_reason_names_look_alike_characters() -> None:
    assert "look-alike" in str(matcher({"not": "secret"}).judge(("s\u0435cret",)))
    assert matcher({"not": "secret"}).judge(("secret",)) == "is 'secret'"


@pytest.mark.parametrize("written", SECRETS)
@pytest.mark.parametrize(
    "asking",
    ["secret", {"contains": "secret"}, {"matches": "secret"}, {"in": ["secret"]}, {"not": {"not": "secret"}}],
    ids=str,
)
def test_a_look_alike_word_does_not_match(asking: Any, written: str) -> None:
    assert matcher(asking).judge((written,)) is not None
    assert matcher(asking).judge(("secret",)) is None


def test_what_is_forbidden_may_be_written_in_other_letters() -> None:
    for dialect in Dialect:
        judge = matcher({"not": {"contains": "секрет"}}, dialect).judge
        assert judge(("это секрет",)) is not None
        assert judge(("это се\u200bкрет",)) is not None
        assert judge(("это ceкpeт",)) is not None
        assert judge(("это ответ",)) is None
    # A pattern that would be another one without its masks is kept as it is.
    assert matcher({"not": {"matches": "a（b"}}).judge(("a（b",)) is not None


def test_concepts_are_seen_through_too() -> None:
    for masked in ({"text": "pen\u200bicillin"}, {"coding": [{"display": "реnicillin"}]}):
        assert matcher({"not": {"says": "penicillin"}}).judge((masked,)) is not None
    assert matcher({"not": {"coding": "s|c"}}).judge(({"coding": [{"system": "s", "code": "\u0441"}]},)) is not None


@given(
    st.recursive(st.integers() | ANYTHING, lambda inner: st.lists(inner) | st.dictionaries(ANYTHING, inner)),
    st.sampled_from([{"says": "secret"}, {"contains": "a"}, {"equals": ["a"]}, {"in": ["a", None]}, {"matches": "a*"}]),
)
def test_a_negation_holds_of_less_than_before_and_never_of_more(value: Any, denied: Any) -> None:
    inner, outer = matcher(denied), matcher({"not": denied})
    if inner.judge((value,)) is None:
        assert outer.judge((value,)) is not None
        assert inner.seems((value,)) is None


def test_values_beyond_the_depth_limit_stay() -> None:
    deep: Any = "s\u0435cret"
    for _ in range(MAX_DEPTH + 2):
        deep = [deep]
    assert unmask_value(deep) == deep


# Guards


@pytest.mark.parametrize("written", [*SECRETS, "secret"])
def test_a_guard_counts_what_looks_like_what_it_forbids(written: str) -> None:
    shelf = {"book/1": json.dumps({"text": f"a {written}"}), "book/2": json.dumps({"text": "tale"}, ensure_ascii=False)}
    for where in ({"text": {"contains": "secret"}}, {"text": {"says": "secret"}}):
        assert scored(work({}, shelf), where=where, count=0)[0] == "0"
        assert scored(work({}, shelf | {"book/3": '{"text": "secret"}'}), where=where, count=1)[0] == "0"
    assert scored(work({}, shelf), where={"text": {"says": "novel"}}, count=0)[0] == "1"


def test_a_guard_lists_look_alike_items() -> None:
    shelf = {"book/1": '{"text": "s\\u0435cret"}'}
    score, evidence = scored(work({}, shelf), where={"text": "secret"}, count=0)
    assert (score, evidence["selected"]) == ("0", [])
    assert [one["key"] for one in evidence["lookalikes"]] == ["book/1"]
    assert evidence["why"].startswith("0 found, and 1 more ")


def test_a_look_alike_item_is_not_selected() -> None:
    shelf = {"book/1": '{"text": "s\\u0435cret", "n": 1}'}
    assert scored(work({}, shelf), where={"text": "secret"})[0] == "0"
    assert scored(work({}, shelf), where={"text": "secret"}, count=1)[0] == "0"
    # Where all are looked at, one that hides from being looked at does not hold.
    both = shelf | {"book/2": '{"text": "secret", "n": 1}'}
    assert scored(work({}, both), where={"text": "secret"}, match="all", fields={"n": 1})[0] == "1/2"
    assert scored(work({}, both), where={"text": "secret"}, fields={"n": 1})[0] == "1"


def test_a_look_alike_word_does_not_satisfy_a_guard() -> None:
    asked = {"where": {"text": {"not": {"contains": "sorry"}}}, "count": 0}
    assert scored(work({}, {"book/1": '{"text": "sorry"}'}), **asked)[0] == "1"
    assert scored(work({}, {"book/1": '{"text": "s\\u043erry"}'}), **asked)[0] == "0"


def test_only_what_is_looked_for_at_all_can_look_like_it() -> None:
    shelf = {"map/1": '{"text": "s\\u0435cret"}'}
    assert scored(work({}, shelf), book="book", where={"text": "secret"}, count=0)[0] == "1"
    assert scored(work(shelf, shelf), where={"text": "secret"}, changed="created", count=0)[0] == "1"


def test_rows_are_seen_through_by_what_they_are_correlated_by() -> None:
    row = {"note/1": json.dumps({"to": "\u0430nn", "text": "x"}, ensure_ascii=False)}
    asked = {"correlate_by": {"resource": "note", "to": "ann"}, "count": 0}
    before, after = ({"p": snapshot(one)} for one in ({}, row))
    finding = held("portal-state-match", Work(input=as_work_part(before), output=as_work_part(after)), asked)
    assert isinstance(finding, Checked)
    assert finding.score == "0"


def test_messages_are_seen_through_too() -> None:
    sending = Sending("hl7-structural", "outbound", SourceKind.HL7)
    sent = "MSH|^~\\&|A||B||2026||ORU^R01|1|P|2.5\rNTE|1||s\u0435cret\r".encode()
    for asked in ({"where": {"NTE-3": "secret"}, "count": 0}, {"fields": {"NTE-3": {"not": {"contains": "secret"}}}}):
        assert sending.found(sending.work(sent), **asked)[0] == "0"
