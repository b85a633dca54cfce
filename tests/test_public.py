"""The public surface: what can be imported, what that costs, and the schema that editors use."""

import json
import re
import subprocess
import sys
import textwrap
import typing
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

import meruit
from meruit.app import build_json_schema
from meruit.config import Settings
from meruit.documents.authoring import parse_criteria
from meruit.verify.engine import VerificationEngine

# The specification's two examples, to the letter, are also the demo's stories.
STORIES = Path(meruit.__file__).parent / "cli" / "demo" / "stories"
SUMMARISATION = (STORIES / "summarisation" / "criteria.yaml").read_text(encoding="utf-8")
CLASSIFICATION = (STORIES / "classification" / "criteria.yaml").read_text(encoding="utf-8")

CRITERION = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 2}
EXPR = {"expr": "size(output.text)", "metric_type": "count", "comparison": "gte", "threshold": 2}
CUSTOM = {"metrics": ["mine"], "code": "def metric(input, output, metadata):\n    return {'mine': 1}\n"}


# Names.

FACES = (
    *("meruit", "meruit.plugins", "meruit.gate", "meruit.bridges", "meruit.usage", "meruit.contracts"),
    *("meruit.outcomes", "meruit.audit", "meruit.reports", "meruit.judge", "meruit.playground", "meruit.testing"),
    "meruit.evaluations",
    "meruit.judges",
    "meruit.review",
)
"""The modules that programs import from; everything else may change."""
PUBLIC = [(face, name) for face in FACES for name in import_module(face).__all__]
FRAMEWORKS = ("meruit.bridges.langgraph", "meruit.bridges.openai_agents", "meruit.bridges.pydantic_ai")
"""A bridge to a framework is imported by its own name, so that no other framework comes along."""
ROOT = Path(__file__).parents[1]
IMPORT = re.compile(r"^\s*(?:from (meruit[\w.]*) import|import (meruit[\w.]*))", re.MULTILINE)


@pytest.mark.parametrize(("face", "name"), PUBLIC)
def test_every_public_name_can_be_had_and_says_what_it_is(face: str, name: str) -> None:
    module = import_module(face)
    thing = getattr(module, name)
    assert getattr(module, name) is thing
    if isinstance(thing, type) or callable(thing):
        documentation = vars(thing).get("__doc__") if isinstance(thing, type) else thing.__doc__
        assert documentation
        assert documentation.strip()[0].isupper() or documentation.strip()[0] == "`"


@pytest.mark.parametrize("face", FACES)
def test_dir_lists_exactly_the_public_names(face: str) -> None:
    module = import_module(face)
    assert {*module.__all__} <= {*dir(module)}
    assert sorted(module.__all__) == [*module.__all__]


def test_every_public_name_has_one_home() -> None:
    named = [name for names in meruit._HOMES.values() for name in names]
    assert sorted(named) == sorted(meruit.__all__) == dir(meruit)


def imports_of(path: Path) -> set[str]:
    """The modules of ours that a page or an example imports from."""
    return {one or other for one, other in IMPORT.findall(path.read_text(encoding="utf-8"))}


@pytest.mark.parametrize(
    "path",
    [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").rglob("*.py"))],
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_docs_and_examples_import_public_names_only(path: Path) -> None:
    assert imports_of(path) <= {*FACES, *FRAMEWORKS}


@pytest.mark.parametrize(("face", "name"), PUBLIC)
def test_every_public_name_is_explained_in_a_page(face: str, name: str) -> None:
    page = (ROOT / "docs" / "public-names.md").read_text(encoding="utf-8")
    section = page.split(f"\n## `{face}`\n")[1].split("\n## ")[0]
    assert f"\n| `{name}` | " in section


def test_the_specified_names_are_public() -> None:
    specified = {
        "MetricType",
        "ComparisonOperator",
        "SuccessCriterion",
        "SuccessCriteria",
        "MetricExtractor",
        "LatencyExtractor",
        "TextQualityExtractor",
        "ClassificationExtractor",
        "ContainsExtractor",
        "CustomExtractor",
        "Sandbox",
        "VerificationEngine",
        "CriterionResult",
        "VerificationResult",
        "GovernanceClient",
    }
    assert specified <= {*meruit.__all__}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'meruit' has no attribute 'Verifier'"):
        _ = meruit.Verifier
    assert not hasattr(meruit, "_nonsense")


def test_the_version_is_that_of_the_package() -> None:
    assert meruit.__version__.count(".") == 2


# What it costs.


def imported_by(code: str) -> set[str]:
    """The top-level packages in memory once a fresh interpreter has run the code."""
    script = f"import sys\n{textwrap.dedent(code)}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {*ended.stdout.splitlines()[-1].split()}


def test_importing_meruit_imports_nothing_slow() -> None:
    slow = {"pydantic", "msgspec", "click", "yaml", "orjson", "numpy", "pydantic_monty", "cel_expr_python"}
    assert not slow & imported_by("import meruit")


def test_help_imports_neither_pydantic_nor_msgspec() -> None:
    code = """
        from meruit.cli import main
        try:
            main(["--help"])
        except SystemExit as ended:
            assert ended.code == 0
    """
    packages = imported_by(code)
    assert "click" in packages
    assert not {"pydantic", "msgspec", "yaml", "orjson", "numpy"} & packages


# The published schemas.


@pytest.fixture(scope="module")
def criteria_schema() -> Any:
    return jsonschema_rs.validator_for(build_json_schema("criteria"), offline=True)


@pytest.mark.parametrize("text", [SUMMARISATION, CLASSIFICATION], ids=["summarisation", "classification"])
def test_the_schema_accepts_the_specifications_examples(criteria_schema: Any, text: str) -> None:
    document = yaml.safe_load(text)
    for form in (document, document["success_criteria"]):
        assert criteria_schema.is_valid(form)
    assert parse_criteria(text) == parse_criteria(json.dumps(document["success_criteria"]), "unwrapped.json")


@pytest.mark.parametrize(
    "criterion",
    [
        CRITERION,
        {"assert": "resource_exists", "resource": "Patient", "weight": 2, "required": True},
        {"assertion": {"assert": "resource_exists", "resource": "Patient"}, "axis": "world"},
        {**CRITERION, "comparison": "in_range", "threshold": [1, 5]},
        {**CRITERION, "comparison": "in_range", "threshold": {"min": 1}},
        {**CRITERION, "params": {"anything": [1]}, "id": "a", "name": "A", "missing": "exclude"},
        {**CRITERION, "comparison": "eq", "tolerance": 0.5, "penalty": 0.1},
        EXPR,
        {**EXPR, "metric": "own_name", "id": "a", "weight": 2, "comparison": "in_range", "threshold": [1, 5]},
    ],
)
def test_what_the_reader_takes_the_schema_accepts(criteria_schema: Any, criterion: dict[str, Any]) -> None:
    meruit.SuccessCriteria.model_validate({"criteria": [criterion]})
    assert criteria_schema.is_valid({"criteria": [criterion]})


@pytest.mark.parametrize(
    "document",
    [
        {"criteria": [{**CRITERION, "comparison": "above"}]},
        {"criteria": [{**CRITERION, "metric_type": "counts"}]},
        {"criteria": [{**CRITERION, "treshold": 3}]},
        {"criteria": [{key: value for key, value in CRITERION.items() if key != "threshold"}]},
        {"criteria": [{**CRITERION, "weight": -1}]},
        {"criteria": [{**CRITERION, "threshold": {"min": 1, "maximum": 2}}]},
        {"criteria": [{}]},
        {"criteria": CRITERION},
        {"criteria": [CRITERION], "agregation": "all"},
        {"criteria": [CRITERION], "aggregation": "most"},
        {"criteria": [CRITERION], "minimum_weighted_score": 1.5},
        {"success_criteria": {"criteria": [CRITERION]}, "aggregation": "all"},
        {"aggregation": "all"},
        [],
        {"criteria": [{**EXPR, "params": {}, "comparison": "contains_any"}]},
        {"criteria": [{**EXPR, "params": {"a": 1}}]},
        {"criteria": [{**EXPR, "expr": ""}]},
        {"criteria": [{"expr": "1"}]},
        {"criteria": [CRITERION], "custom_metrics": CUSTOM},
        {"criteria": [CRITERION], "custom_metrics": [{**CUSTOM, "tier": "expr"}]},
        {"criteria": [CRITERION], "custom_metrics": [{**CUSTOM, "metrics": []}]},
        {"criteria": [CRITERION], "custom_metrics": [{**CUSTOM, "code_file": "mine.py"}]},
        {"criteria": [CRITERION], "custom_metrics": [{"metrics": ["mine"]}]},
        {"criteria": [CRITERION], "custom_metrics": [{**CUSTOM, "timeout_ms": 1}]},
    ],
)
def test_what_the_reader_refuses_the_schema_rejects(criteria_schema: Any, document: Any) -> None:
    with pytest.raises(ValueError, match="validation error"):
        meruit.SuccessCriteria.model_validate(document)
    assert not criteria_schema.is_valid(document)


@pytest.mark.parametrize("custom", [CUSTOM, {**CUSTOM, "tier": "python-full"}, {"metrics": ["a"], "code_file": "a.py"}])
def test_the_schema_accepts_code_and_files_of_code(criteria_schema: Any, custom: dict[str, Any]) -> None:
    document = {"criteria": [CRITERION], "custom_metrics": [custom]}
    parse_criteria(json.dumps(document), read_code=lambda _name: "code")
    assert criteria_schema.is_valid(document)
    assert criteria_schema.is_valid({"success_criteria": document})


def test_the_schema_of_settings_accepts_the_usual_and_rejects_a_misspelt_key() -> None:
    schema = jsonschema_rs.validator_for(build_json_schema("settings"), offline=True)
    assert schema.is_valid(Settings().model_dump(mode="json", by_alias=True))
    assert not schema.is_valid({"cashing": {}})


def test_the_schema_of_results_accepts_a_result() -> None:
    schema = jsonschema_rs.validator_for(build_json_schema("result"), offline=True)
    for output in ({"text": "two words"}, {"text": "one"}, {}):
        result = VerificationEngine().verify_sync("c", {}, output, {"criteria": [CRITERION]})
        assert schema.is_valid(result.to_dict())
    assert not schema.is_valid({"success": True})


@pytest.mark.parametrize("which", typing.get_args(typing.get_type_hints(build_json_schema)["which"]))
def test_every_schema_is_a_schema_with_a_name(which: Any) -> None:
    schema = build_json_schema(which)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == f"urn:meruit:{which}:1"
    jsonschema_rs.meta.validate(schema)


@pytest.mark.parametrize(
    ("budget", "fits"),
    [
        ({}, True),
        ({"max_cpa_total": 0.04}, True),
        ({"max_cpa_bonus": "0.04"}, True),
        ({"max_bonus": 1}, True),
        ({"cpa_bonus": {"max_total": 1}}, True),
        ({"cap": 1}, False),
        ({"max_bonus": -1}, False),
    ],
)
def test_editors_are_told_the_shape_of_work(budget: dict[str, object], fits: bool) -> None:
    schema = jsonschema_rs.validator_for(build_json_schema("work"), offline=True)
    criteria = {"criteria": [{"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 3}]}
    work = {"title": "Summarise", "success_criteria": criteria, "terms": {"cpc_rate": "0.05"}, "budget": budget}
    assert schema.is_valid(work) is fits
    assert not schema.is_valid({**work, "titel": "x"})
    assert schema.is_valid({"title": "Paid for completion alone"})
