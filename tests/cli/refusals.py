"""Commands that must fail, and the error that they report as JSON."""

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

Run = Callable[..., subprocess.CompletedProcess[str]]

VARYING = re.compile(
    r"\b(brn|con|crn|evt|mk|out|pg|run|sub|trn|whk|wrk)_[0-9a-f]{12,34}"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?"
    r"|/tmp/[^\s:;,]+"
)
"""Ids, moments and folders, which differ from run to run."""


def error_of(run: Run, *arguments: str, exit_code: int = 2, stdin: bytes = b"") -> dict[str, Any]:
    """Run a command with `--json`; it must print nothing on stdout and end stderr with one error."""
    ended = run(*arguments, "--json", stdin=stdin) if stdin else run(*arguments, "--json")
    assert (ended.returncode, ended.stdout) == (exit_code, ""), ended.stderr
    *notes, last = ended.stderr.splitlines()
    assert all(not line.startswith("error") for line in notes)
    error: dict[str, Any] = json.loads(last)["error"]
    assert {"code", "message", "where", "hint"} <= error.keys()
    return error


def session_of(run: Run, *commands: Sequence[str]) -> str:
    """What a terminal shows of commands that are typed one after the other, for a golden file."""
    lines = list[str]()
    for arguments in commands:
        ended = run(*arguments)
        shown = shlex.join(argument if len(argument) < 80 else f"{argument[:20]}…" for argument in arguments)
        lines += [f"$ meruit {shown}", *ended.stdout.splitlines(), *ended.stderr.splitlines(), f"[{ended.returncode}]"]
    return VARYING.sub("…", "\n".join(lines)).encode("utf-8", "backslashreplace").decode() + "\n"
