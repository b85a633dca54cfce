"""Starts one of our scripts as a process of its own, in a session of its own, and waits for what it says."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1", "LANG": "C.UTF-8"}
"""Nothing of ours: what a sandbox gives away must not depend on who runs the tests."""


class Said(NamedTuple):
    """How a script ended."""

    code: int | None
    """None when it had to be ended."""
    out: str
    error: str


def start(script: str, *arguments: str, folder: Path | None = None) -> "subprocess.Popen[str]":
    """The script, running; what it leaves behind when it is killed stays in the folder."""
    return subprocess.Popen(
        [sys.executable, "-m", f"tests.faults.{script}", *arguments],
        cwd=ROOT,
        env=ENVIRONMENT if folder is None else {**ENVIRONMENT, "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(script: str, *arguments: str, patience_s: float) -> Said:
    """What the script said; ended with all its group when that takes too long."""
    with start(script, *arguments) as process:
        try:
            out, error = process.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            out, error = process.communicate()
            return Said(None, out, error)
    return Said(process.returncode, out, error)
