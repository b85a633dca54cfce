"""Every route with every kind of key, while secrets are planted everywhere: who may ask, and what nobody is shown."""

import io
import json
import logging
import re
import secrets
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import Any, NamedTuple

import httpx
import pytest
from sqlalchemy import func, select
from tests.api.conftest import (
    CRITERIA,
    WORK,
    Deploy,
    Deployment,
    code_of,
    new_tenant,
    out_of_reach,
    settings_with,
    unsteady_sources,
)
from tests.api.running import planted_task, task_in_trouble
from tests.sampling import IN_FULL, seed

from meruit.api import auth as access
from meruit.api.auth import KEY_CACHE_S, PUBLIC
from meruit.api.logging import configure_logs
from meruit.api.rate_limit import FAILURE_BURST
from meruit.app import build_engine
from meruit.config import Settings
from meruit.gate.run import RunRequest
from meruit.gate.state import VerdictGiven
from meruit.gate.store.runs import ParkRun, QueueRun
from meruit.gate.store.submissions import Submit
from meruit.gate.verdict import Rejection
from meruit.model.access import Role
from meruit.model.contract import AgentContract, AgentWork
from meruit.model.metering import AttributionKey, AttributionKind, MeteredCall, MeteredRun, MeteredStep
from meruit.model.task import Reveal
from meruit.model.usage import Observation, Tokens
from meruit.outcomes.store.write import AddVersions, NewVersion
from meruit.registry import flags
from meruit.store import tables
from meruit.store.access.keys import Revoke
from meruit.store.location import Location
from meruit.store.store import ClockAndEntropy
from meruit.store.transaction import WriteTransaction
from meruit.usage.store.record_observations import RecordObservations, RunObservation
from meruit.usage.store.record_runs import RecordRun
from meruit.verify.engine import VerificationEngine
from meruit.web.app import WebApp

EVERYONE = frozenset(Role)
READERS = frozenset({Role.OPERATOR, Role.AUDITOR, Role.ADMIN})
OPERATORS = frozenset({Role.OPERATOR, Role.ADMIN})
SUBMITTERS = frozenset({Role.AGENT, Role.OPERATOR, Role.ADMIN})
ADMINS = frozenset({Role.ADMIN})

WHO_MAY: dict[str, frozenset[Role]] = {
    "POST /v1/verify": SUBMITTERS,
    "POST /v1/verify/batch": SUBMITTERS,
    "POST /v1/criteria": OPERATORS,
    "POST /v1/criteria/validate": OPERATORS,
    "GET /v1/criteria": READERS,
    "GET /v1/criteria/{name:str}": READERS,
    "GET /v1/criteria/{name:str}/versions": READERS,
    "GET /v1/criteria/{name:str}/versions/{version:int}": READERS,
    "GET /v1/outcomes": EVERYONE,
    "GET /v1/outcomes/{outcome_id:str}": EVERYONE,
    "GET /v1/outcomes/{outcome_id:str}/versions": READERS,
    "GET /v1/outcomes/{outcome_id:str}/diff": READERS,
    "GET /v1/outcomes/{outcome_id:str}/receipt": READERS,
    "GET /v1/outcomes/{outcome_id:str}/bundle": READERS,
    "POST /v1/work": OPERATORS,
    "GET /v1/work": READERS,
    "GET /v1/work/{work_id:str}": EVERYONE,
    "POST /v1/contracts": OPERATORS,
    "GET /v1/contracts": EVERYONE,
    "GET /v1/contracts/{contract_id:str}": EVERYONE,
    "POST /v1/contracts/{contract_id:str}/start": SUBMITTERS,
    "POST /v1/contracts/{contract_id:str}/complete": SUBMITTERS,
    "POST /v1/contracts/{contract_id:str}/settle": OPERATORS,
    "POST /v1/contracts/{contract_id:str}/release": OPERATORS,
    "POST /v1/contracts/{contract_id:str}/void": OPERATORS,
    "POST /v1/contracts/{contract_id:str}/reverse": OPERATORS,
    "POST /v1/contracts/{contract_id:str}/dispute": SUBMITTERS,
    "POST /v1/contracts/{contract_id:str}/resolve": OPERATORS,
    "POST /v1/contracts/{contract_id:str}/rejudge": OPERATORS,
    "GET /v1/holds": READERS,
    "GET /v1/holds/{contract_id:str}": READERS,
    "POST /v1/benchmarks": OPERATORS,
    "GET /v1/benchmarks": READERS,
    "GET /v1/benchmarks/{benchmark:str}": READERS,
    "PUT /v1/benchmarks/{benchmark:str}": OPERATORS,
    "PATCH /v1/benchmarks/{benchmark:str}": OPERATORS,
    "DELETE /v1/benchmarks/{benchmark:str}": OPERATORS,
    "GET /v1/tasks/{benchmark:str}/{task:str}": READERS,
    "POST /v1/benchmark-runs": OPERATORS,
    "GET /v1/benchmark-runs": EVERYONE,
    "GET /v1/benchmark-runs/{benchmark_run_id:str}": EVERYONE,
    "POST /v1/benchmark-runs/{benchmark_run_id:str}/cancel": OPERATORS,
    "POST /v1/benchmark-runs/{benchmark_run_id:str}/resume": OPERATORS,
    "POST /v1/task-runs": OPERATORS,
    "GET /v1/task-runs": EVERYONE,
    "GET /v1/task-runs/{task_run_id:str}": EVERYONE,
    "POST /v1/task-runs/{task_run_id:str}/start": SUBMITTERS,
    "GET /v1/task-runs/{task_run_id:str}/access": SUBMITTERS,
    "GET /v1/task-runs/{task_run_id:str}/progress": EVERYONE,
    "POST /v1/task-runs/{task_run_id:str}/complete": SUBMITTERS,
    "POST /task-runs/{task_run_id:str}/complete": SUBMITTERS,
    "POST /v1/task-runs/{task_run_id:str}/cancel": OPERATORS,
    "POST /v1/task-runs/{task_run_id:str}/recheck": OPERATORS,
    "POST /v1/task-runs/{task_run_id:str}/rejudge": OPERATORS,
    "GET /v1/task-runs/{task_run_id:str}/criterion-runs": READERS,
    "GET /v1/criterion-runs/{criterion_run_id:str}": READERS,
    "GET /criterion-runs/{criterion_run_id:str}": READERS,
    "POST /v1/playgrounds": OPERATORS,
    "GET /v1/playgrounds": OPERATORS,
    "GET /v1/playgrounds/{playground_id:str}": OPERATORS,
    "DELETE /v1/playgrounds/{playground_id:str}": OPERATORS,
    "GET /v1/playgrounds/{playground_id:str}/events": OPERATORS,
    "POST /v1/playgrounds/{playground_id:str}/checkpoint": OPERATORS,
    "POST /v1/playgrounds/{playground_id:str}/reset": OPERATORS,
    "POST /v1/playgrounds/{playground_id:str}/branch": OPERATORS,
    "POST /v1/agent-runs": OPERATORS,
    "GET /v1/agent-runs": EVERYONE,
    "GET /v1/agent-runs/{agent_run_id:str}": EVERYONE,
    "GET /v1/agent-runs/{agent_run_id:str}/submissions/{number:int}": EVERYONE,
    "POST /v1/agent-runs/{agent_run_id:str}/cancel": OPERATORS,
    "POST /v1/agent-runs/{agent_run_id:str}/resume": OPERATORS,
    "GET /v1/agent-runs/{agent_run_id:str}/events": READERS,
    "POST /v1/usage/runs": OPERATORS,
    "GET /v1/usage/runs": READERS,
    "GET /v1/usage/runs/{usage_run_id:str}": READERS,
    "POST /v1/usage/runs/{usage_run_id:str}/steps": OPERATORS,
    "POST /v1/usage/runs/{usage_run_id:str}/end": OPERATORS,
    "POST /v1/usage/runs/{usage_run_id:str}/acknowledge": OPERATORS,
    "POST /v1/usage/runs/{usage_run_id:str}/look": OPERATORS,
    "GET /v1/trust": EVERYONE,
    "GET /v1/ledger/earnings": EVERYONE,
    "GET /v1/benchmark-runs/{benchmark_run_id:str}/compare/{other_id:str}": EVERYONE,
    "GET /v1/benchmarks/{benchmark:str}/leaderboard": EVERYONE,
    "POST /v1/evaluations": OPERATORS,
    "GET /v1/evaluations": EVERYONE,
    "GET /v1/evaluations/{evaluation:str}": EVERYONE,
    "POST /v1/evaluations/{evaluation:str}/cases": OPERATORS,
    "POST /v1/evaluations/{evaluation:str}/finish": OPERATORS,
    "GET /v1/evaluations/{evaluation:str}/cases": EVERYONE,
    "GET /v1/evaluations/{evaluation:str}/cases/{case_id:path}": READERS,
    "GET /v1/evaluations/{evaluation:str}/compare": READERS,
    "POST /v1/evaluations/{evaluation:str}/preferences": OPERATORS,
    "GET /v1/evaluations/{evaluation:str}/export": READERS,
    "POST /v1/datasets": OPERATORS,
    "GET /v1/datasets": READERS,
    "GET /v1/datasets/{dataset:str}": READERS,
    "GET /v1/datasets/{dataset:str}/cases": READERS,
    "GET /v1/datasets/{dataset:str}/diff": READERS,
    "POST /v1/reviews": OPERATORS,
    "GET /v1/reviews": READERS,
    "GET /v1/reviews/{review:str}": READERS,
    "GET /v1/reviews/{review:str}/next": OPERATORS,
    "POST /v1/reviews/{review:str}/labels": OPERATORS,
    "GET /v1/reviews/{review:str}/labels": READERS,
    "GET /v1/ledger/balances": READERS,
    "GET /v1/ledger/statement": EVERYONE,
    "POST /v1/governance/validate_outcome": OPERATORS,
    "POST /v1/keys": ADMINS,
    "GET /v1/keys": ADMINS,
    "GET /v1/quotas": ADMINS,
    "DELETE /v1/keys/{key_id:str}": ADMINS,
    "GET /v1/audit/checkpoint": EVERYONE,
    "GET /v1/audit/key": EVERYONE,
    "GET /v1/audit/keys": EVERYONE,
    "GET /v1/audit/consistency": EVERYONE,
    "GET /v1/events": READERS,
    "POST /v1/webhooks": OPERATORS,
    "GET /v1/webhooks": READERS,
    "DELETE /v1/webhooks/{webhook_id:str}": OPERATORS,
    "GET /v1/webhooks/{webhook_id:str}/dead": READERS,
    "POST /v1/webhooks/{webhook_id:str}/dead/{seq:int}/redeliver": OPERATORS,
    # Only the operator's tenant reads it, which none of these keys is of.
    "GET /metrics": frozenset(),
    "GET /schema": EVERYONE,
    "GET /schema/openapi.json": EVERYONE,
}
OPEN_TO_ALL = {"GET /health"}
UNGUARDED = {"GET /schema", "GET /schema/openapi.json"}
"""A key is needed, of any role."""
OF_ONE_TENANT = {route for route in WHO_MAY if "{" in route} | {
    *("POST /v1/contracts", "POST /v1/benchmark-runs", "POST /v1/task-runs"),
}
"""Routes that name a record, so that another tenant finds none."""
MARK = "canary"
"""What every text begins with that is planted."""
LONG = "what the judge alone knows, told at such length that nobody comes up with it by chance " * 2
REASON = {"reason": "looked at it"}
MOVES: dict[str, dict[str, Any]] = {
    "": {},
    "start": {},
    "complete": {"json": {"output": {"text": "whatever"}}},
    "settle": {},
    "release": {"json": REASON},
    "void": {"json": REASON},
    "reverse": {"json": REASON},
    "rejudge": {"json": REASON},
    "dispute": {"json": REASON},
    "resolve": {"json": {"decision": "uphold", **REASON}},
}
"""What is sent for each move of a contract."""

Canary = Callable[[str], str]


class Planted(NamedTuple):
    """What one tenant has, full of texts that stand nowhere else."""

    tenant: str
    keys: dict[Role, str]
    other_agent: str
    revoked: str
    outcome: str
    criteria: str
    work: str
    """That the agent has a contract on."""
    contract: str
    """The agent's."""
    benchmark: str
    benchmark_run: str
    """The agent's, as are its task runs."""
    task_run: str
    """One of them, completed."""
    criterion_run: str
    agent_run: str
    """The agent's, with a submission that was rejected."""
    usage_run: str
    """Whose count fell, which somebody accepted."""
    for_judges: frozenset[str]
    """Not for agents: references, thresholds, criteria, evidence, other agents' work."""
    secret: frozenset[str]
    """For nobody, after the reply that made it."""

    @property
    def all(self) -> frozenset[str]:
        return self.for_judges | self.secret


class Scene(NamedTuple):
    """Two tenants in one service."""

    deployment: Deployment
    ours: Planted
    theirs: Planted
    playgrounds: dict[str, str]
    """One of each tenant, by the tenant."""


@contextmanager
def logged() -> Iterator[io.StringIO]:
    """Every line that is logged meanwhile."""
    stream = io.StringIO()
    handler = configure_logs("debug", stream)
    yield stream
    logging.getLogger().removeHandler(handler)


def planted_criteria(canary: Canary) -> dict[str, Any]:
    """Criteria of every kind, each part with a text of its own."""
    words = [canary("keyword-one"), canary("keyword-two")]
    code = f"def metric(input, output, metadata):\n    # {canary('comment')}\n    return {{'{canary('metric')}': 1}}\n"
    named = code.split("'")[1]
    return {
        "criteria": [
            {
                "id": canary("criterion-id"),
                "name": canary("criterion-name"),
                "metric": "contains_keywords",
                "metric_type": "contains",
                "comparison": "contains_any",
                "threshold": words,
            },
            {
                "metric": "matches_pattern",
                "metric_type": "contains",
                "comparison": "contains_all",
                "threshold": [f"{canary('pattern')}.*[0-9]"],
            },
            {
                "metric": "matches_schema",
                "metric_type": "matches_schema",
                "comparison": "eq",
                "threshold": 1,
                "params": {"schema": {"required": [canary("required-field")]}},
            },
            {
                "expr": f"output.text.contains('{canary('expression')}') ? 1.0 : 0.0",
                "metric_type": "numeric",
                "comparison": "gte",
                "threshold": 0.123456789,
            },
            {"metric": named, "metric_type": "numeric", "comparison": "gte", "threshold": 1, "axis": canary("axis")},
            {"metric": "rougeL", "metric_type": "rouge_score", "comparison": "gte", "threshold": 0.5},
        ],
        "aggregation": "weighted",
        "custom_metrics": [{"metrics": [named], "code": code}],
    }


def plant(deployment: Deployment, tenant: str) -> Planted:
    for_judges, secret = set[str](), set[str]()

    def canary(what: str) -> str:
        made = f"{MARK}{what.replace('-', '')}{secrets.token_hex(8)}"
        for_judges.add(made)
        return made

    def made(method: str, path: str, key: str, **options: Any) -> Any:
        reply = deployment.ask(method, path, key=key, **options)
        assert reply.status_code in (200, 201), reply.text
        return reply.json()

    admin = deployment.key(Role.ADMIN, tenant, name=canary("key-name"))

    def new_key(role: Role, agent_id: str | None = None) -> str:
        body = {"name": canary("key-name"), "role": role, "agent_id": agent_id}
        return str(made("POST", "/v1/keys", admin, json=body)["secret"])

    other_agent = canary("other-agent")
    keys = {
        Role.AGENT: new_key(Role.AGENT, "robot"),
        Role.OPERATOR: new_key(Role.OPERATOR),
        Role.AUDITOR: new_key(Role.AUDITOR),
        Role.ADMIN: admin,
    }
    second_agent, revoked = new_key(Role.AGENT, other_agent), new_key(Role.ADMIN)
    made("DELETE", f"/v1/keys/{revoked.split('.')[0]}", admin)
    criteria = planted_criteria(canary)
    name = f"judged-{tenant}"
    made("POST", "/v1/criteria", admin, json={"name": name, "criteria": criteria})
    made("POST", "/v1/criteria", admin, json={"name": canary("criteria-name"), "criteria": CRITERIA})
    outcome = ""
    for agent_id in (other_agent, "robot"):
        work = {
            "agent_id": agent_id,
            "contract_id": canary("contract") if agent_id == other_agent else "our-contract",
            "consumer_id": canary("consumer"),
            "domain": canary("domain"),
            "input": {
                "reference": canary("reference"),
                "ground_truth": canary("truth"),
                "required_keywords": [canary("required")],
                "question": canary("question"),
            },
            "output": {"text": canary("output")},
            "metadata": {"duration_ms": 12, "note": canary("metadata")},
            "criteria": name,
        }
        outcome = made("POST", "/v1/verify", keys[Role.OPERATOR], json=work)["outcome_id"]
    rescored(deployment, tenant, outcome, canary("reason"))
    work_id = contract = ""
    for agent_id in (other_agent, "robot"):
        published = planted_work(canary, "other-agent-" if agent_id == other_agent else None)
        work_id = made("POST", "/v1/work", keys[Role.OPERATOR], json=published)["id"]
        award = {"work_id": work_id, "agent_id": agent_id}
        contract = made("POST", "/v1/contracts", keys[Role.OPERATOR], json=award)["id"]
        # Whoever repeats the reference is held, and whoever says what was planted is not believed.
        text = LONG if agent_id == other_agent else f"{canary('handed-in')} {published['canaries'][0]}"
        done = {"output": {"text": text}, "metadata": {"note": canary("metadata")}}
        made("POST", f"/v1/contracts/{contract}/complete", keys[Role.OPERATOR], json=done)
    made("POST", f"/v1/contracts/{contract}/dispute", keys[Role.OPERATOR], json={"reason": canary("objection")})
    runs = planted_runs(deployment, keys[Role.OPERATOR], f"bench-{tenant}", canary, other_agent)
    planted_evaluation(deployment, tenant, keys[Role.OPERATOR], canary)
    agent_run = agent_run_ready_for(deployment, tenant, "", canary)
    usage_run = usage_run_ready_for(deployment, tenant, "acknowledge", canary)
    seen = {"reason": canary("reason")}
    made("POST", f"/v1/usage/runs/{usage_run}/acknowledge", keys[Role.OPERATOR], json=seen)
    # The ids of these are the callers' own.
    made("POST", "/v1/usage/runs", keys[Role.OPERATOR], json={"id": canary("usage-run"), "framework": "f"})
    webhook = made("POST", "/v1/webhooks", keys[Role.OPERATOR], json=webhook_wish(canary("hook")))
    dead_letter(deployment, webhook["webhook"]["id"], canary("error"))
    secret |= {part.split(".")[1] for part in (*keys.values(), second_agent, revoked)} | {webhook["secret"]}
    return Planted(
        tenant,
        keys,
        second_agent,
        revoked,
        outcome,
        name,
        work_id,
        contract,
        *runs,
        agent_run,
        usage_run,
        frozenset(for_judges),
        frozenset(secret),
    )


def evaluation_of(tenant: str) -> str:
    """The name of an evaluation that each tenant has, of its agent's work."""
    return f"evaluation-of-{tenant}"


def dataset_of(tenant: str) -> str:
    """The name of a dataset that each tenant has."""
    return f"data-of-{tenant}"


def review_of(tenant: str) -> str:
    """The name of a review that each tenant has, of its evaluation."""
    return f"review-of-{tenant}"


def planted_evaluation(deployment: Deployment, tenant: str, operator: str, canary: Canary) -> None:
    """An evaluation and a dataset, each part with a text of its own."""
    cases = [
        {
            "id": "a/1",
            "input": {"reference": canary("case-reference"), "question": canary("case-question")},
            "output": {"text": canary("case-output")},
            "metadata": {"note": canary("case-note")},
            "group": canary("case-group"),
            "tags": {canary("case-tag"): canary("case-value")},
            "claimed": canary("case-claim"),
        }
    ]
    criteria = {"criteria": [{**CRITERIA["criteria"][0], "id": canary("case-criterion"), "threshold": 0.123456789}]}
    tags = {"agent_id": "robot", "prompt": canary("case-prompt")}
    body = {"name": evaluation_of(tenant), "criteria": criteria, "tags": tags}
    for path, sent in (
        ("evaluations", body),
        ("evaluations", {**body, "name": canary("case-other"), "tags": {"agent_id": canary("case-agent")}}),
        (f"evaluations/{evaluation_of(tenant)}/cases", {"cases": cases}),
        ("datasets", {"name": dataset_of(tenant), "cases": cases}),
        (
            "reviews",
            {
                "name": review_of(tenant),
                "evaluation": evaluation_of(tenant),
                "random": 1,
                "question": canary("review-question"),
                "instructions": canary("review-instructions"),
            },
        ),
        (
            f"reviews/{review_of(tenant)}/labels",
            {"labels": [{"number": 1, "choice": "no", "note": canary("label-note"), "labeller": "ann"}]},
        ),
    ):
        reply = deployment.ask("POST", f"/v1/{path}", key=operator, json=sent)
        assert reply.is_success, reply.text


def benchmark_ready_for(deployment: Deployment, operator: str) -> str:
    """A new benchmark that can be edited and deleted."""
    body = {"benchmark": f"b-{secrets.token_hex(4)}", "tasks": [{**task_in_trouble(), "criteria": []}]}
    reply = deployment.ask("POST", "/v1/benchmarks", key=operator, json=body)
    assert reply.is_success, reply.text
    return str(reply.json()["benchmark"])


def evaluation_ready_for(deployment: Deployment, operator: str) -> str:
    """A new evaluation with one case, which more can be recorded in, and which can be finished."""
    body = {"name": f"new-{secrets.token_hex(8)}", "criteria": CRITERIA, "tags": {"agent_id": "robot"}}
    reply = deployment.ask("POST", "/v1/evaluations", key=operator, json=body)
    assert reply.is_success, reply.text
    made = str(reply.json()["id"])
    cases = {"cases": [{"id": "ready", "output": {"text": "a"}}]}
    reply = deployment.ask("POST", f"/v1/evaluations/{made}/cases", key=operator, json=cases)
    assert reply.is_success, reply.text
    return made


def planted_runs(
    deployment: Deployment, operator: str, slug: str, canary: Canary, other_agent: str
) -> tuple[str, str, str, str]:
    """A benchmark, a run of it by each agent, one of its task runs, and a criterion run in that."""

    def done(path: str, body: Any = None) -> Any:
        reply = deployment.ask("POST" if body is not None else "GET", f"/v1/{path}", key=operator, json=body)
        assert reply.is_success, reply.text
        return reply.json()

    tasks = [*(planted_task(canary, reveal) for reveal in Reveal), task_in_trouble()]
    done("benchmarks", {"benchmark": slug, "title": canary("title"), "tasks": tasks})
    made: dict[str, Any] = {}
    for agent_id in (other_agent, "robot"):
        wish = {"benchmark": slug, "agent_id": agent_id, "tasks": [task["id"] for task in tasks[:-1]]}
        made = done("benchmark-runs", wish)
        for run in made["task_runs"]:
            done(f"task-runs/{run['id']}/start", {})
            done(f"task-runs/{run['id']}/complete", {})
    task_run = made["task_runs"][0]["id"]
    criterion_run = done(f"task-runs/{task_run}/criterion-runs")["criterion_runs"][0]["id"]
    return slug, made["id"], task_run, criterion_run


def task_run_ready_for(deployment: Deployment, operator: str, benchmark: str, move: str) -> str:
    """A new run of the agent's that this can be done with."""

    def done(path: str, body: Any) -> Any:
        reply = deployment.ask("POST", f"/v1/task-runs{path}", key=operator, json=body)
        assert reply.is_success, reply.text
        return reply.json()

    task = "in-trouble" if move == "recheck" else "none-task"
    run: str = done("", {"benchmark": benchmark, "task": task, "agent_id": "robot"})["id"]
    if move in ("access", "complete", "recheck", "rejudge"):
        done(f"/{run}/start", {})
    if move == "recheck":
        with out_of_reach():
            done(f"/{run}/complete", {})
    if move == "rejudge":
        done(f"/{run}/complete", {})
    return run


def agent_run_ready_for(deployment: Deployment, tenant: str, move: str, canary: Canary = str) -> str:
    """A new run of the agent's that somebody drives; or one that waits, where it is to be resumed."""
    recorder, run_id = deployment.store.recorder, deployment.store.surroundings.new_id("run")
    request = RunRequest("plain query", {"reference": canary("payload")}, labels={"case": canary("label")})
    begun = QueueRun(tenant, "somebody", run_id, "robot", request, owner="us")
    happening = VerdictGiven("1:call", "0" * 64, Rejection("plain reason", "short"), 0.0)
    recorder.write(Submit(tenant, run_id, happening, b"0" * 16, "us", 1, b'{"text":"short"}', open=begun))
    if move == "resume":
        recorder.write(ParkRun(tenant, run_id, "us", None, "2.0"))
    return run_id


def usage_run_ready_for(deployment: Deployment, tenant: str, move: str, canary: Canary = str) -> str:
    """A new run that this can be done with: one that is open, one that is over, or one whose count fell."""
    recorder, run_id = deployment.store.recorder, deployment.store.surroundings.new_id("use")
    began, used = datetime(2026, 5, 4, tzinfo=UTC), Tokens(10, 5)
    call = MeteredCall(began, canary("model"), used, id=canary("call"), tier=canary("tier"))
    run = MeteredRun(
        run_id,
        canary("framework"),
        canary("account"),
        AttributionKey(AttributionKind.KEY, canary("attribution_key")),
        began,
        ended_at=None if move in ("steps", "end") else began,
        steps=(MeteredStep(canary("step"), calls=(call,)),),
        task=canary("task"),
        contract_id=canary("contract"),
        outcome_id=canary("outcome"),
    )
    recorder.write(RecordRun(tenant, "somebody", run))
    if move == "acknowledge":
        fell = Observation("second", began + timedelta(hours=1), Tokens(9, 5), detail=canary("detail"))
        recorder.write(
            RecordObservations(
                tenant, [RunObservation(run_id, one) for one in (Observation("first", began, used), fell)]
            )
        )
    return run_id


def planted_work(canary: Canary, public: str | None) -> dict[str, Any]:
    """Work whose private parts each have a text of their own; the public ones too, where its agent does not look."""

    def shown(what: str) -> str:
        return canary(f"{public}{what}") if public else f"plain {what}"

    return {
        "title": shown("title"),
        "description": shown("description"),
        "domain": shown("domain"),
        "consumer_id": canary("consumer"),
        "input": {
            "question": shown("question"),
            "reference": LONG,
            "ground_truth": canary("truth"),
            "required_keywords": [canary("required")],
            "output_pattern": canary("pattern"),
        },
        "success_criteria": planted_criteria(canary),
        "terms": {"cpc_rate": "0.05", "max_cpa_total": "0.987654", "currency": "EUR"},
        "canaries": [canary("planted-one"), canary("planted-two")],
        "accept_null_agent": canary("null-agent"),
    }


def contract_ready_for(deployment: Deployment, operator: str, move: str, agent_id: str = "robot") -> str:
    """A new contract that this can be done with."""

    def done(path: str, body: Any) -> Any:
        reply = deployment.ask("POST", path, key=operator, json=body)
        assert reply.is_success, reply.text
        return reply.json()

    given = {"title": "t", "input": {"reference": LONG}, "terms": {"cpc_rate": "0.05"}}
    contract: str = done("/v1/contracts", {"work_id": done("/v1/work", given)["id"], "agent_id": agent_id})["id"]
    place = f"/v1/contracts/{contract}"
    if move in ("settle", "reverse", "dispute", "resolve", "rejudge"):
        assert done(f"{place}/complete", {"output": {"text": "short"}})["state"] == "settled"
    if move == "release":
        assert done(f"{place}/complete", {"output": {"text": LONG}})["state"] == "verification_pending"
    if move == "resolve":
        done(f"{place}/dispute", REASON)
    return contract


def webhook_wish(path: str) -> dict[str, Any]:
    # Nothing is ever erased here, so that nothing is sent but what is redelivered, to a port where nobody listens.
    return {"url": f"http://127.0.0.1:9/{path}", "types": ["outcome.erased"]}


def rescored(deployment: Deployment, tenant: str, outcome: str, reason: str) -> None:
    """A second version of the verdict, by other criteria."""
    registrar = deployment.service.registrar
    ready = registrar.compile(CRITERIA)
    result = registrar.engine.verify_sync("c", WORK["input"], WORK["output"], ready)
    version = NewVersion(outcome, 1, result, deployment.store.surroundings.entropy(16))
    assert deployment.store.recorder.write(AddVersions(tenant, ready.body, (version,), reason))


def dead_letter(deployment: Deployment, webhook: str, error: str = "") -> int:
    """The tenant's first event, given up on; its number."""

    def write(writing: WriteTransaction) -> int:
        of_webhook = select(tables.webhooks.c.tenant).where(tables.webhooks.c.id == webhook)
        query = select(func.min(tables.events.c.seq)).where(tables.events.c.tenant == of_webhook.scalar_subquery())
        seq = int(writing.read(query)[0][0])
        writing.insert(
            tables.deliveries,
            webhook_id=webhook,
            seq=seq,
            subject="somebody",
            attempts=9,
            next_at=0,
            dead_at=writing.now.micros,
            error=error,
        )
        return seq

    return deployment.store.recorder.write(write)


DATABASES = ("sqlite", "postgresql")


@pytest.fixture(scope="module")
def scenes(
    new_postgres: Callable[[], str], engine: VerificationEngine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Scene]]:
    """The scene on each database, made once: pytest would make a parametrised one again with each change of it."""
    opened: list[Deployment] = []

    @cache
    def scene_on(database: str) -> Scene:
        url = new_postgres() if database == "postgresql" else None
        location = Location(tmp_path_factory.mktemp("walk") / "data", url)
        settings = settings_with(webhook_networks=["127.0.0.0/8"])
        deployment = Deployment(location, engine, settings.model_copy(update={"benchmarks": unsteady_sources()}))
        opened.append(deployment)
        return planted_scene(deployment)

    yield scene_on
    for deployment in opened:
        deployment.close()


def planted_scene(deployment: Deployment) -> Scene:
    """Two tenants that have the same things, in one service; already here nothing planted is logged."""
    with logged() as lines:
        ours, theirs = plant(deployment, new_tenant()), plant(deployment, new_tenant())
        playgrounds = {one.tenant: new_playground(deployment, one.keys[Role.OPERATOR]) for one in (ours, theirs)}
    assert '"route":"/v1/verify"' in lines.getvalue()
    for planted in (ours, theirs):
        assert_unseen(planted.all, lines.getvalue())
    return Scene(deployment, ours, theirs, playgrounds)


@pytest.fixture(params=DATABASES)
def scene(request: pytest.FixtureRequest, scenes: Callable[[str], Scene]) -> Scene:
    return scenes(request.param)


def routes_of(app: Any) -> dict[str, Any]:
    """Every route but those that only name methods, and the console's pages, which tests/console walks."""
    inner = app._app.service
    assert isinstance(inner, WebApp)
    return {
        f"{route.method} {path}": route
        for route in inner.routes
        for path in route.paths
        if not route.fn.__module__.startswith("meruit.console")
    }


def request_of(route: str, scene: Scene, planted: Planted) -> tuple[str, str, dict[str, Any]]:
    """A request that this route takes, about this tenant's records; each has a key or a webhook of its own to end."""
    deployment = scene.deployment
    method, _, path = route.partition(" ")
    path = path.replace("{outcome_id:str}", planted.outcome).replace("{name:str}", planted.criteria)
    path = path.replace("{version:int}", "1")
    path = path.replace("{work_id:str}", planted.work)
    if path.endswith("{contract_id:str}"):
        path = path.replace("{contract_id:str}", planted.contract)
    if "{contract_id:str}" in path:
        ready = contract_ready_for(deployment, planted.keys[Role.OPERATOR], path.rpartition("/")[2])
        path = path.replace("{contract_id:str}", ready)
    path = with_benchmark(method, path, deployment, planted).replace("{task:str}", "none-task")
    path = path.replace("{criterion_run_id:str}", planted.criterion_run)
    path = path.replace("{benchmark_run_id:str}", planted.benchmark_run)
    path = path.replace("{other_id:str}", planted.benchmark_run)
    if path.endswith(("{task_run_id:str}", "/criterion-runs", "/progress")):
        path = path.replace("{task_run_id:str}", planted.task_run)
    operator = planted.keys[Role.OPERATOR]
    if "{task_run_id:str}" in path:
        ready = task_run_ready_for(deployment, operator, planted.benchmark, path.rpartition("/")[2])
        path = path.replace("{task_run_id:str}", ready)
    if path.startswith("/v1/agent-runs/"):
        move = path.rpartition("/")[2]
        moved = move in ("cancel", "resume")
        ready = agent_run_ready_for(deployment, planted.tenant, move) if moved else planted.agent_run
        path = path.replace("{agent_run_id:str}", ready).replace("{number:int}", "1")
    if "{usage_run_id:str}" in path:
        move = path.partition("}/")[2]
        ready = usage_run_ready_for(deployment, planted.tenant, move) if move else planted.usage_run
        path = path.replace("{usage_run_id:str}", ready)
    path = with_evaluation(method, path, deployment, planted)
    if "{playground_id:str}" in path:
        ready = new_playground(deployment, operator) if method == "DELETE" else scene.playgrounds[planted.tenant]
        path = path.replace("{playground_id:str}", ready)
    if "{key_id:str}" in path:
        doomed = deployment.key(Role.AUDITOR, planted.tenant).split(".")[0]
        path = path.replace("{key_id:str}", doomed)
    if "{webhook_id:str}" in path:
        made = deployment.ask("POST", "/v1/webhooks", key=planted.keys[Role.ADMIN], json=webhook_wish("mine")).json()
        webhook = made["webhook"]["id"]
        path = path.replace("{webhook_id:str}", webhook).replace("{seq:int}", str(dead_letter(deployment, webhook)))
    return method, path, options_of(route, planted)


def with_benchmark(method: str, path: str, deployment: Deployment, planted: Planted) -> str:
    """The path with a benchmark of this tenant in it; a new one where it is edited or deleted."""
    edits = method in ("PUT", "PATCH", "DELETE") and "{benchmark:str}" in path
    name = benchmark_ready_for(deployment, planted.keys[Role.OPERATOR]) if edits else planted.benchmark
    return path.replace("{benchmark:str}", name)


def with_evaluation(method: str, path: str, deployment: Deployment, planted: Planted) -> str:
    """The path with an evaluation or a dataset of this tenant in it."""
    if method == "POST" and "{evaluation:str}" in path:
        ready = evaluation_ready_for(deployment, planted.keys[Role.OPERATOR])
        path = path.replace("{evaluation:str}", ready)
    path = path.replace("{evaluation:str}", evaluation_of(planted.tenant)).replace("{case_id:path}", "a/1")
    path = path.replace("{review:str}", review_of(planted.tenant))
    return path.replace("{dataset:str}", dataset_of(planted.tenant))


def new_playground(deployment: Deployment, operator: str) -> str:
    return str(deployment.ask("POST", "/v1/playgrounds", key=operator, json={}).json()["id"])


def options_of(route: str, planted: Planted) -> dict[str, Any]:
    work = {"output": {"text": "whatever"}}
    options: dict[str, dict[str, Any]] = {
        "POST /v1/verify": {"json": {**work, "criteria": planted.criteria}},
        "POST /v1/verify/batch": {"json": {"items": [work, work], "criteria": planted.criteria}},
        "POST /v1/criteria": {"json": {"name": f"new-{secrets.token_hex(4)}", "criteria": CRITERIA}},
        "POST /v1/criteria/validate": {"json": {"criteria": CRITERIA}},
        "POST /v1/keys": {"json": {"name": "another", "role": "auditor"}},
        "POST /v1/webhooks": {"json": webhook_wish("another")},
        "GET /v1/audit/consistency": {"params": {"old": 1, "new": 2}},
        "GET /v1/audit/keys": {"params": {"size": 1}},
        "POST /v1/work": {"json": {"title": "another", "terms": {"cpc_rate": "0.05"}}},
        "POST /v1/contracts": {"json": {"work_id": planted.work, "agent_id": "somebody"}},
        "GET /v1/ledger/statement": {"params": {"account": "agent:robot", "currency": "EUR"}},
        "GET /v1/trust": {"params": {"agent_id": "robot"}},
        "POST /v1/governance/validate_outcome": {"json": {"contract_id": "c", "claimed_metrics": {"accuracy": 1}}},
    }
    run = {"benchmark": planted.benchmark, "task": "none-task"}
    options |= {
        "POST /v1/benchmarks": {
            "json": {"benchmark": f"b-{secrets.token_hex(4)}", "tasks": [{**task_in_trouble(), "criteria": []}]}
        },
        "PUT /v1/benchmarks/{benchmark:str}": {"json": {"tasks": [{**task_in_trouble(), "criteria": []}]}},
        "PATCH /v1/benchmarks/{benchmark:str}": {"json": {"title": "changed"}},
        "POST /v1/benchmark-runs": {"json": {"benchmark": planted.benchmark, "agent_id": "robot"}},
        "POST /v1/task-runs": {"json": run},
        "POST /v1/task-runs/{task_run_id:str}/rejudge": {"json": REASON},
        "POST /v1/agent-runs": {"json": {"agent": "robot", "query": "count"}},
        "POST /v1/agent-runs/{agent_run_id:str}/resume": {"json": {"key": "2.0", "value": "yes"}},
        "POST /v1/usage/runs": {"json": {"framework": "f"}},
        "POST /v1/usage/runs/{usage_run_id:str}/steps": {"json": {"id": "another"}},
        "POST /v1/usage/runs/{usage_run_id:str}/end": {"json": {}},
        "POST /v1/usage/runs/{usage_run_id:str}/acknowledge": {"json": REASON},
        "POST /v1/playgrounds": {"json": {}},
        "POST /v1/playgrounds/{playground_id:str}/checkpoint": {"json": {"name": "here"}},
        "POST /v1/playgrounds/{playground_id:str}/reset": {"json": {}},
    }
    rows = {"cases": [{"id": "a", "output": {"text": "whatever"}}]}
    options |= {
        "POST /v1/evaluations": {"json": {"name": f"new-{secrets.token_hex(8)}", "criteria": CRITERIA}},
        "POST /v1/evaluations/{evaluation:str}/cases": {"json": rows},
        "GET /v1/evaluations/{evaluation:str}/compare": {"params": {"with": evaluation_of(planted.tenant)}},
        "POST /v1/evaluations/{evaluation:str}/preferences": {
            "json": {"others": [evaluation_of(planted.tenant)], "judge": "none"}
        },
        "POST /v1/datasets": {"json": {"name": f"new-{secrets.token_hex(8)}", **rows}},
        "POST /v1/reviews": {
            "json": {
                "name": f"new-{secrets.token_hex(8)}",
                "evaluation": evaluation_of(planted.tenant),
                "random": 1,
            }
        },
        "POST /v1/reviews/{review:str}/labels": {"json": {"labels": [{"number": 1, "choice": "yes"}]}},
        "GET /v1/datasets/{dataset:str}/diff": {"params": {"with": f"{dataset_of(planted.tenant)}@1"}},
    }
    if "{contract_id:str}/" in route:
        return MOVES[route.rpartition("/")[2]]
    return options.get(route, {})


def asked(
    scene: Scene, request: tuple[str, str, dict[str, Any]], key: str | None, client: str = "127.0.0.1"
) -> httpx.Response:
    method, path, options = request
    if path == "/v1/events":
        count = events_seen_by(scene, key)
        return scene.deployment.follow(f"{path}?after=0", lambda body: body.count(b"\nevent: ") >= count, key=key)
    return scene.deployment.ask(method, path, key=key, client=(client, 1), **options)


class Again:
    """The same request for one caller after the other, made anew once it has had its effect."""

    def __init__(self, scene: Scene, route: str) -> None:
        self._scene = scene
        self._route = route
        self._made: tuple[str, str, dict[str, Any]] | None = None

    def request(self) -> tuple[str, str, dict[str, Any]]:
        """One that can be answered."""
        if self._made is None:
            self._made = request_of(self._route, self._scene, self._scene.ours)
        return self._made

    def asked(self, request: tuple[str, str, dict[str, Any]], key: str) -> httpx.Response:
        reply = asked(self._scene, request, key)
        if reply.is_success and request[0] != "GET":
            self._made = None
        return reply


def events_seen_by(scene: Scene, key: str | None) -> int:
    tenant = scene.ours.tenant if key in scene.ours.keys.values() else scene.theirs.tenant
    with scene.deployment.store.database.reading() as connection:
        query = select(func.count()).select_from(tables.events).where(tables.events.c.tenant == tenant)
        return int(connection.execute(query).scalar_one())


def text_of(reply: httpx.Response) -> str:
    """All that a caller can read in a reply; what is zipped too."""
    head = b"\n".join(b"%b: %b" % header for header in reply.headers.raw).decode("latin-1")
    if reply.headers.get("content-type") == "application/zip":
        with zipfile.ZipFile(io.BytesIO(reply.content)) as opened:
            parts = [opened.read(name).decode("utf-8", "replace") for name in opened.namelist()]
        return "\n".join([head, *parts])
    return f"{head}\n{reply.content.decode('utf-8', 'replace')}"


@lru_cache(maxsize=64)
def of_other_names(canaries: frozenset[str]) -> frozenset[str]:
    return frozenset(canary for canary in canaries if MARK not in canary)


def assert_unseen(canaries: frozenset[str], text: str) -> None:
    # Hundreds of them, looked for in thousands of replies: where not even what most have in common is, they are not.
    looked_for = canaries if MARK in text else of_other_names(canaries)
    seen = sorted(canary for canary in looked_for if canary in text)
    assert not seen, f"{seen} in {text[:2_000]}"


ALL = sorted(WHO_MAY)
EACH_ROUTE = pytest.mark.parametrize(
    ("scene", "route"),
    # Who may ask does not depend on the database: a sample has each route on one of the two.
    [
        (database, route)
        for place, route in enumerate(ALL)
        for turn, database in enumerate(DATABASES)
        if IN_FULL or (seed() + place + turn) % len(DATABASES) == 0
    ],
    indirect=["scene"],
)


def test_the_table_names_every_route_and_every_route_is_guarded(deployment: Deployment) -> None:
    found = routes_of(deployment.app)
    assert found.keys() == WHO_MAY.keys() | OPEN_TO_ALL, "a new route needs a line in WHO_MAY"
    for route, handler in found.items():
        assert bool(handler.opt.get(PUBLIC)) == (route in OPEN_TO_ALL)
        assert bool(handler.guards) == (route not in OPEN_TO_ALL | UNGUARDED), f"{route} has no guard"


@EACH_ROUTE
def test_each_role_may_do_what_the_table_says_and_sees_nothing_else(scene: Scene, route: str) -> None:
    unheard = scene.theirs.all | scene.ours.secret
    again = Again(scene, route)
    with logged() as lines:
        for role in Role:
            reply = again.asked(again.request(), scene.ours.keys[role])
            if role in WHO_MAY[route]:
                # This service has no judge to ask: test_preferences.py has one.
                if route != "POST /v1/evaluations/{evaluation:str}/preferences":
                    assert reply.status_code < 300, reply.text
                else:
                    assert (reply.status_code, code_of(reply)) == (400, "unknown_judge")
            else:
                assert (reply.status_code, code_of(reply)) == (403, "forbidden")
            assert_unseen(unheard, text_of(reply))
            if role is Role.AGENT:
                assert_unseen(scene.ours.for_judges, text_of(reply))
    assert_unseen(scene.ours.all | scene.theirs.all, lines.getvalue())


@EACH_ROUTE
def test_another_tenant_finds_nothing(scene: Scene, route: str) -> None:
    unheard = scene.ours.all | scene.theirs.secret
    again = Again(scene, route)
    with logged() as lines:
        for role in sorted(WHO_MAY[route]):
            request = again.request()
            before = scene.deployment.rows()
            reply = again.asked(request, scene.theirs.keys[role])
            if route in OF_ONE_TENANT or route.startswith("POST /v1/verify"):
                assert reply.status_code == 404, reply.text
                assert scene.deployment.rows() == before
            assert_unseen(unheard, text_of(reply))
    assert_unseen(scene.ours.all | scene.theirs.all, lines.getvalue())


@EACH_ROUTE
def test_without_a_key_in_force_nothing_is_said(scene: Scene, route: str) -> None:
    request = request_of(route, scene, scene.ours)
    unheard = scene.ours.all | scene.theirs.all
    before = scene.deployment.rows()
    with logged() as lines:
        for number, key in enumerate([None, scene.ours.revoked, "mk_000000000000." + "A" * 43, "nonsense", ""]):
            # Whoever guesses from one address is soon made to wait.
            reply = asked(scene, request, key, client=f"10.{number}.{ALL.index(route)}.1")
            assert reply.status_code == 401
            assert reply.headers["www-authenticate"] == 'Bearer realm="meruit"'
            assert_unseen(unheard, text_of(reply))
    assert scene.deployment.rows() == before
    assert_unseen(unheard, lines.getvalue())


def test_options_reveals_only_the_methods(scene: Scene) -> None:
    for route in ALL:
        # Whatever the record is called: this asks for none.
        path = re.sub(r"{\w+:(\w+)}", lambda part: "1" if part[1] == "int" else scene.ours.outcome, route.split()[1])
        reply = scene.deployment.ask("OPTIONS", path)
        assert (reply.status_code, reply.content) == (204, b"")
        assert "OPTIONS" in reply.headers["allow"]
        assert_unseen(scene.ours.all | scene.theirs.all, text_of(reply))


BROKEN: tuple[Mapping[str, Any], ...] = (
    {"content": b"{"},
    {"content": b"[]"},
    {"json": {"unknown": 1}},
    {"json": {"criteria": 7, "output": [], "items": {}, "name": 5, "role": "king", "url": {}}},
    {"json": {"criteria": "nothing-of-the-kind", "output": {}}},
    {"json": {"criteria": {"criteria": []}, "output": {}}},
    {"json": {"criteria": "nothing-of-the-kind@7", "items": [{"output": {}}]}},
    {"json": {"output": {}, "criteria": "x", "agent_id": "somebody-else"}},
    {"params": {"limit": "x", "before": "-1", "after": "%00", "version": "x", "from": "x", "old": "x", "types": "x"}},
    {"params": {"contract_id": "x", "agent_id": "y"}},
    {"params": {"criteria_digest": "0" * 64}},
    {"json": {"output": {"text": 5}, "metadata": {"note": "x"}, "claimed_metrics": {"accuracy": "much"}}},
    {"json": {"output": {}, "claimed_metrics": {"accuracy": 1}}},
    {"json": {"reason": "because"}},
    {"json": {"reason": "", "decision": "never"}},
    {"params": {"account": "consumer:x", "currency": "EUR"}},
    {"params": {"currency": "EUR", "from": "yesterday"}},
    {"params": {"state": "settled", "work_id": "x"}},
    {"headers": {"Idempotency-Key": "\N{BLACK STAR}".encode()}},
    {"headers": {"Content-Type": "text/plain"}, "content": b"text"},
    {"headers": {"Accept": "text/html", "Range": "bytes=0-1", "X-Http-Method-Override": "DELETE"}},
)
A_FEW = (BROKEN[0], BROKEN[8], BROKEN[-1])
"""A body, a query and headers: for where the route is not found, or the caller turned away, before any is read."""


@EACH_ROUTE
def test_an_agent_learns_nothing_from_requests_that_are_broken(scene: Scene, route: str) -> None:
    method, path, _ = request_of(route, scene, scene.ours)
    sent: dict[str, Sequence[Mapping[str, Any]]] = {path: BROKEN}
    callers: tuple[str, ...] = (scene.ours.keys[Role.AGENT], scene.ours.other_agent)
    if Role.AGENT not in WHO_MAY[route]:
        # Turned away at the door, whatever it says and whichever agent it is.
        callers = callers[:1]
    # Neither the door nor how paths are read is the database's to say.
    if scene.deployment.store.database.location.kind == "sqlite":
        sent |= {path + "/": A_FEW}
        if Role.AGENT in WHO_MAY[route]:
            sent |= dict.fromkeys((path + "/more", path.upper()), A_FEW)
            sent |= {path.replace(scene.ours.outcome, "out_" + "0" * 34): BROKEN}
    elif Role.AGENT not in WHO_MAY[route]:
        sent = {path: A_FEW}
    # The other agent's own name and contract are its own to see.
    hidden = frozenset(one for one in scene.ours.for_judges if "otheragent" not in one and "contract" not in one)
    unheard = hidden | scene.ours.secret | scene.theirs.all
    with logged() as lines:
        for key in callers:
            for place, several in sent.items():
                for broken in several:
                    reply = scene.deployment.ask(method, place, key=key, **broken)
                    assert reply.status_code < 500, reply.text
                    assert_unseen(unheard, text_of(reply))
    assert_unseen(scene.ours.all | scene.theirs.all, lines.getvalue())


def everything(scene: Scene, key: str, kind: str, **asked_for: str) -> list[dict[str, Any]]:
    """All that there is of a kind, page by page: the walk makes much of it, and may have run before."""
    place = "before" if kind in ("outcomes", "contracts", "work") else "after"
    found, params = list[dict[str, Any]](), {"limit": 500, **asked_for}
    while True:
        page = scene.deployment.ask("GET", f"/v1/{kind}", key=key, params=params).json()
        found += page[kind]
        if page["next"] is None:
            return found
        params[place] = page["next"]


def test_those_who_may_see_all_that_was_planted(scene: Scene) -> None:
    """The walk looks for what can be found: an admin's replies hold every canary but the secrets."""
    of_admin = [
        *("GET /v1/criteria/{name:str}", "GET /v1/outcomes/{outcome_id:str}"),
        "GET /v1/outcomes/{outcome_id:str}/versions",
        "GET /v1/benchmarks/{benchmark:str}",
        "GET /v1/agent-runs/{agent_run_id:str}",
        "GET /v1/usage/runs/{usage_run_id:str}",
        *("GET /v1/evaluations", "GET /v1/evaluations/{evaluation:str}", "GET /v1/evaluations/{evaluation:str}/cases"),
        *("GET /v1/evaluations/{evaluation:str}/cases/{case_id:path}", "GET /v1/datasets/{dataset:str}/cases"),
        *("GET /v1/reviews", "GET /v1/reviews/{review:str}/labels"),
    ]
    admin = scene.ours.keys[Role.ADMIN]
    seen = "".join(text_of(asked(scene, request_of(route, scene, scene.ours), admin)) for route in of_admin)
    for kind in ("criteria", "keys", "webhooks"):
        seen += json.dumps(everything(scene, admin, kind))
    for kind in ("outcomes", "work"):
        for one in everything(scene, admin, kind):
            seen += text_of(scene.deployment.ask("GET", f"/v1/{kind}/{one['id']}", key=admin))
    for webhook in everything(scene, admin, "webhooks"):
        seen += text_of(scene.deployment.ask("GET", f"/v1/webhooks/{webhook['id']}/dead", key=admin))
    count = events_seen_by(scene, admin)
    seen += scene.deployment.follow(
        "/v1/events?after=0", lambda body: body.count(b"\nevent: ") >= count, key=admin
    ).text
    assert {canary for canary in scene.ours.for_judges if canary not in seen} == set()


def test_an_agent_learns_only_how_its_work_ended(scene: Scene) -> None:
    agent, criteria = scene.ours.keys[Role.AGENT], scene.ours.criteria
    told = {"id", "contract_id", "created_at", "version", "verdict", "success", "score"}
    for output in ({}, {"text": 5}, {"text": "x" * 100_000}, {"text": None, "predictions": [1]}, {"a": {"b": [0.1]}}):
        reply = scene.deployment.ask("POST", "/v1/verify", key=agent, json={"output": output, "criteria": criteria})
        assert reply.json().keys() == {"outcome_id", "version", "recorded", "verdict", "success", "score", "tries"}
        assert_unseen(scene.ours.all, text_of(reply))
        kept = scene.deployment.ask("GET", f"/v1/outcomes/{reply.json()['outcome_id']}", key=agent)
        assert kept.json().keys() == told
    listed = everything(scene, agent, "outcomes")
    assert all(one.keys() == told for one in listed)
    assert scene.ours.outcome in {one["id"] for one in listed}


def test_an_agent_learns_of_its_contracts_only_how_they_stand(scene: Scene) -> None:
    agent, contract = scene.ours.keys[Role.AGENT], scene.ours.contract
    told = set(AgentContract.__struct_fields__)
    assert scene.deployment.ask("GET", f"/v1/contracts/{contract}", key=agent).json().keys() == told
    listed = everything(scene, agent, "contracts")
    assert contract in {one["id"] for one in listed}
    assert {one["agent_id"] for one in listed} == {"robot"}
    assert all(one.keys() == told for one in listed)
    work = scene.deployment.ask("GET", f"/v1/work/{scene.ours.work}", key=agent).json()
    assert work.keys() == set(AgentWork.__struct_fields__)
    assert work["input"] == {"question": "plain question"}


def agents_contracts(scene: Scene, canary: Canary) -> Iterator[tuple[str, str]]:
    """A contract of the agent in each state that it can come to, by the operator's doing; with what is said of it."""

    def done(path: str, body: Any) -> Any:
        reply = scene.deployment.ask("POST", path, key=scene.ours.keys[Role.OPERATOR], json=body)
        assert reply.is_success, reply.text
        return reply.json()

    def reason() -> dict[str, str]:
        return {"reason": canary("reason")}

    steps: dict[str, list[tuple[str, Any]]] = {
        "awarded": [],
        "executing": [("start", {})],
        "held": [("complete", {"output": {"text": LONG}})],
        "leaked": [("complete", {"output": {"text": "planted"}})],
        "settled": [("complete", {"output": {"text": "short"}})],
        "reversed": [("complete", {"output": {"text": "short"}}), ("reverse", None)],
        "called off": [("void", None)],
        "disputed": [("complete", {"output": {"text": LONG}}), ("dispute", None)],
        "resolved": [("complete", {"output": {"text": LONG}}), ("dispute", None), ("resolve", {"decision": "uphold"})],
        "released": [("complete", {"output": {"text": LONG}}), ("release", None)],
    }
    for name, moves in steps.items():
        given = planted_work(canary, None)
        work = done("/v1/work", given)["id"]
        contract = done("/v1/contracts", {"work_id": work, "agent_id": "robot"})["id"]
        for move, body in moves:
            sent = body if move in ("start", "complete") else {**reason(), **(body or {})}
            if name == "leaked":
                sent = {"output": {"text": given["canaries"][0]}}
            done(f"/v1/contracts/{contract}/{move}", sent)
        yield name, contract


def test_no_error_shows_an_agent_criteria_or_hold_reasons(scene: Scene) -> None:
    agent, operator = scene.ours.keys[Role.AGENT], scene.ours.keys[Role.OPERATOR]
    canaries, refused = set[str](), Counter[tuple[str, int]]()

    def canary(what: str) -> str:
        made = f"{MARK}{what.replace('-', '')}{secrets.token_hex(8)}"
        canaries.add(made)
        return made

    hidden = frozenset({*flags.names(), "governance", "a person must", "hold", "flag", "rouge", "criteri"})
    tries: list[tuple[str, dict[str, Any]]] = [
        ("start", {}),
        ("complete", {"json": {"output": {"text": "another"}}}),
        ("complete", {"json": {"output": {"text": "another"}, "metadata": {"note": "mine"}}}),
        ("dispute", {"json": {"reason": "mine"}}),
        ("dispute", {"json": {"reason": "mine, again"}}),
        ("settle", {}),
        ("release", {"json": REASON}),
    ]
    seen = set[str]()
    for state, contract in agents_contracts(scene, canary):
        shown = scene.deployment.ask("GET", f"/v1/contracts/{contract}", key=operator).json()
        seen |= {flag for flag in flags.names() if flag in str(shown)}
        for move, options in tries:
            reply = scene.deployment.ask("POST", f"/v1/contracts/{contract}/{move}", key=agent, **options)
            assert reply.status_code in (200, 403, 409, 422), (state, move, reply.text)
            assert_unseen(frozenset(canaries), text_of(reply))
            if not reply.is_success:
                refused[move, reply.status_code] += 1
                told = {name: value for name, value in reply.json().items() if name not in ("instance", "request_id")}
                assert_unseen(hidden, str(told).lower())
    # It looks for what there is: some were held, and each move was refused in some state.
    assert seen
    assert {move for move, status in refused if status == 409} == {"start", "complete", "dispute"}


def test_an_agent_neither_sees_nor_moves_another_agents_contract(scene: Scene) -> None:
    agent = scene.ours.other_agent
    assert scene.deployment.ask("GET", f"/v1/work/{scene.ours.work}", key=agent).status_code == 404
    for move, options in MOVES.items():
        contract = contract_ready_for(scene.deployment, scene.ours.keys[Role.OPERATOR], move)
        before = scene.deployment.rows()
        path = f"/v1/contracts/{contract}/{move}".rstrip("/")
        reply = scene.deployment.ask("POST" if move else "GET", path, key=agent, **options)
        assert reply.status_code == (404 if move in ("", "start", "complete", "dispute") else 403), (move, reply.text)
        assert scene.deployment.rows() == before
    of_robot = {"account": "agent:robot", "currency": "EUR"}
    assert scene.deployment.ask("GET", "/v1/ledger/statement", key=agent, params=of_robot).status_code == 403
    listed = everything(scene, agent, "contracts", agent_id="robot")
    assert listed == []
    assert scene.deployment.ask("GET", "/v1/contracts", key=agent, params={"consumer_id": "x"}).status_code == 403


def test_an_agent_does_not_see_another_agents_outcome(scene: Scene) -> None:
    reply = scene.deployment.ask("GET", f"/v1/outcomes/{scene.ours.outcome}", key=scene.ours.other_agent)
    assert reply.status_code == 404
    listed = everything(scene, scene.ours.other_agent, "outcomes")
    assert scene.ours.outcome not in {one["id"] for one in listed}


@pytest.mark.parametrize("path", ["/v1/verify", "/v1/verify/batch"])
@pytest.mark.parametrize(
    "item",
    [
        {"agent_id": "somebody-else"},
        {"metadata": {"duration_ms": 1}},
        {"input": {"reference": "x"}},
        {"input": {"ground_truth": 1, "question": "?"}},
        {"input": {"output_pattern": "x"}},
    ],
)
def test_an_agent_says_neither_who_it_is_nor_what_it_is_compared_with(scene: Scene, path: str, item: Any) -> None:
    work = {"output": {}, **item}
    body = {"criteria": scene.ours.criteria, **({"items": [work]} if path.endswith("batch") else work)}
    before = scene.deployment.rows()
    reply = scene.deployment.ask("POST", path, key=scene.ours.keys[Role.AGENT], json=body)
    assert (reply.status_code, code_of(reply)) == (403, "forbidden")
    assert scene.deployment.rows() == before


def test_an_agent_is_judged_by_registered_criteria_alone(scene: Scene) -> None:
    agent = scene.ours.keys[Role.AGENT]
    reply = scene.deployment.ask("POST", "/v1/verify", key=agent, json={"output": {}, "criteria": CRITERIA})
    assert reply.status_code == 403
    digest = {"criteria_digest": "0" * 64}
    assert scene.deployment.ask("GET", "/v1/outcomes", key=agent, params=digest).status_code == 403


@pytest.mark.parametrize(
    "narrower",
    [
        Settings.parse("extractors: {custom: {class: CustomExtractor, enabled: false}}", "no code"),
        Settings.parse("extractors: {contains: {class: ContainsExtractor, enabled: false}}", "no containment"),
        Settings.parse("verification: {max_criteria_per_task: 1}", "one criterion"),
    ],
    ids=["no-code", "no-containment", "one-criterion"],
)
def test_criteria_that_no_longer_run_here_stay_hidden_from_agents(deploy: Deploy, narrower: Settings) -> None:
    canaries = set[str]()

    def canary(what: str) -> str:
        canaries.add(f"{MARK}{what.replace('-', '')}{secrets.token_hex(8)}")
        return max(canaries, key=lambda one: what.replace("-", "") in one)

    first = deploy()
    operator, agent = first.key(Role.OPERATOR), first.key(Role.AGENT)
    registered = {"name": "judged", "criteria": planted_criteria(canary)}
    assert first.ask("POST", "/v1/criteria", key=operator, json=registered).status_code == 201
    first.close()
    second = deploy(using=build_engine(narrower), settings=narrower)
    before = second.rows()
    bodies: dict[str, dict[str, Any]] = {"": {"output": {}}, "/batch": {"items": [{"output": {}}]}}
    for path, body in bodies.items():
        for key in (agent, operator):
            reply = second.ask("POST", f"/v1/verify{path}", key=key, json={"criteria": "judged", **body})
            found = (reply.status_code, code_of(reply))
            assert found == (422, "unavailable_here"), reply.text
            assert ("errors" in reply.json()) == (key == operator)
            if key == agent:
                assert_unseen(frozenset(canaries), text_of(reply))
    assert second.rows() == before


def test_a_service_without_keys_serves_its_own_machine_alone(deploy: Deploy) -> None:
    made = deploy()
    work = {**WORK, "criteria": CRITERIA}
    assert made.ask("POST", "/v1/verify", json=work).json()["result"]["success"]
    assert made.ask("GET", "/v1/keys").json() == {"keys": [], "next": None}
    assert made.ask("GET", "/v1/keys", client=("::1", 1), headers={"Host": "[::1]:8484"}).status_code == 200
    assert made.ask("GET", "/v1/keys", headers={"Host": "localhost:8484"}).status_code == 200
    refused: list[dict[str, Any]] = [
        {"client": ("192.0.2.1", 1)},
        {"client": ("", 0)},
        {"headers": {"Host": "meruit.example"}},
        {"headers": {"Host": "127.0.0.1.meruit.example:80"}},
        {"headers": {"Host": ""}},
        {"headers": {"Origin": "http://127.0.0.1"}},
        {"headers": {"Origin": "null"}},
    ]
    for how in refused:
        reply = made.ask("GET", "/v1/keys", **how)
        assert (reply.status_code, code_of(reply)) == (401, "unauthorized"), how
        assert made.ask("GET", "/health", **how).status_code == 200


def test_a_request_from_nowhere_is_not_from_this_machine(deploy: Deploy) -> None:
    made = deploy()
    assert made.follow("/v1/keys", lambda _: False).status_code == 200
    assert made.follow("/v1/keys", lambda _: False, client=None).status_code == 401


def test_once_a_key_exists_nothing_works_without_one(deploy: Deploy) -> None:
    made = deploy()
    secret = made.ask("POST", "/v1/keys", json={"name": "first", "role": "admin"}).json()["secret"]
    assert made.ask("GET", "/v1/keys").status_code == 401
    # That it is locked is remembered, and needs no database.
    assert made.ask("GET", "/v1/keys").status_code == 401
    assert made.ask("GET", "/v1/keys", key=secret).status_code == 200
    made.ask("DELETE", f"/v1/keys/{secret.split('.')[0]}", key=secret)
    assert made.ask("GET", "/v1/keys", key=secret).status_code == 401
    assert made.ask("GET", "/v1/keys").status_code == 401


def test_a_revoked_key_is_refused_at_once(deployment: Deployment, tenant: str, admin: str) -> None:
    key = deployment.key(Role.AUDITOR, tenant)
    assert deployment.ask("GET", "/v1/outcomes", key=key).status_code == 200
    assert deployment.ask("DELETE", f"/v1/keys/{key.split('.')[0]}", key=admin).status_code == 200
    assert deployment.ask("GET", "/v1/outcomes", key=key, client=("10.9.9.9", 1)).status_code == 401


def test_a_key_revoked_by_another_process_is_refused_soon(deploy: Deploy) -> None:
    made = deploy()
    now = [0.0]
    made.service.authenticator._timer = lambda: now[0]
    key = made.key(Role.AUDITOR)
    assert made.ask("GET", "/v1/outcomes", key=key).status_code == 200
    made.store.recorder.write(Revoke(key.split(".")[0], None))
    now[0] = KEY_CACHE_S * 0.9
    assert made.ask("GET", "/v1/outcomes", key=key).status_code == 200
    now[0] = KEY_CACHE_S * 1.1
    assert made.ask("GET", "/v1/outcomes", key=key).status_code == 401


def test_a_key_that_another_process_made_ends_the_open_mode_soon(deploy: Deploy) -> None:
    made = deploy()
    now = [0.0]
    made.service.authenticator._timer = lambda: now[0]
    assert made.ask("GET", "/v1/outcomes").status_code == 200
    deploy().key()
    now[0] = KEY_CACHE_S * 1.1
    assert made.ask("GET", "/v1/outcomes").status_code == 401


def test_a_key_expires(deploy: Deploy) -> None:
    now = [datetime(2030, 1, 1, tzinfo=UTC)]
    made = deploy(surroundings=ClockAndEntropy(clock=lambda: now[0]))
    admin = made.key()
    wish = {"name": "short", "role": "auditor", "expires_in_days": 1}
    issued = made.ask("POST", "/v1/keys", key=admin, json=wish).json()
    assert issued["key"]["expires_at"] == "2030-01-02T00:00:00Z"
    assert made.ask("GET", "/v1/outcomes", key=issued["secret"]).status_code == 200
    now[0] += timedelta(days=1)
    made.service.authenticator.clear_cache()
    assert made.ask("GET", "/v1/outcomes", key=issued["secret"]).status_code == 401


@pytest.mark.parametrize("header", ["Basic dXNlcjpwYXNz", "Bearer", "mk_x", "Token abc", "\N{SNOWMAN}"])
def test_only_a_bearer_key_is_a_key(deployment: Deployment, header: str) -> None:
    sent = {"Authorization": header.encode()}
    assert deployment.ask("GET", "/v1/outcomes", headers=sent, client=("10.8.8.8", 1)).status_code == 401


def test_the_scheme_may_be_written_in_any_case(deployment: Deployment, admin: str) -> None:
    assert deployment.ask("GET", "/v1/outcomes", headers={"Authorization": f"bEaReR  {admin} "}).status_code == 200


def test_who_guesses_must_wait_and_a_known_key_need_not(deployment: Deployment, admin: str) -> None:
    address = ("10.7.7.7", 1)
    assert deployment.ask("GET", "/v1/outcomes", key=admin, client=address).status_code == 200
    said = [
        deployment.ask("GET", "/v1/outcomes", key=f"mk_{number:012x}.{'A' * 43}", client=address).status_code
        for number in range(FAILURE_BURST * 3)
    ]
    assert said[:FAILURE_BURST] == [401] * FAILURE_BURST
    assert 429 in said
    assert deployment.ask("GET", "/v1/outcomes", key=admin, client=address).status_code == 200


def test_a_key_that_asks_too_often_waits(deploy: Deploy) -> None:
    made = deploy(settings=settings_with(requests_per_minute=2))
    busy, other = made.key(), made.key()
    said = [made.ask("GET", "/v1/outcomes", key=busy) for _ in range(3)]
    assert [reply.status_code for reply in said] == [200, 200, 429]
    assert code_of(said[2]) == "too_many_requests"
    assert 1 <= int(said[2].headers["retry-after"]) <= 30
    assert made.ask("GET", "/v1/outcomes", key=other).status_code == 200


def test_no_more_keys_are_remembered_than_there_is_room_for(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "MAX_CACHED_KEYS", 2)
    made = deploy()
    several = [made.key() for _ in range(4)]
    for key in several:
        assert made.ask("GET", "/v1/outcomes", key=key).status_code == 200
    assert len(made.service.authenticator._known) == 2


def test_wrong_keys_do_not_lock_out_a_valid_key(deploy: Deploy) -> None:
    deployment = deploy()
    right = deployment.key(Role.OPERATOR)
    wrong = f"mk_{'0' * 12}.{'A' * 43}"
    seen = [deployment.ask("GET", "/v1/outcomes", key=wrong).status_code for _ in range(15)]
    assert (seen[0], seen[-1]) == (401, 429)
    deployment.service.authenticator.clear_cache()
    assert deployment.ask("GET", "/v1/outcomes", key=right).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-For": "8.8.8.8"},
        {"Forwarded": "for=8.8.8.8"},
        {"Via": "1.1 proxy"},
        {"X-Forwarded-Host": "example.org"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "127.0.0.1:80@example.org"},
        {"Host": ""},
    ],
    ids=str,
)
def test_without_keys_proxies_and_pages_are_refused(deploy: Deploy, headers: dict[str, str]) -> None:
    deployment = deploy()
    assert deployment.ask("GET", "/v1/outcomes", headers=headers).status_code == 401
    assert deployment.ask("GET", "/v1/outcomes", headers={"Sec-Fetch-Site": "none"}).status_code == 200
