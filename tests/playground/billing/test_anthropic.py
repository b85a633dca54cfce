"""Anthropic's reports and analytics: what they leave out, how they page, and what they refuse."""

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
from meruit.playground.billing.anthropic import ANALYTICS_COST, ANALYTICS_USAGE, COST_REPORT, LEGACY, MESSAGES
from meruit.playground.billing.faults import Faults, Outage
from meruit.playground.billing.server import ADMIN_KEY, PLAIN_KEY, ProviderServer

START = datetime(2026, 9, 1, tzinfo=UTC)
NOW = START + timedelta(days=20, seconds=30)
HEADERS = {"x-api-key": ADMIN_KEY, "anthropic-version": "2023-06-01"}
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@pytest.fixture
def server() -> Iterator[ProviderServer]:
    with ProviderServer(clock=lambda: NOW) as running:
        yield running


@pytest.fixture
def client(server: ProviderServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers=HEADERS, timeout=300) as asking:
        yield asking


def written(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def asked(client: httpx.Client, path: str = MESSAGES, **params: Any) -> Any:
    given = {name.replace("__", "[]"): value for name, value in params.items()}
    answer = client.get(path, params={"starting_at": written(START), **given})
    assert answer.status_code == 200, answer.text
    return answer.json()


def paged(client: httpx.Client, path: str, **params: Any) -> list[Any]:
    page = asked(client, path, **params)
    found = page["data"]
    while page["has_more"]:
        page = asked(client, path, **params, page=page["next_page"])
        found += page["data"]
    assert page["next_page"] is None
    return list(found)


def test_input_leaves_out_what_was_cached_and_requests_are_not_counted(
    server: ProviderServer, client: httpx.Client
) -> None:
    server.use(START, "claude-5", Tokens(100, 20, cached=30, cache_write=10, reasoning=5), key="apikey_1", project="w")
    bucket = asked(client)["data"][0]
    assert (bucket["starting_at"], bucket["ending_at"]) == ("2026-09-01T00:00:00Z", "2026-09-02T00:00:00Z")
    (row,) = bucket["results"]
    assert row == {
        "uncached_input_tokens": 60,
        "cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 10},
        "cache_read_input_tokens": 30,
        "output_tokens": 20,
        "server_tool_use": {"web_search_requests": 0},
        "api_key_id": None,
        "workspace_id": None,
        "model": None,
        "service_tier": None,
        "context_window": None,
        "inference_geo": None,
        "speed": None,
        "account_id": None,
        "service_account_id": None,
    }
    groups = ["api_key_id", "workspace_id", "model", "service_tier", "account_id"]
    (row,) = asked(client, group_by__=groups)["data"][0]["results"]
    assert [row[name] for name in groups] == ["apikey_1", "w", "claude-5", "standard", None]


@settings(max_examples=15, deadline=None)
@given(
    calls=st.lists(st.tuples(st.integers(0, 3600 * 5), st.integers(0, 99), st.sampled_from("abc")), max_size=30),
    width=st.sampled_from(["1m", "1h", "1d"]),
    share=st.integers(1, 5),
)
def test_pages_of_buckets_come_to_the_truth(calls: list[tuple[int, int, str]], width: str, share: int) -> None:
    buckets = {"1m": 1440, "1h": 24, "1d": 1}[width]
    params = {"starting_at": written(START), "ending_at": written(START + DAY), "bucket_width": width}
    params |= {"limit": str(-(-buckets // share)), "group_by[]": "api_key_id"}
    with ProviderServer(clock=lambda: NOW) as server:
        for second, output, key in calls:
            server.use(START + timedelta(seconds=second), "claude-5", Tokens(10, output), key=key)
        found: list[Any] = []
        while True:
            page = json.loads(server.answer(f"{MESSAGES}?{httpx.QueryParams(params)}", HEADERS).content)
            found += page["data"]
            if not page["has_more"]:
                break
            params["page"] = page["next_page"]
        starts = [bucket["starting_at"] for bucket in found]
        assert len(starts) == len({*starts}) == buckets
        assert starts == sorted(starts)
        for key in "abc":
            rows = [row for bucket in found for row in bucket["results"] if row["api_key_id"] == key]
            assert sum(row["output_tokens"] for row in rows) == server.truth(key=key).output


def test_a_range_is_snapped_to_whole_buckets_up_to_the_one_under_way(client: httpx.Client) -> None:
    found = asked(client, starting_at="2026-09-01T05:30:10+02:00", ending_at="2026-09-01T06:59:59Z", bucket_width="1h")
    starts = [bucket["starting_at"] for bucket in found["data"]]
    assert starts == ["2026-09-01T03:00:00Z", "2026-09-01T04:00:00Z", "2026-09-01T05:00:00Z"]
    for ending in ({}, {"ending_at": written(NOW + 9 * DAY)}):
        last = asked(client, starting_at=written(NOW - HOUR), bucket_width="1h", **ending)["data"][-1]
        assert last["ending_at"] == "2026-09-21T01:00:00Z"
    assert asked(client, starting_at=written(NOW + 9 * DAY))["data"] == []


@pytest.mark.parametrize(
    ("path", "params", "about"),
    [
        (MESSAGES, {"starting_at": "2026-09-01"}, "starting_at"),
        (MESSAGES, {"starting_at": "2026-09-01T00:00:00"}, "starting_at"),
        (MESSAGES, {"starting_at": "soon"}, "starting_at"),
        (MESSAGES, {"ending_at": written(START)}, "ending_at"),
        (MESSAGES, {"bucket_width": "5m"}, "bucket_width"),
        (MESSAGES, {"group_by[]": "session_id"}, "group_by"),
        (MESSAGES, {"limit": "32"}, "limit"),
        (MESSAGES, {"limit": "0"}, "limit"),
        (MESSAGES, {"limit": "all"}, "limit"),
        (MESSAGES, {"page": "page_x"}, "page"),
        (MESSAGES, {"api_keys[]": "apikey_1"}, "api_keys"),
        (COST_REPORT, {"bucket_width": "1h"}, "bucket_width"),
        (COST_REPORT, {"group_by[]": "model"}, "group_by"),
        (ANALYTICS_USAGE, {"starting_at": "2025-12-31T23:59:59Z"}, "starting_at"),
        (ANALYTICS_USAGE, {"ending_at": written(START + timedelta(days=31, seconds=1))}, "ending_at"),
        (ANALYTICS_USAGE, {"time_bucket_width": "1m"}, "time_bucket_width"),
        (ANALYTICS_USAGE, {"time_bucket_width": "2m"}, "time_bucket_width"),
        (ANALYTICS_USAGE, {"bucket_width": "1d"}, "bucket_width"),
        (ANALYTICS_USAGE, {"limit": "1001"}, "limit"),
        (ANALYTICS_USAGE, {"page": "page_x"}, "page"),
        (COST_REPORT, {"page": "page_x"}, "page"),
        (ANALYTICS_USAGE, {"group_by[]": ["model"] * 6}, "group_by"),
        (LEGACY, {"group_by[]": "api_key_id"}, "group_by"),
    ],
)
def test_what_cannot_be_meant_is_refused(client: httpx.Client, path: str, params: dict[str, Any], about: str) -> None:
    answer = client.get(path, params={"starting_at": written(START), **params})
    assert answer.status_code == 400
    document = answer.json()
    assert (document["type"], document["error"]["type"]) == ("error", "invalid_request_error")
    assert document["error"]["message"].startswith(f"{about}: ")
    assert document["request_id"]


def test_a_start_and_a_version_are_required(client: httpx.Client) -> None:
    assert client.get(MESSAGES).json()["error"]["message"].startswith("starting_at: ")
    del client.headers["anthropic-version"]
    bare = client.get(MESSAGES)
    assert bare.status_code == 400
    assert bare.json()["error"]["message"].startswith("anthropic-version: ")


def test_each_refusal_has_its_type(server: ProviderServer, client: httpx.Client) -> None:
    def refused(key: str = ADMIN_KEY) -> tuple[int, str]:
        answer = client.get(MESSAGES, params={"starting_at": written(START)}, headers={"x-api-key": key})
        return answer.status_code, answer.json()["error"]["type"]

    assert refused("") == (401, "authentication_error")
    assert refused("sk-ant-wrong") == (401, "authentication_error")
    assert refused(PLAIN_KEY) == (403, "permission_error")
    server.faults = Faults(rate_limited=1)
    assert refused() == (429, "rate_limit_error")
    server.faults = Faults(outages=[Outage(NOW, NOW + HOUR)])
    assert refused() == (503, "overloaded_error")


def test_costs_are_decimals_of_cents_that_come_to_the_bill(server: ProviderServer, client: httpx.Client) -> None:
    for hour in range(60):
        server.use(START + hour * HOUR, "claude-5", Tokens(13, 7), project=f"w{hour % 2}", cost=Decimal("0.0123"))
    server.use(START, "claude-5", Tokens(1, 1))
    for groups in ([], ["workspace_id"], ["workspace_id", "description"]):
        rows = [row for one in paged(client, COST_REPORT, group_by__=groups, limit=5) for row in one["results"]]
        assert sum(Decimal(row["amount"]) for row in rows) / 100 == server.bill() == Decimal("0.738")
        assert {row["currency"] for row in rows} == {"USD"}
        described = "description" in groups
        assert {row["token_type"] for row in rows} == (
            {"uncached_input_tokens", "output_tokens"} if described else {None}
        )
        assert {row["model"] for row in rows} == ({"claude-5"} if described else {None})
        assert {row["workspace_id"] for row in rows} == ({"w0", "w1"} if groups else {None})


def test_analytics_have_a_row_for_each_session(server: ProviderServer, client: httpx.Client) -> None:
    for number in range(25):
        at = START + timedelta(minutes=number)
        server.use(at, "claude-5", Tokens(number, 1, cached=1 if number else 0), session=f"s{number % 5}", key="k")
    whole = asked(client, ANALYTICS_USAGE)
    (row,) = whole["data"]
    assert (row["requests"], row["total_tokens"], row["session_id"]) == (25, 325, None)
    assert (row["uncached_input_tokens"], row["cache_read_input_tokens"]) == (276, 24)
    assert (row["starting_at"], row["ending_at"]) == (written(START), "2026-09-21T00:00:30Z")
    assert whole["data_refreshed_at"] == written(NOW - timedelta(minutes=10))
    day = {"ending_at": written(START + DAY), "time_bucket_width": "1m", "group_by__": ["session_id", "api_key_id"]}
    rows = paged(client, ANALYTICS_USAGE, limit=4, **day)
    assert len(rows) == 25
    assert [one["starting_at"] for one in rows] == sorted(one["starting_at"] for one in rows)
    for session in ("s0", "s4"):
        counted = sum(one["total_tokens"] for one in rows if one["session_id"] == session)
        assert counted == server.truth(session=session).total
    (row,) = asked(client, ANALYTICS_USAGE, session_ids__=["s3"], group_by__="session_id")["data"]
    assert (row["session_id"], row["requests"]) == ("s3", 5)


def test_analytics_rank_what_is_not_by_time(server: ProviderServer, client: httpx.Client) -> None:
    for model, asking in (("a", 1), ("b", 100), ("c", 10)):
        server.use(START, model, Tokens(asking, 0), cost=Decimal(asking) / 7)
    for path in (ANALYTICS_USAGE, ANALYTICS_COST):
        rows = asked(client, path, group_by__="model", order_by="total_tokens")["data"]
        assert [row["model"] for row in rows] == ["b", "c", "a"]


def test_costs_of_analytics_come_to_the_bill(server: ProviderServer, client: httpx.Client) -> None:
    for hour in range(30):
        server.use(START + hour * HOUR, "claude-5", Tokens(13, 7), session=f"s{hour % 3}", cost=Decimal("0.01"))
    for groups in ([], ["session_id"], ["session_id", "token_type", "cost_type"]):
        rows = paged(client, ANALYTICS_COST, group_by__=groups, time_bucket_width="1d", limit=7)
        assert sum(Decimal(row["amount"]) for row in rows) == sum(Decimal(row["list_amount"]) for row in rows) == 30
    (row,) = asked(client, ANALYTICS_COST, session_ids__="s1")["data"]
    assert Decimal(row["amount"]) == 10
    assert row["currency"] == "USD"


def test_analytics_end_by_themselves(server: ProviderServer, client: httpx.Client) -> None:
    server.use(START, "claude-5", Tokens(1, 0))
    (row,) = asked(client, ANALYTICS_USAGE, starting_at="2026-08-02T00:00:00Z")["data"]
    assert row["ending_at"] == "2026-09-02T00:00:00Z"
    assert asked(client, ANALYTICS_USAGE, starting_at=written(NOW - HOUR))["data"] == []


def test_the_older_report_loses_all_but_a_hundred_groups(server: ProviderServer, client: httpx.Client) -> None:
    for number in range(120):
        server.use(START, f"claude-{number}", Tokens(1000 + number, 1))
    page = asked(client, LEGACY, group_by__="model")
    rows = page["data"][0]["results"]
    assert len(rows) == 100
    told = sum(row["uncached_input_tokens"] for row in rows)
    assert told == sum(1000 + number for number in range(20, 120)) < server.truth().input
    (row,) = asked(client, LEGACY)["data"][0]["results"]
    assert (row["uncached_input_tokens"], row["requests"]) == (server.truth().input, 120)
    assert page["data_refreshed_at"]


def test_pages_may_be_unfinished_here_too(server: ProviderServer, client: httpx.Client) -> None:
    server.faults = Faults(unfinished=1)
    for path in (MESSAGES, COST_REPORT, ANALYTICS_USAGE, ANALYTICS_COST, LEGACY):
        page = asked(client, path)
        assert (page["has_more"], page["next_page"]) == (True, None)
