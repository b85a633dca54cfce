"""Runs of verifiers: `traces.jsonl` of version 1, `results.jsonl` with `metadata.json` of version 0."""

from collections.abc import Iterator, Mapping
from typing import Any

from meruit.evaluations.importers.support.json_stream import CUT, load_lines
from meruit.evaluations.importers.support.messages import last_answer, prompt_of, text_of, to_messages
from meruit.evaluations.importers.support.pieces import (
    Claim,
    ImportedCase,
    ImportNote,
    Piece,
    RunFacts,
    TokenClasses,
    build_case,
    first_known,
    items,
    mapping,
    number,
    plain,
)
from meruit.evaluations.importers.support.source import ImportSource
from meruit.registry import importers

TRACES, RESULTS, METADATA = "traces.jsonl", "results.jsonl", "metadata.json"
KNOWN = frozenset(
    [
        "id",
        "example_id",
        "prompt",
        "completion",
        "answer",
        "task",
        "info",
        "state",
        "reward",
        "metrics",
        "error",
        "is_completed",
        "is_truncated",
        "stop_condition",
        "timing",
        "generation_ms",
        "scoring_ms",
        "total_ms",
        "tool_defs",
        "token_usage",
    ]
)
"""Fields of a result that are not a reward function's score."""


def is_verifiers(source: ImportSource) -> bool:
    """Recognise a folder by its files, a file by its first line."""
    if source.is_folder:
        return source.has(TRACES) or (source.has(RESULTS) and source.has(METADATA))
    row = source.first_row
    is_trace = {"nodes", "rewards"} <= row.keys() or ({"env", "traces"} <= row.keys())
    return is_trace or {"prompt", "completion", "reward"} <= row.keys()


@importers.add(
    "verifiers",
    recognise=is_verifiers,
    examples=[
        (
            {
                "results.jsonl": '{"example_id": 0, "prompt": "?", "completion": "yes", "reward": 1.0}\n'
                '{"example_id": 1, "prompt": "?", "completion": "no", "answer": "yes", "reward": 0.0}\n',
                "metadata.json": '{"env_id": "e", "model": "m-1"}',
            },
            {"0": "pass", "1": "fail"},
        )
    ],
)
def read_verifiers(source: ImportSource) -> Iterator[Piece]:
    """Runs of verifiers, version 1 (`traces.jsonl`) and version 0 (`results.jsonl`, `metadata.json`)."""
    facts = mapping(source.load_small(METADATA)) if source.has(METADATA) else {}
    tags = {"origin": "verifiers", "task": facts.get("env_id", facts.get("env")), "model": facts.get("model")}
    yield RunFacts({name: str(value) for name, value in tags.items() if value})
    name = "" if not source.is_folder else TRACES if source.has(TRACES) else RESULTS
    with source.open(name) as file:
        for row in load_lines(file):
            if row == CUT:
                yield ImportNote("the last line is cut off; only what comes before is imported", partial=True)
                continue
            found = mapping(row)
            if "traces" in found:
                yield from map(_trace_case, _judged_traces(found))
            else:
                yield _trace_case(found) if "nodes" in found else _result_case(found)


def _judged_traces(episode: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The traces of an episode that its rewards are about.

    Agents that only help (a simulated user, a judge) have none. Without any reward, one trace stands for the episode.
    An episode that failed itself is an error, whatever its agents did, and also where none of them ran.
    """
    traces = [mapping(one) for one in items(episode.get("traces"))]
    rewarded = [one for one in traces if one.get("rewards")]
    failing = [one for one in traces if one.get("errors")]
    judged = rewarded or failing[:1] or traces[:1] or [{**episode, "rewards": {}}]
    problems = items(episode.get("errors"))
    if episode.get("ok") is False and problems:
        return [{**one, "ok": False, "errors": problems} for one in judged]
    return judged


def _trace_case(trace: Mapping[str, Any]) -> ImportedCase:
    task = mapping(trace.get("task"))
    row = mapping(task.get("data"))
    reply = trace.get("root_reply")
    messages = to_messages([mapping(node).get("message") for node in items(trace.get("nodes"))])
    calls = [mapping(one) for one in items(trace.get("calls"))]
    tokens = sum((_tokens(mapping(one.get("usage"))) for one in calls), TokenClasses())
    costs = [number(mapping(one.get("usage")).get("cost")) for one in calls]
    problems = [mapping(one) for one in items(trace.get("errors"))]
    rewards = {str(name): mapping(one) for name, one in mapping(trace.get("rewards")).items()}
    scored = all(number(one.get("score")) is not None for one in rewards.values())
    error = None
    if problems and (trace.get("ok") is not True or not rewards):
        error = f"{problems[0].get('type', 'error')}: {problems[0].get('message', '')}"
    given = {name: value for name, value in row.items() if name not in ("idx", "id", "answer")}
    reference = first_known(row.get("answer"), row.get("reference"))
    case = build_case(
        first_known(row.get("id"), row.get("idx"), task.get("key"), trace.get("id")),
        given={**given, "prompt": prompt_of(row.get("prompt"))}
        | ({} if reference is None else {"reference": reference}),
        # Agents that the agent started have written after it.
        output=reply if isinstance(reply, str) else last_answer(messages),
        tags={
            "agent": mapping(trace.get("agent")).get("name"),
            "model": next((one.get("model") for one in calls), None),
        },
        metadata={name: trace[name] for name in ("stop_condition", "is_timeout") if trace.get(name) is not None},
        messages=messages,
        tokens=tokens,
        cost=sum(filter(None, costs)) if any(costs) else None,
        error=error,
    )
    total = sum((number(one.get("score")) or 0.0) * _weight(one) for one in rewards.values())
    scores = {name: number(one.get("score")) for name, one in rewards.items()}
    scores |= {str(name): plain(value) for name, value in mapping(trace.get("metrics")).items()}
    return ImportedCase(case, Claim(score=total if rewards and scored else None, scores=scores))


def _weight(reward: Mapping[str, Any]) -> float:
    found = number(reward.get("weight"))
    return 1.0 if found is None else found


def _tokens(usage: Mapping[str, Any]) -> TokenClasses:
    return TokenClasses.exclusive(
        given=usage.get("prompt_tokens"),
        read=usage.get("cached_input_tokens"),
        made=usage.get("completion_tokens"),
    )


def _result_case(row: Mapping[str, Any]) -> ImportedCase:
    completion = row.get("completion")
    replies = to_messages(completion)
    messages = [*to_messages(row.get("prompt")), *replies]
    problem = row.get("error")
    given = {"prompt": prompt_of(row.get("prompt")), "reference": row.get("answer"), "info": row.get("info")}
    took = first_known(row.get("total_ms"), row.get("generation_ms"))
    case = build_case(
        first_known(row.get("example_id"), row.get("id")),
        given={name: value for name, value in given.items() if value not in (None, "", {})},
        output=completion
        if isinstance(completion, str)
        else last_answer(replies)
        if replies
        else text_of(completion) or None,
        tags={"task": row.get("task")},
        messages=messages,
        duration_ms=took,
        error=str(mapping(problem).get("message", problem)) if problem else None,
    )
    scores = {name: number(value) for name, value in mapping(row.get("metrics")).items()}
    scores |= {
        str(name): number(value) for name, value in row.items() if name not in KNOWN and number(value) is not None
    }
    return ImportedCase(case, Claim(score=number(row.get("reward")), scores=scores))
