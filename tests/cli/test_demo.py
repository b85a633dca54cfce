"""`meruit demo`: the marketplace, told the same every time, and played by hand from its files."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from meruit.cli import market_day
from meruit.cli.demo import CASES

Run = Callable[..., subprocess.CompletedProcess[str]]


def marketplace(told: str) -> str:
    return told[told.index("== marketplace:") :]


def test_the_marketplace_is_told_the_same_every_time(run: Run) -> None:
    first, second = (run("demo").stdout for _ in range(2))
    assert first == second
    assert not re.search(r"\b(wrk|con|out)_[0-9a-f]+|\d\d:\d\d:\d\d", first)


def test_each_of_the_three_agents_gets_what_it_deserves(run: Run) -> None:
    told = marketplace(run("demo").stdout)
    assert re.findall(r"^the contract is (\w+[ \w]*): (.*)$", told, re.MULTILINE) == [
        ("settled", "0.18 USD paid"),
        ("settled", "0.08 USD paid"),
        ("verification pending", "0.18 USD held (governance invalid: canary_leak, reference_copy)"),
        ("failed", "called off, 0.18 USD back with town-council"),
    ]
    assert "paid: 0.153 USD to the agent honest, 0.027 USD to the platform\n" in told
    assert f"a person looks, and calls it off: {market_day.VOIDED}\n" in told
    assert told.endswith("all balances together: 0 USD\nthe books are sound: 3 contracts\n")


def test_programs_get_the_results_and_then_the_marketplace(run: Run) -> None:
    *results, last = json.loads(run("demo", "--json").stdout)
    assert [result["contract_id"] for result in results] == [f"{case.story}-{case.agent}" for case in CASES]
    found = last["marketplace"]
    assert [(one["agent"], one["state"]) for one in found["agents"]] == [
        ("honest", "settled"),
        ("weak", "settled"),
        ("cheating", "failed"),
    ]
    assert sum(Decimal(one["balance"]) for one in found["balances"]) == 0
    assert (found["sums"], found["broken"]) == ({"USD": "0"}, [])
    assert json.loads(run("demo", "--json").stdout)[-1] == last


def test_books_that_are_not_sound_are_not_told_as_if_they_were(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(market_day, "broken", lambda _: ["something is missing"])
    assert run("demo").stdout.endswith("something is missing\n1 violations: 3 contracts\n")


def test_nothing_of_the_demo_stays_behind(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    assert run("demo").returncode == 0
    assert [*temporary.iterdir()] == []
    assert not Path("meruit-data").exists()


def test_the_marketplace_is_played_by_hand_as_its_page_says(run: Run) -> None:
    ended = run("demo", "--write", "stories")
    assert ended.stderr.endswith("note: the marketplace is played by hand as stories/marketplace/README.md says\n")
    page = Path("stories/marketplace/README.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    played = subprocess.run(
        ["sh", "-c", script],
        cwd="stories/marketplace",
        env={**os.environ, "PATH": path, "TMPDIR": str(Path.cwd())},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert played.returncode == 0, played.stderr
    assert "is failed: called off, 0.18 USD back with town-council\n" in played.stdout
    assert played.stdout.endswith("the books are sound: 3 contracts\n")
