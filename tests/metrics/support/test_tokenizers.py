"""Tokenizers: equal to sacrebleu's, and Unicode words equal to the boundaries of another implementation."""

import sys
import unicodedata
from collections.abc import Callable
from itertools import chain

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st
from sacrebleu.tokenizers.tokenizer_char import TokenizerChar
from sacrebleu.tokenizers.tokenizer_intl import TokenizerV14International
from sacrebleu.tokenizers.tokenizer_zh import TokenizerZh
from tests.sampling import examples

from meruit.metrics.support import unicode_words
from meruit.metrics.support.tokenizers import TOKENIZERS, has_unspaced_letters, letters_lost
from meruit.metrics.support.unicode_words import words_unicode

SCRIPTS = (
    "aBé1٣ß '’.,:;-_·\u0301\u200d\u200b\n\tяЖ日本、。「」ひらカタｶーสวัดีעש״हिन्दी한글½²Ⅻ€$+№…«»！？，\U0001f600\U00020000"
)
pieced = st.text(st.sampled_from(SCRIPTS), max_size=30)
# Without loose accents, apostrophes and quotes, which the peer treats by rules of its own.
SYLLABLES = [
    *"aBé1٣ß .,:;-_·\n\tяЖ日本、。「」ひらカタｶーע한글½²Ⅻ€$+№…«»！？，\U0001f600\U00020000",
    "e\u0301",
]
spoken = st.lists(st.sampled_from(SYLLABLES), max_size=30).map("".join)
texts = pieced | st.text(max_size=40)

PEERS: dict[str, Callable[[str], str]] = {
    "intl": TokenizerV14International(),  # type: ignore[no-untyped-call]
    "zh": TokenizerZh(),  # type: ignore[no-untyped-call]
    "char": TokenizerChar(),  # type: ignore[no-untyped-call]
}


def is_new(text: str) -> bool:
    """Whether a character is younger than this Python's Unicode data, so that the peer may know it otherwise."""
    return any(unicodedata.category(char) == "Cn" for char in text)


@pytest.mark.parametrize("name", sorted(PEERS))
@given(text=texts)
@example(text="5. ")
@example(text="a.5 5.a 1,000.5 (x) -5- «5» ¡a! 5€")
@example(text="[]^-\\ &&--~~||")
@example(text="中文 text, 3.5万元。ＡＢ 5-3 \u2010\u20ac\u2f90\U00020000")
@examples(60)
def test_words_are_cut_as_by_sacrebleu(name: str, text: str) -> None:
    if not is_new(text):
        assert TOKENIZERS[name].cut(text) == PEERS[name](text.rstrip()).split()


def peer_words(text: str) -> list[str]:
    pieces = regex.split(r"(?wV1)\b", unicodedata.normalize("NFC", text))
    return [piece for piece in pieces if any(unicodedata.category(char)[0] in "LN" for char in piece)]


@given(spoken)
@example("can't stop: 3.14, 1,000 a_b __ example.org")
@examples(60)
def test_unicode_words_have_the_standards_boundaries(text: str) -> None:
    assert words_unicode(text) == peer_words(text)


SAMPLED = (range(0x3400), range(0x3400, 0xA000, 499), range(0xA000, 0xAC00), range(0xAC00, 0xD800, 499))
"""Every script of the basic plane, and some ideographs and syllables of those that are alike by the thousand."""


@pytest.mark.parametrize("template", ["a{}a", "人{0}{0}"])
def test_every_letter_and_digit_is_bounded_as_the_standard_has_it(template: str) -> None:
    wrong = [
        char
        for char in map(chr, chain(*SAMPLED, range(0xF900, 0xFF9E)))
        if unicodedata.category(char) in {"Lu", "Ll", "Lt", "Lo", "Lm", "Nd"}
        and words_unicode(template.format(char)) != peer_words(template.format(char))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Иск оплачен!", ["Иск", "оплачен"]),
        ("索赔 ok", ["索", "赔", "ok"]),
        ("カタカナとひ", ["カタカナ", "と", "ひ"]),
        ("สวัสดี", ["ส", "วั", "ส", "ดี"]),
        ("안녕 세계", ["안녕", "세계"]),
        ("cafe\u0301", ["café"]),
        ("½ m² ①", ["½", "m", "²", "①"]),
        ("___ !? 😀", []),
        ("", []),
    ],
)
def test_words_of_each_script(text: str, words: list[str]) -> None:
    assert words_unicode(text) == words


@pytest.mark.parametrize("name", ["unicode", "char", "intl", "zh", "13a"])
@given(st.text(st.characters(categories=["L"]), max_size=20))
def test_only_the_tokenizer_of_rouge_loses_letters(name: str, text: str) -> None:
    composed = unicodedata.normalize("NFC", text)
    assert letters_lost(composed, TOKENIZERS[name].cut(composed)) == []


def test_lost_letters_are_listed_once() -> None:
    assert letters_lost("нет нет no", ["no"]) == ["е", "н", "т"]
    assert letters_lost("&quot;x&quot;", ["x"]) == []


def test_scripts_without_spaces_are_known() -> None:
    assert [*map(has_unspaced_letters, ["日", "カ", "ส", "я", "a", "한", "½", ""])] == [True] * 3 + [False] * 5


def test_the_memory_of_characters_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unicode_words, "MAX_KNOWN_CHARS", 3)
    monkeypatch.setattr(unicode_words, "_CLASSES", unicode_words._Classes())
    assert words_unicode("ab cd ef") == ["ab", "cd", "ef"]
    assert len(unicode_words._CLASSES) <= 3


@pytest.mark.parametrize("piece", ["a.", "1,", "_", "a\u0301", "カ_", "日", "."])
def test_no_text_makes_the_search_go_back(piece: str) -> None:
    """In quadratic time this would take hours."""
    assert len(words_unicode(piece * 50_000)) <= 50_000


def test_half_a_character_separates() -> None:
    assert words_unicode("a\ud800b") == ["a", "b"]
    assert sys.maxunicode > 0xFFFF
