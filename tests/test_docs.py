"""Every example in the README and in docs/ is executed, and its output compared."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]
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


def run_console(text: str, folder: Path) -> None:
    bin_folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}", "LANG": "C.UTF-8"}
    environment.pop("MERUIT_CONFIG", None)
    code = 0
    for command, expected in commands(text):
        if command == "echo $?":
            assert f"{code}\n" == expected
            continue
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout == expected, f"{command}\n{done.stdout}\n{done.stderr}"
        code = done.returncode


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_a_page_are_true(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own: an example may register plugins."""
    folder = page.parent if page.parent.parent.name == "examples" else tmp_path
    code: list[str] = []
    for block in blocks(page):
        match block.language:
            case "yaml" | "json" if block.file:
                (tmp_path / block.file).write_text(block.text, encoding="utf-8")
            case "console":
                run_console(block.text, folder)
            case "python":
                code.append("\n" * (block.line - "".join(code).count("\n")) + block.text)
            case _:
                continue
    if code:
        script = tmp_path / "example.py"
        script.write_text("".join(code), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(script)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr


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
