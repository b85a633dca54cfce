"""Trials of Harbor: a trial folder, or a jobs folder with many, with their ATIF trajectories."""

from collections.abc import Iterator, Mapping, Sequence
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
    first_known,
    items,
    mapping,
    number,
)
from meruit.evaluations.importers.support.source import ImportSource
from meruit.registry import importers

RESULT, TRAJECTORY = "result.json", "agent/trajectory.json"
STEPS = "steps"
"""The folder of a trial in several steps, each with a trajectory of its own."""
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
        trajectories: list[Mapping[str, Any]] = []
        for name in _trajectory_files(source, folder, result):
            try:
                trajectories.append(mapping(source.load_small(name)))
            except ImportDamaged:
                yield ImportNote(f"{name} is damaged; its messages are not imported")
        yield _to_case(result, trajectories)


def _trajectory_files(source: ImportSource, folder: str, result: Mapping[str, Any]) -> list[str]:
    """The trajectory of a trial, or of each of its steps in their order."""
    names = [f"{folder}{STEPS}/{one.get('step_name')}/{TRAJECTORY}" for one in _steps(result)]
    return [name for name in (f"{folder}{TRAJECTORY}", *names) if source.has(name)]


def _steps(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [mapping(one) for one in items(result.get("step_results"))]


def _to_case(result: Mapping[str, Any], trajectories: Sequence[Mapping[str, Any]]) -> ImportedCase:
    agent, steps = mapping(result.get("agent_info")), _steps(result)
    rewards = {str(name): number(one) for name, one in mapping(_rewards(result)).items()}
    problem = _problem_of(result, steps)
    messages = [message for one in trajectories for message in _messages(one)]
    used = _parts(result, steps, "agent_result")
    counted = sum((_used_tokens(one) for one in used), TokenClasses())
    costs = [cost for one in used if (cost := number(one.get("cost_usd"))) is not None]
    case = build_case(
        result.get("task_name"),
        given={"prompt": next((one["content"] for one in messages if one["role"] == "user"), "")},
        output=last_answer(messages),
        tags={
            "agent": agent.get("name"),
            "model": mapping(agent.get("model_info")).get("name"),
            "exception": mapping(result.get("exception_info")).get("exception_type") or problem.get("exception_type"),
        },
        metadata={"trial": result.get("trial_name"), "task_checksum": result.get("task_checksum")},
        messages=messages,
        tokens=counted if counted.to_dict() else sum(map(_trajectory_tokens, trajectories), TokenClasses()),
        duration_ms=_duration_of(result, steps),
        cost=sum(costs) if costs else None,
        error=f"{problem.get('exception_type')}: {problem.get('exception_message')}" if problem else None,
    )
    # Of several rewards none stands for the whole, unless it is named so.
    overall = rewards.get(REWARD) if REWARD in rewards or len(rewards) != 1 else next(iter(rewards.values()))
    return ImportedCase(case, Claim(score=overall, scores=rewards))


def _parts(result: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    """A part of each step, or of the trial where no step has it: a trial may repeat what its steps say."""
    found = [part for one in steps if (part := mapping(one.get(name)))]
    return found or [mapping(result.get(name))]


def _problem_of(result: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The exception that left a trial or one of its steps without a reward; empty where none did.

    An agent that ran out of time is verified all the same, and its reward counts. A mean of rewards says nothing of a
    step that crashed, so such a trial is not judged. The exception of a step may be recorded for the trial only.
    """
    unrewarded = [one for one in (*steps, result) if not _rewards(one)]
    found = (mapping(one.get("exception_info")) for one in (*unrewarded, *([result] if unrewarded else [])))
    return next(filter(None, found), {})


def _used_tokens(used: Mapping[str, Any]) -> TokenClasses:
    return TokenClasses.inclusive(
        given=used.get("n_input_tokens"), read=used.get("n_cache_tokens"), made=used.get("n_output_tokens")
    )


def _rewards(result: Mapping[str, Any]) -> Any:
    return mapping(result.get("verifier_result")).get("rewards")


def _alone(trajectory: Mapping[str, Any], name: str) -> ImportedCase:
    messages = _messages(trajectory)
    if not messages:
        raise ImportDamaged("the trajectory has no steps")
    agent = mapping(trajectory.get("agent"))
    case = build_case(
        first_known(trajectory.get("session_id"), trajectory.get("trajectory_id"), name),
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


def _duration_of(result: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> float | None:
    """How long the agent ran, all steps together."""
    took = map(_duration_ms, _parts(result, steps, "agent_execution"))
    known = [one for one in took if one is not None]
    return sum(known) if known else None


def _duration_ms(phase: Mapping[str, Any]) -> float | None:
    try:
        began, ended = (datetime.fromisoformat(str(phase.get(name))) for name in ("started_at", "finished_at"))
        return (ended - began).total_seconds() * 1_000
    except (ValueError, TypeError):
        return None
