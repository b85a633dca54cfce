"""OpenAI's usage and costs, as its own client reads them."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from meruit.model.usage import Tokens
from meruit.playground.billing.openai import COMPLETIONS, COSTS, KINDS, ROOT
from meruit.playground.billing.server import ADMIN_KEY, PLAIN_KEY, ProviderServer

if TYPE_CHECKING:
    from pydantic import BaseModel

START = datetime(2026, 9, 1, tzinfo=UTC)
NOW = START + timedelta(days=40)
BEGIN = int(START.timestamp())
DAY_S = 86400


@pytest.fixture
def server() -> Iterator[ProviderServer]:
    with ProviderServer(clock=lambda: NOW) as running:
        yield running


@pytest.fixture
def client(server: ProviderServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {ADMIN_KEY}"}, timeout=300) as asking:
        yield asking


def asked(client: httpx.Client, path: str = COMPLETIONS, **params: Any) -> Any:
    answer = client.get(path, params={"start_time": BEGIN, **params})
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(client: httpx.Client, path: str = COMPLETIONS, **params: Any) -> Any:
    answer = client.get(path, params={"start_time": BEGIN, **params})
    assert answer.status_code == 400, answer.text
    assert {*answer.json()["error"]} == {"message", "type", "param", "code"}
    return answer.json()["error"]


def test_openais_own_client_reads_it_and_knows_every_field(server: ProviderServer, client: httpx.Client) -> None:
    # Its import takes a second, for which no other test should wait.
    from openai import OpenAI
    from openai.types.admin.organization import usage_completions_response as types

    one, two = Tokens(100, 20, cached=30, cache_write=10), Tokens(7, 1)
    server.use(START, "gpt-6", one, key="key_1", project="proj_1", cost=Decimal("0.1"))
    server.use(START + timedelta(days=9), "gpt-6", two, key="key_2", project="proj_1")
    with OpenAI(base_url=f"{server.url}/v1", admin_api_key=ADMIN_KEY, api_key="unused") as theirs:
        usage = theirs.admin.organization.usage
        page = usage.completions(start_time=BEGIN, group_by=["api_key_id", "model"], models=["gpt-6"])
        assert page.has_more
        (row,) = page.data[0].results
        assert isinstance(row, types.DataResultOrganizationUsageCompletionsResult)
        assert (row.input_tokens, row.output_tokens, row.num_model_requests) == (100, 20, 1)
        assert (row.api_key_id, row.model, row.project_id) == ("key_1", "gpt-6", None)
        page = usage.completions(start_time=BEGIN, group_by=["api_key_id", "model"], page=page.next_page or "")
        assert [bucket.start_time for bucket in page.data] == [BEGIN + day * DAY_S for day in range(7, 14)]
        assert usage.costs(start_time=BEGIN, project_ids=["proj_1"]).object == "page"
    shapes: dict[str, "type[BaseModel]"] = {
        COMPLETIONS: types.DataResultOrganizationUsageCompletionsResult,
        COSTS: types.DataResultOrganizationCostsResult,
    }
    for path, shape in shapes.items():
        document = asked(client, path)
        assert {*document} == {*types.UsageCompletionsResponse.model_fields}
        assert {*document["data"][0]} == {*types.Data.model_fields}
        (result,) = document["data"][0]["results"]
        assert {*result} == {*shape.model_fields}


def test_input_includes_cached_tokens_and_reasoning_is_missing(server: ProviderServer, client: httpx.Client) -> None:
    server.use(START, "gpt-6", Tokens(100, 20, cached=30, cache_write=10, reasoning=15))
    (row,) = asked(client)["data"][0]["results"]
    assert row["input_tokens"] == 100
    assert row["input_uncached_tokens"] + row["input_cached_tokens"] + row["input_cache_write_tokens"] == 100
    assert not any("reasoning" in name for name in row)


def test_group_keys_are_null_unless_grouped_by(server: ProviderServer, client: httpx.Client) -> None:
    server.use(START, "gpt-6", Tokens(1, 0), key="key_1", project="proj_1")
    server.use(START, "gpt-6-mini", Tokens(10, 0), key="key_1", project="proj_1")
    server.use(START, "gpt-6", Tokens(100, 0))
    keys = ("project_id", "user_id", "api_key_id", "model", "batch", "service_tier", "api_source")
    (row,) = asked(client)["data"][0]["results"]
    assert [row[name] for name in keys] == [None] * 7
    rows = asked(client, group_by=["model", "api_key_id"])["data"][0]["results"]
    assert [(row["model"], row["api_key_id"], row["input_tokens"]) for row in rows] == [
        ("gpt-6", None, 100),
        ("gpt-6", "key_1", 1),
        ("gpt-6-mini", "key_1", 10),
    ]
    bracketed: dict[str, Any] = {"group_by[]": ["batch", "service_tier", "api_source", "user_id"]}
    (row,) = asked(client, COMPLETIONS, **bracketed)["data"][0]["results"]
    assert [row[name] for name in keys] == [None, None, None, None, False, "default", "unlabeled"]


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ({"api_key_ids": ["key_1"]}, 11),
        ({"api_key_ids": ["key_1", "key_2"]}, 111),
        ({"project_ids": "proj_2"}, 100),
        ({"models": "gpt-6-mini", "api_key_ids": "key_1"}, 10),
        ({"batch": "true"}, 0),
        ({"batch": "false"}, 111),
        ({"user_ids": "user-1"}, 0),
    ],
)
def test_filters_narrow(server: ProviderServer, client: httpx.Client, filters: dict[str, Any], left: int) -> None:
    server.use(START, "gpt-6", Tokens(1, 0), key="key_1", project="proj_1")
    server.use(START, "gpt-6-mini", Tokens(10, 0), key="key_1", project="proj_1")
    server.use(START, "gpt-6", Tokens(100, 0), key="key_2", project="proj_2")
    for _ in range(2):
        data = asked(client, **filters)["data"]
        assert sum(row["input_tokens"] for bucket in data for row in bucket["results"]) == left


@pytest.mark.parametrize(("width", "usual", "most"), [("1m", 60, 1440), ("1h", 24, 168), ("1d", 7, 31)])
def test_each_width_has_its_number_of_buckets(client: httpx.Client, width: str, usual: int, most: int) -> None:
    assert len(asked(client, bucket_width=width)["data"]) == usual
    page = asked(client, bucket_width=width, limit=most)
    assert len(page["data"]) == most
    assert page["has_more"]
    assert all(bucket["results"] == [] for bucket in page["data"])
    assert refused(client, bucket_width=width, limit=most + 1)["code"] == "integer_above_maximum_value"
    assert refused(client, bucket_width=width, limit=0)["code"] == "integer_below_minimum_value"


def test_a_range_that_begins_within_a_bucket_cuts_it(server: ProviderServer, client: httpx.Client) -> None:
    server.use(START + timedelta(hours=1), "gpt-6", Tokens(1, 0))
    server.use(START + timedelta(hours=3), "gpt-6", Tokens(10, 0))
    page = asked(client, start_time=BEGIN + 7230, end_time=BEGIN + DAY_S + 3600)
    edges = [(one["start_time"] - BEGIN, one["end_time"] - BEGIN) for one in page["data"]]
    assert edges == [(7200, DAY_S), (DAY_S, DAY_S + 3600)]
    assert page["data"][0]["results"][0]["input_tokens"] == 10


@pytest.mark.parametrize(
    ("params", "param", "code"),
    [
        ({"start_time": None}, "start_time", "invalid_type"),
        ({"start_time": "yesterday"}, "start_time", "invalid_type"),
        ({"end_time": "-1"}, "end_time", "invalid_type"),
        ({"end_time": BEGIN}, "end_time", None),
        ({"end_time": int(NOW.timestamp()) + 1}, "end_time", None),
        ({"bucket_width": "5m"}, "bucket_width", "invalid_value"),
        ({"group_by": "session_id"}, "group_by", "invalid_value"),
        ({"group_by": "model,api_key_id"}, "group_by", "invalid_value"),
        ({"page": "page_2"}, "page", None),
        ({"api_keys": "key_1"}, "api_keys", "unknown_parameter"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    client: httpx.Client, params: dict[str, Any], param: str, code: str | None
) -> None:
    error = refused(client, **params)
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)


def test_a_start_is_required(client: httpx.Client) -> None:
    error = client.get(COMPLETIONS).json()["error"]
    assert (error["param"], error["code"]) == ("start_time", "missing_required_parameter")


def test_the_end_may_be_now(client: httpx.Client) -> None:
    assert asked(client, start_time=int(NOW.timestamp()) - 60, end_time=int(NOW.timestamp()))["data"]
    assert asked(client, start_time=int(NOW.timestamp()) + 600)["data"] == []


def test_a_cursor_belongs_to_its_buckets(client: httpx.Client) -> None:
    hourly = asked(client, bucket_width="1h", limit=1)["next_page"]
    assert refused(client, bucket_width="1d", page=hourly)["param"] == "page"
    later = asked(client, start_time=BEGIN - 9 * DAY_S)["next_page"]
    assert refused(client, page=later)["param"] == "page"


def test_a_wrong_key_and_a_missing_scope_have_different_errors(client: httpx.Client) -> None:
    answers = [
        client.get(COMPLETIONS, headers={"Authorization": shown})
        for shown in ("", "Bearer sk-wrong-1234", f"Basic {ADMIN_KEY}", f"Bearer {PLAIN_KEY}")
    ]
    assert [one.status_code for one in answers] == [401, 401, 401, 403]
    assert answers[1].json()["error"]["code"] == "invalid_api_key"
    assert "sk-wrong-1234" not in answers[1].text
    assert "Missing scopes: api.usage.read" in answers[3].json()["error"]["message"]


@pytest.mark.parametrize("kind", [*KINDS])
def test_every_kind_of_usage_answers_and_only_completions_were_used(
    server: ProviderServer, client: httpx.Client, kind: str
) -> None:
    server.use(START, "gpt-6", Tokens(1, 0))
    page = asked(client, f"{ROOT}/usage/{kind}", project_ids="proj_x", group_by="project_id")
    assert [bucket["results"] for bucket in page["data"]] == [[]] * 7
    shown = asked(client, f"{ROOT}/usage/{kind}")["data"][0]["results"]
    assert bool(shown) == (kind == "completions")


def test_costs_come_to_the_bill_however_they_are_grouped(server: ProviderServer, client: httpx.Client) -> None:
    for minute in range(50):
        at = START + timedelta(hours=minute)
        cost = Decimal("0.0123") + minute
        server.use(at, "gpt-6", Tokens(7 * minute, 3), key=f"key_{minute % 3}", project="p", cost=cost)
    server.use(START, "gpt-6", Tokens(9, 9), key="key_0")
    server.use(START, "gpt-6", Tokens(0, 0), key="key_0", cost=Decimal(1))
    for group_by in ([], ["line_item"], ["api_key_id"], ["project_id", "line_item", "api_source", "user_id"]):
        data = asked(client, COSTS, group_by=group_by, limit=180)["data"]
        rows = [row for bucket in data for row in bucket["results"]]
        assert {row["amount"]["currency"] for row in rows} == {"usd"}
        assert sum(row["amount"]["value"] for row in rows) == pytest.approx(float(server.bill()))
        assert all((row["quantity"] is None) == ("line_item" not in group_by) for row in rows)
    (one,) = asked(client, COSTS, line_items="gpt-6, input_tokens", group_by="line_item", limit=1)["data"][0]["results"]
    assert (one["line_item"], one["quantity_unit"]) == ("gpt-6, input_tokens", "tokens")
    assert one["quantity"] == sum(7 * minute for minute in range(24))


def test_costs_are_by_the_day(client: httpx.Client) -> None:
    assert len(asked(client, COSTS)["data"]) == 7
    assert refused(client, COSTS, bucket_width="1h")["param"] == "bucket_width"
    assert refused(client, COSTS, limit=181)["param"] == "limit"
    assert refused(client, COSTS, group_by="model")["param"] == "group_by"
