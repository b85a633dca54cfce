"""A segment of versions gives back to the byte what went in, whole or erased, and refuses what is damaged."""

import zlib
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.outcomes.making import ENGINE, criteria_of

from meruit.errors import StoreError
from meruit.log.commitment import SALT_BYTES, commitment
from meruit.log.segment import MAX_CASES, VersionEntry, read_version, segment_root, version_bytes, version_form
from meruit.outcomes.segment import (
    OpenVersions,
    PackedVersion,
    PackedVersions,
    VersionContent,
    open_versions,
    pack,
    pack_version,
)

RESULT = ENGINE.verify_sync("c", {"reference": "the cat sat"}, {"text": "the cat"}, criteria_of(), {})
HASHES = (sha256(b"i").hexdigest(), sha256(b"o").hexdigest(), sha256(b"m").hexdigest())
NAMES = st.text(max_size=12)
TIMES = st.integers(0, 2**32).map(lambda second: datetime.fromtimestamp(second, UTC))


@st.composite
def contents(draw: st.DrawFn) -> VersionContent:
    """A version of any kind: with a template or not, first or later, erased or not."""
    contract = draw(NAMES)
    result = msgspec.structs.replace(
        RESULT,
        # A result may be about another id than its row says, and is kept whole then.
        contract_id=contract if draw(st.booleans()) else draw(NAMES),
        verified_at=draw(TIMES),
        output_digest=draw(st.sampled_from([RESULT.output_digest, None, HASHES[1]])),
    ).to_json()
    first = draw(st.booleans())
    content = VersionContent(
        outcome=f"out_{draw(st.integers(0, 99))}",
        contract=contract,
        version=1 if first else draw(st.integers(2, 9)),
        verdict="partial",
        success=draw(st.booleans()),
        score=draw(st.sampled_from(["0", "1", "2/3"])),
        bonus_micros=draw(st.integers(0, 9)),
        penalty_micros=draw(st.integers(0, 9)),
        result=result,
        salt=draw(st.binary(min_size=SALT_BYTES, max_size=SALT_BYTES)),
        evidence_index=None if first else draw(st.integers(0, 99)),
        evidence=HASHES if first else None,
    )
    return content.erase() if draw(st.booleans()) else content


@given(st.lists(contents(), min_size=1, max_size=5))
def test_what_goes_in_comes_out(several: list[VersionContent]) -> None:
    draft = pack([pack_version(one) for one in several])
    opened = open_versions(draft.blob)
    assert opened.contents() == several
    assert [opened.result(place) for place in range(len(several))] == [one.result for one in several]
    assert draft.versions == len(several)
    assert draft.root == segment_root([version_bytes(one.entry()) for one in several])
    for place, one in enumerate(several):
        found = opened.split(place)
        if isinstance(found, tuple):
            number, parts = found
            assert parts.fill(opened.templates[number]) == one.result
        else:
            assert found == one.result


@given(contents())
def test_an_erased_version_keeps_its_hash_and_nothing_else(content: VersionContent) -> None:
    erased = content.erase()
    assert erased.entry() == content.entry()
    assert erased.erase() == erased
    assert (erased.result, erased.salt) == (None, b"")
    assert content.result is None or content.entry().result == commitment(content.salt, content.result)


@given(NAMES, st.integers(2, 9), st.booleans(), st.integers(-9, 9), st.integers(0, 99))
def test_an_entry_by_its_form_is_the_encoder_s(
    contract: str, version: int, success: bool, money: int, index: int
) -> None:
    entry = VersionEntry("out_1", contract, version, HASHES[0], "pass", success, "1/3", money, 7, evidence_index=index)
    form = version_form("pass", success, "1/3", money, 7)
    written = form % (msgspec.json.encode(contract), index, b"out_1", HASHES[0].encode(), version)
    assert written == version_bytes(entry)
    assert read_version(written) == entry


def test_results_that_are_alike_share_one_template() -> None:
    several = [_content(f"out_{number}") for number in range(50)]
    opened = open_versions(pack([pack_version(one) for one in several]).blob)
    assert len(opened.templates) == 1
    assert opened.contents() == several


@pytest.mark.parametrize("count", [0, MAX_CASES + 1])
def test_a_segment_has_a_bounded_number_of_versions(count: int) -> None:
    one = PackedVersion(None, b"", b"", b"")
    with pytest.raises(ValueError, match="1 to 512"):
        pack([one] * count)


def test_a_damaged_blob_is_refused() -> None:
    blob = pack([pack_version(_content("out_1"))]).blob
    tail = blob[-(SALT_BYTES + 96) :]
    for broken in (blob[:20], blob[:-1], b"{}", zlib.compress(b"{}\n[]")):
        with pytest.raises(StoreError):
            open_versions(broken)
    for lines in (b"[]\n[]", b'[]\n[5,"o","c",2,1,"t","pass",true,"1",0,0]'):
        opened = open_versions(zlib.compress(lines) + tail)
        with pytest.raises(StoreError):
            opened.content(0)
        with pytest.raises(StoreError):
            opened.split(0)
    with pytest.raises(StoreError):
        open_versions(blob).result(1)


@given(st.lists(contents(), min_size=1, max_size=6), st.data())
def test_some_versions_are_packed_as_if_alone(several: list[VersionContent], data: st.DataObject) -> None:
    whole = PackedVersions()
    for one in several:
        whole.add(pack_version(one))
    places = data.draw(st.lists(st.sampled_from(range(len(several))), min_size=1, unique=True))
    alone = pack([pack_version(several[place]) for place in places])
    # A template that only others need may say what was erased.
    assert whole.pick(places).draft() == alone
    assert open_versions(alone.blob).contents() == [several[place] for place in places]


@pytest.mark.parametrize("text", [b"[", b"{}", b"[0]", b"[]"])
def test_lines_that_cannot_be_read_together_are_refused(text: bytes) -> None:
    opened = open_versions(pack([pack_version(_content("out_1"))]).blob)
    assert [line.outcome for line in opened.quick_lines] == ["out_1"]
    twice = b"%b,%b" % (opened.lines[0], opened.lines[0])
    for damaged in (text, twice):
        with pytest.raises(StoreError):
            len(OpenVersions(replace(opened.blob, text=damaged)).quick_lines)


@pytest.mark.parametrize("known", ['"2026-11-01T00:00:00Z"', '["2026-11-01T00:00:00Z","x"]', "[]", "1"])
def test_a_line_whose_numbers_are_missing_is_refused(known: str) -> None:
    opened = open_versions(pack([pack_version(_content("out_1"))]).blob)
    fields = msgspec.json.decode(opened.lines[0], type=list[msgspec.Raw])
    fields[5] = msgspec.Raw(known.encode())
    damaged = OpenVersions(replace(opened.blob, text=msgspec.json.encode(fields)))
    with pytest.raises(StoreError):
        damaged.result(0)


def _content(outcome: str) -> VersionContent:
    result = msgspec.structs.replace(RESULT, contract_id=outcome, output_digest=sha256(outcome.encode()).hexdigest())
    return VersionContent(
        outcome, outcome, 2, "pass", True, "1", 0, 0, result=result.to_json(), salt=b"s" * 16, evidence_index=3
    )
