"""Filters, columns and order in the URL."""

from urllib.parse import parse_qsl

import pytest

from meruit.console.query import Choice, Filter, Query
from meruit.console.table import Column, Table
from meruit.store.database import MAX_PAGE
from meruit.store.sorting import MAX_SORTED_PAGE, ListOrder, SortedPage

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


def test_the_order_of_a_list_comes_from_its_address() -> None:
    columns = [Column("name", "Name"), Column("size", "Size", sortable=True)]
    tables = [
        Table.of(Query("/things", tuple(parse_qsl(asked))), "Rows", columns)
        for asked in ("", "sort=name", "sort=-size&after=x", "sort=size&format=csv", "format=csv")
    ]
    assert [table.order for table in tables] == [
        *(None, None, ListOrder("size", True, "x"), ListOrder("size", False), None),
    ]
    assert [table.limit(20) for table in tables] == [20, 20, 20, MAX_SORTED_PAGE, MAX_PAGE]
    turned = [tables[2].following(SortedPage([], next_one)) for next_one in (None, "y")]
    assert [None if one is None else str(one) for one in turned] == [None, "/things?sort=-size&after=y"]
