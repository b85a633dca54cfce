"""The API as it is documented: whatever is sent, the answer is one that OpenAPI tells of, and no failure of ours."""

import secrets
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.api.conftest import CRITERIA, WORK, Deployment, new_tenant, out_of_reach
from tests.api.running import Bench, scoring, task, task_in_trouble
from tests.api.test_auth import (
    MOVES,
    OPEN_TO_ALL,
    WHO_MAY,
    agent_run_ready_for,
    benchmark_ready_for,
    contract_ready_for,
    dataset_of,
    dead_letter,
    evaluation_of,
    evaluation_ready_for,
    planted_evaluation,
    rescored,
    review_of,
    usage_run_ready_for,
)
from tests.evaluations.test_pairwise import longer
from tests.judges.asking import judges_of, model
from tests.judges.endpoint import endpoint
from tests.sampling import THOROUGH, sample

from meruit.api.problems import PROBLEM_TYPE
from meruit.events.store.webhooks import AddWebhook
from meruit.model.access import Role
from meruit.model.vote import JUDGE

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
CASES_EACH = 12 if settings().max_examples < THOROUGH else 256
"""Of one operation: half as documented, half not, and of the former half as somebody sends who may and who knows."""
WANTED = 1_000
AnyCase = Case[Any]
ENDLESS = "GET /v1/events"
"""Never ends, so nothing is generated for it; test_events.py follows it by hand."""
LEFT_OUT = {
    "/v1/work": ("success_criteria", "budget", "terms"),
    "/v1/usage/runs": ("started_at", "ended_at", "attribution_key", "steps"),
    "/v1/usage/runs/{usage_run_id}/steps": ("started_at", "ended_at", "calls"),
    "/v1/usage/runs/{usage_run_id}/end": ("ended_at",),
}
"""Fields that are each as documented, and mostly wrong together: what is sent ends before it starts."""
SCHEMA_ITSELF = {"GET /schema", "GET /schema/openapi.json"}


def documented(route: str) -> str:
    """A route of ours as OpenAPI writes it."""
    return route.replace(":str}", "}").replace(":int}", "}").replace(":path}", "}")


ALWAYS = (
    "POST /v1/verify",
    "GET /v1/outcomes",
    "POST /v1/contracts/{contract_id}/complete",
    "DELETE /v1/webhooks/{webhook_id}",
)
"""One of each kind is tried in every run."""
OPERATIONS = sorted(documented(route) for route in (WHO_MAY.keys() | OPEN_TO_ALL) - SCHEMA_ITSELF - {ENDLESS})


class Known(NamedTuple):
    """A tenant that has one of everything, so that some requests find what they ask for."""

    deployment: Deployment
    tenant: str
    keys: tuple[str, ...]
    schema: Any
    outcome: str
    work: str
    runs: dict[str, str]
    """A task run in each state that something needs."""
    criterion_run: str
    ground: str
    webhooks: list[str]
    """The last that was made: a tenant has not many."""

    def made(self, path: str, **body: Any) -> str:
        """The id of something new."""
        reply = self.deployment.ask("POST", f"/v1/{path}", key=self.keys[0], json=body)
        assert reply.is_success, reply.text
        return str(reply.json()["id"])

    def run_ready_for(self, path: str) -> str:
        """A task run that this can be done with; one that stays as it is serves again."""
        move = path.rpartition("/")[2]
        if move not in ("start", "complete", "cancel"):
            return self.runs.get(move, self.runs["rejudge"])
        run = self.made("task-runs", benchmark="b", task="t", agent_id="robot")
        if move == "complete":
            self.deployment.ask("POST", f"/v1/task-runs/{run}/start", key=self.keys[0])
        return run

    def ended_benchmark_run(self) -> str:
        """A benchmark run whose only task run is completed."""
        run = self.made("benchmark-runs", benchmark="b", tasks=["t"], agent_id="robot")
        listed = self.deployment.ask("GET", "/v1/task-runs", key=self.keys[0], params={"benchmark_run_id": run})
        for one in listed.json()["task_runs"]:
            for move in ("start", "complete"):
                self.deployment.ask("POST", f"/v1/task-runs/{one['id']}/{move}", key=self.keys[0]).raise_for_status()
        return run

    def playground(self, method: str) -> str:
        return self.made("playgrounds") if method.lower() == "delete" else self.ground

    def webhook(self) -> str:
        entropy = self.deployment.store.surroundings.entropy
        wish = AddWebhook(self.tenant, "http://127.0.0.1:9/", frozenset({"outcome.erased"}), entropy)
        while self.webhooks:
            self.deployment.ask("DELETE", f"/v1/webhooks/{self.webhooks.pop()}", key=self.keys[0])
        self.webhooks.append(self.deployment.store.recorder.write(wish).webhook.id)
        return self.webhooks[0]


@pytest.fixture(scope="module")
def known(deployment: Deployment) -> Known:
    tenant = new_tenant()
    admin, agent = deployment.key(Role.ADMIN, tenant), deployment.key(Role.AGENT, tenant)
    deployment.ask("POST", "/v1/criteria", key=admin, json={"name": "judged", "criteria": CRITERIA})
    work = {**WORK, "criteria": "judged", "agent_id": "robot"}
    outcome = deployment.ask("POST", "/v1/verify", key=admin, json=work).json()["outcome_id"]
    rescored(deployment, tenant, outcome, "for the record")
    wish = {"title": "t", "terms": {"cpc_rate": "0.05"}}
    given = deployment.ask("POST", "/v1/work", key=admin, json=wish).json()["id"]
    deployment.ask("POST", "/v1/contracts", key=admin, json={"work_id": given, "agent_id": "robot"})
    runs, criterion_run = known_runs(Bench(deployment, tenant, admin, agent))
    ground = deployment.ask("POST", "/v1/playgrounds", key=admin, json={}).json()["id"]
    planted_evaluation(deployment, tenant, admin, str)
    other = {"name": compared_with(tenant), "criteria": CRITERIA}
    case = {"id": "a/1", "output": {"text": "another output"}}
    for path, body in (("evaluations", other), (f"evaluations/{other['name']}/cases", {"cases": [case]})):
        assert deployment.ask("POST", f"/v1/{path}", key=admin, json=body).is_success
    schema = schemathesis.openapi.from_dict(deployment.ask("GET", "/schema/openapi.json", key=admin).json())
    return Known(deployment, tenant, (admin, admin, agent), schema, outcome, given, runs, criterion_run, ground, [])


def compared_with(tenant: str) -> str:
    """The name of an evaluation that has a case in common with the tenant's own."""
    return f"other-evaluation-of-{tenant}"


def known_runs(bench: Bench) -> tuple[dict[str, str], str]:
    """Task runs by what can be done with each, and a criterion run."""
    bench.publish(task(scoring(10)), task_in_trouble())
    runs = {"access": bench.started(), "rejudge": bench.started(), "recheck": bench.started("in-trouble")}
    bench.complete(runs["rejudge"])
    with out_of_reach():
        bench.complete(runs["recheck"])
    found = bench.read(f"task-runs/{runs['rejudge']}/criterion-runs")["criterion_runs"]
    return runs, found[0]["id"]


def made_real(case: AnyCase, known: Known) -> None:
    """Let a request name what there is."""
    found = case.path_parameters or {}
    real: dict[str, Any] = {
        "outcome_id": lambda: known.outcome,
        "name": lambda: "judged",
        "version": lambda: 1,
        "work_id": lambda: known.work,
        "contract_id": lambda: contract_ready_for(
            known.deployment,
            known.keys[0],
            "release" if case.operation.path == "/v1/holds/{contract_id}" else case.operation.path.split("}/")[-1],
        ),
        "key_id": lambda: known.deployment.key(Role.AUDITOR, known.tenant).split(".")[0],
        "webhook_id": known.webhook,
        "benchmark": lambda: (
            "b" if case.operation.method.lower() == "get" else benchmark_ready_for(known.deployment, known.keys[0])
        ),
        "task": lambda: "t",
        "task_run_id": lambda: known.run_ready_for(case.operation.path),
        "benchmark_run_id": lambda: (
            known.ended_benchmark_run()
            if "other_id" in found
            else known.made("benchmark-runs", benchmark="b", agent_id="robot")
        ),
        "other_id": known.ended_benchmark_run,
        "criterion_run_id": lambda: known.criterion_run,
        "playground_id": lambda: known.playground(case.operation.method),
        "agent_run_id": lambda: agent_run_ready_for(
            known.deployment, known.tenant, case.operation.path.rpartition("/")[2]
        ),
        "number": lambda: 1,
        "usage_run_id": lambda: usage_run_ready_for(
            known.deployment, known.tenant, case.operation.path.rpartition("/")[2]
        ),
    }
    recording = case.operation.method.lower() == "post" and not case.operation.path.endswith("/preferences")
    real |= {
        "evaluation": lambda: (
            evaluation_ready_for(known.deployment, known.keys[0]) if recording else evaluation_of(known.tenant)
        ),
        "case_id": lambda: "a/1",
        "dataset": lambda: dataset_of(known.tenant),
        "review": lambda: review_of(known.tenant),
    }
    for name in found.keys() & real.keys():
        found[name] = real[name]()
    if "webhook_id" in found:
        seq = dead_letter(known.deployment, found["webhook_id"])
        if "seq" in found:
            found["seq"] = seq
    if case.operation.path == "/v1/ledger/statement" and case.query:
        case.query |= {"account": "agent:robot", "currency": "USD"}
        for name in ("from", "to"):
            case.query.pop(name, None)
    if case.operation.path in ("/v1/trust", "/v1/ledger/earnings"):
        case.query = {"agent_id": "robot"}
    if "evaluation" in found or "dataset" in found:
        other = dataset_of(known.tenant) if "dataset" in found else evaluation_of(known.tenant)
        case.query = {"with": [other]} if "with" in (case.query or {}) else {}
    if isinstance(case.body, dict):
        made_real_body(case.operation.path, case.body, known)


def made_real_benchmark(path: str, body: dict[str, Any]) -> None:
    if path == "/v1/benchmarks":
        body |= {"tasks": [task()], "attachments": {}}
    elif path == "/v1/benchmarks/{benchmark}":
        body |= {"tasks": [task()]}
        for name in ("attachments", "remove_tasks", "remove_attachments", "base_version"):
            body.pop(name, None)
    elif "benchmark" in body:
        body |= {"benchmark": "b"} | {name: value for name, value in (("task", "t"), ("tasks", ["t"])) if name in body}


def made_real_body(path: str, body: dict[str, Any], known: Known) -> None:
    for name in LEFT_OUT.get(path, ()):
        body.pop(name, None)
    made_real_benchmark(path, body)
    named = {"reset": {"name": "start"}, "resume": {"key": "2.0"}}
    body |= named.get(path.rpartition("/")[2], {})
    body.pop("seed", None)
    if "work_id" in body:
        body |= {"work_id": known.work, "cpc_rate": "0.05"}
    if "decision" in body:
        body |= MOVES["resolve"]["json"]
    if "criteria" in body:
        body["criteria"] = "judged" if path.startswith("/v1/verify") else CRITERIA
    made_real_review(path, body, known)
    if path.endswith("/preferences"):
        body |= {"others": [compared_with(known.tenant)], "judge": "better"}
        for name in ("max_judge_tokens", "max_judge_cost"):
            body.pop(name, None)
    if path == "/v1/evaluations":
        body["name"] = f"new-{secrets.token_hex(8)}"
    if "cases" in body:
        body["cases"] = [{"id": "a", "output": {"text": "whatever"}}]
    if "url" in body:
        # Nothing is ever erased here, so nothing is ever sent there.
        body |= {"url": "https://meruit.invalid/hook", "types": ["outcome.erased"]}


def made_real_review(path: str, body: dict[str, Any], known: Known) -> None:
    if path == "/v1/reviews":
        body.clear()
        body |= {"name": f"new-{secrets.token_hex(8)}", "evaluation": evaluation_of(known.tenant), "random": 1}
    if "labels" in body:
        body["labels"] = [{"number": 1, "choice": "yes"}]


def sent(case: AnyCase, known: Known, key: str) -> httpx.Response:
    """The generated request as bytes, past every helpfulness of a client."""
    options = case.as_transport_kwargs(base_url="http://127.0.0.1")
    wanted = ("method", "url", "params", "headers", "cookies", "json", "data", "files")
    request = requests.Request(**{name: options[name] for name in wanted if name in options}).prepare()
    headers = [
        (name.encode(), value.encode("latin-1") if isinstance(value, str) else value)
        for name, value in request.headers.items()
        if name.lower() != "authorization"
    ]
    assert request.method is not None
    assert request.url is not None
    reply = known.deployment.ask(request.method, request.url, key=key, content=request.body, headers=headers)
    # Told among what Schemathesis reports, and checked by none of ours.
    reply.elapsed = timedelta()
    return reply


@pytest.fixture
def _judge(known: Known, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """A judge for the operation that asks one."""
    if not str(request.getfixturevalue("operation")).endswith("/preferences"):
        yield
        return
    with endpoint(longer) as server:
        catalogue = known.deployment.service.registrar.engine.catalogue
        judges = judges_of({"better": model(server.url)})
        monkeypatch.setattr(catalogue, "services", {**catalogue.services, JUDGE: judges})
        yield


@pytest.mark.usefixtures("_judge")
@pytest.mark.parametrize("operation", sample(OPERATIONS, 4, ALWAYS))
def test_what_is_answered_is_documented_and_never_a_failure_of_ours(known: Known, operation: str) -> None:
    method, _, path = operation.partition(" ")
    found = known.schema[path][method]
    statuses = Counter[int]()
    # The metrics are for the operator's tenant.
    keys = (known.deployment.key(Role.ADMIN), *known.keys) if path == "/metrics" else known.keys
    anybody = (st.booleans(), st.sampled_from(keys))
    for mode, share, (of_ours, from_whom) in (
        (GenerationMode.POSITIVE, 4, anybody),
        (GenerationMode.POSITIVE, 4, (st.just(True), st.just(keys[0]))),
        (GenerationMode.NEGATIVE, 2, anybody),
    ):

        @settings(
            derandomize=True,
            max_examples=CASES_EACH // share,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=found.as_strategy(generation_mode=mode), real=of_ours, key=from_whom)
        def try_one(case: AnyCase, real: bool, key: str) -> None:
            if real:
                made_real(case, known)
            reply = sent(case, known, key)
            statuses[reply.status_code] += 1
            case.validate_response(reply, checks=CHECKS)

        try_one()
    assert statuses.total() >= CASES_EACH
    assert any(status < 300 for status in statuses), statuses


def test_enough_is_generated_for_every_operation_that_ends(known: Known) -> None:
    assert len(OPERATIONS) * CASES_EACH >= WANTED
    labels = {operation.ok().label for operation in known.schema.get_all_operations()}
    assert labels == {*OPERATIONS, documented(ENDLESS)}


def test_every_operation_documents_refusals_as_problems(known: Known) -> None:
    described = known.schema.raw_schema
    for path in described["paths"].values():
        for operation in path.values():
            assert list(operation["responses"]["default"]["content"]) == [PROBLEM_TYPE]
            assert "400" not in operation["responses"]
            assert operation["summary"]
            assert operation["description"]
    assert described["security"] == [{"key": []}]


def test_the_documentation_loads_nothing_from_elsewhere(known: Known) -> None:
    admin = known.keys[0]
    for path in ("/schema", "/schema/openapi.json"):
        reply = known.deployment.ask("GET", path, key=admin)
        assert reply.headers["content-type"].startswith("application/vnd.oai.openapi+json")
        shown = reply.text.replace("https://host/path", "").replace("https://example.com/", "")
        assert "://" not in shown
    assert known.deployment.ask("GET", "/schema/elements", key=admin).status_code == 404


def test_operations_are_named_after_their_functions(deployment: Deployment, admin: str) -> None:
    described = deployment.ask("GET", "/schema/openapi.json", key=admin).json()
    operations = [one for path in described["paths"].values() for one in path.values()]
    names = [one["operationId"] for one in operations]
    assert len(names) == len(set(names))
    assert {"verify_work", "award_contract", "complete_task_run", "complete_task_run_alias"} <= set(names)
    assert all(one["summary"] and one["description"] for one in operations)
