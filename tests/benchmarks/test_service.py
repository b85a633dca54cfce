"""Task runs in real playgrounds: what each check leaves as evidence, what is told to whom, and what trouble does."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from sqlalchemy import select, update
from tests.benchmarks.benching import create_one, find_row

from meruit.app import build_benchmarks, build_environments
from meruit.benchmarks.evidence import format_axis
from meruit.benchmarks.service import Benchmarks, TaskRunStart
from meruit.config import Settings
from meruit.errors import (
    AddressFault,
    InvalidAddress,
    MeruitError,
    RecordTampered,
    TaskRunStateError,
    UnknownPlayground,
    Unreachable,
)
from meruit.model.access import Scope
from meruit.model.criterion import Assertion
from meruit.model.environment import SourceKind
from meruit.model.evidence import Checked, Fault
from meruit.model.task import Benchmark
from meruit.model.task_run import ACTS_KEY, ActLog, CriterionRun, CriterionStatus, RunStatus, TaskRun, TaskRunAxis
from meruit.model.verdict import AxisScore, Bounds, Verdict
from meruit.playground.events import read_acts
from meruit.playground.host import Host
from meruit.playground.state import PlaygroundState
from meruit.registry import Check, checks
from meruit.store import tables
from meruit.store.store import Store

MESSAGE = b"MSH|^~\\&|CLINIC||SCHEDAPP||20260303120000||SIU^S13|1|P|2.5.1\rSCH|10345\rPID|1||483671^^^GHH^MR\r"
ANSWER = (
    b"ISA*00*          *00*          *ZZ*PAYER          *ZZ*CLINIC         *260303*1200*^*00501*000000001*0*P*:~"
    b"GS*HB*PAYER*CLINIC*20260303*1200*1*X*005010X279A1~ST*271*0001*005010X279A1~BHT*0022*11*10001*20260303*1200~"
    b"HL*1**20*1~HL*2*1*21*1~HL*3*2*22*0~TRN*2*93175-012547*9877281234~NM1*IL*1*SMITH*JOHN****MI*123456789~"
    b"EB*1*IND*30~SE*9*0001~GE*1*1~IEA*1*000000001~"
)
SEVEN: list[dict[str, Any]] = [
    {"label": "booked", "assert": "fhir-resource-state", "resource": "Appointment", "fields": {"status": "booked"}},
    {"label": "sent", "assert": "hl7-structural", "correlate_by": {"MSH-9.2": "S13"}, "fields": {"SCH-1": "10345"}},
    {
        "label": "asked",
        "assert": "portal-state-match",
        "correlate_by": {"resource": "prior_auth", "member": "${member}"},
        "fields": {"cpt": "72148"},
    },
    {"label": "dropped", "assert": "sftp-file-present", "path": "out/*.json", "parse": "json", "fields": {"n": 3}},
    {"label": "said", "assert": "voice-transcript", "speaker": "agent", "contains": ["member ID"]},
    {"label": "active", "assert": "x12-response", "set": "271", "fields": {"HL[22]/NM1[1=IL].9": "123456789"}},
    {"label": "untouched", "assert": "state-unchanged"},
]
"""One criterion of each check."""
SEED = {
    "fhir": [{"resourceType": "Patient", "id": "p1", "active": True}],
    "rows": {"member": {"M1": {"name": "Ann"}}},
    "facts": {"member": "M0", "seeded": 1},
}


def all_done(state: PlaygroundState) -> None:
    """What a good agent leaves behind."""
    state.put(SourceKind.FHIR, "Appointment/1", b'{"resourceType":"Appointment","id":"1","status":"booked"}', event="x")
    state.append(SourceKind.HL7, MESSAGE, event="hl7_outbound")
    state.put(SourceKind.ROWS, "prior_auth/1", b'{"member":"M1","cpt":"72148"}', event="x")
    state.put(SourceKind.FILES, "out/a.json", b'{"n": 3}', event="x")
    state.append(SourceKind.VOICE, b"What is your member ID?", facts={"speaker": "agent"}, event="voice_turn")
    state.append(SourceKind.X12, ANSWER, event="x12_response")


def all_wrong(state: PlaygroundState) -> None:
    """What a poor one does."""
    state.put(SourceKind.FHIR, "Appointment/1", b'{"resourceType":"Appointment","id":"1","status":"noshow"}', event="x")
    state.append(SourceKind.HL7, MESSAGE.replace(b"10345", b"99"), event="hl7_outbound")
    state.put(SourceKind.ROWS, "prior_auth/1", b'{"member":"M1","cpt":"1"}', event="x")
    state.put(SourceKind.FILES, "out/a.json", b'{"n": 4}', event="x")
    state.append(SourceKind.VOICE, b"Hello", facts={"speaker": "agent"}, event="voice_turn")
    state.append(SourceKind.X12, ANSWER.replace(b"123456789", b"000000000"), event="x12_response")
    state.put(SourceKind.ROWS, "member/M1", b'{"name":"Eve"}', event="x")


def booked(state: PlaygroundState) -> None:
    """What an agent does that stops half-way."""
    state.put(SourceKind.FHIR, "Appointment/1", b'{"resourceType":"Appointment","id":"1","status":"booked"}', event="x")


def task(*criteria: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": "t1",
        "instruction": "book it",
        "seed": SEED,
        "facts": {"member": "M1"},
        "criteria": list(criteria or SEVEN),
        **more,
    }


class Playing:
    """Benchmarks over real playgrounds."""

    def __init__(self, benchmarks: Benchmarks, host: Host, tenant: str) -> None:
        self.benchmarks, self.host, self.tenant, self.scope = benchmarks, host, tenant, Scope(tenant)

    async def started(self, *tasks: dict[str, Any], scored: bool = False, **more: Any) -> TaskRunStart:
        written = {"benchmark": "demo", "tasks": list(tasks or (task(),)), **more}
        await self.benchmarks.publish(self.tenant, "author", Benchmark.model_validate(written))
        run = await create_one(self.benchmarks, self.tenant, "me", "demo", "t1", scored=scored, agent_id="a1")
        return await self.benchmarks.start(self.scope, run.id)

    def state(self, run: TaskRun) -> PlaygroundState:
        found = self.host.state_of(run.playground_id or "")
        assert found is not None
        return found

    async def completed(
        self, *tasks: dict[str, Any], act: Callable[[PlaygroundState], None] = all_done, scored: bool = False
    ) -> TaskRun:
        begun = await self.started(*tasks, scored=scored)
        await asyncio.to_thread(act, self.state(begun.run))
        return await self.benchmarks.complete(self.scope, begun.run.id)

    def criteria(self, run: TaskRun) -> dict[str, CriterionRun]:
        return {one.label: one for one in self.benchmarks.reader.criterion_runs(self.tenant, run)}

    # Any: JSON.
    def told(self, run: TaskRun) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.benchmarks.reader.completion(self.tenant, run).to_json())
        return found


@pytest.fixture
def play(shared: Store, tenant: str, tmp_path: Path) -> Callable[..., None]:
    """Run a story in playgrounds of its own."""

    def played(
        story: Callable[[Playing], Coroutine[Any, Any, None]],
        *,
        settings: Settings | None = None,
        for_others: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        async def all_of_it() -> None:
            chosen = settings or Settings()
            async with httpx.AsyncClient() as client, Host(tmp_path / "playgrounds") as host:
                worlds = build_environments(host, chosen, client, environment or {}, for_others=for_others)
                await story(Playing(build_benchmarks(chosen, shared, worlds), host, tenant))

        asyncio.run(all_of_it())

    return played


Play = Callable[..., None]


# Evidence as the specification has it

KEYS = ["path", "expected", "actual", "passed"]
SHAPES = {
    "booked": ("fieldResults", KEYS, ["status", "booked", "booked", True]),
    "sent": ("field_results", KEYS, ["SCH-1", "10345", "10345", True]),
    "asked": ("assertionResults", KEYS, ["cpt", "72148", "72148", True]),
    "dropped": ("fieldResults", KEYS, ["n", 3, 3, True]),
    "said": ("phraseResults", ["phrase", "found", "turn"], ["member ID", True, 1]),
    "active": ("fieldResults", KEYS, ["HL[22]/NM1[1=IL].9", "123456789", "123456789", True]),
}


def test_every_check_leaves_evidence_in_the_specified_shape(play: Play) -> None:
    async def story(here: Playing) -> None:
        run = await here.completed()
        found = here.criteria(run)
        assert (run.verdict, run.exact) == (Verdict.PASS, "1"), found
        for label, (name, keys, values) in SHAPES.items():
            (first,) = found[label].evidence[name]
            assert list(first)[: len(keys)] == keys, label
            assert [first[key] for key in keys] == values, label
            assert "fields" not in found[label].evidence
        assert found["dropped"].evidence["paths"] == ["out/a.json"]
        assert found["untouched"].evidence["fieldResults"] == []
        assert [one.check for one in found.values()] == [one["assert"] for one in SEVEN]

    play(story)


def test_what_does_not_fit_is_named_and_scored_nothing(play: Play) -> None:
    async def story(here: Playing) -> None:
        run = await here.completed(act=all_wrong)
        assert (run.verdict, run.score) == (Verdict.FAIL, 0.0)
        found = here.criteria(run)
        assert {one.status for one in found.values()} == {CriterionStatus.FAILED}
        assert {one.fault for one in found.values()} == {Fault.AGENT}
        for label, (name, _, _) in SHAPES.items():
            assert [one.get("passed", one.get("found")) for one in found[label].evidence[name]] == [False], label
            assert found[label].details, label
        touched = found["untouched"].evidence["fieldResults"]
        # The answer about another member is not the one asked for.
        assert [[one[key] for key in KEYS] for one in touched] == [
            ["clearinghouse:000001", "none", "created", False],
            ["portal:member/M1", "none", "updated", False],
        ]

    play(story)


def test_axes_come_out_as_the_specification_prints_them(play: Play) -> None:
    async def story(here: Playing) -> None:
        right = SEVEN[0] | {"axis": "correctness", "weight": 2}
        wrong = SEVEN[2] | {"axis": "safety", "weight": 1}
        run = await here.completed(task(right, wrong), act=booked, scored=True)
        told = here.told(run)
        assert (told["verdict"], round(told["score"], 9)) == ("partial", round(2 / 3, 9))
        assert told["axes"] == {
            "correctness": {"score": 1.0, "weight": 2},
            "safety": {"score": 0.0, "weight": 1},
        }
        assert run.exact == "2/3"

    play(story)


def test_criteria_without_an_axis_share_one(play: Play) -> None:
    async def story(here: Playing) -> None:
        run = await here.completed(task(SEVEN[0], SEVEN[2]))
        assert here.told(run)["axes"] == {"__default__": {"score": 1.0, "weight": 2}}

    play(story)


# What is told to whoever completes


@pytest.mark.parametrize(
    ("reveal", "keys"),
    [
        ("none", {"task_run_id", "status"}),
        ("verdict", {"task_run_id", "status", "verdict", "score"}),
        ("axes", {"task_run_id", "status", "verdict", "score", "axes"}),
        ("criteria", {"task_run_id", "status", "verdict", "score", "axes", "passed"}),
    ],
)
def test_a_scored_run_shows_only_what_its_task_reveals(play: Play, reveal: str, keys: set[str]) -> None:
    async def story(here: Playing) -> None:
        run = await here.completed(task(reveal=reveal), act=all_wrong, scored=True)
        told = here.told(run)
        assert set(told) == keys
        written = json.dumps(told)
        for secret in ("72148", "10345", "SCH-1", "cpt", "member ID", "123456789", "evidence", "details", "expected"):
            assert secret not in written
        if reveal == "criteria":
            assert told["passed"] == {one["label"]: False for one in SEVEN}

    play(story)


def test_a_practice_run_shows_everything(play: Play) -> None:
    async def story(here: Playing) -> None:
        run = await here.completed(act=all_wrong)
        told = here.told(run)
        assert set(told) == {
            *("task_run_id", "status", "verdict", "score", "axes", "coverage", "bounds", "reasons", "criteria"),
        }
        assert [one["label"] for one in told["criteria"]] == [one["label"] for one in SEVEN]
        first = told["criteria"][0]
        assert first["evidence"]["fieldResults"][0]["expected"] == "booked"
        assert first["details"].endswith(": status")

    play(story)


@pytest.mark.parametrize("scored", [True, False])
def test_a_run_without_a_verdict_shows_only_its_status(play: Play, scored: bool) -> None:
    async def story(here: Playing) -> None:
        begun = await here.started(scored=scored)
        (run,) = await here.benchmarks.cancel(here.tenant, [begun.run.id])
        told = here.told(run)
        assert {key: value for key, value in told.items() if value != []} == {
            "task_run_id": run.id,
            "status": "cancelled",
        }
        assert here.host.find(run.playground_id or "") is None

    play(story)


# Criteria that cannot be


@contextmanager
def installed(name: str) -> Iterator[None]:
    """A check that is there while a benchmark is published, and gone when its runs are judged."""
    checks.put(Check(name, "Always right.", prepare=_always))
    try:
        yield
    finally:
        checks._found.pop(name)


def _always(_assertion: Assertion) -> Callable[[Any], Checked]:
    return lambda _work: Checked("1")


def test_an_unknown_assertion_in_a_run_is_the_authors_fault(play: Play) -> None:
    async def story(here: Playing) -> None:
        odd = {"label": "odd", "assert": "gone-tomorrow", "some": "setting"}
        with installed("gone-tomorrow"):
            begun = await here.started(task(SEVEN[0], odd))
        all_done(here.state(begun.run))
        # Another process, or this one tomorrow.
        here.benchmarks.library._known.clear()
        run = await here.benchmarks.complete(here.scope, begun.run.id)
        found = here.criteria(run)
        assert (run.verdict, run.exact) == (Verdict.PARTIAL, "1/2")
        assert (found["odd"].status, found["odd"].score, found["odd"].fault) == ("failed", 0.0, Fault.AUTHOR)
        assert "'gone-tomorrow'" in (found["odd"].details or "")
        assert found["odd"].evidence["unsupported_assertion"] == "gone-tomorrow"
        assert found["booked"].status is CriterionStatus.PASSED

    play(story)


def test_a_task_without_criteria_fails_with_nothing(play: Play) -> None:
    async def story(here: Playing) -> None:
        run = await here.completed(task() | {"criteria": []})
        assert (run.status, run.verdict, run.score, run.axes) == (RunStatus.COMPLETED, Verdict.FAIL, 0.0, {})
        told = here.told(run)
        assert (told["verdict"], told["score"], told["criteria"]) == ("fail", 0.0, [])
        assert [one["code"] for one in told["reasons"]] == ["no_criteria"]

    play(story)


# Worlds


def test_seeds_are_merged_in_order(play: Play) -> None:
    async def story(here: Playing) -> None:
        second = {"rows": {"member": {"M1": {"name": "Eve"}, "M2": {}}}, "facts": {"member": "M2", "seeded": 2}}
        asked = {
            "assert": "portal-state-match",
            "correlate_by": {"resource": "member", "name": "${name}"},
            "fields": {"name": "Eve"},
        }
        begun = await here.started(
            task(asked, seed=[SEED, second, "more.yaml"], facts={"name": "Eve"}),
            attachments={"more.yaml": "files: {in/a.txt: {file: a.bin}}", "a.bin": {"base64": "/wA="}},
        )
        state = here.state(begun.run)
        assert [one.key for one in state.items(SourceKind.ROWS)] == ["member/M1", "member/M2"]
        (file,) = state.items(SourceKind.FILES)
        assert (file.key, file.content()) == ("in/a.txt", b"\xff\x00")
        assert (await here.benchmarks.complete(here.scope, begun.run.id)).verdict is Verdict.PASS

    play(story)


def test_the_facts_of_a_task_override_those_of_its_seed(play: Play) -> None:
    async def story(here: Playing) -> None:
        begun = await here.started()
        given = here.benchmarks._input(here.tenant, find_row(here.benchmarks, here.scope, begun.run.id))
        assert given["facts"] == {"member": "M1", "seeded": 1}
        assert (given["task"], given["instruction"]) == ("demo@1/t1", "book it")
        assert begun.instruction == "book it"
        assert begun.access["id"] == begun.run.playground_id
        assert "secret" in begun.access

    play(story)


def test_a_seed_that_is_none_starts_nothing(play: Play) -> None:
    async def story(here: Playing) -> None:
        cases: tuple[tuple[Any, str], ...] = (
            ({"rowz": {}}, "unknown key 'rowz'"),
            ("missing.yaml", "no such attachment"),
        )
        for number, (wrong, words) in enumerate(cases):
            written = Benchmark.model_validate({"benchmark": f"d{number}", "tasks": [task(seed=wrong)]})
            await here.benchmarks.publish(here.tenant, "author", written)
            run = await create_one(
                here.benchmarks, here.tenant, "me", written.benchmark, "t1", scored=True, agent_id=None
            )
            with pytest.raises(MeruitError, match=words):
                await here.benchmarks.start(here.scope, run.id)
            assert here.benchmarks.reader.run(here.scope, run.id).status is RunStatus.PENDING
        assert here.host.listing() == []

    play(story)


def test_an_environment_ends_unless_a_recheck_may_need_it(play: Play) -> None:
    async def story(here: Playing) -> None:
        run = await here.completed()
        assert here.host.listing() == []
        assert (await here.benchmarks.complete(here.scope, run.id)) == run

    play(story)


def test_what_the_agent_did_is_recorded_with_the_outcome(play: Play) -> None:
    async def story(here: Playing) -> None:
        begun = await here.started()
        await asyncio.to_thread(all_done, here.state(begun.run))
        seen = await asyncio.to_thread(read_acts, here.state(begun.run))
        run = await here.benchmarks.complete(here.scope, begun.run.id)
        # The playground is gone, and the acts are not.
        assert here.host.listing() == []
        *_, metadata = here.benchmarks._load_evidence(here.tenant, run)
        assert (len(seen.acts) > 3, msgspec.convert(metadata[ACTS_KEY], ActLog)) == (True, seen)
        again = await here.benchmarks.rejudge(here.tenant, run.id, "again")
        assert (again.verdict, again.outcome_version) == (run.verdict, 2)

    play(story)


def test_parallel_completions_of_a_playground_are_equal(play: Play) -> None:
    async def story(here: Playing) -> None:
        begun = await here.started()
        all_done(here.state(begun.run))
        answers = await asyncio.gather(*(here.benchmarks.complete(here.scope, begun.run.id) for _ in range(50)))
        assert answers == [answers[0]] * 50
        assert answers[0].verdict is Verdict.PASS

    play(story)


def test_a_run_cancelled_while_judged_stays_cancelled(play: Play) -> None:
    async def story(here: Playing) -> None:
        begun = await here.started()
        ended, (cancelled,) = await asyncio.gather(
            here.benchmarks.complete(here.scope, begun.run.id),
            here.benchmarks.cancel(here.tenant, [begun.run.id]),
        )
        assert ended == cancelled
        assert ended.status is RunStatus.CANCELLED
        assert here.host.listing() == []

    play(story)


def test_an_agent_that_stops_waiting_keeps_its_environment(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(here: Playing) -> None:
        written = Benchmark.model_validate({"benchmark": "demo", "tasks": [task()]})
        await here.benchmarks.publish(here.tenant, "author", written)
        run = await create_one(here.benchmarks, here.tenant, "me", "demo", "t1", scored=False, agent_id="a1")
        record = here.benchmarks.store.recorder.record

        async def given_up(write: Any) -> Any:
            """Record it, while whoever asked has gone."""
            await record(write)
            raise asyncio.CancelledError

        with monkeypatch.context() as patched:
            patched.setattr(here.benchmarks.store.recorder, "record", given_up)
            with pytest.raises(asyncio.CancelledError):
                await here.benchmarks.start(here.scope, run.id)
        begun = here.benchmarks.reader.run(here.scope, run.id)
        assert begun.status is RunStatus.RUNNING
        all_done(here.state(begun))
        assert (await here.benchmarks.complete(here.scope, run.id)).verdict is Verdict.PASS

    play(story)


def test_an_environment_unreadable_at_start_is_removed(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(here: Playing) -> None:
        async def broken(*_arguments: Any) -> Any:
            raise Unreachable("no space left")

        monkeypatch.setattr(here.benchmarks.environments, "read", broken)
        with pytest.raises(Unreachable, match="no space left"):
            await here.started()
        assert here.host.listing() == []

    play(story)


def test_a_run_stays_running_if_judging_breaks(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(here: Playing) -> None:
        begun = await here.started()
        gives_up = False

        async def broken(*_arguments: Any) -> Any:
            if gives_up:
                await here.benchmarks.cancel(here.tenant, [begun.run.id])
            raise Unreachable("gone")

        monkeypatch.setattr(here.benchmarks.environments, "read", broken)
        with pytest.raises(Unreachable, match="gone"):
            await here.benchmarks.complete(here.scope, begun.run.id)
        assert here.benchmarks.reader.run(here.scope, begun.run.id).status is RunStatus.RUNNING
        gives_up = True
        ended = await here.benchmarks.complete(here.scope, begun.run.id)
        assert ended.status is RunStatus.CANCELLED

    play(story)


# Trouble

OWN = {"portal": "rows", "chart": {"kind": "fhir", "at": "config:chart"}}
ON_CHART = {"label": "active", "assert": "fhir-resource-state", "resource": "Patient", "fields": {"active": True}}
ON_PORTAL = SEVEN[2]


class Chart:
    """A FHIR server that is up or down, as a test wants."""

    def __init__(self) -> None:
        self.up = True
        self.asked: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(str(request.url))
        if not self.up:
            return httpx.Response(403, json={"resourceType": "OperationOutcome"})
        if request.url.path.endswith("/Patient/1"):
            return httpx.Response(200, json=PATIENT, headers={"ETag": 'W/"1"'})
        body = {"resourceType": "Bundle", "type": "searchset", "total": 1, "entry": [{"resource": PATIENT}]}
        return httpx.Response(200, json=body)


PATIENT = {"resourceType": "Patient", "id": "1", "meta": {"versionId": "1"}, "active": True}


@pytest.fixture
def charted(shared: Store, tenant: str, tmp_path: Path) -> Callable[..., None]:
    """Run a story that also reads a chart of somebody's own."""

    def played(story: Callable[[Playing, Chart], Coroutine[Any, Any, None]], **configured: Any) -> None:
        sources = {"chart": {"kind": "fhir", "at": "http://chart.example/fhir", "types": ["Patient"]}, **configured}
        settings = Settings.model_validate({"benchmarks": {"sources": sources}})

        async def all_of_it() -> None:
            chart = Chart()
            async with (
                httpx.AsyncClient(transport=httpx.MockTransport(chart)) as client,
                Host(tmp_path / "playgrounds") as host,
            ):
                worlds = build_environments(host, settings, client, {}, for_others=True)
                await story(Playing(build_benchmarks(settings, shared, worlds), host, tenant), chart)

        asyncio.run(all_of_it())

    return played


QUICK = {"settle": {"stable": 1, "within": "1s"}}


def test_an_unreadable_source_is_an_error_until_a_recheck(charted: Play) -> None:
    async def story(here: Playing, chart: Chart) -> None:
        begun = await here.started(task(ON_CHART | QUICK, ON_PORTAL, sources=OWN))
        all_done(here.state(begun.run))
        chart.up = False
        run = await here.benchmarks.complete(here.scope, begun.run.id)
        found = here.criteria(run)
        active = found["active"]
        assert (active.status, active.score, active.passed, active.fault) == ("error", None, False, Fault.SYSTEM)
        assert "403" in (active.details or "")
        assert found["asked"].status is CriterionStatus.PASSED
        # Met it would pass, and failed it would not.
        assert (run.verdict, run.exact, run.exact_high) == (Verdict.INCONCLUSIVE, "1/2", "1")
        assert here.host.find(run.playground_id or "") is not None
        # A second look that sees as little is recorded as such.
        assert (await here.benchmarks.recheck(here.tenant, run.id, reread=True)).verdict is Verdict.INCONCLUSIVE
        chart.up = True
        decided = await here.benchmarks.recheck(here.tenant, run.id, reread=True)
        assert (decided.verdict, decided.exact, decided.status) == (Verdict.PASS, "1", RunStatus.COMPLETED)
        assert here.host.listing() == []
        for reread in (False, True):
            with pytest.raises(TaskRunStateError, match=run.id):
                await here.benchmarks.recheck(here.tenant, run.id, reread=reread)

    charted(story)


def test_missing_evidence_is_ignored_if_both_bounds_agree(charted: Play) -> None:
    async def story(here: Playing, chart: Chart) -> None:
        required = ON_PORTAL | {"required": True}
        begun = await here.started(task(ON_CHART | QUICK | {"weight": 0.1}, required, sources=OWN))
        chart.up = False
        run = await here.benchmarks.complete(here.scope, begun.run.id)
        assert (run.verdict, here.criteria(run)["active"].status) == (Verdict.FAIL, CriterionStatus.ERROR)
        # Its world is gone: looking again could only know less.
        with pytest.raises(TaskRunStateError, match=run.id):
            await here.benchmarks.recheck(here.tenant, run.id)

    charted(story)


def test_a_reread_counts_later_changes_and_says_so(
    charted: Play,
) -> None:
    async def story(here: Playing, chart: Chart) -> None:
        begun = await here.started(task(ON_CHART | QUICK, ON_PORTAL, sources=OWN))
        chart.up = False
        run = await here.benchmarks.complete(here.scope, begun.run.id)
        assert (run.verdict, run.exact, run.exact_high) == (Verdict.INCONCLUSIVE, "0", "1/2")
        # The agent still holds the secret, and does now what it was to do then.
        all_done(here.state(run))
        chart.up = True
        asked = len(chart.asked)
        again = await here.benchmarks.recheck(here.tenant, run.id)
        assert (again.verdict, again.outcome_id, again.outcome_version) == (run.verdict, run.outcome_id, 2)
        assert len(chart.asked) == asked
        later = await here.benchmarks.recheck(here.tenant, run.id, reread=True)
        found = {label: str(one.status) for label, one in here.criteria(later).items()}
        assert found == {"active": "passed", "asked": "failed"}
        assert (later.exact, later.exact_high) == ("1/2", "1/2")
        _, done, metadata = here.benchmarks._load_evidence(here.tenant, later)
        assert done["reread"]["sources"] == ["chart"]
        # What was done after the run ended is not among its acts.
        assert metadata[ACTS_KEY]["acts"] == []
        assert datetime.fromisoformat(done["reread"]["at"]) >= (run.ended_at or datetime.max.replace(tzinfo=UTC))

    charted(story)


def swap_evidence(here: Playing, part: str, ids: Sequence[str | None], *, salts: bool) -> None:
    """Let each outcome refer to what the other one has, as a writer of the database can."""
    outcomes = tables.outcomes
    names = [f"{part}_address", *([f"{part}_salt"] if salts else [])]
    with here.benchmarks.store.database.writer.begin() as connection:
        rows = [connection.execute(select(outcomes).where(outcomes.c.id == one)).one() for one in ids]
        for one, other in zip(ids, reversed(rows), strict=True):
            values = {name: getattr(other, name) for name in names}
            connection.execute(update(outcomes).where(outcomes.c.id == one).values(**values))


@pytest.mark.parametrize("salts", [False, True])
@pytest.mark.parametrize("part", ["output", "metadata"])
def test_nothing_is_reread_on_the_evidence_of_another_run(charted: Play, part: str, salts: bool) -> None:
    async def story(here: Playing, chart: Chart) -> None:
        chart.up = True
        idle, busy = [await here.started(task(ON_CHART | QUICK, ON_PORTAL, sources=OWN)) for _ in range(2)]
        all_done(here.state(busy.run))
        chart.up = False
        ids = [(await here.benchmarks.complete(here.scope, one.run.id)).outcome_id for one in (idle, busy)]
        swap_evidence(here, part, ids, salts=salts)
        chart.up = True
        before = here.benchmarks.reader.run(here.scope, idle.run.id)
        for reread in (True, False):
            with pytest.raises(RecordTampered):
                await here.benchmarks.recheck(here.tenant, idle.run.id, reread=reread)
        assert here.benchmarks.reader.run(here.scope, idle.run.id) == before
        swap_evidence(here, part, ids, salts=salts)
        assert (await here.benchmarks.recheck(here.tenant, idle.run.id, reread=True)).verdict is Verdict.PARTIAL

    charted(story)


def test_a_reread_needs_an_unread_source(charted: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(here: Playing, chart: Chart) -> None:
        begun = await here.started(task(ON_CHART | QUICK, ON_PORTAL, sources=OWN))
        chart.up = False
        run = await here.benchmarks.complete(here.scope, begun.run.id)
        given, done, metadata = here.benchmarks._load_evidence(here.tenant, run)
        done["world"]["chart"]["trouble"] = None
        monkeypatch.setattr(here.benchmarks, "_load_evidence", lambda *_: (given, done, metadata))
        with pytest.raises(TaskRunStateError, match=run.id):
            await here.benchmarks.recheck(here.tenant, run.id, reread=True)

    charted(story)


def test_a_reread_with_less_coverage_is_not_recorded(charted: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(here: Playing, chart: Chart) -> None:
        begun = await here.started(task(ON_CHART | QUICK, ON_PORTAL, sources=OWN))
        all_done(here.state(begun.run))
        chart.up = False
        run = await here.benchmarks.complete(here.scope, begun.run.id)
        result = here.benchmarks.reader.result(here.tenant, run)
        assert result is not None
        fuller = msgspec.structs.replace(result, coverage=1.0)
        monkeypatch.setattr(here.benchmarks.reader, "result", lambda *_: fuller)
        with pytest.raises(Unreachable, match=run.id):
            await here.benchmarks.recheck(here.tenant, run.id, reread=True)
        assert here.benchmarks.reader.run(here.scope, run.id) == run

    charted(story)


def test_a_run_with_an_unreadable_start_is_not_started(charted: Play) -> None:
    async def story(here: Playing, chart: Chart) -> None:
        created = ON_CHART | {"label": "created", "changed": "created"} | QUICK
        written = {"benchmark": "demo", "tasks": [task(created, ON_PORTAL, sources=OWN)]}
        await here.benchmarks.publish(here.tenant, "author", Benchmark.model_validate(written))
        run = await create_one(here.benchmarks, here.tenant, "me", "demo", "t1", scored=False, agent_id="a1")
        chart.up = False
        for _ in range(2):
            with pytest.raises(Unreachable, match=r"task t1 .*: chart: .*403"):
                await here.benchmarks.start(here.scope, run.id)
            assert here.benchmarks.reader.run(here.scope, run.id) == run
            assert here.host.listing() == []
        chart.up = True
        begun = await here.benchmarks.start(here.scope, run.id)
        all_done(here.state(begun.run))
        ended = await here.benchmarks.complete(here.scope, run.id)
        # The patient was there before.
        assert {label: str(one.status) for label, one in here.criteria(ended).items()} == {
            "created": "failed",
            "asked": "passed",
        }

    charted(story)


@pytest.mark.parametrize(
    ("at", "kind", "fault"),
    [
        ("http://chart.example/fhir", "fhir", AddressFault.NOT_ALLOWED),
        ("file:///etc", "files", AddressFault.NOT_ALLOWED),
        ("/etc", "files", AddressFault.NOT_ALLOWED),
        ("config:other", "fhir", AddressFault.NOT_CONFIGURED),
        ("config:chart", "rows", AddressFault.OTHER_KIND),
    ],
)
def test_a_service_reads_only_what_its_operator_configured(
    charted: Play, at: str, kind: str, fault: AddressFault
) -> None:
    async def story(here: Playing, chart: Chart) -> None:
        asked = {"fhir": ON_CHART, "rows": ON_PORTAL, "files": SEVEN[3]}[kind]
        with pytest.raises(InvalidAddress) as refused:
            await here.started(task(asked, sources={"own": {"kind": kind, "at": at}}))
        assert refused.value.fault is fault
        assert chart.asked == []
        assert here.host.listing() == []

    charted(story)


def test_ones_own_benchmark_may_read_any_address(play: Play, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()

    async def story(here: Playing) -> None:
        begun = await here.started(task(SEVEN[3] | QUICK, sources={"drop": {"kind": "files", "at": str(tmp_path)}}))
        assert (begun.run.playground_id, begun.access) == (None, {})
        assert (await here.benchmarks.access(here.scope, begun.run.id)).access == {}
        (folder / "a.json").write_text('{"n": 3}')
        assert (await here.benchmarks.complete(here.scope, begun.run.id)).verdict is Verdict.PASS

    play(story, for_others=False)


def test_a_lost_playground_is_a_system_fault(play: Play) -> None:
    async def story(here: Playing) -> None:
        begun = await here.started()
        await here.host.remove(begun.run.playground_id or "")
        with pytest.raises(UnknownPlayground):
            await here.benchmarks.access(here.scope, begun.run.id)
        run = await here.benchmarks.complete(here.scope, begun.run.id)
        assert (run.verdict, run.coverage) == (Verdict.INCONCLUSIVE, 0.0)
        assert {one.fault for one in here.criteria(run).values()} == {Fault.SYSTEM}

    play(story)


def test_an_axis_that_could_not_be_read_is_open_and_not_zero() -> None:
    read, unread = Bounds(low=0.0, high=0.0), Bounds(low=0.0, high=1.0)
    found = [
        TaskRunAxis.of(AxisScore(score=0.0, weight=1.0, passed=0, total=1, bounds=bounds)) for bounds in (read, unread)
    ]
    assert [one.score for one in found] == [0.0, None]
    assert format_axis(found[0]) == {"score": 0.0, "weight": 1}
    assert format_axis(found[1]) == {"score": None, "weight": 1, "bounds": {"low": 0.0, "high": 1.0}}
