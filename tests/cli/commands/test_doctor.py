"""`meruit doctor`: a verdict on the machine that a person understands."""

import json
from pathlib import Path

import pytest
from sqlalchemy import select, update
from tests.cli.conftest import Run

from meruit.log.cosignature import cosign, witness_key
from meruit.log.entries import CriteriaEntry
from meruit.log.note import SigningKey, split_note
from meruit.model.kinds import Tier
from meruit.sandbox import selftest
from meruit.sandbox.selftest import Examination, TrialResult
from meruit.store import tables
from meruit.store.location import KEY_FILE, Location
from meruit.store.store import Store

HELD = TrialResult("reads files", held=True, saw="crashed")
BROKEN = TrialResult("forks", held=False, saw="{'gained': 7}")


def test_a_sound_machine_passes(run: Run) -> None:
    done = run("doctor")
    assert done.returncode == 0
    assert done.stdout.count("ready") == 3
    assert "python-full" in done.stderr


def test_every_trial_is_shown_on_request(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "examine", lambda tier: Examination(tier, "e", True, "", [HELD]))
    assert "reads files" not in run("doctor").stdout
    assert "reads files  yes   crashed" in run("doctor", "--verbose").stdout


def test_a_broken_wall_fails_and_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "a wall is broken: forks"

    def examine(tier: Tier) -> Examination:
        broken = tier is Tier.PYTHON_FULL
        return Examination(tier, "e", not broken, reason if broken else "", [HELD, BROKEN] if broken else [HELD])

    monkeypatch.setattr(selftest, "examine", examine)
    done = run("doctor")
    assert done.returncode == 1
    assert f"error: python-full: {reason}" in done.stdout
    assert "forks  NO    {'gained': 7}" in done.stdout
    found = json.loads(run("doctor", "--json").stdout)["tiers"]
    assert [one["ready"] for one in found] == [True, True, False]


def test_programs_get_json_and_what_the_operator_allows(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "examine", lambda tier: Examination(tier, "e", True, "", [HELD]))
    told = json.loads(run("doctor", "--json").stdout)
    assert [(tier["tier"], tier["allowed"]) for tier in told["tiers"]] == [
        ("expr", True),
        ("python", True),
        ("python-full", False),
    ]
    custom = "{class: CustomExtractor, sandbox: {allow_python_full: true}}"
    Path("mine.yaml").write_text(f"extractors: {{custom: {custom}}}\n")
    told = json.loads(run("doctor", "--json", "--config", "mine.yaml").stdout)
    assert all(tier["allowed"] for tier in told["tiers"])
    Path("none.yaml").write_text("extractors: {latency: {class: LatencyExtractor}}\n")
    told = json.loads(run("doctor", "--json", "--config", "none.yaml").stdout)
    assert not any(tier["allowed"] for tier in told["tiers"])


def test_the_audit_log_and_its_witnesses_are_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "examine", lambda tier: Examination(tier, "e", True, "", [HELD]))
    assert json.loads(run("doctor", "--json").stdout)["audit_log"] is None
    assert run("doctor", "--data", "missing").returncode == 2
    store = Store.open(Location(Path("records")))
    signers = {name: SigningKey.generate(name, bytes([len(name)] * 32)) for name in ("ann", "bernard")}
    with store.database.reading() as connection:
        note = str(connection.execute(select(tables.checkpoints.c.note)).scalar_one())
    cosigned = note + cosign(signers["ann"], split_note(note)[0], 1_800_000_000)
    with store.database.writer.begin() as connection:
        connection.execute(update(tables.checkpoints).values(note=cosigned))
    store.close()
    witnesses = {name: {"url": "https://w.example", "key": witness_key(one).vkey} for name, one in signers.items()}
    Path("witnessed.json").write_text(json.dumps({"audit": {"witnesses": witnesses}}))
    asked = ("doctor", "--data", "records", "--config", "witnessed.json")
    log = json.loads(run(*asked, "--json").stdout)["audit_log"]
    assert (log["entries"], log["signing"], log["root"]) == (1, "ok", "none")
    assert log["witnesses"] == [
        {"name": "ann", "entries": 1, "time_s": 1_800_000_000},
        {"name": "bernard", "entries": None, "time_s": None},
    ]
    shown = run(*asked)
    assert shown.returncode == 0
    assert "2027-01-15T08:00:00" in shown.stdout
    assert "witnesses: none" in run("doctor", "--data", "records").stdout
    # A root on the first day is as old as the log; a later one is not.
    assert run("audit", "root", "root.pem", "--data", "records").returncode == 0
    assert json.loads(run(*asked, "--json").stdout)["audit_log"]["root"] == "founding"
    assert "as old" in run(*asked).stdout


def test_a_late_root_and_a_retired_key_are_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "examine", lambda tier: Examination(tier, "e", True, "", [HELD]))
    store = Store.open(Location(Path("records")))
    for number in range(2):
        store.recorder.write(
            lambda writing, number=number: writing.append(
                CriteriaEntry(writing.now.written, "t", f"{number:064x}"), "t"
            )
        )
    store.close()
    assert run("audit", "root", "root.pem", "--data", "records").returncode == 0
    assert "after other entries" in run("doctor", "--data", "records").stdout
    key = Path("records") / KEY_FILE
    old = key.read_bytes()
    assert run("audit", "rotate", "--data", "records").returncode == 0
    key.write_bytes(old)
    done = run("doctor", "--data", "records")
    assert done.returncode == 1
    assert "key_not_admitted" in done.stdout
