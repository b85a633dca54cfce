"""Every check shows what it does; what it shows is true."""

from fractions import Fraction

import pytest

from meruit.model.criterion import Assertion
from meruit.model.evidence import Checked
from meruit.model.work import Work
from meruit.registry import Check, CheckExample, checks, faults_of

EXAMPLES = [(check, example) for check in checks for example in check.examples]


@pytest.mark.parametrize("check", list(checks), ids=lambda check: check.name)
def test_every_check_has_examples_of_success_and_of_failure(check: Check) -> None:
    scores = [example.expect for example in check.examples]
    assert any(score is not None and Fraction(score) == 1 for score in scores)
    assert any(score is not None and Fraction(score) < 1 for score in scores)


@pytest.mark.parametrize("check", list(checks), ids=lambda check: check.name)
def test_every_check_says_what_it_does_in_one_sentence(check: Check) -> None:
    assert check.summary.endswith(".")
    assert check.settings is not None
    assert check.kinds
    assert check.evidence in ("fieldResults", "field_results", "assertionResults", "phraseResults")


@pytest.mark.parametrize(
    ("check", "example"),
    EXAMPLES,
    ids=[f"{check.name}-{check.examples.index(example)}" for check, example in EXAMPLES],
)
def test_every_example_comes_out(check: Check, example: CheckExample) -> None:
    assertion = Assertion.model_validate({"assert": check.name, **example.assertion})
    assert faults_of(assertion) == []
    # A work of its own: what checks find is remembered with it.
    finding = check.prepare(assertion)(Work(output=example.work.output, input=example.work.input))
    if example.expect is None:
        assert not isinstance(finding, Checked)
    else:
        assert isinstance(finding, Checked), finding
        assert Fraction(finding.score) == Fraction(example.expect), finding.details


@pytest.mark.parametrize("check", list(checks), ids=lambda check: check.name)
def test_every_setting_has_a_description(check: Check) -> None:
    assert check.settings is not None
    undescribed = [name for name, field in check.settings.model_fields.items() if not field.description]
    assert undescribed == []
