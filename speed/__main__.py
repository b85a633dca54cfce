"""Prints every ratio and the growth tables: `make bench`, or `make bench ARGS="verify text"` for some.

`make bench ARGS=--table` writes docs/performance.md; `ARGS="--table 2"` in two rounds.
"""

import sys
from importlib import import_module

NAMES = (
    "verify",
    "batch",
    "text",
    "labels",
    "schema",
    "checks",
    "sandbox",
    "rescore",
    "evaluate",
    "settle",
    "gate",
    "usage",
    "reconcile",
    "service",
    "start",
)


def main(chosen: list[str]) -> None:
    modules = [import_module(f"speed.{name}") for name in chosen or NAMES]
    print(f"{'benchmark':44}{'ours':>12}{'baseline':>14}{'ratio':>9}{'target':>8}   baseline is")
    for module in modules:
        for row in module.rows():
            target = f"≥{row.target:g}" if row.target is not None else "–"
            print(
                f"{row.name:44}{row.ours_us:>9.4g} µs{row.baseline_us:>11.5g} µs{row.ratio:>8.4g}×{target:>8}   "
                f"{row.baseline}{f'; {row.remark}' if row.remark else ''}",
                flush=True,
            )
    print(f"\n{'growth':44}{'size':>10}{'ms':>12}{'for the step':>14}")
    for module in modules:
        previous: dict[str, tuple[int, float]] = {}
        for name, size, ms in getattr(module, "growth", lambda: iter(()))():
            step = ""
            if name in previous:
                old_size, old_ms = previous[name]
                step = f"{ms / old_ms:.3g}× for {size / old_size:.3g}×"
            print(f"{name:44}{size:>10}{ms:>12.4g}{step:>18}", flush=True)
            previous[name] = (size, ms)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--table"]:
        from speed.table import write_page

        write_page(*map(int, sys.argv[2:3]))
    else:
        main(sys.argv[1:])
