"""`meruit rescore`: what it asks for, what it says, and what it leaves behind."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from tests.cli.refusals import error_of, session_of
from tests.golden import check_golden

from meruit import SuccessCriteria, VerificationEngine
from meruit.cli.commands import rescore as rescore_file
from meruit.model.outcome import Labels
from meruit.outcomes.service import Registrar, Submission
from meruit.store.location import Location
from meruit.store.store import Store

Run = Callable[..., subprocess.CompletedProcess[str]]
WORDS = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 2}
NEW = {"criteria": [{**WORDS, "threshold": 3}]}


@pytest.fixture(autouse=True)
def _records(monkeypatch: pytest.MonkeyPatch, _empty_folder: None) -> None:
    """Three outcomes in the usual folder, and criteria that one of them no longer meets."""
    monkeypatch.delenv("MERUIT_DATA", raising=False)
    monkeypatch.delenv("MERUIT_DATABASE_URL", raising=False)
    store = Store.open(Location(Path("meruit-data")))
    registrar = Registrar(VerificationEngine(), store)
    ready = registrar.compile(SuccessCriteria.model_validate({"criteria": [WORDS]}))
    for text, agent in (("two words", "ada"), ("now three words", "bob"), ("one", None)):
        work = Submission({}, {"text": text}, {}, Labels(agent_id=agent))
        registrar.record_sync("default", registrar.judge_sync(ready, work))
    store.close()
    Path("new.json").write_text(json.dumps(NEW))


@pytest.mark.golden
def test_a_rescore_reads_as_recorded(run: Run) -> None:
    command = ("rescore", "new.json", "--all", "--reason", "stricter")
    shown = session_of(run, command, command)
    check_golden("cli/rescore", re.sub(r"note: .*\n", "", shown))


@pytest.mark.parametrize("columns", [True, False])
def test_a_dry_run_shows_changes_and_records_nothing(run: Run, columns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescore_file, "_columns_are_possible", lambda: columns)
    summary = json.loads(run("rescore", "new.json", "--all", "--dry-run", "--json").stdout)
    assert [summary[name] for name in ("dry_run", "examined", "rescored", "from_evidence")] == [True, 3, 3, 3]
    listed = json.loads(run("outcome", "list", "--json").stdout)
    assert {one["version"] for one in listed["outcomes"]} == {1}


def test_programs_get_the_summary(run: Run) -> None:
    summary = json.loads(run("rescore", "new.json", "--agent-id", "ada", "--reason", "r", "--json").stdout)
    assert (summary["examined"], summary["changed"]) == (1, [{"before": "pass", "after": "fail", "count": 1}])


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("--reason", "r"), "--all"),
        (("--reason", "r", "--all", "--agent-id", "ada"), "--all"),
        (("--all",), "--reason"),
        (("--all", "--reason", " "), "--reason"),
        (("--all", "--reason", "a\nb"), "--reason"),
        (("--all", "--reason", "r", "-o", "x.parquet"), "-o"),
        (("--all", "--reason", "r", "--workers", "2"), "--workers"),
        (("--from", "x.parquet", "--all"), "--from"),
    ],
)
def test_options_that_cannot_be_combined_are_refused(run: Run, arguments: tuple[str, ...], option: str) -> None:
    error = error_of(run, "rescore", "new.json", *arguments)
    assert (error["code"], option in error["message"]) == ("usage", True)


def test_criteria_that_cannot_judge_change_nothing(run: Run) -> None:
    Path("new.json").write_text(json.dumps({"criteria": [{**WORDS, "params": {"x": 1}}]}))
    error = error_of(run, "rescore", "new.json", "--all", "--reason", "r")
    assert (error["problems"][0]["path"], error["where"]) == ("criteria[0].params.x", "new.json:1")


def test_an_exported_file_is_judged_without_the_records(run: Run) -> None:
    run("outcome", "export", "-o", "all.parquet")
    ended = run("rescore", "new.json", "--from", "all.parquet", "-o", "verdicts.parquet")
    assert ended.returncode == 0
    assert ended.stdout.splitlines() == [
        "3 rows judged, 1 successful",
        "verdict  rows",
        "fail     2",
        "pass     1",
        "",
        "criterion   met  not met  indeterminate  excluded",
        "word_count  1    2        0              0",
    ]
    assert "verdicts.parquet" in ended.stderr
    assert pl.read_parquet("verdicts.parquet")["verdict"].to_list() == ["fail", "pass", "fail"]
    summary = json.loads(run("rescore", "new.json", "--from", "all.parquet", "--json").stdout)
    assert (summary["rows"], summary["verdicts"]) == (3, {"fail": 2, "pass": 1})
    assert "written" not in run("rescore", "new.json", "--from", "all.parquet").stderr


def test_a_file_needs_the_extra_for_columns(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescore_file, "_columns_are_possible", lambda: False)
    assert "meruit[bulk]" in error_of(run, "rescore", "new.json", "--from", "all.parquet")["message"]


def test_ray_is_asked_for_by_name_and_must_be_installed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("rescore", "new.json", "--all", "--reason", "r", "--engine", "ray")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "ray", None)
        for workers in ((), ("--workers", "5")):
            ended = run(*command, *workers)
            assert (ended.returncode, "meruit[ray]" in ended.stderr) == (2, True)
    # Few outcomes are judged here, unless a number of workers is given.
    ended = run(*command, "--json")
    assert (ended.returncode, "--workers" in ended.stderr) == (0, True)
    assert json.loads(ended.stdout)["rescored"] == 3
