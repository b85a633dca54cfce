"""`meruit audit follow`, `consistency`, `receipt` and `witness`, as a reader and an operator type them."""

import asyncio
import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.refusals import error_of

from meruit.api.server import ShutdownSignal
from meruit.api.server import run as serve_app
from meruit.api.witness_app import WitnessApp
from meruit.audit.witness import TrustedLog, Witness, open_witness_key
from meruit.log.note import SigningKey

Run = Callable[..., subprocess.CompletedProcess[str]]
Write = Callable[[str, Any], str]
PATIENCE_S = 60.0
CRITERIA = {
    "criteria": [{"metric": "rougeL", "metric_type": "rouge_score", "comparison": "gte", "threshold": 0.5}],
}


@pytest.fixture
def outcome(run: Run, write: Write, monkeypatch: pytest.MonkeyPatch) -> str:
    """An outcome in ./meruit-data."""
    monkeypatch.delenv("MERUIT_DATA", raising=False)
    monkeypatch.delenv("MERUIT_DATABASE_URL", raising=False)
    write("criteria.json", CRITERIA)
    write("out.json", {"text": "the cat sat down"})
    write("in.json", {"reference": "the cat sat"})
    return recorded(run)


def recorded(run: Run) -> str:
    done = run("verify", "criteria.json", "--output", "out.json", "--input", "in.json", "--record")
    assert done.returncode == 0, done.stderr
    return next(word for word in done.stderr.split() if word.startswith("out_"))


@pytest.fixture
def witness_url(run: Run, outcome: str) -> Iterator[str]:
    """A witness of the log in ./meruit-data, on a port of its own; its key is in ./witness.txt."""
    vkey = run("audit", "key").stdout.strip()
    signer = open_witness_key(Path("w"), "witness.example/w1", lambda count: bytes([9] * count))
    witness = Witness(Path("w"), signer, [TrustedLog.parse(vkey)], lambda: 1_800_000_000)
    Path("witness.txt").write_text(f"# partners\n{witness.key.vkey}\n")
    ready, stopping = threading.Event(), ShutdownSignal()
    urls = list[str]()

    def on_ready(url: str) -> None:
        urls.append(url)
        ready.set()

    app: Any = WitnessApp(witness)
    thread = threading.Thread(
        target=serve_app, args=(app, "127.0.0.1", 0), kwargs={"ready": on_ready, "stopping": stopping}, daemon=True
    )
    thread.start()
    assert ready.wait(PATIENCE_S)
    yield urls[0]
    stopping.begin()
    thread.join(PATIENCE_S)
    witness.close()


def test_a_reader_keeps_checkpoints_and_sees_a_fork(run: Run, outcome: str) -> None:
    first = run("audit", "follow", "kept.json")
    assert (first.returncode, first.stdout.split(":")[0]) == (0, "first check")
    # The key is the log's own, and a note says so.
    assert first.stderr.startswith("note: ")
    assert json.loads(run("audit", "follow", "kept.json", "--json").stdout)["state"] == "same"
    recorded(run)
    found = json.loads(run("audit", "follow", "kept.json", "--json").stdout)
    assert (found["state"], found["size"] > found["before"]) == ("extended", True)
    kept = json.loads(Path("kept.json").read_text())
    assert len(kept["checkpoints"]) == 2
    # Another log under the same key, with as many entries.
    name = kept["key"].split("+")[0]
    key = SigningKey.from_pem(name, Path("meruit-data/audit-key.pem").read_bytes())
    origin, size, _, *_ = kept["checkpoints"][-1]["note"].split("\n")
    kept["checkpoints"][-1]["note"] = key.sign(f"{origin}\n{size}\n{'A' * 43}=\n")
    Path("kept.json").write_text(json.dumps(kept))
    done = run("audit", "follow", "kept.json")
    assert (done.returncode, done.stdout.split()[:2]) == (1, ["CONTRADICTION", "log_forked:"])
    assert json.loads(run("audit", "follow", "kept.json", "--json").stdout)["state"] == "log_forked"
    assert json.loads(Path("kept.json").read_text())["contradictions"][0]["code"] == "log_forked"


def test_two_checkpoints_are_compared(run: Run, outcome: str, write: Write) -> None:
    write("old.txt", run("audit", "checkpoint").stdout)
    recorded(run)
    write("new.txt", run("audit", "checkpoint").stdout)
    key = run("audit", "key").stdout.strip()
    done = run("audit", "consistency", "old.txt", "new.txt", "--key", key, "--json")
    assert (done.returncode, json.loads(done.stdout)["state"]) == (0, "extended")
    swapped = run("audit", "consistency", "new.txt", "old.txt", "--json")
    assert (swapped.returncode, json.loads(swapped.stdout)["state"]) == (1, "log_rolled_back")
    write("proof.json", {"proof": ["00" * 32]})
    forged = run("audit", "consistency", "old.txt", "new.txt", "--proof", "proof.json", "--json")
    assert (forged.returncode, json.loads(forged.stdout)["state"]) == (1, "log_forked")
    write("proof.json", "no proof")
    assert error_of(run, "audit", "consistency", "old.txt", "new.txt", "--proof", "proof.json")["code"] == (
        "proof_unavailable"
    )
    assert error_of(run, "audit", "consistency", "old.txt", "criteria.json")["code"] == "bad_note"


def test_a_receipt_is_printed_and_checked(run: Run, outcome: str, write: Write) -> None:
    write("receipt.json", run("audit", "receipt", outcome).stdout)
    assert run("audit", "receipt", "show", outcome).returncode == 0
    key = run("audit", "key").stdout.strip()
    done = run("audit", "receipt", "verify", "receipt.json", "--key", key, "--json")
    assert (done.returncode, json.loads(done.stdout)["outcome"]) == (0, outcome)
    assert run("audit", "receipt", "verify", "receipt.json").stdout.startswith(f"{outcome}, version 1: pass")
    said = json.loads(Path("receipt.json").read_text())
    write("receipt.json", {**said, "index": said["index"] - 1})
    assert run("audit", "receipt", "verify", "receipt.json").returncode == 12


def test_a_witness_cosigns_what_verify_then_asks_for(run: Run, outcome: str, write: Write, witness_url: str) -> None:
    vkey = Path("witness.txt").read_text().splitlines()[1]
    assert error_of(run, "audit", "witness", "request")["code"] == "bad_config"
    write("settings.yaml", f"audit: {{witnesses: {{partner: {{url: '{witness_url}', key: '{vkey}'}}}}}}")
    run("audit", "export", outcome, "-o", "bare.zip")
    done = run("audit", "witness", "request", "--config", "settings.yaml", "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    assert json.loads(done.stdout)["witnesses"]["partner"]["code"] == "cosigned"
    run("audit", "export", outcome, "-o", "bundle.zip")
    for given in (vkey, "witness.txt"):
        assert run("audit", "verify", "bundle.zip", "--require-witnesses", "1", "--witness", given).returncode == 0
        assert run("audit", "verify", "bare.zip", "--witness", given).returncode == 21
    assert error_of(run, "audit", "verify", "bundle.zip", "--require-witnesses", "1")["code"] == "usage"
    followed = run("audit", "follow", "kept.json", "--witness", "witness.txt", "--json")
    assert json.loads(followed.stdout)["witnesses"] == ["witness.example/w1"]
    # A witness that is gone is named, and the quorum is not reached.
    write("settings.yaml", f"audit: {{witnesses: {{partner: {{url: 'http://127.0.0.1:1', key: '{vkey}'}}}}}}")
    recorded(run)
    done = run("audit", "witness", "request", "--config", "settings.yaml")
    assert (done.returncode, done.stdout.split()[1]) == (1, "witness_unreachable")


def test_a_witness_has_a_key_before_it_serves(run: Run) -> None:
    key = run("audit", "witness", "key", "--name", "w.example").stdout
    assert key.startswith("w.example+")
    assert json.loads(run("audit", "witness", "key", "--json").stdout)["vkey"] == key.strip()
    assert error_of(run, "audit", "witness", "key", "--name", "other")["code"] == "witness_unusable"
    assert error_of(run, "audit", "witness", "serve", "--log", "nothing")["code"] == "bad_note"


@pytest.mark.parametrize(
    "settings",
    [
        "audit: {witnesses: {a: {url: 'ftp://x', key: KEY}}}",
        "audit: {witnesses: {a: {url: 'http://x', key: 'x'}}}",
        "audit: {witnesses: {a: {url: 'http://x', key: KEY}, b: {url: 'http://y', key: KEY}}}",
        "audit: {witnesses: {a: {url: 'http://x', key: KEY}}, quorum: 2}",
        "audit: {quorum: 1}",
    ],
)
def test_settings_of_witnesses_are_checked(run: Run, write: Write, settings: str) -> None:
    key = run("audit", "witness", "key").stdout.strip()
    write("settings.yaml", settings.replace("KEY", f"'{key}'"))
    assert error_of(run, "audit", "witness", "request", "--config", "settings.yaml")["code"] == "bad_config"


def test_a_service_and_a_folder_are_not_both_followed(run: Run) -> None:
    assert error_of(run, "audit", "follow", "f", "--url", "http://x", "--data", "y")["code"] == "usage"
    assert error_of(run, "audit", "follow", "f", "--url", "x")["code"] == "author_error"


def test_the_witness_answers_only_what_it_knows(witness_url: str) -> None:
    import httpx

    async def ask() -> list[int]:
        async with httpx.AsyncClient(base_url=witness_url, trust_env=False) as client:
            replies = [
                await client.get("/health"),
                await client.get("/key"),
                await client.get("/add-checkpoint"),
                await client.get("/none/checkpoint"),
                await client.get("/other"),
                await client.post("/add-checkpoint", content=b"x" * 100_000),
                await client.post("/deep/prefix/add-checkpoint", content=b"nonsense"),
            ]
            return [one.status_code for one in replies]

    assert asyncio.run(ask()) == [200, 200, 405, 404, 404, 413, 400]


def test_keys_are_rotated_and_replaced(run: Run, outcome: str) -> None:
    old = run("audit", "key").stdout.strip()
    done = run("audit", "rotate", "--json")
    assert done.returncode == 0, done.stderr
    new = run("audit", "key").stdout.strip()
    assert json.loads(done.stdout) == {"vkey": new, "retired": old}
    later = recorded(run)
    assert run("audit", "export", later, "-o", "later.zip").returncode == 0
    assert run("audit", "verify", "later.zip", "--key", new).returncode == 0
    assert run("audit", "check").returncode == 0
    assert error_of(run, "audit", "admit")["code"] == "usage"
    assert error_of(run, "audit", "admit", "nothing")["code"] == "key_not_admitted"
    root = run("audit", "root", "root.pem").stdout.strip()
    assert Path("root.pem").stat().st_mode & 0o777 == 0o600
    assert root.startswith("meruit-root+")
    Path("meruit-data/audit-key.pem").unlink()
    assert error_of(run, "audit", "key")["code"] == "store_error"
    other = SigningKey.generate("meruit-root", bytes(32))
    Path("other.pem").write_bytes(other.to_pem())
    assert error_of(run, "db", "replace-key", "--root", "other.pem")["code"] == "key_not_admitted"
    assert not Path("meruit-data/audit-key.pem").exists()
    replaced = run("db", "replace-key", "--root", "root.pem")
    assert (replaced.returncode, replaced.stdout.strip()) == (0, run("audit", "key").stdout.strip())
    recorded(run)
    assert run("audit", "check").returncode == 0
