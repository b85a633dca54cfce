"""The demo's token usage: three agents at a local provider, observed until their counts are verified."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import msgspec

from meruit.cli.terminal import print_table, say
from meruit.model.metering import UsageAccount, UsageRecord
from meruit.model.usage import Tokens
from meruit.playground.billing.server import ADMIN_KEY, ProviderServer
from meruit.store.location import Location
from meruit.store.store import ClockAndEntropy, Store
from meruit.usage.meter import metered_run
from meruit.usage.providers.support.source_factory import open_source
from meruit.usage.reconcile.reconciler import Account, Reconciler
from meruit.usage.records import iterate_all

A_DAY = datetime(2026, 3, 20, 9, 0, tzinfo=UTC)
"""A fixed clock, so that every demo prints the same."""
ROUNDS = (15, 65, 24 * 60, 65)
"""Minutes between observations."""
MODEL = "gpt-4o-2024-08-06"
LATER = timedelta(hours=2)
ACCOUNT = "demo"
AGENTS = {
    "frugal": "counts every response, as its provider does",
    "leaky": "does not count a response that it aborted, but its provider does",
    "late": "aborts a response too and reports it; its provider bills it two hours later",
}
STEPS = ("plan", "draft", "check")


class MeteredDay(msgspec.Struct, frozen=True):
    """The status of each agent's usage after each observation, and the final records."""

    records: dict[str, UsageRecord]
    statuses: dict[str, list[str]]

    # Any: JSON for programs.
    def to_dicts(self) -> list[dict[str, Any]]:
        """The day as JSON."""
        return [
            {
                "agent": name,
                "history": self.statuses[name],
                "verification_status": one.verdict.status,
                "verification_message": one.verdict.message,
                "withdrawn": one.verdict.withdrawn,
                "cost_quoted": None if one.ledger.quoted is None else str(one.ledger.quoted),
            }
            for name, one in self.records.items()
        ]


def run_metered_day() -> MeteredDay:
    """Record three runs and observe them four times, by a simulated clock; nothing leaves this machine."""
    clock = DemoClock(A_DAY)
    with TemporaryDirectory() as folder, ProviderServer(clock=clock) as provider:
        store = Store.open(Location(Path(folder)), ClockAndEntropy(clock=clock))
        try:
            for name in AGENTS:
                record_run(store, provider, name, clock)
            return asyncio.run(observe(store, provider, clock))
        finally:
            store.close()


class DemoClock:
    """A clock that changes only when it is moved."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def __call__(self) -> datetime:
        """The time of the demo."""
        return self.now

    def pass_by(self, **length: float) -> None:
        """Let time pass."""
        self.now += timedelta(**length)


def print_metered_day(day: MeteredDay) -> None:
    """Print the agents with their statuses and costs."""
    say("\n== token usage: what three agents report, and what their provider counts\n")
    rows = []
    for name, one in day.records.items():
        cost = "unknown" if one.ledger.quoted is None else f"{one.ledger.quoted} USD"
        withdrawn = f", withdrawn {one.verdict.withdrawn} time" if one.verdict.withdrawn else ""
        rows.append([name, " → ".join(day.statuses[name]), cost, one.verdict.message + withdrawn])
    print_table(["agent", "after 15 min, 80 min, a day, and an hour", "cost", "final message"], rows)
    for name, description in AGENTS.items():
        say(f"  - {name}: {description}")


def record_run(store: Store, provider: ProviderServer, name: str, clock: DemoClock) -> None:
    """Record one agent's run; its calls are counted by the agent and by the provider."""
    attribution_key = f"key_{name}"
    with metered_run(
        name,
        task="summary",
        source=ACCOUNT,
        attribution_key=f"key:{attribution_key}",
        run_id=f"run-{name}",
        store=store,
        clock=clock,
    ) as run:
        for place, step in enumerate(STEPS):
            with run.step(step) as doing:
                tokens = Tokens(900 + 100 * place, 120, 1, 0)
                provider.use(clock.now, MODEL, tokens, key=attribution_key)
                doing.add(_response(tokens))
                if step == "draft" and name != "frugal":
                    later = LATER if name == "late" else None
                    provider.use(clock.now, MODEL, Tokens(1000, 40, 1, 0), key=attribution_key, visible_after=later)
                if step == "draft" and name == "late":
                    doing.add_aborted_call(model=MODEL)
                clock.pass_by(minutes=2)
        run.success = True


def _response(tokens: Tokens) -> dict[str, Any]:
    usage = {
        "prompt_tokens": tokens.input,
        "completion_tokens": tokens.output,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    return {"model": MODEL, "usage": usage}


async def observe(store: Store, provider: ProviderServer, clock: DemoClock) -> MeteredDay:
    """Ask the provider in rounds, until it can be said what was used."""
    account = UsageAccount(provider="openai", base_url=provider.url, key_variable="KEY")
    statuses: dict[str, list[str]] = {name: [] for name in AGENTS}
    records: dict[str, UsageRecord] = {}
    async with httpx.AsyncClient(trust_env=False) as client:
        source = open_source(account, client=client, environment={"KEY": ADMIN_KEY}, clock=clock)
        reconciler = Reconciler(store, {ACCOUNT: Account(ACCOUNT, "openai", source)})
        for minutes in ROUNDS:
            clock.pass_by(minutes=minutes)
            await reconciler.run_once()
            with store.database.reading() as connection:
                for one in iterate_all(connection, "default"):
                    records[one.run.framework] = one
                    statuses[one.run.framework].append(one.verdict.status)
    return MeteredDay(records, statuses)
