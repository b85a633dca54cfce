"""Benchmarks whose outcome is known beforehand, and agents that are put to them."""

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.api.conftest import Deployment

from meruit.model.access import Role
from meruit.model.task import Reveal

ROW = {f"f{number}": number for number in range(10)}
"""A row that the portal holds from the start."""
SEED: dict[str, Any] = {"rows": {"claim": {"1": ROW}}}


def scoring(tenths: int, **more: Any) -> dict[str, Any]:
    """A criterion that is met by so many tenths on the untouched world."""
    fields = {name: value if value < tenths else "another" for name, value in ROW.items()}
    return {"assert": "portal-state-match", "correlate_by": {"resource": "claim"}, "fields": fields, **more}


def task(*criteria: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A task that starts from one row, judged by these."""
    return {"id": "t", "instruction": "do as you are told", "seed": SEED, "criteria": list(criteria), **more}


def benchmark(*tasks: dict[str, Any], slug: str = "b", **more: Any) -> dict[str, Any]:
    """A benchmark of these."""
    return {"benchmark": slug, "tasks": list(tasks), **more}


class Bench(NamedTuple):
    """One tenant of a service, seen by its operator and its agent."""

    deployment: Deployment
    tenant: str
    operator: str
    agent: str

    @classmethod
    def of(cls, deployment: Deployment, tenant: str) -> "Bench":
        """A tenant with both keys."""
        return cls(deployment, tenant, deployment.key(Role.OPERATOR, tenant), deployment.key(Role.AGENT, tenant))

    # Any: whatever JSON there is.
    def done(self, path: str, body: Any = None, *, key: str | None = None, **more: Any) -> Any:
        """The answer to a request that succeeds."""
        options = more if body is None else {**more, "json": body}
        reply = self.deployment.ask("POST", f"/v1/{path}", key=key or self.operator, **options)
        assert reply.is_success, reply.text
        return reply.json()

    def read(self, path: str, *, key: str | None = None, **params: Any) -> Any:
        """What there is."""
        reply = self.deployment.ask("GET", f"/v1/{path}", key=key or self.operator, params=params or None)
        assert reply.is_success, reply.text
        return reply.json()

    def publish(self, *tasks: dict[str, Any], **more: Any) -> None:
        """Publish a benchmark of these tasks."""
        self.done("benchmarks", benchmark(*tasks, **more))

    def new(self, task_id: str = "t", **more: Any) -> str:
        """A run of a task, for the agent."""
        body = {"benchmark": "b", "task": task_id, "agent_id": "robot", **more}
        return str(self.done("task-runs", body)["id"])

    def started(self, task_id: str = "t", **more: Any) -> str:
        """One that the agent has begun."""
        run = self.new(task_id, **more)
        self.done(f"task-runs/{run}/start", key=self.agent)
        return run

    def complete(self, run: str, *, key: str | None = None) -> Any:
        """Complete it as its agent, unless another key is given."""
        return self.done(f"task-runs/{run}/complete", key=key or self.agent)

    def finished(self, task_id: str = "t", **more: Any) -> Any:
        """What completing a run at once is answered."""
        return self.complete(self.started(task_id, **more))


def planted_task(canary: Callable[[str], str], reveal: Reveal, *, counts: bool = True) -> dict[str, Any]:
    """A task each part of whose rubric has a text of its own, as far as its level hides that from a run that counts."""
    told_axes, told_labels = not counts or reveal in (Reveal.AXES, Reveal.CRITERIA), reveal is Reveal.CRITERIA
    axis = "an-axis" if told_axes else canary("axis")

    def label(name: str) -> str:
        return f"{reveal} {name}" if told_labels else canary("label")

    missed = canary("row")
    return {
        "id": f"{reveal}-task",
        "instruction": "say hello, and leave the rest alone",
        "title": canary("title"),
        "scenario": canary("scenario"),
        "reveal": reveal,
        "facts": {canary("fact-name").replace("-", "_"): canary("fact")},
        "seed": {
            "facts": {"wanted": canary("seed-fact")},
            "call": {"script": [{"hears": [canary("hears")], "says": canary("says")}]},
            "rows": {"claim": {"1": {"open": "yes"}}},
        },
        "criteria": [
            {
                "label": label("rows"),
                "axis": axis,
                "assert": "portal-state-match",
                "correlate_by": {"resource": "claim"},
                "fields": {missed: canary("expected"), "open": {"in": [canary("choice"), "${wanted}"]}},
            },
            {
                "label": label("resources"),
                "axis": axis,
                "assert": "fhir-resource-state",
                "resource": "Patient",
                "search": {"name": canary("search")},
                "fields": {f"extension.{canary('path')}": canary("value")},
            },
            {"label": label("call"), "assert": "voice-transcript", "contains": [canary("phrase")], "axis": axis},
            {"label": label("files"), "assert": "sftp-file-present", "path": f"{canary('file')}*.txt", "axis": axis},
            {
                "label": label("messages"),
                "assert": "hl7-structural",
                "fields": {"PID-3.1": canary("hl7")},
                "axis": axis,
            },
            {"label": label("answers"), "assert": "x12-response", "fields": {"TRN.2": canary("x12")}, "axis": axis},
        ],
    }


def task_in_trouble() -> dict[str, Any]:
    """A task that reads a system which can be taken out of reach."""
    held = {"assert": "sftp-file-present", "path": "a", "from": "own", "settle": {"stable": 1, "within": "1s"}}
    sources = {"own": {"kind": "files", "at": "config:down"}}
    return {"id": "in-trouble", "instruction": "wait", "criteria": [held], "sources": sources}
