"""Words and shapes for values."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.console.shape import (
    MAX_CHILDREN,
    MAX_NODES,
    MAX_SHOWN,
    JsonNode,
    age,
    count_places,
    exact,
    find_zone,
    json_tree,
    line_difference,
    main_text,
    plural,
    readable,
    short_id,
    shorten,
    show_bytes,
    show_times_in,
    show_units,
    text_difference,
    tone,
    word,
)

NOW = datetime(2026, 3, 20, 9, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (59, "59 s"), (60, "1 min"), (3600, "1 h"), (86_400, "24 h"), (172_800, "2 d"), (-5, "0 s")],
)
def test_ages_are_in_their_largest_unit(seconds: int, said: str) -> None:
    assert age(NOW - timedelta(seconds=seconds), NOW) == said


def test_statuses_have_a_tone_and_a_word() -> None:
    assert [tone(one) for one in ("pass", "inconclusive", "not_met", "strange")] == ["pass", "open", "fail", ""]
    assert [word(one) for one in ("not_met", "no_such_thing")] == ["not met", "no such thing"]
    assert (plural(1, "case"), plural(2_000, "case"), plural(2, "try", "tries")) == ("1 case", "2,000 cases", "2 tries")
    assert [show_bytes(size) for size in (0, 1023, 1024, 3_500_000, 5 << 30)] == [
        *("0 B", "1,023 B", "1.0 KB", "3.3 MB", "5.0 GB"),
    ]
    assert [show_units(one) for one in (100_000, -68_000, 1_234_567_890_000, 0)] == [
        *("0.10", "−0.068", "1,234,567.89", "0.00"),
    ]
    assert (count_places([100_000, -68_000]), count_places([]), show_units(100_000, 3)) == (3, 2, "0.100")
    # Ids begin with their time: two of one minute differ at their ends.
    assert short_id("out_06608ed0877c3d57fcfde5a7bb0dcd0c42") == "out_0660…d0c42"


@given(st.text(max_size=80), st.text(max_size=80))
def test_a_difference_holds_both_texts(old: str, new: str) -> None:
    pieces = text_difference(old, new)
    assert "".join(one.text for one in pieces if one.kind != "new") == old
    assert "".join(one.text for one in pieces if one.kind != "old") == new


def test_a_difference_is_made_of_words() -> None:
    found = [(one.kind, one.text) for one in text_difference("the cat sat", "the dog sat")]
    assert found == [("same", "the "), ("old", "cat"), ("new", "dog"), ("same", " sat")]


def test_long_texts_are_compared_by_lines() -> None:
    old, new = "\n".join(f"l {n}" for n in range(5_000)), "\n".join(f"l {n}" for n in range(1, 5_000))
    assert [one.text for one in text_difference(old, new) if one.kind == "old"] == ["l 0\n"]


def test_a_very_long_text_is_shown_in_part() -> None:
    long = "x" * (2 * MAX_SHOWN)
    assert shorten(long[:MAX_SHOWN]) == long[:MAX_SHOWN]
    for pieces in (text_difference(long, long), line_difference(long, long)):
        assert sum(len(one.text) for one in pieces) < MAX_SHOWN + 100
        assert f"{MAX_SHOWN:,} more" in pieces[-1].text
    tree = json_tree({"rows": [long] * 50})
    assert sum(len(child.text) for child in tree.children[0].children) < MAX_SHOWN + 500


def test_lines_are_compared_one_by_one() -> None:
    assert [(one.kind, one.text) for one in line_difference("a\nb", "a\nc")] == [
        ("same", "a"),
        ("old", "b"),
        ("new", "c"),
    ]


def test_a_tree_marks_decisive_paths_and_opens_to_them() -> None:
    deep = {"a": {"b": {"c": {"d": 1}}}, "list": [1, {"x": "y"}]}
    tree = json_tree(deep, "output", {"output.a.b.c.d": [("fail", "total")]})
    c = tree.children[0].children[0].children[0]
    assert c.is_open
    assert c.children[0].marks == (("fail", "total"),)
    assert tree.children[1].children[1].path == "output.list[1]"
    assert not json_tree({"a": {"b": {"c": {"d": 1}}}}).children[0].children[0].is_open


def test_a_huge_document_is_shown_in_part() -> None:
    tree = json_tree({"rows": [{"n": n} for n in range(10_000)]})

    def count(node: JsonNode) -> int:
        return 1 + sum(count(child) for child in node.children)

    assert count(tree) <= MAX_NODES + 1
    assert tree.children[0].left_out == 10_000 - len(tree.children[0].children)


def test_the_text_of_a_payload_is_found() -> None:
    assert main_text({"text": "hello", "lang": "en"}) == "hello"
    assert main_text({"other": "hello"}) == "hello"
    assert main_text("hello") == "hello"
    assert main_text({"a": "b", "c": "d"}) is None
    assert main_text([1]) is None


def test_times_are_shown_in_the_zone_that_is_chosen() -> None:
    moment = datetime(2026, 1, 5, 22, 30, tzinfo=UTC)
    for name, shown in (("Asia/Tokyo", "2026-01-06 07:30:00 JST"), ("nonsense", "2026-01-05 22:30:00 UTC")):
        show_times_in(find_zone(name))
        assert exact(moment) == shown
    for name in ("", "../../etc/passwd", "/etc/localtime", "Europe/" + "x" * 100, "a\x00b"):
        assert find_zone(name) is UTC
    show_times_in(UTC)


def test_a_moment_inside_evidence_is_readable() -> None:
    assert readable("2026-10-20T20:06:20.074606+00:00") == "2026-10-20 20:06:20 UTC"
    assert readable("2026-10-20T99:06:20Z") == "2026-10-20T99:06:20Z"
    assert readable("soon") == "soon"


def test_a_tree_of_a_long_list_reads_only_what_it_shows() -> None:
    class Long(list[int]):
        """A list of which the beginning is read."""

        def __iter__(self) -> Iterator[int]:
            yield from range(MAX_CHILDREN + 1)
            raise AssertionError("the rest is not shown")

    found = json_tree(Long(range(1_000_000)))
    assert (len(found.children), found.left_out, found.text) == (MAX_CHILDREN, 1_000_000 - MAX_CHILDREN, "1,000,000")
