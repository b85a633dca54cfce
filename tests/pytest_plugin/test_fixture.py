"""`meruit.verify` in a test: what passes, what fails, and how a failure reads."""

import shutil
import tomllib
from pathlib import Path

import pytest
from tests.pytest_plugin.conftest import PLUGIN, TESTS, Run

import meruit.testing
from meruit.errors import CouldNotVerify, CriteriaNotMet
from meruit.pytest_plugin.fixture import shorten_id

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[2]
ONE = """
def test_one(meruit):
    {body}
"""


def body(text: str) -> str:
    return ONE.format(body=text)


def test_a_test_passes_when_its_criteria_are_met(run: Run) -> None:
    done = run(body('meruit.verify("criteria.yaml", "Paris", input={"reference": "Paris"})'))
    done.assert_outcomes(passed=1)


def test_a_failure_reads_like_a_table(run: Run) -> None:
    done = run(body('meruit.verify("criteria.yaml", output="It is Lyon, or so", input={"reference": "Paris"})'))
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(
        [
            "E*CriteriaNotMet: verdict fail, score 0: 2 of 2 criteria not met",
            "E*criterion  status   measured  asked for",
            "E*right      not met  false     = true",
            "E*short      not met  5         ≤ 3",
            "E*output: It is Lyon, or so",
            "E*reference: Paris",
        ]
    )
    # Of the plugin's own frames nothing is shown.
    assert "fixture.py" not in done.stdout.str()


def test_the_table_is_in_junit_xml_too(run: Run, pytester: pytest.Pytester) -> None:
    run(body('meruit.verify("criteria.yaml", "Lyon", input={"reference": "Paris"})'), "--junitxml=report.xml")
    written = (pytester.path / "report.xml").read_text(encoding="utf-8")
    assert 'failures="1"' in written
    assert "right      not met  false     = true" in written


def test_what_could_not_be_measured_is_no_failure_of_work(run: Run) -> None:
    done = run(
        """
import pytest
from meruit import CouldNotVerify

def test_one(meruit):
    with pytest.raises(CouldNotVerify) as raised:
        meruit.verify("criteria.yaml", "Paris")
    assert "indeterminate" in str(raised.value)
    assert "fault: author" in str(raised.value)
"""
    )
    done.assert_outcomes(passed=1)
    assert issubclass(CriteriaNotMet, AssertionError)
    assert not issubclass(CouldNotVerify, AssertionError)


def test_judge_returns_any_verdict(run: Run) -> None:
    done = run(body('assert not meruit.judge("criteria.yaml", "Oslo", input={"reference": "Paris"}).success'))
    done.assert_outcomes(passed=1)


def test_the_recorded_output_of_a_case_is_judged(run: Run, pytester: pytest.Pytester) -> None:
    lines = ('{"id": "a", "input": {"reference": "Oslo"}, "output": "Oslo"}', '{"id": "b", "input": {"prompt": "x"}}')
    (pytester.path / "recorded.jsonl").write_text("\n".join(lines), encoding="utf-8")
    done = run(
        """
import pytest

@pytest.mark.meruit_dataset("recorded.jsonl")
def test_one(case, meruit):
    meruit.verify("criteria.yaml")
"""
    )
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["E*InvalidCase: b has no recorded output*"])


def test_criteria_and_outputs_take_several_forms(run: Run) -> None:
    done = run(
        """
from pydantic import BaseModel
from meruit import SuccessCriteria

WRITTEN = {"criteria": [{"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 1}]}

class Reply(BaseModel):
    text: str

def test_one(meruit):
    meruit.verify(WRITTEN, Reply(text="hello"), input="Say hello.")
    meruit.verify(SuccessCriteria.model_validate(WRITTEN), {"text": "hello"})
    measured = {"criteria": [{"metric": "latency_ms", "metric_type": "latency", "comparison": "lte", "threshold": 9}]}
    assert meruit.verify(measured, ["a", "list"], metadata={"duration_ms": 5}).success
"""
    )
    done.assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ('meruit.verify("criteria.yaml", float("nan"))', "*InvalidCase: the output is not plain JSON*"),
        ('meruit.verify("criteria.yaml", "Paris", metadata={"cost": float("nan")})', "*InvalidCase: the metadata*"),
        ('meruit.verify("missing.yaml", "Paris")', "*UnreadableFile*missing.yaml*"),
        ('meruit.verify({"criteria": [{"metric": "no_such"}]}, "Paris")', "*CriteriaError*"),
        ("meruit.given", "*InvalidCase*meruit_dataset*"),
    ],
)
def test_what_cannot_be_judged_says_why(run: Run, call: str, expected: str) -> None:
    done = run(body(call))
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["E" + expected])
    assert "src/meruit" not in done.stdout.str()


def test_a_test_runs_for_each_case_of_its_file(run: Run) -> None:
    done = run(TESTS, "-v")
    done.assert_outcomes(passed=1, failed=2)
    done.stdout.fnmatch_lines(["*[[]fr[]] PASSED*", "*[[]no[]] FAILED*", "*[[]pe[]] FAILED*"])


def test_an_agent_is_not_shown_the_reference(run: Run) -> None:
    done = run(TESTS + "    assert 'reference' in case.input and 'reference' not in meruit.given", "-k", "fr")
    done.assert_outcomes(passed=1, deselected=2)


def test_columns_and_a_limit_are_settings_of_the_marker(run: Run) -> None:
    tests = """
import pytest

@pytest.mark.meruit_dataset("cases.jsonl", map="id=key,input.reference=right", limit=2)
def test_capital(case, meruit):
    assert case.input["reference"] == "Paris"
"""
    cases = '{"key": "a", "right": "Paris"}\n{"key": "b", "right": "Paris"}\n{"key": "c", "right": "Lima"}\n'
    run(tests, cases=cases).assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("marker", "cases", "expected"),
    [
        ('"absent.jsonl"', "", "*absent.jsonl*cannot be read*"),
        ('"cases.jsonl"', "", "*cases.jsonl holds no cases*"),
        ('"cases.jsonl"', '{"id": "a"}\n{"id": "a"}\n', "*two cases have the id 'a'*"),
        ('"cases.jsonl"', "{\n", "*not JSON*"),
        ('"cases.jsonl", limits=3', "", "*did you mean 'limit'*"),
        ('"cases.jsonl", limit=0', "", "*whole number from 1 up, not 0*"),
        ("", "", "*takes one file*"),
        ('"dataset:capitals", format="csv"', "", "*map and format are for files*"),
        ('"dataset:capitals"', "", "*holds no records yet*"),
    ],
)
def test_a_marker_that_is_wrong_fails_the_collection(run: Run, marker: str, cases: str, expected: str) -> None:
    tests = f"import pytest\n\n@pytest.mark.meruit_dataset({marker})\ndef test_it(case, meruit):\n    pass\n"
    done = run(tests, cases=cases)
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines([expected])


def test_a_marked_test_takes_its_case(run: Run) -> None:
    done = run(TESTS.replace("(case, meruit)", "(meruit)"))
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*takes no argument `case`*"])


def test_a_session_without_it_loads_nothing_of_it(run: Run) -> None:
    done = run(
        """
import sys

def test_nothing_is_loaded():
    assert "meruit.pytest_plugin" in sys.modules
    assert not {"msgspec", "pydantic", "sqlalchemy", "meruit.app", "meruit.errors"} & {*sys.modules}
""",
        apart=True,
    )
    done.assert_outcomes(passed=1)


def test_the_package_says_where_its_plugin_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"meruit": "meruit.pytest_plugin"}


def test_the_example_is_true(run: Run, pytester: pytest.Pytester) -> None:
    shutil.copytree(ROOT / "examples" / "pytest", pytester.path, dirs_exist_ok=True)
    done = pytester.runpytest_inprocess(*PLUGIN, "-v")
    done.assert_outcomes(passed=4, failed=1)
    done.stdout.fnmatch_lines(["*test_it_knows_capitals[[]ke[]] FAILED*", "E*right answer  not met  false     = true"])


@pytest.mark.parametrize("name", ["criteria.yaml", "cases.jsonl", "test_agent.py"])
def test_the_page_shows_the_example(name: str) -> None:
    page = (ROOT / "docs" / "pytest.md").read_text(encoding="utf-8")
    assert (ROOT / "examples" / "pytest" / name).read_text(encoding="utf-8") in page


def test_a_long_id_is_cut_and_stays_unlike_others() -> None:
    first, second = shorten_id("a" * 300 + "1"), shorten_id("a" * 300 + "2")
    assert len(first) == len(second) == 200
    assert first != second
    assert shorten_id("line\nbreak") == "line\\nbreak"


def test_the_type_of_the_fixture_is_public() -> None:
    assert "MeruitFixture" in dir(meruit.testing)
    assert meruit.testing.MeruitFixture.verify.__doc__
