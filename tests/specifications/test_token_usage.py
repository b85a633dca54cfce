"""The specification of token usage verification: its printed code, JSON and commands, executed as printed.

The files beside this one hold each block to the letter. Where we decided otherwise, a comment says why.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from meruit.model.usage import INTERVAL_MIN, UsageStatus
from meruit.usage.decision import decide
from meruit.usage.files import read_metrics

Run = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).parents[2]
PRINTED = Path(__file__).with_suffix("").with_name("token_usage")
FIRST = datetime(2025, 10, 15, 9, 15, tzinfo=UTC)
WARNING = "⚠️ Data stable but incomplete: only 3/6 steps have tokens"


def text_of(name: str) -> str:
    return (PRINTED / f"{name}.txt").read_text(encoding="utf-8")


# Any, here and below: JSON.
def json_of(name: str) -> Any:
    """The printed JSON. Its `// …` remarks and `[...]` are for readers: JSON has neither."""
    return json.loads(re.sub(r"\s+//.*", "", text_of(name)).replace("[...]", "[]").replace('"..."', '"r-1"'))


def attempts(*minutes: float, **fields: Any) -> list[dict[str, Any]]:
    """Attempts of these fields, so many minutes after the first."""
    return [{"timestamp": (FIRST + timedelta(minutes=one)).isoformat(), **fields} for one in minutes]


def judge(*several: dict[str, Any], **run: Any) -> tuple[str, str]:
    """The status and message of a metrics.json with these attempts."""
    file = read_metrics(json.dumps({**run, "usage_api_reconciliation": {"attempts": several}}))
    verdict = decide(file.run, file.observations)
    return str(verdict.status), verdict.message


# The core rule.


def test_the_statuses_are_those_of_the_lifecycle() -> None:
    assert set(re.findall(r"[a-z_]{5,}", re.sub(r"\(.*?\)", "", text_of("lifecycle")))) == {*UsageStatus}


def test_steps_without_tokens_are_a_warning_with_the_printed_message() -> None:
    printed = json_of("partial_steps.json")
    assert judge(*attempts(0, 61, **printed)) == ("warning", WARNING)


def test_a_complete_run_is_verified_after_sixty_minutes() -> None:
    printed = json_of("complete_steps.json")
    assert judge(*attempts(0, **printed))[0] == "pending"
    assert judge(*attempts(0, 59.9, **printed))[0] == "pending"
    assert judge(*attempts(0, 60, **printed)) == ("verified", "✅ Data stable across 60 minute interval")


def printed_check(current_attempt: dict[str, int], time_diff_minutes: float) -> dict[str, str] | None:
    """What the printed code returns for a pair of identical attempts."""
    names: dict[str, Any] = {"DEFAULT_VERIFICATION_INTERVAL_MIN": INTERVAL_MIN}
    taken = "current_attempt, data_identical, time_diff_minutes"
    # It is the inside of a method, so it gets a head to be called by.
    exec(f"def check({taken}):\n" + indent(text_of("check_status.py"), "    "), names)
    found: dict[str, str] | None = names["check"](current_attempt, True, time_diff_minutes)
    return found


@pytest.mark.parametrize("minutes", [0.5, 30, 59.9, 60, 60.4, 61, 90, 1440])
@pytest.mark.parametrize(("have", "of"), [(0, 1), (3, 6), (5, 6), (6, 6), (1, 1)])
def test_the_printed_code_and_ours_agree(minutes: float, have: int, of: int) -> None:
    counted = {"steps_with_tokens": have, "total_steps": of}
    said = printed_check(counted, minutes)
    ours = judge(*attempts(0, minutes, **counted, total_tokens_in=21919, total_tokens_out=6459))
    # Where the interval is too short, the printed part returns nothing, and the prose says pending.
    assert ours == (said["status"], said["message"]) if said is not None else ours[0] == "pending"


def test_a_run_without_steps_is_not_verified_by_nothing_equals_nothing() -> None:
    # The printed code verifies 0 of 0. We do not: tokens that belong to no step are a warning, and none are no data.
    none = {"steps_with_tokens": 0, "total_steps": 0}
    assert printed_check(none, 61) == {"status": "verified", "message": "✅ Data stable across 61 minute interval"}
    assert judge(*attempts(0, 61, **none, total_tokens_in=5, total_tokens_out=1))[0] == "warning"
    assert judge(*attempts(0, 61, **none, total_tokens_in=0, total_tokens_out=0))[0] == "data_not_available"


@pytest.mark.parametrize(
    ("totals", "status"),
    [
        ([100], "pending"),
        ([100, 110], "pending"),
        ([100, 110, 110], "verified"),
        ([100, 90], "warning"),
        ([0], "data_not_available"),
        ([0, 0], "data_not_available"),
        ([0, 100], "pending"),
        # The printed code would verify a count that fell and stayed there; "must never decrease" is the rule.
        ([100, 90, 90], "warning"),
        ([100, 90, 100, 100], "verified"),
    ],
)
def test_each_status_has_its_printed_examples(totals: list[int], status: str) -> None:
    whole = {"total_tokens_out": 10, "steps_with_tokens": 6, "total_steps": 6}
    several = [
        attempts(61 * n, **(whole | {"total_tokens_in": total, "total_tokens_out": 10 if total else 0}))[0]
        for n, total in enumerate(totals)
    ]
    assert judge(*several)[0] == status


# Files.


@pytest.fixture
def run(meruit_at_hand: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Call meruit in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    for name in ("MERUIT_DATA", "MERUIT_DATABASE_URL", "MERUIT_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(meruit_at_hand), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONUTF8", "1")

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, capture_output=True, text=True, encoding="utf-8", timeout=120, check=False)

    return call


@pytest.fixture
def recorded(run: Run) -> None:
    """The printed run, judged in its file and its manifest, and recorded."""
    steps = json_of("partial_steps.json")
    whole = {
        "run_id": "r-1",
        "framework": "planner",
        "usage_api_reconciliation": {"attempts": attempts(0, 61, **steps)},
    }
    Path("metrics.json").write_text(json.dumps(whole), encoding="utf-8")
    Path("runs_manifest.json").write_text(json.dumps({"runs": [{"run_id": "r-1"}]}), encoding="utf-8")
    assert (
        run("meruit", "usage", "decide", "metrics.json", "--write", "--manifest", "runs_manifest.json").returncode == 1
    )
    assert run("meruit", "usage", "record", "metrics.json").returncode == 0


@pytest.mark.usefixtures("recorded")
def test_the_status_stands_in_the_files_where_it_is_printed() -> None:
    part, printed = json.loads(Path("metrics.json").read_bytes()), json_of("metrics.json")
    (key,) = printed
    # We add `imported`: a file is not the provider's word.
    assert {name: part[key][name] for name in printed[key] if name != "attempts"} == {
        name: one for name, one in printed[key].items() if name != "attempts"
    }
    assert isinstance(part[key]["attempts"], list)
    (entry,), (wanted,) = (
        json.loads(Path("runs_manifest.json").read_bytes())["runs"],
        json_of("runs_manifest.json")["runs"],
    )
    assert {name: entry[name] for name in wanted} == wanted


@pytest.mark.usefixtures("recorded")
def test_the_printed_filter_finds_what_is_verified(run: Run) -> None:
    complete = {
        "run_id": "r-2",
        "framework": "planner",
        "usage_api_reconciliation": {"attempts": attempts(0, 61, **json_of("complete_steps.json"))},
    }
    Path("second.json").write_text(json.dumps(complete), encoding="utf-8")
    run("meruit", "usage", "record", "second.json")
    for command in (("usage", "export", "--manifest"), ("reconcile", "--list", "--json")):
        names: dict[str, Any] = {"runs": json.loads(run("meruit", *command).stdout)["runs"]}
        exec(text_of("filter.py"), names)
        assert [one["run_id"] for one in names["verified_runs"]] == ["r-2"]
        # Reports go by the provider's own counts, so what comes from a file says so.
        assert [one["imported"] for one in names["verified_runs"]] == [True]


# Commands.


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize(("name", "exit_code"), [("check_all.sh", 0), ("check_one.sh", 3)])
def test_the_printed_commands_run(name: str, exit_code: int, run: Run) -> None:
    shutil.copytree(ROOT / "examples" / "usage-files" / "runners", "runners")
    # The words in angle brackets are the reader's own.
    done = run("/bin/sh", "-c", text_of(name).replace("<framework>", "planner").replace("<run-id>", "r-1"))
    assert done.returncode == exit_code, done.stderr
    # Without a configured account, the second asks nobody, and says so.
    assert (WARNING in done.stdout) if exit_code == 0 else ("default" in done.stdout + done.stderr)


def test_the_printed_advice_is_in_the_docs() -> None:
    page = (ROOT / "docs" / "usage.md").read_text(encoding="utf-8").partition("## Troubleshooting")[2]
    for advice in ("15 minutes", "api.usage.read", "24 hours"):
        assert advice in page
