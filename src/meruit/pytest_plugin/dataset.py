"""Tests that are run once for each case of a file."""

from itertools import islice
from pathlib import Path

import pytest

from meruit.app import open_store
from meruit.config import location_of
from meruit.errors import InvalidCase, MeruitError
from meruit.evaluations.datafiles import ColumnMap, open_data
from meruit.evaluations.datasets import PREFIX, Datasets
from meruit.evaluations.evaluation import Case
from meruit.evaluations.run import without_twins
from meruit.model.access import DEFAULT_TENANT
from meruit.pytest_plugin import MARKER, option_of
from meruit.suggestions import nearest

ARGUMENT = "case"
_SETTINGS = ("map", "format", "limit")


def parametrize_cases(metafunc: pytest.Metafunc, marker: pytest.Mark) -> None:
    """Give a test each case of the file that its marker names; what is wrong with it fails the collection."""
    try:
        if ARGUMENT not in metafunc.fixturenames:
            raise InvalidCase(f"{metafunc.definition.name} takes no argument `{ARGUMENT}`; add it")
        cases = _read_cases(metafunc.config, metafunc.definition.path.parent, marker)
    except MeruitError as problem:
        # Without the chain of causes, which says the same again.
        raise pytest.fail.Exception(f"{MARKER}: {problem}", pytrace=False) from None
    metafunc.parametrize(ARGUMENT, cases, ids=[f"{one.id}#{one.repeat}" if one.repeat else one.id for one in cases])


def _read_cases(config: pytest.Config, beside: Path, marker: pytest.Mark) -> list[Case]:
    match marker.args:
        case (str() | Path() as file,):
            pass
        case _:
            raise InvalidCase(f"it takes one file, as @pytest.mark.{MARKER}('cases.jsonl')")
    unknown = next((name for name in marker.kwargs if name not in _SETTINGS), None)
    if unknown is not None:
        raise InvalidCase(
            f"{unknown!r} is not a setting of it{nearest(unknown, _SETTINGS)}; use {', '.join(_SETTINGS)}"
        )
    columns, format_name, limit = (marker.kwargs.get(name) for name in _SETTINGS)
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InvalidCase(f"limit is a whole number from 1 up, not {limit!r}")
    if str(file).startswith(PREFIX):
        if columns is not None or format_name is not None:
            raise InvalidCase("map and format are for files; `meruit dataset add` takes them")
        found = _read_dataset(config, str(file), limit)
    else:
        place = next((one for one in (beside / file, config.rootpath / file) if one.is_file()), beside / file)
        mapped = ColumnMap() if columns is None else ColumnMap.parse(columns)
        found = [*islice(without_twins(open_data(str(place), format_name).cases(mapped)), limit)]
    if not found:
        # pytest would skip the test, and hide that nothing is tested.
        raise InvalidCase(f"{file} holds no cases")
    return found


def _read_dataset(config: pytest.Config, reference: str, limit: int | None) -> list[Case]:
    store = open_store(location_of(option_of(config, "data")))
    try:
        datasets = Datasets(store, DEFAULT_TENANT)
        return [*datasets.cases(datasets.find(reference), limit=limit)]
    finally:
        store.close()
