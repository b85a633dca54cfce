"""`meruit playground`: served, looked at, turned back, copied, removed."""

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.at_hand import program
from tests.cli.clinic import PATIENT, put
from tests.cli.refusals import error_of

from meruit.model.environment import SourceKind
from meruit.playground.host import FILE, lock_directory
from meruit.playground.state import PlaygroundState

Run = Callable[..., subprocess.CompletedProcess[str]]

DIRECTORY = Path("meruit-data/playgrounds")
ID = "pg_0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def _no_folder_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MERUIT_DATA", raising=False)


@contextlib.contextmanager
def up(*options: str) -> Iterator[subprocess.Popen[str]]:
    """A process that serves until it is told to stop, and then ends well."""
    command = [program(), "playground", "up", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=300)
            assert (process.returncode, "Traceback" in err) == (0, False), err
        finally:
            process.kill()


def told(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def made(name: str = ID, home: Path = DIRECTORY) -> PlaygroundState:
    """A playground with one patient, as a host makes it."""
    state = PlaygroundState.create(home / name / FILE, settings={"secret": "s", "mllp_port": 4000})
    state.put(SourceKind.FHIR, "Patient/1", b"{}", event="fhir_create")
    state.checkpoint()
    return state


# Served.


def test_a_playground_is_served_and_turned_back_while_it_is(run: Run) -> None:
    put("seed.yaml", json.dumps({"fhir": ["patient.json"]}))
    put("patient.json", PATIENT)
    with up("--seed", "seed.yaml", "--json") as process:
        (one,) = told(process)["playgrounds"]
        patient = f"{one['endpoints']['fhir']}/Patient/p1"
        with httpx.Client(headers={"Authorization": f"Bearer {one['secret']}"}) as agent:
            assert agent.get(patient).json()["active"] is True
            assert run("playground", "checkpoint", one["id"], "mine").stdout == "saved as mine\n"
            changed = {**PATIENT, "active": False}
            assert agent.put(patient, json=changed, headers={"content-type": "application/fhir+json"}).is_success
            listed = run("playground", "events", one["id"]).stdout
            assert "fhir_update       Patient/p1  version=2" in listed
            branched = run("playground", "branch", one["id"])
            assert branched.stderr.startswith("note: ")
            assert run("playground", "reset", one["id"], "mine").stdout == "reset to mine\n"
            assert agent.get(patient).json()["active"] is True
            # Another host would take the ports of this one.
            assert error_of(run, "playground", "up", "--port", "0")["code"] == "elsewhere"
            # The host continues when a playground that it serves is removed.
            assert run("playground", "remove", one["id"]).stdout == f"removed {one['id']}\n"
            assert agent.get(patient).status_code in (200, 404, 503)
    assert [one["id"] for one in json.loads(run("playground", "list", "--json").stdout)["playgrounds"]] == [
        branched.stdout.strip()
    ]


@pytest.fixture
def _ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if somebody pressed Ctrl-C as soon as it is served."""

    def stopped() -> asyncio.Event:
        event = asyncio.Event()
        event.set()
        return event

    monkeypatch.setattr("meruit.cli.commands.playground._stop_event", stopped)


@pytest.mark.usefixtures("_ends_at_once")
def test_the_endpoints_and_commands_to_try_are_printed(run: Run) -> None:
    lines = run("playground", "up", "--port", "0").stdout.splitlines()
    facts = dict(line.split(None, 1) for line in lines if line and not line.startswith(" ") and " " in line)
    root = f"{facts['serving'].split()[1].rstrip(';')}/playgrounds/{facts['playground']}"
    assert facts["FHIR"] == f"{root}/fhir"
    assert facts["portal"].startswith(f"{root}/portal ")
    tries = [line.strip() for line in lines if line.startswith("  ")]
    assert tries[0] == f"curl -H 'Authorization: Bearer {facts['secret']}' '{root}/fhir/Patient'"
    assert tries[1].startswith("sftp -P ")
    assert f"{root}/portal" in tries[2]
    assert (len(tries), "Ctrl-C" in lines[-1]) == (3, True)


@pytest.mark.usefixtures("_ends_at_once")
def test_a_folder_is_served_and_a_seed_adds_a_playground(run: Run) -> None:
    for number in range(4):
        made(f"{ID[:-1]}{number}").close()
    told = json.loads(run("playground", "up", "--port", "0", "--json").stdout)
    assert [one["id"] for one in told["playgrounds"]] == [f"{ID[:-1]}{number}" for number in range(4)]
    assert told["playgrounds"][0]["endpoints"]["fhir"].startswith(told["url"])
    seeded = run("playground", "up", "--port", "0", "--seed", put("seed.yaml", "files: {a.txt: hello}\n"))
    assert " 2 more;" in seeded.stdout
    # The new one comes first, because it is what was asked for.
    new = seeded.stdout.split()[1]
    with closing(PlaygroundState(DIRECTORY / new / FILE)) as state:
        assert [one.key for one in state.items(SourceKind.FILES)] == ["a.txt"]


@pytest.mark.usefixtures("_ends_at_once")
def test_listening_on_all_addresses_prints_a_warning(run: Run) -> None:
    ended = run("playground", "up", "--host", "0.0.0.0", "--port", "0", "--json")
    assert "other machines" in ended.stderr
    assert "0.0.0.0" not in ended.stdout
    told = json.loads(ended.stdout)
    assert told["url"].startswith("http://127.0.0.1:")
    ends = told["playgrounds"][0]["endpoints"]
    assert ends["fhir"].startswith(told["url"])
    assert ends["mllp"].startswith("127.0.0.1:")
    for host in ("127.0.0.1", "localhost"):
        assert "other machines" not in run("playground", "up", "--host", host, "--port", "0").stderr


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (None, "seed.yaml"),
        (b"", "seed.yaml"),
        (b"files: {a: caf\xe9}\n", "seed.yaml"),
        (b"fihr: []\n", "fihr"),
        (b"fhir: [../patient.json]\n", "../patient.json"),
        (b"fhir: [/etc/hostname]\n", "/etc/hostname"),
    ],
)
def test_a_bad_seed_creates_nothing(run: Run, content: bytes | None, name: str) -> None:
    if content is not None:
        put("seed.yaml", content)
    assert name in error_of(run, "playground", "up", "--seed", "seed.yaml", "--port", "0")["message"]
    assert not Path("meruit-data").exists()


def test_an_address_in_use_is_named(run: Run) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        assert port in error_of(run, "playground", "up", "--port", port)["message"]
    assert run("playground", "up", "--host", "no such host", "--port", "0").returncode == 2
    assert not Path("meruit-data").exists()


# In a folder.


def test_playgrounds_are_listed_with_what_they_hold(run: Run) -> None:
    assert run("playground", "list").stdout.startswith("playground")
    assert not Path("meruit-data").exists()
    made().close()
    other = "pg_0123456789abcdef01234568"
    made(other, DIRECTORY / "brn_1").close()
    heading, first, second = run("playground", "list").stdout.splitlines()
    assert heading.split()[:3] == ["playground", "made", "(UTC)"]
    assert (first.split()[0], first.split()[3:]) == (ID, ["1", "fhir", "start", "–"])
    assert second.endswith("brn_1")
    several = json.loads(run("playground", "list", "--json").stdout)["playgrounds"]
    assert [one["id"] for one in several] == [ID, other]
    assert several[1] == {
        **several[0],
        "id": other,
        "created_at": several[1]["created_at"],
        "benchmark_run_id": "brn_1",
    }
    assert "secret" not in run("playground", "list", "--json").stdout


def test_a_branch_goes_on_alone(run: Run) -> None:
    with closing(made()) as state:
        branched = json.loads(run("playground", "branch", ID, "--json").stdout)["playground"]
        state.remove(SourceKind.FHIR, "Patient/1", event="fhir_delete")
    with closing(PlaygroundState(DIRECTORY / branched / FILE)) as copy:
        assert copy.get(SourceKind.FHIR, "Patient/1") is not None
        settings = copy.settings()
        assert (settings["secret"] != "s", settings["mllp_port"]) == (True, None)
    assert run("playground", "remove", ID).returncode == 0
    assert [path.name for path in DIRECTORY.iterdir()] == [branched]


def test_what_is_reset_is_as_it_was(run: Run) -> None:
    with closing(made()) as state:
        state.remove(SourceKind.FHIR, "Patient/1", event="fhir_delete")
        assert run("playground", "reset", ID).returncode == 0
        assert state.get(SourceKind.FHIR, "Patient/1") is not None
    answered = json.loads(run("playground", "checkpoint", ID, "later", "--json").stdout)
    assert answered == {"playground": ID, "checkpoint": "later"}
    assert "later, start" in error_of(run, "playground", "reset", ID, "never")["message"]
    assert run("playground", "checkpoint", ID, "../x").returncode == 2


def test_events_go_on_behind_the_last_one_that_was_seen(run: Run) -> None:
    with closing(made()) as state:
        state.log("called", {"who": "payer\x1b[31m"})
    page = json.loads(run("playground", "events", ID, "--json").stdout)
    assert [one["type"] for one in page["events"]] == ["fhir_create", "called"]
    assert run("playground", "events", ID, "--after", str(page["next"])).stdout == ""
    assert "\x1b" not in run("playground", "events", ID).stdout


def test_events_are_followed_until_the_reader_leaves(run: Run) -> None:
    with closing(made()) as state:
        command = [program(), "playground", "events", ID, "--follow", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                assert process.stderr is not None
                assert json.loads(process.stdout.readline())["type"] == "fhir_create"
                state.log("called")
                assert json.loads(process.stdout.readline())["type"] == "called"
                process.stdout.close()
                state.log("called")
                assert (process.wait(timeout=300), process.stderr.read()) == (0, b"")
            finally:
                process.kill()


@pytest.mark.parametrize("name", ["pg_x", ID, "../..", "", "pg_0123456789abcdef0123456*"])
@pytest.mark.parametrize("command", [("checkpoint", "x"), ("reset",), ("branch",), ("remove",), ("events",)])
def test_an_unknown_playground_is_not_found(run: Run, command: tuple[str, ...], name: str) -> None:
    made("pg_0123456789abcdef01234560").close()
    error = error_of(run, "playground", command[0], name, *command[1:])
    assert (error["code"], repr(name) in error["message"]) == ("not_found", True)


def test_a_folder_belongs_to_one_process_at_a_time(run: Run) -> None:
    with lock_directory(DIRECTORY):
        assert error_of(run, "playground", "up", "--port", "0")["code"] == "elsewhere"
