"""An example request for every operation: each is sent to a running service by a test.

Ids in paths are those of a fresh service's records; replace them with yours.
"""

from typing import Any

_HEX = "0" * 32
# Any: JSON.
PARAMETERS: dict[str, Any] = {
    "agent_run_id": f"run_06{_HEX}",
    "benchmark": "front-desk",
    "benchmark_run_id": f"brn_06{_HEX}",
    "case_id": "opening-hours",
    "contract_id": f"con_06{_HEX}",
    "criterion_run_id": f"crn_06{_HEX}",
    "dataset": "questions",
    "evaluation": f"ev_06{_HEX}",
    "key_id": "mk_0123456789ab",
    "name": "reply-quality",
    "new": 1,
    "number": 1,
    "old": 0,
    "size": 1,
    "other_id": f"brn_06{_HEX}",
    "outcome_id": f"out_06{_HEX}",
    "playground_id": f"pgr_06{_HEX}",
    "review": f"rev_06{_HEX}",
    "seq": 1,
    "task": "book-a-visit",
    "task_run_id": f"trn_06{_HEX}",
    "usage_run_id": "nightly-0042",
    "version": 1,
    "webhook_id": f"whk_06{_HEX}",
    "work_id": f"wrk_06{_HEX}",
}
"""Values of parameters by name."""
_CRITERION = {
    "id": "close",
    "metric": "rougeL",
    "metric_type": "rouge_score",
    "comparison": "gte",
    "threshold": 0.5,
}
_CRITERIA = {"criteria": [_CRITERION]}
_WORK = {"input": {"reference": "The office opens at nine."}, "output": {"text": "The office opens at nine."}}
_REASON = {"reason": "checked by hand, and agreed with the consumer"}
_TASK = {
    "id": "book-a-visit",
    "instruction": "Book the visit that the patient asks for.",
    "seed": {"rows": {"visit": {"1": {"day": "Monday", "status": "free"}}}},
    "criteria": [
        {
            "assert": "portal-state-match",
            "correlate_by": {"resource": "visit"},
            "fields": {"status": "booked"},
        }
    ],
}
BODIES: dict[str, Any] = {
    "register_criteria": {"name": "reply-quality", "criteria": _CRITERIA},
    "validate_criteria": {"criteria": _CRITERIA},
    "verify_work": {**_WORK, "criteria": _CRITERIA, "agent_id": "heron"},
    "verify_batch": {"criteria": _CRITERIA, "items": [_WORK]},
    "submit_work": {
        "title": "Summarise the opening hours",
        "input": {"text": "We open at nine and close at five."},
        "private": {"reference": "The office opens at nine."},
        "success_criteria": _CRITERIA,
        "terms": {"cpc_rate": "0.05", "currency": "EUR"},
    },
    "award_contract": {"work_id": PARAMETERS["work_id"], "agent_id": "heron"},
    "complete_contract": {"output": {"text": "The office opens at nine."}},
    "release_contract": _REASON,
    "void_contract": _REASON,
    "reverse_payment": _REASON,
    "dispute_contract": _REASON,
    "rejudge_contract": _REASON,
    "resolve_dispute": {**_REASON, "decision": "uphold"},
    "start_evaluation": {"name": "nightly", "criteria": _CRITERIA, "tags": {"model": "heron-2"}},
    "record_cases": {"cases": [{"id": "opening-hours", **_WORK}]},
    "compare_by_preference": {"others": ["yesterday"], "judge": "careful"},
    "add_dataset": {"name": "questions", "cases": [{"id": "opening-hours", "input": _WORK["input"]}]},
    "create_review": {"name": "polite", "evaluation": "nightly", "random": 1},
    "record_labels": {"labels": [{"number": 1, "choice": "yes", "note": "says when, and nothing else"}]},
    "publish_benchmark": {"benchmark": "front-desk", "version": 1, "title": "Front desk", "tasks": [_TASK]},
    "replace_benchmark": {"title": "Front desk", "tasks": [_TASK]},
    "change_benchmark": {"title": "Front desk, mornings", "tasks": [_TASK], "base_version": 1},
    "create_benchmark_run": {"benchmark": "front-desk", "repeats": 2, "agent_id": "heron"},
    "create_task_run": {"benchmark": "front-desk", "task": "book-a-visit", "agent_id": "heron"},
    "rejudge_task_run": _REASON,
    "create_playground": {"seed": {"rows": {"visit": {"1": {"day": "Monday", "status": "free"}}}}},
    "checkpoint_playground": {"name": "before-lunch"},
    "reset_playground": {"name": "start"},
    "create_agent_run": {"agent": "heron", "query": "When does the office open?", "max_attempts": 3},
    "resume_agent_run": {"value": "yes, send it"},
    "record_usage_run": {
        "id": "nightly-0042",
        "framework": "heron",
        "source": "default",
        "started_at": "2026-11-16T02:00:00Z",
        "ended_at": "2026-11-16T02:05:00Z",
        "steps": [{"id": "plan", "tokens": {"input": 1200, "output": 160}}],
    },
    "add_usage_step": {"id": "draft", "tokens": {"input": 1800, "output": 200}},
    "end_usage_run": {"success": True},
    "acknowledge_usage": {"reason": "the provider corrected a double count"},
    "validate_outcome": {
        "contract_id": PARAMETERS["contract_id"],
        "claimed_metrics": {"rougeL": 0.9},
        "execution_context": {"execution_time_ms": 1200},
    },
    "create_key": {"name": "night shift", "role": "operator", "expires_in_days": 90},
    "create_webhook": {"url": "https://example.com/hooks/meruit", "types": ["contract.held"]},
}
"""Request bodies by operation."""
QUERIES: dict[str, dict[str, Any]] = {
    "compare_evaluations": {"with": ["yesterday"]},
    "compare_datasets": {"with": "questions@1"},
    "read_statement": {"account": "platform"},
    "read_trust": {"agent_id": "heron"},
}
"""Query parameters that an operation needs although it does not always require them, by operation."""
_ALIAS = "_alias"


# Any: an operation of OpenAPI is objects, lists and plain values in one another.
def add_examples(operation: dict[str, Any]) -> None:
    """Add the example of an operation to its OpenAPI description."""
    name = operation["operationId"].removesuffix(_ALIAS)
    query = QUERIES.get(name, {})
    for parameter in operation.get("parameters", ()):
        if parameter.get("required") and parameter["name"] in PARAMETERS:
            parameter["example"] = PARAMETERS[parameter["name"]]
        elif parameter["name"] in query:
            parameter["example"] = query[parameter["name"]]
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is not None:
        content["example"] = BODIES[name]
