"""`meruit serve`: what it refuses to begin with and what it says then, and two of them on one data directory."""

import asyncio
import json
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tests.cli.refusals import error_of
from tests.e2e.serving import (
    PATIENCE_S,
    Json,
    Life,
    check_growth,
    check_receipt,
    checkpoint,
    everything,
    followed,
    request,
    serving,
)

from meruit.api import app as build
from meruit.cli.commands.serve import ServeOptions, worker_command
from meruit.errors import MeruitError
from meruit.model.kinds import Tier
from meruit.sandbox.selftest import NOT_INSTALLED, Examination
from meruit.store.location import Location
from meruit.verify.custom_code import CustomCode

Run = Callable[..., subprocess.CompletedProcess[str]]
Write = Callable[[str, Any], str]

PASSWORD = "hunter2"
NOWHERE = f"postgresql://user:{PASSWORD}@127.0.0.1:1/name"
TOGETHER = 12
"""Requests to each of two servers."""


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MERUIT_DATA", "MERUIT_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)


# What it refuses. These end before anything listens, so they are called in this process.


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_other_machines_are_not_served_without_a_key(run: Run, host: str) -> None:
    message = error_of(run, "serve", "--host", host, "--port", "0")["message"]
    assert all(part in message for part in (host, "keys create ", "--role admin"))


@pytest.mark.parametrize(
    ("content", "where", "path"),
    [
        (None, "settings.yaml", None),
        ("service: [1", "settings.yaml:1", None),
        ("service: {port: 1}", "settings.yaml:1", "service"),
        ("service: {max_body_bytes: 1}", "settings.yaml:1", "service.max_body_bytes"),
        ("service: {webhook_networks: [10.0.0.1/8]}", "settings.yaml:1", "service.webhook_networks"),
        (b"\xff\xfe", "settings.yaml", None),
    ],
)
def test_bad_settings_are_named_and_nothing_is_created(
    run: Run, write: Write, content: Any, where: str, path: str | None
) -> None:
    if content is not None:
        write("settings.yaml", content)
    error = error_of(run, "serve", "--port", "0", "--config", "settings.yaml")
    assert (error["code"], error["where"]) == ("bad_config", where)
    assert (error["problems"][0]["path"] or "").startswith(path or "")
    assert not Path("meruit-data").exists()


@pytest.mark.parametrize("arguments", [("--port", "65536"), ("--port", "-1"), ("--port", "http"), ("--tls",)])
def test_options_that_mean_nothing_are_refused(run: Run, arguments: tuple[str, ...]) -> None:
    ended = run("serve", *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "Error: " in ended.stderr
    assert not Path("meruit-data").exists()


def test_a_data_folder_that_is_a_file_is_refused(run: Run, write: Write) -> None:
    write("file", "something")
    for folder in ("file", "file/below"):
        error = error_of(run, "serve", "--port", "0", "--data", folder)
        assert (error["code"], folder in error["message"]) == ("store_error", True)
    assert Path("file").read_text() == "something"


def test_a_newer_database_is_refused_and_not_changed(run: Run) -> None:
    assert run("db", "upgrade").returncode == 0
    file = Path("meruit-data/meruit.db")
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    before = file.read_bytes()
    error = error_of(run, "serve", "--port", "0")
    assert (error["code"], "9999" in error["message"]) == ("unknown_layout", True)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"mysql://user:{PASSWORD}@127.0.0.1/name", "mysql"),
        (f"sqlite:///{PASSWORD}", "sqlite"),
        (PASSWORD, "postgresql://"),
        (NOWHERE, "postgresql://127.0.0.1:1/name: "),
        (f"postgresql://user:{PASSWORD}@/name?host=nowhere", "postgresql:///name: "),
    ],
)
@pytest.mark.parametrize("given", ["as an option", "in the environment"])
def test_a_database_that_cannot_be_used_is_told_without_its_password(
    run: Run, monkeypatch: pytest.MonkeyPatch, url: str, said: str, given: str
) -> None:
    if given == "as an option":
        ended = run("serve", "--port", "0", "--database-url", url)
    else:
        monkeypatch.setenv("MERUIT_DATABASE_URL", url)
        ended = run("serve", "--port", "0")
    assert (ended.returncode in (2, 3), ended.stdout) == (True, "")
    assert said in ended.stderr
    assert PASSWORD not in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_database_that_does_not_answer_is_no_mistake_of_the_callers(run: Run) -> None:
    assert run("serve", "--port", "0", "--database-url", NOWHERE).returncode == 3


# What is examined before strangers' code is served.


def _examined(monkeypatch: pytest.MonkeyPatch, ready: Mapping[Tier, str]) -> list[Tier]:
    """Let the sandbox be found so; why it does not hold, or nothing when it does."""
    asked: list[Tier] = []

    def examine(tier: Tier) -> Examination:
        asked.append(tier)
        return Examination(tier, "an engine", ready=not ready[tier], reason=ready[tier], trials=[])

    monkeypatch.setattr(build, "examine", examine)
    return asked


def test_a_sandbox_that_does_not_hold_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = CustomCode(1_000, 256)
    _examined(monkeypatch, {tier: "a wall is broken: forks" if tier is Tier.PYTHON else "" for tier in Tier})
    with pytest.raises(MeruitError, match="tier python: ") as refused:
        build._refuse_open_sandbox(policy)
    assert "a wall is broken: forks" in str(refused.value)
    assert "`meruit doctor`" in str(refused.value)
    assert "`enabled: false`" in str(refused.value)


def test_a_sandbox_that_is_not_installed_runs_nothing_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def examine(tier: Tier) -> Examination:
        return Examination(tier, NOT_INSTALLED, ready=False, reason="no package", trials=[])

    monkeypatch.setattr(build, "examine", examine)
    build._refuse_open_sandbox(CustomCode(1_000, 256))


def test_every_tier_that_may_run_is_examined_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _examined(monkeypatch, dict.fromkeys(Tier, ""))
    policy = CustomCode(1_000, 256)
    build._refuse_open_sandbox(policy)
    assert set(asked) == set(policy.tiers)
    assert Tier.PYTHON_FULL not in asked
    asked.clear()
    build._refuse_open_sandbox(msgspec.structs.replace(policy, tiers=frozenset(Tier)))
    assert set(asked) == set(Tier)
    asked.clear()
    build._refuse_open_sandbox(None)
    assert asked == []


def test_a_service_whose_sandbox_does_not_hold_ends_before_it_listens(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    _examined(monkeypatch, dict.fromkeys(Tier, "no seccomp here"))
    monkeypatch.setattr("meruit.api.logging.configure_logs", lambda: None)
    ended = run("serve", "--port", "0")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "no seccomp here" in ended.stderr


def test_a_port_in_use_is_named(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        message = error_of(run, "serve", "--port", port)["message"]
    assert all(part in message for part in (port, "127.0.0.1", "--port"))


# What it does: real processes.


def test_with_a_key_other_machines_are_served_and_nobody_without_one(run: Run, tmp_path: Path) -> None:
    location = Location(tmp_path / "data")
    made = run("keys", "create", "mine", "--role", "admin", "--data", str(location.folder))
    key = {"Authorization": f"Bearer {made.stdout.strip()}"}
    with serving(tmp_path / "home", location, "--host", "0.0.0.0", "--no-playgrounds") as life:
        assert life.url.startswith("http://0.0.0.0:")
        here = f"http://127.0.0.1:{life.address[1]}"
        with httpx.Client(base_url=here, timeout=PATIENCE_S, trust_env=False) as client:
            assert client.get("/health").status_code == httpx.codes.OK
            without = client.post("/v1/verify", json=request("a"))
            assert without.status_code == httpx.codes.UNAUTHORIZED
            assert without.headers["www-authenticate"].startswith("Bearer")
            assert client.post("/v1/verify", json=request("a"), headers=key).status_code == httpx.codes.OK
            wrong = client.get("/v1/outcomes", headers={"Authorization": f"Bearer {made.stdout.strip()[:-1]}!"})
            assert wrong.status_code == httpx.codes.UNAUTHORIZED
            for closed in ("/v1/playgrounds", "/playgrounds/pg_1/fhir/Patient/p"):
                assert client.get(closed, headers=key).status_code == httpx.codes.SERVICE_UNAVAILABLE
        assert life.stop() == 0
    log = life.log.read_text()
    assert "no keys yet" not in log
    assert made.stdout.strip().partition(".")[2] not in log


def test_the_first_key_locks_a_running_service(run: Run, tmp_path: Path) -> None:
    location = Location(tmp_path / "data")
    with serving(tmp_path / "home", location) as life, life.client() as client:
        check_notes(life.log.read_text().splitlines())
        assert client.get("/v1/outcomes").status_code == httpx.codes.OK
        made = run("keys", "create", "mine", "--role", "auditor", "--data", str(location.folder), "--json")
        secret = json.loads(made.stdout)["secret"]
        _within(lambda: client.get("/v1/outcomes").status_code == httpx.codes.UNAUTHORIZED)
        key = {"Authorization": f"Bearer {secret}"}
        assert client.get("/v1/outcomes", headers=key).status_code == httpx.codes.OK
        run("keys", "revoke", secret, "--data", str(location.folder))
        _within(lambda: client.get("/v1/outcomes", headers=key).status_code == httpx.codes.UNAUTHORIZED)
        assert life.stop(signal.SIGINT) == 0


def check_notes(lines: Sequence[str]) -> None:
    """Check that notes come first, then one JSON object a line."""
    notes = [line for line in lines if line.startswith("note: ")]
    assert notes == lines[: len(notes)]
    assert any("meruit.db" in line for line in notes)
    assert any("`meruit keys create NAME --role admin`" in line for line in notes)
    assert all(json.loads(line)["level"] == "info" for line in lines[len(notes) :])


def _within(true: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < until
        time.sleep(0.1)


def test_playgrounds_listen_where_the_service_does_and_outlive_it(tmp_path: Path) -> None:
    location = Location(tmp_path / "data")
    patient = {"resourceType": "Patient", "id": "p"}
    with serving(tmp_path / "home", location) as life, life.client() as client:
        made = client.post("/v1/playgrounds", json={}).json()
        assert made["endpoints"]["fhir"] == f"{life.url}/playgrounds/{made['id']}/fhir"
        own = {"Authorization": f"Bearer {made['secret']}"}
        sent = client.put(f"{made['endpoints']['fhir']}/Patient/p", json=patient, headers=own)
        assert sent.status_code == httpx.codes.CREATED
        for system in ("mllp", "sftp"):
            host, _, port = made["endpoints"][system].rpartition(":")
            socket.create_connection((host, int(port)), timeout=PATIENCE_S).close()
        life.kill()
    elsewhere = ("--public-url", "https://meruit.example/")
    with serving(tmp_path / "home", location, *elsewhere) as life, life.client() as client:
        (found,) = client.get("/v1/playgrounds").json()["playgrounds"]
        assert found["endpoints"]["fhir"] == f"https://meruit.example/playgrounds/{made['id']}/fhir"
        kept = client.get(f"/playgrounds/{made['id']}/fhir/Patient/p", headers=own)
        assert kept.json()["id"] == "p"
        port = int(found["endpoints"]["mllp"].rpartition(":")[2])
        # Whoever still holds a line open does not keep the service from ending.
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S):
            assert life.stop() == 0


async def _both(lives: tuple[Life, Life]) -> list[Json]:
    """Ask two services at once: each for work of its own, and both for the same under the same keys."""

    async def ask(client: httpx.AsyncClient, key: str) -> Json:
        while True:
            headers = {"Idempotency-Key": key}
            answer = await client.post("/v1/verify", json=request(key, contract_id="shared"), headers=headers)
            if answer.status_code != httpx.codes.CONFLICT:
                found: Json = answer.raise_for_status().json()
                return found

    first, second = (httpx.AsyncClient(base_url=life.url, timeout=PATIENCE_S, trust_env=False) for life in lives)
    async with first, second, asyncio.timeout(PATIENCE_S):
        asked = [(client, f"{name}-{number}") for client, name in ((first, "first"), (second, "second"))
                 for number in range(TOGETHER)]  # fmt: skip
        asked += [(client, f"same-{number}") for number in range(TOGETHER) for client in (first, second)]
        return list(await asyncio.gather(*(ask(*one) for one in asked)))


def test_two_services_share_one_data_directory_and_one_log(tmp_path: Path) -> None:
    location = Location(tmp_path / "data")
    with serving(tmp_path / "one", location) as one, serving(tmp_path / "two", location) as two:
        with one.client() as client:
            before = checkpoint(client)
        answers = asyncio.run(_both((one, two)))
        same = answers[2 * TOGETHER :]
        assert same[::2] == same[1::2]
        expected = {answer["outcome_id"] for answer in answers}
        assert len(expected) == 3 * TOGETHER
        for life in (one, two):
            with life.client() as client:
                listed = everything(client, limit=10)
                assert {found["id"] for found in listed} == expected
                assert [found["seq"] for found in listed] == list(range(len(listed), 0, -1))
                numbers = [number for number, _ in followed(client, len(listed))]
                assert numbers == list(range(1, len(listed) + 1))
                newest = checkpoint(client)
                check_growth(client, before, newest)
                for answer in (answers[0], answers[TOGETHER], answers[-1]):
                    receipt = client.get(f"/v1/outcomes/{answer['outcome_id']}/receipt").raise_for_status().json()
                    check_receipt(receipt, newest.key)
        assert (one.stop(), two.stop()) == (0, 0)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--workers", "2"), "PostgreSQL"),
        (("--workers", "2", "--database-url", NOWHERE, "--playgrounds"), "--playgrounds"),
        (("--as-worker", "{}"), "--workers"),
    ],
)
def test_several_workers_are_refused_where_they_cannot_work(run: Run, options: tuple[str, ...], named: str) -> None:
    assert named in error_of(run, "serve", "--port", "0", *options)["message"]
    assert not Path("meruit-data").exists()


@pytest.mark.parametrize("count", ["0", "65", "-1", "many", "1.5"])
def test_a_number_of_workers_that_cannot_be_is_refused(run: Run, count: str) -> None:
    ended = run("serve", "--workers", count)
    assert (ended.returncode, ended.stdout, "--workers" in ended.stderr) == (2, "", True)


def test_only_the_first_worker_runs_agents_and_no_password_is_on_its_command_line() -> None:
    options = ServeOptions(
        host="::1",
        port=0,
        playgrounds=True,
        public_url="https://a.example",
        agents=("m:one", "m:two"),
        workers=3,
        config="c.yaml",
        allow_python_full=True,
        as_json=True,
    )
    first, second = (worker_command(options, Location(Path("d"), NOWHERE), index) for index in (0, 1))
    assert [part for part in first if part.startswith("m:")] == ["m:one", "m:two"]
    assert [part for part in first if part not in second] == ["--agents", "m:one", "--agents", "m:two"]
    assert PASSWORD not in " ".join(first)
    assert {"--no-playgrounds", "--allow-python-full", "c.yaml", "https://a.example", "::1", "d"} <= {*second}
    assert second[-1] == "--as-worker"
