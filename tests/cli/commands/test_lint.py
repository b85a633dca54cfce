"""`meruit lint`: what is found is printed, and the exit code says whether the criteria hold."""

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

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
    assert ended.stdout.startswith("agents that do nothing:\nagent ")
    assert ended.stdout.endswith("\nthe criteria hold\n")
    assert "gold" not in ended.stdout


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


def test_a_gold_output_that_no_mutant_of_which_fails_shows_no_table(lint: Run, write: Write) -> None:
    write("gold.json", {"text": "two words"})
    ended = lint(criterion(threshold=0), arguments=("--gold", "gold.json"))
    assert ended.returncode == 1
    assert "first failed by" not in ended.stdout
    assert "word_count: no mutant of the gold output fails this" in ended.stdout
    assert "[survived]" in ended.stdout


def test_criteria_that_do_not_hold_end_in_one(lint: Run) -> None:
    ended = lint(criterion(threshold=0))
    assert ended.returncode == 1
    assert "error: word_count: every possible value of word_count meets this [never_fails]" in ended.stdout
    assert "error: an agent that returns an empty text passes" in ended.stdout
    assert ended.stdout.endswith("the criteria do not hold\n")


def test_a_warning_alone_does_not_fail(lint: Run) -> None:
    ended = lint(criterion(), criterion())
    assert ended.returncode == 0
    assert "warning: word_count-2: says the same as 'word_count'" in ended.stdout


def test_json_is_the_report(lint: Run) -> None:
    report = json.loads(lint(criterion(threshold=0), arguments=("--json",)).stdout)
    assert report["ok"] is False
    assert {finding["code"] for finding in report["findings"]} == {"never_fails", "null_agent_passes"}


def test_metadata_without_gold_is_refused_before_anything_is_read(run: Run) -> None:
    ended = run("lint", "nowhere.yaml", "--metadata", "nowhere.json")
    assert (ended.returncode, "--metadata belongs to --gold" in ended.stderr) == (2, True)


def test_standard_input_is_not_promised_twice(run: Run) -> None:
    assert "for one file only" in run("lint", "-", "--gold", "-").stderr


@pytest.mark.parametrize("option", ["--gold", "--input", "--config"])
def test_a_missing_file_is_named(lint: Run, option: str) -> None:
    ended = lint(criterion(), arguments=(option, "nowhere.json"))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "error: nowhere.json: cannot be read: No such file or directory\n"


def test_a_metric_that_the_settings_switch_off_is_unknown(lint: Run, write: Write) -> None:
    write("s.yaml", "extractors: {latency: {class: LatencyExtractor}}")
    ended = lint(criterion(), arguments=("--config", "s.yaml"))
    assert (ended.returncode, "Unknown metric: word_count" in ended.stderr) == (2, True)


def test_params_that_cannot_work_are_a_finding(lint: Run) -> None:
    ended = lint(criterion(params={"language": "en"}))
    assert (ended.returncode, ended.stderr) == (1, "")
    assert "error: word_count: word_count takes no params [author_error]" in ended.stdout


def test_names_cannot_write_on_the_terminal(lint: Run, write: Write) -> None:
    write("gold.json", {"text": "two words", "a\x1b[2J": 1})
    ended = lint(criterion(id="x\x1b[2J\nthe criteria hold", threshold=0), arguments=("--gold", "gold.json"))
    assert ended.returncode == 1
    assert "\x1b" not in ended.stdout
    assert "the criteria hold" not in ended.stdout.splitlines()


@pytest.mark.parametrize("depth", [5, 900])
def test_a_deep_gold_output_is_damaged_and_judged(lint: Run, write: Write, depth: int) -> None:
    write("gold.json", f'{{"text": "two words", "deep": {"[" * depth}{"]" * depth}}}')
    assert lint(criterion(), arguments=("--gold", "gold.json")).returncode == 0


CODE = "def metric(input, output, metadata):\n    return {'mine': len(output['text'].split())}\n"


def own(code: str = CODE, **custom: Any) -> dict[str, Any]:
    return {"criteria": [criterion(metric="mine")], "custom_metrics": [{"metrics": ["mine"], "code": code, **custom}]}


def test_code_of_ones_own_is_tried(run: Run, write: Write) -> None:
    write("gold.json", {"text": "two words"})
    ended = run("lint", write("c.json", own()), "--gold", "gold.json")
    assert (ended.returncode, ended.stderr) == (0, "")
    ended = run("lint", write("c.json", own(CODE.replace("text", "txt"))), "--gold", "gold.json")
    assert ended.returncode == 1
    assert "error: custom_metrics[0]: custom code (tier python): " in ended.stdout


def test_code_that_asks_for_more_than_is_allowed_is_a_finding_until_it_is_allowed(run: Run, write: Write) -> None:
    write("c.json", own(tier="python-full"))
    ended = run("lint", "c.json")
    assert ended.returncode == 1
    assert "error: mine: the tier python-full is not allowed here" in ended.stdout
    assert "not allowed here" not in run("lint", "c.json", "--allow-python-full").stdout
