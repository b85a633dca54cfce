"""Recorded runs, made up: as few words as a test needs, and worlds for properties."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from meruit.model.metering import MeteredRun, MeteredStep, PriceQuote, RunCosts, UsageRecord
from meruit.model.usage import Assurance, Tokens, UsageChange, UsageCode, UsageStatus, UsageVerdict

USUAL = Tokens(900, 100, 4)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
CODES = {
    UsageStatus.VERIFIED: UsageCode.STABLE,
    UsageStatus.WARNING: UsageCode.INCOMPLETE,
    UsageStatus.PENDING: UsageCode.FIRST,
    UsageStatus.DATA_NOT_AVAILABLE: UsageCode.ZERO_TOKENS,
}


def recorded(
    agent: str,
    task: str = "t",
    number: int = 1,
    *,
    success: bool | None = True,
    score: float | None = None,
    status: UsageStatus = UsageStatus.VERIFIED,
    cost: str | None = "1.00",
    tokens: Tokens | None = USUAL,
    finished: bool = True,
    run_id: str | None = None,
    message: str = "told",
    currency: str = "USD",
    steps: Sequence[MeteredStep] = (),
    withdrawn: int = 0,
    interval_min: float = 60.0,
    history: Sequence[UsageChange] = (),
    attempts: int = 2,
    imported: bool = False,
) -> UsageRecord:
    """One run; what is left unsaid is usual."""
    run = MeteredRun(
        run_id or f"{agent}/{task}/{number}",
        agent,
        started_at=NOON,
        ended_at=NOON + timedelta(minutes=5) if finished else None,
        steps=tuple(steps),
        task=task,
        success=success,
        score=score,
    )
    verdict = UsageVerdict(
        status,
        CODES[status],
        message,
        "why",
        Assurance.ATTRIBUTION_KEY,
        tokens,
        withdrawn=withdrawn,
        interval_min=interval_min,
        history=tuple(history),
        reported_by="file" if imported else "",
    )
    quote = PriceQuote("prices", "1", "ab" * 32, "openai", "m", "m", NOON, {"input": Decimal(1)})
    return UsageRecord(
        run,
        1,
        attempts,
        verdict,
        last_observation_at=NOON + timedelta(hours=3),
        quotes=(quote,),
        ledger=RunCosts(None if cost is None else Decimal(cost), currency=currency),
    )


def worlds(most_agents: int = 3, most_tasks: int = 6) -> st.SearchStrategy[list[UsageRecord]]:
    """Runs of some agents and tasks, in any state."""

    @st.composite
    def world(draw: st.DrawFn) -> list[UsageRecord]:
        cells = draw(
            st.lists(
                st.tuples(
                    st.sampled_from(["a", "b", "c"][:most_agents]),
                    st.sampled_from(["", *(f"t{number}" for number in range(most_tasks))]),
                ),
                min_size=1,
                max_size=24,
            )
        )
        return [recorded(agent, task, number, **draw(_states())) for number, (agent, task) in enumerate(cells)]

    return world()


# Any: keywords of `recorded`.
def _states() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "success": st.sampled_from([True, False, None]),
            "score": st.none() | st.floats(0, 1),
            "status": st.sampled_from([UsageStatus.VERIFIED] * 3 + [*UsageStatus]),
            "cost": st.sampled_from([None, "0", "0.02", "0.5", "1.25", "8"]),
            "finished": st.sampled_from([True, True, True, False]),
            "imported": st.booleans(),
            "tokens": st.none() | st.builds(Tokens, st.integers(0, 5_000), st.integers(0, 500)),
        }
    )
