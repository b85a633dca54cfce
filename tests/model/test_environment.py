"""The world before and after: kept to the byte, and not kept twice."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.model.environment import (
    Encoding,
    Item,
    Snapshot,
    SourceKind,
    as_work_part,
    compact_state,
    environment_in,
    make_item,
    restore_state,
    too_large_item,
)

KEYS = st.sampled_from(["a/1", "a/2", "b", "c"])
ITEMS = st.builds(
    lambda key, content, version, facts: make_item(key, content, version=version, facts=facts),
    KEYS,
    st.binary(max_size=6) | st.sampled_from([b"", b"same", b"\xff"]),
    st.none() | st.sampled_from(["1", "2"]),
    st.none() | st.dictionaries(st.sampled_from(["size", "at"]), st.integers(0, 2) | st.text(max_size=2)),
) | st.builds(lambda key: Item(key, "large", None, Encoding.LEFT, {"size": 9}), KEYS)
SNAPSHOTS = st.builds(
    lambda kind, items, trouble: Snapshot(kind, items, trouble=trouble),
    st.sampled_from(SourceKind),
    st.lists(ITEMS, max_size=5, unique_by=lambda one: one.key),
    st.none() | st.just("down"),
)
WORLDS = st.dictionaries(st.sampled_from(["ehr", "drop"]), SNAPSHOTS)


@given(WORLDS, WORLDS)
def test_what_was_compacted_is_restored(before: Any, after: Any) -> None:
    small = compact_state(before, after)
    assert restore_state(before, small) == after
    assert len(msgspec.json.encode(small)) <= len(msgspec.json.encode(after)) + 12 * sum(
        len(one.items) for one in after.values()
    )
    # A record holds it as JSON and gives it back.
    kept = msgspec.json.decode(msgspec.json.encode(as_work_part(small)))
    assert restore_state(before, environment_in(kept)) == after


@given(WORLDS)
def test_an_unchanged_state_stores_no_bodies(world: Any) -> None:
    small = compact_state(world, world)
    assert all(one.body is None for found in small.values() for one in found.items)
    assert restore_state(world, small) == world
    assert compact_state(world, small) == small


def test_a_large_state_with_few_changes_stays_small() -> None:
    before = {"ehr": Snapshot(SourceKind.FHIR, [make_item(f"Patient/{number}", b"x" * 2_000) for number in range(500)])}
    changed = [make_item("Patient/7", b"y" * 2_000), *before["ehr"].items[:7], *before["ehr"].items[8:]]
    small = compact_state(before, {"ehr": Snapshot(SourceKind.FHIR, changed)})
    assert len(msgspec.json.encode(before)) > 1_000_000
    assert len(msgspec.json.encode(small)) < 150_000


@given(st.binary())
def test_content_is_kept_to_the_byte(content: bytes) -> None:
    one = make_item("a", content)
    assert one.content() == content
    assert Item.from_json(one.to_json()) == one
    assert make_item("a", content).version == one.version


@given(st.binary(), st.binary())
def test_the_version_differs_where_the_content_does(one: bytes, other: bytes) -> None:
    assert (make_item("a", one).version == make_item("a", other).version) is (one == other)
    assert make_item("a", one, version="7").version == "7"


def test_an_item_that_refers_to_nothing_loses_its_body() -> None:
    lost = {"ehr": Snapshot(SourceKind.FHIR, [Item("Patient/1", "2", None, Encoding.BEFORE)])}
    for before in ({}, {"ehr": Snapshot(SourceKind.FHIR, [make_item("Patient/1", b"{}", version="1")])}):
        (found,) = restore_state(before, lost)["ehr"].items
        assert (found.body, found.encoding, found.content()) == (None, Encoding.LOST, b"")


def test_what_is_too_large_to_keep_says_how_large_it_is_and_may_be() -> None:
    one = too_large_item("big.pdf", "v1", size=9, limit=8, facts={"modified": "2026-03-06T10:00:00Z"})
    assert (one.body, one.encoding, one.content()) == (None, Encoding.LEFT, b"")
    assert one.facts == {"modified": "2026-03-06T10:00:00Z", "size": 9, "limit": 8}
    assert too_large_item("big.pdf", "v1", size=9, limit=8).facts == {"size": 9, "limit": 8}


def test_work_without_a_state_has_none() -> None:
    assert environment_in({}) == environment_in({"world": None}) == {}


@pytest.mark.parametrize(
    "world",
    [
        0,
        False,
        "",
        [],
        {"a": None},
        {"a": {}},
        {"a": {"kind": "cellar"}},
        {"a": {"kind": "fhir", "items": [{"key": 1}]}},
    ],
)
def test_an_invalid_state_is_refused(world: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        environment_in({"world": world})


def test_a_manifest_is_key_to_version() -> None:
    found = Snapshot(SourceKind.ROWS, [make_item("a", b"1", version="x"), make_item("b", b"2", version="y")])
    assert found.manifest() == {"a": "x", "b": "y"}
