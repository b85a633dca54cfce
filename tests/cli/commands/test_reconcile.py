"""`meruit reconcile`: asks real HTTP, keeps what it is told, and ends with a code that says what may be claimed."""

import importlib
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cli.conftest import Run
from tests.cli.refusals import error_of

from meruit.app import open_records
from meruit.model.metering import AttributionKey, AttributionKind, MeteredCall, MeteredRun, MeteredStep
from meruit.model.usage import Tokens
from meruit.playground.billing.server import ADMIN_KEY, PLAIN_KEY, ProviderServer
from meruit.store.store import utc_now
from meruit.usage.store.read import find, find_observations
from meruit.usage.store.record_observations import RecordObservations, RunObservation
from meruit.usage.store.record_runs import RecordRun

reconcile_command = importlib.import_module("meruit.cli.commands.reconcile")

MODEL = "gpt-4o-2024-08-06"
ENDED_MIN = 100
"""Minutes ago: two looks an hour apart have time since."""


@pytest.fixture
def provider() -> Iterator[ProviderServer]:
    with ProviderServer(clock=utc_now, delay=timedelta()) as server:
        yield server


@pytest.fixture
def recorded(provider: ProviderServer, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have a run in the records, its account in the settings, and its call at the provider."""
    monkeypatch.setenv("ADMIN_KEY", ADMIN_KEY)
    settings = {
        "usage": {
            "accounts": {"main": {"provider": "openai", "base_url": provider.url, "key_variable": "ADMIN_KEY"}},
            "tick_min": 0.001,
        }
    }
    Path("settings.json").write_text(json.dumps(settings))
    monkeypatch.setenv("MERUIT_CONFIG", "settings.json")

    def record(run_id: str = "r", *, source: str = "main", billed: int = 1000, framework: str = "f") -> None:
        ended = utc_now().replace(second=0, microsecond=0) - timedelta(minutes=ENDED_MIN)
        started = ended - timedelta(minutes=3)
        if billed:
            provider.use(started, MODEL, Tokens(billed, 10, 1, 0), key=f"key_{run_id}")
        step = MeteredStep("s", started, ended, calls=(MeteredCall(started, MODEL, Tokens(1000, 10, 1, 0)),))
        run = MeteredRun(
            run_id, framework, source, AttributionKey(AttributionKind.KEY, f"key_{run_id}"), started, ended, (step,)
        )
        store = open_records()
        try:
            store.recorder.write(RecordRun("default", "me", run))
        finally:
            store.close()

    return record


def listed(run: Run, *options: str) -> list[dict[str, Any]]:
    ended = run("reconcile", "--list", "--json", *options)
    assert ended.returncode == 0, ended.stderr
    return list(json.loads(ended.stdout)["runs"])


def test_a_first_observation_is_pending_and_an_early_one_ignored(run: Run, recorded: Callable[..., None]) -> None:
    recorded()
    first = run("reconcile", "f", "r")
    assert first.returncode == 3
    # The hours before midnight may lie on another day, which is asked for as well.
    counts = r"main: 1 runs .* \d pages, 1 .*, 0 .*, 0 failed\n1 pending\n"
    assert re.fullmatch(counts, first.stdout)
    again = run("reconcile", "f", "r", "--json")
    passed = json.loads(again.stdout)
    assert (again.returncode, passed["accounts"][0]["early"], passed["statuses"]) == (3, 1, {"pending": 1})
    (one,) = listed(run)
    assert (one["run_id"], one["verification_status"], one["attempts"] - one["early"]) == ("r", "pending", 1)
    assert (one["total_tokens_in"], one["total_tokens_out"], one["steps_with_tokens"]) == (1000, 10, 1)


def test_an_account_that_reads_files_is_imported_too(run: Run, recorded: Callable[..., None]) -> None:
    recorded()
    store = open_records()
    try:
        with store.database.reading() as connection:
            started = find(connection, "default", "r").run.started_at
    finally:
        store.close()
    assert started is not None
    row = {"start": started.isoformat(), "input": 1000, "output": 10, "requests": 1, "model": MODEL, "key": "key_r"}
    Path("rows.json").write_text(json.dumps([row]))
    Path("settings.json").write_text(
        json.dumps({"usage": {"accounts": {"main": {"provider": "files", "file": "rows.json"}}}})
    )
    assert run("reconcile", "f", "r").returncode == 3
    (one,) = listed(run)
    assert (one["code"], one["total_tokens_in"], one["imported"]) == ("first", 1000, True)
    assert "file account (imported)" in run("reconcile", "--list").stdout


def test_two_equal_observations_an_hour_apart_are_verified(run: Run, recorded: Callable[..., None]) -> None:
    recorded()
    run("reconcile", "f", "r")
    store = open_records()
    try:
        with store.database.reading() as connection:
            (seen,) = find_observations(connection, "default", "r")
        before = msgspec.structs.replace(seen, id="before", at=seen.at - timedelta(minutes=61))
        store.recorder.write(RecordObservations("default", [RunObservation("r", before)]))
    finally:
        store.close()
    ended = run("reconcile", "f", "r")
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (0, "1 verified")
    (found,) = listed(run)
    assert (found["verification_status"], " 61 minute " in found["verification_message"]) == ("verified", True)


def test_a_count_that_differs_from_the_bill_never_passes(run: Run, recorded: Callable[..., None]) -> None:
    recorded(billed=0)
    ended = run("reconcile", "f", "r")
    assert ended.returncode == 3
    assert listed(run)[0]["verification_status"] == "data_not_available"


def test_a_refused_key_has_a_code_of_its_own(
    run: Run, recorded: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded()
    monkeypatch.setenv("ADMIN_KEY", PLAIN_KEY)
    ended = run("reconcile", "f", "r")
    assert ended.returncode == 4
    assert "main: 1 runs " in ended.stdout
    assert PLAIN_KEY not in ended.stdout + ended.stderr
    assert listed(run)[0]["code"] == "api_error"


def test_an_account_that_is_not_configured_is_reported(run: Run, recorded: Callable[..., None]) -> None:
    recorded(source="elsewhere")
    ended = run("reconcile")
    assert ended.returncode == 3
    assert all(part in ended.stdout for part in ("'elsewhere'", "usage.accounts", "main"))


@pytest.mark.parametrize("written", ["./rows.json", "sub/../rows.json", "link.json"])
def test_one_file_is_one_account_however_it_is_written(run: Run, recorded: Callable[..., None], written: str) -> None:
    recorded()
    Path("sub").mkdir()
    Path("rows.json").write_text("[]")
    Path("link.json").symlink_to("rows.json")
    settings = json.loads(Path("settings.json").read_text())
    settings["usage"]["accounts"] |= {
        "one": {"provider": "files", "file": "rows.json"},
        "two": {"provider": "files", "file": written},
    }
    Path("settings.json").write_text(json.dumps(settings))
    message = error_of(run, "reconcile")["message"]
    assert all(name in message for name in ("'one'", "'two'"))


def test_one_account_has_one_name(run: Run, recorded: Callable[..., None]) -> None:
    recorded()
    settings = json.loads(Path("settings.json").read_text())
    accounts = settings["usage"]["accounts"]
    accounts["twin"] = accounts["main"]
    Path("settings.json").write_text(json.dumps(settings))
    message = error_of(run, "reconcile")["message"]
    assert all(name in message for name in ("'main'", "'twin'"))
    accounts["twin"] = {**accounts["main"], "provider": "anthropic"}
    Path("settings.json").write_text(json.dumps(settings))
    assert "'main'" in error_of(run, "reconcile")["message"]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [(["g", "r"], ("'r'", "'f'", "'g'")), (["g"], ("'g'",)), (["f", "unknown"], ("'unknown'",))],
)
def test_a_run_that_is_not_recorded_is_not_found(
    run: Run, recorded: Callable[..., None], arguments: list[str], names: tuple[str, ...]
) -> None:
    recorded()
    error = error_of(run, "reconcile", *arguments)
    assert error["code"] == "not_found"
    assert all(name in error["message"] for name in names)


def test_ages_filter_and_a_note_says_that_no_run_is_due(run: Run, recorded: Callable[..., None]) -> None:
    recorded()
    for option, value in (("--min-age", str(ENDED_MIN + 30)), ("--max-age", "1")):
        ended = run("reconcile", "f", option, value)
        assert (ended.returncode, ended.stdout) == (0, "")
        assert "--list --verbose`" in ended.stderr
        assert listed(run, option, value) == []
    assert len(listed(run, "--min-age", "30", "--max-age", "24")) == 1


def test_the_list_shows_the_rule_and_the_next_observation(run: Run, recorded: Callable[..., None]) -> None:
    assert error_of(run, "reconcile", "--list")["code"] == "store_error"
    recorded()
    recorded("s", framework="g")
    shown = run("reconcile", "--list", "f", "--verbose")
    assert shown.returncode == 0
    first, second, *rest = shown.stdout.splitlines()
    assert first.split() == [
        *("run", "framework", "status", "counted", "by", "tokens", "in", "tokens", "out", "steps", "message")
    ]
    assert second.split()[:3] == ["r", "f", "pending"]
    assert rest[1].startswith("r: not_started, 0 ")
    (found,) = json.loads(run("reconcile", "--list", "f", "--json").stdout)["runs"]
    assert (found["assurance"], found["attempts"], found["next_observation_at"][:2]) == ("D", 0, "20")
    assert run("reconcile", "--list", "unknown").stderr.startswith("note: ")
    assert error_of(run, "reconcile", "--list", "--watch")["code"] == "usage"


def test_watching_continues_until_sigterm(
    run: Run, recorded: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded()
    rounds: list[object] = []
    print_summary = reconcile_command._print_summary

    def end_after_two(passed: Any) -> None:
        print_summary(passed)
        rounds.append(passed)
        if len(rounds) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(reconcile_command, "_print_summary", end_after_two)
    ended = run("reconcile", "--watch")
    assert (ended.returncode, len(rounds)) == (0, 2)
    assert ended.stdout.startswith("main: 1 runs ")
    assert "--list --verbose`" in ended.stderr


@pytest.mark.parametrize("option", ["--min-age", "--max-age"])
@pytest.mark.parametrize("value", ["nan", "inf", "1e12", "-1"])
def test_an_age_that_no_run_has_is_refused(run: Run, option: str, value: str) -> None:
    done = run("reconcile", "--list", option, value)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"Invalid value for '{option}'" in done.stderr
