"""What a pipeline asks of an evaluation."""

import msgspec
import pytest

from meruit.evaluations.ci import annotations, decide, write_markdown
from meruit.evaluations.compare import EvaluationComparison, compare_evaluations
from meruit.evaluations.evaluation import CaseSummary, EvaluationRecord, EvaluationStatus
from meruit.evaluations.summary import SummaryBuilder
from meruit.model.time import from_micros
from meruit.model.verdict import Verdict


def cases(passed: int, total: int, opened: int = 0) -> list[CaseSummary]:
    return [
        CaseSummary(
            case_id=f"c{number}",
            repeat=0,
            seq=number,
            outcome_id="",
            version=1,
            verdict=Verdict.INCONCLUSIVE if number >= total else Verdict.PASS if number < passed else Verdict.FAIL,
            success=number < passed,
            score=0.0,
            statuses="m" if number < passed else "n",
        )
        for number in range(total + opened)
    ]


def build(several: list[CaseSummary]) -> SummaryBuilder:
    builder = SummaryBuilder(["a|b"])
    for one in several:
        builder.add(one)
    return builder


def compare(before: int, after: int, total: int) -> EvaluationComparison:
    return compare_evaluations(("old", cases(before, total), ["a|b"]), ("new", cases(after, total), ["a|b"]))


@pytest.mark.parametrize(
    ("passed", "fail_under", "strict", "good"),
    [
        (9, 0.9, False, True),
        (9, 0.91, False, False),
        (9, 0.9, True, False),
        (9, 0.5, True, True),
        (0, 0.0, False, True),
    ],
)
def test_a_lowest_rate_goes_by_the_rate_or_its_lower_end(
    passed: int, fail_under: float, strict: bool, good: bool
) -> None:
    decision = decide(build(cases(passed, 10)).overall(), fail_under=fail_under, strict=strict)
    assert decision.passed == good


def test_a_strict_gate_without_an_interval_fails() -> None:
    uncertain = msgspec.structs.replace(build(cases(1, 1)).overall(), interval=None)
    assert not decide(uncertain, fail_under=0.1, strict=True).passed
    assert decide(build([]).overall(), fail_under=0.9).passed


@pytest.mark.parametrize(("after", "max_drop", "good"), [(60, 0, True), (58, 2, True), (57, 2, False), (61, 0, True)])
def test_a_baseline_allows_a_drop(after: int, max_drop: float, good: bool) -> None:
    decision = decide(build(cases(after, 100)).overall(), compared=compare(60, after, 100), max_drop=max_drop)
    assert decision.passed == good
    assert len(decision.notes) == 1


def test_a_drop_says_whether_chance_explains_it() -> None:
    small = decide(build(cases(8, 10)).overall(), compared=compare(9, 8, 10)).failures
    large = decide(build(cases(50, 200)).overall(), compared=compare(150, 50, 200)).failures
    assert ("may explain" in small[0], "does not explain" in large[0]) == (True, True)
    nothing = compare_evaluations(("old", [], []), ("new", cases(1, 1), []))
    assert not decide(build(cases(1, 1)).overall(), compared=nothing).passed


def test_markdown_and_annotations_escape_what_users_wrote() -> None:
    several = cases(30, 60, opened=2)
    evaluation = EvaluationRecord("ev_1", "a|<b>", EvaluationStatus.FINISHED, "0" * 64, 62, 1, from_micros(0))
    compared = compare(60, 30, 60)
    decision = decide(build(several).overall(), fail_under=0.9, compared=compared)
    text = write_markdown(evaluation, build(several).build(), decision, compared)
    assert "a\\|\\<b\\>: pass rate 50.0%" in text
    assert "2 of 62 cases" in text
    assert "Broken (30)" in text
    assert "10 more" in text
    empty = write_markdown(evaluation, build([]).build(), decide(build([]).overall()))
    assert "pass rate –" in empty
    lines = [*annotations("a,b:c\n.yaml", decision)]
    assert len(lines) == 2
    assert lines[0].startswith("::error file=a%2Cb%3Ac%0A.yaml,")
    assert "%25" in lines[0]
