"""The specification of the task-run engine: its printed JSON, formula and tables, executed as printed.

The files beside this one hold each block to the letter. Where we decided otherwise, a comment says why.
"""

import json
import re
from collections.abc import Iterator
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.api.conftest import Deployment, new_tenant
from tests.api.running import SEED, Bench, scoring, task

from meruit.app import build_engine
from meruit.config import Settings
from meruit.judge.plan import Trait, compile_plan
from meruit.judge.verdict import Circumstances, conclude
from meruit.model.criterion import SuccessCriteria
from meruit.model.evidence import Checked
from meruit.registry import checks
from meruit.store.location import Location
from meruit.store.store import utc_now

PRINTED = Path(__file__).with_suffix("").with_name("task_run_engine")
ISA = (
    "ISA*00*          *00*          *ZZ*PAYER          *ZZ*CLINIC         *260303*1200*^*00501*000000001*0*P*:~"
    "GS*HB*PAYER*CLINIC*20260303*1200*1*X*005010X279A1~ST*271*0001~BHT*0022*11*1*20260303*1200~"
    "SE*3*0001~GE*1*1~IEA*1*000000001~"
)
SIU = "MSH|^~\\&|CLINIC||SCHEDAPP||20260303120000||SIU^S13|1|P|2.5.1\rSCH|10345\rPID|1||483671^^^GHH^MR\r"
WORLD = SEED | {
    "fhir": [{"resourceType": "Patient", "id": "p", "active": True}],
    "hl7": [SIU],
    "files": {"out/a.json": '{"n": 1}'},
    "x12": [ISA],
    "call": {"greeting": "this call may be recorded"},
}
ASKED: dict[str, dict[str, Any]] = {
    "fhir-resource-state": {"resource": "Patient", "fields": {"active": True}},
    "hl7-structural": {"fields": {"SCH-1": "10345"}},
    "portal-state-match": {"correlate_by": {"resource": "claim"}, "fields": {"f1": 1}},
    "sftp-file-present": {"path": "out/*.json", "parse": "json", "fields": {"n": 1}},
    "voice-transcript": {"contains": ["member id"]},
    "x12-response": {"set": "271", "fields": {"ST.1": "271"}},
}
"""One criterion for each printed `assert` value, which the world above meets."""


def text_of(name: str) -> str:
    return (PRINTED / f"{name}.txt").read_text(encoding="utf-8")


def table(name: str) -> dict[str, str]:
    """A printed table of two columns."""
    return dict(line.split("\t") for line in text_of(name).splitlines())


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    made = Deployment(Location(tmp_path_factory.mktemp("task-runs") / "data"), build_engine(Settings()), Settings())
    yield made
    made.close()


@pytest.fixture
def bench(service: Deployment) -> Bench:
    return Bench.of(service, new_tenant())


# Check dispatch.


def test_every_printed_assert_value_has_a_check() -> None:
    assert table("dispatch").keys() == table("evidence").keys() == ASKED.keys()
    assert all(checks.find(name) is not None for name in table("dispatch"))


def test_an_unknown_assert_fails_its_criterion_and_no_other() -> None:
    """At publication it is refused (422), so that here it reaches the engine itself."""
    engine = build_engine(Settings(), governed=False)
    criteria = SuccessCriteria.model_validate(
        {
            "criteria": [
                {"assert": "fax-present", "id": "a"},
                {"assert": "portal-state-match", "id": "b", **ASKED["portal-state-match"]},
            ]
        }
    )
    unknown, known = engine.verify_sync("c", {}, {}, criteria).criterion_results
    assert (unknown.met, str(unknown.status)) == (False, "not_met")
    assert unknown.details is not None
    assert unknown.details["unsupported_assertion"] == "fax-present"
    assert str(known.status) == "indeterminate"


# Scoring.


@pytest.mark.parametrize(
    ("scores", "weights"),
    [(["1", "0"], [2, 1]), (["1", "9/10", "4/5"], [1, 1, 1]), (["1/3", "1/7", "1"], ["0.1", "2.5", 7])],
)
def test_the_printed_formula_gives_the_engines_score(scores: list[str], weights: list[Any]) -> None:
    printed: dict[str, Any] = {
        "score_i": np.array([*map(Fraction, scores)], object),
        "weight_i": np.array([*map(Fraction, weights)], object),
    }
    exec(text_of("score.py"), printed)
    asked = [{"assert": "x", "id": str(number), "weight": weight} for number, weight in enumerate(weights)]
    plan = compile_plan(SuccessCriteria.model_validate({"criteria": asked}), lambda _name: Trait())
    result = conclude(plan, [*map(Checked, scores)], Circumstances("c", utc_now()))
    assert Fraction(result.exact) == printed["task_score"]


@pytest.mark.parametrize(
    ("tenths", "verdict"),
    [
        ([10], "pass"),
        ([9], "pass"),
        ([10, 9, 8], "pass"),
        ([8, 9], "partial"),
        ([0, 1], "partial"),
        ([0], "fail"),
        ([], "fail"),
    ],
)
def test_the_printed_bands_give_the_verdict(bench: Bench, tenths: list[int], verdict: str) -> None:
    bench.publish(task(*(scoring(each, weight=0.1) for each in tenths)))
    assert bench.finished()["verdict"] == verdict


# Axes.


def test_the_printed_completion_is_the_reply(bench: Bench) -> None:
    expected = json.loads(text_of("complete.json"))
    bench.publish(task(scoring(10, axis="correctness", weight=2), scoring(0, axis="safety", weight=1)))
    told = bench.finished()
    assert told["axes"] == expected["axes"]
    assert told["verdict"] == expected["verdict"]
    # The printed 0.66 is two thirds, cut after two places; the score itself is kept in full.
    assert floor(told["score"] * 100) / 100 == expected["score"]


def test_criteria_without_an_axis_are_in_the_default_bucket(bench: Bench) -> None:
    bench.publish(task(scoring(10), scoring(5, axis="efficiency")))
    assert bench.finished()["axes"].keys() == {"__default__", "efficiency"}


# Evidence.


@pytest.fixture
def played(bench: Bench) -> Bench:
    """A benchmark with one criterion of each kind."""
    criteria = [{"assert": name, "label": name, **asked} for name, asked in ASKED.items()]
    bench.publish(task(*criteria) | {"seed": WORLD})
    return bench


def start_and_speak(bench: Bench, *, scored: bool) -> str:
    run = bench.started(scored=scored)
    access = bench.read(f"task-runs/{run}/access", key=bench.agent)["access"]
    turn = f"{access['endpoints']['call']}/turns"
    said = bench.deployment.ask("POST", turn, key=access["secret"], json={"text": "my member ID is 5"})
    assert said.status_code == 201
    return run


def test_each_check_has_its_printed_evidence(played: Bench) -> None:
    told = played.complete(start_and_speak(played, scored=False))
    by_check = {one["label"]: one for one in told["criteria"]}
    for check, shape in table("evidence").items():
        name = re.match(r"\w+", shape)
        assert name is not None
        found = by_check[check]["evidence"][name[0]]
        fields = re.findall(r"\w+", shape[name.end() :]) if "{" in shape else ["path", "expected", "actual", "passed"]
        assert found
        assert all(set(fields) <= one.keys() for one in found)
    assert "out/a.json" in str(by_check["sftp-file-present"]["evidence"])


def test_a_scored_run_tells_no_evidence_and_keeps_it_for_later(played: Bench) -> None:
    run = start_and_speak(played, scored=True)
    told = played.complete(run)
    assert told.keys() == {"task_run_id", "status", "verdict", "score", "axes"}
    kept = played.read(f"task-runs/{run}/criterion-runs")["criterion_runs"]
    assert {one["label"] for one in kept} == ASKED.keys()
    for one in kept:
        assert played.read(f"criterion-runs/{one['id']}")["evidence"]


# Benchmark runs.


@pytest.mark.parametrize(
    ("tenths", "score", "verdict"), [((10, 9, 8), 0.9, "pass"), ((10, 0, 5), 0.5, "partial"), ((0, 0, 0), 0.0, "fail")]
)
def test_a_benchmark_run_has_the_mean_once_every_task_run_is_completed(
    bench: Bench, tenths: tuple[int, ...], score: float, verdict: str
) -> None:
    bench.publish(*({**task(scoring(each)), "id": f"t{number}"} for number, each in enumerate(tenths)))
    made = bench.done("benchmark-runs", {"benchmark": "b", "agent_id": "robot"})
    runs = [one["id"] for one in bench.read(f"task-runs?benchmark_run_id={made['id']}")["task_runs"]]
    for number, run in enumerate(runs):
        assert bench.read(f"benchmark-runs/{made['id']}")["result"] is None, number
        bench.done(f"task-runs/{run}/start", key=bench.agent)
        bench.complete(run)
    result = bench.read(f"benchmark-runs/{made['id']}")["result"]
    assert (result["score"], result["verdict"]) == (score, verdict)
