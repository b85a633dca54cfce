"""A session as an evaluation: one process or several workers, errors, several criteria, names."""

import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pytest_plugin.conftest import CASES, TESTS, Run, read_records

from meruit.evaluations.datafiles import ColumnMap, open_data
from meruit.evaluations.datasets import Datasets
from meruit.evaluations.evaluation import Case, CaseError
from meruit.model.access import DEFAULT_TENANT
from meruit.model.verdict import Verdict
from meruit.pytest_plugin.fixture import VerifiedCase
from meruit.pytest_plugin.journal import SessionHeader, SessionJournal, find_left_behind
from meruit.pytest_plugin.recording import group_verdicts
from meruit.store.location import Location
from meruit.store.store import Store

pytest_plugins = ["pytester"]
RECORD = ("--meruit-data", "records", "--meruit-name", "nightly")
EXPECTED = [("fr", "pass", None), ("no", "partial", None), ("pe", "inconclusive", "target_error")]


def cases_of(folder: Path, name: str = "nightly") -> list[tuple[str, str, str | None]]:
    return [
        (one.summary.case_id, one.summary.verdict.value, one.summary.error and one.summary.error.value)
        for one in read_records(folder)[name][1]
    ]


def test_a_session_is_one_evaluation(run: Run, pytester: pytest.Pytester) -> None:
    done = run(TESTS, *RECORD, "--meruit-tag", "model=m-2")
    done.stdout.fnmatch_lines(["*recorded 3 cases as nightly (ev_*): pass rate 50.0%"])
    (evaluation, cases) = read_records(pytester.path / "records")["nightly"]
    assert (evaluation.status, evaluation.tags) == ("finished", {"model": "m-2"})
    assert cases_of(pytester.path / "records") == EXPECTED
    assert cases[0].summary.tags == {"test": "test_it.py::test_capital", "continent": "europe"}
    assert cases[0].result is not None
    assert cases[0].result.contract_id == cases[0].summary.outcome_id
    # What raised is no failure of the agent.
    assert (cases[2].summary.error, cases[2].summary.verdict) == (CaseError.TARGET_ERROR, Verdict.INCONCLUSIVE)
    assert "KeyError" in cases[2].error_message


def test_several_workers_record_the_same_evaluation(run: Run, pytester: pytest.Pytester) -> None:
    done = run(TESTS, *RECORD, "-p", "xdist.plugin", "-n", "2", apart=True)
    done.assert_outcomes(passed=1, failed=2)
    assert cases_of(pytester.path / "records") == EXPECTED


def test_nothing_is_recorded_unless_asked_for(run: Run, pytester: pytest.Pytester) -> None:
    run(TESTS).assert_outcomes(passed=1, failed=2)
    assert not [*pytester.path.glob("**/*.db")]
    run("def test_it(): pass", *RECORD).assert_outcomes(passed=1)
    assert read_records(pytester.path / "records") == {}


def test_settings_of_the_ini_file_record_too(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmeruit_data = kept\nmeruit_name = ini-{time}\nmeruit_tags =\n  a=1\n  b=2\n")
    run(TESTS)
    ((name, (evaluation, _)),) = read_records(pytester.path / "kept").items()
    assert name.startswith("ini-2")
    assert "{" not in name
    assert evaluation.tags == {"a": "1", "b": "2"}


def test_a_name_that_is_taken_stops_before_any_test(run: Run, pytester: pytest.Pytester) -> None:
    run(TESTS, *RECORD)
    again = run(TESTS, *RECORD)
    assert again.ret == pytest.ExitCode.USAGE_ERROR
    again.stderr.fnmatch_lines(["*evaluation named 'nightly' already*"])


@pytest.mark.parametrize(
    "words",
    [("--meruit-tag", "model"), ("--meruit-name", "a\tb"), ("--meruit-data", "test_it.py")],
    ids=["tag", "name", "folder"],
)
def test_wrong_options_stop_before_any_test(run: Run, words: tuple[str, ...]) -> None:
    assert run(TESTS, *RECORD, *words).ret == pytest.ExitCode.USAGE_ERROR


def test_a_session_that_stops_early_is_partial(run: Run, pytester: pytest.Pytester) -> None:
    run(TESTS, *RECORD, "-x")
    (evaluation, cases) = read_records(pytester.path / "records")["nightly"]
    assert evaluation.tags == {"partial": "yes"}
    assert [one.summary.case_id for one in cases] == ["fr", "no"]


KILLED = (
    TESTS.replace("def test_capital", "def test_a_capital")
    + """
def test_death(meruit):
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)
"""
)


def test_a_session_that_is_killed_is_recorded_by_the_next(run: Run, pytester: pytest.Pytester) -> None:
    records = pytester.path / "records"
    run(KILLED, *RECORD, apart=True)
    (journal,) = (records / "pytest-sessions").glob("*.jsonl")
    kept = journal.read_bytes()
    # Half a line, as a death leaves it.
    journal.write_bytes(kept + kept[-20:-1])
    done = run(TESTS, *RECORD)
    done.stdout.fnmatch_lines(["*recorded for a session that was killed: 3 cases as nightly 2*: pass rate 50.0%"])
    (left,) = {*read_records(records)} - {"nightly"}
    (evaluation, _) = read_records(records)[left]
    assert (evaluation.status, evaluation.tags) == ("finished", {"partial": "yes"})
    assert cases_of(records, left) == cases_of(records) == EXPECTED
    # Had the second one died too before it removed the journal, a third one would find all of it recorded.
    journal.write_bytes(kept)
    run("def test_it(): pass", "--meruit-data", "records", "--meruit-name", "other")
    assert {*read_records(records)} == {"nightly", left}
    assert not [*journal.parent.iterdir()]


def test_the_journal_of_a_session_that_lives_is_left_alone(tmp_path: Path) -> None:
    journal = SessionJournal(tmp_path, "now", SessionHeader("nightly", {}))
    assert not [*tmp_path.iterdir()]
    journal.add([VerifiedCase(test="t", call="t 1", case=Case("a"))])
    assert [*find_left_behind(tmp_path)] == []
    journal.change_header(SessionHeader("other", {"a": "1"}))
    journal.close()
    (left,) = find_left_behind(tmp_path)
    assert (left.header.name, [one.case.id for one in left.verdicts]) == ("other", ["a"])
    journal.remove()
    assert [*find_left_behind(tmp_path)] == []


def test_verdicts_that_cannot_be_recorded_fail_the_session(run: Run) -> None:
    taken = """
def test_it(meruit):
    meruit.verify("criteria.yaml", "Paris", input={"reference": "Paris"})
    from meruit.evaluations import evaluate
    evaluate("criteria.yaml", [{"id": "a"}], name="nightly", data="records")
"""
    done = run(taken, *RECORD)
    assert done.ret == pytest.ExitCode.INTERNAL_ERROR
    done.stdout.fnmatch_lines(["ERROR the verdicts are not recorded*nightly*"])


def test_each_set_of_criteria_has_its_evaluation(run: Run, pytester: pytest.Pytester) -> None:
    tests = """
SHORT = {"criteria": [{"metric": "word_count", "metric_type": "count", "comparison": "lte", "threshold": %d}]}

def test_one(meruit):
    meruit.verify("criteria.yaml", "Paris", input={"reference": "Paris"})
    meruit.verify("criteria.yaml", "Rome", input={"reference": "Rome"}, case_id="rome")
    meruit.verify("criteria.yaml", "Oslo", input={"reference": "Oslo"})

def test_two(meruit):
    meruit.verify({**SHORT}, "Paris")
"""
    done = run(tests % 3, *RECORD)
    done.assert_outcomes(passed=2)
    records = pytester.path / "records"
    assert [name for name, *_ in cases_of(records, "nightly (inline)")] == ["test_it.py::test_two"]
    assert [name for name, *_ in cases_of(records, "nightly (criteria)")] == [
        "test_it.py::test_one",
        "rome",
        "test_it.py::test_one (3)",
    ]
    # Another session of that name would mix with these.
    assert run(tests % 4, *RECORD).ret == pytest.ExitCode.USAGE_ERROR


def test_cases_of_a_recorded_dataset_are_tested(run: Run, pytester: pytest.Pytester) -> None:
    (pytester.path / "cases.jsonl").write_text(CASES)
    store = Store.open(Location(pytester.path / "records"))
    Datasets(store, DEFAULT_TENANT).add("capitals", lambda: open_data("cases.jsonl").cases(ColumnMap()))
    store.close()
    run(TESTS.replace("cases.jsonl", "dataset:capitals@1"), *RECORD)
    assert cases_of(pytester.path / "records") == EXPECTED


def test_wrong_criteria_are_no_error_of_the_target(run: Run, pytester: pytest.Pytester) -> None:
    done = run(TESTS, *RECORD, criteria="criteria: [{metric: no_such}]", cases=CASES.splitlines()[1])
    done.assert_outcomes(failed=1)
    assert read_records(pytester.path / "records") == {}


def test_cases_without_known_criteria_are_counted(run: Run, pytester: pytest.Pytester) -> None:
    done = run(TESTS, *RECORD, "-k", "pe")
    done.stdout.fnmatch_lines(["1 cases ended before any verdict*not recorded"])


def verified(test: str, case_id: str, call: int = 1, criteria: str | None = "{}", repeat: int = 0) -> VerifiedCase:
    return VerifiedCase(test, f"{test}[{case_id}] {call}", Case(case_id, repeat=repeat), "criteria", criteria)


def test_the_same_case_of_two_tests_is_two_cases() -> None:
    ((group,), _) = group_verdicts([verified("t.py::b", "fr"), verified("t.py::a", "fr"), verified("t.py::a", "no")])
    assert [one.case.id for one in group.cases] == ["fr [t.py::a]", "no", "fr [t.py::b]"]


def test_a_test_that_is_run_again_is_another_try() -> None:
    again = [verified("t", "fr"), verified("t", "fr"), verified("t", "fr", repeat=1)]
    ((group,), _) = group_verdicts(again)
    assert [(one.case.id, one.case.repeat) for one in group.cases] == [("fr", 0), ("fr", 1), ("fr", 2)]


@given(st.randoms(use_true_random=False))
def test_the_order_of_workers_changes_nothing(chance: random.Random) -> None:
    found = [
        verified(test, case_id, criteria=criteria)
        for test, criteria in (("a", "{}"), ("b", "{}"), ("c", "[]"), ("a", None), ("d", None))
        for case_id in ("fr", "no", "pe")
    ]
    expected = group_verdicts(found)
    chance.shuffle(found)
    groups, lost = group_verdicts(found)
    assert lost == expected[1] == 3
    assert [(one.label, one.criteria, {msgspec.json.encode(case) for case in one.cases}) for one in groups] == [
        (one.label, one.criteria, {msgspec.json.encode(case) for case in one.cases}) for one in expected[0]
    ]
