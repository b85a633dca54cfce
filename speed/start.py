"""What it costs to begin: importing the package, and asking the command line for help."""

import resource
import subprocess
import sys
from collections.abc import Iterator

from speed.measure import Row

TRIES = 7


def rows() -> Iterator[Row]:
    bare = [sys.executable, "-c", "pass"]
    yield _row("import meruit", [sys.executable, "-c", "import meruit"], bare)
    yield _row("meruit --help", [sys.executable, "-m", "meruit", "--help"], bare)
    yield _row("import meruit.checks", [sys.executable, "-c", "import meruit.checks"], bare)
    loaded = "from meruit.registry import checks; checks.names()"
    yield _row("every check loaded", [sys.executable, "-c", loaded], bare)
    yield _row(
        "from meruit import VerificationEngine",
        [sys.executable, "-c", "from meruit import VerificationEngine"],
        bare,
    )


def _row(name: str, command: list[str], bare: list[str]) -> Row:
    ours = baseline = float("inf")
    for _ in range(TRIES):
        ours = min(ours, _cpu_us(command))
        baseline = min(baseline, _cpu_us(bare))
    return Row(name, ours, baseline, "a bare interpreter", None)


def _cpu_us(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1e6
