"""Trials of Harbor: a trial folder, or a jobs folder with many, with their ATIF trajectories."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from meruit.errors import ImportDamaged
from meruit.evaluations.importers.support.messages import last_answer, text_of, to_call
from meruit.evaluations.importers.support.pieces import (
    Claim,
    ImportedCase,
    ImportNote,
    Piece,
    RunFacts,
    TokenClasses,
    build_case,
    items,
    mapping,
    number,
)
from meruit.evaluations.importers.support.source import ImportSource
from meruit.registry import importers

RESULT, TRAJECTORY = "result.json", "agent/trajectory.json"
LEVELS = (RESULT, f"*/{RESULT}", f"*/*/{RESULT}")
"""Where results lie: in a trial, a job with trials, a folder of jobs."""
REWARD = "reward"
ROLES = {"agent": "assistant"}


def is_harbor(source: ImportSource) -> bool:
    """Recognise a folder by a trial's result, a file by the version of its trajectory."""
    if not source.is_folder:
        return str(source.first_row.get("schema_version", "")).startswith("ATIF") or (
            source.head.lstrip().startswith(b"{") and b'"ATIF-v' in source.head[:200]
        )
    return next(_trials(source), None) is not None


def _trials(source: ImportSource) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    """The folder of each trial with its result; None for a result that cannot be read. A job has one of its own."""
    for pattern in LEVELS:
        for name in source.files(pattern):
            try:
                found = mapping(source.load_small(name))
            except ImportDamaged:
                yield name.removesuffix(RESULT), None
                continue
            if "trial_name" in found and "task_name" in found:
                yield name.removesuffix(RESULT), found


@importers.add(
    "harbor",
    recognise=is_harbor,
    examples=[
        (
            {
                "t1/result.json": '{"task_name": "fix-it", "trial_name": "fix-it__1", "verifier_result":'
                ' {"rewards": {"reward": 1.0}}}',
                "t2/result.json": '{"task_name": "build", "trial_name": "build__1", "exception_info":'
                ' {"exception_type": "EnvironmentError", "exception_message": "no docker"}}',
            },
            {"build": None, "fix-it": "pass"},
        )
    ],
)
def read_harbor(source: ImportSource) -> Iterator[Piece]:
    """Harbor trials, one folder or a whole job, with rewards and ATIF trajectories; or one trajectory."""
    if not source.is_folder:
        yield RunFacts({"origin": "atif"})
        yield _alone(mapping(source.load_small()), source.path.stem)
        return
    yield RunFacts({"origin": "harbor"})
    for folder, result in _trials(source):
        if result is None:
            yield ImportNote(f"{folder}{RESULT} is damaged; this trial is not imported", partial=True)
            continue
        trajectory: Mapping[str, Any] = {}
        if source.has(f"{folder}{TRAJECTORY}"):
            try:
                trajectory = mapping(source.load_small(f"{folder}{TRAJECTORY}"))
            except ImportDamaged:
                yield ImportNote(f"{folder}{TRAJECTORY} is damaged; its messages are not imported")
        yield _to_case(result, trajectory)


def _to_case(result: Mapping[str, Any], trajectory: Mapping[str, Any]) -> ImportedCase:
    agent, used = mapping(result.get("agent_info")), mapping(result.get("agent_result"))
    rewards = {str(name): number(one) for name, one in mapping(_rewards(result)).items()}
    problem = mapping(result.get("exception_info"))
    messages = _messages(trajectory)
    # An agent that ran out of time is verified all the same: its reward stands.
    failed = bool(problem) and not rewards
    counted = TokenClasses.inclusive(
        given=used.get("n_input_tokens"), read=used.get("n_cache_tokens"), made=used.get("n_output_tokens")
    )
    case = build_case(
        result.get("task_name"),
        given={"prompt": next((one["content"] for one in messages if one["role"] == "user"), "")},
        output=last_answer(messages),
        tags={
            "agent": agent.get("name"),
            "model": mapping(agent.get("model_info")).get("name"),
            "exception": problem.get("exception_type"),
        },
        metadata={"trial": result.get("trial_name"), "task_checksum": result.get("task_checksum")},
        messages=messages,
        tokens=counted if counted.to_dict() else _trajectory_tokens(trajectory),
        duration_ms=_duration_ms(mapping(result.get("agent_execution"))),
        cost=used.get("cost_usd"),
        error=f"{problem.get('exception_type')}: {problem.get('exception_message')}" if failed else None,
    )
    # Of several rewards none stands for the whole, unless it is named so.
    overall = rewards.get(REWARD) if REWARD in rewards or len(rewards) != 1 else next(iter(rewards.values()))
    return ImportedCase(case, Claim(score=overall, scores=rewards))


def _rewards(result: Mapping[str, Any]) -> Any:
    return mapping(result.get("verifier_result")).get("rewards")


def _alone(trajectory: Mapping[str, Any], name: str) -> ImportedCase:
    messages = _messages(trajectory)
    if not messages:
        raise ImportDamaged("the trajectory has no steps")
    agent = mapping(trajectory.get("agent"))
    case = build_case(
        trajectory.get("session_id", trajectory.get("trajectory_id", name)),
        given={"prompt": next((one["content"] for one in messages if one["role"] == "user"), "")},
        output=last_answer(messages),
        tags={"agent": agent.get("name"), "model": agent.get("model_name")},
        messages=messages,
        tokens=_trajectory_tokens(trajectory),
        cost=mapping(trajectory.get("final_metrics")).get("total_cost_usd"),
    )
    return ImportedCase(case)


def _messages(trajectory: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for step in map(mapping, items(trajectory.get("steps"))):
        source = str(step.get("source", "user"))
        message: dict[str, Any] = {"role": ROLES.get(source, source), "content": text_of(step.get("message"))}
        calls = [
            to_call({**mapping(one), "id": mapping(one).get("tool_call_id")}) for one in items(step.get("tool_calls"))
        ]
        found.append({**message, "tool_calls": calls} if calls else message)
        results = map(mapping, items(mapping(step.get("observation")).get("results")))
        found += [
            {
                "role": "tool",
                "content": text_of(one.get("content")),
                "tool_call_id": str(one.get("source_call_id") or ""),
            }
            for one in results
        ]
    return found


def _trajectory_tokens(trajectory: Mapping[str, Any]) -> TokenClasses:
    final = mapping(trajectory.get("final_metrics"))
    return TokenClasses.inclusive(
        given=final.get("total_prompt_tokens"),
        read=final.get("total_cached_tokens"),
        made=final.get("total_completion_tokens"),
    )


def _duration_ms(phase: Mapping[str, Any]) -> float | None:
    try:
        began, ended = (datetime.fromisoformat(str(phase.get(name))) for name in ("started_at", "finished_at"))
        return (ended - began).total_seconds() * 1_000
    except (ValueError, TypeError):
        return None
