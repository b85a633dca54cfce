"""Whoever dies while runs are reconciled, nothing is lost or doubled, and every run is claimed what its looks prove."""

import asyncio
import json
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from tests.faults import usage_doomed
from tests.faults.started import run
from tests.faults.usage_week import MONDAY, Week, check, kept
from tests.faults.usage_world import DAY, HOUR, MODEL, World
from tests.sampling import IN_FULL

from meruit.errors import FetchError
from meruit.model.usage import UsageStatus
from meruit.playground.billing.server import ProviderServer
from meruit.store.location import Location
from meruit.store.store import Store, utc_now

RUNS, MORTALITY, DEATHS = (10_000, 0.8, 150) if IN_FULL else (600, 0.4, 30)
"""Of the week: runs, how often a round is somebody's last, and how many deaths there are at least."""
POINTS = 8
"""Different points at which somebody died, at least."""
SAMPLE = 20
"""Runs that are looked into each day."""
A_TICK = 8
"""Questions to the provider at each tick, at most: by day, and again where it does not answer; never by run."""
KILLS = 100 if IN_FULL else 6
PATIENCE_S = 120


def test_a_week_of_runs_is_judged_by_its_observations_despite_faults(tmp_path: Path) -> None:
    with World(Location(tmp_path)) as world:
        week = Week(world, RUNS, seed=8)
        for day in range(1, 8):
            asyncio.run(week.live(MONDAY + day * DAY, MORTALITY))
            for planned in week.chance.sample(week.planned, SAMPLE):
                for stood in kept(world.store, planned.run.id):
                    check(stood, week.heard.looks.get(planned.run.id, []))
        asyncio.run(week.live(MONDAY + 7 * DAY + 6 * HOUR, mortality=0))
        used = {one.run.id: one.used for one in week.planned}
        found = [check(stood, week.heard.looks.get(stood.row.id, [])) for stood in kept(world.store)]
        assert len(found) == week.told > RUNS * 0.95
        statuses = Counter(one.verdict.status for one in found)
        for one in found:
            if one.verdict.status is UsageStatus.VERIFIED:
                assert one.verdict.tokens is not None
                assert one.verdict.tokens.total == used[one.run.id]
        lived = week.lived
        assert statuses[UsageStatus.VERIFIED] > RUNS * 3 / 4
        assert min(statuses[one] for one in (UsageStatus.WARNING, UsageStatus.DATA_NOT_AVAILABLE)) > RUNS / 100
        assert any(one.verdict.withdrawn for one in found)
        assert lived.deaths.total() >= DEATHS
        assert len(lived.deaths) >= POINTS, lived.deaths
        assert set(lived.errors) >= {
            FetchError.RATE_LIMITED,
            FetchError.SERVER,
            FetchError.PARTIAL_PAGE,
            FetchError.CLOCK,
        }
        asked = world.server.calls.total()
        assert asked <= A_TICK * lived.ticks
        # Runs share requests: 600 runs share one by six or seven, 500 would by five.
        assert asked * 5 < sum(one.attempts for one in found)


@pytest.mark.skipif(sys.platform == "win32", reason="processes are forked")
def test_a_process_that_is_killed_while_it_reconciles_leaves_nothing_half_done(tmp_path: Path) -> None:
    begun_at = utc_now() - timedelta(hours=1)
    runs = [usage_doomed.run_of(number, begun_at) for number in range((KILLS + 1) * usage_doomed.RUNS_A_LIFE)]
    with ProviderServer(clock=utc_now, delay=timedelta(0)) as server:
        for one in runs:
            call = one.steps[0].calls[0]
            assert call.tokens is not None
            server.use(call.at, MODEL, call.tokens, key=one.attribution_key.value)
        arguments = (str(tmp_path), server.url, begun_at.isoformat(), str(KILLS), "8")
        said = run("usage_doomed", *arguments, patience_s=PATIENCE_S)
    assert said.code == 0, said
    assert json.loads(said.out) == {"deaths": KILLS}
    store = Store.open(Location(tmp_path))
    try:
        found = [check(stood, (), usage_doomed.POLICY) for stood in kept(store)]
    finally:
        store.close()
    assert len(found) == len(runs)
    assert {one.verdict.status for one in found} == {UsageStatus.VERIFIED}
