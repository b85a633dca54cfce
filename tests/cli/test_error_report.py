"""Errors under `--json`: nothing on stdout, one line of JSON on stderr, the same exit codes as in text."""

import errno
import sys
from collections.abc import Callable
from typing import Any

import click
import pytest
from tests.cli.conftest import Run
from tests.cli.refusals import error_of

from meruit.cli.error_report import is_json_wanted, report_of
from meruit.cli.terminal import ExitCode
from meruit.errors import AgentError, BodyError, InvalidUsageReport, MeruitError, Problem, Unreachable

Write = Callable[[str, Any], str]

CRITERIA = "criteria:\n  - {metric: word_count, metric_type: count, comparison: gte, threshold: 2}\n"
BAD_CRITERIA = """\
criteria:
  - metric: word_count
    metric_type: count
    comparison: nearly
    threshold: 2
  - metric: word_count
    metric_type: count
    comparison: gte
    threshold: many
"""
VERIFY = ("verify", "c.yaml", "--output", "o.json")


@pytest.fixture(autouse=True)
def _work(write: Write) -> None:
    write("c.yaml", CRITERIA)
    write("o.json", {"text": "two words"})


def raise_in_verify(monkeypatch: pytest.MonkeyPatch, fault: BaseException) -> None:
    def fail(*_: object, **__: object) -> None:
        raise fault

    monkeypatch.setattr("meruit.cli.shared.engine.build_engine", fail)


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (("verfy",), "meruit"),
        (("--nonsense",), "meruit"),
        (("verify",), "meruit verify"),
        (("verify", "c.yaml", "--outputt", "x"), "meruit verify"),
        (("schema", "nonsense"), "meruit schema"),
        (("outcome", "nonsense"), "meruit outcome"),
        (("outcome", "list", "--limit", "many"), "meruit outcome list"),
        (("verify", "-", "--output", "-"), "meruit verify"),
    ],
)
def test_bad_usage_has_code_usage_and_names_the_help(run: Run, arguments: tuple[str, ...], command: str) -> None:
    error = error_of(run, *arguments, exit_code=ExitCode.BAD_INPUT)
    assert (error["code"], error["where"]) == ("usage", None)
    assert f"`{command} --help`" in error["hint"]
    assert "problems" not in error


def test_a_missing_file_is_named(run: Run) -> None:
    error = error_of(run, "verify", "no.yaml", "--output", "o.json", exit_code=ExitCode.BAD_INPUT)
    assert (error["code"], error["where"]) == ("unreadable_file", "no.yaml")
    assert error["hint"]


def test_bad_criteria_list_every_problem_with_its_line(run: Run, write: Write) -> None:
    write("bad.yaml", BAD_CRITERIA)
    error = error_of(run, "verify", "bad.yaml", "--output", "o.json", exit_code=ExitCode.BAD_INPUT)
    assert (error["code"], error["where"]) == ("bad_criteria", "bad.yaml:4")
    found = [(one["where"], one["path"]) for one in error["problems"]]
    assert found == [("bad.yaml:4", "criteria[0].comparison"), ("bad.yaml:9", "criteria[1].threshold")]
    assert all(one["message"] for one in error["problems"])


def test_bad_json_names_the_file(run: Run, write: Write) -> None:
    write("o.json", '{\n"text": oops}')
    error = error_of(run, *VERIFY, exit_code=ExitCode.BAD_INPUT)
    assert (error["code"], error["where"]) == ("bad_document", "o.json")


def test_an_unknown_record_is_not_found(run: Run) -> None:
    assert run(*VERIFY, "--record").returncode == ExitCode.PASSED
    error = error_of(run, "outcome", "show", "out_unknown", exit_code=ExitCode.BAD_INPUT)
    assert (error["code"], error["where"]) == ("not_found", None)
    assert "out_unknown" in error["message"]
    assert error["hint"]


def test_a_database_that_does_not_answer_is_unavailable(run: Run) -> None:
    url = "postgresql://nobody@127.0.0.1:1/nothing"
    error = error_of(run, "outcome", "list", "--database-url", url, exit_code=ExitCode.COULD_NOT_VERIFY)
    assert error["code"] == "unavailable"
    assert error["hint"]


def test_an_unreachable_system_is_exit_code_3(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    raise_in_verify(monkeypatch, Unreachable("grader offline"))
    error = error_of(run, *VERIFY, exit_code=ExitCode.COULD_NOT_VERIFY)
    assert (error["code"], error["message"]) == ("unreachable", "grader offline")


def test_a_full_disk_is_an_io_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    raise_in_verify(monkeypatch, OSError(errno.ENOSPC, "No space left on device", "/data/file"))
    error = error_of(run, *VERIFY, exit_code=ExitCode.COULD_NOT_VERIFY)
    assert (error["code"], error["where"]) == ("io_error", "/data/file")


def test_a_plugin_that_exits_does_not_choose_the_code(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    raise_in_verify(monkeypatch, SystemExit(0))
    assert error_of(run, *VERIFY, exit_code=ExitCode.COULD_NOT_VERIFY)["code"] == "plugin_exit"


def test_a_defect_carries_its_place_and_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    raise_in_verify(monkeypatch, ZeroDivisionError("oops"))
    error = error_of(run, *VERIFY, exit_code=ExitCode.COULD_NOT_VERIFY)
    assert error["code"] == "internal_error"
    assert error["where"].startswith(__file__)
    assert error["traceback"].endswith("ZeroDivisionError: oops\n")


def test_an_argument_that_is_not_text_is_a_usage_error() -> None:
    fault = UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed")
    assert report_of(fault, ["outcome", "show", "\udcff"]).code == "usage"
    assert report_of(fault, ["outcome", "show", "x"]).code == "internal_error"


def test_an_interruption_prints_no_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    raise_in_verify(monkeypatch, KeyboardInterrupt())
    ended = run(*VERIFY, "--json")
    assert (ended.returncode, ended.stdout, ended.stderr.strip()) == (130, "", "")


def test_a_reader_that_left_changes_no_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    from meruit.cli import main

    monkeypatch.setattr(sys, "stderr", None)
    with pytest.raises(SystemExit) as ended:
        main(["verfy", "--json"])
    assert ended.value.code == ExitCode.BAD_INPUT


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["x", "--json"], True),
        (["--json"], True),
        (["x", "--", "--json"], False),
        (["x", "--jsonl"], False),
        ([], False),
    ],
)
def test_json_is_wanted_where_the_option_is_given(arguments: list[str], wanted: bool) -> None:
    assert is_json_wanted(arguments) is wanted


def test_an_error_without_a_document_keeps_its_own_place() -> None:
    report = report_of(InvalidUsageReport("steps[2].tokens", "must be an integer"), [])
    assert (report.code, report.where, report.problems) == ("invalid", "steps[2].tokens", ())


def test_a_body_error_lists_its_problems() -> None:
    report = report_of(BodyError("bad", [Problem("a", "b", 3)]), [])
    assert report.problems == ({"where": None, "path": "a", "message": "b"},)


def test_every_error_has_a_code() -> None:
    assert report_of(MeruitError("x"), []).code == "error"
    assert report_of(AgentError("x"), []).code == "bad_agent"
    assert report_of(click.ClickException("x"), []).hint == "run `meruit --help`"


@pytest.mark.parametrize("option", ["--fail-under", "--max-drop", "--min-kappa", "--max-cost", "--rate"])
def test_a_limit_that_is_nan_is_refused(run: Run, option: str) -> None:
    error = error_of(run, "eval", "run", "criteria.yaml", "cases.jsonl", "--name", "n", option, "nan")
    assert (error["code"], option in error["message"]) == ("usage", True)
