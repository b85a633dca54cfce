"""The examples of the API reference: each is sent to a service, and answered as documented."""

import json
from typing import Any

import pytest
from tests.api.conftest import Deployment
from tests.api.test_auth import (
    agent_run_ready_for,
    benchmark_ready_for,
    contract_ready_for,
    dataset_of,
    dead_letter,
    evaluation_of,
    evaluation_ready_for,
    review_of,
    usage_run_ready_for,
)
from tests.api.test_openapi import Known, known
from tests.golden import check_golden

from meruit.api.examples import BODIES, PARAMETERS
from meruit.model.access import Role

__all__ = ["known"]

ENDLESS = "stream_events"
"""Never ends; test_events.py follows it."""
ASKS_A_MODEL = "compare_by_preference"
"""Needs a judge in the settings; test_preferences.py has one."""
READ_ONLY_MOVES = {"read_hold": "release", "read_contract": "void"}


def operations(document: dict[str, Any]) -> dict[str, tuple[str, str, dict[str, Any]]]:
    return {
        operation["operationId"]: (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


# Any: JSON.
def real_ids(known: Known, name: str, method: str, path: str) -> dict[str, Any]:
    """What stands for the ids of the examples in this service."""
    deployment, key, move = known.deployment, known.keys[0], path.rpartition("/")[2]
    real: dict[str, Any] = {
        "outcome_id": lambda: known.outcome,
        "name": lambda: "judged",
        "work_id": lambda: known.work,
        "contract_id": lambda: contract_ready_for(deployment, key, READ_ONLY_MOVES.get(name, move)),
        "key_id": lambda: deployment.key(Role.AUDITOR, known.tenant).split(".")[0],
        "webhook_id": known.webhook,
        "benchmark": lambda: "b" if method == "GET" else benchmark_ready_for(deployment, key),
        "task": lambda: "t",
        "task_run_id": lambda: known.run_ready_for(path),
        "benchmark_run_id": lambda: (
            known.ended_benchmark_run()
            if name == "compare_benchmark_runs"
            else known.made("benchmark-runs", benchmark="b", agent_id="robot")
        ),
        "criterion_run_id": lambda: known.criterion_run,
        "playground_id": lambda: known.playground(method),
        "agent_run_id": lambda: agent_run_ready_for(deployment, known.tenant, move),
        "usage_run_id": lambda: usage_run_ready_for(deployment, known.tenant, move),
    }
    real |= {
        "evaluation": lambda: evaluation_of(known.tenant) if method == "GET" else evaluation_ready_for(deployment, key),
        "case_id": lambda: "a/1",
        "dataset": lambda: dataset_of(known.tenant),
        "review": lambda: review_of(known.tenant),
        "other_id": known.ended_benchmark_run,
    }
    found = {parameter: make() for parameter, make in real.items() if f"{{{parameter}}}" in path}
    if "webhook_id" in found:
        found["seq"] = dead_letter(deployment, found["webhook_id"])
    return found


def with_real_ids(known: Known, name: str, body: Any) -> Any:
    """The body of an example with ids that exist; everything else is sent as it is printed."""
    written = json.dumps(body).replace(PARAMETERS["work_id"], known.work)
    if PARAMETERS["contract_id"] in written:
        contract = contract_ready_for(known.deployment, known.keys[0], "release")
        written = written.replace(PARAMETERS["contract_id"], contract)
    if name in ("create_benchmark_run", "create_task_run"):
        written = written.replace("front-desk", "b").replace("book-a-visit", "t")
    if name == "create_review":
        written = written.replace("nightly", evaluation_of(known.tenant))
    return json.loads(written)


def test_every_example_is_answered_as_documented(known: Known) -> None:
    document = known.deployment.ask("GET", "/schema/openapi.json", key=known.keys[0]).json()
    wrong = []
    for name, (method, path, operation) in operations(document).items():
        if name in (ENDLESS, ASKS_A_MODEL):
            continue
        ids = real_ids(known, name, method, path)
        values = {one["name"]: one.get("example") for one in operation.get("parameters", ()) if one.get("required")}
        assert None not in values.values(), f"{name} has a parameter without an example"
        address = path.format_map(values | ids)
        query = {
            one["name"]: one["example"]
            for one in operation.get("parameters", ())
            if one["in"] == "query" and "example" in one
        }
        if "with" in query:
            query["with"] = dataset_of(known.tenant) if "dataset" in ids else evaluation_of(known.tenant)
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        body = {} if content is None else {"json": with_real_ids(known, name, content["example"])}
        # The metrics are for the operator's tenant.
        key = known.deployment.key(Role.ADMIN) if address == "/metrics" else known.keys[0]
        reply = known.deployment.ask(method, address, key=key, params=query or None, **body)
        documented = {int(status) for status in operation["responses"] if status.isdigit()}
        if reply.status_code not in documented or not reply.is_success:
            wrong.append((name, reply.status_code, reply.text[:300]))
    assert wrong == []


def test_no_example_is_of_an_operation_that_does_not_exist(deployment: Deployment) -> None:
    key = deployment.key(Role.ADMIN)
    found = operations(deployment.ask("GET", "/schema/openapi.json", key=key).json())
    takes_body = {name for name, (_, _, operation) in found.items() if "requestBody" in operation}
    assert {name.removesuffix("_alias") for name in takes_body} == set(BODIES)


@pytest.mark.golden
def test_operation_ids(deployment: Deployment) -> None:
    found = operations(deployment.ask("GET", "/schema/openapi.json", key=deployment.key(Role.ADMIN)).json())
    lines = sorted(f"{name}: {method} {path}" for name, (method, path, _) in found.items())
    check_golden("operations", "\n".join(lines) + "\n")
