"""`meruit checks`: what can be asserted about the world."""

import json
import subprocess
from collections.abc import Callable

import pytest
import yaml

from meruit.documents.authoring import parse_criteria
from meruit.registry import CheckRegistry, checks

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_every_check_is_listed_with_what_it_asserts(run: Run) -> None:
    ended = run("checks")
    assert ended.returncode == 0
    heading, *rows = ended.stdout.splitlines()
    assert heading.split()[:2] == ["check", "reads"]
    assert [row.split()[0] for row in rows] == checks.names()
    assert all(check.summary in row for check, row in zip(checks, rows, strict=True))


@pytest.mark.parametrize("name", checks.names())
def test_one_is_explained_with_its_settings_its_evidence_and_an_example_that_loads(run: Run, name: str) -> None:
    told = run("checks", name).stdout
    check = checks.get(name)
    assert told.startswith(f"{name} (version {check.version}): {check.summary}\n")
    assert f"its evidence is called {check.evidence}\n" in told
    assert "Whether the evidence shows values" in told
    example = told[told.index("criteria:\n") :]
    parse_criteria(example, assertions_too=True)
    assert yaml.safe_load(example)["criteria"][0]["assert"] == name


def test_settings_are_told_with_their_types(run: Run) -> None:
    told = run("checks", "fhir-resource-state").stdout
    assert "resource *       text " in told
    assert "changed          created | updated | deleted | any | none  What must have happened" in told
    assert "* must be given, one of them where they mean the same\n" in told
    assert "* must be given\n" in run("checks", "sftp-file-present").stdout
    assert "* must" not in run("checks", "state-unchanged").stdout


def test_programs_get_all_of_it(run: Run) -> None:
    several = json.loads(run("checks", "--json").stdout)
    assert [one["name"] for one in several] == checks.names()
    one = json.loads(run("checks", "voice-transcript", "--json").stdout)
    assert (one["reads"], one["evidence"], one["examples"][0]["assert"]) == (
        *(["voice"], "phraseResults"),
        "voice-transcript",
    )
    assert "forbidden" in one["settings"]["properties"]


def test_a_check_that_says_nothing_of_its_settings_is_listed_all_the_same(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = CheckRegistry("checks")

    @registry.add("mine")
    def mine(_assertion: object, _work: object) -> None:
        """It is as I say."""

    monkeypatch.setattr(registry, "_loaded", True)
    monkeypatch.setattr("meruit.registry.checks", registry)
    assert "mine   –      It is as I say." in run("checks").stdout
    assert "reads what it knows itself" in run("checks", "mine").stdout


def test_the_nearest_name_is_told(run: Run) -> None:
    ended = run("checks", "state-unchangd")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert (
        "no check is named 'state-unchangd' (did you mean 'state-unchanged'?); `meruit checks` lists all"
        in ended.stderr
    )
