"""The tree: RFC 6962's own numbers, and nothing but the true proof is ever accepted."""

from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meruit.log.merkle import (
    EMPTY_ROOT,
    MAX_SIZE,
    TILE_HEIGHT,
    Frontier,
    Subtree,
    consistency_proof,
    inclusion_proof,
    is_consistent,
    is_included,
    leaf_hash,
    new_full_tiles,
    node_hash,
    range_root,
)

EMPTY = Frontier(0, ())
LOG = tuple(leaf_hash(b"entry %d" % number) for number in range(600))
"""A log without two equal entries."""


def naive_root(hashes: Sequence[bytes]) -> bytes:
    """The tree as RFC 6962 defines it, word for word."""
    if not hashes:
        return sha256(b"").digest()
    if len(hashes) == 1:
        return hashes[0]
    split = 1
    while split * 2 < len(hashes):
        split *= 2
    return sha256(b"\x01" + naive_root(hashes[:split]) + naive_root(hashes[split:])).digest()


def over(hashes: Sequence[bytes]) -> Subtree:
    """Subtrees of a log in memory, which insists on being asked for complete ones only."""

    @cache
    def subtree(start: int, level: int) -> bytes:
        assert start % 2**level == 0
        assert start + 2**level <= len(hashes)
        return naive_root(hashes[start : start + 2**level])

    return subtree


SUBTREE = over(LOG)


@cache
def root(size: int) -> bytes:
    return naive_root(LOG[:size])


sizes = st.integers(0, 70) | st.integers(0, len(LOG))


@st.composite
def places(draw: st.DrawFn) -> tuple[int, int]:
    """An entry, and the size of a log that holds it."""
    size = draw(sizes.filter(bool))
    return draw(st.integers(0, size - 1)), size


growths = st.tuples(sizes, sizes).map(lambda pair: (min(pair), max(pair)))


@st.composite
def spoilt(draw: st.DrawFn, proof: list[bytes]) -> list[bytes]:
    """The same proof after one small accident."""
    at = draw(st.integers(0, len(proof)))
    stranger = draw(st.sampled_from([*LOG[:8], *proof]))
    accidents = [[*proof[:at], stranger, *proof[at:]]]
    if at < len(proof):
        byte = draw(st.integers(0, 31))
        turned = bytearray(proof[at])
        turned[byte] ^= draw(st.integers(1, 255))
        accidents += [
            [*proof[:at], *proof[at + 1 :]],
            [*proof[:at], bytes(turned), *proof[at + 1 :]],
            [*proof[:at], proof[at][:-1], *proof[at + 1 :]],
            [*proof[:at], proof[at] + b"\x00", *proof[at + 1 :]],
            [*proof[:at], b"", *proof[at + 1 :]],
            proof[::-1],
        ]
    return draw(st.sampled_from(accidents).filter(lambda accident: accident != proof))


# Growing.


@given(sizes, st.lists(st.integers(0, len(LOG)), max_size=8))
def test_a_log_has_one_root_however_it_grew(size: int, cuts: list[int]) -> None:
    frontier = EMPTY
    for start, end in pairwise(sorted({0, size, *(cut for cut in cuts if cut <= size)})):
        frontier = frontier.extend(LOG[start:end])
        assert frontier.size == end
        assert len(frontier.peaks) == end.bit_count()
        assert frontier.root() == root(end)
    assert frontier == EMPTY.extend(LOG[:size])


def test_growing_by_nothing_changes_nothing() -> None:
    assert EMPTY.extend([]) == EMPTY
    assert EMPTY.root() == EMPTY_ROOT == root(0)
    frontier = EMPTY.extend(LOG[:7])
    assert frontier.extend([]) == frontier


def test_the_frontier_before_growing_is_left_as_it_was() -> None:
    before = EMPTY.extend(LOG[:5])
    hashes = [*LOG[5:8]]
    before.extend(hashes)
    assert before == EMPTY.extend(LOG[:5])
    assert hashes == [*LOG[5:8]]


@given(sizes)
def test_the_peaks_are_the_complete_subtrees_from_large_to_small(size: int) -> None:
    expected, start = [], 0
    for level in reversed(range(size.bit_length())):
        if size >> level & 1:
            expected.append(SUBTREE(start, level))
            start += 2**level
    assert list(EMPTY.extend(LOG[:size]).peaks) == expected


@given(sizes)
def test_a_frontier_is_read_back_as_it_was_written(size: int) -> None:
    frontier = EMPTY.extend(LOG[:size])
    again = Frontier.from_bytes(size, frontier.to_bytes())
    assert again == frontier
    assert again.extend(LOG[size:]).root() == root(len(LOG))


@pytest.mark.parametrize(
    ("size", "data"),
    [(0, bytes(32)), (1, b""), (1, bytes(31)), (1, bytes(33)), (3, bytes(32)), (4, bytes(64)), (2**63, bytes(32))],
)
def test_peaks_that_do_not_fit_the_size_are_refused(size: int, data: bytes) -> None:
    with pytest.raises(ValueError, match="entries"):
        Frontier.from_bytes(size, data)


def test_no_log_is_shorter_than_empty() -> None:
    with pytest.raises(ValueError, match="-1"):
        Frontier.from_bytes(-1, bytes(32))


@pytest.mark.parametrize("hashes", [[b""], [b"an entry, not its hash"], [LOG[0], LOG[1] + b"\x00"]])
def test_a_log_grows_by_hashes_only(hashes: list[bytes]) -> None:
    with pytest.raises(ValueError, match="leaf_hash"):
        EMPTY.extend(hashes)


# Parts of the tree.


@given(sizes)
def test_the_root_of_the_whole_range_is_the_root(size: int) -> None:
    assert range_root(0, size, SUBTREE) == root(size)


@given(places())
def test_a_range_has_the_root_of_its_leaves_alone(place: tuple[int, int]) -> None:
    start, end = place
    aligned = start & -(1 << (end - start - 1).bit_length())
    end -= start - aligned
    assert range_root(aligned, end, SUBTREE) == naive_root(LOG[aligned:end])


@pytest.mark.parametrize(("start", "end"), [(-1, 1), (2, 1), (1, 3), (2, 5), (4, 9), (-4, -2)])
def test_a_range_outside_the_tree_is_refused(start: int, end: int) -> None:
    with pytest.raises(ValueError, match=str(end)):
        range_root(start, end, SUBTREE)


# Inclusion.


@given(places())
@example((0, 1))
@example((len(LOG) - 1, len(LOG)))
def test_every_entry_is_proven(place: tuple[int, int]) -> None:
    index, size = place
    proof = inclusion_proof(index, size, SUBTREE)
    assert len(proof) <= (size - 1).bit_length()
    assert is_included(LOG[index], index, size, proof, root(size))


@given(places(), places())
def test_a_proof_holds_for_its_own_entry_and_log_only(place: tuple[int, int], claimed: tuple[int, int]) -> None:
    index, size = claimed
    proof = inclusion_proof(*place, SUBTREE)
    true = proof == inclusion_proof(*claimed, SUBTREE)
    assert is_included(LOG[index], index, size, proof, root(size)) is true
    assert is_included(LOG[place[0]], index, size, proof, root(size)) is (true and index == place[0])


@given(places(), st.data())
def test_a_spoilt_proof_proves_nothing(place: tuple[int, int], data: st.DataObject) -> None:
    index, size = place
    proof = data.draw(spoilt(inclusion_proof(index, size, SUBTREE)))
    assert not is_included(LOG[index], index, size, proof, root(size))


@given(places(), st.integers(0, 31), st.integers(1, 255))
def test_an_entry_or_a_root_with_one_changed_byte_is_not_proven(place: tuple[int, int], byte: int, turn: int) -> None:
    index, size = place
    proof = inclusion_proof(index, size, SUBTREE)

    def turned(content: bytes) -> bytes:
        return content[:byte] + bytes([content[byte] ^ turn]) + content[byte + 1 :]

    assert not is_included(turned(LOG[index]), index, size, proof, root(size))
    assert not is_included(LOG[index], index, size, proof, turned(root(size)))


anything = st.integers() | st.integers(-2, 70) | st.sampled_from([MAX_SIZE, MAX_SIZE + 1, 2**5000])
hashes = st.binary(max_size=40) | st.sampled_from([*LOG[:4], EMPTY_ROOT])


@given(hashes, anything, anything, st.lists(hashes, max_size=80), hashes)
def test_garbage_is_never_included_and_never_raises(
    leaf: bytes, index: int, size: int, proof: list[bytes], top: bytes
) -> None:
    assert is_included(leaf, index, size, proof, top) is (
        (index, size, proof) == (0, 1, []) and leaf == top and len(leaf) == 32
    )


@pytest.mark.parametrize(("index", "size"), [(-1, 1), (1, 1), (0, 0), (0, -1), (5, 3)])
def test_what_the_log_does_not_hold_has_no_proof(index: int, size: int) -> None:
    with pytest.raises(ValueError, match=f"{size} .*{index}"):
        inclusion_proof(index, size, SUBTREE)
    assert not is_included(LOG[0], index, size, [], LOG[0])


def test_the_largest_log_can_be_checked_and_a_larger_one_cannot() -> None:
    path = [bytes([level]) * 32 for level in range(63)]
    top = LOG[0]
    for sibling in path:
        top = node_hash(top, sibling)
    assert is_included(LOG[0], 0, MAX_SIZE, path, top)
    assert not is_included(LOG[0], 0, MAX_SIZE + 1, path, top)
    assert is_consistent(0, MAX_SIZE, [], EMPTY_ROOT, top)
    assert not is_consistent(0, MAX_SIZE + 1, [], EMPTY_ROOT, top)
    assert Frontier.from_bytes(MAX_SIZE, bytes(32 * 63)).size == MAX_SIZE


def test_hashes_cannot_trade_bytes_with_their_neighbours() -> None:
    short, rest = LOG[0][:31], LOG[0][31:] + LOG[1]
    assert node_hash(short, rest) == root(2)
    assert not is_included(short, 0, 2, [rest], root(2))
    assert not is_included(short, 0, 2, [LOG[1]], node_hash(short, LOG[1]))
    assert not is_included(LOG[1], 1, 2, [short], node_hash(short, LOG[1]))
    assert not is_consistent(1, 2, [rest], short, root(2))
    assert not is_consistent(1, 2, [LOG[1]], short, node_hash(short, LOG[1]))
    assert not is_consistent(1, 2, [short], LOG[1], node_hash(LOG[1], short))
    assert not is_consistent(0, 2, [], EMPTY_ROOT, short)


# Consistency.


@given(growths)
@example((0, 0))
@example((0, 5))
@example((4, 8))
@example((6, 7))
def test_every_growth_is_proven(growth: tuple[int, int]) -> None:
    old, new = growth
    proof = consistency_proof(old, new, SUBTREE)
    assert len(proof) <= new.bit_length() + 1
    assert is_consistent(old, new, proof, root(old), root(new))


@given(growths, growths)
def test_a_proof_holds_for_its_own_growth_only(growth: tuple[int, int], claimed: tuple[int, int]) -> None:
    old, new = claimed
    proof = consistency_proof(*growth, SUBTREE)
    true = proof == consistency_proof(*claimed, SUBTREE)
    assert is_consistent(old, new, proof, root(old), root(new)) is true


@given(growths, st.data())
def test_a_spoilt_proof_shows_no_growth(growth: tuple[int, int], data: st.DataObject) -> None:
    old, new = growth
    proof = data.draw(spoilt(consistency_proof(old, new, SUBTREE)))
    assert not is_consistent(old, new, proof, root(old), root(new))


@given(growths.filter(lambda growth: growth[0] > 0), st.data())
def test_a_log_that_changed_its_past_is_found_out(growth: tuple[int, int], data: st.DataObject) -> None:
    old, new = growth
    at = data.draw(st.integers(0, old - 1))
    rewritten = [*LOG[:at], leaf_hash(b"another entry"), *LOG[at + 1 : new]]
    for source in (over(rewritten), SUBTREE):
        proof = consistency_proof(old, new, source)
        assert not is_consistent(old, new, proof, root(old), naive_root(rewritten))


@given(growths, st.integers(0, 31), st.integers(1, 255))
def test_no_root_with_one_changed_byte_is_consistent(growth: tuple[int, int], byte: int, turn: int) -> None:
    old, new = growth
    proof = consistency_proof(old, new, SUBTREE)

    def turned(content: bytes) -> bytes:
        return content[:byte] + bytes([content[byte] ^ turn]) + content[byte + 1 :]

    assert not is_consistent(old, new, proof, turned(root(old)), root(new))
    # Nothing can be wrong with what grew out of nothing.
    assert is_consistent(old, new, proof, root(old), turned(root(new))) is (old == 0 < new)


@given(anything, anything, st.lists(hashes, max_size=80), hashes, hashes)
def test_garbage_is_never_consistent_and_never_raises(
    old: int, new: int, proof: list[bytes], old_root: bytes, new_root: bytes
) -> None:
    trivial = not proof and 0 <= old <= new <= MAX_SIZE and len(old_root) == len(new_root) == 32
    since_empty = old == 0 and old_root == EMPTY_ROOT and (new > 0 or new_root == EMPTY_ROOT)
    unchanged = 0 < old == new and old_root == new_root
    assert is_consistent(old, new, proof, old_root, new_root) is (trivial and (since_empty or unchanged))


@pytest.mark.parametrize(("old", "new"), [(-1, 1), (2, 1), (1, 0), (-2, -1)])
def test_no_log_shrinks(old: int, new: int) -> None:
    with pytest.raises(ValueError, match=f"{new} .*{old}"):
        consistency_proof(old, new, SUBTREE)
    assert not is_consistent(old, new, [], EMPTY_ROOT, EMPTY_ROOT)


def test_a_growth_from_something_needs_a_proof() -> None:
    assert not is_consistent(1, 2, [], root(1), root(2))
    assert not is_consistent(3, 5, [], root(3), root(5))


def test_a_growth_from_nothing_needs_none_and_takes_none() -> None:
    assert is_consistent(0, 3, [], EMPTY_ROOT, root(3))
    assert not is_consistent(0, 3, [root(3)], EMPTY_ROOT, root(3))
    assert not is_consistent(0, 3, [], root(1), root(3))
    assert not is_consistent(0, 0, [], root(1), root(1))


# What is stored of the tree.


def finished_by_counting(old: int, new: int) -> list[tuple[int, int]]:
    covered = [(level, 256**level) for level in range(1, 9)]
    return [
        (level, index)
        for level, length in covered
        for index in range(new // length)
        if old < (index + 1) * length <= new
    ]


@given(st.integers(0, 200_000), st.integers(0, 2_000) | st.integers(0, 200_000))
@example(255, 1)
@example(256, 0)
@example(65_535, 1)
@example(0, 65_536)
def test_tiles_are_finished_as_counting_would_have_it(old: int, more: int) -> None:
    assert list(new_full_tiles(old, old + more)) == finished_by_counting(old, old + more)


def test_a_huge_log_costs_no_more_than_what_it_finishes() -> None:
    huge = 256**7
    assert list(new_full_tiles(huge - 1, huge)) == [(level, huge // 256**level - 1) for level in range(1, 8)]
    assert list(new_full_tiles(huge, huge + 255)) == []


@pytest.mark.parametrize(("old", "new"), [(-1, 0), (2, 1)])
def test_tiles_of_a_log_that_shrinks_are_refused(old: int, new: int) -> None:
    with pytest.raises(ValueError, match=f"{old}|{new}"):
        next(new_full_tiles(old, new))


def test_a_finished_tile_is_a_complete_subtree() -> None:
    for level, index in new_full_tiles(0, len(LOG)):
        length = 2 ** (TILE_HEIGHT * level)
        hashes = LOG[index * length : (index + 1) * length]
        assert EMPTY.extend(hashes).peaks == (SUBTREE(index * length, TILE_HEIGHT * level),)


# The numbers of certificate transparency.

ENTRIES = ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
ROOTS = (
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)
KNOWN = tuple(leaf_hash(bytes.fromhex(entry)) for entry in ENTRIES)

INCLUSION_PATHS = {
    (0, 1): (),
    (0, 8): (
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ),
    (5, 8): (
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ),
    (2, 3): ("fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",),
    (1, 5): (
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ),
}
CONSISTENCY_PATHS = {
    (1, 1): (),
    (1, 8): (
        "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
    ),
    (6, 8): (
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ),
    (2, 5): (
        "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
    ),
    (6, 7): (
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "b08693ec2e721597130641e8211e7eedccb4c26413963eee6c1e2ed16ffb1a5f",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ),
}


def test_the_leaves_are_the_published_ones() -> None:
    assert leaf_hash(b"").hex() == ROOTS[1]
    assert leaf_hash(b"\x00").hex() == CONSISTENCY_PATHS[1, 8][0]


@pytest.mark.parametrize("size", range(9))
def test_the_roots_are_the_published_ones(size: int) -> None:
    assert EMPTY.extend(KNOWN[:size]).root().hex() == ROOTS[size]
    assert range_root(0, size, over(KNOWN)).hex() == ROOTS[size]


@pytest.mark.parametrize(("index", "size"), INCLUSION_PATHS)
def test_the_inclusion_paths_are_the_published_ones(index: int, size: int) -> None:
    proof = inclusion_proof(index, size, over(KNOWN))
    assert tuple(each.hex() for each in proof) == INCLUSION_PATHS[index, size]
    assert is_included(KNOWN[index], index, size, proof, bytes.fromhex(ROOTS[size]))


@pytest.mark.parametrize(("old", "new"), CONSISTENCY_PATHS)
def test_the_consistency_paths_are_the_published_ones(old: int, new: int) -> None:
    proof = consistency_proof(old, new, over(KNOWN))
    assert tuple(each.hex() for each in proof) == CONSISTENCY_PATHS[old, new]
    assert is_consistent(old, new, proof, bytes.fromhex(ROOTS[old]), bytes.fromhex(ROOTS[new]))


def test_an_entry_and_a_node_are_never_the_same_hash() -> None:
    assert leaf_hash(LOG[0] + LOG[1]) != node_hash(LOG[0], LOG[1])
    assert node_hash(LOG[0], LOG[1]) == root(2) != node_hash(LOG[1], LOG[0])
