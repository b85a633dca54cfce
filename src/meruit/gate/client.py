"""Queue durable runs from Python, and read, answer or cancel them; a worker drives them."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from meruit.errors import AgentError, AgentRunConflict, NotJsonSerializable
from meruit.gate.candidate import to_json_value
from meruit.gate.definition import AgentDefinition
from meruit.gate.limits import GateLimits, budget, validate_seconds
from meruit.gate.run import AgentRun, RunRequest
from meruit.gate.store import read as agent_reading
from meruit.gate.store.runs import CancelRun, QueueRun, ResumeRun
from meruit.gate.team import Team
from meruit.model.access import DEFAULT_TENANT
from meruit.store.store import Store

_RUN_ID = re.compile("[A-Za-z0-9][A-Za-z0-9._:@~-]{0,119}")
"""What the HTTP service and the database accept."""


def queue_run(  # noqa: PLR0913 - one for each setting of a run
    store: Store,
    agent: AgentDefinition | Team | str,
    query: str,
    *,
    payload: Mapping[str, Any] | None = None,
    verify_max_attempts: int | None = None,
    max_seconds: float | None = None,
    labels: Mapping[str, str] | None = None,
    run_id: str | None = None,
    tenant: str = DEFAULT_TENANT,
    by: str = "python",
) -> AgentRun:
    """Queue a run of an agent or a team, or of the one with that name; the next worker that has it starts it.

    With a `run_id` of your own the call can be retried: the same request twice is one run, and another request under
    that id raises AgentRunConflict.
    """
    if not str(query or "").strip():
        raise AgentError("the query of the run is empty; pass a text")
    if run_id is not None and not _RUN_ID.fullmatch(run_id):
        raise AgentError(f"run_id {run_id!r} is not valid; use 1 to 120 letters, digits and . _ : @ ~ -")
    name, limits = (agent, None) if isinstance(agent, str) else (agent.name, agent.limits(verify_max_attempts))
    request = RunRequest(
        query=query,
        payload=_to_json_object(payload or {}),
        max_attempts=None if verify_max_attempts is None else budget(verify_max_attempts),
        max_seconds=validate_seconds(max_seconds, "max_seconds"),
        labels=dict(labels or {}),
    )
    new_id = store.surroundings.new_id("run") if run_id is None else run_id
    # A worker sets the agent's own limits when it starts the run.
    known = GateLimits(max_attempts=budget(verify_max_attempts)) if limits is None else limits
    run = store.recorder.write(QueueRun(tenant=tenant, by=by, id=new_id, agent=name, request=request, limits=known))
    if (run.agent, run.request) != (name, request):
        raise AgentRunConflict(f"run {new_id} exists, with another agent or request; pass another run_id")
    return run


def read_run(store: Store, run_id: str, *, tenant: str = DEFAULT_TENANT) -> AgentRun:
    """Read the status and, once it is completed, the result of a run; raises NotFound."""
    with store.database.reading() as connection:
        return agent_reading.find(connection, tenant, run_id)


# Any: JSON of the client's own.
def resume_run(
    store: Store, run_id: str, value: Any, *, key: str | None = None, tenant: str = DEFAULT_TENANT
) -> AgentRun:
    """Give a run the value that its tool or verifier waits for; raises AgentRunConflict where it waits for none.

    `key` is the run's `waiting_for`. With it the call can be retried: the same value again changes nothing.
    """
    written = msgspec.json.encode(_to_json(value, "the value"))
    # For a run that does not wait, ResumeRun raises the error.
    named = key if key is not None else read_run(store, run_id, tenant=tenant).waiting_for or ""
    return store.recorder.write(ResumeRun(tenant=tenant, id=run_id, key=named, value=written))


def cancel_run(store: Store, run_id: str, *, tenant: str = DEFAULT_TENANT) -> AgentRun:
    """Cancel a run and, for a team run, its members; a running one ends when its worker next checks."""
    return store.recorder.write(CancelRun(tenant, run_id))


def _to_json_object(payload: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(payload, Mapping):
        raise AgentError(f"the payload is of type {type(payload).__name__}; pass a mapping")
    return dict(_to_json(payload, "the payload"))


# Any: JSON of the client's own.
def _to_json(value: Any, what: str) -> Any:
    try:
        return to_json_value(value)
    except NotJsonSerializable as problem:
        raise AgentError(f"{what} is not JSON serializable: {problem}") from None
