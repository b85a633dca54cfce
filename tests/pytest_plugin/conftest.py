"""Sessions of pytest inside a test: quick ones in this process, without any plugin but ours."""

from collections.abc import Callable
from pathlib import Path

import pytest

import meruit.documents.yaml_events  # noqa: F401 - see below
from meruit.evaluations.evaluation import EvaluationRecord
from meruit.evaluations.reader import CaseDetail, Evaluations
from meruit.model.access import DEFAULT_TENANT
from meruit.pytest_plugin import dataset, failure, fixture, journal, recording
from meruit.registry import checks, metrics
from meruit.store.location import Location
from meruit.store.store import Store

PARTS = (dataset, failure, fixture, journal, recording)
"""Loaded here, so that probes of coverage are in them: a session inside a test loads them without."""
# A session inside a test forgets what it was the first to import. The C part of YAML would meet a second YAML, and a
# plugin would register twice, so both are loaded before.
LOADED = (*metrics, *checks)
PLUGIN = ("-p", "meruit.pytest_plugin", "-p", "no:cacheprovider")
CRITERIA = """
criteria:
  - {id: right, metric: exact_match, metric_type: boolean, comparison: eq, threshold: true}
  - {id: short, metric: word_count, metric_type: count, comparison: lte, threshold: 3}
"""
CASES = """
{"id": "fr", "prompt": "France", "reference": "Paris", "tags": {"continent": "europe"}}
{"id": "no", "prompt": "Norway", "reference": "Oslo"}
{"id": "pe", "prompt": "Peru", "reference": "Lima"}
"""
TESTS = """
import pytest

ANSWERS = {"France": "Paris", "Norway": "Bergen"}

@pytest.mark.meruit_dataset("cases.jsonl")
def test_capital(case, meruit):
    meruit.verify("criteria.yaml", output=ANSWERS[meruit.given["prompt"]])
"""
Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Write the files of a session and run it in this process."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("MERUIT_DATA", raising=False)

    def run_session(
        tests: str, *words: str, criteria: str = CRITERIA, cases: str = CASES, apart: bool = False
    ) -> pytest.RunResult:
        (pytester.path / "test_it.py").write_text(tests, encoding="utf-8")
        (pytester.path / "criteria.yaml").write_text(criteria, encoding="utf-8")
        (pytester.path / "cases.jsonl").write_text(cases, encoding="utf-8")
        if apart:
            return pytester.runpytest_subprocess(*PLUGIN, *words)
        return pytester.runpytest_inprocess(*PLUGIN, *words)

    return run_session


def read_records(folder: Path) -> dict[str, tuple[EvaluationRecord, list[CaseDetail]]]:
    """Every evaluation in a folder, with its cases."""
    store = Store.open(Location(folder))
    try:
        reader = Evaluations(store, DEFAULT_TENANT)
        return {one.name: (one, [*reader.details(one)]) for one in reader.page()}
    finally:
        store.close()
