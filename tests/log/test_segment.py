"""Segments: many cases behind one entry of the log."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.log.segment import (
    MAX_CASES,
    CaseEntry,
    case_bytes,
    case_proof,
    is_in_segment,
    read_case,
    root_of,
    segment_root,
    write_case,
)


def entries(count: int) -> list[bytes]:
    return [
        case_bytes(CaseEntry(f"case {n}", 0, f"out_{n}", 1, "a", "b", "c", "d", "pass", success=True, score="1"))
        for n in range(count)
    ]


@given(st.integers(1, MAX_CASES), st.data())
def test_each_case_is_proven_by_its_own_path(count: int, data: st.DataObject) -> None:
    cases = entries(count)
    root = segment_root(cases)
    place = data.draw(st.integers(0, count - 1))
    proof = case_proof(place, cases)
    assert len(proof) <= MAX_CASES.bit_length()
    assert is_in_segment(cases[place], place, count, proof, root)
    # Another case, place, size or root is not proven by it.
    assert not is_in_segment(cases[place] + b" ", place, count, proof, root)
    assert not is_in_segment(cases[place], place, count, proof, segment_root([*cases, b"one more"]))
    if count > 1:
        other = (place + 1) % count
        assert not is_in_segment(cases[other], place, count, proof, root)
        assert not is_in_segment(cases[place], other, count, proof, root)


def test_the_order_of_cases_is_part_of_the_root() -> None:
    one, other = entries(2)
    assert segment_root([one, other]) != segment_root([other, one])


def test_a_case_reads_back_and_nothing_else_does() -> None:
    (case,) = entries(1)
    assert case_bytes(read_case(case)) == case
    for wrong in (b"{}", case[:-1] + b',"more":1}', b"[]", b""):
        with pytest.raises(msgspec.DecodeError):
            read_case(wrong)


@pytest.mark.parametrize("written", ["no hex", "AB", "ab cd"])
def test_a_root_is_read_only_as_it_is_written(written: str) -> None:
    assert root_of(written) == b""


@given(st.text(max_size=8), st.integers(0, 9), st.booleans(), st.integers(-9, 9), st.sampled_from(["1", "2/3"]))
def test_an_entry_written_by_hand_is_the_encoders(
    case: str, repeat: int, success: bool, money: int, score: str
) -> None:
    hashes = ("a" * 64, "b" * 64, "c" * 64, "d" * 64)
    entry = CaseEntry(case, repeat, "out_1", 2, *hashes, "pass", success, score, money, -money)
    texts = msgspec.json.encode(case), msgspec.json.encode(success)
    assert write_case(texts[0], repeat, "out_1", 2, hashes, "pass", texts[1], score, money, -money) == case_bytes(entry)
