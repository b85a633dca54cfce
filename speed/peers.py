"""The same stored outputs judged by other libraries: `python -m speed.peers PYTHON [COUNT]`.

PYTHON is an interpreter that has `pydantic-evals`, `inspect-ai` and `jsonschema`, so that this project need not install
them. Each runs in a process of its own. CPU for each output, beside the plain loop and a recorded evaluation of ours.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from meruit.evaluations.datafiles import open_data
from meruit.evaluations.run import run_cases
from meruit.evaluations.service import Evaluator
from meruit.model.criterion import SuccessCriteria
from meruit.outcomes.service import Registrar
from meruit.store.location import Location
from meruit.store.store import Store
from meruit.verify.engine import VerificationEngine
from speed import plain

NAMES = ("pydantic-evals", "inspect")
TIMEOUT_S = 1_800


def _cpu_us(act: Callable[[], object], count: int) -> float:
    start = time.process_time_ns()
    act()
    return (time.process_time_ns() - start) / count / 1_000


def _ours(place: Path, texts: list[str]) -> float:
    """From a file of JSON Lines to recorded cases, in a store that is there already."""
    file = place / "outputs.jsonl"
    file.write_text("".join(f'{{"id": "q{n}", "input": {{}}, "output": {one}}}\n' for n, one in enumerate(texts)))
    store = Store.open(Location(place / "store"))
    try:
        evaluator = Evaluator(Registrar(VerificationEngine(), store), "default")
        criteria = evaluator.compile(SuccessCriteria.model_validate(plain.CRITERIA))
        started = evaluator.start("bench", criteria, planned=len(texts))
        return _cpu_us(lambda: run_cases(evaluator, started, criteria, open_data(str(file)).cases()), len(texts))
    finally:
        store.close()


def _peer(python: str, name: str, task: Path) -> dict[str, float] | None:
    """What it cost, or None where the interpreter does not have it."""
    command = [python, str(Path(__file__).with_name("peer_runs.py")), name, str(task)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if ended.returncode:
        print(f"{name}: not measured ({ended.stderr.strip().splitlines()[-1:]})")
        return None
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return found


def main(python: str, count: int = plain.STORED) -> None:
    texts = plain.stored(count)
    passed = sum(bool(number % 10 and number % 7) for number in range(count))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        task = place / "task.json"
        task.write_text(json.dumps({"schema": plain.SCHEMA, "keywords": plain.KEYWORDS, "texts": texts}))
        loop = min(_cpu_us(lambda: plain.loop(texts), count) for _ in range(3))
        ours = _ours(place, texts)
        print(f"{'plain loop':44}{loop:>9.4g} µs")
        print(f"{'meruit, file to recorded evaluation':44}{ours:>9.4g} µs{ours / loop:>8.3g} of the loop")
        for name in NAMES:
            found = _peer(python, name, task)
            if found is None:
                continue
            assert found["passed"] == passed, f"{name} passed {found['passed']}, not {passed}"
            each = found["cpu_s"] / count * 1e6
            kept = f"stores {found['stored_bytes'] / count:,.0f} bytes" if found["stored_bytes"] else "stores nothing"
            print(f"{name:44}{each:>9.4g} µs{each / loop:>8.3g} of the loop, {each / ours:.3g} times ours, {kept}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:3]))
