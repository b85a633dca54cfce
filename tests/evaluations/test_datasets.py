"""Datasets are versioned by their content, streamed, and say what changed."""

import pytest
from sqlalchemy import func, select
from tests.evaluations.conftest import TENANT

from meruit.errors import InvalidCase, NotFound, StoreError
from meruit.evaluations.dataset_chunks import (
    FEWEST_ROWS,
    MOST_ROWS,
    pack_chunk,
    read_row,
    split,
    unpack_chunk,
    write_row,
)
from meruit.evaluations.datasets import ChangedRow, Datasets, parse_cursor
from meruit.evaluations.evaluation import Case
from meruit.store import tables
from meruit.store.store import Store


def case(number: int, reference: str = "yes", **more: object) -> Case:
    return Case(f"c{number}", {"question": f"Größe {number}?", "reference": reference}, **more)  # type: ignore[arg-type]


CASES = [case(number, tags={"even": str(number % 2)}) for number in range(3_000)]


@pytest.fixture
def datasets(records: Store) -> Datasets:
    return Datasets(records, TENANT)


def count(records: Store, name: str) -> int:
    with records.database.reading() as connection:
        return int(connection.execute(select(func.count()).select_from(tables.metadata.tables[name])).scalar_one())


def test_versions_are_found_by_name_and_hold_all_cases(datasets: Datasets) -> None:
    first = datasets.add("capitals", lambda: CASES, "capitals.jsonl")
    assert (first.version, first.rows, first.source, first.reference) == (1, 3_000, "capitals.jsonl", "capitals@1")
    second = datasets.add("capitals", lambda: CASES[1:])
    assert second.version == 2
    assert datasets.find("capitals") == second
    assert datasets.find("dataset:capitals@1") == first
    assert [*datasets.open("capitals@1").cases()] == CASES
    assert [*datasets.cases(first, after=2_990, limit=3)] == CASES[2_990:2_993]
    assert datasets.open("capitals").rows == 2_999
    assert datasets.page() == [second, first]
    assert datasets.page(limit=1) == [second]
    assert datasets.page(before=parse_cursor("capitals@2")) == [first]
    assert datasets.page(name="others") == []


def test_equal_cases_are_one_version_and_one_content(datasets: Datasets, records: Store) -> None:
    first = datasets.add("a", lambda: CASES)
    kept = count(records, "dataset_chunks")
    assert datasets.add("a", lambda: CASES) == first
    other = datasets.add("b", lambda: [Case(one.id, dict([*one.input.items()][::-1]), tags=one.tags) for one in CASES])
    assert (other.version, other.digest) == (1, first.digest)
    assert count(records, "dataset_chunks") == kept


def test_versions_share_the_chunks_that_did_not_change(datasets: Datasets, records: Store) -> None:
    datasets.add("a", lambda: CASES)
    before = count(records, "blobs")
    datasets.add("a", lambda: [case(-1), *CASES])
    assert before > 5
    assert count(records, "blobs") - before <= 2


def test_a_diff_names_cases_and_their_parts(datasets: Datasets) -> None:
    old = datasets.add("a", lambda: [*CASES, case(1, repeat=1)])
    changed = [case(5, "no", tags=CASES[5].tags), *CASES[6:], case(7_000)]
    new = datasets.add("a", lambda: [*CASES[:5], *changed])
    found = datasets.diff(old, new)
    assert (found.added, found.removed) == (("c7000",), ("c1 #1",))
    assert found.changed == (ChangedRow("c5", ("input",)),)
    assert found.same == 2_999
    assert datasets.diff(new, new).same == new.rows


def test_an_interrupted_addition_goes_on(datasets: Datasets, records: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(5))

    def fail(*_: object) -> bytes:
        if next(times) == 3:
            raise KeyboardInterrupt
        return pack_chunk(*_)  # type: ignore[arg-type]

    monkeypatch.setattr("meruit.evaluations.datasets.pack_chunk", fail)
    with pytest.raises(KeyboardInterrupt):
        datasets.add("a", lambda: CASES)
    assert datasets.page() == []
    assert count(records, "dataset_chunks") == 3
    monkeypatch.undo()
    assert [*datasets.cases(datasets.add("a", lambda: CASES))] == CASES


@pytest.mark.parametrize("name", ["", "a b", "a@1", "-a", "ä", "a" * 101])
def test_names_that_cannot_be_referred_to_are_refused(datasets: Datasets, name: str) -> None:
    with pytest.raises(InvalidCase):
        datasets.add(name, lambda: CASES)


def test_what_cannot_be_kept_leaves_nothing(datasets: Datasets, records: Store) -> None:
    for cases in ([], [case(1), case(1)], [Case("a\n")], [Case("a", {"x": float("nan")})]):
        with pytest.raises(InvalidCase):
            datasets.add("a", lambda cases=cases: cases)  # type: ignore[misc]
    turns = iter([CASES, CASES[1:]])
    with pytest.raises(InvalidCase):
        datasets.add("a", lambda: next(turns))
    assert count(records, "datasets") == 0


def test_what_is_unknown_names_the_nearest(datasets: Datasets) -> None:
    datasets.add("capitals", lambda: CASES[:1])
    for reference in ("capital", "capitals@2"):
        with pytest.raises(NotFound, match="capitals"):
            datasets.find(reference)
    for reference in ("", "a@0", "a@x", "a b"):
        with pytest.raises(InvalidCase):
            datasets.find(reference)
    for cursor in ("capitals", "a b@1"):
        with pytest.raises(InvalidCase):
            parse_cursor(cursor)
    assert parse_cursor(None) is None


def test_tenants_do_not_see_each_other(datasets: Datasets, records: Store) -> None:
    datasets.add("a", lambda: CASES[:1])
    with pytest.raises(NotFound):
        Datasets(records, "other").find("a")


def test_chunks_hold_all_rows_within_their_limits() -> None:
    rows = [write_row(one) for one in CASES]
    chunks = [*split(rows)]
    assert [row for chunk in chunks for row in chunk] == rows
    assert all(FEWEST_ROWS <= len(chunk) <= MOST_ROWS for chunk in chunks[:-1])
    assert [*split([])] == []
    large = b"x" * (3 * 1024 * 1024)
    assert [len(chunk) for chunk in split([large] * 3)] == [2, 1]
    assert unpack_chunk(pack_chunk(rows)) == rows


@pytest.mark.parametrize("blob", [b"", b"nonsense", pack_chunk([b"{}"])[:-3]])
def test_a_damaged_chunk_is_named(blob: bytes) -> None:
    with pytest.raises(StoreError):
        unpack_chunk(blob)
    with pytest.raises(StoreError):
        read_row(b"{")
