"""A provider on loopback: what it knows, from when it says so, and how it fails."""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import parsedate_to_datetime
from itertools import pairwise
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meruit.model.metering import Window
from meruit.model.usage import Tokens, sum_tokens
from meruit.playground.billing.base import TimeBucket, page_start, page_token, split_buckets
from meruit.playground.billing.calls import CallVisibility, Counts, ProviderCall
from meruit.playground.billing.faults import Dip, Faults, Outage, OutageKind, is_triggered
from meruit.playground.billing.server import ADMIN_KEY, ProviderServer

START = datetime(2026, 9, 1, tzinfo=UTC)
PATH = "/v1/organization/usage/completions"
HEADERS = {"authorization": f"Bearer {ADMIN_KEY}"}
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


class Clock:
    """Shows what it is set to."""

    def __init__(self) -> None:
        self.now = START + HOUR

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(clock: Clock) -> Iterator[ProviderServer]:
    with ProviderServer(clock=clock) as running:
        yield running


@pytest.fixture
def client(server: ProviderServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers=HEADERS, timeout=300) as asking:
        yield asking


def question(start: datetime = START, **more: Any) -> str:
    return f"{PATH}?{httpx.QueryParams({'start_time': int(start.timestamp()), 'bucket_width': '1h', **more})}"


def ask(server: ProviderServer, target: str = question()) -> Any:
    said = server.answer(target, HEADERS)
    assert said.status == 200, said
    return json.loads(said.content)


def used(document: Any) -> int:
    return sum(int(row["input_tokens"]) for bucket in document["data"] for row in bucket["results"])


def test_a_call_shows_after_the_delay_and_not_before(server: ProviderServer, clock: Clock) -> None:
    server.use(clock.now, "gpt-6", Tokens(100, 10))
    at = clock.now
    shown = []
    for after in (0, 9, 10, 600):
        clock.now = at + timedelta(minutes=after)
        shown.append(used(ask(server)))
    assert shown == [0, 0, 100, 100]
    assert server.truth() == Tokens(100, 10, 1, 0, 0, 0)


def test_each_call_may_have_a_delay_of_its_own(server: ProviderServer, clock: Clock) -> None:
    server.use(START, "gpt-6", Tokens(1, 0), visible_after=timedelta(0))
    server.use(START, "gpt-6", Tokens(10, 0), visible_after=timedelta(hours=5))
    assert used(ask(server)) == 1
    clock.now += 4 * HOUR
    assert used(ask(server)) == 11


def test_the_truth_can_be_filtered_by_window_and_key(server: ProviderServer) -> None:
    server.use(START, "a", Tokens(1, 1, requests=2, cached=1, cache_write=0, reasoning=1), key="k", cost=Decimal("0.5"))
    server.use(START + MINUTE, "b", Tokens(10, 1), project="p", cost=Decimal("0.25"))
    server.use(START + 2 * MINUTE, "b", Tokens(100, 1), session="s")
    assert server.truth() == Tokens(111, 3, 4, 1, 0, 1)
    assert server.truth(Window(START, START + MINUTE)).input == 1
    assert server.truth(Window(START + MINUTE, START + HOUR)).input == 110
    assert server.truth(key="k").input == 1
    assert server.truth(project="p").input == 10
    assert server.truth(session="s").input == 100
    assert server.truth(model="b").input == 110
    assert server.truth(Window(START, START + MINUTE), project="p") == Tokens(0, 0, 0, 0, 0, 0)
    assert server.bill() == Decimal("0.75")
    assert server.bill(model="b") == Decimal("0.25")


CALLS = st.lists(
    st.tuples(
        st.integers(0, 3 * 3600),
        st.sampled_from(["gpt-6", "gpt-6-mini"]),
        st.integers(0, 1000),
        st.integers(0, 100),
        st.sampled_from(["", "key_1", "key_2"]),
        st.integers(0, 7200),
    ),
    max_size=30,
)


@settings(max_examples=25, deadline=None)
@given(
    calls=CALLS,
    start=st.integers(0, 7200),
    length=st.integers(1, 7200),
    width=st.sampled_from(["1m", "1h", "1d"]),
    limit=st.integers(1, 31),
    page_rows=st.none() | st.integers(1, 40),
    lost=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_pages_cover_every_bucket_once_and_say_what_can_be_seen(
    calls: list[tuple[int, str, int, int, str, int]],
    start: int,
    length: int,
    width: str,
    limit: int,
    page_rows: int | None,
    lost: float,
) -> None:
    now = START + 4 * HOUR
    server = ProviderServer(clock=lambda: now, page_rows=page_rows)
    with server:
        for second, model, asking, answer, key, late in calls:
            tokens = Tokens(asking, answer)
            at = START + timedelta(seconds=second)
            server.use(at, model, tokens, key=key, visible_after=timedelta(seconds=late))
        server.faults = Faults(dips=[Dip(now, now + HOUR, lost)])
        first, last = int(START.timestamp()) + start, int(START.timestamp()) + start + length
        params: dict[str, Any] = {"start_time": first, "end_time": last, "bucket_width": width, "limit": limit}
        params["group_by"] = ["api_key_id", "model"]
        buckets, rows = [], []
        while True:
            page = ask(server, f"{PATH}?{httpx.QueryParams(params)}")
            assert len(page["data"]) <= min(limit, page_rows or limit)
            buckets += page["data"]
            if not page["has_more"]:
                break
            params["page"] = page["next_page"]
        whole = Window(_minute(first), _minute(last + 59))
        edges = [(one["start_time"], one["end_time"]) for one in buckets]
        assert edges[0][0] == whole.start.timestamp()
        assert edges[-1][1] == whole.end.timestamp()
        assert all(end == start for (_, end), (start, _) in pairwise(edges))
        for key in ("", "key_1", "key_2"):
            rows = [row for one in buckets for row in one["results"] if row["api_key_id"] == (key or None)]
            told = sum_tokens(
                Tokens(row["input_tokens"], row["output_tokens"], row["num_model_requests"]) for row in rows
            )
            seen = server.visible_usage(whole, key=key)
            assert (told.input, told.output, told.requests) == (seen.input, seen.output, seen.requests)


def _minute(second: int) -> datetime:
    return datetime.fromtimestamp(second - second % 60, UTC)


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.sampled_from([60, 3600, 86400]))
def test_buckets_tile_their_range_on_multiples_of_their_width(start: int, length: int, width_s: int) -> None:
    found = [*split_buckets(TimeBucket(start, start + length), width_s)]
    assert sum(end - begin for begin, end in found) == length
    assert all(begin % width_s == 0 for begin, _ in found[1:])
    assert all(end % width_s == 0 for _, end in found[:-1])


@given(st.integers(0, 2**40))
def test_a_token_leads_back_and_nothing_else_does(where: int) -> None:
    assert page_start(page_token(where)) == where
    assert page_start(page_token(where)[5:]) is None
    assert page_start(f"{page_token(where)}x") is None


@pytest.mark.parametrize("text", ["", "page_", "page_!!!!", "page_AAAA", "page_AAAAAAAA", "garbage", "page_é"])
def test_what_is_no_token_leads_nowhere(text: str) -> None:
    assert page_start(text) is None


def test_calls_may_be_written_down_in_any_order_and_after_they_were_asked_for(server: ProviderServer) -> None:
    for minute in (30, 5, 17, 5):
        server.use(START + minute * MINUTE, "gpt-6", Tokens(minute, 0))
    assert used(ask(server)) == 57
    assert used(ask(server)) == 57
    server.use(START + MINUTE, "gpt-6", Tokens(1, 0))
    assert used(ask(server)) == 58
    assert server.truth(Window(START + 5 * MINUTE, START + 18 * MINUTE)).input == 27


def test_questions_are_counted_by_path_and_answers_by_status(server: ProviderServer, client: httpx.Client) -> None:
    client.get(question())
    client.get(question(limit=1))
    client.get(question(), headers={"authorization": "Bearer wrong"})
    client.get("/v1/organization/costs")
    assert server.calls == Counter({PATH: 3, "/v1/organization/costs": 1})
    assert server.statuses == Counter({200: 2, 401: 1, 400: 1})


def test_connections_stay_open_and_dates_come_from_the_clock(client: httpx.Client, clock: Clock) -> None:
    first = client.get(question())
    clock.now += HOUR
    second = client.get(question())
    assert first.http_version == "HTTP/1.1"
    dates = [parsedate_to_datetime(one.headers["date"]) for one in (first, second)]
    assert dates == [START + HOUR, START + 2 * HOUR]
    ports = {one.extensions["network_stream"].get_extra_info("client_addr") for one in (first, second)}
    assert len(ports) == 1


def test_a_skewed_clock_dates_its_answers_and_calls_the_present_the_future(
    server: ProviderServer, client: httpx.Client, clock: Clock
) -> None:
    server.faults = Faults(skew=timedelta(minutes=-7))
    now = int(clock.now.timestamp())
    refused = client.get(question(end_time=now))
    assert refused.status_code == 400
    assert parsedate_to_datetime(refused.headers["date"]) == clock.now - 7 * MINUTE
    assert client.get(question(end_time=now - 420)).status_code == 200


def test_an_unknown_path_is_not_found(client: httpx.Client) -> None:
    answer = client.get("/v1/chat/completions")
    assert answer.status_code == 404
    assert "/v1/chat/completions" in answer.json()["error"]["message"]


@pytest.mark.parametrize(("kind", "status"), [(OutageKind.ERROR, 500), (OutageKind.UNAVAILABLE, 503)])
def test_an_outage_begins_and_ends(server: ProviderServer, clock: Clock, kind: OutageKind, status: int) -> None:
    server.faults = Faults(outages=[Outage(clock.now, clock.now + HOUR, kind)])
    began = clock.now
    answers = []
    for after in (timedelta(microseconds=-1), timedelta(0), HOUR - timedelta(microseconds=1), HOUR):
        clock.now = began + after
        answers.append(server.answer(question(), HEADERS).status)
    assert answers == [200, status, status, 200]


def test_an_outage_may_hang_up_or_be_silent(server: ProviderServer, client: httpx.Client, clock: Clock) -> None:
    server.faults = Faults(outages=[Outage(clock.now, clock.now + HOUR, OutageKind.HANG_UP)])
    with pytest.raises(httpx.RemoteProtocolError):
        client.get(question())
    server.faults = Faults(outages=[Outage(clock.now, clock.now + HOUR, OutageKind.SILENT)])
    with pytest.raises(httpx.ReadTimeout):
        client.get(question(), timeout=0.05)
    server.faults = Faults()
    assert client.get(question()).status_code == 200
    assert server.statuses == Counter({0: 2, 200: 1})


def test_some_questions_are_too_many_by_chance_and_always_the_same(clock: Clock) -> None:
    def statuses(seed: int) -> list[int]:
        with ProviderServer(clock=clock, seed=seed, faults=Faults(rate_limited=0.5, retry_after_s=3)) as server:
            answers = [server.answer(question(), HEADERS) for _ in range(40)]
        assert {one.headers.get("Retry-After") for one in answers if one.status == 429} == {"3"}
        return [one.status for one in answers]

    assert statuses(1) == statuses(1) != statuses(2)
    assert 8 < statuses(1).count(429) < 32


def test_a_minute_takes_so_many_questions(server: ProviderServer, client: httpx.Client, clock: Clock) -> None:
    server.faults = Faults(per_minute=2)
    clock.now += timedelta(seconds=20)
    answers = [client.get(question()) for _ in range(3)]
    assert [one.status_code for one in answers] == [200, 200, 429]
    assert answers[2].headers["retry-after"] == "40"
    assert answers[2].json()["error"]["code"] == "rate_limit_exceeded"
    clock.now += timedelta(seconds=40)
    assert client.get(question()).status_code == 200


def test_a_wrong_key_takes_nothing_of_the_minute(server: ProviderServer, client: httpx.Client) -> None:
    server.faults = Faults(per_minute=1)
    assert client.get(question(), headers={"authorization": "Bearer x"}).status_code == 401
    assert client.get(question()).status_code == 200


def test_answers_break_off_or_are_no_json(server: ProviderServer, client: httpx.Client) -> None:
    server.faults = Faults(broken_off=1)
    with pytest.raises(httpx.RemoteProtocolError):
        client.get(question())
    assert server.statuses == Counter({0: 1})
    server.faults = Faults(malformed=1)
    answer = client.get(question())
    assert answer.status_code == 200
    with pytest.raises(json.JSONDecodeError):
        answer.json()
    server.faults = Faults()
    assert client.get(question()).json()["object"] == "page"


def test_a_page_may_say_that_there_is_more_and_not_where(server: ProviderServer) -> None:
    server.faults = Faults(unfinished=1)
    page = ask(server)
    assert (page["has_more"], page["next_page"]) == (True, None)


@pytest.mark.parametrize(("fraction", "left"), [(0.25, 3), (0.5, 2), (1.0, 0)])
def test_a_dip_hides_a_share_of_each_key_for_a_time(clock: Clock, fraction: float, left: int) -> None:
    dip = Dip(clock.now, clock.now + HOUR, fraction)
    with ProviderServer(clock=clock, faults=Faults(dips=[dip])) as server:
        for attribution_key in ("a", "b"):
            for _ in range(4):
                server.use(START, "gpt-6", Tokens(1, 0), key=attribution_key)
        began = clock.now
        shown = []
        for after in (timedelta(seconds=-1), timedelta(0), HOUR):
            clock.now = began + after
            shown.append(used(ask(server)))
        assert shown == [8, 2 * left, 8]
        assert server.visible_usage(key="a", at=began).input == left
        assert server.truth(key="a").input == 4


@given(st.integers(0, 200), st.floats(0, 1))
def test_a_dip_hides_its_share_to_within_one_call(calls: int, lost: float) -> None:
    several = [ProviderCall(0, 0, turn, "gpt-6", "", "", "", "", Counts(), None) for turn in range(calls)]
    assert sum(not CallVisibility(0, lost).shows(one) for one in several) == int(calls * lost)


def test_a_share_of_calls_is_late(clock: Clock) -> None:
    with ProviderServer(clock=clock, faults=Faults(late=0.3, late_by=timedelta(hours=3))) as server:
        for _ in range(200):
            server.use(START, "gpt-6", Tokens(1, 0))
        soon = used(ask(server))
        assert 110 < soon < 170
        clock.now = START + timedelta(hours=3)
        assert used(ask(server)) == 200


@settings(max_examples=30)
@given(st.floats(0, 1), st.integers(), st.text(max_size=20))
def test_chance_is_a_function_of_its_seed(share: float, seed: int, about: str) -> None:
    assert is_triggered(share, seed, "rate", about) == is_triggered(share, seed, "rate", about)
    assert not is_triggered(0, seed, "rate", about)
    assert is_triggered(1, seed, "rate", about)


def test_nothing_goes_wrong_by_default(server: ProviderServer, client: httpx.Client) -> None:
    server.use(START, "gpt-6", Tokens(5, 1))
    answers = [client.get(question()) for _ in range(50)]
    assert {one.status_code for one in answers} == {200}
    assert len({one.content for one in answers}) == 1
