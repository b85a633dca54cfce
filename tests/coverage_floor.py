"""Holds the coverage that `make test` has just measured: all of the pure rooms, nearly all of every other."""

import json
import sys
from functools import reduce
from linecache import getline
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from slipcover import merge_coverage
from slipcover.slipcover import format_missing

MEASURED = Path(".coverage")
FLOORS = {"model": 100.0, "judge": 100.0, "money": 100.0, "trust": 100.0, "gate": 100.0}
ELSEWHERE = 95.0


class Covered(NamedTuple):
    """What tests ran of a file, lines and branches, and what they did not."""

    name: str
    ran: int
    missed: int
    where: str

    @property
    def room(self) -> str:
        parts = PurePath(self.name).parts
        return parts[parts.index("meruit") + 1]


def main() -> int:
    workers = [json.loads(file.read_text()) for file in MEASURED.glob("*.json")]
    if not workers:
        print(f"nothing was measured in {MEASURED}; run `make test`", file=sys.stderr)
        return 1
    measured = reduce(merge_coverage, workers)
    files = [_covered(name, file) for name, file in sorted(measured["files"].items())]
    for file in files:
        if file.missed:
            print(f"{file.name}: {file.where}")
    low = []
    for room in sorted({file.room for file in files}):
        inside = [file for file in files if file.room == room]
        ran, missed = sum(file.ran for file in inside), sum(file.missed for file in inside)
        percent = 100 * ran / (ran + missed) if ran + missed else 100.0
        floor = FLOORS.get(room, ELSEWHERE)
        print(f"{room:16}{percent:7.2f} %  (at least {floor:g} %)")
        if percent < floor:
            low.append(room)
    if low:
        print(f"coverage is below its floor in {', '.join(low)}", file=sys.stderr)
    return len(low)


# Any: lines are numbers, branches pairs of them.
def _covered(name: str, file: dict[str, list[Any]]) -> Covered:
    branches = [one for one in file["missing_branches"] if not _is_match(name, one[0])]
    ran, lines = file["executed_lines"], file["missing_lines"]
    where = format_missing(lines, ran, branches)
    return Covered(name, len(ran) + len(file["executed_branches"]), len(lines) + len(branches), where)


def _is_match(name: str, line: int) -> bool:
    # mypy proves that a match over an enum has no way past its last case; who measures cannot know.
    return getline(name, line).lstrip().startswith("match ")


if __name__ == "__main__":
    sys.exit(main())
