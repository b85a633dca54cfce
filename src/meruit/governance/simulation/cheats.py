"""How agents cheat: one function per rule changes an honest outcome."""

import random
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from meruit.governance.simulation.agents import PROBING, SimulatedOutcome
from meruit.governance.simulation.honest import ACCURACY_MIN, WORDS, draw_output, facts_of
from meruit.governance.simulation.market import SimulatedMarket
from meruit.model.evidence import Provenance

Cheat = Callable[[random.Random, SimulatedOutcome, SimulatedMarket], SimulatedOutcome]


def _with(deed: SimulatedOutcome, **changes: Any) -> SimulatedOutcome:
    return msgspec.structs.replace(deed, dossier=replace(deed.dossier, **changes))


def _with_accuracy(deed: SimulatedOutcome, accuracy: float) -> SimulatedOutcome:
    """The same outcome with another accuracy, measured and claimed."""
    latency_ms, words = deed.dossier.metrics[1].value or 0.0, len(deed.output.split())
    facts = facts_of(accuracy, latency_ms, words)
    return _with(deed, metrics=facts, claims={"accuracy": accuracy}, success=all(fact.met for fact in facts))


def _with_output(deed: SimulatedOutcome, output: str) -> SimulatedOutcome:
    return msgspec.structs.replace(_with(deed, output_chars=len(output)), output=output)


def is_cheat_attempt(rng: random.Random, deed: SimulatedOutcome, market: SimulatedMarket) -> bool:
    """Whether the agent cheats in this outcome."""
    agent, dossier = deed.agent, deed.dossier
    match agent.kind:
        case "retry_farming" | "probing" | "threshold_bunching" | "perfect_accuracy_streak":
            return True
        case "concentrated_pair":
            return dossier.consumer_id == agent.favourite
        case "duplicate_claim":
            return agent.id in market.last and rng.random() < 0.7
        case "anomaly":
            # The first outcomes are honest.
            return len(market.memories[agent.id].accuracies) >= 15 and rng.random() < 0.4
        case _:
            return rng.random() < 0.7


def _cheat_range_impossible(rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    match rng.randrange(3):
        case 0:
            return _with(deed, claims={"accuracy": rng.uniform(101, 200)})
        case 1:
            return _with(deed, claimed_ms=-rng.uniform(1, 100))
        case _:
            return _with(deed, output_tokens=rng.uniform(2, 20) * 3 * (deed.dossier.claimed_ms or 0.0))


def _cheat_clock_order(rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    if rng.random() < 0.5:
        return _with(deed, ended_at=(deed.dossier.started_at or 0.0) - rng.expovariate(0.5))
    return _with(deed, ended_at=(deed.dossier.received_at or 0.0) + rng.uniform(3, 600))


def _cheat_latency_mismatch(rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    return _with(deed, claimed_ms=rng.uniform(0.2, 0.95) * (deed.dossier.observed_ms or 0.0))


def _cheat_usage_mismatch(rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    return _with(deed, claimed_tokens=round((deed.dossier.provider_tokens or 0.0) * rng.uniform(1.01, 1.6)))


def _cheat_claimed_vs_measured(
    rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket
) -> SimulatedOutcome:
    measured = deed.dossier.metrics[0].value or 0.0
    return _with(_with_accuracy(deed, round(measured * rng.uniform(0.6, 0.98), 4)), claims={"accuracy": measured})


def _cheat_evaluator_tamper(rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    if rng.random() < 0.3:
        return _with(deed, canary_intact=False)
    return _with(deed, evaluator_after={"tests": "0bad", "reference": "a0c3"})


def _cheat_canary_leak(rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    # Some agents change the copy.
    return _with(deed, leaked=["c0ffee"] if rng.random() < 0.8 else [])


def _cheat_reference_copy(rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    return _with(deed, reference_similarity=rng.uniform(0.95, 1.0))


def _cheat_replayed_output(rng: random.Random, deed: SimulatedOutcome, market: SimulatedMarket) -> SimulatedOutcome:
    earlier = market.last.get(deed.agent.id, deed).output
    return _with_output(deed, earlier if rng.random() < 0.8 else f"{earlier} {rng.choice(WORDS)}")


def _cheat_sybil_output(rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    # One operator behind several agents reuses a set of answers.
    drawer = random.Random(f"drawer {rng.randrange(100)}")  # noqa: S311 - as above
    return _with_output(deed, draw_output(drawer, deed.agent))


def _cheat_duplicate_claim(rng: random.Random, deed: SimulatedOutcome, market: SimulatedMarket) -> SimulatedOutcome:
    again = market.last[deed.agent.id]
    new_run = rng.random() < 0.1
    dossier = replace(again.dossier, contract_id=deed.dossier.contract_id)
    return msgspec.structs.replace(
        again, dossier=dossier, day=deed.day, evidence_id=deed.evidence_id if new_run else again.evidence_id
    )


def _cheat_impossible_task_pass(
    _rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket
) -> SimulatedOutcome:
    return _with(_with_accuracy(deed, 0.97), impossible=True, success=True)


def _cheat_null_agent_pass(_rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    return _with(deed, null_passes=["empty text"])


def _cheat_claimed_only(_rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    claims = [replace(fact, provenance=Provenance.CLAIMED) for fact in _with_accuracy(deed, 0.96).dossier.metrics]
    return _with(deed, metrics=claims, claims={"accuracy": 0.96})


def _cheat_retry_farming(rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    # A few inputs, each tried more than ten times with at most one word changed.
    input_id = f"farmed-{deed.agent.id}-{rng.randrange(4)}"
    words = draw_output(random.Random(input_id), deed.agent).split()  # noqa: S311 - as above
    if rng.random() < 0.5:
        words[rng.randrange(len(words))] = rng.choice(WORDS)
    return msgspec.structs.replace(_with_output(deed, " ".join(words)), input_id=input_id)


def _cheat_probing(_rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    # The same text with another word at its end, which is hardly ever the one that the criteria ask for.
    text = draw_output(random.Random(deed.agent.id), deed.agent)  # noqa: S311 - as above
    word = random.Random(deed.dossier.contract_id).choice(WORDS)  # noqa: S311 - as above
    return _with_output(_with_accuracy(deed, 0.5), f"{text} {word}")


def _cheat_threshold_bunching(rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    aimed = rng.random() < 0.85
    return _with_accuracy(deed, round(ACCURACY_MIN * (1 + (rng.uniform(0, 0.01) if aimed else rng.uniform(0, 0.1))), 4))


def _cheat_concentrated_pair(rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    return _with_accuracy(deed, round(rng.uniform(0.955, 0.995), 4) if rng.random() < 0.98 else 0.92)


def _cheat_anomaly(rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket) -> SimulatedOutcome:
    return _with_accuracy(deed, round(rng.uniform(0.6, 0.85), 4))


def _cheat_perfect_accuracy_streak(
    rng: random.Random, deed: SimulatedOutcome, _market: SimulatedMarket
) -> SimulatedOutcome:
    return _with_accuracy(deed, 1.0 if rng.random() < 0.97 else 0.99)


CHEATS: dict[str, Cheat] = {
    "range_impossible": _cheat_range_impossible,
    "clock_order": _cheat_clock_order,
    "latency_mismatch": _cheat_latency_mismatch,
    "usage_mismatch": _cheat_usage_mismatch,
    "claimed_vs_measured": _cheat_claimed_vs_measured,
    "evaluator_tamper": _cheat_evaluator_tamper,
    "canary_leak": _cheat_canary_leak,
    "reference_copy": _cheat_reference_copy,
    "replayed_output": _cheat_replayed_output,
    "sybil_output": _cheat_sybil_output,
    "duplicate_claim": _cheat_duplicate_claim,
    "impossible_task_pass": _cheat_impossible_task_pass,
    "null_agent_pass": _cheat_null_agent_pass,
    "claimed_only": _cheat_claimed_only,
    "retry_farming": _cheat_retry_farming,
    "threshold_bunching": _cheat_threshold_bunching,
    "concentrated_pair": _cheat_concentrated_pair,
    "anomaly": _cheat_anomaly,
    "perfect_accuracy_streak": _cheat_perfect_accuracy_streak,
    PROBING: _cheat_probing,
}
"""How to cheat, by the rule that detects it."""
