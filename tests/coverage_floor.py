"""Holds the coverage that `make test` has just measured: all of the pure rooms, nearly all of every other."""

import json
import subprocess
import sys
from pathlib import PurePath

FLOORS = {"model": 100.0, "judge": 100.0, "money": 100.0, "trust": 100.0}
ELSEWHERE = 95.0


def main() -> int:
    report = subprocess.run(
        [sys.executable, "-m", "coverage", "json", "-q", "-o", "-"], capture_output=True, check=True
    )
    rooms: dict[str, list[dict[str, int]]] = {}
    for name, file in json.loads(report.stdout)["files"].items():
        parts = PurePath(name).parts
        rooms.setdefault(parts[parts.index("meruit") + 1], []).append(file["summary"])
    low = []
    for room, summaries in sorted(rooms.items()):
        covered = sum(summary["covered_lines"] + summary["covered_branches"] for summary in summaries)
        total = sum(summary["num_statements"] + summary["num_branches"] for summary in summaries)
        percent = 100 * covered / total if total else 100.0
        floor = FLOORS.get(room, ELSEWHERE)
        print(f"{room:16}{percent:7.2f} %  (at least {floor:g} %)")
        if percent < floor:
            low.append(room)
    if low:
        print(f"coverage is below its floor in {', '.join(low)}", file=sys.stderr)
    return len(low)


if __name__ == "__main__":
    sys.exit(main())
