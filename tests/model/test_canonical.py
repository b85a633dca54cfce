"""One byte string for one meaning."""

import contextlib
import math
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meruit.model import canonical as writing
from meruit.model.canonical import (
    IN_SLICES,
    LOCKED_BYTES,
    _sort_in_slices,
    canonical,
    digest,
    from_canonical,
    hex_digest,
    payload_bytes,
    payload_digest,
    strict_bytes,
    write_and_digest_all,
    write_large,
)

scalars = (
    st.none()
    | st.booleans()
    | st.text()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)


@pytest.mark.parametrize("other", [2000.0, Decimal("2E+3"), Decimal("2000.000")])
def test_one_number_has_one_form(other: Any) -> None:
    assert canonical(2000) == canonical(other) == b"2000"


@pytest.mark.parametrize(
    ("number", "written"),
    [
        (0.9, "9E-1"),
        (Decimal("0.90"), "9E-1"),
        (-1.5, "-15E-1"),
        (10**30, "1E30"),
        (Decimal("1.000000000000000000000000000001"), None),
    ],
)
def test_a_number_keeps_every_digit(number: Any, written: str | None) -> None:
    expected = written or "1000000000000000000000000000001E-30"
    assert canonical(number) == f'{{"$decimal":"{expected}"}}'.encode()


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), Decimal("NaN"), {1, 2}, b"1", object()])
def test_what_cannot_be_written_is_refused(odd: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        canonical({"a": [odd]})


def test_a_key_like_ours_is_not_a_number() -> None:
    assert digest({"$decimal": "5E-1"}) != digest(0.5)
    assert digest({"$$decimal": "5E-1"}) != digest({"$decimal": "5E-1"})


@given(values)
def test_the_order_of_keys_does_not_matter(value: Any) -> None:
    try:
        encoded = canonical({"b": value, "a": 1})
    except TypeError:
        return  # Half characters cannot be written at all.
    assert encoded == canonical({"a": 1, "b": value})


@given(values)
def test_a_payload_has_a_digest_unless_it_cannot_be_written(value: Any) -> None:
    assert payload_digest({"b": value, "a": None}) == payload_digest({"a": None, "b": value})


@pytest.mark.parametrize(
    ("payload", "has_one"),
    [
        ({"a": None, "b": [1.5, "x", {"c": 2}]}, True),
        ({"a": float("nan")}, False),
        ({"a": [{"b": (None, float("inf"))}]}, False),
        ({"a": 10**30}, True),
        ({"a": 10**30, "b": float("nan")}, False),
        ({"a": object()}, False),
        ({"a": "\ud800"}, False),
        ({1: 2}, False),
        ({"a": [{1.5: None}]}, False),
        ({"a": datetime(2026, 1, 1, tzinfo=UTC)}, False),
    ],
)
def test_only_json_has_a_digest(payload: Any, has_one: bool) -> None:
    assert (payload_digest(payload) is not None) is has_one


@given(values)
def test_what_was_written_can_be_read_back(value: Any) -> None:
    try:
        bytes_of_it = canonical(value)
    except TypeError:
        # Half a surrogate pair is no text that could be kept.
        return
    # A float stands for its shortest text, so the same bytes are the same value.
    assert canonical(from_canonical(bytes_of_it)) == bytes_of_it


@pytest.mark.parametrize(
    "other",
    [
        b'{"$other": 1}',
        b'{"$decimal": 5}',
        b'{"$decimal": "five"}',
        b'{"a": {"$": 1}}',
        b"not json",
        b'{"$decimal": "NaN"}',
    ],
)
def test_what_canonical_never_writes_is_not_read(other: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_canonical(other)


@pytest.mark.parametrize("key", ["$", "$ref", "$$", "$decimal"])
def test_a_key_like_ours_is_read_back(key: str) -> None:
    assert from_canonical(canonical({key: "x", "other": [{key: 1.5}]})) == {key: "x", "other": [{key: 1.5}]}


@pytest.mark.parametrize("size", [0, 1, 2_047, 2_048, 4_094, 5_000, 65_536, 65_537])
def test_a_digest_does_not_depend_on_how_much_is_hashed_at_once(size: int) -> None:
    content = bytes(number % 251 for number in range(size))
    assert hex_digest(content) == sha256(content).hexdigest()


TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=2), inner, max_size=9),
    max_leaves=60,
)


@given(TREES, st.sampled_from([1, 2, 3, 7, 20]))
# Integers beyond 64 bits have a writer of their own.
@example({"b": [2**64, 1.5, {"a": None}], "a": {"é": -(2**70), "": []}, "c": 3}, 1)
@example([2**64, math.nan], 1)
def test_slices_are_the_same_bytes(value: Any, values: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        whole = payload_bytes(value)
        for name in ("_FAST", "_EXACT"):
            patched.setattr(writing, name, getattr(writing, name)._replace(most=values))
        token = IN_SLICES.set(True)
        try:
            assert payload_bytes(value) == whole
            assert payload_digest(value) == (None if whole is None else sha256(whole).hexdigest())
        finally:
            IN_SLICES.reset(token)


PARTS = [{}, {"a": 1}, {"a": None}, {"a": math.nan}, {"a": 10**30}, {"a": object()}, {"a": "x" * LOCKED_BYTES}, []]


@given(st.tuples(*[st.sampled_from(PARTS)] * 3), st.booleans())
@example(({}, {"a": "x" * LOCKED_BYTES}, {"a": math.nan}), False)
@example(({}, {"a": "x" * LOCKED_BYTES}, {"a": None}), False)
def test_three_payloads_are_digested_as_each_alone(parts: tuple[Any, Any, Any], in_slices: bool) -> None:
    token = IN_SLICES.set(in_slices)
    try:
        written, digests = write_and_digest_all(*parts)
        assert digests == tuple(map(payload_digest, parts))
        for part, whole in zip(parts, written, strict=True):
            expected = None
            with contextlib.suppress(TypeError):
                expected = strict_bytes(part)
            assert whole == expected
    finally:
        IN_SLICES.reset(token)


def test_many_keys_are_sorted_as_the_writer_sorts_them() -> None:
    many = {f"{number * 7919 % 40_000:x}\u00e9{chr(0x1F600)}" * (number % 3 + 1): number for number in range(40_000)}
    assert write_large({"a": many, "b": [[]] * 40_000}) == payload_bytes({"a": many, "b": [[]] * 40_000})


@pytest.mark.parametrize(
    "odd", [{1: [0, 0, 0]}, {1: 2, 3: 4, 5: 6}, {1: 1, "a": 2, None: 3}, [0, 0, object()], [[{0, 1}], 0, 0, 0]]
)
def test_slices_refuse_what_the_writer_refuses(odd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_FAST", writing._FAST._replace(most=2))
    with pytest.raises(TypeError):
        write_large(odd)


class _Unlucky(str):
    """A key that no sample takes."""

    __slots__ = ()

    def __hash__(self) -> int:
        return 1


def test_keys_that_no_sample_divides_are_sorted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "SLICE_VALUES", 10)
    keys = [_Unlucky(number) for number in range(200)]
    assert _sort_in_slices([*keys]) == sorted(map(str, range(200)))


@given(values, st.integers(1, 5))
def test_canonical_slices_are_the_same_bytes(value: Any, most: int) -> None:
    whole = canonical(value)
    token = IN_SLICES.set(True)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(writing, "_CANONICAL", writing._CANONICAL._replace(most=most))
            assert canonical(value) == whole
    finally:
        IN_SLICES.reset(token)
