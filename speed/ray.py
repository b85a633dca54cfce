"""Evaluations and rescores on Ray's workers, beside one process: `python -m speed.ray --rows 1000000`.

Each cell is the command that a user gives, as a process of its own. The clock and the processor time of that process,
of Ray's workers, and of Ray's own processes are told apart by what the kernel says of each process, several times a
second. The local command is run first and last, and the load of the machine is printed with each line.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from speed import plain

LOOK_S = 0.1
"""How often processes are looked at; what one spends after the last look is missing."""
WORKERS = (0, 1, 2, 4)
TEXT_WORDS = 200
_COLUMNS = (
    *("rows", "engine", "wall s", "of local"),
    *("command CPU s (µs a row)", "workers CPU s (µs a row)", "Ray CPU s", "all CPU s"),
    *("command MB", "load"),
)
_TICKS = os.sysconf("SC_CLK_TCK")
_TEXTS: dict[str, Any] = {
    "criteria": [
        {"metric": metric, "metric_type": kind, "comparison": "gte", "threshold": 0.2}
        for metric, kind in (("rougeL", "rouge_score"), ("bleu_score", "bleu_score"))
    ]
}


class Measured(NamedTuple):
    """One command, in seconds and megabytes."""

    wall: float
    command: float
    """Processor time of the command itself."""
    workers: float
    ray: float
    """Of Ray's other processes."""
    peak_mb: float
    """Memory of the command itself."""
    load: float
    """Of the machine, before the command began."""


def _row(number: int, kind: str) -> dict[str, Any]:
    if kind == "checks":
        return {"id": f"q{number}", "input": {}, "output": plain.output(number)}
    # Every third word is another one, as between two translations of a text.
    words = [f"word{(number * 7 + place * place) % 997}" for place in range(TEXT_WORDS)]
    written = [word if place % 3 else f"other{number % 991}" for place, word in enumerate(words)]
    return {"id": f"q{number}", "output": " ".join(written), "reference": " ".join(words)}


def write_rows(file: Path, rows: int, kind: str) -> None:
    """Write a file of outputs."""
    with file.open("w", encoding="utf-8") as opened:
        for number in range(rows):
            opened.write(json.dumps(_row(number, kind)) + "\n")


def measure(command: Sequence[str], folder: Path) -> Measured:
    """Run a command to its end; raises CalledProcessError where it fails."""
    load, wall = os.getloadavg()[0], time.perf_counter()
    # Modules are compiled, as after an installation.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = subprocess.Popen(
        [sys.executable, "-m", "meruit", *command], cwd=folder, stdout=subprocess.DEVNULL, env=environment
    )
    seen: dict[tuple[int, int], tuple[str, float]] = {}
    peak = 0.0
    while started.poll() is None:
        # Without its last word: a process that has ended is not read any more.
        peak = max(peak, _peak_mb(started.pid))
        seen.update(_look(started.pid))
        time.sleep(LOOK_S)
    took = time.perf_counter() - wall
    if started.returncode:
        raise subprocess.CalledProcessError(started.returncode, [*command])
    spent = {"command": 0.0, "workers": 0.0, "ray": 0.0}
    for part, seconds in seen.values():
        spent[part] += seconds
    return Measured(took, spent["command"], spent["workers"], spent["ray"], peak, load)


def _look(root: int) -> Iterator[tuple[tuple[int, int], tuple[str, float]]]:
    """A process and all below it: what each has spent so far, and which part of the whole it is."""
    stats = {}
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            try:
                name, _, rest = (place / "stat").read_text().partition("(")[2].rpartition(")")
            except OSError:
                continue
            fields = rest.split()
            stats[int(place.name)] = (name, int(fields[1]), int(fields[19]), int(fields[11]) + int(fields[12]))
    below, before = {root}, 0
    while len(below) > before:
        before = len(below)
        below |= {process for process, (_, parent, _, _) in stats.items() if parent in below}
    for process in below & stats.keys():
        name, _, began, ticks = stats[process]
        part = "command" if process == root else "workers" if name.startswith("ray::") else "ray"
        yield (process, began), (part, ticks / _TICKS)


def _peak_mb(process: int) -> float:
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0.0
    return int((status.partition("VmHWM:")[2].split() or ["0"])[0]) / 1_024


def _engine(workers: int) -> list[str]:
    return ["--engine", "ray", "--workers", str(workers)] if workers else []


def _evaluate(folder: Path, workers: int) -> Measured:
    place = folder / "data"
    shutil.rmtree(place, ignore_errors=True)
    command = ["eval", "run", "criteria.json", "outputs.jsonl", "--name", "n", "--data", "data", *_engine(workers)]
    measured = measure(command, folder)
    shutil.rmtree(place, ignore_errors=True)
    return measured


def _line(rows: int, workers: int, one: Measured, local: float) -> str:
    name = f"ray, {workers} workers" if workers else "local"
    per = 1e6 / rows
    cells = (
        f"{rows:,}",
        name,
        f"{one.wall:.1f}",
        f"{local / one.wall:.2f}",
        f"{one.command:.1f} ({one.command * per:.1f})",
        f"{one.workers:.1f} ({one.workers * per:.1f})",
        f"{one.ray:.1f}",
        f"{one.command + one.workers + one.ray:.1f}",
        f"{one.peak_mb:.0f}",
        f"{one.load:.1f}",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print a table as it is measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000])
    parser.add_argument("--workers", type=int, nargs="+", default=[*WORKERS])
    parser.add_argument("--kind", choices=("checks", "texts"), default="checks")
    chosen = parser.parse_args()
    print(f"| {' | '.join(_COLUMNS)} |")
    print(f"{'|---' * len(_COLUMNS)}|", flush=True)
    for rows in chosen.rows:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            write_rows(folder / "outputs.jsonl", rows, chosen.kind)
            criteria = plain.CRITERIA if chosen.kind == "checks" else _TEXTS
            (folder / "criteria.json").write_text(json.dumps(criteria))
            local = 0.0
            for workers in chosen.workers:
                one = _evaluate(folder, workers)
                local = local if workers else one.wall
                print(_line(rows, workers, one, local), flush=True)


if __name__ == "__main__":
    main()
