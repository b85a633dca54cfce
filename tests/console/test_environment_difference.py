"""What changed in each system between two snapshots."""

from meruit.console import environment_difference
from meruit.console.environment_difference import MAX_ITEMS, compare_environments
from meruit.model.environment import Encoding, Item, Snapshot, SourceKind, make_item


def rows(*items: Item, trouble: str | None = None) -> Snapshot:
    return Snapshot(SourceKind.ROWS, [*items], trouble=trouble)


def test_items_are_added_removed_and_changed_by_field() -> None:
    before = {"portal": rows(make_item("claim/1", b'{"a": 1, "b": 2}'), make_item("claim/2", b"{}"))}
    after = {"portal": rows(make_item("claim/1", b'{"a": 1, "b": 3}'), make_item("claim/3", b'{"c": 1}'))}
    (found,) = compare_environments(before, after)
    assert {one.key: one.kind for one in found.items} == {
        "claim/1": "changed",
        "claim/2": "removed",
        "claim/3": "added",
    }
    changed = next(one for one in found.items if one.key == "claim/1")
    assert [piece.text.strip() for piece in changed.pieces if piece.kind == "old"] == ['"b": 2']
    assert [piece.text.strip() for piece in changed.pieces if piece.kind == "new"] == ['"b": 3']
    assert (found.same, found.change_count) == (0, 3)


def test_systems_that_changed_come_first() -> None:
    same = rows(make_item("x", b"1"))
    found = compare_environments({"a": same, "b": same}, {"a": same, "b": rows()})
    assert [(one.name, one.change_count) for one in found] == [("b", 1), ("a", 0)]


def test_messages_are_compared_segment_by_segment() -> None:
    before, after = (rows(make_item("1", content)) for content in (b"MSH|a\rPID|1", b"MSH|a\rPID|2"))
    (found,) = compare_environments({"hl7": before}, {"hl7": after})
    assert [piece.text for piece in found.items[0].pieces] == ["MSH|a", "PID|1", "PID|2"]


def test_content_that_is_not_text_or_not_kept_says_so() -> None:
    before = {"files": rows(make_item("a", b"\xff\xfe"), Item("b", "1", None, Encoding.LEFT))}
    after = {"files": rows(make_item("a", b"\xff\xfd"), Item("b", "2", None, Encoding.LEFT))}
    (found,) = compare_environments(before, after)
    assert {one.key: one.why_empty for one in found.items} == {
        "a": "not text",
        "b": "its content was too large to keep",
    }


def test_long_differences_are_cut_and_counted() -> None:
    many = rows(*(make_item(str(number), b"1") for number in range(MAX_ITEMS + 3)))
    long = rows(make_item("x", "\n".join(map(str, range(1_000))).encode()))
    found = compare_environments({"many": rows(), "long": rows()}, {"many": many, "long": long})
    assert {one.name: one.left_out for one in found} == {"many": 3, "long": 0}
    (text,) = next(one.items for one in found if one.name == "long")
    assert (len(text.pieces), text.left_out) == (environment_difference.MAX_LINES, 800)


def test_trouble_is_told_with_a_system_that_appears_or_vanishes() -> None:
    found = compare_environments({"gone": rows()}, {"new": rows(trouble="the system is down")})
    assert {one.name: one.trouble for one in found} == {"gone": "", "new": "the system is down"}
