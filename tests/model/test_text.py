"""Normal forms at bounded cost; what of a text is visible, and its words."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.model import text as texts
from meruit.model.text import (
    CHUNK_CHARS,
    GRAPHEME_JOINER,
    MAX_EXPANDED_CHARS,
    MAX_MARKS,
    UnicodeForm,
    chunks_of,
    count_words,
    distinct_characters,
    normalize_unicode,
    strip_invisible,
)

FORMS: list[UnicodeForm] = ["NFC", "NFD", "NFKC", "NFKD"]
PIECES = st.text(max_size=40) | st.sampled_from(
    ["e\u0301", "\u1112\u1161\u11ab", "ﷺ", "ｶﾞ", "ক\u09be", "ﬁ", "a\u0316\u0301"]
)


@pytest.mark.parametrize("form", FORMS)
@given(st.lists(PIECES, max_size=20), st.integers(0, 60))
def test_the_normal_form_is_unicodes(form: UnicodeForm, pieces: list[str], offset: int) -> None:
    text = "x" * offset + "".join(pieces)
    # Long enough to be cut, at another place for each offset.
    long = text * (2 * CHUNK_CHARS // max(1, len(text)) + 1)
    for one in (text, long):
        assert normalize_unicode(form, one) == unicodedata.normalize(form, one)


@given(st.lists(PIECES, max_size=20))
def test_chunks_are_the_text(pieces: list[str]) -> None:
    text = "".join(pieces) * 300
    assert "".join(chunks_of(text)) == text


@pytest.mark.parametrize("form", FORMS)
def test_accents_without_end_are_sorted_thirty_at_a_time(form: UnicodeForm) -> None:
    """Sorted all at once, these would take minutes."""
    pairs = 200_000
    normal = normalize_unicode(form, "a" + "\u0301\u0316" * pairs)
    marks = normal.split(GRAPHEME_JOINER)
    assert len(marks) == -(-2 * pairs // MAX_MARKS)
    assert all(len(run) <= MAX_MARKS + 1 for run in marks)


def test_a_text_that_would_grow_without_end_does_not() -> None:
    assert normalize_unicode("NFKC", "\ufdfa" * 10) == unicodedata.normalize("NFKC", "\ufdfa") * 10
    assert len(normalize_unicode("NFKC", "\ufdfa" * MAX_EXPANDED_CHARS)) == MAX_EXPANDED_CHARS


def test_a_text_is_not_cut_for_one_long_character() -> None:
    text = "\ufdfa" + "\u00e9" * 400_000
    assert normalize_unicode("NFKC", text) == unicodedata.normalize("NFKC", text)


@given(st.text(alphabet=st.sampled_from("ab \n\u00a0\u200b\u0301\x07e\u00e9"), max_size=40), st.integers(1, 9))
def test_a_text_in_slices_is_the_same_text(text: str, size: int) -> None:
    whole = strip_invisible(text)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(texts, "SLICE_CHARS", size)
        assert count_words(text) == len(text.split())
        assert distinct_characters(text) == {*text}
        assert strip_invisible(text) == whole


ASCII = st.text(st.characters(max_codepoint=127), max_size=40)


@given(ASCII | st.text(max_size=40))
def test_words_are_counted_as_split_makes_them(text: str) -> None:
    assert count_words(text) == len(text.split())


@given(ASCII)
def test_of_ascii_only_controls_that_are_not_spaces_are_invisible(text: str) -> None:
    assert strip_invisible(text) == "".join(char for char in text if char.isprintable() or char.isspace())


@given(ASCII)
def test_invisible_characters_are_the_same_in_any_company(text: str) -> None:
    # The letter at the end sends the text the other way.
    assert strip_invisible(text + "\u00e9") == strip_invisible(text) + "\u00e9"
