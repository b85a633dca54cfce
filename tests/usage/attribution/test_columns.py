"""Columns with numpy give what an oracle computes one value at a time."""

import subprocess
import sys
from array import array
from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.usage.attribution import reference_columns as oracle

from meruit.model.chat import MOST_TOKENS
from meruit.usage.attribution import columns
from meruit.usage.attribution.columns import OPEN, UNKNOWN

SPANS = st.lists(
    st.tuples(st.integers(-1, 3), st.integers(0, 40), st.integers(1, 12) | st.just(OPEN)).map(
        lambda span: (span[0], span[1], OPEN if span[2] == OPEN else span[1] + span[2])
    ),
    max_size=14,
)
STRETCH = st.sampled_from([1, 10**15])
"""With the second, an attribution key and a moment do not fit in 64 bits."""


@given(
    SPANS,
    st.lists(st.lists(st.integers(UNKNOWN, 9) | st.just(MOST_TOKENS), min_size=30, max_size=30), max_size=3),
    STRETCH,
    st.sampled_from([1, 5_000]),
)
def test_groups_are_the_transitive_closure_of_overlapping(
    spans: list[tuple[int, int, int]], counts: list[list[int]], stretch: int, key_step: int
) -> None:
    spans = [(key * key_step, start * stretch, end if end == OPEN else end * stretch) for key, start, end in spans]
    key_codes, starts, ends = (array("q", (span[part] for span in spans)) for part in range(3))
    local = [array("q", one[: len(spans)]) for one in counts]
    groups = columns.group_spans(key_codes, starts, ends, local)
    assert groups == oracle.group_spans(key_codes, starts, ends, local)
    for index in (columns.CohortIndex(groups), oracle.CohortIndex(groups)):
        assert index.group_indices(key_codes, starts) == groups.members
    together = _closure(spans)
    for one, number in enumerate(groups.members):
        same = {other for other, its in enumerate(groups.members) if its == number}
        assert together[one] == ({one} if number == UNKNOWN else same)


def _closure(spans: Sequence[tuple[int, int, int]]) -> list[set[int]]:
    found = [{number} for number in range(len(spans))]
    for _ in spans:
        for one, (key_code, start, end) in enumerate(spans):
            for other, (also, begun, ended) in enumerate(spans):
                if key_code == also and start < ended and begun < end:
                    both = found[one] | found[other]
                    for member in both:
                        found[member] = found[member] | both
    return found


@given(
    st.lists(
        st.tuples(st.integers(-1, 3), st.integers(0, 40), st.integers(UNKNOWN, 9) | st.just(MOST_TOKENS)), max_size=30
    ),
    st.lists(st.tuples(st.integers(-2, 4), st.integers(-5, 45), st.integers(-5, 45) | st.just(OPEN)), max_size=10),
    STRETCH,
    st.sampled_from([1, 5_000]),
)
def test_sums_over_spans_are_the_oracles(
    rows: list[tuple[int, int, int]], asked: list[tuple[int, int, int]], stretch: int, key_step: int
) -> None:
    rows = [(key * key_step, moment * stretch, count) for key, moment, count in rows]
    asked = [(key * key_step, start * stretch, end if end == OPEN else end * stretch) for key, start, end in asked]
    key_codes, moments, counts = (array("q", (one[part] for one in rows)) for part in range(3))
    wanted = tuple(array("q", (one[part] for one in asked)) for part in range(3))
    found = columns.SpanSums(key_codes, moments, [counts])
    expected = oracle.SpanSums(key_codes, moments, [counts])
    assert found.totals(*wanted) == expected.totals(*wanted)
    for key_code, start, end in asked:
        assert found.rows(key_code, start, end) == expected.rows(key_code, start, end)
        some = [one for one in rows if one[0] == key_code and start <= one[1] < end]
        if start <= end:
            assert found.count(key_code, start, end) == expected.count(key_code, start, end) == len(some)
        assert sorted(found.rows(key_code, start, end)) == [number for number, one in enumerate(rows) if one in some]


@given(st.lists(st.tuples(st.integers(-(10**9), 10**9), st.integers(0, 10**9) | st.just(OPEN))), st.integers(1, 10**8))
def test_windows_are_whole_buckets_and_a_guard(spans: list[tuple[int, int]], width: int) -> None:
    starts, ends = (array("q", (span[part] for span in spans)) for part in range(2))
    found = columns.windows(starts, ends, width, 7)
    assert found == oracle.windows(starts, ends, width, 7)
    for (start, end), first, last in zip(spans, *found, strict=True):
        assert first % width == 0
        assert start - first in range(width)
        assert last == OPEN if end == OPEN else last - 7 - max(start, end) in range(width)


def test_unknown_counts_make_no_difference_and_unknown_indices_take_the_other() -> None:
    some = [array("q", [1, UNKNOWN, 3, 4]), array("q", [1, 2, UNKNOWN, 4])]
    others = [array("q", [1, 1, 3, 5]), array("q", [0, 2, UNKNOWN, 4])]
    assert [*oracle.find_differences(some, others)] == [*columns.find_differences(some, others)] == [0, 3]
    indices = array("q", [3, UNKNOWN, 0, UNKNOWN])
    assert [*oracle.take(some[0], indices, others[0])] == [*columns.take(some[0], indices, others[0])] == [4, 1, 1, 5]


def test_times_and_counts_too_large_for_one_integer_are_exact() -> None:
    far = array("q", [0, 10**16, 10**16])
    key_codes = array("q", [1, 10_000, 10_000])
    huge = array("q", [MOST_TOKENS] * 3)
    sums = columns.SpanSums(key_codes, far, [huge])
    assert [*sums.totals(key_codes, far, array("q", [1, OPEN, 0]))[0]] == [MOST_TOKENS, MOST_TOKENS, 0]
    ends = array("q", [1, 10**16 + 1, 10**16 + 1])
    groups = columns.group_spans(key_codes, far, ends, [huge])
    assert ([*groups.runs], [*groups.counts[0]], [*groups.members]) == ([2], [MOST_TOKENS], [UNKNOWN, 0, 0])
    two = msgspec.structs.replace(
        groups,
        key_codes=array("q", [1, 10_000]),
        starts=array("q", [0, 10**16]),
        ends=array("q", [1, 10**16 + 1]),
    )
    assert [*columns.CohortIndex(two).group_indices(key_codes, far)] == [0, 1, 1]
    many = array("q", [MOST_TOKENS]) * 2_000
    once = array("q", [0]) * 2_000
    assert [*columns.SpanSums(once, once, [many]).totals(once[:1], once[:1], ends[:1])[0]] == [MOST_TOKENS]
    assert [*columns.group_spans(once, once, array("q", [1]) * 2_000, [many]).counts[0]] == [MOST_TOKENS]


def test_an_attribution_key_far_beyond_those_known_has_no_rows() -> None:
    key_codes, moments = array("q", [0, 1]), array("q", [0, 2**59])
    sums = columns.SpanSums(key_codes, moments, [array("q", [5, 6])])
    asked = array("q", [2**40, -(2**40), 1])
    assert [*sums.totals(asked, array("q", [0] * 3), array("q", [OPEN] * 3))[0]] == [0, 0, 6]


def test_without_numpy_the_error_names_the_extra_to_install() -> None:
    program = (
        "import sys; sys.modules['numpy'] = None\n"
        "from meruit.errors import MissingExtra\n"
        "import meruit.usage.store.due, meruit.usage.store.read, meruit.usage.meter\n"
        "try:\n    import meruit.usage.reconcile.reconciler\n"
        "except MissingExtra as missing:\n    print(missing.code, missing)\n"
    )
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert found.stdout.startswith("missing_extra ")
    assert "meruit[reconcile]" in found.stdout
