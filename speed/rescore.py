"""Stored outputs judged again, each with a record that is proven by the log, against a plain loop that keeps nothing.

The loop is the one of speed/plain.py: json.loads, a `jsonschema` validator built once, floats in a list. Of the alike
outputs, 5,000 have four distinct conclusions. Of the varied ones, each has a score of its own, so that none is shared.
"""

import itertools
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from meruit.model.criterion import SuccessCriteria
from meruit.outcomes.rescore.run import LocalRunner, rescore
from meruit.outcomes.service import Registrar, Submission
from meruit.outcomes.store.write import RecordAll
from meruit.store.location import Location
from meruit.store.store import Store, utc_now
from meruit.verify.engine import VerificationEngine
from speed import plain
from speed.measure import Row

STORED = plain.STORED
TRIES = 3
GROUP = 500
GROWTH = (1_000, 10_000, 100_000)
_BASELINE = "a plain loop with jsonschema, no record"


def _output(number: int, *, varied: bool) -> dict[str, Any]:
    """An output of about 600 characters; a varied one has a confidence of its own."""
    made = plain.output(number)
    if varied:
        # A step without a common factor: no two of 100,003 outputs have the same.
        made["confidence"] = round(0.5 + (number * 7_919 % 100_003) / 200_006, 6)
    return made


def _criteria(threshold: float, comment: str) -> SuccessCriteria:
    keywords, confidence, matches = (dict(one) for one in plain.CRITERIA["criteria"])
    confidence["threshold"] = threshold
    matches["params"] = {"schema": {**plain.SCHEMA, "$comment": comment}}
    return SuccessCriteria.model_validate({"criteria": [keywords, confidence, matches]})


class Kept:
    """Outcomes in a store, judged again by criteria that were not used before."""

    def __init__(self, folder: Path, count: int, *, varied: bool) -> None:
        self.count, self._number, self._comment = count, 0, "0"
        self.store = Store.open(Location(folder))
        registrar = Registrar(VerificationEngine(), self.store)
        ready = registrar.compile(_criteria(0.8, "0"))
        works = (Submission({}, _output(number, varied=varied), {}) for number in range(count))
        while some := list(itertools.islice(works, GROUP)):
            drafts = tuple(registrar.draft("default", registrar.judge_sync(ready, work)) for work in some)
            self.store.recorder.write(RecordAll("default", drafts))

    def rescore_us(self, *, measured: bool) -> float:
        """CPU of the whole process in microseconds, the recorder's thread included."""
        self._number += 1
        if measured:
            self._comment = str(self._number)
        # The schema of the last time stays, or else the evidence would not fit.
        criteria = _criteria(0.8 + self._number / 10_000, self._comment)
        start = time.process_time_ns()
        summary = rescore(
            self.store,
            VerificationEngine(),
            "default",
            criteria,
            narrowed=None,
            reason="benchmark",
            runner=LocalRunner(),
            now=utc_now(),
            progress=lambda _done, _total: None,
        )
        spent = (time.process_time_ns() - start) / 1e3
        assert (summary.measured if measured else summary.from_evidence) == self.count, summary
        return spent


def _loop_us(texts: Sequence[str]) -> float:
    start = time.process_time_ns()
    plain.loop(texts)
    return (time.process_time_ns() - start) / 1e3


def rows() -> Iterator[Row]:
    """Other thresholds, judged from the evidence; another schema, measured again from the stored outputs."""
    for kind, varied in (("alike", False), ("varied", True)):
        texts = [json.dumps(_output(number, varied=varied)) for number in range(STORED)]
        assert len({orjson.dumps(orjson.loads(text)) for text in texts}) == STORED
        with tempfile.TemporaryDirectory() as folder:
            kept = Kept(Path(folder), STORED, varied=varied)
            spent: dict[str, list[float]] = {"loop": [], "evidence": [], "measured": []}
            for _ in range(TRIES):
                spent["loop"].append(_loop_us(texts))
                spent["evidence"].append(kept.rescore_us(measured=False))
                spent["measured"].append(kept.rescore_us(measured=True))
            kept.store.close()
        best = {name: min(several) / STORED for name, several in spent.items()}
        for name, aim, words in (("evidence", 0.25, "from evidence"), ("measured", 0.6, "measured again")):
            remark = f"{best[name] / best['loop']:.2f} of the loop"
            yield Row(f"rescore {STORED:,} {kind} {words}, each", best[name], best["loop"], _BASELINE, 1 / aim, remark)


def growth() -> Iterator[tuple[str, int, float]]:
    for size in GROWTH:
        with tempfile.TemporaryDirectory() as folder:
            kept = Kept(Path(folder), size, varied=False)
            yield "rescore, outcomes", size, kept.rescore_us(measured=False) / 1e3
            kept.store.close()
