"""A trivial metric and one over 10 KB of text in each tier, against a plain subprocess that does the same.

By the clock on the wall: most of a call is somebody else's process. A call and its baseline take turns, so that a call
finds a worker that had time to get ready, as it does in practice; a burst of calls, which must wait for every fork, is
shown apart.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.measure import Row
from meruit.model.kinds import Tier
from meruit.sandbox.sandbox import Sandbox

ROUNDS = 40
BURST = 50
TRIVIAL = "def metric(input, output, metadata):\n    return {'value': len(output['text'])}\n"
WORDS = """
def metric(input, output, metadata):
    words = output["text"].lower().split()
    return {"value": len(set(words)) / len(words)}
"""
TEXT = " ".join(f"word{number % 700}" for number in range(1_400))[:10_240]
CASES = (
    ("trivial", TRIVIAL, "size(output.text)", {"text": "a b c"}),
    ("10 KB of text", WORDS, "double(size(output.text.lowerAscii().split(' '))) / 2.0", {"text": TEXT}),
)
TARGETS = {Tier.EXPR: 50.0, Tier.PYTHON: 50.0, Tier.PYTHON_FULL: 10.0}


def rows() -> Iterator[Row]:
    for tier in Tier:
        with Sandbox(tier) as sandbox:
            for name, code, expression, output in CASES:
                written = expression if tier is Tier.EXPR else code
                context = {"output": output}

                def ours(sandbox: Sandbox = sandbox, written: str = written, context: Any = context) -> None:
                    result = sandbox.execute_sync(written, context)
                    assert result.failure is None, result.message

                def baseline(code: str = code, context: Any = context) -> None:
                    _plain(code, context)

                yield Row(f"{tier}, {name}", *_in_turns(ours, baseline), "a plain subprocess", TARGETS[tier])
            ours_us = _us(lambda ours=ours: [ours() for _ in range(BURST)]) / BURST
            yield Row(f"{tier}, {name}, {BURST} in a row", ours_us, _us(baseline), "a plain subprocess", None)


def _plain(code: str, context: dict[str, Any]) -> None:
    """The same metric without any wall: a fresh interpreter that reads JSON and prints JSON."""
    program = f"{code}\nimport json, sys\nprint(json.dumps(metric({{}}, json.load(sys.stdin)['output'], {{}})))"
    subprocess.run([sys.executable, "-c", program], input=json.dumps(context).encode(), capture_output=True, check=True)


def _in_turns(ours: Callable[[], object], baseline: Callable[[], object]) -> tuple[float, float]:
    """The median of each, one call of one after one call of the other."""
    ours()
    both = [(_us(ours), _us(baseline)) for _ in range(ROUNDS)]
    return statistics.median(one for one, _ in both), statistics.median(other for _, other in both)


def _us(call: Callable[[], object]) -> float:
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1_000
