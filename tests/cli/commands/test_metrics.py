"""`meruit metrics`: what criteria can name, and what the settings switch off."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meruit.app import build_engine
from meruit.config import Settings
from meruit.model.criterion import SuccessCriteria
from meruit.model.evidence import Cause, Fault
from meruit.verify.lint.criteria import lint

Run = Callable[..., subprocess.CompletedProcess[str]]
Write = Callable[[str, Any], str]

SETTINGS = """
extractors:
  text: {class: TextQualityExtractor, config: {rouge_types: [rougeL]}}
  labels: {class: ClassificationExtractor, enabled: false}
"""
OFF = {
    "accuracy": "extractors.labels.enabled",
    "rouge1": "extractors.text.config",
    "latency_ms": "LatencyExtractor",
}


OWN = """
from meruit import MetricExtractor

class Pages(MetricExtractor):
    version = "7"

    async def extract(self, task_input, task_output, metadata):
        return {"pages": 1.0}

    def supported_metrics(self):
        return ["pages"]
"""


@pytest.fixture
def settings(write: Write) -> str:
    return write("settings.yaml", SETTINGS)


def test_metrics_of_your_own_extractors_are_listed(run: Run, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(write("own_pages.py", OWN)).resolve().parent))
    write("settings.yaml", SETTINGS + '  mine: {class: "own_pages:Pages"}\n')
    pages = rows(run, "pages", "--config", "settings.yaml")
    assert (pages["family"], pages["kind"], pages["version"], pages["enabled"]) == ("mine", None, "7", True)
    assert "'mine'" in run("metrics", "pages", "--config", "settings.yaml").stdout


def rows(run: Run, *arguments: str) -> Any:
    ended = run("metrics", *arguments, "--json")
    assert ended.returncode == 0
    return json.loads(ended.stdout)


def test_every_metric_that_needs_no_endpoint_is_on_by_default(run: Run) -> None:
    listed = rows(run)
    assert {row["name"] for row in listed} >= {"accuracy", "rougeL", "latency_ms"}
    # This one waits for an endpoint.
    off = [row["name"] for row in listed if not row["enabled"] or row["disabled_by"] is not None]
    assert off == ["embedding_similarity"]


def test_the_list_says_which_setting_switches_a_metric_off(run: Run, settings: str) -> None:
    listed = {row["name"]: row for row in rows(run, "--config", settings)}
    assert listed["rougeL"]["enabled"]
    for name, place in OFF.items():
        assert not listed[name]["enabled"]
        assert place in listed[name]["disabled_by"]
    shown = run("metrics", "--config", settings).stdout.splitlines()
    assert next(line for line in shown if line.startswith("accuracy ")).split()[3] == "off"
    assert next(line for line in shown if line.startswith("rougeL ")).split()[3] == "on"


def test_one_metric_is_explained_with_its_state(run: Run, settings: str) -> None:
    assert "extractors.labels.enabled" in run("metrics", "accuracy", "--config", settings).stdout
    assert "params.tokenizer" in run("metrics", "rougeL", "--config", settings).stdout
    assert rows(run, "rougeL")["name"] == "rougeL"


def test_an_unknown_name_is_refused_with_the_nearest(run: Run) -> None:
    ended = run("metrics", "rouge_score", "--json")
    assert ended.returncode == 2
    assert all(name in ended.stderr for name in ("rouge1", "rouge2", "rougeL"))


@pytest.mark.parametrize(("metric", "place"), OFF.items())
def test_criteria_learn_where_their_metric_is_switched_off(
    run: Run, write: Write, settings: str, metric: str, place: str
) -> None:
    asked = {"metric": metric, "metric_type": "numeric", "comparison": "gte", "threshold": 1}
    write("criteria.json", {"criteria": [asked]})
    write("output.json", {})
    for command in (["verify", "criteria.json", "--output", "output.json"], ["lint", "criteria.json"]):
        ended = run(*command, "--config", settings)
        assert ended.returncode == 2
        assert place in ended.stderr
        assert "did you mean" not in ended.stderr


def test_a_switched_off_metric_is_nobodys_failure_but_the_systems() -> None:
    engine = build_engine(Settings.parse("extractors: {}\n", "settings.yaml"), governed=False)
    asked = {"metric": "accuracy", "metric_type": "accuracy", "comparison": "gte", "threshold": 90}
    criteria = SuccessCriteria.model_validate({"criteria": [asked]})
    [judged] = engine.verify_sync("c", {}, {}, criteria).criterion_results
    assert (judged.cause, judged.fault) == (Cause.METRIC_DISABLED, Fault.SYSTEM)
    assert [finding.code for finding in lint(engine, criteria).findings] == ["metric_disabled"]
