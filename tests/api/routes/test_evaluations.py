"""Evaluations and datasets over HTTP: recorded in bulk, listed by combined filters, compared, and closed to agents."""

from typing import Any, NamedTuple

import msgspec
import pytest
from tests.api.conftest import Deployment, code_of

from meruit.api.file_stream import MAX_OPEN_EXPORTS, PIECE_BYTES
from meruit.api.idempotency import HEADER, REPLAYED
from meruit.evaluations.export import EvaluationExport
from meruit.evaluations.reader import Evaluations
from meruit.model.access import Role
from meruit.registry import exporters

CRITERIA: dict[str, Any] = {
    "criteria": [
        {"metric": "exact_match", "metric_type": "boolean", "comparison": "eq", "threshold": True},
        {"metric": "word_count", "metric_type": "count", "comparison": "lte", "threshold": 3, "required": False},
    ]
}


class Desk(NamedTuple):
    """One tenant's keys."""

    deployment: Deployment
    operator: str
    agent: str

    # Any: whatever JSON there is.
    def post(self, path: str, body: Any = None, **more: Any) -> Any:
        options = more if body is None else {**more, "json": body}
        reply = self.deployment.ask("POST", f"/v1/{path}", key=self.operator, **options)
        assert reply.is_success, reply.text
        return reply.json()

    def get(self, path: str, key: str | None = None, **params: Any) -> Any:
        reply = self.deployment.ask("GET", f"/v1/{path}", key=key or self.operator, params=params or None)
        assert reply.is_success, reply.text
        return reply.json()

    def refused(self, method: str, path: str, **options: Any) -> tuple[int, str]:
        key = options.pop("key", self.operator)
        reply = self.deployment.ask(method, f"/v1/{path}", key=key, **options)
        return reply.status_code, code_of(reply)

    def evaluate(self, name: str, cases: list[dict[str, Any]], **tags: str) -> str:
        found = self.post("evaluations", {"name": name, "criteria": CRITERIA, "tags": tags})["id"]
        self.post(f"evaluations/{found}/cases", {"cases": cases})
        self.post(f"evaluations/{found}/finish")
        return str(found)

    def ids(self, name: str, **params: Any) -> list[str]:
        return [one["case_id"] for one in self.get(f"evaluations/{name}/cases", **params)["cases"]]


def case(number: int, text: str | None = "yes", **more: Any) -> dict[str, Any]:
    output = None if text is None else {"text": text}
    return {"id": f"c/{number}", "input": {"reference": "yes"}, "output": output, **more}


@pytest.fixture
def desk(deployment: Deployment, tenant: str) -> Desk:
    return Desk(deployment, deployment.key(Role.OPERATOR, tenant), deployment.key(Role.AGENT, tenant))


def test_cases_are_judged_in_bulk_and_recorded_once(desk: Desk) -> None:
    started = desk.post("evaluations", {"name": "first", "criteria": CRITERIA, "planned": 3})
    assert (started["status"], started["planned"]) == ("running", 3)
    path = f"evaluations/{started['id']}/cases"
    first = desk.post(path, {"cases": [case(1), case(2, "no")]})
    assert (first["segment"], [one["verdict"] for one in first["recorded"]]) == (1, ["pass", "partial"])
    second = desk.post(path, {"cases": [case(2, "yes"), case(3, None, error="target_timeout")]})
    assert (second["segment"], second["known"]) == (2, ["c/2"])
    assert second["recorded"][0]["verdict"] == "inconclusive"
    again = desk.post(path, {"cases": [case(1)]})
    assert (again["segment"], again["recorded"], again["known"]) == (None, [], ["c/1"])
    assert desk.post("evaluations/first/finish")["status"] == "finished"
    assert desk.post("evaluations/first/finish")["cases"] == 3
    found = desk.get("evaluations/first")
    assert found["summary"]["overall"]["passed"] == 1
    assert desk.refused("POST", path, json={"cases": [case(4)]}) == (409, "evaluation_conflict")


def test_an_evaluation_without_cases_is_not_finished(desk: Desk) -> None:
    desk.post("evaluations", {"name": "empty", "criteria": CRITERIA})
    assert desk.refused("POST", "evaluations/empty/finish") == (422, "no_cases")
    assert desk.get("evaluations/empty")["evaluation"]["status"] == "running"


def test_a_second_request_of_a_key_records_nothing(desk: Desk) -> None:
    found = desk.post("evaluations", {"name": "once", "criteria": CRITERIA})["id"]
    sent: dict[str, Any] = {"json": {"cases": [case(1)]}, "headers": {HEADER: "k"}, "key": desk.operator}
    replies = [desk.deployment.ask("POST", f"/v1/evaluations/{found}/cases", **sent) for _ in range(2)]
    assert replies[0].content == replies[1].content
    assert (REPLAYED in replies[0].headers, replies[1].headers[REPLAYED]) == (False, "true")
    assert desk.get(f"evaluations/{found}")["evaluation"]["segments"] == 1


def test_an_evaluation_of_the_same_name_is_the_same_or_refused(desk: Desk) -> None:
    body = {"name": "same", "criteria": CRITERIA, "tags": {"model": "m"}}
    assert desk.post("evaluations", body)["id"] == desk.post("evaluations", body)["id"]
    assert desk.refused("POST", "evaluations", json={**body, "tags": {}}) == (409, "evaluation_conflict")


def test_cases_are_listed_by_combined_filters(desk: Desk) -> None:
    desk.evaluate(
        "filters",
        [
            # Not met in part, and a tool that knows no such verdict calls it a failure: no dispute.
            case(1, "no", tags={"lang": "en"}, group="g", claimed="fail"),
            case(2, "no", tags={"lang": "fr"}, claimed="pass"),
            case(3, "yes", tags={"lang": "en"}, claimed="pass"),
            case(4, "a b c d", tags={"lang": "de"}),
            case(5, None, error="target_error", error_message="out of tokens"),
        ],
    )
    assert desk.ids("filters") == [f"c/{n}" for n in range(1, 6)]
    assert desk.ids("filters", failing=True, tag=["lang=en", "lang=fr"]) == ["c/1", "c/2"]
    assert desk.ids("filters", criterion="word_count") == ["c/4"]
    assert desk.ids("filters", criterion=["word_count", "exact_match"], verdict="partial") == ["c/1", "c/2"]
    assert desk.ids("filters", verdict=["pass", "inconclusive"]) == ["c/3", "c/5"]
    assert desk.ids("filters", fault="agent", group="g") == ["c/1"]
    assert desk.ids("filters", text="TOKENS", errors=True) == ["c/5"]
    assert desk.ids("filters", disputed=True) == ["c/2"]
    summary = desk.get("evaluations/filters")["summary"]
    assert (summary["claimed"], summary["disputed"]) == (3, 1)
    assert desk.ids("filters", case=["c/2", "c/3"]) == ["c/2", "c/3"]
    page = desk.get("evaluations/filters/cases", limit=2, detail=True)
    assert page["cases"][0]["output"] == {"text": "no"}
    assert page["next"] == 2
    assert desk.ids("filters", after=page["next"], limit=1) == ["c/3"]
    one = desk.get("evaluations/filters/cases/c/4")
    assert one["result"]["criterion_results"][1]["status"] == "not_met"
    assert desk.refused("GET", "evaluations/filters/cases/c/4?repeat=1") == (404, "not_found")
    assert desk.refused("GET", "evaluations/filters/cases?criterion=words") == (400, "invalid")
    assert desk.refused("GET", "evaluations/filters/cases?tag=lang") == (400, "invalid")


def test_evaluations_are_listed_by_combined_filters(desk: Desk) -> None:
    for name, model in (("Nightly 1", "a"), ("nightly 2", "b"), ("other", "a")):
        desk.evaluate(name, [case(1)], model=model)
    desk.post("evaluations", {"name": "open", "criteria": CRITERIA})

    def names(**params: Any) -> list[str]:
        return [one["name"] for one in desk.get("evaluations", **params)["evaluations"]]

    assert names(text="nightly", tag="model=a") == ["Nightly 1"]
    assert names(status="running") == ["open"]
    page = desk.get("evaluations", limit=2)
    assert [one["name"] for one in page["evaluations"]] == ["open", "other"]
    assert names(before=page["next"]) == ["nightly 2", "Nightly 1"]
    assert names(until="2001-01-01T00:00:00Z") == []


def test_two_to_four_evaluations_are_compared(desk: Desk) -> None:
    for name, right in (("a", 10), ("b", 20), ("c", 10), ("d", 11)):
        desk.evaluate(name, [case(n, "yes" if n < right else "no") for n in range(30)])
    (pair,) = desk.get("evaluations/a/compare", **{"with": "b"})["comparisons"]
    assert pair["overall"]["difference"] == pytest.approx(1 / 3)
    assert len(pair["fixed"]) == 10
    others: dict[str, Any] = {"with": ["b", "c", "d"]}
    several = desk.get("evaluations/a/compare", **others)["comparisons"]
    assert [one["second"] for one in several] == ["b", "c", "d"]
    assert several[0]["overall"]["p_holm"] > pair["overall"]["p"]
    assert desk.refused("GET", "evaluations/a/compare?with=b&with=c&with=d&with=a")[0] == 400
    assert desk.refused("GET", "evaluations/a/compare?with=z") == (404, "not_found")


def test_an_agent_sees_how_its_own_evaluations_ended_and_nothing_else(desk: Desk) -> None:
    desk.evaluate("mine", [case(1), case(2, "no", tags={"lang": "en"})], agent_id="robot", model="m")
    desk.evaluate("theirs", [case(1)], agent_id="other")
    desk.evaluate("untagged", [case(1)])
    (listed,) = desk.get("evaluations", desk.agent)["evaluations"]
    assert listed.keys() == {"id", "name", "status", "cases", "started_at", "ended_at"}
    shown = desk.get("evaluations/mine", desk.agent)
    assert (shown.keys(), shown["overall"]["passed"]) == ({"evaluation", "overall"}, 1)
    cases = desk.get("evaluations/mine/cases", desk.agent, failing=True)["cases"]
    assert [one["case_id"] for one in cases] == ["c/2"]
    assert cases[0].keys() == {"case_id", "repeat", "outcome_id", "verdict", "success", "score"}
    for name in ("theirs", "untagged", "nothing"):
        for path in (f"evaluations/{name}", f"evaluations/{name}/cases"):
            assert desk.refused("GET", path, key=desk.agent) == (404, "not_found")
    for hidden in ("criterion=word_count", "text=yes", "fault=agent", "tag=lang%3Den", "group=g", "detail=true"):
        assert desk.refused("GET", f"evaluations/mine/cases?{hidden}", key=desk.agent) == (403, "forbidden")
    assert desk.refused("GET", "evaluations?tag=model%3Dm", key=desk.agent) == (403, "forbidden")


@pytest.mark.parametrize(
    ("cases", "status", "code"),
    [
        ([], 400, "bad_body"),
        ([case(1), case(1)], 400, "invalid"),
        ([case(1)] * 513, 400, "bad_body"),
        ([{"id": ""}], 400, "bad_body"),
        ([{"id": "a", "outputs": {}}], 400, "bad_body"),
        ([{"id": "\ue000"}], 422, "invalid_case"),
        ([{"id": "a", "repeat": -1}], 400, "bad_body"),
    ],
)
def test_cases_that_cannot_be_kept_are_refused_together(desk: Desk, cases: Any, status: int, code: str) -> None:
    found = desk.post("evaluations", {"name": "bad", "criteria": CRITERIA})["id"]
    before = desk.deployment.rows()
    assert desk.refused("POST", f"evaluations/{found}/cases", json={"cases": cases}) == (status, code)
    assert desk.deployment.rows() == before


def test_datasets_are_added_listed_and_compared(desk: Desk) -> None:
    cases = [{"id": f"q{n}", "input": {"question": "?", "reference": str(n)}} for n in range(40)]
    first = desk.post("datasets", {"name": "capitals", "cases": cases})
    assert (first["version"], first["rows"]) == (1, 40)
    assert desk.post("datasets", {"name": "capitals", "cases": cases}) == first
    second = desk.post("datasets", {"name": "capitals", "cases": cases[1:]})
    assert second["version"] == 2
    assert desk.get("datasets/capitals") == second
    assert desk.get("datasets/capitals@1") == first
    assert desk.get("datasets", limit=1)["next"] == "capitals@2"
    assert desk.get("datasets", before="capitals@2")["datasets"] == [first]
    page = desk.get("datasets/capitals@1/cases", after=38)
    assert [one["id"] for one in page["cases"]] == ["q38", "q39"]
    assert page["next"] is None
    assert desk.get("datasets/capitals@1/cases", limit=2)["next"] == 2
    diff = desk.get("datasets/capitals@1/diff", **{"with": "capitals"})
    assert (diff["removed"], diff["added"], diff["same"]) == (["q0"], [], 39)
    assert desk.refused("GET", "datasets/capital") == (404, "not_found")
    assert desk.refused("GET", "datasets", key=desk.agent) == (403, "forbidden")
    assert desk.refused("POST", "datasets", json={"name": "x", "cases": [cases[0]] * 2}) == (422, "invalid_case")


@pytest.fixture
def exported(desk: Desk) -> str:
    return desk.evaluate("nightly", [case(1), case(2, "no"), case(3, None)])


@pytest.mark.parametrize("form", sorted(set(exporters.names()) - {"in-toto", "inspect", "parquet"}))
def test_an_export_is_what_the_command_writes(desk: Desk, exported: str, form: str, tenant: str) -> None:
    reply = desk.deployment.ask("GET", "/v1/evaluations/nightly/export", key=desk.operator, params={"format": form})
    assert reply.headers["content-type"] == "application/octet-stream"
    ending = exporters.get(form).ending
    assert reply.headers["content-disposition"] == f'attachment; filename="{exported}{ending}"'
    reader = Evaluations(desk.deployment.service.store, tenant)
    chunks = exporters.get(form).write(EvaluationExport(reader, reader.find("nightly")))
    assert reply.content == b"".join(one.encode() if isinstance(one, str) else one for one in chunks)


def test_a_large_export_comes_in_pieces(desk: Desk) -> None:
    desk.evaluate("large", [case(number, "x" * 2_000) for number in range(200)])
    reply = desk.deployment.ask("GET", "/v1/evaluations/large/export", key=desk.operator)
    lines = reply.content.splitlines()
    assert len(reply.content) > 4 * PIECE_BYTES
    assert [msgspec.json.decode(one)["summary"]["case_id"] for one in lines] == [f"c/{n}" for n in range(200)]


def test_exports_that_cannot_be_are_refused(desk: Desk, exported: str) -> None:
    assert desk.refused("GET", "evaluations/absent/export") == (404, "not_found")
    assert desk.refused("GET", "evaluations/nightly/export", params={"format": "junut"}) == (400, "invalid")
    assert desk.refused("GET", "evaluations/nightly/export", params={"format": "../x"})[0] == 400
    assert desk.refused("GET", "evaluations/nightly/export", key=desk.agent) == (403, "forbidden")


def test_the_exports_of_a_key_are_limited(desk: Desk, exported: str) -> None:
    counted = desk.deployment.service.open_streams
    holder = f"export:{desk.operator.partition('.')[0]}"
    others: list[dict[str, object]] = [{} for _ in range(MAX_OPEN_EXPORTS)]
    for state in others:
        counted.open_stream(holder, MAX_OPEN_EXPORTS, state)
    try:
        assert desk.refused("GET", "evaluations/nightly/export") == (429, "too_many_streams")
    finally:
        for state in others:
            counted.on_request_end(state)
    assert desk.deployment.ask("GET", "/v1/evaluations/nightly/export", key=desk.operator).is_success
    assert counted[holder] == 0
