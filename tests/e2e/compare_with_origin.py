"""Compares converted checks with the origin's own evaluator, each on states that are drawn around its query.

`python -m tests.e2e.compare_with_origin TASKS_FOLDER EVALUATOR.py [DRAWS]`: the folder has one JSON file for
each task of the origin, and the file has its class JMESPathEvaluator. Both stay where they are.
"""

import copy
import json
import logging
import random
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import jmespath

from meruit import VerificationEngine
from meruit.documents.authoring import parse_benchmark
from meruit.model.environment import EnvironmentState, Snapshot, SourceKind, as_work_part, make_item
from meruit.model.verdict import Verdict

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "portal-conversion"))
conversion = import_module("convert")
CONVERTED, convert = conversion.CONVERTED, conversion.convert
Json = dict[str, Any]
DRAWS = 12
SHOWN = 5
ENGINE = VerificationEngine()
OTHERS: list[Any] = [None, True, False, 0, 1, 2, 7.5, "", "x", "true", "1", [], {}]
Place = tuple[str, ...]
EACH = "[]"


def find_places(node: Any, base: Place = ()) -> Iterator[tuple[Place, list[Any]]]:
    """Every path that a parsed query reads, with the literals beside it; EACH stands for the elements of a list."""
    kind, children = node["type"], node["children"]
    if kind == "field":
        yield (*base, node["value"]), []
    elif kind in ("subexpression", "pipe", "index_expression", "projection", "value_projection", "filter_projection"):
        places = [*find_places(children[0], base)]
        yield from places
        inner = places[-1][0] if places else base
        if "projection" in kind:
            inner = (*inner, EACH)
        for child in children[1:]:
            yield from find_places(child, inner)
    else:
        literals = [child["value"] for child in children if child["type"] == "literal"]
        for child in children:
            yield from ((place, [*known, *literals]) for place, known in find_places(child, base))


def draw_state(places: list[tuple[Place, list[Any]]], expected: Any, chance: random.Random) -> Json:
    """A state that has some of what the query reads: expected values, literals of the query, and others."""
    state: Json = {}
    for place, literals in places:
        if chance.random() < 0.9:
            fill(state, place, [expected, *literals, *chance.sample(OTHERS, 2)], chance)
    return state


def fill(holder: Json, place: Place, values: list[Any], chance: random.Random) -> None:
    """Write one of the values at a place, as far as the holder allows."""
    for number, step in enumerate(place):
        rest = place[number + 1 :]
        if step == EACH:
            return
        if not rest:
            holder.setdefault(step, copy.deepcopy(chance.choice(values)))
            return
        if rest[0] == EACH:
            listed = holder.get(step)
            if not isinstance(listed, list):
                holder[step] = listed = [{} for _ in range(chance.randint(0, 3))]
            if not rest[1:]:
                listed[:] = [copy.deepcopy(chance.choice(values)) for _ in listed]
            for one in listed:
                if rest[1:] and isinstance(one, dict):
                    fill(one, rest[1:], values, chance)
            return
        inner = holder.get(step)
        if not isinstance(inner, dict):
            holder[step] = inner = {}
        holder = inner


def read_state(state: Json) -> EnvironmentState:
    """The state as the converted benchmark reads it: each top-level key is a document."""
    items = [make_item(key, json.dumps(one).encode()) for key, one in state.items()]
    return {"portal": Snapshot(SourceKind.ROWS, items)}


def main() -> None:
    """Compare, and print how often both agree."""
    folder, evaluator = Path(sys.argv[1]), Path(sys.argv[2])
    draws = int(sys.argv[3]) if len(sys.argv) > 3 else DRAWS
    spec = spec_from_file_location("origin_evaluator", evaluator)
    if spec is None or spec.loader is None:
        sys.exit(f"{evaluator} is not a Python file")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    logging.disable(logging.CRITICAL)
    origin, chance = module.JMESPathEvaluator(), random.Random(1)
    counts, different, tasks = Counter[str](), list[str](), 0
    for path in sorted(folder.rglob("*.json")):
        task = json.loads(path.read_text())
        tasks += 1
        for one in task["evals"]:
            if one["type"] != CONVERTED:
                counts["asks a model"] += 1
                continue
            written, _ = convert({"name": "one", "tasks": [{**task, "id": "t", "evals": [one]}]})
            written["tasks"][0]["criteria"].pop()
            (compiled,) = parse_benchmark(written).tasks
            ready = ENGINE.compile(compiled.success_criteria)
            places = [*find_places(jmespath.compile(one["query"]).parsed)]
            wanted = one.get("expected_value", one.get("contains_value"))
            counts["checks"] += 1
            for _ in range(draws):
                state = draw_state(places, wanted, chance)
                passed = bool(origin.evaluate(one, state)[0])
                found = ENGINE.verify_sync(
                    "r", as_work_part(read_state({})), as_work_part(read_state(state)), ready, {}
                )
                counts["states"] += 1
                counts["passed at the origin"] += passed
                if (found.verdict is Verdict.PASS) is not passed:
                    seen = jmespath.search(one["query"], state) if passed else None
                    kind = f"{type(seen).__name__} for {type(wanted).__name__}" if passed else "only here"
                    counts[f"different: {kind}"] += 1
                    different.append(f"{path.stem}: {one['query']} of {json.dumps(state)}")
    print(f"{tasks} tasks")
    for name, number in counts.items():
        print(f"{name}: {number:,}")
    for one in different[:SHOWN]:
        print(one)


if __name__ == "__main__":
    main()
