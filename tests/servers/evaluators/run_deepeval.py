"""DeepEval itself: it writes a test run where DEEPEVAL_RESULTS_FOLDER says. Run by the Python that has it."""

from deepeval import evaluate
from deepeval.evaluate import AsyncConfig, CacheConfig, DisplayConfig, ErrorConfig
from deepeval.metrics import BaseMetric
from deepeval.test_case import LLMTestCase


class Exact(BaseMetric):
    """Equal or not; it breaks where the answer is Nairobi."""

    def __init__(self) -> None:
        self.threshold = 0.5
        self.async_mode = False

    def measure(self, test_case: LLMTestCase, *_: object, **__: object) -> float:
        """Compare."""
        if test_case.actual_output == "Nairobi":
            raise RuntimeError("the grader is down")
        self.score = float(test_case.actual_output == test_case.expected_output)
        self.success = self.score >= self.threshold
        return self.score

    async def a_measure(self, test_case: LLMTestCase, *_: object, **__: object) -> float:
        """Compare."""
        return self.measure(test_case)

    def is_successful(self) -> bool:
        """Whether the answer was right."""
        return bool(self.success)

    @property
    def __name__(self) -> str:
        return "Exact"


def main() -> None:
    """Run three cases."""
    answers = [("fr", "Paris", "Paris"), ("no", "Bergen", "Oslo"), ("ke", "Nairobi", "Nairobi")]
    cases = [
        LLMTestCase(name=name, input=f"Capital of {name}?", actual_output=given, expected_output=right)
        for name, given, right in answers
    ]
    evaluate(
        cases,
        [Exact()],
        async_config=AsyncConfig(run_async=False),
        display_config=DisplayConfig(show_indicator=False, print_results=False),
        cache_config=CacheConfig(write_cache=False),
        error_config=ErrorConfig(ignore_errors=True),
    )


if __name__ == "__main__":
    main()
