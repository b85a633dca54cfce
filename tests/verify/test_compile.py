"""Compiled criteria: kept, shared between threads, and independent of what they were made from."""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from tests.verify.engines import WORDS, Answers, criterion

from meruit import (
    ReasonCode,
    SuccessCriteria,
    VerificationEngine,
)


def test_engines_built_in_many_threads_know_every_metric() -> None:
    script = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from meruit.verify.engine import VerificationEngine\n"
        "with ThreadPoolExecutor(8) as pool:\n"
        "    found = list(pool.map(lambda _: len(VerificationEngine().catalogue.names()), range(8)))\n"
        "assert len(set(found)) == 1 and found[0] > 10, found\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


def test_changing_a_result_changes_no_other() -> None:
    engine = VerificationEngine()
    compiled = engine.compile({"criteria": [criterion("word_count", "count", "in_range", [1, 2])]})
    first = engine.verify_sync("c", {}, {"text": "a"}, compiled, {})
    first.criterion_results[0].threshold["min"] = 999
    second = engine.verify_sync("c", {}, {"text": "a"}, compiled, {})
    assert second.criterion_results[0].threshold == {"min": 1, "max": 2}


def test_changing_criteria_after_they_were_compiled_changes_nothing() -> None:
    words = ["a"]
    compiled = VerificationEngine().compile(
        {"criteria": [criterion("contains_keywords", "contains", "contains_all", words)]}
    )
    words.append("b")
    assert compiled.plan.rules[0].criterion.threshold == ["a"]


def test_criteria_compiled_by_another_engine_are_refused() -> None:
    asked = {"criteria": [criterion("mine", "numeric", "gte", 0)]}
    foreign = VerificationEngine({"x": Answers(mine=1)}).compile(asked)
    result = VerificationEngine().verify_sync("c", {}, {}, foreign, {})
    assert result.reasons[0].code is ReasonCode.BAD_INPUT
    assert "another engine" in result.reasons[0].message


def test_a_bad_criterion_is_named_in_the_error_result() -> None:
    result = VerificationEngine().verify_sync("c", {}, {}, {"criteria": [{**WORDS, "comparison": "gtee"}]}, {})
    assert result.reasons[0].code is ReasonCode.BAD_INPUT
    assert re.match(r"criteria\[0\]\.comparison: .*'gte', .*'gtee' \(.*'gte'\?\)$", result.reasons[0].message)


def test_criteria_in_use_stay_compiled() -> None:
    engine = VerificationEngine()
    hot = SuccessCriteria.model_validate({"criteria": [WORDS]})
    engine.verify_sync("c", {}, {"text": "a"}, hot)
    kept = engine._compiled.get(id(hot))
    for number in range(300):
        engine.verify_sync(
            "c", {}, {"text": "a"}, SuccessCriteria.model_validate({"criteria": [{**WORDS, "threshold": number}]})
        )
        engine.verify_sync("c", {}, {"text": "a"}, hot)
    assert kept is not None
    assert engine._compiled.get(id(hot)) is kept


def test_threads_may_share_an_engine() -> None:
    engine = VerificationEngine()
    # More sets than are remembered, so that threads push out what others are using.
    sets = [SuccessCriteria.model_validate({"criteria": [{**WORDS, "threshold": number}]}) for number in range(260)]

    def judge(number: int) -> bool:
        result = engine.verify_sync("c", {}, {"text": "a " * 130}, sets[number % 260], {})
        return result.success is (number % 260 <= 130)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(judge, range(6_000)))
    finally:
        sys.setswitchinterval(before)
