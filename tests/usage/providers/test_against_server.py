"""The sources against a server that speaks the providers' APIs: all that was used, or why not."""

import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal

import msgspec
import pytest
from tests.usage.providers.opened import (
    HOUR,
    KEY,
    MINUTE,
    NOW,
    PROVIDERS,
    Clock,
    all_of,
    before,
    failure_of,
    opened,
    rows_of,
    sum_of,
)

from meruit.errors import FetchError
from meruit.model.metering import Window
from meruit.model.usage import Tokens, sum_tokens
from meruit.playground.billing.faults import Faults, Outage, OutageKind
from meruit.playground.billing.server import ProviderServer

ALWAYS = Outage(NOW - timedelta(days=9), NOW + timedelta(days=9))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(clock: Clock) -> Iterator[ProviderServer]:
    with ProviderServer(clock=clock, delay=timedelta(minutes=5)) as one:
        yield one


def call(chance: random.Random) -> Tokens:
    cached, written, fresh = chance.randrange(500), chance.randrange(50), chance.randrange(1, 500)
    return Tokens(cached + written + fresh, chance.randrange(400), 1, cached, written, 0)


def busy(server: ProviderServer, *, calls: int, hours: float, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(calls):
        server.use(
            NOW - chance.random() * hours * HOUR - 6 * MINUTE,
            chance.choice(["gpt-6", "gpt-6-mini"]),
            call(chance),
            key=chance.choice(["key_a", "key_b"]),
            project=chance.choice(["proj_1", "proj_2"]),
            session=chance.choice(["s1", "s2", ""]),
            call_id=f"gen-{seed}-{number}",
            cost=Decimal(chance.randrange(1, 10_000)) / 10_000,
        )


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(("seed", "page_rows", "hours"), [(1, None, 23), (2, 7, 1), (3, 1, 0.1), (4, 60, 30)])
def test_pages_to_the_end_are_all_that_was_used(
    server: ProviderServer, clock: Clock, provider: str, seed: int, page_rows: int | None, hours: float
) -> None:
    server.page_rows = page_rows
    busy(server, calls=60, hours=hours, seed=seed)
    window = before(hours + 0.5)
    pages = all_of(opened(provider, server.url, clock=clock).usage(window))
    truth, found = server.truth(window), sum_of(pages)
    assert (found.input, found.output) == (truth.input, truth.output)
    assert found.requests in (None, truth.requests)
    assert found.cached in (None, truth.cached)
    assert all(page.at == NOW for page in pages)
    for key in ("key_a", "key_b"):
        mine = sum_tokens([row.tokens for row in rows_of(pages) if row.key == key])
        assert mine.total == server.truth(window, key=key).total
    for project in ("proj_1", "proj_2"):
        mine = sum_tokens([row.tokens for row in rows_of(pages) if row.project == project])
        assert mine.total == server.truth(window, project=project).total


@pytest.mark.parametrize("provider", ["anthropic_analytics", "litellm"])
def test_sessions_are_counted_separately(server: ProviderServer, clock: Clock, provider: str) -> None:
    busy(server, calls=40, hours=2, seed=5)
    rows = rows_of(all_of(opened(provider, server.url, clock=clock).usage(before(3))))
    for session in ("s1", "s2", ""):
        mine = sum_tokens([row.tokens for row in rows if row.session == session])
        assert mine.total == server.truth(session=session).total


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_window_is_of_what_began_in_it(server: ProviderServer, clock: Clock, provider: str) -> None:
    edges = [NOW - 2 * HOUR, NOW - 2 * HOUR + timedelta(milliseconds=500), NOW - HOUR - MINUTE, NOW - HOUR]
    for at in edges:
        server.use(at, "gpt-6", Tokens(10, 1))
    found = sum_of(all_of(opened(provider, server.url, clock=clock).usage(Window(NOW - 2 * HOUR, NOW - HOUR))))
    assert (found.input, found.output) == (30, 3)


@pytest.mark.parametrize("provider", ["openai", "anthropic", "anthropic_analytics"])
def test_costs_come_to_the_bill(server: ProviderServer, clock: Clock, provider: str) -> None:
    busy(server, calls=50, hours=60, seed=6)
    pages = all_of(opened(provider, server.url, clock=clock).costs(before(72)))
    costs = [cost for page in pages for cost in page.costs]
    assert abs(sum(cost.amount for cost in costs) - server.bill()) < Decimal("1e-9")
    assert {cost.currency for cost in costs} == {"USD"}
    assert {cost.project for cost in costs} == {"proj_1", "proj_2"}
    assert all(cost.item for cost in costs)


@pytest.mark.parametrize("provider", ["openrouter", "litellm"])
def test_calls_are_found_by_their_ids_and_those_that_are_not_known_yet_have_no_row(
    server: ProviderServer, clock: Clock, provider: str
) -> None:
    used = [Tokens(100 + number, 20, 1, 7, None, 3) for number in range(6)]
    for number, tokens in enumerate(used):
        late = HOUR if number == 5 else None
        server.use(NOW - 10 * MINUTE, "gpt-6", tokens, call_id=f"gen-{number}", visible_after=late, cost=Decimal("0.5"))
    source = opened(provider, server.url, clock=clock)
    rows = rows_of(all_of(source.calls([*(f"gen-{number}" for number in range(6)), "gen-0", "unheard-of"])))
    assert [row.request_id for row in rows] == [f"gen-{number}" for number in range(5)]
    assert [(row.tokens.total, row.tokens.requests, row.tokens.cached) for row in rows] == [
        (one.total, 1, 7) for one in used[:5]
    ]
    assert {row.cost for row in rows} == {Decimal("0.5")}
    assert {row.start for row in rows} == {NOW - 10 * MINUTE}


def test_sources_yield_nothing_that_they_do_not_count(server: ProviderServer, clock: Clock) -> None:
    for provider in ("openai", "anthropic", "anthropic_analytics"):
        assert all_of(opened(provider, server.url, clock=clock).calls(["gen-1"])) == []
    for provider in ("openrouter", "litellm"):
        assert all_of(opened(provider, server.url, clock=clock).costs(before(1))) == []
    refused = failure_of(lambda: opened("openrouter", server.url, clock=clock).usage(before(1)))
    assert (refused.kind, "`requests`" in str(refused)) == (FetchError.MALFORMED, True)
    assert not server.calls


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("key", ["sk-wrong-secret", "sk-plain-test", "", "two words", "schlüssel"])
def test_a_wrong_key_is_an_auth_error_and_is_not_shown(
    server: ProviderServer, clock: Clock, provider: str, key: str
) -> None:
    failure = failure_of(lambda: opened(provider, server.url, clock=clock, key=key).usage(before(1)))
    assert failure.kind is FetchError.AUTH
    assert not key or key not in str(failure)
    assert "THE_KEY" in str(failure)
    assert clock.slept == []


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_rate_limit_is_waited_for_as_long_as_is_asked_and_no_longer(
    server: ProviderServer, clock: Clock, provider: str
) -> None:
    busy(server, calls=5, hours=1, seed=7)
    server.faults = Faults(per_minute=0)
    failure = failure_of(lambda: opened(provider, server.url, clock=clock).usage(before(2)))
    assert failure.kind is FetchError.RATE_LIMITED
    assert failure.at is not None
    # A whole minute is longer than is waited within one question.
    assert clock.slept == []
    server.faults = Faults(rate_limited=1.0, retry_after_s=2)
    failure = failure_of(lambda: opened(provider, server.url, clock=clock).usage(before(2)))
    assert failure.kind is FetchError.RATE_LIMITED
    assert clock.slept == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_some_refusals_do_not_change_the_sum(server: ProviderServer, clock: Clock, provider: str) -> None:
    server.page_rows = 9
    busy(server, calls=20, hours=1, seed=8)
    server.faults = Faults(rate_limited=0.25, broken_off=0.1)
    window = before(2)
    found = sum_of(all_of(opened(provider, server.url, clock=clock).usage(window)))
    assert found.total == server.truth(window).total
    assert clock.slept


@pytest.mark.parametrize(
    ("faults", "kind"),
    [
        (Faults(outages=[ALWAYS]), FetchError.SERVER),
        (Faults(outages=[msgspec.structs.replace(ALWAYS, kind=OutageKind.ERROR)]), FetchError.SERVER),
        (Faults(outages=[msgspec.structs.replace(ALWAYS, kind=OutageKind.HANG_UP)]), FetchError.SERVER),
        (Faults(broken_off=1.0), FetchError.PARTIAL_PAGE),
        (Faults(unfinished=1.0), FetchError.PARTIAL_PAGE),
        (Faults(malformed=1.0), FetchError.PARTIAL_PAGE),
        (Faults(skew=2 * HOUR), FetchError.CLOCK),
        (Faults(skew=-2 * HOUR), FetchError.CLOCK),
    ],
)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_failure_is_of_its_own_kind(
    server: ProviderServer, clock: Clock, provider: str, faults: Faults, kind: FetchError
) -> None:
    busy(server, calls=5, hours=1, seed=9)
    server.faults = faults
    failure = failure_of(lambda: opened(provider, server.url, clock=clock).usage(before(2)))
    assert failure.kind is kind
    assert KEY not in str(failure)


def test_silence_ends_in_time(server: ProviderServer, clock: Clock) -> None:
    server.faults = Faults(outages=[msgspec.structs.replace(ALWAYS, kind=OutageKind.SILENT)])
    source = opened("openai", server.url, clock=clock)
    client = source._client  # type: ignore[attr-defined]  # nobody waits half a minute for a test
    client.limits = client.limits.__class__(timeout_s=0.05)
    failure = failure_of(lambda: source.usage(before(2)))
    assert failure.kind is FetchError.TIMEOUT
    assert clock.slept == [1.0, 2.0, 4.0]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("skew", [timedelta(minutes=-20), timedelta(minutes=20)])
def test_a_clock_that_is_a_little_off_is_the_providers_own(
    server: ProviderServer, clock: Clock, provider: str, skew: timedelta
) -> None:
    server.use(NOW - HOUR, "gpt-6", Tokens(10, 1))
    server.faults = Faults(skew=skew)
    pages = all_of(opened(provider, server.url, clock=clock).usage(before(2)))
    assert sum_of(pages).total == 11
    assert {page.at for page in pages} == {NOW + skew}


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("start", [NOW, NOW + HOUR])
def test_what_is_not_over_yet_is_not_asked_for(
    server: ProviderServer, clock: Clock, provider: str, start: datetime
) -> None:
    clock.now = NOW + timedelta(microseconds=300)
    failure = failure_of(lambda: opened(provider, server.url, clock=clock).usage(Window(start, NOW + 2 * HOUR)))
    assert failure.kind is FetchError.NOT_READY
    assert not server.calls


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_window_that_reaches_into_the_future_is_asked_for_up_to_now(
    server: ProviderServer, clock: Clock, provider: str
) -> None:
    server.use(NOW - HOUR, "gpt-6", Tokens(10, 1))
    clock.now = NOW + timedelta(seconds=20.5)
    source = opened(provider, server.url, clock=clock)
    assert sum_of(all_of(source.usage(Window(NOW - 2 * HOUR, NOW + 2 * HOUR)))).total == 11
    if provider != "litellm":
        assert all_of(source.costs(Window(NOW - 2 * HOUR, NOW + 2 * HOUR)))


def test_a_window_beyond_the_watermark_is_not_ready(server: ProviderServer, clock: Clock) -> None:
    server.use(NOW - HOUR, "gpt-6", Tokens(10, 1))
    source = opened("anthropic_analytics", server.url, clock=clock)
    pages = all_of(source.usage(before(2)))
    assert {page.watermark for page in pages} == {NOW - 5 * MINUTE}
    assert failure_of(lambda: source.usage(before(0.05))).kind is FetchError.NOT_READY


def test_a_day_is_one_question_for_each_kind_of_usage(server: ProviderServer, clock: Clock) -> None:
    busy(server, calls=50, hours=23, seed=10)
    all_of(opened("openai", server.url, clock=clock, kinds="completions").usage(before(24)))
    assert dict(server.calls) == {"/v1/organization/usage/completions": 1}
    all_of(opened("anthropic", server.url, clock=clock).usage(before(24)))
    assert server.calls["/v1/organizations/usage_report/messages"] == 1


def test_every_kind_of_openais_usage_can_be_asked_for(server: ProviderServer, clock: Clock) -> None:
    from meruit.usage.providers.openai import KINDS

    busy(server, calls=5, hours=1, seed=11)
    source = opened("openai", server.url, clock=clock, kinds=",".join(KINDS), project_ids="proj_1", api_key_ids="key_a")
    found = sum_of(all_of(source.usage(before(2))))
    assert found.total == server.truth(project="proj_1", key="key_a").total
    assert len(server.calls) == len(KINDS)


def test_only_what_an_account_names_is_asked_for(server: ProviderServer, clock: Clock) -> None:
    busy(server, calls=30, hours=1, seed=12)
    source = opened("anthropic", server.url, clock=clock, api_key_ids="key_a", workspace_ids="proj_1, proj_2")
    assert sum_of(all_of(source.usage(before(2)))).total == server.truth(key="key_a").total
