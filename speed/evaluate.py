"""5,000 stored outputs in a file of JSON Lines, judged and recorded as an evaluation, against loops that keep nothing.

CPU of the whole process, the thread that writes included, for each output. Reading the file is part of both sides. The
outputs of `speed.plain` are measured twice: as they are, with few distinct results, and with a number of its own each.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import jsonschema_rs

from meruit.evaluations.datafiles import open_data
from meruit.evaluations.reader import Evaluations
from meruit.evaluations.run import run_cases
from meruit.evaluations.service import Evaluator
from meruit.model.criterion import SuccessCriteria
from meruit.outcomes.service import Registrar
from meruit.store.location import Location
from meruit.store.store import Store
from meruit.verify.engine import VerificationEngine
from speed import plain
from speed.measure import Row
from speed.schema import DOCUMENT, SCHEMA

STORED = 5_000
SLOW = 300
"""Of the outputs, those that the slow loop is timed on."""
TRIES = 3
TARGET = 2
"""At most half of the CPU of the plain loop, records included."""
TICKET = {"type": "object", "required": ["label"], "properties": {"label": {"enum": ["refund", "repair", "other"]}}}


class Task(NamedTuple):
    """Outputs, and the schema that they are held against."""

    name: str
    schema: dict[str, Any]
    make: Callable[[int], dict[str, Any]]


def _invoice(number: int) -> dict[str, Any]:
    """An invoice of 5 KB; every tenth has an unknown currency."""
    return {**DOCUMENT, "number": f"INV-{10_000 + number}", "currency": "EUR" if number % 10 else "XXX"}


def _ticket(number: int) -> dict[str, Any]:
    return {"label": "refund" if number % 10 else "unknown", "text": f"ticket {number}"}


TASKS = (Task("invoices of 5 KB", SCHEMA, _invoice), Task("tickets of 50 bytes", TICKET, _ticket))


def _own_number(number: int) -> dict[str, Any]:
    """An output of 600 characters with a confidence that no other has."""
    return {
        **plain.output(number),
        "confidence": round(0.5 + (number * 7_919 % STORED) / (2 * STORED) + number / 1e7, 7),
    }


def _write(task: Task, file: Path) -> None:
    with file.open("w", encoding="utf-8") as opened:
        for number in range(STORED):
            row = {"id": f"q{number}", "input": {}, "output": task.make(number)}
            opened.write(json.dumps(row) + "\n")


def _record(task: Task, file: Path, folder: Path) -> int:
    """Judge and record the whole file; returns how many pass."""
    criterion = {"metric": "matches_schema", "metric_type": "matches_schema", "comparison": "eq", "threshold": True}
    return _run(
        SuccessCriteria.model_validate({"criteria": [{**criterion, "params": {"schema": task.schema}}]}), file, folder
    )


def _run(criteria: SuccessCriteria, file: Path, folder: Path) -> int:
    """Judge and record the whole file by these criteria; returns how many pass."""
    store = Store.open(Location(folder))
    try:
        evaluator = Evaluator(Registrar(VerificationEngine(), store), "default")
        compiled = evaluator.compile(criteria)
        started = evaluator.start("bench", compiled, planned=STORED)
        done = run_cases(evaluator, started, compiled, open_data(str(file)).cases())
        return Evaluations(store, "default").summary(done).overall.passed
    finally:
        store.close()


def _loop(is_valid: Callable[[Any], bool], file: Path, count: int) -> int:
    """What a careful person writes first: the validator is built once, and nothing is kept."""
    with file.open(encoding="utf-8") as opened:
        return sum(is_valid(json.loads(line)["output"]) for line in islice(opened, count))


def _us_each(act: Callable[[], int], count: int, expected: int) -> float:
    """CPU for each output in microseconds; the answer must be right."""
    start = time.process_time_ns()
    passed = act()
    spent = (time.process_time_ns() - start) / count / 1_000
    assert passed == expected, f"{passed} passed, not {expected}"
    return spent


def rows() -> Iterator[Row]:
    for task in TASKS:
        with tempfile.TemporaryDirectory() as place:
            yield from _measure(task, Path(place))
    for name, make in (("few distinct results", plain.output), ("a number of its own each", _own_number)):
        with tempfile.TemporaryDirectory() as place:
            yield _measure_plain(name, make, Path(place))


def _measure_plain(name: str, make: Callable[[int], dict[str, Any]], place: Path) -> Row:
    """Three checks of 600 characters, against the plain loop over the same texts, one after the other."""
    task, file = Task(name, plain.SCHEMA, make), place / "outputs.jsonl"
    _write(task, file)
    texts = [json.dumps(make(number)) for number in range(STORED)]
    expected = plain.loop(texts)
    criteria = SuccessCriteria.model_validate(plain.CRITERIA)
    ours = loop = float("inf")
    for number in range(TRIES):
        store = place / f"store-{number}"
        Store.open(Location(store)).close()
        ours = min(ours, _us_each(lambda where=store: _run(criteria, file, where), STORED, expected))  # type: ignore[misc]
        loop = min(loop, _us_each(lambda: plain.loop(texts), STORED, expected))
    return Row(f"evaluate {STORED:,} of 600 characters, {name}", ours, loop, "the plain loop; no record", TARGET)


def _measure(task: Task, place: Path) -> Iterator[Row]:
    file = place / "outputs.jsonl"
    _write(task, file)
    # A store is made once, and its migrations are not what is measured.
    Store.open(Location(place / "warm")).close()
    slow, quick = jsonschema.Draft202012Validator(task.schema), jsonschema_rs.validator_for(task.schema)
    ours = plain = native = float("inf")
    for number in range(TRIES):
        store = place / f"store-{number}"
        Store.open(Location(store)).close()
        ours = min(ours, _us_each(lambda where=store: _record(task, file, where), STORED, STORED * 9 // 10))  # type: ignore[misc]
        plain = min(plain, _us_each(lambda: _loop(slow.is_valid, file, SLOW), SLOW, SLOW * 9 // 10))
        native = min(native, _us_each(lambda: _loop(quick.is_valid, file, STORED), STORED, STORED * 9 // 10))
    name = f"evaluate {STORED:,} {task.name}, each"
    yield Row(name, ours, plain, "a plain loop: json.loads, jsonschema; no record", TARGET)
    yield Row(name, ours, native, "the same loop with jsonschema-rs; no record", None)
