"""Foreign values of any type: an import gives cases or a MeruitError, whatever stands where."""

import csv
import io
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.sampling import sample, seed

from meruit.errors import MeruitError
from meruit.evaluations.evaluation import Case
from meruit.evaluations.importers.support.pieces import Claim, ImportedCase
from meruit.evaluations.importers.support.source import ImportSource
from meruit.evaluations.imports import recognise, survey, with_claim
from meruit.registry import Importer, importers

FILES = Path(__file__).parent / "files"
FORMS = [path for path in sorted(FILES.iterdir()) if path.suffix != ".eval"]
MUTATIONS, ONE_IN = 1_000, 40
DEEP: Any = "x"
for _ in range(400):
    DEEP = [DEEP]
VALUES: list[Any] = [
    *(None, True, False, 0, -1.5, 1e300, 10**30, "", "42", "null", "\ud83d", "x" * 300, "[1]", [], {}),
    *([[]], [None], ["a", 1], [{"type": ["text"]}], {"a": {}}, {"type": {}, "text": []}, DEEP),
    # Values of OTLP.
    *({"arrayValue": {"values": [{"stringValue": "a"}]}}, {"kvlistValue": {"values": [{"key": "a", "value": {}}]}}),
    *({"intValue": []}, {"boolValue": True}),
]
Path_ = tuple[str | int, ...]


def opened(value: Any) -> Any:
    """The value itself, or what a text of JSON holds."""
    if isinstance(value, str) and value.startswith(("{", "[")):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def places(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    yield path
    inner = opened(value)
    parts = inner.items() if isinstance(inner, dict) else enumerate(inner) if isinstance(inner, list) else ()
    for key, part in parts:
        yield from places(part, (*path, key))


def put(value: Any, path: Path_, new: Any) -> Any:
    if not path:
        return new
    inner = opened(value)
    inner[path[0]] = put(inner[path[0]], path[1:], new)
    return json.dumps(inner) if isinstance(value, str) else inner


def parse(name: str, text: str) -> list[Any]:
    """The documents of a file: one, one a line, or the rows of a table."""
    if name.endswith(".csv"):
        return [*csv.reader(io.StringIO(text))]
    return [json.loads(line) for line in text.splitlines()] if name.endswith(".jsonl") else [json.loads(text)]


def write(name: str, documents: list[Any]) -> str:
    if name.endswith(".csv"):
        table = io.StringIO()
        rows = [one if isinstance(one, list) else [one] for one in documents]
        csv.writer(table).writerows(
            [cell if isinstance(cell, str) else json.dumps(cell) for cell in row] for row in rows
        )
        return table.getvalue()
    return "".join(json.dumps(one) + "\n" for one in documents)


def check_import(path: Path, importer: Importer) -> None:
    source = ImportSource(path)
    try:
        recognise(source)
        survey(source, importer)
        pieces = [one for one in importer.read(source) if isinstance(one, ImportedCase)]
    except MeruitError:
        return
    for piece in pieces:
        case = with_claim(piece, importer.name)
        # Each part has its type, and can be written.
        assert msgspec.convert(msgspec.to_builtins(case), Case) == case
        assert msgspec.json.encode(case)
        assert msgspec.convert(msgspec.to_builtins(piece.claim), Claim) == piece.claim


def check_mutations(folder: Path, files: Mapping[str, str], importer: Importer, name: str) -> None:
    parsed = {file: parse(file, text) for file, text in files.items() if file.endswith((".json", ".jsonl", ".csv"))}
    known = [(file, path) for file, documents in parsed.items() for path in places(documents) if path]
    for file, text in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text, encoding="utf-8")
    for number in sample(range(MUTATIONS), ONE_IN, name=name):
        chance = random.Random(f"{seed()} {name} {number}")
        file, path = chance.choice(known)
        mutated = put(parse(file, files[file]), path, chance.choice(VALUES))
        (folder / file).write_text(write(file, mutated), encoding="utf-8", errors="replace")
        try:
            check_import(folder if len(files) > 1 else folder / file, importer)
        except Exception as problem:
            problem.add_note(f"mutation {number}: {file} {path}")
            raise
        (folder / file).write_text(files[file], encoding="utf-8")


@pytest.mark.parametrize("importer", [*importers], ids=lambda one: one.name)
def test_any_value_of_an_example_may_have_another_type(importer: Importer, tmp_path: Path) -> None:
    for number, example in enumerate(importer.examples):
        check_mutations(tmp_path / str(number), example.files, importer, f"{importer.name} {number}")


@pytest.mark.parametrize("form", FORMS, ids=lambda one: one.name)
def test_any_value_of_a_file_may_have_another_type(form: Path, tmp_path: Path) -> None:
    inside = [one for one in form.rglob("*") if one.is_file()] if form.is_dir() else [form]
    home = form if form.is_dir() else form.parent
    files = {one.relative_to(home).as_posix(): one.read_text(encoding="utf-8") for one in inside}
    check_mutations(tmp_path, files, recognise(ImportSource(form)), form.name)
