"""OpenRouter and LiteLLM, which know each call."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meruit.model.usage import Tokens
from meruit.playground.billing.faults import Dip, Faults
from meruit.playground.billing.litellm import DATE, LOGS, LOGS_V2
from meruit.playground.billing.openrouter import GENERATION
from meruit.playground.billing.server import ADMIN_KEY, PLAIN_KEY, ProviderServer

START = datetime(2026, 9, 1, tzinfo=UTC)
HEADERS = {"authorization": f"Bearer {ADMIN_KEY}"}
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


class Clock:
    """Shows what it is set to."""

    now = START + HOUR

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(clock: Clock) -> Iterator[ProviderServer]:
    with ProviderServer(clock=clock, delay=5 * SECOND) as running:
        yield running


@pytest.fixture
def client(server: ProviderServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers=HEADERS, timeout=300) as asking:
        yield asking


def range_of(start: datetime = START, end: datetime = START + HOUR) -> dict[str, Any]:
    return {"start_date": start.strftime(DATE), "end_date": end.strftime(DATE)}


def test_a_generation_is_not_found_at_first(server: ProviderServer, client: httpx.Client, clock: Clock) -> None:
    tokens = Tokens(1000, 200, cached=300, reasoning=50)
    server.use(clock.now, "openai/gpt-6", tokens, call_id="gen-1", cost=Decimal("0.0015"))
    early = client.get(GENERATION, params={"id": "gen-1"})
    assert early.status_code == 404
    assert early.json() == {"error": {"message": "Generation gen-1 not found", "code": 404}}
    clock.now += 5 * SECOND
    found = client.get(GENERATION, params={"id": "gen-1"}).json()["data"]
    assert (found["native_tokens_prompt"], found["native_tokens_completion"]) == (1000, 200)
    assert (found["native_tokens_cached"], found["native_tokens_reasoning"]) == (300, 50)
    assert found["tokens_prompt"] != found["native_tokens_prompt"]
    assert (found["total_cost"], found["is_byok"], found["cancelled"]) == (0.0015, False, False)
    assert datetime.fromisoformat(found["created_at"]) == START + HOUR
    server.faults = Faults(dips=[Dip(clock.now, clock.now + HOUR)])
    assert client.get(GENERATION, params={"id": "gen-1"}).status_code == 404


def test_any_key_of_the_account_reads_a_generation(client: httpx.Client) -> None:
    answers = [
        client.get(GENERATION, params={"id": "gen-2"}, headers={"authorization": shown})
        for shown in ("", "Bearer wrong", f"Bearer {PLAIN_KEY}")
    ]
    assert [one.status_code for one in answers] == [401, 401, 404]
    assert answers[0].json()["error"] == {"message": "No auth credentials found", "code": 401}
    assert client.get(GENERATION).status_code == 400


@settings(max_examples=20, deadline=None)
@given(
    calls=st.lists(st.tuples(st.integers(0, 3599), st.integers(0, 99)), max_size=40),
    size=st.integers(1, 100),
    page_rows=st.none() | st.integers(1, 10),
)
def test_pages_of_rows_have_every_call_once(calls: list[tuple[int, int]], size: int, page_rows: int | None) -> None:
    with ProviderServer(clock=lambda: START + 2 * HOUR, page_rows=page_rows) as server:
        for number, (second, output) in enumerate(calls):
            server.use(START + second * SECOND, "gpt-6", Tokens(1, output), call_id=f"call-{number}")
        rows: list[Any] = []
        page = 1
        while True:
            params = httpx.QueryParams({**range_of(), "page": page, "page_size": size})
            answer = json.loads(server.answer(f"{LOGS_V2}?{params}", HEADERS).content)
            rows += answer["data"]
            assert answer["total"] == len(calls)
            if page >= answer["total_pages"]:
                break
            page += 1
        assert sorted(row["request_id"] for row in rows) == sorted(f"call-{number}" for number in range(len(calls)))
        assert [row["startTime"] for row in rows] == sorted((row["startTime"] for row in rows), reverse=True)
        assert sum(row["completion_tokens"] for row in rows) == server.truth().output


def test_a_row_has_all_fields_of_a_call(server: ProviderServer, client: httpx.Client) -> None:
    tokens = Tokens(100, 20, cached=30, cache_write=10, reasoning=5)
    server.use(START, "gpt-6", tokens, key="hash", project="team", session="s", call_id="c", cost=Decimal("0.25"))
    server.use(START, "gpt-6", Tokens(1, 1))
    unnamed, row = client.get(LOGS_V2, params={**range_of(), "sort_order": "asc"}).json()["data"]
    assert (row["prompt_tokens"], row["completion_tokens"], row["total_tokens"]) == (100, 20, 120)
    assert (row["api_key"], row["team_id"], row["session_id"], row["spend"]) == ("hash", "team", "s", 0.25)
    assert (row["startTime"], row["endTime"]) == ("2026-09-01T00:00:00.000Z", "2026-09-01T00:00:01.000Z")
    usage = row["metadata"]["usage_object"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 30, "cache_creation_tokens": 10}
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 5}
    assert unnamed["request_id"]
    assert client.get(LOGS, params={"request_id": "c"}).json() == [row]
    assert client.get(LOGS, params={"request_id": "d"}).json() == [None]


@pytest.mark.parametrize(
    ("filters", "left"), [({"api_key": "a"}, 2), ({"model": "m2"}, 1), ({"request_id": "c1"}, 1), ({"team_id": "x"}, 0)]
)
def test_rows_can_be_narrowed(server: ProviderServer, client: httpx.Client, filters: dict[str, str], left: int) -> None:
    for number, (model, key) in enumerate([("m1", "a"), ("m1", "b"), ("m2", "a")]):
        server.use(START, model, Tokens(1, 0), key=key, call_id=f"c{number}")
    assert client.get(LOGS_V2, params={**range_of(), **filters}).json()["total"] == left


def test_the_end_of_a_range_is_in_it(server: ProviderServer, client: httpx.Client) -> None:
    for after in (timedelta(minutes=1), timedelta(minutes=1, microseconds=1)):
        server.use(START + after, "gpt-6", Tokens(1, 0))
    first = client.get(LOGS_V2, params=range_of(START, START + timedelta(minutes=1))).json()
    second = client.get(LOGS_V2, params=range_of(START + timedelta(minutes=1))).json()
    assert (first["total"], second["total"]) == (1, 2)


@pytest.mark.parametrize(
    ("params", "status", "says"),
    [
        ({"end_date": None}, 500, "match format"),
        ({"start_date": "2026-09-01"}, 500, "match format"),
        ({"page": "0"}, 422, "equal to 1"),
        ({"page": "x"}, 422, "valid integer"),
        ({"page_size": "101"}, 422, "equal to 100"),
    ],
)
def test_what_cannot_be_meant_is_refused(client: httpx.Client, params: dict[str, Any], status: int, says: str) -> None:
    answer = client.get(LOGS_V2, params={**range_of(), **params})
    assert answer.status_code == status
    assert says in answer.text


def test_each_refusal_is_said_as_the_proxy_says_it(server: ProviderServer, client: httpx.Client) -> None:
    answers = [
        client.get(LOGS_V2, headers={"authorization": shown})
        for shown in ("", "Bearer sk-wrong", f"Bearer {PLAIN_KEY}", f"Bearer {ADMIN_KEY}")
    ]
    assert [one.status_code for one in answers] == [401, 401, 403, 400]
    assert answers[3].json()["error"] == {
        "message": "Start date and end date are required",
        "type": "bad_request",
        "param": "None",
        "code": "400",
    }
    server.faults = Faults(rate_limited=1)
    assert client.get(LOGS_V2, params=range_of()).json()["error"]["type"] == "throttling_error"


def test_a_log_may_promise_more_than_it_has(server: ProviderServer, client: httpx.Client) -> None:
    server.use(START, "gpt-6", Tokens(1, 0))
    server.faults = Faults(unfinished=1)
    page = client.get(LOGS_V2, params=range_of()).json()
    assert (len(page["data"]), page["total_pages"]) == (1, 2)
    assert client.get(LOGS_V2, params={**range_of(), "page": 2}).json()["data"] == []
