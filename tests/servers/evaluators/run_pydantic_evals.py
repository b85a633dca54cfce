"""pydantic-evals itself: it writes a report into the file that is named. Run by the Python that has it."""

import sys
from pathlib import Path

from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import EqualsExpected, Evaluator, EvaluatorContext
from pydantic_evals.reporting import EvaluationReportAdapter

ANSWERS = {"France": "Paris", "Norway": "Bergen", "Peru": "Lima"}


class Length(Evaluator):
    """A number and a label; it breaks at Peru."""

    def evaluate(self, ctx: EvaluatorContext) -> dict[str, object]:
        """Count letters."""
        if ctx.inputs == "Peru":
            raise RuntimeError("the grader is down")
        return {"length": len(ctx.output), "tone": "plain"}


async def answer(country: str) -> str:
    """Raise where nothing is known."""
    return ANSWERS[country]


def main(path: Path) -> None:
    """Write the report."""
    capitals = {"France": "Paris", "Norway": "Oslo", "Peru": "Lima", "Kenya": "Nairobi"}
    cases = [Case(name=name.lower(), inputs=name, expected_output=capital) for name, capital in capitals.items()]
    dataset = Dataset(name="capitals", cases=cases, evaluators=[EqualsExpected(), Length()])
    report = dataset.evaluate_sync(answer, name="nightly", progress=False)
    path.write_bytes(EvaluationReportAdapter.dump_json(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
