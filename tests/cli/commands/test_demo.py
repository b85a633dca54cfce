"""`meruit demo`: the marketplace and the bill, told the same every time; the former played by hand from its files."""

import io
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from decimal import Decimal
from pathlib import Path

import pytest
from tests.golden import check_golden

from meruit.cli import main
from meruit.cli.commands.demo import CASES
from meruit.cli.demo import marketplace as market_day

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def told() -> str:
    """What the demo prints."""
    with redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit):
        main(["demo"])
    return printed.getvalue()


def marketplace(told: str) -> str:
    return told[told.index("== marketplace:") : told.index("\n== token usage:")]


def bill(told: str) -> str:
    return told[told.index("== token usage:") :]


def test_the_demo_prints_the_same_every_time(run: Run, told: str) -> None:
    assert run("demo").stdout == told
    assert not re.search(r"\b(wrk|con|out)_[0-9a-f]+|\d\d:\d\d:\d\d", told)


def test_each_of_the_three_agents_gets_what_it_deserves(run: Run) -> None:
    market = json.loads(run("demo", "--json").stdout)[-2]["marketplace"]
    states = [(one["agent"], one["state"], one["escrow"]) for one in market["agents"]]
    assert states == [("honest", "settled", "paid"), ("weak", "settled", "paid"), ("cheating", "failed", "released")]
    honest, weak, cheating = market["agents"]
    assert (honest["settlement"]["payout"], honest["settlement"]["fee"]) == ("0.153", "0.027")
    assert weak["settlement"]["total"] == "0.08"
    assert (cheating["settlement"], "canary_leak" in cheating["held"]) == (None, True)
    assert (market["sums"], market["broken"]) == ({"USD": "0"}, [])


@pytest.mark.golden
def test_the_demo_reads_as_recorded(told: str) -> None:
    check_golden("cli/demo", told)


def test_only_what_is_verified_of_a_bill_has_a_cost(told: str) -> None:
    rows = {line.split()[0]: line for line in bill(told).splitlines() if "→" in line}
    assert rows.keys() == {"frugal", "leaky", "late"}
    assert "pending → verified → verified → verified  0.0111 USD" in rows["frugal"]
    assert "warning  " in rows["leaky"]
    assert "unknown" in rows["leaky"]
    assert "verified → pending → verified " in rows["late"]
    assert rows["late"].endswith("withdrawn 1 time")


def test_programs_get_the_results_then_the_marketplace_and_the_bill(run: Run) -> None:
    *results, last, bill = json.loads(run("demo", "--json").stdout)
    assert [(one["agent"], one["verification_status"], one["withdrawn"]) for one in bill["usage"]] == [
        ("frugal", "verified", 0),
        ("leaky", "warning", 0),
        ("late", "verified", 1),
    ]
    assert [result["contract_id"] for result in results] == [f"{case.story}-{case.agent}" for case in CASES]
    found = last["marketplace"]
    assert [(one["agent"], one["state"]) for one in found["agents"]] == [
        ("honest", "settled"),
        ("weak", "settled"),
        ("cheating", "failed"),
    ]
    assert sum(Decimal(one["balance"]) for one in found["balances"]) == 0
    assert (found["sums"], found["broken"]) == ({"USD": "0"}, [])
    assert json.loads(run("demo", "--json").stdout)[-2:] == [last, bill]


def test_violations_in_the_books_are_printed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(market_day, "find_violations", lambda _: ["something is missing"])
    assert marketplace(run("demo").stdout).endswith("something is missing\n1 violations: 3 contracts\n")


def test_nothing_of_the_demo_stays_behind(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    assert run("demo").returncode == 0
    assert [*temporary.iterdir()] == []
    assert not Path("meruit-data").exists()


def test_the_marketplace_runs_by_hand_as_its_page_says(run: Run, meruit_at_hand: Path) -> None:
    ended = run("demo", "--write", "stories")
    assert "stories/marketplace/README.md" in ended.stderr
    page = Path("stories/marketplace/README.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    path = f"{meruit_at_hand}{os.pathsep}{os.environ['PATH']}"
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
    assert re.search(r"is failed: 0\.18 USD .*town-council\n", played.stdout)
    assert played.stdout.endswith(": 3 contracts\n")
