"""A market stall for tests: work published, contracts awarded and completed as a shell would do it."""

import json
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from meruit.contracts.invariants import find_violations
from meruit.contracts.store.ledger import books, tenants
from meruit.store.location import Location
from meruit.store.store import ClockAndEntropy, Store

Run = Callable[..., subprocess.CompletedProcess[str]]

REFERENCE = "the quick brown fox jumps over the lazy dog and runs home through the dark wood to its den"
CANARY = "heron-feather-77"
# Prices: 0.05 for completion, 0.03 + 0.02 in bonuses capped at 0.04, a penalty of 0.01, 15 % to the platform.
WORK: dict[str, Any] = {
    "title": "Tell the story of the fox",
    "consumer_id": "buyer",
    "input": {"text": "What did the fox do?", "reference": f"{REFERENCE} {CANARY}"},
    "canaries": [CANARY],
    "success_criteria": {
        "criteria": [
            {
                "metric": "word_count",
                "metric_type": "count",
                "comparison": "gte",
                "threshold": 3,
                "bonus": "0.03",
            },
            {
                "metric": "rougeL",
                "metric_type": "rouge_score",
                "comparison": "gte",
                "threshold": 0.5,
                "bonus": "0.02",
                "penalty": "0.01",
            },
        ]
    },
    "terms": {"cpc_rate": "0.05", "platform_fee_rate": 0.15},
    "budget": {"max_cpa_total": "0.04"},
}
GOOD = {"text": "the quick brown fox jumps over a lazy dog and goes home through the wood to its den"}
BAD = {"text": "I know nothing about foxes"}
LEAKED = {"text": f"{REFERENCE} {CANARY}"}


def with_terms(**terms: Any) -> dict[str, Any]:
    """The usual work on other terms."""
    return {**WORK, "terms": {**WORK["terms"], **terms}}


class Stall:
    """What a buyer types, with the answers taken apart."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def submit(self, work: Any = WORK, *more: str) -> str:
        """Publish work; its id."""
        ended = self.run("work", "submit", put("work.json", work), *more)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()

    def award(self, work_id: str, agent: str = "ada", *more: str) -> str:
        """Give it to an agent; the contract's id."""
        ended = self.run("contract", "award", work_id, "--agent-id", agent, *more)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()

    def awarded(self, work: Any = WORK, agent: str = "ada") -> str:
        """A new contract on new work."""
        return self.award(self.submit(work), agent)

    def complete(self, contract: str, output: Any = GOOD, *more: str) -> subprocess.CompletedProcess[str]:
        """Hand something in."""
        return self.run("contract", "complete", contract, "--output", put("output.json", output), *more)

    def settled(self, work: Any = WORK, agent: str = "ada") -> str:
        """A contract that was completed well and paid."""
        contract = self.awarded(work, agent)
        assert self.complete(contract).returncode == 0
        return contract

    def held(self, agent: str = "eve") -> str:
        """A contract that waits for a person, because governance believes nothing of it."""
        contract = self.awarded(WORK, agent)
        assert self.complete(contract, LEAKED).returncode == 3
        return contract

    def show(self, contract: str) -> dict[str, Any]:
        """How a contract stands."""
        found: dict[str, Any] = json.loads(self.run("contract", "show", contract, "--json").stdout)
        return found

    def balances(self) -> dict[str, str]:
        """What every account comes to."""
        found = json.loads(self.run("ledger", "balances", "--json").stdout)["balances"]
        return {one["account"]: one["balance"] for one in found}


def put(name: str, content: Any) -> str:
    """A file in the folder: text as it is, anything else as JSON."""
    Path(name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return name


def conserved() -> None:
    """Whatever was typed, the books are sound."""
    if not Path("meruit-data").exists():
        return
    store = Store.open(Location(Path("meruit-data")))
    try:
        with store.database.reading() as connection:
            for tenant in tenants(connection):
                assert find_violations(books(connection, tenant)) == []
    finally:
        store.close()


class Clock:
    """A clock that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
        usual = Store.open

        def opened(location: Location, *_: Any, **more: Any) -> Store:
            return usual(location, ClockAndEntropy(clock=lambda: self.now), **more)

        monkeypatch.setattr(Store, "open", opened)

    def forward(self, **by: float) -> None:
        """Let time pass."""
        self.now += timedelta(**by)
