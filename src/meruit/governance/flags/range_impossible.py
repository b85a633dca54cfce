"""Flag impossible numbers: shares above 1, negative times, too many tokens per second."""

import math
from collections.abc import Iterator, Mapping

from meruit.model.governance import Action, Dossier, MetricFact, Suspicion
from meruit.model.kinds import SHARES, YES_OR_NO, MetricType
from meruit.registry import flags


def _example_dossier(value: float, kind: MetricType) -> Dossier:
    return Dossier(metrics=[MetricFact("m", "c", value, kind)])


@flags.add(
    "range_impossible",
    action=Action.INVALIDATE,
    version="2",
    limits={"share_max": 100.0, "tokens_per_s_max": 3000.0, "clock_ms": 1.0, "moment_ms": 1000.0},
    examples=[
        (_example_dossier(-5.0, MetricType.LATENCY), True),
        (_example_dossier(0.5, MetricType.BOOLEAN), True),
        (_example_dossier(101.0, MetricType.ACCURACY), True),
        (Dossier(claims={"m": math.inf}), True),
        (Dossier(output_tokens=5000.0, claimed_ms=1000.0), True),
        (Dossier(output_tokens=60.0, claimed_ms=1000.0), False),
        # What was observed may have begun long after the work.
        (Dossier(output_tokens=5000.0, observed_ms=1000.0), False),
        # Percent is another scale, not a lie.
        (_example_dossier(95.0, MetricType.ACCURACY), False),
        (Dossier(), None),
    ],
)
def range_impossible(dossier: Dossier, limits: Mapping[str, float]) -> list[Suspicion] | None:
    """A value is impossible for its type, or more tokens were claimed than a model can write in the time."""
    numbers = [*_numbers(dossier)]
    if not numbers:
        return None
    found = [
        Suspicion({source: value if math.isfinite(value) else str(value)}, metric=metric)
        for metric, source, value, kinds in numbers
        if not any(_possible(value, kind, limits["share_max"]) for kind in kinds)
    ]
    tokens, took_ms = dossier.output_tokens, _duration_ms(dossier, limits)
    if tokens is not None and took_ms is not None and math.isfinite(tokens):
        rate = tokens * 1000 / took_ms
        if rate > limits["tokens_per_s_max"]:
            found.append(Suspicion({"output_tokens": tokens, "took_ms": took_ms}, statistic=rate))
    return found


def _numbers(dossier: Dossier) -> Iterator[tuple[str, str, float, list[MetricType | None]]]:
    """Every number with a domain: its name, its origin, its value, and its possible types."""
    kinds: dict[str, list[MetricType | None]] = {}
    for fact in dossier.metrics:
        kinds.setdefault(fact.metric, []).append(fact.kind)
        if fact.value is not None:
            yield fact.metric, "value", fact.value, [fact.kind]
    for metric, claim in dossier.claims.items():
        yield metric, "claimed", claim, kinds.get(metric, [None])
    if dossier.claimed_ms is not None:
        yield "duration_ms", "claimed", dossier.claimed_ms, [MetricType.LATENCY]
    if dossier.output_tokens is not None:
        yield "output_tokens", "claimed", dossier.output_tokens, [MetricType.COUNT]


def _possible(value: float, kind: MetricType | None, share_max: float) -> bool:
    if not math.isfinite(value):
        return False
    if kind is MetricType.BOOLEAN:
        return value in (0, 1)
    if kind in SHARES or kind in YES_OR_NO:
        # On which scale a share is written is not known here, so the wider one counts.
        return 0 <= value <= share_max
    return value >= 0 or kind not in (MetricType.LATENCY, MetricType.COUNT)


def _duration_ms(dossier: Dossier, limits: Mapping[str, float]) -> float | None:
    """The longest duration by the agent's claim or its clocks; the observed one may be shorter than the work."""
    claimed, started, ended = dossier.claimed_ms, dossier.started_at, dossier.ended_at
    took = None
    if claimed is not None and 0 <= claimed < math.inf:
        # A clock that counts in milliseconds says 0 for anything shorter than one.
        took = max(claimed, limits["clock_ms"])
    elif started is not None and ended is not None and 0 <= ended - started < math.inf:
        # Moments are often written in whole seconds.
        took = (ended - started) * 1000 + limits["moment_ms"]
    return took or None
