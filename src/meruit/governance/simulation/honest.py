"""What honest agents do: output, accuracy, claims, times and tokens."""

import random
from typing import Any

from msgspec.structs import replace

from meruit.governance.simulation.agents import CONSUMERS, SimulatedAgent, SimulatedOutcome
from meruit.model.evidence import Provenance
from meruit.model.governance import Dossier, MetricFact
from meruit.model.kinds import MetricType

DAY_S = 86_400
ACCURACY_MIN = 0.9
BONUS_FROM = 0.95
BONUS_MICROS = 500_000
LATENCY_MAX_MS = 5_000.0
WORDS = tuple(
    f"{first}{second}" for first in "bcdfghjklmnprstvw" for second in ("alo", "eri", "ino", "otu", "uma", "yse")
)
SHORT_ANSWERS = ("yes", "no", "42", "Paris", "none of these")


def honest_outcome(rng: random.Random, agent: SimulatedAgent, number: int, day: int) -> SimulatedOutcome:
    """One outcome of an honest agent."""
    input_id, work = f"input-{number}", rng
    if agent.kind == "repeated inputs":
        # A deterministic agent gives the same output for the same input, in a new run.
        input_id = f"input-of-{agent.id}-{rng.randrange(12)}"
        work = random.Random(input_id)  # noqa: S311 - as above
    output = draw_output(work, agent)
    accuracy = _accuracy(work, agent)
    latency_ms = min(60_000.0, 1000 * rng.lognormvariate(0.2, 0.5))
    impossible = rng.random() < 0.005
    if impossible:
        accuracy = round(accuracy / 2, 4)
    dossier = Dossier(
        contract_id=f"contract-{number}",
        work_id=input_id,
        agent_id=agent.id,
        consumer_id=agent.favourite if rng.random() < agent.loyalty else f"consumer-{rng.randrange(CONSUMERS)}",
        metrics=facts_of(accuracy, latency_ms, len(output.split())),
        claims={"accuracy": _claim(rng, agent, accuracy)},
        success=accuracy >= ACCURACY_MIN and latency_ms <= LATENCY_MAX_MS,
        evaluator_before={"tests": "5e1f", "reference": "a0c3"},
        evaluator_after={"tests": "5e1f", "reference": "a0c3"},
        canary_intact=True,
        canaries=3,
        output_chars=len(output),
        reference_similarity=_similarity(rng, agent),
        impossible=impossible,
    )
    timed = replace(dossier, **_times(rng, agent, latency_ms, day), **_usage(rng, output))
    return SimulatedOutcome(
        agent=agent, dossier=timed, output=output, input_id=input_id, evidence_id=f"run-{number}", day=day
    )


def draw_output(rng: random.Random, agent: SimulatedAgent) -> str:
    """A text that the agent would write."""
    if agent.kind == "short answers":
        return rng.choice(SHORT_ANSWERS)
    return " ".join(rng.choices(WORDS, k=rng.randint(25, 60)))


def _accuracy(rng: random.Random, agent: SimulatedAgent) -> float:
    match agent.kind:
        case "specialist":
            return 1.0 if rng.random() < 0.92 else round(rng.uniform(0.94, 1.0), 4)
        case "near the threshold":
            return round(rng.uniform(0.885, 0.935), 4)
        case "few items graded":
            return sum(rng.random() < agent.skill for _ in range(20)) / 20
        case _:
            return round(min(1.0, max(0.0, rng.gauss(agent.skill, 0.03))), 4)


def _claim(rng: random.Random, agent: SimulatedAgent, accuracy: float) -> float:
    match agent.kind:
        case "percent claims":
            return round(accuracy * 100, rng.choice((0, 1, 2)))
        case "rounded claims":
            return round(accuracy, rng.choice((1, 2)))
        case _:
            return accuracy


def _similarity(rng: random.Random, agent: SimulatedAgent) -> float | None:
    if agent.kind == "short answers":
        return 1.0 if rng.random() < 0.9 else 0.2
    return rng.betavariate(6, 4) if rng.random() < 0.7 else None


def facts_of(accuracy: float, latency_ms: float, words: int) -> list[MetricFact]:
    """The three metrics of every outcome."""
    met, quick = accuracy >= ACCURACY_MIN, latency_ms <= LATENCY_MAX_MS
    return [
        MetricFact(
            metric="accuracy",
            criterion_id="accuracy",
            value=accuracy,
            kind=MetricType.ACCURACY,
            provenance=Provenance.COMPUTED,
            met=met,
            margin=(accuracy - ACCURACY_MIN) / ACCURACY_MIN if met else None,
            bonus_micros=BONUS_MICROS if accuracy >= BONUS_FROM else 0,
        ),
        MetricFact(
            metric="latency_ms",
            criterion_id="quick",
            value=latency_ms,
            kind=MetricType.LATENCY,
            provenance=Provenance.OBSERVED,
            met=quick,
            margin=(LATENCY_MAX_MS - latency_ms) / LATENCY_MAX_MS if quick else None,
        ),
        MetricFact(
            metric="word_count",
            criterion_id="length",
            value=float(words),
            kind=MetricType.COUNT,
            provenance=Provenance.COMPUTED,
            met=True,
        ),
    ]


def _times(rng: random.Random, agent: SimulatedAgent, latency_ms: float, day: int) -> dict[str, float]:
    """Durations and clocks; the observed time includes the network, which stalls now and then."""
    way_ms = rng.expovariate(1 / 15) + (rng.uniform(200, 2000) if rng.random() < 0.005 else 0)
    start = day * DAY_S + rng.uniform(0, DAY_S)
    jitter_s, skew_s = (0.2, 4.0) if agent.kind == "jittery clock" else (0.02, 0.5)
    # If the clock is set back in between, short work seems to end before it started.
    took_s = rng.uniform(-jitter_s, 0.05) if agent.kind == "jittery clock" else latency_ms / 1000
    return {
        "claimed_ms": latency_ms,
        "observed_ms": latency_ms + way_ms,
        "started_at": start,
        "ended_at": start + took_s,
        "received_at": start + took_s + way_ms / 1000 + rng.uniform(-skew_s, skew_s),
    }


def _usage(rng: random.Random, output: str) -> dict[str, Any]:
    """Tokens: tokenizers differ by a few, or by a percent of many."""
    written = max(1, round(len(output) / 4))
    counted = written + rng.randint(200, 4000)
    apart = rng.choice((0, 0, 0, rng.randint(-4, 4), round(counted * rng.uniform(-0.015, 0.015))))
    return {
        "output_tokens": float(written),
        "claimed_tokens": float(counted + apart),
        "provider_tokens": float(counted),
        "usage_reconciled": rng.random() < 0.7,
    }
