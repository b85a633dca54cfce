"""Runs hostile code in each tier and checks that it could not escape on this machine."""

import math
import os
import platform
import secrets
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from meruit.errors import Failure, MissingExtra
from meruit.model.kinds import Tier
from meruit.model.record import Record
from meruit.sandbox import confine
from meruit.sandbox.contract import SandboxResult
from meruit.sandbox.sandbox import Sandbox

TIMEOUT_MS = 250
PATIENCE = (1, 8, 64)
"""Factors by which further attempts at a trial get more time than the first."""
MEMORY_MB = 64
"""Small, so that the limit is reached soon; a larger limit is enforced the same way."""
NOT_INSTALLED = "not installed"
"""The engine of a tier whose packages are missing."""
GRACE_S = 0.5
"""How much later than its limit an answer may come."""


class EscapeTarget(msgspec.Struct, frozen=True):
    """A file and a folder that hostile code tries to reach."""

    folder: Path
    secret: str

    @property
    def file(self) -> Path:
        """A file that every user of this machine may read."""
        return self.folder / "secret"

    def context(self) -> dict[str, Any]:
        """The context of the code, with the paths to attack."""
        return {"input": {"file": str(self.file), "new": str(self.folder / "new")}, "output": {"text": "a b c"}}


class Trial(msgspec.Struct, frozen=True):
    """One piece of code, and what must be true once it ran."""

    name: str
    code: str
    holds: Callable[[SandboxResult, EscapeTarget], bool]


class TrialResult(Record, frozen=True):
    """How one trial went."""

    name: str
    held: bool
    saw: str
    """The result."""
    why: str = ""
    """Its message."""


class Examination(Record, frozen=True):
    """The state of one tier on this machine."""

    tier: Tier
    engine: str
    ready: bool
    """Whether the tier runs and passed every trial."""
    reason: str
    """Why it is not ready; empty when it is."""
    trials: list[TrialResult]

    @property
    def is_installed(self) -> bool:
        """Whether the tier can run code at all."""
        return self.engine != NOT_INSTALLED


def describe_machine() -> str:
    """The machine's properties that confinement depends on, in one line."""
    who = "root (workers give it up)" if os.geteuid() == 0 else f"user {os.geteuid()}"
    landlock = confine.landlock_version() if platform.system() == "Linux" else 0
    files = f"Landlock {landlock}" if landlock else "no Landlock"
    return f"{platform.system()} {platform.release()} on {platform.machine()}, {files}, running as {who}"


def examine(tier: Tier, memory_limit_mb: int = MEMORY_MB) -> Examination:
    """Try hostile code in one tier; takes half a second or so."""
    try:
        return _examine(tier, memory_limit_mb)
    except MissingExtra as missing:
        return Examination(tier, NOT_INSTALLED, ready=False, reason=str(missing), trials=[])


def _examine(tier: Tier, memory_limit_mb: int) -> Examination:
    with Sandbox(tier, memory_limit_mb, max_workers=1) as sandbox, tempfile.TemporaryDirectory() as folder:
        target = EscapeTarget(Path(folder), secrets.token_hex(16))
        target.folder.chmod(0o777)
        target.file.write_text(target.secret)
        target.file.chmod(0o644)
        first = sandbox.execute_sync(_HONEST[tier].code, target.context(), TIMEOUT_MS * 10)
        if first.failure is Failure.SANDBOX_UNAVAILABLE:
            return Examination(tier, sandbox.engine, ready=False, reason=first.message, trials=[])
        trials = [_run_with_retries(sandbox, trial, target) for trial in (*_HOSTILE[tier], _HONEST[tier])]
    broken = [trial for trial in trials if not trial.held]
    # A tier that does not run at all cannot fail a trial.
    refused = next((trial.why for trial in broken if trial.saw == Failure.SANDBOX_UNAVAILABLE), None)
    reason = refused or f"trials failed: {', '.join(trial.name for trial in broken)}" if broken else ""
    return Examination(tier, sandbox.engine, ready=not broken, reason=reason, trials=trials)


def _run_with_retries(sandbox: Sandbox, trial: Trial, target: EscapeTarget) -> TrialResult:
    """Run a trial; one that was only late gets more time, because the machine may be busy."""
    for factor in PATIENCE[:-1]:
        found, late = _run_trial(sandbox, trial, target, TIMEOUT_MS * factor)
        if found.held or not late:
            return found
    return _run_trial(sandbox, trial, target, TIMEOUT_MS * PATIENCE[-1])[0]


def _run_trial(sandbox: Sandbox, trial: Trial, target: EscapeTarget, timeout_ms: int) -> tuple[TrialResult, bool]:
    """Run the trial once; returns its result, and whether it failed only by being late."""
    start = time.monotonic()
    result = sandbox.execute_sync(trial.code, target.context(), timeout_ms)
    took_s = time.monotonic() - start
    shown = f"{dict(result)} {result.message}"
    clean = target.secret not in shown and [file.name for file in target.folder.iterdir()] == [target.file.name]
    in_time = took_s <= timeout_ms / 1000 + GRACE_S
    held = clean and in_time and trial.holds(result, target)
    seen = f"{result.failure or dict(result.get('metrics', {}))}"
    return TrialResult(trial.name, held, seen, result.message), clean and (
        not in_time or result.failure is Failure.TIMEOUT
    )


def _nothing_gained(result: SandboxResult, _target: EscapeTarget) -> bool:
    """Whether the code reports nothing gained."""
    gained: float = result.get("metrics", {}).get("gained", 0)
    return gained <= 0


def _fails_as(*failures: Failure) -> Callable[[SandboxResult, EscapeTarget], bool]:
    return lambda result, _target: result.failure in failures


def _measures(**metrics: float) -> Callable[[SandboxResult, EscapeTarget], bool]:
    return lambda result, _target: result.failure is None and result["metrics"] == metrics


def _code(body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    return f"def metric(input, output, metadata):\n{lines}"


_PYTHON = (
    Trial("reads a file", _code("return {'gained': len(open(input['file']).read())}"), _nothing_gained),
    Trial("writes a file", _code("open(input['new'], 'w').write('x')\nreturn {'gained': 1}"), _nothing_gained),
    Trial("reads the environment", _code("import os\nreturn {'gained': len(os.environ['PATH'])}"), _nothing_gained),
    Trial("starts a program", _code("import os\nos.system('touch ' + input['new'])\nreturn {}"), _nothing_gained),
    Trial("forks", _code("import os\nreturn {'gained': os.fork()}"), _nothing_gained),
    Trial(
        "opens a socket past Python",
        _code("import ctypes\nreturn {'gained': ctypes.CDLL(None).socket(2, 1, 0)}"),
        _nothing_gained,
    ),
    Trial("loops without end", _code("while True: pass"), _fails_as(Failure.TIMEOUT)),
    Trial("takes memory without end", _code("x = [0]\nwhile True: x = x + x"), _fails_as(Failure.MEMORY)),
    Trial("recurses without end", _code("def f(n): return f(n + 1)\nreturn f(0)"), _fails_as(Failure.CRASHED)),
    Trial("answers NaN", _code("return {'gained': float('nan')}"), _fails_as(Failure.RESULT_REJECTED)),
    Trial("poisons the next call", "import math\nmath.pi = 4\nlen = None\n" + _code("return {}"), _nothing_gained),
)
_HOSTILE: Mapping[Tier, tuple[Trial, ...]] = {
    Tier.EXPR: (
        Trial(
            "takes memory without end",
            "size('aaaaaaaa'" + ".replace('a', 'aaaaaaaaaaaaaaaa')" * 12 + ")",
            _fails_as(Failure.MEMORY, Failure.CRASHED, Failure.TIMEOUT),
        ),
        Trial(
            "loops without end",
            "size(" + "[1,2,3,4,5,6,7,8].map(a, " * 12 + "1" + ")" * 12 + ")",
            _fails_as(Failure.TIMEOUT, Failure.UNSUPPORTED_CONSTRUCT),
        ),
        Trial("answers NaN", "0.0 / 0.0", _fails_as(Failure.RESULT_REJECTED)),
        Trial("answers a text", "output.text", _fails_as(Failure.RESULT_REJECTED)),
        Trial("reaches for more than it is given", "environment.PATH", _fails_as(Failure.UNSUPPORTED_CONSTRUCT)),
    ),
    Tier.PYTHON: _PYTHON,
    Tier.PYTHON_FULL: _PYTHON,
}
_HONEST_CODE = "import math\n" + _code("return {'words': len(output['text'].split()), 'pi': math.pi}")
_HONEST: Mapping[Tier, Trial] = {
    Tier.EXPR: Trial("honest work is measured", "size(output.text)", _measures(value=5)),
    Tier.PYTHON: Trial("honest work is measured", _HONEST_CODE, _measures(words=3, pi=math.pi)),
    Tier.PYTHON_FULL: Trial("honest work is measured", _HONEST_CODE, _measures(words=3, pi=math.pi)),
}
