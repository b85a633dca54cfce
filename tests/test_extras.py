"""A base install without extras: what works, and what a command says that needs one."""

import json
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.reports.worlds import recorded

from meruit.errors import EXTRA_OF, MissingExtra
from meruit.model.kinds import Tier
from meruit.sandbox import expression, interpreter
from meruit.sandbox.selftest import examine

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CRITERIA = "criteria: [{metric: word_count, metric_type: count, comparison: gte, threshold: 2}]"


SERVING = """
import asyncio, httpx
from pathlib import Path
from meruit.api.app import assemble_service, build_app
from meruit.api.server import ShutdownSignal
from meruit.app import build_engine
from meruit.config import Settings
from meruit.console.app import build_pages
from meruit.store.location import Location
from meruit.store.store import Store

async def ask(app):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        for path in ("/health?", "/"):
            reply = await client.get(path)
            print(reply.status_code, reply.headers["content-type"])

store = Store.open(Location(Path("data")))
service = assemble_service(build_engine(Settings()), Settings(), store, ShutdownSignal())
asyncio.run(ask(build_app(service, build_pages(store))))
store.close()
"""
"""Asks a service with its console."""


def run_without(packages: list[str], words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as if the packages were not installed."""
    hide = f"import sys; sys.modules.update(dict.fromkeys({packages!r}))"
    script = f"{hide}; from meruit.cli import main; main({words!r})"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=folder)


def test_work_is_judged_and_recorded_without_any_extra(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CRITERIA)
    (tmp_path / "o.json").write_text('{"text": "a b c"}')
    ended = run_without([*EXTRA_OF], ["verify", "c.yaml", "--output", "o.json", "--record", "--json"], tmp_path)
    assert ended.returncode == 0
    assert json.loads(ended.stdout)["verdict"] == "pass"
    listed = run_without([*EXTRA_OF], ["outcome", "list", "--json"], tmp_path)
    assert listed.returncode == 0
    assert '"verdict":"pass"' in listed.stdout


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["demo", "--json"], "reconcile"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_command_names_the_extra_that_it_needs(tmp_path: Path, words: list[str], extra: str) -> None:
    ended = run_without([*EXTRA_OF], [word for word in words if word != "--json"], tmp_path)
    assert ended.returncode == 2
    assert f"meruit[{extra}]" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_data_of_a_report_need_no_extra(tmp_path: Path) -> None:
    (tmp_path / "runs.json").write_bytes(msgspec.json.encode([recorded("a")]))
    ended = run_without([*EXTRA_OF], ["report", "build", "--json", "--from", "runs.json"], tmp_path)
    assert (ended.returncode, json.loads(ended.stdout)["runs"]) == (0, 1)


@pytest.mark.parametrize(("module", "tier"), [(expression, Tier.EXPR), (interpreter, Tier.PYTHON)])
def test_custom_code_names_its_extra(monkeypatch: pytest.MonkeyPatch, module: ModuleType, tier: Tier) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    engine = module.engine
    engine.cache_clear()
    monkeypatch.setattr(metadata, "version", missing)
    try:
        with pytest.raises(MissingExtra, match="custom"):
            engine()
        found = examine(tier)
    finally:
        engine.cache_clear()
    assert not found.ready
    assert "meruit[custom]" in found.reason


def test_every_extra_that_an_error_names_exists() -> None:
    assert {*EXTRA_OF.values()} <= {*PROJECT["optional-dependencies"]}
    assert MissingExtra.of(ModuleNotFoundError("no", name="asyncssh.sftp")) is not None
    assert MissingExtra.of(ModuleNotFoundError("no", name="unheard_of")) is None


def test_the_base_install_has_no_exact_pin_and_nothing_of_an_extra() -> None:
    base = PROJECT["dependencies"]
    assert not [one for one in base if "==" in one]
    names = {one.replace("-", "_").split(">")[0] for one in base}
    assert not names & {*EXTRA_OF}


def required_by(requirements: list[str], found: set[str]) -> set[str]:
    """The packages that these bring along, without extras; what is not installed here brings nothing."""
    for one in requirements:
        wanted = Requirement(one)
        name = canonicalize_name(wanted.name)
        if name in found or (wanted.marker is not None and not wanted.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        with suppress(metadata.PackageNotFoundError):
            required_by(metadata.requires(name) or [], found)
    return found


def test_the_base_install_brings_no_package_of_test_data() -> None:
    found = required_by(PROJECT["dependencies"], set())
    assert {"starlette", "uvicorn", "anyio", "jinja2"} <= found
    assert not found & {"faker", "polyfactory", "litestar", "fastapi", "pytest", "hypothesis"}


def test_pages_and_the_api_are_served_without_any_extra(tmp_path: Path) -> None:
    hide = f"import sys; sys.modules.update(dict.fromkeys({[*EXTRA_OF]!r}))"
    ended = subprocess.run(
        [sys.executable, "-c", f"{hide}\n{SERVING}"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert ended.stdout.split() == ["200", "application/json", "200", "text/html;", "charset=utf-8"], ended.stderr


def test_the_wheel_takes_templates_and_styles_with_the_package() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]
    assert wheel["packages"] == ["src/meruit"]
    assert not {"include", "only-include", "exclude", "artifacts"} & {*wheel}
    # The backend leaves out what git ignores; folders of templates must not be among it.
    ignored = {one.strip("/") for one in (ROOT / ".gitignore").read_text(encoding="utf-8").split()}
    files = [one for one in (ROOT / "src/meruit").rglob("*") if one.suffix in (".html", ".css", ".svg")]
    assert len(files) > 20
    assert not [one for one in files if ignored & {*one.relative_to(ROOT).parts}]
