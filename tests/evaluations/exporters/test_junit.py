"""JUnit XML that any reader opens, with what could not be judged as an error."""

from collections.abc import Iterator
from xml.etree.ElementTree import Element, fromstring

from hypothesis import given
from hypothesis import strategies as st
from tests.evaluations.exporters.conftest import Export

from meruit.evaluations.export import EvaluationExport
from meruit.evaluations.exporters.junit import _attr, write_junit


def parse(exported: EvaluationExport) -> Element:
    return fromstring("".join(write_junit(exported)))


def kinds(suite: Element) -> Iterator[tuple[str, str | None]]:
    for test in suite.iter("testcase"):
        yield test.attrib["name"], next((one.tag for one in test if one.tag != "properties"), None)


def test_each_case_is_a_test_with_its_outcome(exported: EvaluationExport) -> None:
    root = parse(exported)
    (suite,) = root
    # The schema of Jenkins knows no skipped tests of all suites.
    assert set(root.attrib) == {"name", "tests", "failures", "errors", "time"}
    assert dict(kinds(suite)) == {
        "right": None,
        "wrong": "failure",
        "hostile": "failure",
        "broken": "error",
        "unmeasured": "error",
        "gone": "failure",
        "again": None,
        "again #1": "failure",
    }
    counts = {name: suite.attrib[name] for name in ("tests", "failures", "errors", "skipped", "time")}
    assert counts == {"tests": "8", "failures": "4", "errors": "2", "skipped": "0", "time": "0.040"}


def test_a_failure_says_what_was_not_met_and_shows_the_work(exported: EvaluationExport) -> None:
    wrong = next(test for test in parse(exported).iter("testcase") if test.attrib["name"] == "wrong")
    failure = wrong.find("failure")
    assert failure is not None
    assert failure.attrib["message"].startswith("exact_match")
    assert "output.text: no" in (failure.text or "")
    facts = {one.attrib["name"]: one.attrib["value"] for one in wrong.iter("property")}
    assert facts["claimed"] == "pass"
    assert facts["criterion.exact_match"] == "not_met"
    broken = next(one for one in parse(exported).iter("error"))
    assert (broken.attrib["type"], broken.attrib["message"]) == ("target_error", "boom <&>")


def test_an_evaluation_without_cases_is_an_empty_suite(export_of: Export) -> None:
    (suite,) = parse(export_of([]))
    assert (suite.attrib["tests"], suite.attrib["time"]) == ("0", "0.000")


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_is_an_attribute(text: str) -> None:
    found = fromstring(f"<a b={_attr(text)}/>").attrib["b"]
    assert len(found) == len(text)
    assert all(ours == theirs or ours == "\ufffd" for ours, theirs in zip(found, text, strict=True))
