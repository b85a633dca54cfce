"""Settings: every key of the specified file is honoured or refused by its name, and an engine is built of them."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from meruit.app import BUILT_IN, build_engine, build_marketplace
from meruit.config import (
    DEFAULT_PATH,
    PATH_VARIABLE,
    ExtractorSettings,
    GovernanceSettings,
    SandboxSettings,
    Settings,
    load_criteria,
    load_payload,
    read_bytes,
)
from meruit.errors import ConfigError, CriteriaError, DocumentError, ExtractorConflict
from meruit.judge.plan import Trait, compile_plan
from meruit.model import limits
from meruit.model.criterion import SuccessCriteria
from meruit.model.governance import GovernanceResult, Policy
from meruit.model.kinds import Tier
from meruit.model.limits import MAX_CODE_BYTES
from meruit.model.verdict import GovernanceStatus
from meruit.outcomes.service import Registrar
from meruit.registry import metrics
from meruit.store.location import Location
from meruit.store.store import Store
from meruit.verify.custom_code import CustomCode

SPECIFIED = Path(__file__).parent.parent / DEFAULT_PATH

WORDS = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 2}

STRANGERS = '''\
import sys
from meruit.metrics.support.extractor import MetricExtractor


class Counting(MetricExtractor):
    """Counts how often it is asked."""

    def __init__(self, start: int = 0) -> None:
        self.calls = start

    def supported_metrics(self) -> list[str]:
        return ["calls"]

    async def extract(self, task_input, task_output, metadata):
        self.calls += 1
        return {"calls": self.calls}


class Refusing(Counting):
    def __init__(self) -> None:
        raise KeyError("no database")


class Nameless(Counting):
    def supported_metrics(self):
        return None


class Numbered(Counting):
    def supported_metrics(self):
        return [1]


class Rival(Counting):
    def supported_metrics(self):
        return ["latency_ms"]


class Unfinished(MetricExtractor):
    """Has none of what an extractor must have."""


class Unrelated:
    """Is no extractor at all."""


def leave():
    sys.exit(0)
'''


@pytest.fixture
def strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of extractors that somebody else wrote; its name."""
    (tmp_path / "strangers_extractors.py").write_text(STRANGERS)
    (tmp_path / "strangers_broken.py").write_text("def broken(:\n")
    (tmp_path / "strangers_leaving.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "strangers_extractors", raising=False)
    return "strangers_extractors"


def settings(text: str) -> Settings:
    return Settings.parse(text, "settings.yaml")


def extractors(**entries: dict[str, Any]) -> Settings:
    return Settings(extractors={name: ExtractorSettings.model_validate(entry) for name, entry in entries.items()})


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as problem:
        settings(text)
    return str(problem.value)


def chosen(wanted: Settings) -> set[str]:
    """The metrics that the settings chose; those of families without an extractor class are there in any case."""
    families = {kind.family for kind in BUILT_IN.values()}
    in_any_case = {metric.name for metric in metrics if metric.family not in families}
    names = {*build_engine(wanted).catalogue.names()}
    assert in_any_case <= names
    return names - in_any_case


# The file.


def test_the_specified_file_loads_and_says_what_it_says() -> None:
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
    assert loaded.verification.max_criteria_per_task == 10
    assert loaded.caching.extractor_results_ttl == 300


def test_the_specified_file_gives_the_same_metrics_as_none() -> None:
    specified, usual = build_engine(Settings.load(SPECIFIED)), build_engine(Settings())
    assert specified.catalogue.names() == usual.catalogue.names() == metrics.names()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("cashing: {}", "line 1: unknown key 'cashing' (did you mean 'caching'?)"),
        ("\nverification:\n  max_criteria: 3", "line 3, verification: unknown key 'max_criteria'"),
        ("caching:\n  ttl: 3", "line 2, caching: unknown key 'ttl'"),
        (
            "extractors:\n  a:\n    class: X\n    enable: no",
            "line 4, extractors.a: unknown key 'enable' (did you mean 'enabled'?)",
        ),
        (
            "extractors:\n  a:\n    class: CustomExtractor\n    sandbox:\n      timeout: 3",
            "line 5, extractors.a.sandbox: unknown key 'timeout' (did you mean 'timeout_ms'?)",
        ),
        ("extractors:\n  a: {enabled: true}", "line 2, extractors.a: needs 'class'"),
        ("extractors:\n  a: {class: ''}", "line 2, extractors.a.class: "),
        ("extractors:\n  a: {class: 3}", "expected text, got the number 3"),
        ("verification: {max_criteria_per_task: 0}", "line 1, verification.max_criteria_per_task: "),
        ("verification: {max_criteria_per_task: 2.5}", "expected a whole number"),
        ("verification: {governance_check: perhaps}", "expected true or false"),
        ("caching: {extractor_results_ttl: -1}", "line 1, caching.extractor_results_ttl: "),
        ("caching: {extractor_results_ttl: .inf}", "expected a finite number"),
        ("caching: {extractor_results_ttl: 1, extractor_results_ttl: 2}", "duplicate key"),
        ("- a list", "expected a mapping"),
        ("", "the file is empty"),
        ("a: [", "not valid YAML"),
        (
            "extractors:\n  latency:\n    class: LatencyExtractor\n    sandbox: {}",
            "line 4, extractors.latency.sandbox: only CustomExtractor runs in a sandbox",
        ),
        (
            "extractors:\n  mine:\n    class: CustomExtractor\n    config: {code: x}",
            "line 4, extractors.mine.config: CustomExtractor takes no config; its limits stand under sandbox",
        ),
        (
            "extractors:\n  one: {class: CustomExtractor}\n  two: {class: CustomExtractor}",
            "line 1, extractors: one and two are both CustomExtractor; enable one of them",
        ),
        *(
            (
                f"extractors: {{custom: {{class: CustomExtractor, sandbox: {{{limit}}}}}}}",
                f"line 1, extractors.custom.sandbox.{limit.partition(':')[0]}: expected ",
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
def test_what_is_not_honoured_is_refused_by_its_key_and_line(text: str, complaint: str) -> None:
    assert complaint in refused(text)


def test_every_problem_of_the_file_is_told_at_once() -> None:
    told = refused("cashing: {}\nverification: {max_criteria_per_task: x}\nextractors:\n  a: {}\n")
    assert [line.split(":")[1].split(",")[0] for line in told.splitlines()] == [" line 1", " line 2", " line 4"]


def test_bytes_that_are_no_text_are_a_problem_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match="not UTF-8"):
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


def test_without_any_file_the_defaults_are_the_specified_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = Settings.load(environ={})
    assert loaded == Settings()
    assert {entry.class_name for entry in loaded.extractors.values()} == {*BUILT_IN, "CustomExtractor"}
    assert loaded.verification.max_criteria_per_task == 10


@pytest.mark.parametrize(("option", "environment"), [("gone.yaml", {}), (None, {PATH_VARIABLE: "gone.yaml"})])
@pytest.mark.usefixtures("three_files")
def test_a_named_file_that_is_not_there_is_no_default(option: str | None, environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml: cannot be read: No such file"):
        Settings.load(option, environment)


@pytest.mark.usefixtures("three_files")
def test_an_empty_option_is_no_default() -> None:
    with pytest.raises(ConfigError, match="''"):
        Settings.load("", {})


def test_a_folder_in_the_usual_files_place_is_no_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    DEFAULT_PATH.mkdir(parents=True)
    with pytest.raises(ConfigError, match="Is a directory"):
        Settings.load(environ={})


# Records.


def test_outcomes_are_kept_where_a_file_asks_for_it() -> None:
    assert Settings.load(SPECIFIED).records_outcomes


@pytest.mark.parametrize("text", ["caching: {}", "verification: {store_outcomes: false}"])
def test_outcomes_are_not_kept_where_nobody_asks_for_it(text: str) -> None:
    assert not settings(text).records_outcomes


# Each key at work.


def test_an_extractor_that_is_not_enabled_takes_its_metrics_away() -> None:
    engine = build_engine(
        extractors(
            latency={"class": "LatencyExtractor", "enabled": False},
            text={"class": "TextQualityExtractor"},
        )
    )
    assert "latency_ms" not in engine.catalogue.names()
    assert {"word_count", "rougeL"} <= {*engine.catalogue.names()}
    result = engine.verify_sync("c", {}, {"text": "a"}, {"criteria": [{**WORDS, "metric": "latency_ms"}]})
    assert "Metric not found" in (result.criterion_results[0].error or "")


def test_a_class_that_is_not_enabled_is_not_even_looked_for() -> None:
    assert chosen(extractors(odd={"class": "Nonsense", "enabled": False})) == set()


def test_rouge_types_restrict_what_is_computed() -> None:
    only = {"class": "TextQualityExtractor", "config": {"rouge_types": ["rouge2"]}}
    family = {metric.name for metric in metrics if metric.family == "text"}
    assert chosen(extractors(text=only)) == family - {"rouge1", "rougeL"}


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"rouge_types": ["rouge3"]}, "no ROUGE type is named 'rouge3' (did you mean"),
        ({"rouge_typs": []}, "rouge_typs"),
        ({"rouge_types": 3}, "TextQualityExtractor cannot be made with this: TypeError"),
    ],
)
def test_a_config_that_the_class_does_not_take_is_refused_by_its_key(config: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as problem:
        build_engine(extractors(text={"class": "TextQualityExtractor", "config": config}))
    assert str(problem.value).startswith("configuration: extractors.text.config: ")
    assert complaint in str(problem.value)


def test_the_custom_extractor_computes_nothing_of_its_own() -> None:
    assert chosen(extractors(custom={"class": "CustomExtractor"})) == set()


USUAL = CustomCode(5_000, 256, frozenset({Tier.EXPR, Tier.PYTHON}))
FULL = {"class": "CustomExtractor", "sandbox": {"allow_python_full": True}}


@pytest.mark.parametrize(
    ("wanted", "allowed"),
    [
        (Settings(), USUAL),
        (Settings.load(SPECIFIED), USUAL),
        (settings("caching: {}"), USUAL),
        (extractors(custom={"class": "CustomExtractor"}), USUAL),
        (extractors(mine={"class": "CustomExtractor", "sandbox": {}}), USUAL),
        (
            extractors(custom={"class": "CustomExtractor", "sandbox": {"timeout_ms": 60_000, "memory_limit_mb": 16}}),
            USUAL._replace(timeout_ms=60_000, memory_limit_mb=16),
        ),
        (extractors(custom=FULL), USUAL._replace(tiers=frozenset(Tier))),
        (extractors(), None),
        (extractors(latency={"class": "LatencyExtractor"}), None),
        (extractors(custom={**FULL, "enabled": False}), None),
        (extractors(one={**FULL, "enabled": False}, two={"class": "CustomExtractor"}), USUAL),
    ],
)
def test_the_sandbox_section_says_what_custom_code_may_do(wanted: Settings, allowed: CustomCode | None) -> None:
    assert build_engine(wanted).catalogue.sandboxes.policy == allowed
    also = None if allowed is None else allowed._replace(tiers=frozenset(Tier))
    assert build_engine(wanted, allow_python_full=True).catalogue.sandboxes.policy == also


def test_the_settings_allow_what_a_sandbox_takes() -> None:
    allowed = SandboxSettings.model_json_schema()["properties"]
    assert allowed["timeout_ms"]["maximum"] == limits.MAX_TIMEOUT_MS
    assert allowed["memory_limit_mb"]["minimum"] == limits.MIN_MEMORY_MB
    assert allowed["memory_limit_mb"]["maximum"] == limits.MAX_MEMORY_MB


# Code beside the criteria.


CODE = "def metric(input, output, metadata):\n    return {'mine': 1}\n"


def beside(folder: Path, code_file: object) -> Path:
    """A criteria file in the folder whose metric's code is in another file."""
    asked = {**WORDS, "metric": "mine"}
    file = folder / "criteria.json"
    whole = {"criteria": [asked], "custom_metrics": [{"metrics": ["mine"], "code_file": code_file}]}
    file.write_text(json.dumps({"success_criteria": whole}, indent=1))
    return file


def code_refused(folder: Path, code_file: object) -> str:
    with pytest.raises(CriteriaError) as refused:
        load_criteria(beside(folder, code_file))
    (problem,) = refused.value.problems
    assert (problem.where, problem.line) == ("success_criteria.custom_metrics[0].code_file", 16)
    return problem.message


def test_code_is_read_from_a_file_beside_the_criteria(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "mine.py").write_text(f"\ufeff{CODE}")
    for name in ("mine.py", "./mine.py", "deeper/mine.py", "deeper/../mine.py", str(tmp_path / "mine.py")):
        assert load_criteria(beside(tmp_path, name)).custom_metrics[0].code == CODE
    monkeypatch.chdir(tmp_path)
    assert load_criteria("criteria.json").custom_metrics[0].code == CODE


def test_a_digest_covers_the_code_wherever_it_stands(tmp_path: Path) -> None:
    def digest(criteria: SuccessCriteria) -> str:
        return compile_plan(criteria, lambda _name: Trait()).digest

    (tmp_path / "mine.py").write_text(CODE)
    read = load_criteria(beside(tmp_path, "mine.py"))
    whole = read.model_dump(mode="json", exclude_defaults=True)
    assert whole["custom_metrics"] == [{"metrics": ["mine"], "code": CODE}]
    assert digest(SuccessCriteria.model_validate(whole)) == digest(read)
    (tmp_path / "mine.py").write_text(CODE + "#")
    assert digest(load_criteria(beside(tmp_path, "mine.py"))) != digest(read)


def test_a_strangers_criteria_read_nothing_outside_their_folder(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (home / "link").symlink_to(secret)
    (home / "way_out").symlink_to(tmp_path)
    for name in ("../secret", str(secret), "link", "way_out/secret", "/etc/passwd", "/dev/zero"):
        message = code_refused(home, name)
        assert message == f"{name!r} lies outside the folder of the criteria; put the file beside them"


def test_a_link_that_stays_in_the_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "link").symlink_to("mine.py")
    assert load_criteria(beside(tmp_path, "link")).custom_metrics[0].code == CODE


def test_whatever_is_wrong_with_the_code_file_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"# \xe9")
    (tmp_path / "large").write_bytes(b"#" * (MAX_CODE_BYTES + 1))
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    assert code_refused(tmp_path, "gone.py") == "'gone.py' cannot be read: No such file or directory"
    assert "cannot be read: " in code_refused(tmp_path, "loop")
    assert "cannot be read: embedded null byte" in code_refused(tmp_path, "a\0b")
    assert "cannot be read: " in code_refused(tmp_path, "x" * 5_000)
    assert code_refused(tmp_path, ".") == "'.' is no file"
    assert code_refused(tmp_path, "pipe") == "'pipe' is no file"
    assert code_refused(tmp_path, "latin").startswith("'latin' is not UTF-8: ")
    assert code_refused(tmp_path, "large") == "'large' is larger than 256 KiB"
    assert code_refused(tmp_path, 7) == "expected text, got the number 7"


def test_an_empty_code_file_is_told_on_the_line_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("\n")
    with pytest.raises(CriteriaError, match=r"line 16, success_criteria.custom_metrics\[0\].code: the code is empty"):
        load_criteria(beside(tmp_path, "empty.py"))


def test_a_family_that_somebody_added_needs_no_line_in_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    added = metrics.get("word_count")._replace(name="added_by_a_test", family="added")
    monkeypatch.setitem(metrics._found, added.name, added)
    assert "added_by_a_test" in build_engine(extractors()).catalogue.names()
    assert chosen(extractors()) == set()


def test_ones_own_class_is_found_by_its_module_and_name(strangers: str) -> None:
    own = {"class": f"{strangers}:Counting", "config": {"start": 41}}
    engine = build_engine(extractors(own=own))
    wanted = {"criteria": [{**WORDS, "metric": "calls", "threshold": 42}]}
    assert engine.verify_sync("c", {}, {}, wanted).metrics == {"calls": 42}


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("LatencyExtracter", "'LatencyExtracter' (did you mean 'LatencyExtractor'?)"),
        ("CustomExtracto", "(did you mean 'CustomExtractor'?)"),
        ("strangers_extractors.Counting", "your own is written package.module:Class"),
        ("nowhere_at_all:Class", "No module named 'nowhere_at_all'; is it installed"),
        ("strangers_extractors:Countin", "has no attribute 'Countin'"),
        (":Counting", "cannot load ':Counting'"),
        ("..relative:Class", "cannot load"),
        ("strangers_broken:Class", "SyntaxError"),
        ("strangers_leaving:Class", "SystemExit"),
        ("strangers_extractors:Unrelated", "strangers_extractors:Unrelated is no MetricExtractor"),
        ("strangers_extractors:leave", "is no MetricExtractor"),
        ("builtins:exit", "is no MetricExtractor"),
    ],
)
@pytest.mark.usefixtures("strangers")
def test_a_class_that_cannot_be_had_is_refused_by_its_key(name: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as problem:
        build_engine(extractors(own={"class": name}))
    assert str(problem.value).startswith("configuration: extractors.own.class: ")
    assert complaint in str(problem.value)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("Refusing", "KeyError: 'no database'"),
        ("Nameless", "TypeError"),
        ("Numbered", "TypeError"),
        ("Unfinished", "abstract"),
    ],
)
def test_a_class_that_cannot_be_made_is_refused_by_its_key(strangers: str, name: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as problem:
        build_engine(extractors(own={"class": f"{strangers}:{name}"}))
    assert str(problem.value).startswith("configuration: extractors.own.config: ")
    assert complaint in str(problem.value)


def test_two_extractors_of_one_metric_are_refused(strangers: str) -> None:
    with pytest.raises(ExtractorConflict, match="'latency_ms'"):
        build_engine(extractors(a={"class": "LatencyExtractor"}, b={"class": f"{strangers}:Rival"}))


@pytest.mark.parametrize(("ttl_s", "calls"), [(300, 1), (0, 2)])
def test_results_are_kept_as_long_as_the_cache_says(strangers: str, ttl_s: float, calls: int) -> None:
    chosen = extractors(own={"class": f"{strangers}:Counting"}).model_copy(
        update={"caching": settings(f"caching: {{extractor_results_ttl: {ttl_s}}}").caching}
    )
    engine = build_engine(chosen)
    wanted = {"criteria": [{**WORDS, "metric": "calls", "threshold": 0}]}
    engine.verify_sync("c", {}, {"text": "same"}, wanted)
    assert engine.verify_sync("c", {}, {"text": "same"}, wanted).metrics == {"calls": calls}


def test_more_criteria_than_the_settings_allow_are_an_error_of_the_request() -> None:
    engine = build_engine(settings("verification: {max_criteria_per_task: 1}"))
    result = engine.verify_sync("c", {}, {"text": "two words"}, {"criteria": [WORDS, WORDS]})
    assert (result.verdict, result.reasons[0].code) == ("error", "too_many_criteria")


class Suspicious:
    """Says that no outcome is plausible."""

    async def validate_outcome(self, **_: Any) -> GovernanceResult:
        return GovernanceResult(valid=False, flags=["implausible"])


@pytest.mark.parametrize(
    ("check", "status"), [("true", GovernanceStatus.INVALID), ("false", GovernanceStatus.NOT_CHECKED)]
)
def test_governance_is_asked_when_the_settings_say_so(check: str, status: GovernanceStatus) -> None:
    engine = build_engine(settings(f"verification: {{governance_check: {check}}}"), Suspicious())
    result = engine.verify_sync("c", {}, {"text": "two words"}, {"criteria": [WORDS]})
    assert (result.governance, result.success) == (status, status is GovernanceStatus.NOT_CHECKED)


# Reading.


def test_criteria_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "criteria.yaml"
    file.write_text("criteria: [{metric: word_count, metric_type: count, comparison: gte, threshold: 2}]")
    assert load_criteria(file).criteria[0].threshold == 2
    with pytest.raises(CriteriaError, match="Unknown metric: word_count"):
        load_criteria(str(file), known_metrics=["words"])


def test_a_payload_keeps_every_digit(tmp_path: Path) -> None:
    file = tmp_path / "payload.json"
    file.write_text('{"id": 123456789012345678901234567890, "deep": [{"x": 0.1}], "name": "né"}', "utf-8")
    assert load_payload(file) == {
        "id": 123456789012345678901234567890,
        "deep": [{"x": 0.1}],
        "name": "né",
    }


def test_a_payload_between_two_limits_of_depth_is_refused_and_not_thrown(tmp_path: Path) -> None:
    file = tmp_path / "payload.json"
    for depth in (900, 1_000, 1_020, 1_023, 1_024, 2_000):
        file.write_text(f'{{"a": {"[" * depth}{"]" * depth}}}')
        try:
            load_payload(file)
        except DocumentError as problem:
            assert "not JSON" in str(problem)  # noqa: PT017 - some of these depths may be read


def test_a_name_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(DocumentError, match="cannot be read"):
        read_bytes("a\0b")


def test_a_file_past_the_limit_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meruit.config.MAX_PAYLOAD_BYTES", 1024 * 1024)
    file = tmp_path / "large.json"
    with file.open("wb") as large:
        large.truncate(2**40)
    with pytest.raises(DocumentError, match="more than 1 MiB"):
        load_payload(file)
    file.write_bytes(b" " * (1024 * 1024 - 2) + b"{}")
    assert load_payload(file) == {}


# Governance.


@pytest.fixture
def registrar(tmp_path: Path) -> Iterator[Registrar]:
    store = Store.open(Location(tmp_path / "data"))
    yield Registrar(build_engine(Settings()), store)
    store.close()


def test_governance_is_ours_alone_by_default(registrar: Registrar) -> None:
    chosen = settings("governance: {}").governance
    assert chosen == Settings().governance == GovernanceSettings()
    assert (chosen.off, chosen.limits, chosen.url, chosen.token({}), chosen.timeout_s) == ((), {}, None, None, 10.0)
    market = build_marketplace(Settings(), registrar)
    assert (market.policy, market._remote) == (Policy(), None)


def test_rules_and_limits_are_chosen_by_name(registrar: Registrar) -> None:
    chosen = settings("governance: {off: [anomaly], limits: {retry_farming: {attempts_max: 3}}}")
    assert build_marketplace(chosen, registrar).policy == Policy(
        off=["anomaly"], limits={"retry_farming": {"attempts_max": 3.0}}
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("off: [clocks]", "no rule is named 'clocks'"),
        ("limits: {clocks: {}}", "no rule is named 'clocks'"),
        (
            "limits: {retry_farming: {attempts: 3}}",
            "the rule retry_farming has no limit 'attempts'; it has attempts_max",
        ),
        ("limits: {canary_leak: {n: 3}}", "the rule canary_leak has no limit 'n'; it has none"),
    ],
)
@pytest.mark.parametrize("check", ["true", "false"])
def test_a_rule_or_limit_that_nobody_has_is_refused(registrar: Registrar, text: str, says: str, check: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build_marketplace(settings(f"verification: {{governance_check: {check}}}\ngovernance: {{{text}}}"), registrar)


def test_the_key_of_somebody_elses_governance_comes_from_the_environment(
    registrar: Registrar, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings("governance: {url: 'https://example.com', token_variable: GOVERNANCE_KEY, timeout_s: 2.5}")
    assert chosen.governance.token({"GOVERNANCE_KEY": "secret"}) == "secret"
    missing = "governance.token_variable: the environment variable GOVERNANCE_KEY is not set"
    for environ in ({}, {"GOVERNANCE_KEY": ""}):
        with pytest.raises(ConfigError, match=missing):
            chosen.governance.token(environ)
    monkeypatch.delenv("GOVERNANCE_KEY", raising=False)
    with pytest.raises(ConfigError, match=missing):
        build_marketplace(chosen, registrar)
    monkeypatch.setenv("GOVERNANCE_KEY", "secret")
    market = build_marketplace(chosen, registrar)
    assert market._remote is not None
    assert market._patience_s == 2.5


@pytest.mark.parametrize(
    "url", ["ftp://example.com", "example.com", "http://127.0.0.1/", "https://user:word@example.com", "http://10.1.2.3"]
)
def test_a_governance_that_could_never_be_asked_is_refused(registrar: Registrar, url: str) -> None:
    with pytest.raises(ConfigError, match=r"governance\.url: "):
        build_marketplace(settings(f"governance: {{url: '{url}', networks: [10.0.0.0/16]}}"), registrar)
    inside = settings("governance: {url: 'http://10.0.2.3', networks: [10.0.0.0/16]}")
    assert build_marketplace(inside, registrar)._remote is not None


def test_where_governance_is_not_checked_nobody_needs_its_key(registrar: Registrar) -> None:
    asked = "governance: {url: 'https://example.com', token_variable: NOT_SET_HERE}"
    market = build_marketplace(settings(f"verification: {{governance_check: false}}\n{asked}"), registrar)
    assert (market.policy, market._remote) == (None, None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rules: []", "line 1, governance: unknown key 'rules'"),
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
def test_a_governance_section_that_cannot_be_honoured_is_refused_by_its_key(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(f"governance: {{{text}}}")
    assert says in str(caught.value)


@pytest.mark.parametrize("limit", [float("nan"), float("inf")])
def test_a_limit_is_a_number_also_where_no_file_says_it(limit: float) -> None:
    with pytest.raises(ValidationError):
        GovernanceSettings(limits={"anomaly": {"high": limit}})
