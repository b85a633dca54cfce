"""The same outputs judged by another library. Run by an interpreter that has it: `PYTHON peer_runs.py NAME FILE`.

Imports nothing of ours. Prints the CPU and wall seconds, how many passed, and the bytes that were stored, as JSON.
"""

# mypy: ignore-errors
# Another interpreter has what it imports.

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema


def checks(task: dict[str, Any]) -> list[Callable[[dict[str, Any]], bool]]:
    """Keywords, a threshold and a JSON Schema, as the plain loop has them."""
    validator = jsonschema.Draft202012Validator(task["schema"])
    keywords = task["keywords"]
    return [
        lambda made: all(keyword in made["text"].lower() for keyword in keywords),
        lambda made: made["confidence"] >= 0.8,
        validator.is_valid,
    ]


def pydantic_evals(task: dict[str, Any], texts: list[str], _folder: Path) -> int:
    """A dataset with one evaluator for each check; the report stays in memory."""
    from dataclasses import dataclass

    from pydantic_evals import Case, Dataset
    from pydantic_evals.evaluators import Evaluator, EvaluatorContext

    keywords, threshold, schema = checks(task)

    @dataclass
    class Keywords(Evaluator[str, dict[str, Any], None]):
        def evaluate(self, ctx: EvaluatorContext[str, dict[str, Any], None]) -> bool:
            return keywords(ctx.output)

    @dataclass
    class Threshold(Evaluator[str, dict[str, Any], None]):
        def evaluate(self, ctx: EvaluatorContext[str, dict[str, Any], None]) -> bool:
            return threshold(ctx.output)

    @dataclass
    class Schema(Evaluator[str, dict[str, Any], None]):
        def evaluate(self, ctx: EvaluatorContext[str, dict[str, Any], None]) -> bool:
            return schema(ctx.output)

    async def read(text: str) -> dict[str, Any]:
        made: dict[str, Any] = json.loads(text)
        return made

    dataset = Dataset(
        name="outputs",
        cases=[Case(name=str(number), inputs=text) for number, text in enumerate(texts)],
        evaluators=[Keywords(), Threshold(), Schema()],
    )
    report = dataset.evaluate_sync(read, progress=False, max_concurrency=8)
    return sum(all(one.value for one in case.assertions.values()) for case in report.cases)


def inspect(task: dict[str, Any], texts: list[str], folder: Path) -> int:
    """A task whose solver hands over the stored output, with one scorer; the log goes to a folder."""
    from inspect_ai import Task, eval  # noqa: A004 - its name
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import ModelOutput
    from inspect_ai.scorer import Score, Target, accuracy, scorer
    from inspect_ai.solver import Generate, TaskState, solver

    several = checks(task)

    @solver
    def stored() -> Any:
        async def solve(state: TaskState, generate: Generate) -> TaskState:  # noqa: ARG001 - its protocol
            state.output = ModelOutput.from_content("stored", state.input_text)
            state.completed = True
            return state

        return solve

    @scorer(metrics=[accuracy()])
    def judged() -> Any:
        async def score(state: TaskState, target: Target) -> Score:  # noqa: ARG001 - its protocol
            made = json.loads(state.output.completion)
            return Score(value=int(all(check(made) for check in several)))

        return score

    samples = [Sample(id=str(number), input=text, target="") for number, text in enumerate(texts)]
    (log,) = eval(
        Task(dataset=MemoryDataset(samples), solver=stored(), scorer=judged()),
        model="mockllm/model",
        log_dir=str(folder),
        display="none",
        log_level="error",
    )
    return sum(int(sample.scores["judged"].value) for sample in log.samples or [])


PEERS = {"pydantic-evals": pydantic_evals, "inspect": inspect}


def main() -> None:
    name, file = sys.argv[1:]
    task = json.loads(Path(file).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        # Once with a few, so that imports and first calls are not what is measured.
        PEERS[name](task, task["texts"][:10], Path(folder))
        for kept in Path(folder).rglob("*.*"):
            kept.unlink()
        wall, cpu = time.perf_counter(), time.process_time()
        passed = PEERS[name](task, task["texts"], Path(folder))
        spent = {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall}
        size = sum(kept.stat().st_size for kept in Path(folder).rglob("*") if kept.is_file())
    sys.stdout.write(json.dumps({**spent, "passed": passed, "stored_bytes": size}))


if __name__ == "__main__":
    main()
