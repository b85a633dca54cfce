"""`meruit doctor`: a verdict on the machine that a person understands."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Run

from meruit.model.kinds import Tier
from meruit.sandbox import selftest
from meruit.sandbox.selftest import Examination, TrialResult

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
