"""What providers counted is asked once for many runs, and each run is claimed what its looks prove, and no more."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.faults.usage_world import (
    ACCOUNT,
    DAY,
    HOUR,
    MINUTE,
    MODEL,
    NOON,
    TENANT,
    USED,
    World,
    key,
)

from meruit.errors import FetchError, FetchFailed, NotFound
from meruit.model.metering import (
    AttributionKey,
    AttributionKind,
    CallState,
    MeteredCall,
    MeteredRun,
    MeteredStep,
    Page,
    RunCosts,
    Window,
)
from meruit.model.usage import Assurance, Tokens, UsagePolicy, UsageStatus
from meruit.playground.billing.faults import Dip, Faults, Outage, OutageKind
from meruit.playground.billing.server import ADMIN_KEY, PLAIN_KEY
from meruit.store.location import Location
from meruit.usage.providers.support.paging import no_pages
from meruit.usage.reconcile import account as account_round
from meruit.usage.reconcile.reconciler import LEASE, Account
from meruit.usage.store.accounts import AcquireAccountLease
from meruit.usage.store.due import UsageRunFilter
from meruit.usage.store.record_prices import RecordPrices
from meruit.usage.store.record_runs import RecordRun

MIDNIGHT = NOON.replace(hour=0) + DAY
USAGE = "/v1/organization/usage/completions"
COSTS = "/v1/organization/costs"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(Location(tmp_path)) as made:
        yield made


@pytest.fixture
def anywhere(store_location: Location) -> Iterator[World]:
    """On every kind of database."""
    with World(store_location) as made:
        yield made


def test_a_run_is_observed_after_ten_minutes_and_verified_an_hour_later(anywhere: World) -> None:
    world = anywhere
    run = world.ran()
    assert run.ended_at is not None
    assert world.stands() == "pending not_started"
    world.until(run.ended_at + 10 * MINUTE - timedelta(seconds=1))
    assert world.round().accounts == ()
    world.wait(seconds=1)
    passed = world.asked()
    assert (passed.observed, passed.recorded, passed.early, passed.failed) == (1, 1, 0, 0)
    assert world.stands() == "pending first"
    world.wait(minutes=59, seconds=59)
    assert world.round().accounts == ()
    world.wait(seconds=1)
    said: list[tuple[str, str]] = []
    assert world.round(said=said).statuses == {UsageStatus.VERIFIED: 1}
    assert [about for about, _ in said] == ["r"]
    assert "60 minute" in said[0][1]
    assert world.stands() == "verified stable"
    assert world.found().verdict.assurance is Assurance.ATTRIBUTION_KEY
    assert world.found().verdict.tokens == Tokens(200, 20, 2, 0, 0)


def test_early_observations_prove_nothing_and_starve_no_run(world: World) -> None:
    world.ran()
    world.wait(minutes=15)
    world.round()
    this = UsageRunFilter(tenant=TENANT, run_id="r")
    for _ in range(5):
        world.wait(minutes=10)
        passed = world.asked(choice=this)
        assert (passed.observed, passed.recorded, passed.early) == (1, 0, 1)
        assert world.found().last_observation_at == world.clock.now
    assert world.stands() == "pending first"
    world.wait(minutes=10)
    assert world.asked().recorded == 1
    assert world.stands() == "verified stable"
    assert [one.early for one in world.attempts()] == [False, *[True] * 5, False]
    assert world.found().verdict.early == 5


def test_a_run_without_calls_has_a_price_by_the_models_of_its_provider(world: World) -> None:
    start, lasts = world.clock.now, 5 * MINUTE
    world.server.use(start, MODEL, Tokens(1000, 100, 1, 0, 0), key="key_1")
    step = MeteredStep("all", start, start + lasts, True)
    world.record(MeteredRun("r", "f", ACCOUNT, key("key_1"), start, start + lasts, (step,)))
    world.wait(minutes=20)
    world.round()
    world.wait(minutes=61)
    world.round()
    assert world.stands() == "verified stable"
    found = world.found()
    assert [one.model for one in found.quotes] == [MODEL]
    assert found.ledger.quoted is not None
    assert found.ledger.quoted > 0


def test_a_run_is_observed_on_request_though_it_is_not_due(world: World) -> None:
    world.ran("a")
    world.ran("b", attribution_key=key("key_2"))
    world.wait(minutes=8)
    passed = world.asked(choice=UsageRunFilter(tenant=TENANT, run_id="a"))
    assert passed.observed == 1
    assert (len(world.attempts("a")), len(world.attempts("b"))) == (1, 0)
    with pytest.raises(NotFound):
        world.round(choice=UsageRunFilter(tenant=TENANT, run_id="c"))


def test_a_run_that_has_just_ended_is_not_ready(world: World) -> None:
    """In the minute of its start, in that of its day's start, and where its end lies ahead of our clock."""
    for start, minutes in ((NOON + HOUR, 0.2), (MIDNIGHT, 0.1), (MIDNIGHT + 2 * DAY, 0.1)):
        name = start.isoformat()
        world.ran(name, start, minutes=minutes, attribution_key=key(name))
        world.until(min(start + 0.5 * MINUTE, MIDNIGHT + HOUR))
        world.round(choice=UsageRunFilter(tenant=TENANT, run_id=name))
        looked = world.attempts(name)
        assert [one.error for one in looked] == [FetchError.NOT_READY]
        assert f"{start:%Y-%m-%dT%H:%M}" in looked[0].detail


def test_a_provider_that_repeats_a_response_is_not_called_all_the_time(world: World) -> None:
    """Its moment included, as a cache on the way does."""
    world.ran()
    world.wait(minutes=20)
    account = world.account()
    cached = _Cached(account)
    for _ in range(180):
        world.round(msgspec.structs.replace(account, source=cached))
        world.wait(minutes=1)
    assert cached.asked <= 4
    assert world.stands() == "pending first"


def test_an_open_run_is_not_observed(world: World) -> None:
    world.record(MeteredRun("open", "f", ACCOUNT, key("key_1"), NOON))
    world.wait(hours=3)
    assert world.round(choice=UsageRunFilter(tenant=TENANT, run_id="open")).accounts == ()


def test_what_comes_late_withdraws_at_the_audit(world: World) -> None:
    run = world.ran()
    assert run.ended_at is not None
    world.server.use(NOON + MINUTE, MODEL, USED, key="key_1", visible_after=20 * HOUR)
    for _ in range(3):
        world.wait(hours=1, minutes=1)
        world.round()
    assert world.stands() == "verified stable"
    world.until(run.ended_at + DAY - MINUTE)
    assert world.round().accounts == ()
    world.until(run.ended_at + DAY)
    world.round()
    assert world.stands() == "pending changing"
    assert world.found().verdict.withdrawn == 1
    world.wait(minutes=60)
    world.round()
    assert world.stands() == "warning discrepancy"


def test_a_changed_count_is_found_with_others_of_the_day(world: World) -> None:
    world.ran("a")
    world.server.use(NOON + MINUTE, MODEL, USED, key="key_1", visible_after=3 * HOUR)
    for _ in range(2):
        world.wait(hours=1, minutes=10)
        world.round()
    assert world.stands("a") == "verified stable"
    world.ran("b", NOON + 2 * HOUR, attribution_key=key("key_2"))
    world.until(NOON + 4 * HOUR)
    assert world.asked().observed == 2
    assert world.stands("a") == "pending changing"
    looks = len(world.attempts("a"))
    world.wait(minutes=30)
    world.round(choice=UsageRunFilter(tenant=TENANT, run_id="b"))
    assert len(world.attempts("a")) == looks


def test_zero_is_no_data_until_there_is_some(world: World) -> None:
    world.ran(visible_after=2 * HOUR)
    world.wait(minutes=15)
    world.round()
    assert world.stands() == "data_not_available zero_tokens"
    world.until(NOON + 2 * HOUR + 10 * MINUTE)
    world.round()
    assert world.stands() == "pending changing"
    world.wait(minutes=60)
    world.round()
    assert world.stands() == "verified stable"


def test_a_run_without_data_is_observed_less_and_less_often(world: World) -> None:
    run = world.ran(counted=False)
    assert run.ended_at is not None
    rounds = 0
    while world.found().next_observation_at is not None:
        world.until(max(world.clock.now, world.found().next_observation_at or NOON))
        world.round()
        rounds += 1
    assert world.stands() == "data_not_available zero_tokens"
    assert world.clock.now - run.ended_at >= 7 * DAY
    assert rounds < 40
    found = world.found()
    assert found.exhausted
    assert found.waits == "person"


FAULTS = {
    FetchError.RATE_LIMITED: Faults(rate_limited=1.0),
    FetchError.SERVER: Faults(outages=(Outage(NOON, NOON + 9 * DAY, OutageKind.ERROR),)),
    FetchError.PARTIAL_PAGE: Faults(broken_off=1.0),
    FetchError.CLOCK: Faults(skew=timedelta(hours=2)),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_failed_observation_is_recorded_and_keeps_the_status(world: World, kind: FetchError) -> None:
    run = world.ran()
    world.ran("later", NOON + 2 * HOUR, attribution_key=key("key_2"))
    assert run.ended_at is not None
    for minutes in (15, 60):
        world.wait(minutes=minutes)
        world.round()
    world.server.faults = FAULTS[kind]
    world.until(run.ended_at + DAY)
    passed = world.asked()
    assert (passed.error, passed.observed, passed.failed, passed.recorded) == (kind, 2, 2, 2)
    assert passed.trouble
    assert world.stands() == "verified stable"
    assert world.found().verdict.held
    assert world.stands("later") == "data_not_available api_error"
    assert [one.error for one in world.attempts()] == [None, None, kind]
    due = world.found().next_observation_at
    assert due is not None
    assert world.clock.now < due <= world.clock.now + DAY
    world.server.faults = Faults()
    world.until(due)
    world.round()
    assert world.stands() == "verified stable"
    assert not world.found().verdict.held


@pytest.mark.parametrize(
    ("faults", "kind"),
    [
        (Faults(outages=(Outage(NOON, NOON + DAY, OutageKind.HANG_UP),)), FetchError.SERVER),
        (Faults(unfinished=1.0), FetchError.PARTIAL_PAGE),
        (Faults(malformed=1.0), FetchError.PARTIAL_PAGE),
    ],
)
def test_half_an_answer_is_none(world: World, faults: Faults, kind: FetchError) -> None:
    world.ran()
    world.server.faults = faults
    world.wait(minutes=30)
    assert world.asked().error is kind
    assert [(one.error, one.total) for one in world.attempts()] == [(kind, None)]
    assert world.kept_pages() == 0


def test_only_what_is_due_hears_of_a_failure(world: World) -> None:
    world.ran("a")
    world.wait(minutes=15)
    world.round()
    world.ran("b", attribution_key=key("key_2"))
    world.wait(minutes=20)
    world.server.faults = FAULTS[FetchError.RATE_LIMITED]
    assert world.asked().failed == 1
    assert [one.error for one in world.attempts("a")] == [None]


@pytest.mark.parametrize("refused", ["sk-wrong", PLAIN_KEY, ""])
def test_a_run_that_waits_for_a_key_is_observed_with_it_at_once(world: World, refused: str) -> None:
    world.ran()
    world.environment["THE_KEY"] = refused
    world.wait(minutes=30)
    assert world.asked().error is FetchError.AUTH
    found = world.found()
    assert (found.waits, found.next_observation_at) == ("credential", None)
    assert world.stands() == "data_not_available api_error"
    asked = world.server.calls.total()
    world.wait(hours=30)
    assert world.round().accounts == ()
    assert world.server.calls.total() == asked
    world.environment["THE_KEY"] = ADMIN_KEY
    assert world.asked().recorded == 1
    assert world.stands() == "pending first"
    assert world.round().accounts == ()


def test_an_account_that_is_not_configured_is_named(world: World) -> None:
    world.ran(account="elsewhere")
    world.wait(minutes=30)
    passed = world.asked()
    assert all(value in passed.trouble for value in ("'elsewhere'", "usage.accounts", "main"))
    assert world.attempts() == []


def test_an_unsupported_attribution_key_is_an_error_not_zero(world: World) -> None:
    world.ran(attribution_key=AttributionKey(AttributionKind.SESSION, "s"))
    world.wait(minutes=30)
    world.round()
    (look,) = world.attempts()
    assert (look.error, look.total) == (FetchError.MALFORMED, None)
    assert all(value in look.detail for value in ("main", "key, project, window", "session"))


class TestSharing:
    def test_runs_that_share_a_key_are_verified_together_when_their_own_counts_tie_out(self, world: World) -> None:
        world.ran("a")
        world.ran("b", NOON + 2 * MINUTE, used=Tokens(7, 3, 1, 0, 0))
        for minutes in (20, 60):
            world.wait(minutes=minutes)
            world.round()
        for name, tokens in (("a", 200), ("b", 14)):
            assert world.stands(name) == "verified stable"
            verdict = world.found(name).verdict
            assert verdict.assurance is Assurance.COHORT
            assert verdict.tokens is not None
            assert verdict.tokens.input == tokens

    def test_runs_that_share_a_key_and_do_not_tie_out_are_ambiguous(self, world: World) -> None:
        world.ran("a")
        world.ran("b", NOON + 2 * MINUTE)
        world.server.use(NOON + MINUTE, MODEL, USED, key="key_1")
        for minutes in (20, 60):
            world.wait(minutes=minutes)
            world.round()
        assert world.stands("a") == world.stands("b") == "warning ambiguous_attribution"

    def test_an_open_run_keeps_its_cohort_ambiguous(self, world: World) -> None:
        world.record(MeteredRun("open", "f", ACCOUNT, key("key_1"), NOON - HOUR))
        world.ran("a")
        for minutes in (20, 60):
            world.wait(minutes=minutes)
            world.round()
        assert world.stands("a") == "warning ambiguous_attribution"

    def test_runs_on_both_sides_of_midnight_agree_on_whom_they_share_with(self, world: World) -> None:
        """Whoever is looked at alone and together in turn is withdrawn for nothing."""
        world.ran("before", MIDNIGHT - 6 * MINUTE, minutes=5.5)
        world.ran("after", MIDNIGHT + MINUTE)
        # At the audits, first the one of them is due and then the other.
        for minutes in (20, 81, 24 * 60 + 1, 24 * 60 + 10, 25 * 60 + 15, 26 * 60 + 20):
            world.until(MIDNIGHT + minutes * MINUTE)
            world.round()
        for name in ("before", "after"):
            assert world.stands(name) == "verified stable"
            assert [one.cohort and one.cohort.runs for one in world.attempts(name)] == [2, 2, 2]
            assert world.found(name).verdict.withdrawn == 0

    def test_a_new_run_costs_its_cohort_one_observation_an_hour(self, world: World) -> None:
        """All of them are counted together, and all change whenever one comes."""
        for number in range(12):
            start = NOON + number * 10 * MINUTE
            world.ran(f"r{number}", start, minutes=9)
            world.until(start + 12 * MINUTE)
            world.round()
        assert max(len(world.attempts(f"r{number}")) for number in range(12)) == 2
        for _ in range(3):
            world.wait(minutes=61)
            world.round()
        assert {world.stands(f"r{number}") for number in range(12)} == {"verified stable"}

    def test_a_run_attributed_by_time_shares_with_every_key(self, world: World) -> None:
        world.ran("a")
        world.ran("b", NOON + MINUTE, attribution_key=AttributionKey())
        for minutes in (20, 60):
            world.wait(minutes=minutes)
            world.round()
        assert world.stands("b") == "verified stable"
        assert world.found("b").verdict.assurance is Assurance.COHORT
        assert world.found("a").verdict.assurance is Assurance.ATTRIBUTION_KEY

    def test_a_cohort_with_an_endless_run_has_a_bounded_window(self, world: World) -> None:
        """A run that began long ago never ended; runs with other attribution keys are observed all the same."""
        world.record(MeteredRun("endless", "f", ACCOUNT, key("key_1"), NOON - 60 * DAY))
        world.ran("shared")
        world.ran("alone", attribution_key=key("key_2"))
        world.wait(minutes=20)
        passed = world.asked()
        assert passed.pages <= 2 * account_round.WITHIN_DAYS + 1
        assert world.stands("alone") == "pending first"
        assert [one.error for one in world.attempts("shared")] == [FetchError.NOT_READY]
        assert "2026-07-10" in world.attempts("shared")[0].detail

    def test_a_late_run_of_an_endless_cohort_has_the_reason(self, world: World) -> None:
        world.record(MeteredRun("endless", "f", ACCOUNT, key("key_1"), NOON))
        world.ran("shared")
        world.ran("alone", attribution_key=key("key_2"))
        world.wait(days=10)
        passed = world.asked()
        assert passed.pages <= 2 * account_round.WITHIN_DAYS + 1
        assert world.stands("alone") == "pending first"
        (look,) = world.attempts("shared")
        assert look.error is FetchError.NOT_READY
        assert "still open" in look.detail
        world.wait(hours=2)
        world.round()
        assert len(world.attempts("shared")) == 1


class TestDays:
    def test_a_run_across_midnight_is_counted_on_both_days(self, world: World) -> None:
        world.ran(start=MIDNIGHT - 3 * MINUTE, minutes=6, calls=6)
        world.until(MIDNIGHT + 20 * MINUTE)
        world.round()
        world.wait(minutes=60)
        world.round()
        assert world.stands() == "verified stable"
        assert world.found().verdict.tokens == Tokens(600, 60, 6, 0, 0)

    def test_a_run_of_several_days_is_counted_whole(self, world: World) -> None:
        world.ran(minutes=3 * 24 * 60, calls=10)
        world.until(NOON + 3 * DAY + 15 * MINUTE)
        world.round()
        world.wait(minutes=60)
        world.round()
        assert world.stands() == "verified stable"
        assert world.found().verdict.tokens == Tokens(1000, 100, 10, 0, 0)

    def test_a_run_with_an_ancient_start_harms_no_other_run(self, world: World) -> None:
        world.ran("ancient", NOON - 4000 * DAY, minutes=4000 * 24 * 60, calls=1, attribution_key=key("key_2"))
        world.ran("a")
        world.wait(minutes=30)
        assert world.asked().pages <= account_round.WITHIN_DAYS + 1
        assert [one.error for one in world.attempts("ancient")] == [FetchError.NOT_READY]
        assert world.stands("a") == "pending first"

    def test_one_question_serves_every_run_of_a_day(self, world: World) -> None:
        for number in range(50):
            world.ran(f"r{number}", NOON + number * MINUTE, attribution_key=key(f"key_{number}"))
        world.wait(hours=2)
        assert world.asked().observed == 50
        assert world.server.calls == {USAGE: 1}
        world.wait(hours=1)
        world.round()
        assert {world.stands(f"r{number}") for number in range(50)} == {"verified stable"}
        assert world.server.calls == {USAGE: 2}

    def test_days_of_which_nothing_is_due_are_not_asked_for(self, world: World) -> None:
        run = world.ran("a", MIDNIGHT - 3 * HOUR)
        assert run.ended_at is not None
        world.ran("late", MIDNIGHT - 2 * MINUTE, minutes=1, attribution_key=key("key_2"))
        world.until(MIDNIGHT - HOUR)
        world.round()
        world.ran("b", MIDNIGHT + HOUR, attribution_key=key("key_3"))
        for moment in (MIDNIGHT + 2 * HOUR, MIDNIGHT + 4 * HOUR):
            world.until(moment)
            world.round()
        before = world.server.calls[USAGE]
        world.until(run.ended_at + DAY)
        world.round()
        assert world.server.calls[USAGE] - before == 1

    def test_pages_are_stored_once_by_their_digest(self, world: World) -> None:
        run = world.ran()
        assert run.ended_at is not None
        world.until(MIDNIGHT + HOUR)
        world.round()
        assert world.kept_pages() == 1
        world.wait(hours=1)
        world.round()
        assert world.kept_pages() == 1
        assert len({one.digest for one in world.attempts()}) == 1


class TestChoice:
    def test_a_framework_is_chosen_and_all_others_wait(self, world: World) -> None:
        world.ran("a", framework="ours")
        world.ran("b", framework="theirs", attribution_key=key("key_2"))
        world.wait(minutes=30)
        assert world.asked(choice=UsageRunFilter(tenant=TENANT, framework="ours")).observed == 1
        assert (len(world.attempts("a")), len(world.attempts("b"))) == (1, 0)

    def test_ages_are_chosen(self, world: World) -> None:
        for number in range(3):
            world.ran(f"r{number}", NOON + number * HOUR, attribution_key=key(f"key_{number}"))
        world.until(NOON + 6 * HOUR)
        chosen = UsageRunFilter(tenant=TENANT, ended_since=NOON + 30 * MINUTE, ended_until=NOON + HOUR + 5 * MINUTE)
        assert world.asked(choice=chosen).observed == 1
        assert [len(world.attempts(f"r{number}")) for number in range(3)] == [0, 1, 0]

    def test_a_changed_run_outside_of_the_filter_is_not_observed(self, world: World) -> None:
        world.ran("a", framework="ours")
        world.ran("b", framework="theirs", attribution_key=key("key_2"))
        world.server.use(NOON + MINUTE, MODEL, USED, key="key_2", visible_after=3 * HOUR)
        for _ in range(2):
            world.wait(hours=1, minutes=10)
            world.round()
        world.until(NOON + 4 * HOUR)
        world.round(choice=UsageRunFilter(tenant=TENANT, run_id="a"))
        assert world.stands("b") == "verified stable"
        world.round(choice=UsageRunFilter(tenant=TENANT, framework="theirs"))
        assert world.stands("b") == "verified stable"

    def test_another_tenant_is_another_account(self, world: World) -> None:
        world.ran()
        world.wait(minutes=30)
        assert world.round(choice=UsageRunFilter(tenant="other")).accounts == ()
        assert world.round(choice=UsageRunFilter(tenant=TENANT)).accounts[0].observed == 1


class TestOthers:
    def test_each_call_is_asked_for_by_its_id(self, world: World) -> None:
        world.ran(attribution_key=AttributionKey(AttributionKind.REQUESTS), cost=Decimal("0.25"))
        account = world.account("openrouter")
        for minutes in (15, 60):
            world.wait(minutes=minutes)
            world.round(account)
        assert world.stands() == "verified stable"
        found = world.found()
        assert found.verdict.assurance is Assurance.REQUEST
        assert found.ledger.billed == Decimal("0.5")
        assert world.server.calls == {"/api/v1/generation": 4}

    def test_a_call_that_is_not_known_yet_is_waited_for(self, world: World) -> None:
        world.ran(attribution_key=AttributionKey(AttributionKind.REQUESTS), visible_after=HOUR)
        world.wait(minutes=15)
        world.round(world.account("openrouter"))
        assert world.stands() == "data_not_available api_error"
        assert world.attempts()[0].error is FetchError.NOT_READY

    def test_a_key_is_refused_where_the_account_counts_by_call(self, world: World) -> None:
        world.ran()
        world.wait(minutes=15)
        world.round(world.account("openrouter"))
        (failed,) = world.attempts()
        assert failed.error is FetchError.MALFORMED
        assert all(value in failed.detail for value in ("requests", "key"))
        assert world.kept_pages() == 0

    def test_one_call_that_cannot_be_read_harms_its_run_alone(self, world: World) -> None:
        for number in range(9):
            world.ran(f"r{number}", attribution_key=AttributionKey(AttributionKind.REQUESTS))
        account = world.account("openrouter")
        broken = _Broken(account, "r4-1", FetchError.MALFORMED)
        world.wait(minutes=30)
        passed = world.asked(broken.account)
        assert (passed.observed, passed.failed) == (9, 1)
        assert world.stands("r4") == "data_not_available api_error"
        assert {world.stands(f"r{number}") for number in (0, 1, 2, 3, 5, 6, 7, 8)} == {"pending first"}

    def test_an_account_that_is_down_is_not_called_for_every_call(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(account_round, "CALLS_BLOCK", 2)
        for number in range(9):
            world.ran(f"r{number}", attribution_key=AttributionKey(AttributionKind.REQUESTS))
        broken = _Broken(world.account("openrouter"), "r3-0", FetchError.SERVER)
        world.wait(minutes=30)
        assert world.asked(broken.account).failed == 7
        assert broken.asked == 2
        assert {world.stands(f"r{number}") for number in (0, 1)} == {"pending first"}

    def test_a_proxy_counts_by_session_and_has_the_cost_of_each_call(self, world: World) -> None:
        world.ran("by_session", attribution_key=AttributionKey(AttributionKind.SESSION, "s1"), cost=Decimal("0.25"))
        world.ran("by_call", attribution_key=AttributionKey(AttributionKind.REQUESTS), cost=Decimal("0.5"))
        account = world.account("litellm")
        for minutes in (20, 60):
            world.wait(minutes=minutes)
            world.round(account)
        assert world.stands("by_session") == world.stands("by_call") == "verified stable"
        assert world.found("by_session").verdict.assurance is Assurance.ATTRIBUTION_KEY
        assert world.found("by_call").verdict.assurance is Assurance.REQUEST
        assert world.found("by_call").ledger.billed == Decimal(1)

    @pytest.mark.parametrize(
        "attribution_key", [key("key_1"), AttributionKey(AttributionKind.SESSION, "s1"), AttributionKey()]
    )
    def test_claimed_calls_count_for_no_attribution_key(self, world: World, attribution_key: AttributionKey) -> None:
        account, start, used = world.account("litellm"), world.clock.now, Tokens(1_000, 100, 1, 0, 0)
        for number in range(2):
            at = start + number * MINUTE
            world.server.use(at, MODEL, used, call_id=f"call-{number}", key="key_1", session="s1")
        # Whoever names the calls may say of itself to have been at another time.
        for name, reported_by, begun in (
            ("by attribution key", attribution_key, start),
            ("by calls", AttributionKey(AttributionKind.REQUESTS), start + HOUR),
        ):
            calls = tuple(MeteredCall(begun, MODEL, used, id=f"call-{number}") for number in range(2))
            step = MeteredStep("s", begun, begun + 5 * MINUTE, True, None, calls)
            world.record(MeteredRun(name, "f", ACCOUNT, reported_by, begun, begun + 5 * MINUTE, (step,)))
        world.wait(minutes=90)
        for _ in range(2):
            world.round(account)
            world.wait(minutes=61)
        assert world.stands("by calls") == "verified stable"
        assert world.found("by attribution key").verdict.status is not UsageStatus.VERIFIED

    def test_what_is_not_counted_up_to_the_end_is_not_ready(self, tmp_path: Path) -> None:
        with World(Location(tmp_path), delay=2 * HOUR) as world:
            world.ran(attribution_key=AttributionKey(AttributionKind.SESSION, "s1"))
            account = world.account("anthropic_analytics")
            world.wait(minutes=15)
            world.round(account)
            assert world.stands() == "data_not_available api_error"
            assert world.attempts()[0].watermark == world.clock.now - 2 * HOUR
            while world.clock.now < NOON + 5 * HOUR:
                world.wait(minutes=10)
                world.round(account)
            assert world.stands() == "verified stable"
            assert world.attempts()[-1].watermark == world.attempts()[-1].at - 2 * HOUR


class TestMoney:
    def test_a_keys_bill_is_the_runs_where_it_used_the_key_alone(self, world: World) -> None:
        mine = world.ran("mine", attribution_key=key("key_1"), cost=Decimal("0.25"))
        assert mine.ended_at is not None
        world.ran("one", attribution_key=key("key_2"), cost=Decimal("0.25"))
        world.ran("other", NOON + 30 * MINUTE, attribution_key=key("key_2"), cost=Decimal("0.25"))
        for hours in (1, 1.1):
            world.wait(hours=hours)
            world.round()
        assert world.server.calls[COSTS] == 0
        assert world.found("mine").ledger.billed is None
        world.until(mine.ended_at + DAY + HOUR)
        world.round()
        assert world.server.calls[COSTS] == 1
        assert world.found("mine").ledger.billed == Decimal("0.5")
        assert world.found("one").ledger.billed is None
        assert world.found("other").ledger.billed is None

    def test_costs_of_the_day_before_belong_to_the_run_alone(self, world: World) -> None:
        """What is billed for the day of a neighbour is asked for, and is not the run's."""
        world.ran("early", MIDNIGHT - HOUR, attribution_key=key("key_1"), cost=Decimal("0.25"))
        world.ran("mine", MIDNIGHT + HOUR, attribution_key=key("key_1"), cost=Decimal("0.5"))
        world.ran("over", MIDNIGHT - MINUTE, minutes=2, attribution_key=key("key_2"))
        for hours in (2, 4, 30, 9 * 24):
            world.until(MIDNIGHT + hours * HOUR)
            world.round()
        assert world.found("mine").ledger.billed == Decimal(1)
        assert world.found("early").ledger.billed == Decimal("0.5")

    def test_costs_that_cannot_be_read_do_not_stop_observations(self, world: World) -> None:
        world.ran(cost=Decimal("0.25"))
        world.wait(hours=40)
        world.round()
        world.wait(hours=1)
        account = world.account()
        said: list[tuple[str, str]] = []
        world.round(
            msgspec.structs.replace(account, source=_Costless(account, FetchFailed(FetchError.SERVER, "not today"))),
            said=said,
        )
        assert world.stands() == "verified stable"
        assert world.found().ledger.billed is None
        assert [about for about, message in said if message.endswith(": not today")] == ["main"]

    def test_prices_are_frozen_once(self, world: World) -> None:
        world.ran()
        world.wait(minutes=15)
        world.round()
        (quote,) = world.found().quotes
        assert quote.model == MODEL
        assert world.found().ledger.quoted is None
        world.wait(minutes=60)
        world.round()
        assert world.found().quotes == (quote,)
        assert world.found().ledger.quoted is not None

    def test_a_run_in_another_currency_stops_no_other_run(self, world: World) -> None:
        world.ran("a")
        world.ran("b", attribution_key=key("key_2"))
        settled = RunCosts(settled=Decimal(1), currency="EUR")
        world.store.recorder.write(RecordPrices(TENANT, "a", ledger=settled))
        said: list[tuple[str, str]] = []
        for minutes in (15, 60):
            world.wait(minutes=minutes)
            world.round(said=said)
        assert world.stands("a") == world.stands("b") == "verified stable"
        assert world.found("a").ledger == settled
        assert world.found("b").ledger.quoted is not None
        assert any(about == "a" and "EUR" in text for about, text in said)


class TestSeveral:
    def test_a_reconciler_holds_the_lease_on_its_account(self, world: World) -> None:
        world.ran()
        world.wait(minutes=30)
        taken = AcquireAccountLease(TENANT, ACCOUNT, "somebody", LEASE.total_seconds())
        assert world.store.recorder.write(taken)
        assert all(value in world.asked().trouble for value in (ACCOUNT, "3 minutes"))
        assert world.server.calls.total() == 0
        world.until(world.clock.now + LEASE - timedelta(seconds=1))
        assert world.asked().trouble
        world.wait(seconds=1)
        assert world.asked().observed == 1

    def test_a_stopped_reconciler_releases_its_lease(self, world: World) -> None:
        world.ran()
        world.wait(minutes=30)
        account = world.account()
        with pytest.raises(_Stopped):
            world.round(msgspec.structs.replace(account, source=_Mistaken(account, _Stopped())))
        assert world.asked().observed == 1

    def test_a_source_that_raises_is_a_failure_of_its_account_alone(self, world: World) -> None:
        world.ran()
        world.wait(minutes=30)
        account = world.account()
        passed = world.asked(
            msgspec.structs.replace(account, source=_Mistaken(account, ZeroDivisionError("no minutes")))
        )
        assert (passed.error, passed.failed) == (FetchError.MALFORMED, 1)
        assert passed.trouble.endswith(": ZeroDivisionError: no minutes")
        assert world.stands() == "data_not_available api_error"
        due = world.found().next_observation_at
        assert due is not None
        world.until(due)
        assert world.asked().observed == 1
        assert world.stands() == "pending first"

    def test_costs_that_raise_do_not_stop_observations(self, world: World) -> None:
        world.ran(cost=Decimal("0.25"))
        account = world.account()
        said: list[tuple[str, str]] = []
        for hours in (40, 1):
            world.wait(hours=hours)
            world.round(
                msgspec.structs.replace(account, source=_Costless(account, ZeroDivisionError("no days"))), said=said
            )
        assert world.stands() == "verified stable"
        assert "main" in [about for about, message in said if message.endswith(": ZeroDivisionError: no days")]

    def test_two_reconcilers_record_each_observation_once(self, anywhere: World) -> None:
        world = anywhere
        for number in range(20):
            world.ran(f"r{number}", attribution_key=key(f"key_{number}"))
        world.wait(minutes=30)
        both = [world.reconciler(), world.reconciler(store=world.beside())]

        async def at_once() -> int:
            passed = await asyncio.gather(*(one.run_once() for one in both))
            return sum(account.observed for one in passed for account in one.accounts)

        assert asyncio.run(at_once()) == 20
        assert world.server.calls[USAGE] == 1
        assert {len(world.attempts(f"r{number}")) for number in range(20)} == {1}

    def test_a_slow_reconciler_stops_after_losing_its_lease(self, world: World) -> None:
        world.ran("a")
        world.ran("b", MIDNIGHT, attribution_key=key("key_2"))
        world.until(MIDNIGHT + HOUR)
        account = world.account()

        def much_later() -> None:
            world.clock.now += LEASE
            taken = AcquireAccountLease(TENANT, ACCOUNT, "somebody", LEASE.total_seconds())
            assert world.store.recorder.write(taken)

        slow = _Slow(account, much_later)
        passed = world.asked(msgspec.structs.replace(account, source=slow))
        assert all(value in passed.trouble for value in (ACCOUNT, "3 minutes"))
        assert slow.asked == 1
        assert world.attempts("b") == []

    def test_a_slow_reconciler_renews_its_lease(self, world: World) -> None:
        world.ran("a")
        world.ran("b", MIDNIGHT, attribution_key=key("key_2"))
        world.until(MIDNIGHT + HOUR)
        account = world.account()

        def later() -> None:
            world.clock.now += LEASE * 0.6
            other = AcquireAccountLease(TENANT, ACCOUNT, "somebody", LEASE.total_seconds())
            assert not world.store.recorder.write(other)

        assert world.asked(msgspec.structs.replace(account, source=_Slow(account, later))).observed == 2

    def test_a_restarted_reconciler_continues(self, anywhere: World) -> None:
        world = anywhere
        world.ran()
        world.wait(minutes=15)
        world.round()
        due = world.found().next_observation_at
        world.restart()
        assert world.found().next_observation_at == due
        world.wait(minutes=59)
        assert world.round().accounts == ()
        world.restart()
        world.wait(minutes=1)
        world.round()
        assert world.stands() == "verified stable"

    def test_blocks_are_read_to_the_end(self, anywhere: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also where several runs end in the same moment, and each look moves its run."""
        world = anywhere
        for name in ("BLOCK", "ATTRIBUTION_BLOCK"):
            monkeypatch.setattr(account_round, name, 3)
        for number in range(11):
            world.ran(f"r{number:02}", attribution_key=key(f"key_{number}"))
        world.wait(minutes=30)
        assert world.asked().observed == 11
        world.wait(minutes=60)
        assert world.asked(choice=UsageRunFilter(tenant=TENANT, framework="f")).observed == 11
        world.server.faults = FAULTS[FetchError.RATE_LIMITED]
        world.wait(days=1)
        assert world.asked().failed == 11


def test_the_policy_is_the_reconcilers(world: World) -> None:
    world.ran()
    for minutes in (15, 5):
        world.wait(minutes=minutes)
        asyncio.run(
            world.reconciler(policy=UsagePolicy(interval_min=5)).run_once(UsageRunFilter(tenant=TENANT, run_id="r"))
        )
    assert world.found().verdict.status is UsageStatus.VERIFIED
    assert world.found().verdict.interval_min == 5


def test_a_dip_bars_a_run_until_it_is_over(world: World) -> None:
    run = world.ran(calls=10)
    assert run.ended_at is not None
    for minutes in (15, 60):
        world.wait(minutes=minutes)
        world.round()
    audit = run.ended_at + DAY
    world.server.faults = Faults(dips=(Dip(audit - MINUTE, audit + HOUR, 0.5),))
    world.until(audit)
    world.round()
    assert world.stands() == "warning decreased"
    world.until(audit + 2 * HOUR)
    world.round(choice=UsageRunFilter(tenant=TENANT, run_id="r"))
    assert world.stands() == "pending changing"
    world.wait(minutes=60)
    world.round()
    assert world.stands() == "verified stable"
    assert world.found().verdict.withdrawn == 1


def test_a_run_without_steps_declares_what_it_is(world: World) -> None:
    world.record(
        MeteredRun("idle", "f", ACCOUNT, key("key_9"), NOON, NOON + MINUTE, (MeteredStep("s"),), declares_no_usage=True)
    )
    for minutes in (15, 60):
        world.wait(minutes=minutes)
        world.round()
    assert world.stands("idle") == "verified stable"


class _Stopped(BaseException):
    pass


class _Passing:
    """An account's source, and what else happens."""

    def __init__(self, account: Account) -> None:
        self.source = account.source
        self.kinds, self.bucket, self.longest = self.source.kinds, self.source.bucket, self.source.longest

    def usage(self, window: Window) -> AsyncIterator[Page]:
        return self.source.usage(window)

    def calls(self, ids: Sequence[str]) -> AsyncIterator[Page]:
        raise NotImplementedError

    def costs(self, window: Window) -> AsyncIterator[Page]:
        return self.source.costs(window)


class _Cached(_Passing):
    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self.pages: list[Page] = []
        self.asked = 0

    async def usage(self, window: Window) -> AsyncIterator[Page]:
        self.asked += 1
        self.pages = self.pages or [page async for page in self.source.usage(window)]
        for page in self.pages:
            yield page


class _Mistaken(_Passing):
    def __init__(self, account: Account, mistake: BaseException) -> None:
        super().__init__(account)
        self.mistake = mistake

    def usage(self, window: Window) -> AsyncIterator[Page]:
        raise self.mistake


class _Costless(_Passing):
    def __init__(self, account: Account, mistake: Exception) -> None:
        super().__init__(account)
        self.mistake = mistake

    async def costs(self, window: Window) -> AsyncIterator[Page]:
        async for page in no_pages(window):
            yield page
        raise self.mistake


class _Slow(_Passing):
    def __init__(self, account: Account, meanwhile: Callable[[], None]) -> None:
        super().__init__(account)
        self.meanwhile = meanwhile
        self.asked = 0

    async def usage(self, window: Window) -> AsyncIterator[Page]:
        self.asked += 1
        async for page in self.source.usage(window):
            yield page
        self.meanwhile()


class _Broken:
    """A source that is asked for calls, one of which it cannot tell."""

    def __init__(self, account: Account, call_id: str, kind: FetchError) -> None:
        self.source, self.call_id, self.kind = account.source, call_id, kind
        self.kinds, self.bucket, self.longest = self.source.kinds, self.source.bucket, self.source.longest
        self.account = msgspec.structs.replace(account, source=self)
        self.asked = 0

    async def calls(self, ids: Sequence[str]) -> AsyncIterator[Page]:
        self.asked += 1
        if self.call_id in ids:
            raise FetchFailed(self.kind, f"not {self.call_id}")
        async for page in self.source.calls(ids):
            yield page

    def usage(self, window: Window) -> AsyncIterator[Page]:
        return no_pages(window)

    def costs(self, window: Window) -> AsyncIterator[Page]:
        return no_pages(window)


def test_a_call_that_was_refused_names_no_model_that_must_be_billed(world: World) -> None:
    begun, end = NOON, NOON + 5 * MINUTE
    world.server.use(begun, MODEL, USED, key="key_1")
    calls = (MeteredCall(begun, "o1", None, CallState.FAILED), MeteredCall(begun, MODEL, USED))
    steps = (MeteredStep("s", begun, end, True, None, calls),)
    world.record(MeteredRun("r", "f", ACCOUNT, key("key_1"), begun, end, steps))
    for minutes in (20, 60):
        world.wait(minutes=minutes)
        world.round()
    assert world.stands() == "verified stable"


def test_a_late_end_of_a_neighbour_makes_no_count_fall(world: World) -> None:
    world.ran("r1")
    begun, end = NOON + MINUTE, NOON + 6 * MINUTE
    left_open = MeteredRun("r2", "f", ACCOUNT, key("key_1"), begun)
    world.record(left_open)
    world.server.use(begun, MODEL, USED, key="key_1")
    world.ran("r3", NOON + 30 * MINUTE)
    world.wait(minutes=50)
    world.round()
    steps = (MeteredStep("s", begun, end, True, None, (MeteredCall(begun, MODEL, USED),)),)
    world.record(replace(left_open, ended_at=end, steps=steps))
    for _ in range(4):
        world.wait(hours=1)
        world.round()
    assert {world.stands(one) for one in ("r1", "r2", "r3")} == {"verified stable"}


def test_a_call_that_says_to_be_of_another_year_has_the_price_of_the_runs_own_day(world: World) -> None:
    begun, end, model = NOON, NOON + 5 * MINUTE, "o3-2025-04-16"
    million = Tokens(1_000_000, 0, 1, 0, 0)
    world.server.use(begun, model, million, key="key_1")
    # It cost five times as much then.
    steps = (MeteredStep("s", begun, end, True, None, (MeteredCall(begun - 480 * DAY, model, million),)),)
    world.record(MeteredRun("r", "f", ACCOUNT, key("key_1"), begun, end, steps))
    for minutes in (20, 60):
        world.wait(minutes=minutes)
        world.round()
    assert world.found().ledger.quoted == Decimal(2)


def test_a_neighbour_recorded_during_a_request_makes_the_run_due(world: World) -> None:
    world.ran("r1", calls=1)
    world.wait(minutes=20)
    world.round()
    world.wait(minutes=60)
    account = world.account()
    usual = account.source.usage

    async def usage(window: Window) -> AsyncIterator[Page]:
        async for page in usual(window):
            yield page
        world.wait(seconds=1)
        late = MeteredRun("r2", "f", ACCOUNT, key("key_1"), NOON, NOON + MINUTE, (MeteredStep("s"),))
        await world.store.recorder.record(RecordRun(TENANT, "me", late))

    account.source.usage = usage  # type: ignore[method-assign]
    world.round(account)
    assert world.found("r1").next_observation_at == world.clock.now
    world.wait(minutes=5)
    world.round()
    assert world.stands("r1") == "pending changing"
    world.wait(minutes=60)
    world.round()
    assert world.stands("r1") == "warning ambiguous_attribution"
