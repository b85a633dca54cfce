"""Plugins: one file or one entry point, and nothing else to edit."""

import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from meruit.errors import MeruitError, UnknownName
from meruit.model.evidence import Checked
from meruit.model.kinds import MetricType
from meruit.model.work import Work
from meruit.registry import Ask, CheckRegistry, Measure, MetricRegistry, find_entry_points, metrics


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"'acuracy' .*'accuracy'.*`meruit metrics`"):
        metrics.get("acuracy")
    assert metrics.find("acuracy") is None


def test_two_plugins_of_one_name_are_refused() -> None:
    registry = MetricRegistry("nowhere")
    add = registry.add("mine", kind=MetricType.COUNT, examples=[])
    add(lambda _work: 1)
    with pytest.raises(MeruitError, match="two nowhere are named 'mine'"):
        add(lambda _work: 2)


def test_a_metric_with_params_prepares_once() -> None:
    registry = MetricRegistry("nowhere")
    prepared = []

    @registry.add("mine", kind=MetricType.COUNT, params={"unit": "what to count"}, examples=[])
    def mine(ask: Ask) -> Measure:
        """Counts what is asked for."""
        prepared.append(ask)
        return lambda work: work.output["text"].count(ask.params["unit"])

    measure = registry.get("mine").prepare(Ask({"unit": "a"}))
    assert [measure(Work(output={"text": text})) for text in ("aa", "b")] == [2, 0]
    assert len(prepared) == 1
    assert registry.get("mine").summary == "Counts what is asked for."
    assert registry.names() == ["mine"]


def test_a_check_registers_itself() -> None:
    registry = CheckRegistry("nowhere")

    @registry.add("always")
    def always(assertion: object, work: Work) -> Checked:
        """Holds always."""
        return Checked("1")

    assert [check.name for check in registry] == ["always"]
    assert registry.get("always").summary == "Holds always."


def test_an_installed_package_adds_metrics_that_every_part_knows(tmp_path: Path) -> None:
    (tmp_path / "tone.py").write_text(
        "from meruit.model.criterion import MetricType\n"
        "from meruit.model.work import Work\n"
        "from meruit.registry import metrics\n\n"
        "@metrics.add('shouting', kind=MetricType.COUNT, examples=[(Work(output={'text': 'A!'}), 1)])\n"
        "def shouting(work):\n"
        '    """Exclamation marks."""\n'
        "    return work.output['text'].count('!')\n"
    )
    information = tmp_path / "tone-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: tone\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[meruit.metrics]\ntone = tone\n")
    (tmp_path / "criteria.yaml").write_text(
        "criteria:\n  - {metric: shouting, metric_type: count, comparison: lte, threshold: 1}\n"
    )
    (tmp_path / "out.json").write_text('{"text": "No! No!"}')
    for arguments, code, said in (
        (["metrics", "shouting"], 0, "Exclamation marks."),
        (["verify", "criteria.yaml", "--output", "out.json"], 1, "shouting is required and not met"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "meruit", *arguments],
            cwd=tmp_path,
            env={"PYTHONPATH": str(tmp_path), "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert (done.returncode, said in done.stdout) == (code, True), done.stdout + done.stderr


def test_what_several_metrics_share_is_computed_once() -> None:
    calls = []

    def words(work: Work) -> list[str]:
        calls.append(work)
        return str(work.output["text"]).split()

    work = Work(output={"text": "a b"})
    assert work.derive(words) is work.derive(words)
    assert len(calls) == 1


@pytest.fixture
def entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Install a package whose only content is these entry points."""

    def install(written: str) -> None:
        information = tmp_path / "tone-1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: tone\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text(written)
        monkeypatch.syspath_prepend(str(tmp_path))

    return install


def test_a_plugin_that_cannot_be_loaded_is_named(entry_points: Callable[[str], None]) -> None:
    entry_points("[meruit.nowhere]\nfine = json\ntone = no_such_package.tone\n")
    registry = MetricRegistry("nowhere")
    for _ in range(2):
        with pytest.raises(MeruitError, match=r"'tone' \(no_such_package.tone\)"):
            registry.names()


@pytest.mark.parametrize("group", ["meruit.nowhere", "pydantic", "none.of.ours"])
def test_entry_points_are_those_that_python_finds(entry_points: Callable[[str], None], group: str) -> None:
    entry_points("# A note.\n [meruit.nowhere] \nfine = json\n\n[other]\n[x = y\n")
    assert [*find_entry_points(group)] == [*metadata.entry_points(group=group)]


def test_packages_in_an_archive_or_behind_a_finder_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "tone.zip", "w") as archive:
        archive.writestr("tone-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tone\nVersion: 1.0\n")
        archive.writestr("tone-1.0.dist-info/entry_points.txt", "[meruit.nowhere]\nfine = json\n")
    with monkeypatch.context() as here:
        here.syspath_prepend(str(tmp_path / "tone.zip"))
        assert [point.name for point in find_entry_points("meruit.nowhere")] == ["fine"]
    assert [*find_entry_points("meruit.nowhere")] == []

    class Finder:
        @staticmethod
        def find_spec(*_: object) -> None:
            """Finds no module."""

        @staticmethod
        def find_distributions(_context: object) -> list[metadata.Distribution]:
            return [metadata.PathDistribution(zipfile.Path(tmp_path / "tone.zip", "tone-1.0.dist-info/"))]

    # The search above is remembered by the path, which is another here.
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert [point.name for point in find_entry_points("meruit.nowhere")] == ["fine"]


def test_the_text_of_our_files_tells_every_name_and_family() -> None:
    told = MetricRegistry("metrics").families()
    assert told == {metric.name: metric.family for metric in metrics}
    assert sorted(told) == metrics.names() == [metric.name for metric in metrics]


def test_only_the_file_of_a_metric_that_is_asked_is_loaded() -> None:
    program = (
        "import sys; from meruit.registry import metrics; assert metrics.get('latency_ms').family == 'latency'; "
        "loaded = [one for one in sys.modules if one.startswith('meruit.metrics.') and one.count('.') == 2]; "
        "print(*loaded)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.split() == ["meruit.metrics.latency"]


def test_a_name_that_one_of_our_files_defines_is_refused_before_that_file_is_loaded() -> None:
    program = (
        "from meruit.model.kinds import MetricType; from meruit.registry import metrics\n"
        "metrics.add('word_count', kind=MetricType.COUNT, examples=[])(lambda work: 1)\n"
        "try: metrics.find('rouge1')\n"
        "except Exception as problem: print(type(problem).__name__, 'word_count' in str(problem))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.split() == ["MeruitError", "True"]
