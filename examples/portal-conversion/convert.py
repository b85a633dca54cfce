"""Converts a portal benchmark with JMESPath checks: `python convert.py origin.json portal.json`."""

import json
import sys
from pathlib import Path
from typing import Any

Json = dict[str, Any]
CONVERTED = "jmespath"
SOURCE = {"kind": "rows", "at": "config:portal"}


def convert(origin: Json) -> tuple[Json, list[str]]:
    """The benchmark, and the checks that it leaves out because no state decides them."""
    tasks, left_out = [], list[str]()
    for task in origin["tasks"]:
        criteria = []
        for one in task["evals"]:
            if one["type"] == CONVERTED:
                criteria.append(_criterion(one))
            else:
                left_out.append(f"{task['id']}: {one['description']} ({one['type']})")
        # What the origin does not ask: that nothing else was changed.
        criteria.append({"label": "nothing else", "assert": "state-unchanged"})
        tasks.append(
            {"id": task["id"], "instruction": task["goal"], "sources": {"portal": SOURCE}, "criteria": criteria}
        )
    return {"benchmark": origin["name"], "tasks": tasks}, left_out


def _criterion(one: Json) -> Json:
    query, expected = one["query"], one.get("expected_value")
    if expected is None:
        # The origin asks whether the result contains a value: a part of a text, or an element of a list.
        wanted = json.dumps(one["contains_value"], ensure_ascii=False).replace("`", "\\`")
        query, expected = f'contains({query} || `""`, `{wanted}`)', True
    return {
        "label": one["description"],
        # The origin passes a task only if all of its checks pass.
        "required": True,
        "assert": "portal-state-match",
        "query": query,
        "expected": {"equals": expected},
    }


def main() -> None:
    """Read the origin, write the benchmark, and say what was left out."""
    origin, target = map(Path, sys.argv[1:3])
    benchmark, left_out = convert(json.loads(origin.read_text()))
    target.write_text(json.dumps(benchmark, indent=2) + "\n")
    converted = sum(len(task["criteria"]) - 1 for task in benchmark["tasks"])
    print(f"{len(benchmark['tasks'])} tasks, {converted} checks converted, {len(left_out)} left out")
    for one in left_out:
        print(f"left out: {one}")


if __name__ == "__main__":
    main()
