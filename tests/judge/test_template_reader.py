"""A result that fills a known template is read by a few searches, and gives what taking it apart gives."""

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.judge.test_bulk import EVIDENCE, TEXTS, plan

from meruit.judge.result_template import (
    FilledGaps,
    ResultGaps,
    ResultTemplate,
    TemplateReader,
    split_result,
    take_numbers,
    write_numbers,
)
from meruit.judge.verdict import Circumstances, conclude
from meruit.model.evidence import Evidence

NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
DIGESTS = ("0" * 64, "ab" * 32, "9f" * 32)
NUMBERS = st.sampled_from([0, 1, 0.0, -0.0, 1.0, 0.5, 1e300, -7])


def write(evidence: list[Evidence], name: str = "c", *, one_slot: bool = False) -> bytes:
    versions = {"engine": "1", "input_digest": "2"}
    circumstances = Circumstances(name, NOW, *DIGESTS, versions)
    return conclude(plan("verified_at", one_slot=one_slot), evidence, circumstances).to_json()


def take_apart(written: bytes) -> tuple[ResultTemplate, ResultGaps, bytes]:
    found = split_result(written)
    assert found is not None
    template, numbers = take_numbers(found[0])
    return template, found[1], b",".join(write_numbers(numbers))


def id_of(name: str) -> bytes:
    return msgspec.json.encode(name)[1:-1]


@given(st.lists(NUMBERS | EVIDENCE, min_size=2, max_size=2), st.text(max_size=8) | TEXTS, st.booleans())
def test_a_result_is_read_as_it_is_taken_apart(evidence: list[Evidence], name: str, one_slot: bool) -> None:
    written = write(evidence, name, one_slot=one_slot)
    template, _, numbers = take_apart(written)
    assert TemplateReader(template).read(written, id_of(name)) == FilledGaps(numbers, "".join(DIGESTS).encode())


@given(
    st.lists(NUMBERS | EVIDENCE, min_size=2, max_size=2), st.lists(NUMBERS | EVIDENCE, min_size=2, max_size=2), TEXTS
)
def test_another_result_is_read_by_the_template_that_it_fills(
    one: list[Evidence], other: list[Evidence], name: str
) -> None:
    template, _, _ = take_apart(write(one))
    written = write(other, name)
    own, gaps, numbers = take_apart(written)
    found = TemplateReader(template).read(written, id_of(name))
    assert (found is not None) >= (own == template)
    if found is not None:
        # Whatever stands for numbers, the whole is what was read.
        assert template.fill(gaps, found.numbers.split(b",") if found.numbers else ()) == written
    if own == template:
        assert found == FilledGaps(numbers, "".join(DIGESTS).encode())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"contract_id"', b'{"other_id"'),
        (b'"contract_id":"c"', b'"contract_id":"d"'),
        (b'"success":', b'"succeeded":'),
        (b'"verdict":', b'"decision":'),
        (b'"value":0.25', b'"value":0.125'),
        (b'"value":0.25', b'"value":0,25'),
        (b":0.25", b":0,25"),
        (b'"2026-', b'"20"6-'),
        (b'"0000', b'"000'),
        (b'"abab', b'"ab'),
        (b'"9f9f', b'"9f9f9f'),
        (b'"engine":"1"', b'"engine":"2"'),
    ],
)
def test_what_does_not_fill_the_template_is_not_read(before: bytes, after: bytes) -> None:
    written = write([0.25, 0.75])
    reader = TemplateReader(take_apart(written)[0])
    assert reader.read(written, b"c") is not None
    assert before in written
    assert reader.read(written.replace(before, after), b"c") is None
    for end in (written[:-1], written + b" "):
        assert reader.read(end, b"c") is None
