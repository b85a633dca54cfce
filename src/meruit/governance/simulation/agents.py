"""The agents of the simulated market, and their outcomes with the truth about them."""

import random
from collections.abc import Iterable, Iterator

import msgspec

from meruit.model.governance import Dossier

OUTCOMES_PER_AGENT = 60
CHEAT_SHARE = 0.014
"""The share of agents of each kind of cheat."""
CONSUMERS = 40
PROBING = "probing"

HONEST = (
    "ordinary",
    "specialist",
    "repeated inputs",
    "short answers",
    "loyal customer",
    "jittery clock",
    "percent claims",
    "rounded claims",
    "near the threshold",
    "few items graded",
)
"""Kinds of honest agents; all but the first look like a kind of cheat."""


class SimulatedAgent(msgspec.Struct, frozen=True):
    """An agent of the market."""

    id: str
    kind: str
    """One of the honest kinds, or the rule that its cheating is about."""
    skill: float
    """Its usual accuracy."""
    favourite: str
    """The consumer it deals with most."""
    loyalty: float
    """How often it does."""


class SimulatedOutcome(msgspec.Struct, frozen=True):
    """One outcome, with the truth about it."""

    agent: SimulatedAgent
    dossier: Dossier
    """The dossier without its history, which the market adds."""
    output: str
    input_id: str
    evidence_id: str
    day: int
    cheats: bool = False


def draw_agents(rng: random.Random, outcomes: int, cheating: Iterable[str]) -> Iterator[SimulatedAgent]:
    """A few cheats of each kind, the rest honest."""
    wanted = outcomes // OUTCOMES_PER_AGENT
    of_each = max(2, round(wanted * CHEAT_SHARE))
    cheats = [kind for kind in cheating if kind != PROBING for _ in range(of_each)]
    rest = max(wanted - len(cheats), len(HONEST))
    kinds = [*cheats, *(HONEST[number % len(HONEST)] for number in range(rest))]
    # They take the places of ordinary agents, so that the other agents stay the same for the same seed.
    for place in [number for number, kind in enumerate(kinds) if kind == HONEST[0]][:of_each]:
        kinds[place] = PROBING
    for number, kind in enumerate(kinds):
        loyal = kind == "loyal customer"
        # Consumers stay with excellent agents too, which earn a bonus nearly every time.
        skill = rng.choice((0.9, 1.0)) if loyal else min(0.96, rng.gauss(0.9, 0.03))
        loyalty = rng.uniform(0.6, 0.97) if loyal else 0.85 if kind == "concentrated_pair" else 0.0
        yield SimulatedAgent(
            id=f"agent-{number}",
            kind=kind,
            skill=skill,
            favourite=f"consumer-{rng.randrange(CONSUMERS)}",
            loyalty=loyalty,
        )
