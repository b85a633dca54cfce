"""The command line, called in this process as a shell would call it."""

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.trade import Clock, Stall, conserved

from meruit.cli import main

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own, and no settings from outside."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MERUIT_CONFIG", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Call the command line and see its exit code and both streams."""

    def call(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            main([*arguments])
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return subprocess.CompletedProcess(arguments, int(ended.value.code), out, err)

    return call


@pytest.fixture
def write() -> Callable[[str, Any], str]:
    """Put a file in the folder: bytes and text as they are, anything else as JSON."""

    def put(name: str, content: Any) -> str:
        if not isinstance(content, bytes):
            content = (content if isinstance(content, str) else json.dumps(content)).encode()
        Path(name).write_bytes(content)
        return name

    return put


@pytest.fixture
def stall(run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stall]:
    """A place to trade; when the test is over, its books must be sound."""
    monkeypatch.delenv("MERUIT_DATA", raising=False)
    monkeypatch.delenv("MERUIT_DATABASE_URL", raising=False)
    yield Stall(run)
    conserved()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time, as a test wants it."""
    return Clock(monkeypatch)
