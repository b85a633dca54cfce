"""Engines and marketplaces built from settings: every key takes effect, or is refused by its name."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from meruit.app import BUILT_IN, build_engine, build_marketplace
from meruit.config import DEFAULT_PATH, ExtractorSettings, GovernanceSettings, Settings
from meruit.errors import ConfigError, ExtractorConflict
from meruit.model.governance import GovernanceResult, Policy
from meruit.model.kinds import Tier
from meruit.model.verdict import GovernanceStatus
from meruit.outcomes.service import Registrar
from meruit.registry import metrics
from meruit.store.location import Location
from meruit.store.store import Store
from meruit.verify.custom_code import CustomCode

SPECIFIED = Path(__file__).parent.parent / DEFAULT_PATH

WORDS = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 2}


def settings(text: str) -> Settings:
    return Settings.parse(text, "settings.yaml")


THIRD_PARTY = '''\
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
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of extractors that a third party wrote; its name."""
    (tmp_path / "third_party_extractors.py").write_text(THIRD_PARTY)
    (tmp_path / "third_party_broken.py").write_text("def broken(:\n")
    (tmp_path / "third_party_leaving.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "third_party_extractors", raising=False)
    return "third_party_extractors"


def extractors(**entries: dict[str, Any]) -> Settings:
    return Settings(extractors={name: ExtractorSettings.model_validate(entry) for name, entry in entries.items()})


def chosen(wanted: Settings) -> set[str]:
    """The metrics that the settings chose; those of families without an extractor class are there in any case."""
    families = {kind.family for kind in BUILT_IN.values()}
    in_any_case = {metric.name for metric in metrics if metric.family not in families}
    names = {*build_engine(wanted).catalogue.names()}
    assert in_any_case <= names
    return names - in_any_case


def test_the_default_file_gives_the_same_metrics_as_no_file() -> None:
    specified, usual = build_engine(Settings.load(SPECIFIED)), build_engine(Settings())
    assert specified.catalogue.names() == usual.catalogue.names() == metrics.names()


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
    assert result.criterion_results[0].cause == "metric_disabled"


def test_a_class_that_is_not_enabled_is_not_loaded() -> None:
    assert chosen(extractors(odd={"class": "Nonsense", "enabled": False})) == set()


def test_rouge_types_restrict_what_is_computed() -> None:
    only = {"class": "TextQualityExtractor", "config": {"rouge_types": ["rouge2"]}}
    family = {metric.name for metric in metrics if metric.family == "text"}
    assert chosen(extractors(text=only)) == family - {"rouge1", "rougeL"}


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"rouge_types": ["rouge3"]}, "'rouge3'"),
        ({"rouge_typs": []}, "rouge_typs"),
        ({"rouge_types": 3}, "TypeError"),
    ],
)
def test_a_config_that_the_class_does_not_take_is_refused(config: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_engine(extractors(text={"class": "TextQualityExtractor", "config": config}))
    (problem,) = caught.value.problems
    assert problem.where == "extractors.text.config"
    assert complaint in problem.message


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
            msgspec.structs.replace(USUAL, timeout_ms=60_000, memory_limit_mb=16),
        ),
        (extractors(custom=FULL), msgspec.structs.replace(USUAL, tiers=frozenset(Tier))),
        (extractors(), None),
        (extractors(latency={"class": "LatencyExtractor"}), None),
        (extractors(custom={**FULL, "enabled": False}), None),
        (extractors(one={**FULL, "enabled": False}, two={"class": "CustomExtractor"}), USUAL),
    ],
)
def test_the_sandbox_section_says_what_custom_code_may_do(wanted: Settings, allowed: CustomCode | None) -> None:
    assert build_engine(wanted).catalogue.sandboxes.policy == allowed
    also = None if allowed is None else msgspec.structs.replace(allowed, tiers=frozenset(Tier))
    assert build_engine(wanted, allow_python_full=True).catalogue.sandboxes.policy == also


def test_an_added_family_needs_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    added = msgspec.structs.replace(metrics.get("word_count"), name="added_by_a_test", family="added")
    monkeypatch.setitem(metrics._found, added.name, added)
    assert "added_by_a_test" in build_engine(extractors()).catalogue.names()
    assert chosen(extractors()) == set()


def test_an_extractor_class_is_found_by_module_and_name(third_party: str) -> None:
    own = {"class": f"{third_party}:Counting", "config": {"start": 41}}
    engine = build_engine(extractors(own=own))
    wanted = {"criteria": [{**WORDS, "metric": "calls", "threshold": 42}]}
    assert engine.verify_sync("c", {}, {}, wanted).metrics == {"calls": 42}


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("LatencyExtracter", "'LatencyExtractor'"),
        ("CustomExtracto", "'CustomExtractor'"),
        ("third_party_extractors.Counting", "package.module:Class"),
        ("nowhere_at_all:Class", "No module named 'nowhere_at_all'"),
        ("third_party_extractors:Countin", "AttributeError"),
        (":Counting", "ValueError"),
        ("..relative:Class", "TypeError"),
        ("third_party_broken:Class", "SyntaxError"),
        ("third_party_leaving:Class", "SystemExit"),
        ("third_party_extractors:Unrelated", "MetricExtractor"),
        ("third_party_extractors:leave", "MetricExtractor"),
        ("builtins:exit", "MetricExtractor"),
    ],
)
@pytest.mark.usefixtures("third_party")
def test_a_class_that_cannot_be_loaded_is_refused(name: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_engine(extractors(own={"class": name}))
    (problem,) = caught.value.problems
    assert problem.where == "extractors.own.class"
    assert complaint in problem.message


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("Refusing", "KeyError: 'no database'"),
        ("Nameless", "TypeError"),
        ("Numbered", "TypeError"),
        ("Unfinished", "abstract"),
    ],
)
def test_a_class_that_cannot_be_constructed_is_refused(third_party: str, name: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_engine(extractors(own={"class": f"{third_party}:{name}"}))
    (problem,) = caught.value.problems
    assert problem.where == "extractors.own.config"
    assert complaint in problem.message


def test_two_extractors_of_one_metric_are_refused(third_party: str) -> None:
    with pytest.raises(ExtractorConflict, match="'latency_ms'"):
        build_engine(extractors(a={"class": "LatencyExtractor"}, b={"class": f"{third_party}:Rival"}))


@pytest.mark.parametrize(("ttl_s", "calls"), [(300, 1), (0, 2)])
def test_results_are_kept_as_long_as_the_cache_says(third_party: str, ttl_s: float, calls: int) -> None:
    chosen = extractors(own={"class": f"{third_party}:Counting"}).model_copy(
        update={"caching": settings(f"caching: {{extractor_results_ttl: {ttl_s}}}").caching}
    )
    engine = build_engine(chosen)
    wanted = {"criteria": [{**WORDS, "metric": "calls", "threshold": 0}]}
    engine.verify_sync("c", {}, {"text": "same"}, wanted)
    assert engine.verify_sync("c", {}, {"text": "same"}, wanted).metrics == {"calls": calls}


def test_more_criteria_than_allowed_are_an_error() -> None:
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
def test_the_settings_decide_whether_governance_is_asked(check: str, status: GovernanceStatus) -> None:
    engine = build_engine(settings(f"verification: {{governance_check: {check}}}"), Suspicious())
    result = engine.verify_sync("c", {}, {"text": "two words"}, {"criteria": [WORDS]})
    assert (result.governance, result.success) == (status, status is GovernanceStatus.NOT_CHECKED)


@pytest.fixture
def registrar(tmp_path: Path) -> Iterator[Registrar]:
    store = Store.open(Location(tmp_path / "data"))
    yield Registrar(build_engine(Settings()), store)
    store.close()


def test_the_default_governance_is_local(registrar: Registrar) -> None:
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
        ("off: [clocks]", "'clocks'"),
        ("limits: {clocks: {}}", "'clocks'"),
        ("limits: {retry_farming: {attempts: 3}}", "attempts_max"),
        ("limits: {canary_leak: {n: 3}}", "canary_leak"),
    ],
)
@pytest.mark.parametrize("check", ["true", "false"])
def test_an_unknown_governance_rule_or_limit_is_refused(registrar: Registrar, text: str, says: str, check: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build_marketplace(settings(f"verification: {{governance_check: {check}}}\ngovernance: {{{text}}}"), registrar)


def test_the_key_of_a_remote_governance_comes_from_the_environment(
    registrar: Registrar, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings("governance: {url: 'https://example.com', token_variable: GOVERNANCE_KEY, timeout_s: 2.5}")
    assert chosen.governance.token({"GOVERNANCE_KEY": "secret"}) == "secret"
    missing = r"governance\.token_variable: .*GOVERNANCE_KEY"
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
def test_a_remote_governance_at_a_forbidden_url_is_refused(registrar: Registrar, url: str) -> None:
    with pytest.raises(ConfigError, match=r"governance\.url: "):
        build_marketplace(settings(f"governance: {{url: '{url}', networks: [10.0.0.0/16]}}"), registrar)
    inside = settings("governance: {url: 'http://10.0.2.3', networks: [10.0.0.0/16]}")
    assert build_marketplace(inside, registrar)._remote is not None


def test_without_governance_check_no_key_is_needed(registrar: Registrar) -> None:
    asked = "governance: {url: 'https://example.com', token_variable: NOT_SET_HERE}"
    market = build_marketplace(settings(f"verification: {{governance_check: false}}\n{asked}"), registrar)
    assert (market.policy, market._remote) == (None, None)
