"""A small clinic for tests: a benchmark of two tasks, and agents that act on it over real HTTP."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[..., subprocess.CompletedProcess[str]]

CANARY = "heron-feather-77"
"""Stands in all that an agent must not see."""
PATIENT = {"resourceType": "Patient", "id": "p1", "active": True}
BOOK: dict[str, Any] = {
    "id": "book",
    "instruction": "Book 30 minutes for Patient/p1.",
    "scenario": f"Judges know {CANARY}.",
    "facts": {"minutes": 30, "private": CANARY},
    "seed": {"fhir": [PATIENT]},
    "criteria": [
        {
            "label": f"booked {CANARY}",
            "weight": 2,
            "axis": "correctness",
            "assert": "fhir-resource-state",
            "resource": "Appointment",
            "changed": "created",
            "count": 1,
            "fields": {"status": "booked", "minutesDuration": "${minutes}"},
        },
        {"label": "nothing else", "assert": "state-unchanged"},
    ],
}
RETIRE: dict[str, Any] = {
    "id": "retire",
    "instruction": "Mark Patient/p1 as inactive.",
    "seed": {"fhir": [PATIENT]},
    "criteria": [
        {
            "label": "inactive",
            "assert": "fhir-resource-state",
            "resource": "Patient",
            "changed": "updated",
            "count": 1,
            "fields": {"active": False},
        }
    ],
}
CLINIC: dict[str, Any] = {"benchmark": "clinic", "tasks": [BOOK, RETIRE]}


def put(name: str, content: Any) -> str:
    """A file with that content: bytes and text as they are, anything else as JSON."""
    if not isinstance(content, bytes):
        content = (content if isinstance(content, str) else json.dumps(content)).encode()
    Path(name).write_bytes(content)
    return name


_AGENT = """\
import json, os, sys, time, urllib.request
from pathlib import Path

def send(method, path, body):
    url = os.environ["MERUIT_FHIR_URL"] + path
    headers = {"Authorization": "Bearer " + os.environ["MERUIT_SECRET"], "Content-Type": "application/fhir+json"}
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers, method=method)).close()

def book(minutes=30):
    send("POST", "/Appointment", {"resourceType": "Appointment", "status": "booked", "minutesDuration": minutes,
                                  "participant": [{"status": "accepted"}]})

def retire():
    send("PUT", "/Patient/p1", {"resourceType": "Patient", "id": "p1", "active": False})

task = os.environ["MERUIT_TASK_ID"]
"""


def agent(code: str, name: str = "agent.py") -> str:
    """The command of an agent that does so; it may `book()`, `retire()`, and knows its `task`."""
    return f"{sys.executable} {put(name, _AGENT + code)} {{task}}"


GOOD = "book() if task == 'book' else retire()\n"


def clinic(*tasks: dict[str, Any], version: int = 1) -> str:
    """The benchmark in a file, with those tasks or all."""
    return put("clinic.json", {**CLINIC, "version": version, **({"tasks": list(tasks)} if tasks else {})})


def measured(run: Run, *options: str, code: str = GOOD, expect: int = 0) -> dict[str, Any]:
    """A benchmark run as programs get it."""
    ended = run("benchmark", "run", *(options or (clinic(),)), "--agent", agent(code), "--json")
    assert (ended.returncode, ended.stdout.count("\n")) == (expect, 1), ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def playgrounds() -> list[Path]:
    """Those that are left in the usual folder."""
    return sorted(Path("meruit-data/playgrounds").glob("**/pg_*"))
