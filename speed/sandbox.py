"""A trivial metric and one over 10 KB of text in each tier, against a plain subprocess that does the same.

By the clock on the wall, because most of a call is another process. Blocks of calls in a row take turns with
calls of the baseline. `python-full` is shown twice: called now and then, when a child is ready, and in a row, when
every call waits for its fork.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from meruit.model.kinds import Tier
from meruit.sandbox.sandbox import Sandbox
from speed.measure import Row

ROUNDS = 25
IN_A_ROW = 25
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
                ours, baseline = partial(_ours, sandbox, written, context), partial(_plain, code, context)
                if tier is Tier.PYTHON_FULL:
                    now_and_then = _in_turns(ours, baseline, 1)
                    yield Row(f"{tier}, {name}, now and then", *now_and_then, "a plain subprocess", TARGETS[tier])
                target = None if tier is Tier.PYTHON_FULL else TARGETS[tier]
                in_a_row = _in_turns(ours, baseline, IN_A_ROW)
                yield Row(f"{tier}, {name}, in a row", *in_a_row, "a plain subprocess", target)


def _ours(sandbox: Sandbox, code: str, context: dict[str, Any]) -> None:
    result = sandbox.execute_sync(code, context)
    assert result.failure is None, result.message


def _plain(code: str, context: dict[str, Any]) -> None:
    """The same metric without any wall: a fresh interpreter that reads JSON and prints JSON."""
    program = f"{code}\nimport json, sys\nprint(json.dumps(metric({{}}, json.load(sys.stdin)['output'], {{}})))"
    subprocess.run(
        [sys.executable, "-I", "-c", program], input=json.dumps(context).encode(), capture_output=True, check=True
    )


def _in_turns(ours: Callable[[], object], baseline: Callable[[], object], in_a_row: int) -> tuple[float, float]:
    """The best of each a call, a block of ours after a call of the baseline."""
    both = [(_us(ours, in_a_row), _us(baseline, 1)) for _ in range(ROUNDS)]
    return min(one for one, _ in both), min(other for _, other in both)


def _us(call: Callable[[], object], times: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(times):
        call()
    return (time.perf_counter_ns() - start) / 1_000 / times
