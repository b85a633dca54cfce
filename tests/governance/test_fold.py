"""The canonical fold: disguised texts equal their originals, other texts do not, at a bounded cost."""

from base64 import b64encode, urlsafe_b64encode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meruit.governance.fold import (
    BANDS,
    GRAM,
    MAX_FOLDED_CHARS,
    SIGNATURE_CHARS,
    bands_of,
    canonical_text,
    decode_obvious,
    fold,
    fold_with_numbers,
    likeness,
    may_share_shingles,
    shared_shingles,
    signature_of,
)

TEXT = "The quick brown fox jumps over the lazy dog, while seven wizards brew five cups of strong tea."


@pytest.mark.parametrize(
    "seen",
    [
        "Canary-7F3A",
        "c a n a r y 7 f 3 a",
        "сanаrу–7f3а",
        "cáñàrÿ_7f3a",
        "ｃａｎａｒｙ.7f3a",
        "ca\u200bna\u2060ry 7f3a",
    ],
)
def test_what_looks_the_same_folds_to_the_same(seen: str) -> None:
    assert fold(seen) == fold("canary 7f3a")


def test_numbers_stay_apart_where_they_count() -> None:
    assert len({fold_with_numbers(f"total {number}") for number in ("1.5", "15", "-15")}) == 3
    assert fold_with_numbers("a.b-c.") == "abc"


@pytest.mark.parametrize(
    "encoded",
    [
        b64encode(TEXT.encode()).decode(),
        b64encode(TEXT.encode()).decode().rstrip("="),
        urlsafe_b64encode(TEXT.encode()).decode(),
        b64encode(b64encode(TEXT.encode())).decode(),
        TEXT.encode().hex(),
        TEXT.encode().hex(":"),
        "".join(f"%{byte:02X}" for byte in TEXT.encode()),
        "".join(f"&#{ord(char)};" for char in TEXT),
        "".join(f"\\u{ord(char):04x}" for char in TEXT),
        "".join(f"\\x{ord(char):02x}" for char in TEXT),
    ],
)
def test_obvious_encodings_are_undone(encoded: str) -> None:
    assert decode_obvious(encoded) == TEXT
    assert canonical_text(encoded) == canonical_text(TEXT)


@pytest.mark.parametrize(
    "plain", [TEXT, "", "internationalisation", "deadbeefdeadbeef00", b64encode(bytes(range(256))).decode(), "1" * 41]
)
def test_what_holds_no_readable_text_stays(plain: str) -> None:
    assert decode_obvious(plain) == plain


@given(st.text())
def test_any_text_folds_and_folding_again_changes_nothing(text: str) -> None:
    assert fold(fold(text)) == fold(text)
    assert canonical_text(text) == canonical_text(text)
    assert len(signature_of(canonical_text(text))) == SIGNATURE_CHARS


def test_a_reversed_text_is_the_same() -> None:
    assert canonical_text(TEXT[::-1]) == canonical_text(TEXT)
    assert shared_shingles(fold(TEXT), fold(TEXT[::-1])) == 1.0


def test_near_copies_have_near_signatures() -> None:
    long = " ".join(f"{TEXT} {number}" for number in range(5))
    one, same, other = (signature_of(canonical_text(text)) for text in (long, f"{long} 17", "x".join("unlike" * 90)))
    assert likeness(one, one) == 1.0
    assert likeness(one, same) > 0.95
    assert likeness(one, other) < 0.2
    assert {*bands_of(one)} & {*bands_of(same)}
    assert not {*bands_of(one)} & {*bands_of(other)}
    assert len({*bands_of(one)}) == BANDS


def test_signatures_of_other_kinds_are_not_found_together() -> None:
    assert not {*bands_of(signature_of("abc" * 40))} & {*bands_of(signature_of("abc" * 40, "v"))}
    assert likeness(signature_of("abc" * 40), signature_of("abc" * 40, "v")) == 1.0


def test_texts_of_other_lengths_are_not_compared() -> None:
    assert shared_shingles("a" * 100, "a" * 50) == 0.0
    assert shared_shingles("abc", "abd") == 0.0
    assert 0 < shared_shingles("abcdefghijklmnopqrst", "abcdefghijklmnopqrsX") < 1


@settings(max_examples=300)
@given(st.data(), st.text("ab.-1 é\u0430", min_size=1, max_size=60), st.integers(1, 120), st.integers(0, 6))
def test_a_quick_look_never_misses_shared_shingles(data: st.DataObject, word: str, times: int, changes: int) -> None:
    one = (word * times)[:5000]
    other = list(one)
    for _ in range(changes):
        other[data.draw(st.integers(0, len(other) - 1))] = data.draw(st.sampled_from(["x", "", "aa"]))
    pair = one, "".join(other)
    share = shared_shingles(*pair)
    for least in (share or 0.01, 0.5, 0.98, 1.0):
        assert may_share_shingles(*pair, least) or share < least
        assert may_share_shingles(*pair[::-1], least) or share < least
    assert may_share_shingles(one, one[::-1], 1.0) == (one == one[::-1] or len(one) >= GRAM)


def test_most_texts_are_told_apart_by_a_quick_look() -> None:
    words = TEXT.split()
    other = " ".join("unlike" if place % 4 == 0 else word for place, word in enumerate(words))
    assert not may_share_shingles(fold(TEXT), fold(other), 0.98)
    assert not may_share_shingles(fold(TEXT * 100), fold(other * 100), 0.98)


@given(st.text("aZ1.-_ |,\n" + "0" * 3))
def test_numbers_fold_the_same_without_a_pattern(text: str) -> None:
    # A letter of another script takes the general way, and changes nothing else.
    assert fold_with_numbers(text + " \u0436") == fold_with_numbers(text + " ") + "\u0436"


def test_long_and_growing_texts_are_cut() -> None:
    assert len(fold("\ufdfa" * MAX_FOLDED_CHARS)) <= MAX_FOLDED_CHARS
    assert len(decode_obvious("x" * (2 * MAX_FOLDED_CHARS))) == MAX_FOLDED_CHARS
