"""Writes results as two other tools record them, of an invented model on the first questions: `python make_logs.py`.

`inspect.json` is a log of Inspect with a scorer that looks for the answer anywhere in the text; `promptfoo.json` is
what `promptfoo eval -o` writes. Both tools take 188 for 88, and a call of each failed.
"""

import json
import random
from pathlib import Path
from typing import Any

from make import ask

SAMPLES = 60
TESTS = 40
MODEL = "example/medium"
MOMENT = "2026-11-16T02:00:00+00:00"


def reply(number: int) -> tuple[str, str, str | None]:
    """A question, its answer, and what the model said; None where the call failed."""
    chance = random.Random(f"medium {number}")  # noqa: S311 - not a secret
    _, question, answer = ask(number)
    if number == 33:
        return question, str(answer), None
    drawn = chance.random()
    said = f"1{answer}" if drawn < 0.06 else answer + 1 if drawn < 0.16 else answer
    return question, str(answer), f"The answer is {said}."


def sample(number: int) -> dict[str, Any]:
    """One sample of Inspect."""
    question, answer, said = reply(number)
    asked = {"content": question, "role": "user", "source": "input"}
    common = {"id": f"q{number:03}", "epoch": 1, "input": question, "target": answer, "metadata": {}, "store": {}}
    if said is None:
        error = {"message": "RateLimitError('429')", "traceback": "", "traceback_ansi": ""}
        return {**common, "messages": [asked], "scores": {}, "error": error}
    message = {"content": said, "role": "assistant", "source": "generate", "model": MODEL}
    usage = {"input_tokens": 14, "output_tokens": 6, "total_tokens": 20}
    return {
        **common,
        "messages": [asked, message],
        "output": {"model": MODEL, "choices": [{"message": message, "stop_reason": "stop"}], "usage": usage},
        "scores": {"includes": {"value": "C" if answer in said else "I", "answer": said}},
        "model_usage": {MODEL: usage},
        "total_time": 0.8,
    }


def inspect_log() -> dict[str, Any]:
    """A log of Inspect."""
    samples = [sample(number) for number in range(SAMPLES)]
    scored = [one["scores"]["includes"]["value"] for one in samples if one["scores"]]
    accuracy = {"accuracy": {"name": "accuracy", "value": scored.count("C") / len(scored), "params": {}}}
    score = {"name": "includes", "scorer": "includes", "scored_samples": len(scored), "metrics": accuracy}
    return {
        "version": 2,
        "status": "success",
        "eval": {
            "run_id": "r1",
            "created": MOMENT,
            "task": "arithmetic",
            "task_id": "t1",
            "dataset": {"name": "questions", "samples": SAMPLES},
            "model": MODEL,
            "config": {"epochs": 1},
            "packages": {},
        },
        "results": {"total_samples": SAMPLES, "completed_samples": len(scored), "scores": [score]},
        "stats": {"started_at": MOMENT, "completed_at": MOMENT, "model_usage": {}},
        "samples": samples,
    }


def result(number: int) -> dict[str, Any]:
    """One result of promptfoo."""
    question, answer, said = reply(number)
    passed = said is not None and answer in said
    row: dict[str, Any] = {
        "id": f"r{number}",
        "testIdx": number,
        "promptIdx": 0,
        "provider": {"id": MODEL},
        "prompt": {"raw": question, "label": "{{question}}"},
        "vars": {"question": question, "expected": answer},
        "success": passed,
        "score": int(passed),
        "failureReason": 2 if said is None else int(not passed),
        "latencyMs": 800,
    }
    if said is None:
        return {**row, "error": "API error: 429 Too Many Requests"}
    graded = {"pass": passed, "score": int(passed), "reason": "Assertion passed" if passed else "not contained"}
    part = {**graded, "assertion": {"type": "contains", "value": "{{expected}}"}}
    return {**row, "response": {"output": said}, "gradingResult": {**graded, "componentResults": [part]}}


def promptfoo_results() -> dict[str, Any]:
    """What promptfoo writes."""
    rows = [result(number) for number in range(TESTS)]
    stats = {"successes": sum(one["success"] for one in rows), "errors": 1}
    results = {"version": 3, "timestamp": MOMENT, "prompts": [], "results": rows, "stats": stats}
    return {"evalId": "eval-medium", "results": results, "config": {}, "metadata": {}}


def main() -> None:
    """Write both files."""
    for name, content in (("inspect.json", inspect_log()), ("promptfoo.json", promptfoo_results())):
        Path(name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
