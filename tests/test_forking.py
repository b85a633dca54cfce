"""The runner of `make test`: what it reports is what happened, in whichever process."""

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = """
import logging, os, signal, warnings
import pytest

@pytest.fixture(scope="session")
def opened(tmp_path_factory):
    folder = tmp_path_factory.mktemp("opened")
    yield folder
    with open(os.environ["CLOSED"], "a") as closed:
        closed.write(f"{folder.parent.name}/{folder.name}\\n")

@pytest.mark.parametrize("number", range(6))
def test_passes(number, opened, capfd):
    os.write(1, b"seen")
    assert capfd.readouterr().out == "seen"

def test_fails():
    print("printed by the test")
    raise AssertionError("as it should")

def test_is_skipped():
    pytest.skip("not here")

def test_logs(caplog):
    logging.getLogger("ours").warning("heard")
    assert caplog.messages == ["heard"]

def test_warns():
    warnings.warn("mind the step")

def test_is_killed():
    os.kill(os.getpid(), signal.SIGKILL)

def test_breaks_off():
    os._exit(3)
"""


def ran(
    folder: Path, *options: str, files: tuple[str, str] = (TESTS, TESTS)
) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """A run of two files in two workers, and what came of each test of them."""
    for name, text in zip(("test_one.py", "test_two.py"), files, strict=True):
        (folder / name).write_text(text)
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-p", "tests.forking", "--workers", "2", "--junitxml", str(report)]
    # None of the plugins that are installed here.
    command += ["-c", "/dev/null", "--rootdir", str(folder), "-p", "no:cacheprovider", "--import-mode=importlib"]
    environment = {"PATH": "/usr/bin", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CLOSED": str(folder / "closed")}
    done = subprocess.run(
        [*command, *options, str(folder)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    cases = {}
    for case in ET.parse(report).iter("testcase"):
        outcome = next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed")
        cases[f"{case.get('classname')}.{case.get('name')}"] = outcome
    return done, cases


def test_every_test_is_reported_once_though_workers_die(tmp_path: Path) -> None:
    done, cases = ran(tmp_path)
    assert done.returncode == 1, done.stdout
    expected = {f"passes[{number}]": "passed" for number in range(6)} | {
        "warns": "passed",
        "logs": "passed",
        "is_skipped": "skipped",
    }
    expected |= dict.fromkeys(("fails", "is_killed", "breaks_off"), "failure")
    assert cases == {
        f"{file}.test_{name}": what for file in ("test_one", "test_two") for name, what in expected.items()
    }
    for said in ("SIGKILL", "exit code 3", "as it should", "printed by the test", "mind the step"):
        assert said in done.stdout


def test_a_run_ends_whole_and_closes_what_it_opened(tmp_path: Path) -> None:
    done, cases = ran(tmp_path, "-k", "passes or skipped")
    assert done.returncode == 0, done.stdout
    assert len(cases) == 14
    closed = (tmp_path / "closed").read_text().split()
    assert len(closed) == len(set(closed))
    # The quicker worker may have run all of them.
    assert {one.partition("/")[0] for one in closed} & {"worker-0", "worker-1"}


def test_more_workers_run_what_waits_and_only_that(tmp_path: Path) -> None:
    marking = "import pytest, os\nfrom tests.forking import ALONE, WAITS\n"
    (tmp_path / "conftest.py").write_text(
        marking
        + "def pytest_collection_modifyitems(items):\n"
        + "    for item in items:\n        item.stash[WAITS] = item.stash[ALONE] = 'test_one' in item.nodeid\n"
        + "def pytest_runtest_setup(item):\n"
        + "    with open(os.environ['CLOSED'], 'a') as said:\n"
        + "        said.write(f'{item.nodeid.partition(\"::\")[0]} {os.getpid()}\\n')\n"
    )
    slow = "import time, pytest\n@pytest.mark.parametrize('number', range(8))\ndef test_it(number): time.sleep(0.5)\n"
    done, _ = ran(tmp_path, "--more", "4", files=(slow, slow))
    assert done.returncode == 0, done.stdout
    pairs = {tuple(line.split()) for line in (tmp_path / "closed").read_text().splitlines()}
    workers = {
        file: {worker for name, worker in pairs if name.endswith(file)} for file in ("test_one.py", "test_two.py")
    }
    assert len(workers["test_one.py"]) > 2 >= len(workers["test_two.py"]) > 0


def test_the_first_failure_can_end_it(tmp_path: Path) -> None:
    done, cases = ran(tmp_path, "-x", "-k", "fails or passes")
    assert done.returncode == 1
    assert 1 <= list(cases.values()).count("failure") <= 2
