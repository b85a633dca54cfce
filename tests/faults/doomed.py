"""A host that is to be killed: starts a call, says that it runs, and waits for its end.

python -m tests.faults.doomed TIER idle|busy TIMEOUT_MS
"""

import sys
import threading
import time

from meruit.sandbox.sandbox import Sandbox

from .endurance import GOOD, LATE, LATE_WORK

CONTEXT = {"input": {"n": 1, "zero": 0}, "output": {"text": "a"}, "metadata": {}}


def main(tier: str, state: str, timeout_ms: str) -> None:
    kind = "expr" if tier == "expr" else "python"
    sandbox = Sandbox(tier=tier)
    first = sandbox.execute_sync(GOOD[kind], CONTEXT, 20_000)
    if first.failure is not None:
        raise SystemExit(first.message)
    if state == "busy":
        call = (LATE[kind], LATE_WORK, int(timeout_ms))
        threading.Thread(target=sandbox.execute_sync, args=call, daemon=True).start()
        time.sleep(0.2)
    print("ready", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
