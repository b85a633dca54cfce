"""Draw the cases of a review: by chance within strata, with the probability of each; the rest in a known order."""

import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import TypeVar

import msgspec

from meruit.errors import InvalidReview
from meruit.review.label import DrawKind, ReviewDraw

FEWEST_IN_STRATUM = 2
"""Cases drawn of each stratum at least, where it has them: one alone shows no spread."""
Drawn = TypeVar("Drawn")


class CaseKey(msgspec.Struct, frozen=True):
    """What names a case in an evaluation."""

    case_id: str
    repeat: int


def draw_cases(
    population: Sequence[CaseKey],
    strata: Mapping[CaseKey, str],
    *,
    random: int,
    purposive: Mapping[DrawKind, Sequence[CaseKey]],
    seed: int,
) -> list[ReviewDraw]:
    """Draw `random` cases by chance and add the others; all in one random order, so that a place reveals nothing."""
    # The same seed draws the same cases in every version of Python: only random() is used.
    chance = Random(seed)  # noqa: S311 - not for secrets
    drawn = _draw_at_random(population, strata, random, chance)
    taken = {CaseKey(one.case_id, one.repeat) for one in drawn}
    for kind, cases in purposive.items():
        for case in cases:
            # A case that chance has drawn stays in the part that estimates.
            if case not in taken:
                taken.add(case)
                drawn.append(
                    ReviewDraw(
                        number=0, case_id=case.case_id, repeat=case.repeat, kind=kind, stratum=strata.get(case, "")
                    )
                )
    if not drawn:
        raise InvalidReview("no case was drawn: ask for at least one random case, or for cases that exist")
    order = _shuffle(drawn, chance)
    return [
        ReviewDraw(
            number=place,
            case_id=one.case_id,
            repeat=one.repeat,
            kind=one.kind,
            stratum=one.stratum,
            probability=one.probability,
        )
        for place, one in enumerate(order, 1)
    ]


def _draw_at_random(
    population: Sequence[CaseKey], strata: Mapping[CaseKey, str], wanted: int, chance: Random
) -> list[ReviewDraw]:
    if wanted > len(population):
        raise InvalidReview(f"{wanted} cases cannot be drawn of {len(population)}; ask for fewer")
    by_stratum: dict[str, list[CaseKey]] = {}
    for case in population:
        by_stratum.setdefault(strata.get(case, ""), []).append(case)
    found: list[ReviewDraw] = []
    for stratum, number in _allocate({name: len(cases) for name, cases in by_stratum.items()}, wanted).items():
        cases = by_stratum[stratum]
        found += [
            ReviewDraw(
                number=0,
                case_id=case.case_id,
                repeat=case.repeat,
                kind=DrawKind.RANDOM,
                stratum=stratum,
                probability=number / len(cases),
            )
            for case in _shuffle(cases, chance)[:number]
        ]
    return found


def _allocate(sizes: Mapping[str, int], wanted: int) -> dict[str, int]:
    """How many of each stratum: in proportion, but a few of each; the largest remainders get what is left."""
    total = sum(sizes.values())
    fewest = FEWEST_IN_STRATUM if len(sizes) > 1 else 0
    least = {name: min(size, fewest) for name, size in sizes.items()}
    if wanted and sum(least.values()) > wanted:
        raise InvalidReview(
            f"{len(sizes)} strata need at least {sum(least.values())} random cases, not {wanted}; "
            "draw more, or choose a tag with fewer values"
        )
    shares = {name: wanted * size / total for name, size in sizes.items()}
    given = {name: min(sizes[name], max(least[name] if wanted else 0, math.floor(shares[name]))) for name in sizes}
    order = sorted(sizes, key=lambda name: (math.floor(shares[name]) - shares[name], name))
    while sum(given.values()) < wanted:
        for name in order:
            if given[name] < sizes[name] and sum(given.values()) < wanted:
                given[name] += 1
    # What the smallest strata got on top is taken from the largest.
    while sum(given.values()) > wanted:
        given[max(sizes, key=lambda name: (given[name] - least[name], name))] -= 1
    return given


def _shuffle(cases: Sequence[Drawn], chance: Random) -> list[Drawn]:
    keys = [(chance.random(), place) for place in range(len(cases))]
    return [cases[place] for _, place in sorted(keys)]
