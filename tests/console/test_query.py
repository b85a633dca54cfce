"""Filters, columns and order in the URL."""

from collections.abc import Sequence
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.console.query import Choice, Filter, Query
from meruit.console.table import SORTED_ROWS, Arranged, Column, Table

HERE = Query("/cases", (("verdict", "fail"), ("tag", "a b"), ("before", "7")))
COLUMNS = (
    Column("name", "Name", sortable=True),
    Column("score", "Score", numeric=True, sortable=True),
    Column("extra", "Extra", usual=False),
)


def test_a_query_writes_itself_as_an_address() -> None:
    assert str(HERE) == "/cases?verdict=fail&tag=a+b&before=7"
    assert str(Query("/cases")) == "/cases"


def test_another_filter_begins_at_the_first_page() -> None:
    assert str(HERE.choose("verdict", "pass")) == "/cases?tag=a+b&verdict=pass"
    assert str(HERE.toggle("verdict", "pass")) == "/cases?verdict=fail&tag=a+b&verdict=pass"
    assert str(HERE.toggle("verdict", "fail")) == "/cases?tag=a+b"
    assert str(HERE.choose("verdict", "")) == "/cases?tag=a+b"
    assert str(HERE.turn("before", 3)) == "/cases?verdict=fail&tag=a+b&before=3"
    assert str(HERE.keep("tag")) == "/cases?tag=a+b"
    assert str(HERE.at("/other")) == "/other?verdict=fail&tag=a+b&before=7"


def test_values_are_read_by_name() -> None:
    several = HERE.toggle("verdict", "pass")
    assert (several.get("verdict"), several.all("verdict")) == ("pass", ("fail", "pass"))
    assert HERE.get("nothing", "else") == "else"


@pytest.mark.parametrize(("text", "number"), [("12", 12), ("", None), ("-1", None), ("٣", None), ("9" * 20, None)])
def test_only_plain_digits_are_a_number(text: str, number: int | None) -> None:
    assert Query("/", (("n", text),) if text else ()).number("n") == number


def test_columns_are_chosen_in_the_address() -> None:
    usual = Table.of(Query("/"), "Cases", COLUMNS, "-score")
    assert [column.key for column in usual.shown] == ["name", "score"]
    assert usual.column_link(COLUMNS[2]) == "/?columns=name%2Cscore%2Cextra"
    chosen = Table.of(Query("/", (("columns", "extra,unknown"),)), "Cases", COLUMNS)
    assert [column.key for column in chosen.shown] == ["name", "extra"]
    assert chosen.has("extra")
    assert not chosen.has("score")


def test_a_second_click_turns_the_order() -> None:
    usual = Table.of(Query("/"), "Cases", COLUMNS, "-score")
    assert [usual.aria_sort(column) for column in COLUMNS[:2]] == ["none", "descending"]
    assert usual.sort_link(COLUMNS[1]) == "/?sort=score"
    assert usual.sort_link(COLUMNS[0]) == "/?sort=name"
    turned = Table.of(Query("/", (("sort", "score"),)), "Cases", COLUMNS)
    assert turned.aria_sort(COLUMNS[1]) == "ascending"
    unknown = Table.of(Query("/", (("sort", "extra"),)), "Cases", COLUMNS, "name")
    assert unknown.sort == "name"


def test_a_file_is_the_same_list() -> None:
    table = Table.of(Query("/", (("verdict", "fail"),)), "Cases", COLUMNS)
    assert table.file_link("csv") == "/?verdict=fail&format=csv"
    assert table.file is None
    assert Table.of(Query("/", (("format", "xlsx"),)), "Cases", COLUMNS).file == "xlsx"
    assert Table.of(Query("/", (("format", "nonsense"),)), "Cases", COLUMNS).file is None


def test_counted_values_are_ordered_by_number() -> None:
    made = Filter.of_counts("tag", "Tag", {"b": 2, "a": 2, "c": 9, "": 4})
    assert made.choices == [Choice("c", "c", 9), Choice("a", "a", 2), Choice("b", "b", 2)]


def test_rows_are_sorted_as_the_reader_chose_and_unknown_ones_come_last() -> None:
    rows = [("b", 2), ("a", None), ("c", 1)]
    order = {"name": lambda row: row[0], "score": lambda row: row[1]}

    def names(sort: str) -> str:
        asked = (("sort", sort),) if sort else ()
        return "".join(name for name, _ in Table.of(Query("/", asked), "Rows", COLUMNS).sort_rows(rows, order))

    assert [names(one) for one in ("", "name", "-name", "score", "-score", "unknown")] == [
        *("bac", "abc", "cba", "cba", "bca", "bac"),
    ]


ROWS = [*range(60)]
BY_SIZE = {"size": lambda one: -one}


def arrange(address: str, rows: Sequence[int] = ROWS, total: int | None = None) -> Arranged[int]:
    path, _, asked = address.partition("?")
    table = Table.of(
        Query(path, tuple(parse_qsl(asked))), "Rows", [Column("name", "Name"), Column("size", "Size", sortable=True)]
    )
    following = Query(path, (("before", "40"),)) if len(rows) > 20 else None
    return table.arrange(rows, BY_SIZE, key=lambda one: one, size=20, following=following, total=total)


@given(st.permutations(ROWS), st.booleans())
def test_pages_of_a_sorted_list_hold_every_row_once_and_in_order(rows: list[int], down: bool) -> None:
    address, seen = f"/things?sort={'-' if down else ''}size", list[int]()
    while address:
        found = arrange(address, rows)
        seen += found.rows
        address = "" if found.following is None else str(found.following)
    assert seen == sorted(ROWS, reverse=not down)


def test_a_new_row_moves_no_page_of_a_sorted_list() -> None:
    first = arrange("/things?sort=size")
    assert arrange(str(first.following), [*ROWS, 99]).rows == [*range(39, 19, -1)]


def test_a_list_that_is_too_long_is_not_sorted_and_says_so() -> None:
    long, size = [*range(SORTED_ROWS + 1)], Column("size", "Size", sortable=True)
    found = arrange("/things?sort=size", long)
    assert (found.rows, found.table.sorts(size), found.table.is_sorted) == (long[:20], False, False)
    assert [arrange("/things", ROWS, total).table.sorts(size) for total in (None, 60, SORTED_ROWS + 1)] == [
        *(False, True, False)
    ]
    # All that there is stands on the page.
    assert arrange("/things", ROWS[:20]).table.sorts(size)
    assert not arrange("/things?before=7", ROWS[:20]).table.sorts(size)
