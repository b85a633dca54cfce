"""`meruit lint`: what is found is printed, and the exit code says whether the criteria hold."""

import json
import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from tests.cli.refusals import error_of, session_of
from tests.golden import check_golden

Run = Callable[..., subprocess.CompletedProcess[str]]
Write = Callable[[str, Any], str]


def criterion(**changes: Any) -> dict[str, Any]:
    return {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 2, **changes}


@pytest.fixture
def lint(run: Run, write: Write) -> Run:
    def call(*criteria: dict[str, Any], arguments: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        write("criteria.yaml", {"criteria": criteria})
        return run("lint", "criteria.yaml", *arguments)

    return call


def test_good_criteria_hold(lint: Run) -> None:
    ended = lint(criterion())
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "gold" not in ended.stdout


@pytest.mark.golden
def test_a_lint_report_reads_as_recorded(run: Run, write: Write) -> None:
    write("gold.json", {"text": "two words"})
    write("good.json", {"criteria": [criterion(), criterion()]})
    write("bad.json", {"criteria": [criterion(threshold=0)]})
    commands = [("lint", name, "--gold", "gold.json") for name in ("good.json", "bad.json")]
    check_golden("cli/lint", session_of(run, *commands))


def test_a_gold_output_and_its_mutants_are_told(lint: Run, write: Write) -> None:
    write("gold.json", {"text": "two words"})
    write("meta.json", {"duration_ms": 4})
    write("in.json", {"question": "how?"})
    fast = criterion(metric="latency_ms", metric_type="latency", comparison="lte", threshold=100)
    ended = lint(
        criterion(),
        fast,
        arguments=("--gold", "gold.json", "--metadata", "meta.json", "--input", "in.json"),
    )
    assert ended.returncode == 0
    assert "gold output: pass; " in ended.stdout
    assert "word_count  every value spoilt" in ended.stdout
    assert "latency_ms  metadata.duration_ms made huge" in ended.stdout


def test_without_a_failing_mutant_no_table_is_shown(lint: Run, write: Write) -> None:
    write("gold.json", {"text": "two words"})
    ended = lint(criterion(threshold=0), arguments=("--gold", "gold.json"))
    assert ended.returncode == 1
    assert not re.search(r"^criterion ", ended.stdout, re.MULTILINE)
    assert re.search(r"word_count: .*\[survived\]", ended.stdout)


def test_criteria_that_do_not_hold_end_in_one(lint: Run) -> None:
    ended = lint(criterion(threshold=0))
    assert ended.returncode == 1
    assert re.search(r"^error: word_count: .*\[never_fails\]$", ended.stdout, re.MULTILINE)
    assert "[null_agent_passes]" in ended.stdout


def test_a_warning_alone_does_not_fail(lint: Run) -> None:
    ended = lint(criterion(), criterion())
    assert ended.returncode == 0
    assert re.search(r"^warning: word_count-2: .*'word_count'", ended.stdout, re.MULTILINE)


def test_json_is_the_report(lint: Run) -> None:
    report = json.loads(lint(criterion(threshold=0), arguments=("--json",)).stdout)
    assert report["ok"] is False
    assert {finding["code"] for finding in report["findings"]} == {"never_fails", "null_agent_passes"}


def test_metadata_without_gold_is_refused_before_anything_is_read(run: Run) -> None:
    error = error_of(run, "lint", "nowhere.yaml", "--metadata", "nowhere.json")
    assert (error["code"], "--metadata" in error["message"]) == ("usage", True)


def test_standard_input_is_read_for_one_file_only(run: Run) -> None:
    assert error_of(run, "lint", "-", "--gold", "-")["code"] == "usage"


@pytest.mark.parametrize("option", ["--gold", "--input", "--config"])
def test_a_missing_file_is_named(lint: Run, option: str) -> None:
    ended = lint(criterion(), arguments=(option, "nowhere.json", "--json"))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert json.loads(ended.stderr)["error"]["where"] == "nowhere.json"


def test_a_metric_that_the_settings_switch_off_is_refused(lint: Run, write: Write) -> None:
    write("s.yaml", "extractors: {latency: {class: LatencyExtractor}}")
    ended = lint(criterion(), arguments=("--config", "s.yaml"))
    assert (ended.returncode, "word_count is switched off" in ended.stderr) == (2, True)


def test_params_that_cannot_work_are_refused_with_their_line(lint: Run) -> None:
    ended = lint(criterion(params={"language": "en"}))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert re.search(r"^error: .*: line 1, criteria\[0\]\.params\.language: ", ended.stderr, re.MULTILINE)


def test_names_cannot_write_on_the_terminal(lint: Run, write: Write) -> None:
    write("gold.json", {"text": "two words", "a\x1b[2J": 1})
    ended = lint(criterion(id="x\x1b[2J\nall is well", threshold=0), arguments=("--gold", "gold.json"))
    assert ended.returncode == 1
    assert "\x1b" not in ended.stdout
    assert not any(line.startswith("all is well") for line in ended.stdout.splitlines())


@pytest.mark.parametrize("depth", [5, 900])
def test_a_deep_gold_output_is_damaged_and_judged(lint: Run, write: Write, depth: int) -> None:
    write("gold.json", f'{{"text": "two words", "deep": {"[" * depth}{"]" * depth}}}')
    assert lint(criterion(), arguments=("--gold", "gold.json")).returncode == 0


CODE = "def metric(input, output, metadata):\n    return {'mine': len(output['text'].split())}\n"


def own(code: str = CODE, **custom: Any) -> dict[str, Any]:
    return {"criteria": [criterion(metric="mine")], "custom_metrics": [{"metrics": ["mine"], "code": code, **custom}]}


def test_custom_code_is_tested(run: Run, write: Write) -> None:
    write("gold.json", {"text": "two words"})
    ended = run("lint", write("c.json", own()), "--gold", "gold.json")
    assert (ended.returncode, ended.stderr) == (0, "")
    ended = run("lint", write("c.json", own(CODE.replace("text", "txt"))), "--gold", "gold.json")
    assert ended.returncode == 1
    assert re.search(r"^error: custom_metrics\[0\]: .*txt", ended.stdout, re.MULTILINE)


def test_a_tier_that_is_not_allowed_is_a_finding(run: Run, write: Write) -> None:
    write("c.json", own(tier="python-full"))
    ended = run("lint", "c.json")
    assert ended.returncode == 1
    refused = re.compile(r"^error: mine: .*python-full", re.MULTILINE)
    assert refused.search(ended.stdout)
    assert not refused.search(run("lint", "c.json", "--allow-python-full").stdout)
