"""The blob of a segment: whole, or refused; what was erased stays provable."""

import zlib
from datetime import UTC, datetime
from hashlib import sha256

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.errors import StoreError
from meruit.evaluations.segment import CaseContent, OpenSegment, entries_of, open_segment, pack, payload_of, unpack
from meruit.judge.plan import Trait, compile_plan
from meruit.judge.verdict import Circumstances, conclude
from meruit.log.segment import MAX_CASES, segment_root
from meruit.model.criterion import SuccessCriteria

JSON = st.dictionaries(st.text(max_size=5), st.text(max_size=5) | st.integers() | st.none(), max_size=3)

PLAN = compile_plan(
    SuccessCriteria.model_validate(
        {"criteria": [{"metric": "m", "metric_type": "numeric", "comparison": "gte", "threshold": 0.5}]}
    ),
    lambda _name: Trait(),
)


def content(case: str, work: dict[str, object] | None = None) -> CaseContent:
    raw = msgspec.Raw(msgspec.json.encode({"text": "a\nb"} if work is None else work))
    return CaseContent(
        case,
        0,
        f"out_{case}",
        1,
        raw,
        raw,
        raw,
        msgspec.Raw(b'{"verdict":"pass"}'),
        "0f" * 64,
        "pass",
        True,
        "1",
    )


@given(st.lists(JSON, min_size=1, max_size=10))
def test_cases_read_back_as_they_were(works: list[dict[str, object]]) -> None:
    cases = [content(str(number), work) for number, work in enumerate(works)]
    found = unpack(pack(cases))
    assert entries_of(found) == entries_of(cases)
    assert [payload_of(one.input) for one in found] == works


def test_results_that_are_alike_are_kept_once_and_read_back_to_the_byte() -> None:
    cases = []
    for number in range(50):
        work = msgspec.Raw(msgspec.json.encode({"n": number}))
        digest = sha256(bytes(work)).hexdigest()
        about = Circumstances(f"out_{number}", datetime(2026, 1, 1, 0, 0, number, tzinfo=UTC), *(digest,) * 3)
        # Of another case: kept as it is.
        about = msgspec.structs.replace(about, contract_id="other") if number == 7 else about
        result = msgspec.Raw(conclude(PLAN, [0.1 if number % 2 else 0.9], about).to_json())
        cases.append(CaseContent(str(number), 0, f"out_{number}", 1, work, work, work, result, "0f" * 64))
    blob = pack(cases)
    assert [bytes(one.result) for one in unpack(blob)] == [bytes(one.result) for one in cases]
    assert zlib.decompressobj().decompress(blob).count(b"criterion_results") == 3


def test_a_template_that_is_not_there_is_refused() -> None:
    lines = zlib.decompressobj().decompress(pack([content("a")]))
    with pytest.raises(StoreError):
        unpack(zlib.compress(lines.replace(b"[-1,", b"[3,")) + bytes(64))
    with pytest.raises(StoreError):
        unpack(zlib.compress(lines))


def test_an_erased_case_leaves_the_root_as_it_was() -> None:
    cases = [content("a"), content("b")]
    erased = unpack(pack([cases[0].erase(), cases[1]]))
    assert segment_root(entries_of(erased)) == segment_root(entries_of(cases))
    assert payload_of(erased[0].input) is None
    assert erased[0].salts is None
    assert erased[0].erase() == erased[0]


def test_a_damaged_blob_is_refused() -> None:
    blob = pack([content("a")])
    for wrong in (b"", blob[:-3], blob[:5] + b"\0" + blob[6:], zlib.compress(b"{}"), zlib.compress(b"no json")):
        with pytest.raises(StoreError):
            unpack(wrong)


def test_a_case_that_lacks_a_part_is_refused() -> None:
    with pytest.raises(StoreError):
        CaseContent("a", 0, "out_a", 1).entry()


@pytest.mark.parametrize("count", [0, MAX_CASES + 1])
def test_a_segment_has_one_to_512_cases(count: int) -> None:
    with pytest.raises(ValueError, match=str(count)):
        pack([content("a")] * count)


def test_a_damaged_line_is_refused_alone() -> None:
    opened = open_segment(pack([content("a"), content("b")]))
    damaged = OpenSegment([opened.lines[0], b"{"], opened.templates, opened.salts)
    assert damaged.case(0).case == "a"
    with pytest.raises(StoreError):
        damaged.case(1)
