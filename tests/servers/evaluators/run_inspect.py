"""Inspect itself, with its mock model: it writes logs, then reads one of ours. Run by the Python that has inspect-ai.

Arguments: a folder for the logs, and our log. Printed as JSON: what Inspect's own reader finds in each of them.
"""

import json
import sys
from pathlib import Path

from inspect_ai import Task, eval  # noqa: A004 - Inspect's name
from inspect_ai.dataset import Sample
from inspect_ai.log import read_eval_log
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Score, Scorer, Target, accuracy, match, mean, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver

ANSWERS = {"fr": "Paris", "no": "Bergen", "pe": "Lima", "ke": "Nairobi"}
CAPITALS = {"fr": "Paris", "no": "Oslo", "pe": "Lima", "ke": "Nairobi"}


@scorer(metrics=[mean()])
def length() -> Scorer:
    """Count the letters of the answer."""

    async def score(state: TaskState, target: Target) -> Score:
        return Score(value=len(state.output.completion), explanation=f"beside {len(target.text)}")

    return score


@scorer(metrics=[accuracy()])
def half() -> Scorer:
    """Give partial credit where the first letter is right."""

    async def score(state: TaskState, target: Target) -> Score:
        text = state.output.completion
        return Score(value="C" if text == target.text else "P" if text[0] == target.text[0] else "N")

    return score


@solver
def break_for(name: str | None) -> Solver:
    """Answer, but raise for one sample."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        if state.sample_id == name:
            raise ValueError("the tool is down")
        return await generate(state)

    return solve


def answer(text: str) -> ModelOutput:
    """An output with its tokens: the mock model would else fetch a tokenizer."""
    made = ModelOutput.from_content("mockllm/model", text)
    made.usage = ModelUsage(input_tokens=100, output_tokens=5, total_tokens=105)
    return made


def run(folder: Path, form: str, broken: str | None, epochs: int) -> None:
    """Write one log."""
    samples = [Sample(id=name, input=f"Capital of {name}?", target=CAPITALS[name]) for name in ANSWERS]
    outputs = [answer(ANSWERS[name]) for _ in range(epochs) for name in ANSWERS if name != broken]
    task = Task(
        dataset=samples, solver=break_for(broken), scorer=[match(location="exact"), length(), half()], name=form
    )
    eval(
        task,
        model=get_model("mockllm/model", custom_outputs=outputs),
        log_dir=str(folder),
        log_format=form,
        epochs=epochs,
        max_samples=1,
        fail_on_error=False,
        display="none",
    )


def read(path: Path) -> dict[str, object]:
    """What Inspect's reader finds."""
    log = read_eval_log(str(path))
    return {
        "status": log.status,
        "samples": [
            {
                "id": str(one.id),
                "epoch": one.epoch,
                "scores": {name: score.value for name, score in (one.scores or {}).items()},
                "error": one.error is not None,
            }
            for one in log.samples or []
        ],
        "scores": {
            score.name: {name: metric.value for name, metric in score.metrics.items()}
            for score in (log.results.scores if log.results else [])
        },
    }


def main(folder: Path, ours: Path) -> None:
    """Write every kind of log, read them all."""
    run(folder / "eval", "eval", None, epochs=2)
    run(folder / "json", "json", "ke", epochs=1)
    logs = [path for form in ("eval", "json") for path in (folder / form).glob(f"*.{form}")]
    print(json.dumps({str(path): read(path) for path in [*logs, ours]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
