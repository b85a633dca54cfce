"""`meruit outcome`: lists, records, differences, exports and erasure."""

import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from openpyxl import load_workbook
from tests.cli.refusals import error_of

from meruit import SuccessCriteria, VerificationEngine
from meruit.cli import terminal as output
from meruit.cli.commands import outcome as outcome_file
from meruit.model.outcome import Labels, OutcomeRecord
from meruit.outcomes.service import Registrar, Submission
from meruit.store.location import Location
from meruit.store.store import Store

Run = Callable[..., subprocess.CompletedProcess[str]]
WORDS = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 2}


def put(*texts: str, labels: Labels = Labels(), tenant: str = "default") -> list[str]:  # noqa: B008 - frozen
    """Outcomes in the usual folder."""
    store = Store.open(Location(Path("meruit-data")))
    try:
        registrar = Registrar(VerificationEngine(), store)
        ready = registrar.compile(SuccessCriteria.model_validate({"criteria": [WORDS]}))
        works = [Submission({}, {"text": text}, {}, labels) for text in texts]
        return [registrar.record_sync(tenant, registrar.judge_sync(ready, work)).outcome_id for work in works]
    finally:
        store.close()


def rescored(run: Run, threshold: int = 3, reason: str = "stricter") -> None:
    Path("new.json").write_text(json.dumps({"criteria": [{**WORDS, "threshold": threshold}]}))
    assert run("rescore", "new.json", "--all", "--reason", reason).returncode == 0


@pytest.fixture(autouse=True)
def _usual_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MERUIT_DATA", raising=False)
    monkeypatch.delenv("MERUIT_DATABASE_URL", raising=False)


# Lists.


def test_the_newest_is_listed_first_and_pages_continue(run: Run) -> None:
    ids = put("one", "two words", "three of them")
    ended = run("outcome", "list", "--limit", "2")
    lines = ended.stdout.splitlines()
    assert lines[0].split()[0] == "outcome"
    assert [line.split()[0] for line in lines[1:]] == [ids[2], ids[1]]
    assert "--before 2\n" in ended.stderr
    ended = run("outcome", "list", "--before", "2")
    assert [line.split()[0] for line in ended.stdout.splitlines()[1:]] == ids[:1]
    assert ended.stderr == ""


def test_programs_get_one_object_with_the_next_place(run: Run) -> None:
    ids = put("one", "two words")
    page = json.loads(run("outcome", "list", "--limit", "1", "--json").stdout)
    assert ([one["id"] for one in page["outcomes"]], page["next"]) == (ids[1:], 2)
    page = json.loads(run("outcome", "list", "--json").stdout)
    assert (len(page["outcomes"]), page["next"]) == (2, None)


@pytest.mark.parametrize(
    ("option", "value"), [("--contract-id", "k"), ("--agent-id", "ada"), ("--verdict", "fail"), ("--tenant", "acme")]
)
def test_a_filter_narrows_the_list(run: Run, option: str, value: str) -> None:
    put("two words")
    tenant = "acme" if option == "--tenant" else "default"
    chosen = put("one", labels=Labels("k", "ada"), tenant=tenant)
    page = json.loads(run("outcome", "list", option, value, "--json").stdout)
    assert [one["id"] for one in page["outcomes"]] == chosen


def listed(run: Run, *options: str) -> list[str]:
    return [one["id"] for one in json.loads(run("outcome", "list", *options, "--json").stdout)["outcomes"]]


def test_several_filters_must_all_hold(run: Run) -> None:
    put("two words", labels=Labels("k", "bob"))
    chosen = put("one", labels=Labels("k", "ada", "shop", "law"))
    every = ("--contract-id", "k", "--agent-id", "ada", "--verdict", "fail", "--consumer-id", "shop", "--domain", "law")
    assert listed(run, *every, "--since", "2020-01-01", "--until", "2120-01-01") == chosen
    assert listed(run, *every, "--until", "2020-01-01") == []
    assert listed(run, "--agent-id", "bob", "--verdict", "fail") == []


def test_a_span_that_holds_nothing_is_refused(run: Run) -> None:
    error = error_of(run, "outcome", "list", "--since", "2026-02-01", "--until", "2026-02-01")
    assert (error["code"], "--until" in error["message"]) == ("usage", True)


def test_a_filtered_page_is_full_however_many_rows_are_examined(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [put("one", labels=Labels("k", "ada"))[0] for _ in range(2)]
    for _ in range(3):
        put("two words", labels=Labels("k", "ada"))
    monkeypatch.setattr("meruit.store.paging.MAX_EXAMINED", 1)
    monkeypatch.setattr("meruit.store.paging.MAX_ROUNDS", 1)
    assert listed(run, "--agent-id", "ada", "--contract-id", "k", "--limit", "5") == listed(run)
    assert listed(run, "--agent-id", "ada", "--verdict", "fail", "--limit", "2") == chosen[::-1]


def test_a_list_is_written_as_csv_whole_unless_limited(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [put("one", labels=Labels("k", "=1+1"))[0] for _ in range(3)]
    monkeypatch.setattr("meruit.store.paging.MAX_PAGE", 2)
    rows = rows_of(run("outcome", "list", "--csv").stdout)
    assert [row["outcome_id"] for row in rows] == ids[::-1]
    assert (rows[0]["agent_id"], rows[0]["verdict"], rows[0]["success"]) == ("'=1+1", "fail", "false")
    assert len(rows_of(run("outcome", "list", "--csv", "--limit", "2").stdout)) == 2


def test_outcomes_are_exported_as_a_workbook(run: Run) -> None:
    ids = [put("one")[0] for _ in range(2)]
    assert run("outcome", "export", "-o", "all.xlsx").returncode == 0
    assert run("outcome", "list", "--xlsx", "list.xlsx").returncode == 0
    exported, listed = (
        [*load_workbook(name).worksheets[0].iter_rows(values_only=True)] for name in ("all.xlsx", "list.xlsx")
    )
    assert ([row[1] for row in exported[1:]], [row[0] for row in listed[1:]]) == (ids, ids[::-1])
    assert exported[0][1 : len(listed[0]) + 1] == listed[0]
    assert error_of(run, "outcome", "export", "-o", "-", "--format", "xlsx")["code"] == "usage"


def rows_of(text: str) -> list[dict[str, str]]:
    return [*csv.DictReader(io.StringIO(text, newline=""))]


def test_a_folder_without_records_is_an_error(run: Run) -> None:
    assert error_of(run, "outcome", "list")["code"] == "store_error"


# One.


def test_an_outcome_is_shown_with_its_labels_and_its_verdict(run: Run) -> None:
    (name,) = put("two words", labels=Labels("k\n", "ada", "bob", "law"))
    rescored(run)
    lines = run("outcome", "show", name).stdout.splitlines()
    assert lines[:5] == [f"outcome   {name}", "contract  k\\n", "agent     ada", "consumer  bob", "domain    law"]
    assert "version   2 of 2" in lines
    assert "reason    stricter" in lines
    assert any(line.startswith("verdict fail, success false") for line in lines)
    first = run("outcome", "show", name, "--version", "1").stdout
    assert "version   1 of 2" in first
    assert "verdict pass" in first
    assert "reason" not in first


def test_the_whole_record_is_for_programs(run: Run) -> None:
    (name,) = put("two words")
    record = OutcomeRecord.model_validate_json(run("outcome", "show", name, "--json").stdout)
    assert (record.id, record.work_output) == (name, {"text": "two words"})


def test_the_newest_outcome_needs_no_id(run: Run) -> None:
    put("two words", tenant="acme")
    for arguments in (("outcome", "show", "latest"), ("audit", "export", "latest", "-o", "b.zip")):
        assert error_of(run, *arguments)["code"] == "not_found"
    _older, name = put("two words", "three of them")
    assert name in run("outcome", "show", "latest").stdout
    assert json.loads(run("audit", "receipt", "latest").stdout)["outcome"] == name
    assert json.loads(run("audit", "export", "latest", "-o", "b.zip", "--json").stdout)["outcome"] == name
    rescored(run)
    assert "version 2: verdict pass" in run("outcome", "diff", "latest").stdout
    # What cannot be undone names its outcome.
    assert error_of(run, "outcome", "erase", "latest", "--reason", "r", "--yes")["code"] == "not_found"


def test_what_is_not_there_is_told(run: Run) -> None:
    (name,) = put("two words")
    for arguments, complaint in (((name, "--version", "7"), "has no version 7"), (("nobody",), "no outcome 'nobody'")):
        ended = run("outcome", "show", *arguments)
        assert ended.returncode == 2
        assert complaint in ended.stderr


# Differences.


def test_the_last_two_versions_are_compared(run: Run) -> None:
    (name,) = put("two words")
    rescored(run)
    assert run("outcome", "diff", name).stdout.splitlines() == [
        "version 1: verdict pass, success true, score 1",
        "version 2: verdict fail, success false, score 0",
        "",
        "criterion            what       before  after",
        "word_count  changed  status     met     not_met",
        "                     threshold  2       3",
        "                     exact      1       0",
    ]
    found = json.loads(run("outcome", "diff", name, "--json").stdout)
    assert (found["before"]["verdict"], found["after"]["verdict"]) == ("pass", "fail")


def test_any_two_versions_are_compared(run: Run) -> None:
    (name,) = put("two words")
    rescored(run)
    rescored(run, 2, "as it was")
    assert "nothing differs" in run("outcome", "diff", name, "--from", "1", "--to", "3").stdout
    assert "version 1: verdict pass" in run("outcome", "diff", name, "--to", "2").stdout


def test_a_difference_beside_the_criteria_needs_no_table(run: Run) -> None:
    (name,) = put("two words")
    Path("new.json").write_text(json.dumps({"criteria": [WORDS], "aggregation": "any", "penalize_missing": True}))
    assert run("rescore", "new.json", "--all", "--reason", "r").returncode == 0
    assert "required" in run("outcome", "diff", name).stdout
    Path("new.json").write_text(json.dumps({"criteria": [WORDS], "aggregation": "any"}))
    assert run("rescore", "new.json", "--all", "--reason", "r").returncode == 0
    assert len(run("outcome", "diff", name).stdout.splitlines()) == 2


def test_a_version_whose_verdict_and_success_differ_is_explained(run: Run) -> None:
    (name,) = put("two words")
    optional = {**WORDS, "id": "more", "threshold": 9, "required": False, "weight": 0.5}
    Path("new.json").write_text(json.dumps({"criteria": [WORDS, optional]}))
    assert run("rescore", "new.json", "--all", "--reason", "r").returncode == 0
    first, second, sentence, *_ = run("outcome", "diff", name).stdout.splitlines()
    assert (first.split(":")[0], second.split(":")[0]) == ("version 1", "version 2")
    assert "success true" in second
    assert sentence.startswith("  Success is true, but the verdict is partial")


def test_one_version_differs_from_nothing(run: Run) -> None:
    (name,) = put("two words")
    error = error_of(run, "outcome", "diff", name)
    assert (error["code"], "`meruit rescore`" in error["message"]) == ("store_error", True)


def test_long_values_are_cut() -> None:
    assert outcome_file._truncate("x" * 100) == "x" * 59 + "…"


# Exports.


def test_an_export_has_the_format_of_its_file_name(run: Run) -> None:
    ids = put("one", "two words")
    ended = run("outcome", "export", "-o", "all.jsonl")
    assert (ended.returncode, ended.stdout, "all.jsonl" in ended.stderr) == (0, "", True)
    assert [json.loads(line)["id"] for line in Path("all.jsonl").read_text().splitlines()] == ids
    ended = run("outcome", "export", "-o", "all.parquet", "--verdict", "fail", "--json")
    assert json.loads(ended.stdout) == {"file": "all.parquet", "format": "parquet", "records": 1}
    assert pl.read_parquet("all.parquet")["id"].to_list() == ids[:1]
    assert run("outcome", "export", "-o", "data", "--format", "jsonl").returncode == 0


def test_lines_may_go_to_a_pipe(meruit_at_hand: Path) -> None:
    ids = put("one")
    command = [str(meruit_at_hand / "meruit"), "outcome", "export", "-o", "-"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout)["id"] == ids[0]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("-o", "data.ods"), "--format"),
        (("--csv", "x.csv", "-o", "y.csv"), "--csv"),
        (("--csv", "x.csv", "--format", "jsonl"), "--csv"),
        (("-o", "x.jsonl", "--bom"), "--bom"),
        ((), "-o"),
        (("-o", "-", "--format", "parquet"), "JSONL"),
        (("-o", "-"), "JSONL"),
    ],
)
def test_a_bad_export_is_refused(run: Run, arguments: tuple[str, ...], name: str) -> None:
    error = error_of(run, "outcome", "export", *arguments)
    assert (error["code"], name in error["message"]) == ("usage", True)


# Progress.


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_person_sees_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with output.show_progress("exporting") as progress:
        progress(1, 4)
        progress(4, 4)
    assert "exporting" in terminal.getvalue()
    assert "4/4" in terminal.getvalue()


# Erasure.


def test_an_erased_outcome_keeps_its_verdict_and_loses_the_rest(run: Run) -> None:
    (name,) = put("two words")
    rescored(run)
    ended = run("outcome", "erase", name, "--reason", "asked to", "--yes")
    assert all(part in ended.stdout for part in (name, "input", "output", "metadata", "result"))
    ended = run("outcome", "erase", name, "--reason", "asked to", "--yes", "--json")
    assert json.loads(ended.stdout) == {"outcome_id": name, "erased": []}
    assert "nothing" in run("outcome", "erase", name, "--reason", "again", "--yes").stdout
    assert re.search(r"^verdict fail; .*erased", run("outcome", "show", name).stdout, re.MULTILINE)
    assert error_of(run, "outcome", "diff", name)["code"] == "store_error"


def test_erasing_asks_first(run: Run) -> None:
    (name,) = put("two words")
    ended = run("outcome", "erase", name, "--reason", "asked to", stdin=b"n\n")
    assert ended.returncode == 130
    assert f"{name} permanently? [y/N]" in ended.stderr
    ended = run("outcome", "erase", name, "--reason", "asked to", stdin=b"y\n")
    assert ended.returncode == 0


@pytest.mark.parametrize("reason", ["", " ", "a\nb"])
def test_an_erasure_has_a_reason(run: Run, reason: str) -> None:
    assert run("outcome", "erase", "x", "--reason", reason, "--yes").returncode == 2


def test_the_group_explains_itself(run: Run) -> None:
    shown = run("outcome", "--help").stdout
    assert all(word in shown for word in ("list", "show", "diff", "export", "erase"))
