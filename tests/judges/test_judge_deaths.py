"""An evaluation that is killed while judges answer: what was answered is not asked again, and the limit holds."""

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
from tests.judges.asking import criteria, model
from tests.judges.endpoint import INPUT_TOKENS, KEY, KEY_VARIABLE, OUTPUT_TOKENS, Asked, Say, endpoint

from meruit.store.location import FILE

CASES, CONCURRENCY, PATIENCE_S = 12, 4, 60.0
PER_VOTE = INPUT_TOKENS + OUTPUT_TOKENS
LIMIT = 15_000
"""Room for a question more, though each of two deaths left as many calls without a count as may be open."""
PRICES = {"input_per_million": 1, "output_per_million": 10}
MOST_MICROS = 20_000
COMMAND = "from meruit.cli import main; import sys; main(sys.argv[1:])"


class Provider:
    """Bills each request, answers so many, and leaves the others waiting until they are let go."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.allowed = 0
        self.let_go = threading.Event()
        self.lock = threading.Lock()
        self.waiting = 0

    def __call__(self, asked: Asked) -> Say:
        with self.lock:
            self.asked[asked.headers["idempotency-key"]] += 1
            self.allowed -= 1
            if self.allowed >= 0:
                return Say("yes")
            self.waiting += 1
        return Say("yes", wait=self.let_go)


def stored(folder: Path) -> set[str]:
    """The keys of the votes that are durable."""
    if not (folder / FILE).exists():
        return set()
    with sqlite3.connect(f"file:{folder / FILE}?mode=ro", uri=True) as connection:
        try:
            return {str(row[0]) for row in connection.execute("SELECT key FROM judge_votes")}
        except sqlite3.OperationalError:
            # The tables are being made.
            return set()


def wait_until(is_true: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_killed_evaluation_asks_no_answered_question_again(tmp_path: Path) -> None:
    provider = Provider()
    with endpoint(provider) as server:
        settings = {
            "judges": {"polite": model(server.url, max_tokens=16, prices=PRICES)},
            "judging": {"concurrency": CONCURRENCY},
        }
        (tmp_path / "settings.json").write_bytes(msgspec.json.encode(settings))
        (tmp_path / "criteria.json").write_bytes(msgspec.json.encode(criteria(votes=1)))
        rows = (f'{{"id": "c{n}", "output": {{"text": "reply {n}"}}}}\n' for n in range(CASES))
        (tmp_path / "cases.jsonl").write_text("".join(rows))
        arguments = ["eval", "run", "criteria.json", "cases.jsonl", "--name", "doomed", "--config", "settings.json"]
        arguments += ["--data", "data", "--concurrency", str(CONCURRENCY), "--max-judge-tokens", str(LIMIT), "--json"]
        arguments += ["--max-judge-cost", str(MOST_MICROS / 1e6)]

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [sys.executable, "-c", COMMAND, *arguments],
                cwd=tmp_path,
                env={**os.environ, KEY_VARIABLE: KEY},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )

        known = set[str]()
        for death in range(2):
            before = {key: provider.asked[key] for key in known}
            provider.allowed, provider.waiting = 3, 0
            provider.let_go.clear()
            process = start()
            wait_until(lambda: len(stored(tmp_path / "data")) >= len(known) + 3 and provider.waiting > 0)  # noqa: B023
            process.kill()
            process.communicate()
            provider.let_go.set()
            # What waited may be asked again; what was answered is not.
            assert {key: provider.asked[key] for key in known} == before
            known = stored(tmp_path / "data")
            assert len(known) == 3 * (death + 1)
        in_flight = sum(provider.asked.values()) - len(known)
        assert in_flight <= 2 * CONCURRENCY
        answered = {key: provider.asked[key] for key in known}
        provider.allowed = CASES
        out, err = start().communicate(timeout=PATIENCE_S)
        shown = msgspec.json.decode(out)
    assert {key: provider.asked[key] for key in known} == answered, err
    # One key for each question, and one request more for each death at most.
    assert len(provider.asked) <= CASES
    assert max(provider.asked.values()) <= 1 + 2
    # What the deaths have used up may leave the last questions beyond the limit.
    overall = shown["summary"]["overall"]
    assert overall["passed"] == len(stored(tmp_path / "data")) > len(known)
    assert overall["passed"] + overall["open"] == CASES
    with sqlite3.connect(tmp_path / "data" / FILE) as connection:
        under_way = {str(row[0]) for row in connection.execute("SELECT key FROM judge_calls")}
    # Only a question that the limit leaves open keeps the call of a process that died.
    assert not under_way & stored(tmp_path / "data")
    assert len(under_way) <= overall["open"]
    # Everything that was ever billed, the unanswered included, is within the limit.
    assert sum(provider.asked.values()) * PER_VOTE <= LIMIT
    (total,) = shown["judge_tokens"]
    # A call that was counted and not sent yet, when the process died, counts too.
    assert in_flight <= total["unknown_calls"] <= 2 * CONCURRENCY
    assert total["calls"] >= sum(provider.asked.values())
    spent = total["input_tokens"] + total["output_tokens"] + total["unknown_tokens"]
    assert spent <= LIMIT
    assert total["unpriced_calls"] == 0
    assert total["cost_micros"] + total["unknown_micros"] <= MOST_MICROS
