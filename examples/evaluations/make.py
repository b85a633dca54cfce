"""Writes the outputs of two invented models on 200 questions: `python make.py`."""

import json
import random
from pathlib import Path

TOPICS = {"add": "+", "subtract": "−", "multiply": "×", "divide": "÷"}
MODELS = {"small": (0.12, 420), "large": (0.05, 1150)}
"""How often each errs in an easy topic, and its usual milliseconds."""


def ask(number: int) -> tuple[str, str, int]:
    """A topic, a question and its answer."""
    chance = random.Random(number)  # noqa: S311 - not a secret
    topic = list(TOPICS)[number % len(TOPICS)]
    a, b = chance.randint(12, 99), chance.randint(3, 29)
    if topic == "divide":
        a *= b
    answer = {"add": a + b, "subtract": a - b, "multiply": a * b, "divide": a // b}[topic]
    return topic, f"What is {a} {TOPICS[topic]} {b}?", answer


def main() -> None:
    """Write one file for each model."""
    for model, (errs, usual_ms) in MODELS.items():
        chance = random.Random(model)  # noqa: S311 - not a secret
        lines = []
        for number in range(200):
            topic, question, answer = ask(number)
            wrong = chance.random() < errs * (3 if topic in ("multiply", "divide") else 1)
            said = answer + chance.choice([-10, -1, 1, 10]) if wrong else answer
            row = {
                "id": f"q{number:03}",
                "question": question,
                "answer": str(answer),
                "completion": f"The answer is {said}.",
                "ms": round(usual_ms * chance.uniform(0.6, 2.2)),
                "topic": topic,
            }
            lines.append(json.dumps(row, ensure_ascii=False))
        Path(f"{model}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
