"""Prints runs: three agents, eight tasks, three tries each, as a reconciler would have recorded them."""

import math
import random
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import msgspec

from meruit.usage import (
    Assurance,
    AttributionKey,
    AttributionKind,
    CallState,
    FetchError,
    MeteredCall,
    MeteredRun,
    MeteredStep,
    Observation,
    PriceQuote,
    RunCosts,
    Tokens,
    UsageRecord,
    UsageStatus,
    decide,
    sum_tokens,
)

START = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
TASKS = ("billing-1", "billing-2", "intake-1", "intake-2", "prior-auth-1", "prior-auth-2", "referral-1", "referral-2")
STEPS = ("read", "plan", "act", "check")
TRIES = 3
PRICES = {"input": Decimal("2.50"), "cached": Decimal("0.25"), "output": Decimal("10.00")}
AGENTS = {"plodder": (0.62, 5_000), "scout": (0.93, 14_000), "sprinter": (0.80, 7_000)}
"""How often each succeeds, and how many tokens a step of it reads."""


def step_tokens(chance: random.Random, size: float, place: int) -> Tokens:
    """Later steps read what earlier ones left in the cache."""
    read = int(size * (1 + 0.6 * place) * math.exp(chance.gauss(0, 0.2)))
    written = int(read * chance.uniform(0.08, 0.2))
    return Tokens(read, written, 1, int(read * 0.15 * place), 0, written // 3)


def cost(tokens: Tokens) -> Decimal:
    """At the frozen prices."""
    fresh, cached = tokens.input - (tokens.cached or 0), tokens.cached or 0
    millions = fresh * PRICES["input"] + cached * PRICES["cached"] + tokens.output * PRICES["output"]
    return (millions / 1_000_000).quantize(Decimal("0.000001"))


def part_of(tokens: Tokens, share: float) -> Tokens:
    """What of a count has arrived so far."""
    return Tokens(int(tokens.input * share), int(tokens.output * share), tokens.requests, 0, 0, 0)


def looks(
    run: MeteredRun, truth: dict[str, Tokens], seen: Sequence[tuple[float, float | FetchError]]
) -> list[Observation]:
    """Looks so many hours after the run's end, each at a share of what was used in truth, or in vain."""
    several = []
    for number, (hours, found) in enumerate(seen, start=1):
        name, at = f"{run.id}-look-{number}", (run.ended_at or START) + timedelta(hours=hours)
        if isinstance(found, FetchError):
            several.append(Observation(name, at, error=found))
            continue
        steps = truth if found == 1 else {step: part_of(tokens, found) for step, tokens in truth.items()}
        total = sum_tokens(steps.values())
        several.append(Observation(name, at, total, steps, models=("gpt-large",), assurance=Assurance.ATTRIBUTION_KEY))
    return several


def schedule(run_id: str) -> list[tuple[float, float | FetchError]]:
    """When a run is looked at, and how much of its tokens has arrived by then."""
    if run_id == "scout-referral-1-1":
        # Late data: what was verified is withdrawn, and verified again when nothing moves any more.
        return [(0.25, 0.9), (1.5, 0.9), (24.0, 1), (25.5, 1)]
    if run_id.endswith("prior-auth-2-3"):
        return [(0.25, FetchError.NOT_READY), (0.75, 0)]
    if "billing" in run_id and run_id.endswith("-2"):
        return [(0.25, FetchError.RATE_LIMITED), (0.5, 1), (2.0, 1), (24.0, 1)]
    return [(0.25, 0.75), (1.5, 1), (3.0, 1)]


def recorded(step: str, at: datetime, tokens: Tokens, run_id: str) -> tuple[MeteredCall, ...]:
    """The calls of a step as the run saw them."""
    call = MeteredCall(at, "gpt-large", tokens)
    if run_id == "scout-referral-1-1":
        return (MeteredCall(at, "gpt-large", state=CallState.ABORTED),)
    if run_id.startswith("plodder-intake-2") and step == "act":
        return (call, MeteredCall(at, "gpt-large", state=CallState.ABORTED))
    return (call,)


def made(agent: str, task: str, number: int, chance: random.Random) -> tuple[UsageRecord, list[Observation]]:
    """Build one run, its observations and its verdict."""
    rate, size = AGENTS[agent]
    run_id, started = f"{agent}-{task}-{number}", START + timedelta(minutes=chance.randrange(0, 3_000))
    success = chance.random() < rate
    truth, steps = {}, []
    for place, name in enumerate(STEPS):
        at, tokens = started + timedelta(minutes=place), step_tokens(chance, size * (1 + len(task) / 40), place)
        # A sprinter that fails has stopped before its last step.
        stopped = agent == "sprinter" and not success and name == "check"
        calls = () if stopped else recorded(name, at, tokens, run_id)
        steps.append(MeteredStep(name, at, at + timedelta(minutes=1), not stopped, None, calls))
        extra = 1_510 if len(calls) > 1 or run_id == "scout-intake-1-2" else 0
        if not stopped:
            truth[name] = Tokens(
                tokens.input + extra, tokens.output, 1 + bool(extra), tokens.cached, 0, tokens.reasoning
            )
    run = MeteredRun(
        run_id,
        agent,
        attribution_key=AttributionKey(AttributionKind.KEY, f"key_{agent}"),
        started_at=started,
        ended_at=started + timedelta(minutes=len(STEPS)),
        steps=tuple(steps),
        task=task,
        success=success,
        score=round(chance.uniform(0.85, 1) if success else chance.uniform(0.1, 0.6), 2),
    )
    attempts = looks(run, truth, schedule(run_id))
    verdict = decide(run.for_judging, attempts)
    quoted = cost(verdict.tokens) if verdict.status is UsageStatus.VERIFIED and verdict.tokens else None
    quote = PriceQuote(
        "example-prices", "2026.3", "5d41402abc4b2a76" * 4, "openai", "gpt-large", "gpt-large", started, PRICES
    )  # fmt: skip
    return UsageRecord(
        run,
        seq=1,
        attempts=len(attempts),
        verdict=verdict,
        last_observation_at=attempts[-1].at,
        quotes=(quote,),
        ledger=RunCosts(quoted, quoted if agent == "scout" else None, Decimal("2.00") if success and quoted else None),
    ), attempts


def world() -> tuple[list[UsageRecord], dict[str, list[Observation]]]:
    """Build every run with its observations."""
    chance = random.Random(20)  # noqa: S311 - an example's numbers
    found = [made(agent, task, number, chance) for agent in AGENTS for task in TASKS for number in range(1, TRIES + 1)]
    records = [msgspec.structs.replace(record, seq=seq) for seq, (record, _) in enumerate(found, start=1)]
    return records, {record.run.id: several for record, several in found}


if __name__ == "__main__":
    runs, looked = world()
    sys.stdout.buffer.write(msgspec.json.encode({"records": runs, "attempts": looked}))
