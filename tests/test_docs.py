"""Every example in the README and in docs/ is executed, and its output compared."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pytest

from meruit.app import build_json_schema
from meruit.documents.authoring import parse_criteria

ROOT = Path(__file__).parent.parent
INSTALLED = Path(sys.executable).parent
"""Where the programs `meruit` and `python` are."""
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]
TUTORIAL = "tutorial-"
FENCE = re.compile(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    language: str
    file: str | None
    text: str
    line: int


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        yield Block(found[1], found[2], found[3], text.count("\n", 0, found.start()) + 1)


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Each typed line with what it printed."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, printed = part.partition("\n")
        yield command, printed


SERVED = "localhost:8484"
"""Where the pages' service is; a test has one of its own, on a free port."""
STARTED = re.compile(r"(?P<command>.*) --port (?P<port>\d+) &")
"""A server that a page starts beside its commands; a test gives it a free port."""
VARYING = re.compile(
    r"\b(brn|con|crn|ev|evt|mk|out|own|pg|req|run|sub|trn|whk|wrk)_[0-9a-f]{12,34}(\.[A-Za-z0-9_-]{43})?"
    r"|\d{4}-\d\d-\d\d(T[\d:.]+Z| \d\d:\d\d:\d\d)"
    r"|\bmeruit-[0-9a-f]{16}\+[0-9a-f]{8}\b"
)


def alike(text: str) -> str:
    """The text without what differs from run to run: ids, secrets and moments."""
    return VARYING.sub("…", text)


@contextmanager
def served(pages: str, folder: Path, programs: Path) -> Iterator[str]:
    """A real service for pages that call one; gives where it listens."""
    if SERVED not in pages:
        yield SERVED
        return
    command = [str(programs / "meruit"), "serve", "--port", "0", "--json"]
    with (folder / "service.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(programs), stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["url"].removeprefix("http://")
        finally:
            process.terminate()
            process.communicate(timeout=300)


def environment(programs: Path) -> dict[str, str]:
    path = os.pathsep.join([str(programs), str(INSTALLED), os.environ["PATH"]])
    found = {**os.environ, "PATH": path, "LANG": "C.UTF-8"}
    return {name: value for name, value in found.items() if not name.startswith("MERUIT_")}


class Console:
    """Runs what a page types, in its folder; the servers that it starts end with `ending`."""

    def __init__(self, folder: Path, where: str, programs: Path, ending: ExitStack) -> None:
        self.folder, self.programs, self.ending = folder, programs, ending
        self.places = {SERVED: where}
        """Where a server is for the page, and where it is in truth."""

    def place(self, text: str) -> str:
        for named, where in self.places.items():
            text = text.replace(named, where)
        return text

    def run(self, text: str) -> None:
        code = 0
        for command, expected in commands(text):
            if command == "echo $?":
                assert f"{code}\n" == expected
                continue
            if server := STARTED.fullmatch(command):
                self.start(server["command"], f"localhost:{server['port']}", expected)
                continue
            done = subprocess.run(
                ["bash", "-c", self.place(command)],
                cwd=self.folder,
                env=environment(self.programs),
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            printed = done.stdout
            for named, where in self.places.items():
                printed = printed.replace(where, named)
            assert alike(printed) == alike(expected), f"{command}\n{printed}\n{done.stderr}"
            code = done.returncode

    def start(self, command: str, named: str, expected: str) -> None:
        """Start a server, whose first line says where it listens."""
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command} --port 0"],
            cwd=self.folder,
            env=environment(self.programs),
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ending.callback(process.communicate, timeout=300)
        self.ending.callback(process.terminate)
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"localhost:\d+", line)
        assert found is not None, line
        self.places[named] = found[0]
        assert line.replace(found[0], named) == expected


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_a_page_are_true(page: Path, tmp_path: Path, meruit_at_hand: Path) -> None:
    """In a process of its own: an example may register plugins."""
    programs = meruit_at_hand
    if page.parent.parent.name == "examples":
        # What an example writes is not left among its files, however the test ends.
        shutil.copytree(page.parent, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    if page.stem.startswith(TUTORIAL):
        # A tutorial begins with the files of the example of the same name.
        shutil.copytree(ROOT / "examples" / page.stem.removeprefix(TUTORIAL), tmp_path, dirs_exist_ok=True)
    code: list[str] = []
    with served(page.read_text(encoding="utf-8"), tmp_path, programs) as where, ExitStack() as ending:
        console = Console(tmp_path, where, programs, ending)
        for block in blocks(page):
            match block.language:
                case "yaml" | "json" | "python" if block.file:
                    (tmp_path / block.file).write_text(console.place(block.text), encoding="utf-8")
                case "console":
                    console.run(block.text)
                case "python":
                    code.append("\n" * (block.line - "".join(code).count("\n")) + block.text)
                case _:
                    continue
    if code:
        script = tmp_path / "example.py"
        script.write_text("".join(code), encoding="utf-8")
        done = subprocess.run(
            [meruit_at_hand / "python", str(script)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_the_program_is_installed_under_its_name() -> None:
    done = subprocess.run([INSTALLED / "meruit", "--version"], capture_output=True, text=True, check=True, timeout=300)
    assert version("meruit") in done.stdout


def test_assertions_in_the_docs_are_understood() -> None:
    fragments = [block for block in blocks(ROOT / "docs" / "checks.md") if block.text.startswith("- ")]
    assert len(fragments) >= 7
    for block in fragments:
        text = "criteria:\n" + block.text
        parse_criteria(text, f"checks.md, line {block.line}", assertions_too=True)


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_the_generated_pages_are_what_the_code_says() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_setting_is_explained() -> None:
    page = "\n".join(runpy.run_path(str(ROOT / "docs" / "generate.py"))["settings_page"]())
    sections = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    rows = [row for one in sections for row in re.findall(r"^\| (`.*) \|$", one, flags=re.MULTILINE)]
    assert all(cell.strip() for row in rows for cell in row.split(" | "))
    schema = build_json_schema("settings")
    keys = {
        key for one in (schema, *schema["$defs"].values()) if isinstance(one, dict) for key in one.get("properties", {})
    }
    assert len(keys) > 40
    assert {row.split(" | ")[0].strip("`") for row in rows} >= keys


def test_the_files_that_the_architecture_names_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[a-z0-9_]+/)+(?:[a-z0-9_]+\.py)?)`", page))
    assert len(named) > 40
    roots = (ROOT / "src" / "meruit", ROOT)
    assert sorted(name for name in named if not any((root / name).exists() for root in roots)) == []


def test_every_page_that_the_glossary_names_exists() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    assert [name for name in set(re.findall(r"\(([a-z-]+\.md)\)", page)) if not (ROOT / "docs" / name).exists()] == []
    words = re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE)[1:]
    assert words == sorted(words)
