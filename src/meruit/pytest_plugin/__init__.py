"""The pytest plugin: judge an agent's work in tests, run a test for each case of a file, record a session.

Read in this order:
    __init__.py   options, marker and fixture: all that sessions load that use none of it
    fixture.py    MeruitFixture: what a test calls
    dataset.py    one test for each case of a file
    failure.py    a verdict as the message of a failed test
    recording.py  the verdicts of a session as an evaluation, also with several workers
"""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from meruit.pytest_plugin.fixture import MeruitFixture

MARKER = "meruit_dataset"
_OPTIONS = (
    ("data", "FOLDER", "Record the verdicts of the session in this folder."),
    ("name", "NAME", "Record them as an evaluation of this name; {time} is the time (default: pytest-{time})."),
    ("config", "FILE", "Settings of the judge, as outcome-verification.yaml."),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, each of them also a setting of the ini file."""
    group = parser.getgroup("meruit", "verdicts on the work of agents")
    for name, metavar, text in _OPTIONS:
        group.addoption(f"--meruit-{name}", dest=f"meruit_{name}", metavar=metavar, help=text)
        parser.addini(f"meruit_{name}", text, default="")
    tags = "Tag of the recorded evaluation, as model=m-2; repeatable."
    group.addoption("--meruit-tag", dest="meruit_tags", metavar="NAME=VALUE", action="append", default=[], help=tags)
    parser.addini("meruit_tags", "Tags of the recorded evaluation, one NAME=VALUE a line.", type="linelist", default=[])


def option_of(config: pytest.Config, name: str) -> str | None:
    """What the command line says, or else the ini file."""
    return config.getoption(f"meruit_{name}") or config.getini(f"meruit_{name}") or None


def pytest_configure(config: pytest.Config) -> None:
    """Explain the marker, and prepare to record where that is asked for."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(file, map=None, format=None, limit=None): run the test once for each case of a file of cases, or of "
        "dataset:NAME; the test takes the argument `case`.",
    )
    if option_of(config, "data") is not None or option_of(config, "name") is not None:
        from meruit.pytest_plugin.recording import SessionRecorder

        config.pluginmanager.register(SessionRecorder(config), "meruit_recorder")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a marked test each case of its file."""
    marker = metafunc.definition.get_closest_marker(MARKER)
    if marker is not None:
        from meruit.pytest_plugin.dataset import parametrize_cases

        parametrize_cases(metafunc, marker)


@pytest.fixture
def meruit(request: pytest.FixtureRequest) -> "MeruitFixture":
    """Judge work by criteria: `meruit.verify("criteria.yaml", output=…)` fails the test unless they are met."""
    from meruit.pytest_plugin.fixture import open_fixture

    return open_fixture(request)
