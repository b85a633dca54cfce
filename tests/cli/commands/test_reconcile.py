"""`meruit reconcile`: asks real HTTP, keeps what it is told, and ends with a code that says what may be claimed."""

import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cli.conftest import Run

from meruit.app import open_records
from meruit.model.metering import AttributionKey, AttributionKind, MeteredCall, MeteredRun, MeteredStep
from meruit.model.usage import Tokens
from meruit.playground.billing.server import ADMIN_KEY, PLAIN_KEY, ProviderServer
from meruit.store.store import utc_now
from meruit.usage.store.read import find_observations
from meruit.usage.store.write import RecordObservations, RecordRun, RunObservation

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


def test_a_first_look_is_pending_and_an_early_one_is_no_attempt(run: Run, recorded: Callable[..., None]) -> None:
    recorded()
    first = run("reconcile", "f", "r")
    assert first.returncode == 3
    # The hours before midnight may lie on another day, which is asked for as well.
    pages = r"main: 1 runs looked at on \d pages, 1 looks kept, 0 too early to count, 0 failed\n1 pending\n"
    assert re.fullmatch(pages, first.stdout)
    again = run("reconcile", "f", "r", "--json")
    passed = json.loads(again.stdout)
    assert (again.returncode, passed["accounts"][0]["early"], passed["statuses"]) == (3, 1, {"pending": 1})
    (one,) = listed(run)
    assert (one["run_id"], one["verification_status"], one["attempts"]) == ("r", "pending", 1)
    assert (one["total_tokens_in"], one["total_tokens_out"], one["steps_with_tokens"]) == (1000, 10, 1)


def test_two_equal_looks_an_hour_apart_are_verified(run: Run, recorded: Callable[..., None]) -> None:
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
    assert listed(run)[0]["verification_message"] == "✅ Data stable across 61 minute interval"


def test_what_differs_from_the_bill_is_told_and_never_passes(run: Run, recorded: Callable[..., None]) -> None:
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
    assert "main: 1 runs looked at" in ended.stdout
    assert PLAIN_KEY not in ended.stdout + ended.stderr
    assert listed(run)[0]["code"] == "api_error"


def test_an_account_that_nobody_named_is_told(run: Run, recorded: Callable[..., None]) -> None:
    recorded(source="elsewhere")
    ended = run("reconcile")
    assert ended.returncode == 3
    assert "no account is named 'elsewhere' under usage.accounts of the settings (main)" in ended.stdout


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
    assert "'one' and 'two' are one account; name it once" in run("reconcile").stderr


def test_one_account_has_one_name(run: Run, recorded: Callable[..., None]) -> None:
    recorded()
    settings = json.loads(Path("settings.json").read_text())
    accounts = settings["usage"]["accounts"]
    accounts["twin"] = accounts["main"]
    Path("settings.json").write_text(json.dumps(settings))
    assert "'main' and 'twin' are one account; name it once" in run("reconcile").stderr
    accounts["twin"] = {**accounts["main"], "provider": "anthropic"}
    Path("settings.json").write_text(json.dumps(settings))
    refused = run("reconcile")
    assert refused.returncode == 2
    assert "it has the key of 'main', and so is the same account" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["g", "r"], "run 'r' is of the framework 'f', not 'g'"),
        (["g"], "no run of the framework 'g' is recorded"),
        (["f", "nobody"], "no usage run 'nobody'"),
    ],
)
def test_what_is_not_recorded_is_told(run: Run, recorded: Callable[..., None], arguments: list[str], said: str) -> None:
    recorded()
    ended = run("reconcile", *arguments)
    assert ended.returncode == 2
    assert said in ended.stderr


def test_ages_choose_and_nothing_due_is_told(run: Run, recorded: Callable[..., None]) -> None:
    recorded()
    for option, value in (("--min-age", str(ENDED_MIN + 30)), ("--max-age", "1")):
        ended = run("reconcile", "f", option, value)
        assert (ended.returncode, ended.stdout) == (0, "")
        assert "nothing is due" in ended.stderr
        assert listed(run, option, value) == []
    assert len(listed(run, "--min-age", "30", "--max-age", "24")) == 1


def test_the_list_says_the_rule_and_when_it_is_looked_at_next(run: Run, recorded: Callable[..., None]) -> None:
    assert "no records yet" in run("reconcile", "--list").stderr
    recorded()
    recorded("s", framework="g")
    told = run("reconcile", "--list", "f", "--verbose")
    assert told.returncode == 0
    first, second, *rest = told.stdout.splitlines()
    assert first.split() == ["run", "framework", "status", "tokens", "in", "tokens", "out", "steps", "message"]
    assert second.split()[:3] == ["r", "f", "pending"]
    assert rest[:2] == ["", "r: not_started, 0 looks, assurance D"]
    assert "next look: 20" in told.stdout
    assert "no run is recorded that fits" in run("reconcile", "--list", "nobody").stderr
    assert run("reconcile", "--list", "--watch").returncode == 2


def test_watching_goes_on_until_it_is_told_to_end(run: Run, recorded: Callable[..., None]) -> None:
    recorded()
    ending = threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGTERM))
    ending.start()
    ended = run("reconcile", "--watch")
    assert ended.returncode == 0
    assert ended.stdout.startswith("main: 1 runs looked at")
    assert "nothing is due" in ended.stderr


@pytest.mark.parametrize("option", ["--min-age", "--max-age"])
@pytest.mark.parametrize("value", ["nan", "inf", "1e12", "-1"])
def test_an_age_that_no_run_has_is_refused(run: Run, option: str, value: str) -> None:
    done = run("reconcile", "--list", option, value)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"Invalid value for '{option}'" in done.stderr
