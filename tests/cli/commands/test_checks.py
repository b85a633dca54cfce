"""`meruit checks`: what can be asserted about the world."""

import json
import subprocess
from collections.abc import Callable

import pytest
import yaml
from tests.cli.refusals import error_of, session_of
from tests.golden import check_golden

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
def test_a_check_is_explained_with_an_example_that_loads(run: Run, name: str) -> None:
    shown = run("checks", name).stdout
    check = checks.get(name)
    assert shown.startswith(f"{name} (version {check.version}): {check.summary}\n")
    assert f" {check.evidence}\n" in shown
    example = shown[shown.index("criteria:\n") :]
    parse_criteria(example, assertions_too=True)
    assert yaml.safe_load(example)["criteria"][0]["assert"] == name


@pytest.mark.golden
def test_a_check_reads_as_recorded(run: Run) -> None:
    names = ("fhir-resource-state", "sftp-file-present", "state-unchanged")
    check_golden("cli/checks", session_of(run, *(("checks", name) for name in names)))


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
    assert run("checks", "mine").returncode == 0


def test_the_nearest_name_is_suggested(run: Run) -> None:
    error = error_of(run, "checks", "state-unchangd")
    assert error["code"] == "unknown_name"
    assert all(name in error["message"] for name in ("'state-unchangd'", "'state-unchanged'"))
