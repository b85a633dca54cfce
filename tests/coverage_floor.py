"""Holds the coverage that `make test` has just measured: all of the pure modules, nearly all of every folder."""

import json
import sys
import tomllib
from linecache import getline
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from slipcover.slipcover import format_missing

MEASURED = Path(".coverage/all.json")
PURE = "pure modules"
FLOORS = {PURE: 100.0}
ELSEWHERE = 95.0
READERS = ("meruit.checks", "meruit.documents", "meruit.usage.files")
"""Pure too, but readers of what others write: some of their refusals no test can provoke."""


def pure_modules() -> tuple[str, ...]:
    """The modules that import-linter holds to be pure, but for the readers."""
    contracts = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    listed = next(one["source_modules"] for one in contracts if one["id"] == "pure")
    return tuple(name for name in listed if name not in READERS)


class Covered(NamedTuple):
    """What tests ran of a file, lines and branches, and what they did not."""

    name: str
    ran: int
    missed: int
    where: str

    @property
    def module(self) -> str:
        parts = PurePath(self.name).with_suffix("").parts
        return ".".join(parts[parts.index("meruit") :])

    def group(self, pure: tuple[str, ...]) -> str:
        """The pure modules together, or else the top folder."""
        if any(self.module == name or self.module.startswith(f"{name}.") for name in pure):
            return PURE
        return self.module.split(".")[1]


def main() -> int:
    if not MEASURED.exists():
        print(f"nothing was measured in {MEASURED}; run `make test`", file=sys.stderr)
        return 1
    measured = json.loads(MEASURED.read_text())
    files = [_covered(name, file) for name, file in sorted(measured["files"].items())]
    for file in files:
        if file.missed:
            print(f"{file.name}: {file.where}")
    low, pure = [], pure_modules()
    for group in sorted({file.group(pure) for file in files}):
        inside = [file for file in files if file.group(pure) == group]
        ran, missed = sum(file.ran for file in inside), sum(file.missed for file in inside)
        percent = 100 * ran / (ran + missed) if ran + missed else 100.0
        floor = FLOORS.get(group, ELSEWHERE)
        print(f"{group:16}{percent:7.2f} %  (at least {floor:g} %)")
        if percent < floor:
            low.append(group)
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
