"""Settings: which file is read, and every key honoured or refused by its name."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from meruit.app import BUILT_IN
from meruit.config import DEFAULT_PATH, PATH_VARIABLE, GovernanceSettings, SandboxSettings, Settings
from meruit.errors import ConfigError, Problem
from meruit.model import limits

SPECIFIED = Path(__file__).parent.parent / DEFAULT_PATH

WORDS = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 2}


def settings(text: str) -> Settings:
    return Settings.parse(text, "settings.yaml")


def refused(text: str) -> tuple[Problem, ...]:
    """Everything that is wrong with a file."""
    with pytest.raises(ConfigError) as caught:
        settings(text)
    return caught.value.problems


# The file.


def test_the_default_file_sets_the_documented_values() -> None:
    loaded = Settings.load(SPECIFIED)
    assert {name: entry.class_name for name, entry in loaded.extractors.items()} == {
        "latency": "LatencyExtractor",
        "text_quality": "TextQualityExtractor",
        "classification": "ClassificationExtractor",
        "contains": "ContainsExtractor",
        "custom": "CustomExtractor",
    }
    assert all(entry.enabled for entry in loaded.extractors.values())
    assert loaded.extractors["text_quality"].config == {"rouge_types": ["rouge1", "rouge2", "rougeL"]}
    limits = loaded.extractors["custom"].sandbox
    assert limits is not None
    assert (limits.timeout_ms, limits.memory_limit_mb, limits.allow_python_full) == (5000, 256, False)
    assert loaded.verification.governance_check
    assert loaded.verification.store_outcomes
    assert loaded.verification.max_criteria_per_task == 100
    assert loaded.caching.extractor_results_ttl == 300


@pytest.mark.parametrize(
    ("text", "line", "where", "value"),
    [
        ("cashing: {}", 1, "", "'caching'"),
        ("\nverification:\n  max_criteria: 3", 3, "verification", "'max_criteria'"),
        ("caching:\n  ttl: 3", 2, "caching", "'ttl'"),
        ("extractors:\n  a:\n    class: X\n    enable: no", 4, "extractors.a", "'enabled'"),
        (
            "extractors:\n  a:\n    class: CustomExtractor\n    sandbox:\n      timeout: 3",
            *(5, "extractors.a.sandbox", "'timeout_ms'"),
        ),
        ("extractors:\n  a: {enabled: true}", 2, "extractors.a", "'class'"),
        ("extractors:\n  a: {class: ''}", 2, "extractors.a.class", ""),
        ("extractors:\n  a: {class: 3}", 2, "extractors.a.class", "number 3"),
        ("verification: {max_criteria_per_task: 0}", 1, "verification.max_criteria_per_task", "0"),
        ("verification: {max_criteria_per_task: 2.5}", 1, "verification.max_criteria_per_task", "whole number"),
        ("verification: {governance_check: perhaps}", 1, "verification.governance_check", "true or false"),
        ("caching: {extractor_results_ttl: -1}", 1, "caching.extractor_results_ttl", "-1"),
        ("caching: {extractor_results_ttl: .inf}", 1, "caching.extractor_results_ttl", "finite"),
        (
            "caching: {extractor_results_ttl: 1, extractor_results_ttl: 2}",
            1,
            "caching.extractor_results_ttl",
            "duplicate",
        ),
        ("- a list", 1, "", "mapping"),
        ("", None, "", "empty"),
        ("a: [", 1, "", "YAML"),
        (
            "extractors:\n  latency:\n    class: LatencyExtractor\n    sandbox: {}",
            *(4, "extractors.latency.sandbox", "CustomExtractor"),
        ),
        (
            "extractors:\n  mine:\n    class: CustomExtractor\n    config: {code: x}",
            *(4, "extractors.mine.config", "CustomExtractor"),
        ),
        (
            "extractors:\n  one: {class: CustomExtractor}\n  two: {class: CustomExtractor}",
            *(1, "extractors", "one and two"),
        ),
        *(
            (
                f"extractors: {{custom: {{class: CustomExtractor, sandbox: {{{limit}}}}}}}",
                *(1, f"extractors.custom.sandbox.{limit.partition(':')[0]}", ""),
            )
            for limit in (
                "timeout_ms: 0",
                "timeout_ms: 60001",
                "memory_limit_mb: 15",
                "memory_limit_mb: 8193",
                "allow_python_full: perhaps",
            )
        ),
    ],
)
def test_a_setting_that_cannot_be_honoured_is_refused_by_key_and_line(
    text: str, line: int | None, where: str, value: str
) -> None:
    (problem,) = refused(text)
    assert (problem.line, problem.where) == (line, where)
    assert value in problem.message


def test_every_problem_of_the_file_is_reported_at_once() -> None:
    problems = refused("cashing: {}\nverification: {max_criteria_per_task: x}\nextractors:\n  a: {}\n")
    assert [one.line for one in problems] == [1, 2, 4]


def test_bytes_that_are_not_text_are_a_problem_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match="UTF-8"):
        Settings.parse(b"caching: \xff", "settings.yaml")


# Which file.


@pytest.fixture
def three_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where the usual file, that of the environment, and a third allow 1, 2 and 3 criteria."""
    monkeypatch.chdir(tmp_path)
    DEFAULT_PATH.parent.mkdir()
    for file, allowed in ((DEFAULT_PATH, 1), (Path("environment.yaml"), 2), (Path("option.yaml"), 3)):
        file.write_text(f"verification: {{max_criteria_per_task: {allowed}}}")
    return tmp_path


@pytest.mark.parametrize(
    ("option", "environment", "allowed"),
    [
        (None, {}, 1),
        (None, {PATH_VARIABLE: ""}, 1),
        (None, {PATH_VARIABLE: "environment.yaml"}, 2),
        ("option.yaml", {PATH_VARIABLE: "environment.yaml"}, 3),
        (Path("option.yaml"), {}, 3),
    ],
)
@pytest.mark.usefixtures("three_files")
def test_the_option_precedes_the_environment_and_that_the_usual_file(
    option: str | Path | None, environment: dict[str, str], allowed: int
) -> None:
    assert Settings.load(option, environment).verification.max_criteria_per_task == allowed


@pytest.mark.usefixtures("three_files")
def test_the_environment_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PATH_VARIABLE, "environment.yaml")
    assert Settings.load().verification.max_criteria_per_task == 2


def test_without_any_file_the_documented_defaults_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = Settings.load(environ={})
    assert loaded == Settings()
    assert {entry.class_name for entry in loaded.extractors.values()} == {*BUILT_IN, "CustomExtractor"}
    assert loaded.verification.max_criteria_per_task == 100


@pytest.mark.parametrize(("option", "environment"), [("gone.yaml", {}), (None, {PATH_VARIABLE: "gone.yaml"})])
@pytest.mark.usefixtures("three_files")
def test_a_named_file_that_is_missing_is_refused(option: str | None, environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml"):
        Settings.load(option, environment)


@pytest.mark.usefixtures("three_files")
def test_an_empty_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="''"):
        Settings.load("", {})


def test_a_folder_in_place_of_the_usual_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    DEFAULT_PATH.mkdir(parents=True)
    with pytest.raises(ConfigError) as caught:
        Settings.load(environ={})
    assert caught.value.name == str(DEFAULT_PATH)


# Records.


def test_outcomes_are_kept_where_a_file_asks_for_it() -> None:
    assert Settings.load(SPECIFIED).records_outcomes


@pytest.mark.parametrize("text", ["caching: {}", "verification: {store_outcomes: false}"])
def test_outcomes_are_not_kept_unless_a_file_asks_for_it(text: str) -> None:
    assert not settings(text).records_outcomes


# Limits.


def test_the_settings_allow_exactly_the_sandbox_limits() -> None:
    allowed = SandboxSettings.model_json_schema()["properties"]
    assert allowed["timeout_ms"]["maximum"] == limits.MAX_TIMEOUT_MS
    assert allowed["memory_limit_mb"]["minimum"] == limits.MIN_MEMORY_MB
    assert allowed["memory_limit_mb"]["maximum"] == limits.MAX_MEMORY_MB


# Governance.


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("rules: []", "governance"),
        ("timeout_s: 0", "governance.timeout_s"),
        ("timeout_s: 301", "governance.timeout_s"),
        ("timeout_s: .inf", "governance.timeout_s"),
        ("limits: {anomaly: {high: many}}", "governance.limits.anomaly.high"),
        ("limits: {anomaly: {high: .nan}}", "governance.limits.anomaly.high"),
        ("limits: {anomaly: {high: .inf}}", "governance.limits.anomaly.high"),
        ("limits: {anomaly: 3}", "governance.limits.anomaly"),
        ("networks: [localhost]", "governance.networks"),
        ("off: anomaly", "governance.off"),
    ],
)
def test_a_governance_section_that_cannot_be_honoured_is_refused(text: str, where: str) -> None:
    assert {one.where.partition("[")[0] for one in refused(f"governance: {{{text}}}")} == {where}


@pytest.mark.parametrize("limit", [float("nan"), float("inf")])
def test_a_limit_is_finite_also_without_a_file(limit: float) -> None:
    with pytest.raises(ValidationError):
        GovernanceSettings(limits={"anomaly": {"high": limit}})
