"""The chart of a usage run: every count is a dot, and those that decided are filled."""

from datetime import UTC, datetime, timedelta

from meruit.console.usage_chart import MOST, draw_observations
from meruit.model.metering import MeteredRun, MeteredStep, UsageRecord
from meruit.model.usage import Observation, Tokens, UsagePolicy, UsageVerdict
from meruit.pages.drawing import Dot, Drawing, Label
from meruit.usage.decision import decide

END = datetime(2026, 5, 4, tzinfo=UTC)


def record(*observations: Observation, ended: bool = True) -> UsageRecord:
    run = MeteredRun("r", "agent", ended_at=END if ended else None, steps=(MeteredStep("s", tokens=Tokens(10, 5)),))
    verdict: UsageVerdict = decide(run.for_judging, observations, UsagePolicy())
    return UsageRecord(run, 1, len(observations), verdict)


def seen(hours: int, total: int | None) -> Observation:
    counted = None if total is None else Tokens(total, 0)
    return Observation(str(hours), END + timedelta(hours=hours), counted)


def dots(drawing: Drawing | None) -> list[Dot]:
    assert drawing is not None
    return [one for one in drawing.shapes if isinstance(one, Dot)]


def test_every_count_is_a_dot_and_those_that_decided_are_filled() -> None:
    observations = [seen(1, 10), seen(2, 15), seen(4, 15), seen(3, None)]
    chart = draw_observations(record(*observations), observations)
    assert [one.style for one in dots(chart)] == ["f-hollow", "f-ink", "f-ink"]
    assert chart is not None
    assert "15 last, in 3 observations" in chart.finding
    assert [one.text for one in chart.shapes if isinstance(one, Label)][:1] == ["15"]


def test_nothing_counted_is_no_chart() -> None:
    observations = [seen(1, None)]
    assert draw_observations(record(*observations), observations) is None


def test_a_long_history_shows_its_end() -> None:
    observations = [seen(hour, hour) for hour in range(1, MOST + 10)]
    assert len(dots(draw_observations(record(*observations), observations))) == MOST
