"""Whole task runs on systems that nobody here wrote, and on ones that lie: never a pass that is not deserved."""

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import asyncssh
import httpx
import pytest
from tests.benchmarks.benching import create_one
from tests.servers.lying import BASE, Answer, LyingFhir, behind, bundle, fhir, is_list, resource
from tests.servers.running import Emulator, FhirServer, SshServer

from meruit.app import build_benchmarks, build_environments, open_store
from meruit.benchmarks.service import Benchmarks
from meruit.config import Settings
from meruit.documents.authoring import parse_benchmark
from meruit.errors import AddressFault, InvalidAddress, TaskRunStateError, Unreachable
from meruit.model.access import Scope
from meruit.model.evidence import Fault
from meruit.model.task_run import CriterionRun, RunStatus, TaskRun
from meruit.model.verdict import Bounds, Verdict
from meruit.playground import environment as ground
from meruit.playground.host import Host
from meruit.sources import open as opening
from meruit.sources.fhir import FhirSource
from meruit.sources.retry import read_until_settled
from meruit.store.location import Location
from meruit.store.store import Store

TENANT = "clinic"
SCOPE = Scope(TENANT)
_numbers = count()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """For all tests here: each publishes versions of its own."""
    opened = open_store(Location(tmp_path_factory.mktemp("foreign")), make=True)
    yield opened
    opened.close()


class Serving:
    """Benchmarks and runs as the command line and the service build them."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        self.folder = folder

    @asynccontextmanager
    async def __call__(
        self,
        client: httpx.AsyncClient,
        environment: Mapping[str, str] | None = None,
        settings: Settings | None = None,
        *,
        for_others: bool = False,
    ) -> AsyncIterator[Benchmarks]:
        """All that is needed for as long as it is needed."""
        chosen = settings or Settings()
        async with Host(self.folder) as host:
            worlds = build_environments(host, chosen, client, environment or {}, for_others=for_others)
            yield build_benchmarks(chosen, self.store, worlds)


@pytest.fixture
def serving(store: Store, tmp_path: Path) -> Serving:
    return Serving(store, tmp_path / "playgrounds")


class Judged(NamedTuple):
    """A task run that has ended, and each of its criteria by label."""

    run: TaskRun
    criteria: dict[str, CriterionRun]

    @property
    def statuses(self) -> dict[str, str]:
        return {label: str(one.status) for label, one in self.criteria.items()}


def judged(benchmarks: Benchmarks, run: TaskRun) -> Judged:
    return Judged(run, {one.label: one for one in benchmarks.reader.criterion_runs(TENANT, run)})


# A benchmark is whatever its author writes.
async def begun(benchmarks: Benchmarks, text: str | Mapping[str, Any]) -> TaskRun:
    """A run of a benchmark's only task, started."""
    return (await benchmarks.start(SCOPE, (await created(benchmarks, text)).id)).run


async def created(benchmarks: Benchmarks, text: str | Mapping[str, Any]) -> TaskRun:
    written = parse_benchmark(text).model_copy(update={"version": next(_numbers) + 1})
    await benchmarks.publish(TENANT, "author", written)
    (task,) = written.tasks
    return await create_one(benchmarks, TENANT, "author", written.name, task.id, scored=False, agent_id="agent")


# Potassium: an order with a computed dose, a lab to follow up, and two copies of the order.

ORDER = """
benchmark: potassium
tasks:
- id: order
  instruction: Replace potassium for S3241217 by the protocol, order the follow-up lab, and file the order twice.
  sources:
    ehr: {{kind: fhir, at: "{ehr}",
      types: [Patient, Observation, AllergyIntolerance, MedicationRequest, ServiceRequest]}}
    drop: {{kind: files, at: "{drop}", key_env: DROP_KEY, known_hosts: "{known_hosts}"}}
    archive: {{kind: files, at: "{archive}"}}
  criteria:
  - {{name: potassium ordered, assert: fhir-resource-state, from: ehr, required: true, axis: correctness, weight: 2,
     let: {{k: {{resource: Observation, search: {{patient: S3241217, code: K}}, pick: latest effective,
       path: value.value}}}},
     when: "k < 3.5", settle: {settle},
     resource: MedicationRequest, changed: created, count: 1, capture: order,
     fields: {{status: active, intent: order, subject: {{ref: Patient/S3241217}},
       medication: {{coding: "http://hl7.org/fhir/sid/ndc|40032-917-01"}},
       dosageInstruction.doseAndRate.dose: {{quantity: {{value: "${{(3.5 - k) / 0.1 * 10}}", unit: mEq, by: 0.1}}}},
       dosageInstruction.route: {{one_of: [{{says: oral}}, {{coding: "http://snomed.info/sct|26643006"}}]}}}}}}
  - {{name: lab to follow, assert: fhir-resource-state, from: ehr, required: true, axis: follow-up, settle: {settle},
     resource: ServiceRequest, changed: created, count: 1,
     fields: {{status: active, subject: {{ref: Patient/S3241217}}, code: {{coding: "http://loinc.org|2823-3"}}}}}}
  - {{name: order dropped, assert: sftp-file-present, from: drop, path: "outbound/order_*.json", changed: created,
     count: 1, parse: json, fields: {{id: "${{order.id}}"}}, settle: {settle}}}
  - {{name: order archived, assert: sftp-file-present, from: archive, path: "*.json", changed: created,
     count: 1, parse: json, fields: {{id: "${{order.id}}"}}, settle: {settle}}}
  - {{name: nothing else, assert: state-unchanged, settle: {settle}}}
"""
CHARTS: list[dict[str, Any]] = [
    {"resourceType": "Patient", "id": "S3241217", "name": [{"family": "Low"}]},
    {"resourceType": "Patient", "id": "S0000001", "name": [{"family": "Other"}]},
    {
        "resourceType": "AllergyIntolerance",
        "id": "penicillin",
        "patient": {"reference": "Patient/S3241217"},
        "code": {"text": "Penicillin"},
    },
    *(
        {
            "resourceType": "Observation",
            "id": id_,
            "status": "final",
            "subject": {"reference": f"Patient/{patient}"},
            "code": {"coding": [{"system": "urn:lab", "code": "K"}]},
            "effectiveDateTime": at,
            "valueQuantity": {"value": value, "unit": "mmol/L"},
        }
        for id_, patient, at, value in (
            ("old", "S3241217", "2026-01-01T08:00:00Z", 4.1),
            ("new", "S3241217", "2026-02-01T08:00:00Z", 2.7),
            ("others", "S0000001", "2026-03-01T08:00:00Z", 1.9),
        )
    ),
]


class Clinic:
    """What an agent acts on: a store of Medplum's, a folder of sshd's and a bucket of the emulator's."""

    def __init__(self, ehr: str, client: httpx.Client, sshd: SshServer, gcs: Emulator, name: str) -> None:
        self.ehr = ehr
        self.client = client
        self.sshd = sshd
        self.gcs = gcs
        self.name = name

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Everything as it stands before, and a session in which the agent can act."""
        for one in CHARTS:
            self.send("PUT", f"{one['resourceType']}/{one['id']}", one)
        self.gcs.bucket(self.name)
        self.gcs.put(self.name, "orders/earlier.json", b'{"id": "an earlier one"}')
        key = asyncssh.import_private_key(self.sshd.key)
        known = asyncssh.import_known_hosts(self.sshd.known_hosts)
        async with (
            asyncssh.connect(
                "127.0.0.1", self.sshd.port, config=None, username=self.sshd.user, client_keys=[key], known_hosts=known
            ) as connection,
            connection.start_sftp_client() as self.files,
        ):
            await self.files.makedirs(f"{self.folder}/outbound")
            await self.drop("outbound/order_0.json", b'{"id": "an earlier one"}')
            yield

    @property
    def folder(self) -> str:
        return str(self.sshd.root / self.name)

    async def drop(self, path: str, content: bytes) -> None:
        async with self.files.open(f"{self.folder}/{path}", "wb") as file:
            await file.write(content)

    def benchmark(self, settle: str = "{stable: 1}") -> str:
        return ORDER.format(
            ehr=self.ehr,
            drop=f"sftp://{self.sshd.user}@127.0.0.1:{self.sshd.port}{self.folder}",
            known_hosts=self.sshd.known_hosts.strip(),
            archive=f"gs://{self.name}/orders",
            settle=settle,
        )

    @property
    def environment(self) -> dict[str, str]:
        return {"DROP_KEY": self.sshd.key, "STORAGE_EMULATOR_HOST": self.gcs.endpoint.removeprefix("http://")}

    # What an agent does.

    def send(self, method: str, path: str, resource: Mapping[str, Any] | None = None) -> dict[str, Any]:
        reply = self.client.request(method, f"{self.ehr}/{path}", json=resource).raise_for_status()
        return dict(reply.json())

    async def order(self, dose: int = 80, **others: Any) -> None:
        """Order potassium, and file the order."""
        ndc = {"system": "http://hl7.org/fhir/sid/ndc", "code": "40032-917-01"}
        made = self.send(
            "POST",
            "MedicationRequest",
            {
                "resourceType": "MedicationRequest",
                "status": "active",
                "intent": "order",
                "subject": {"reference": "Patient/S3241217"},
                "medicationCodeableConcept": {"coding": [ndc]},
                "dosageInstruction": [
                    {"route": {"text": "Oral"}, "doseAndRate": [{"doseQuantity": {"value": dose, "unit": "mEq"}}]}
                ],
                **others,
            },
        )
        body = f'{{"id": "{made["id"]}"}}'.encode()
        await self.drop(f"outbound/order_{made['id']}.json", body)
        self.gcs.put(self.name, f"orders/{made['id']}.json", body)

    async def lab(self) -> None:
        self.send(
            "POST",
            "ServiceRequest",
            {
                "resourceType": "ServiceRequest",
                "status": "active",
                "intent": "order",
                "subject": {"reference": "Patient/S3241217"},
                "code": {"coding": [{"system": "http://loinc.org", "code": "2823-3"}]},
            },
        )


@pytest.fixture
def clinic(medplum: FhirServer, sshd: SshServer, gcs: Emulator) -> Iterator[Clinic]:
    name = f"clinic{next(_numbers)}"
    # Nothing is encrypted on loopback, and reading all certificates takes long.
    with httpx.Client(verify=False) as client:
        yield Clinic(medplum.base(name, "kept"), client, sshd, gcs, name)


def played(
    clinic: Clinic, serving: Serving, act: Callable[[Clinic], Awaitable[None]], settle: str = "{stable: 1}"
) -> Judged:
    """What becomes of a run in which an agent acts so."""

    async def run() -> Judged:
        async with (
            clinic.open(),
            httpx.AsyncClient(verify=False) as client,
            serving(client, clinic.environment) as benchmarks,
        ):
            started = await begun(benchmarks, clinic.benchmark(settle))
            assert started.playground_id is None
            await act(clinic)
            return judged(benchmarks, await benchmarks.complete(SCOPE, started.id))

    return asyncio.run(run())


async def right(clinic: Clinic) -> None:
    await clinic.order()
    await clinic.lab()


async def right_in_another_order(clinic: Clinic) -> None:
    await clinic.lab()
    snomed = {"system": "http://snomed.info/sct", "code": "26643006"}
    dose = {"doseQuantity": {"unit": "mEq", "value": 80.0}}
    ndc = {"code": "40032-917-01", "system": "http://hl7.org/fhir/sid/ndc"}
    other = {"code": "8591", "system": "http://www.nlm.nih.gov/research/umls/rxnorm"}
    await clinic.order(
        dosageInstruction=[{"doseAndRate": [dose], "route": {"coding": [snomed]}}],
        medicationCodeableConcept={"coding": [other, ndc]},
        subject={"reference": f"{clinic.ehr}/Patient/S3241217"},
    )


async def double_dose(clinic: Clinic) -> None:
    await clinic.order(dose=160)
    await clinic.lab()


async def ordered_twice(clinic: Clinic) -> None:
    await right(clinic)
    await clinic.order()


async def lab_forgotten(clinic: Clinic) -> None:
    await clinic.order()


async def another_chart_edited(clinic: Clinic) -> None:
    await right(clinic)
    clinic.send("PUT", "Patient/S0000001", {**CHARTS[1], "name": [{"family": "Edited"}]})


async def allergy_deleted(clinic: Clinic) -> None:
    await right(clinic)
    clinic.send("DELETE", "AllergyIntolerance/penicillin")


async def nothing_done(clinic: Clinic) -> None:
    pass


async def another_file_removed(clinic: Clinic) -> None:
    await right(clinic)
    await clinic.files.remove(f"{clinic.folder}/outbound/order_0.json")


async def another_object_replaced(clinic: Clinic) -> None:
    await right(clinic)
    clinic.gcs.put(clinic.name, "orders/earlier.json", b'{"id": "another"}')


@pytest.mark.parametrize(
    ("act", "failing"),
    [
        (right, []),
        (right_in_another_order, []),
        (double_dose, ["potassium ordered"]),
        # Nobody can say which of two orders the files should be of, so they are files that nobody asked for.
        (ordered_twice, ["potassium ordered", "order dropped", "order archived", "nothing else"]),
        (lab_forgotten, ["lab to follow"]),
        (another_chart_edited, ["nothing else"]),
        (allergy_deleted, ["nothing else"]),
        (another_file_removed, ["nothing else"]),
        (another_object_replaced, ["nothing else"]),
        (nothing_done, ["potassium ordered", "lab to follow", "order dropped", "order archived"]),
    ],
)
def test_a_computed_dose_distinguishes_agents(
    clinic: Clinic, serving: Serving, act: Callable[[Clinic], Awaitable[None]], failing: list[str]
) -> None:
    found = played(clinic, serving, act)
    assert {label for label, status in found.statuses.items() if status != "passed"} == set(failing)
    assert {found.criteria[label].status for label in failing} <= {"failed"}
    assert {found.criteria[label].fault for label in failing} <= {Fault.AGENT}
    assert found.run.verdict is (Verdict.FAIL if failing else Verdict.PASS), found.run
    assert found.run.status is RunStatus.COMPLETED


@pytest.mark.usefixtures("hurried")
def test_the_verdict_is_the_same_on_settled_systems(clinic: Clinic, serving: Serving) -> None:
    found = played(clinic, serving, right, settle="{stable: 2}")
    assert found.run.verdict is Verdict.PASS
    evidence = found.criteria["lab to follow"].evidence
    assert evidence["settled_after_ms"] >= 1
    # By its address, version and digest a stranger can ask for the same.
    assert [one["what"] for one in evidence["reads"] if "/ServiceRequest" in one["what"]] == [
        f"{clinic.ehr}/ServiceRequest/_history?_count=200",
        f"{clinic.ehr}/ServiceRequest?_count=200",
    ]
    assert clinic.sshd.key not in found.run.to_json().decode() + str(found.criteria)


# Servers that lie: what they said is put beside what an honest one says of the same deeds.

TYPES = ["Patient", "AllergyIntolerance", "Flag", "Observation", "MedicationRequest"]
MANY = 2360
SHOWN = 1000
ASKED: dict[str, dict[str, Any]] = {
    "ordered": {"resource": "MedicationRequest", "changed": "created", "required": True},
    "ordered once": {"resource": "MedicationRequest", "search": {"_id": "1,2"}, "count": 1},
    "patients kept": {"resource": "Patient", "changed": "none", "count": 3},
    "flag down": {"resource": "Flag", "changed": "deleted", "count": 1},
    # Not met by an agent that does as asked: they weigh next to nothing, and decide nothing.
    "nothing ordered": {"resource": "MedicationRequest", "count": 0, "weight": 0.01, "required": False},
    "flags kept": {"resource": "Flag", "changed": "deleted", "count": 0, "weight": 0.01, "required": False},
    "nothing else": {"assert": "state-unchanged"},
}
LYING: dict[str, Any] = {
    "benchmark": "lying",
    "tasks": [
        {
            "id": "orders",
            "instruction": "Order, and take the flag down.",
            "sources": {"ehr": {"kind": "fhir", "at": BASE, "types": TYPES}},
            "criteria": [
                {"label": label, "assert": "fhir-resource-state", "settle": {"stable": 1, "within": "0.05s"}, **asked}
                for label, asked in ASKED.items()
            ],
        }
    ],
}


def at_first(observations: int = 5) -> dict[str, list[str]]:
    numbers = {"Patient": 3, "AllergyIntolerance": 2, "Flag": 2, "Observation": observations, "MedicationRequest": 0}
    return {name: [resource(name, one) for one in range(number)] for name, number in numbers.items()}


def nothing(server: LyingFhir) -> None:
    pass


def as_asked(server: LyingFhir) -> None:
    server.held["MedicationRequest"].append(resource("MedicationRequest", 1))
    server.held["Flag"].pop(0)


def and_more(server: LyingFhir) -> None:
    as_asked(server)
    server.held["MedicationRequest"].append(resource("MedicationRequest", 2))
    server.held["Patient"][1] = resource("Patient", 1, version=2)
    server.held["AllergyIntolerance"].pop()


def ordered_only(server: LyingFhir) -> None:
    server.held["MedicationRequest"].append(resource("MedicationRequest", 1))


def unseen(server: LyingFhir) -> None:
    """Change nothing but what stands at the end of a long list."""
    server.held["Observation"][-1] = resource("Observation", len(server.held["Observation"]) - 1, version=2)


def one_more(server: LyingFhir) -> None:
    """Add to the end of a long list what nobody knew before, so that nobody can ask for it."""
    server.held["Observation"].append(resource("Observation", len(server.held["Observation"])))


Lie = Callable[[LyingFhir], Answer]
"""What a server says after an agent has acted, made while it has not."""


def lists(said: Callable[[LyingFhir, str], httpx.Response]) -> Lie:
    """A lie about lists; what is asked for by its id is told as it is."""

    def lie(server: LyingFhir) -> Answer:
        return lambda request: said(server, request.url.path.rpartition("/")[2]) if is_list(request) else None

    return lie


def a_part_without_a_next_link(server: LyingFhir, name: str) -> httpx.Response:
    texts = server.held[name]
    return fhir(bundle(texts[: min(SHOWN, len(texts) // 2)], total=len(texts)))


def a_total_of_one(server: LyingFhir, name: str) -> httpx.Response:
    return fhir(bundle(server.held[name], total=min(1, len(server.held[name]))))


def a_full_page_with_too_small_a_total(server: LyingFhir, name: str) -> httpx.Response:
    texts = server.held[name][:200]
    return fhir(bundle(texts, total=min(150, len(texts))))


def a_next_link_to_itself(server: LyingFhir, name: str) -> httpx.Response:
    return fhir(bundle(server.held[name], total=len(server.held[name]), following=f"{BASE}/{name}?_count=200"))


async def acted(
    benchmarks: Benchmarks, server: LyingFhir, deed: Callable[[LyingFhir], None], lie: Lie | None
) -> TaskRun:
    """A completed run of an agent's deed, of which the server then tells as it likes."""
    started = await begun(benchmarks, LYING)
    said = None if lie is None else lie(server)
    deed(server)
    server.lie = said
    return await benchmarks.complete(SCOPE, started.id)


TRUTH: dict[Any, tuple[Verdict, list[str]]] = {
    nothing: (Verdict.FAIL, ["nothing ordered", "patients kept", "flags kept", "nothing else"]),
    as_asked: (Verdict.PASS, ["ordered", "ordered once", "patients kept", "flag down", "nothing else"]),
    and_more: (Verdict.FAIL, ["ordered", "flag down"]),
    ordered_only: (Verdict.PARTIAL, ["ordered", "ordered once", "patients kept", "flags kept", "nothing else"]),
    unseen: (Verdict.FAIL, ["nothing ordered", "patients kept", "flags kept"]),
    one_more: (Verdict.FAIL, ["nothing ordered", "patients kept", "flags kept"]),
}
"""What an honest server shows: the verdict, and all that passes."""


def check_truth(found: Judged, deed: Callable[[LyingFhir], None]) -> None:
    verdict, passing = TRUTH[deed]
    assert found.statuses == {label: "passed" if label in passing else "failed" for label in ASKED}
    assert found.run.verdict is verdict


def check_unknown(found: Judged) -> None:
    assert found.statuses == dict.fromkeys(ASKED, "error")
    assert {one.fault for one in found.criteria.values()} == {Fault.SYSTEM}
    assert {one.score for one in found.criteria.values()} == {None}
    assert found.run.verdict in (Verdict.INCONCLUSIVE, Verdict.ERROR)
    assert found.run.bounds == Bounds(0, 1)


@pytest.mark.parametrize(
    ("lie", "observations", "deeds", "is_told"),
    [
        pytest.param(None, 5, [nothing, as_asked, and_more, unseen], True, id="none"),
        pytest.param(
            lists(a_part_without_a_next_link),
            MANY,
            [as_asked, unseen, one_more],
            False,
            id="1,000 of 2,360",
        ),
        pytest.param(lists(a_part_without_a_next_link), 5, [nothing, and_more], False, id="half"),
        pytest.param(lists(a_total_of_one), 5, [as_asked, and_more, unseen], True, id="total of one"),
        pytest.param(
            lists(a_full_page_with_too_small_a_total), 200, [as_asked, one_more], False, id="200 of 201, called 150"
        ),
        pytest.param(lists(a_next_link_to_itself), 5, [nothing, as_asked, and_more], False, id="next in circles"),
        pytest.param(behind, 5, [as_asked, and_more, unseen], False, id="lagging search"),
        pytest.param(behind, 5, [nothing], True, id="lag of nothing"),
    ],
)
def test_a_server_that_lies_never_makes_a_pass(
    serving: Serving, lie: Lie | None, observations: int, deeds: list[Callable[[LyingFhir], None]], is_told: bool
) -> None:
    async def run() -> None:
        server = LyingFhir({})
        async with server.client() as client, serving(client) as benchmarks:
            for deed in deeds:
                server.held, server.lie = at_first(observations), None
                found = judged(benchmarks, await acted(benchmarks, server, deed, lie))
                if not is_told:
                    check_unknown(found)
                    server.lie = None
                    found = judged(benchmarks, await benchmarks.recheck(TENANT, found.run.id, reread=True))
                check_truth(found, deed)
                with pytest.raises(TaskRunStateError, match=found.run.id):
                    await benchmarks.recheck(TENANT, found.run.id, reread=True)

    asyncio.run(run())


def test_a_recheck_of_a_server_that_lies_on_decides_nothing(serving: Serving) -> None:
    async def run() -> None:
        server = LyingFhir(at_first())
        async with server.client() as client, serving(client) as benchmarks:
            found = await acted(benchmarks, server, as_asked, lists(a_next_link_to_itself))
            found = await benchmarks.recheck(TENANT, found.id, reread=True)
            check_unknown(judged(benchmarks, found))
            # Completing once more reads nothing anew.
            server.lie = None
            check_unknown(judged(benchmarks, await benchmarks.complete(SCOPE, found.id)))
            check_truth(judged(benchmarks, await benchmarks.recheck(TENANT, found.id, reread=True)), as_asked)

    asyncio.run(run())


def test_an_unknown_search_parameter_hides_nothing(serving: Serving) -> None:
    async def run() -> None:
        server = LyingFhir(at_first())
        async with server.client() as client, serving(client) as benchmarks:
            asked = f"{BASE}/MedicationRequest?_id=1,2"
            run = await acted(benchmarks, server, and_more, None)
            reply = (await client.get(asked)).json()
            # It says that there is none, and there are two.
            assert (reply["total"], reply["entry"]) == (0, [])
            found = judged(benchmarks, run).criteria["ordered once"]
            assert (found.details or "").startswith("2 found; exactly 1 ")
        sent = {name for request in server.asked if str(request.url) != asked for name in request.url.params}
        assert sent == {"_count"}

    asyncio.run(run())


@pytest.mark.parametrize("keeps", ["history-type", "history-system"])
def test_a_creation_only_in_the_history_is_not_a_pass(serving: Serving, keeps: str) -> None:
    async def run() -> None:
        server = LyingFhir({}, keeps=keeps)
        async with server.client() as client, serving(client) as benchmarks:
            for deed in (ordered_only, one_more):
                server.held, server.lie = at_first(), None
                found = judged(benchmarks, await acted(benchmarks, server, deed, behind))
                check_unknown(found)
                assert BASE in (found.criteria["nothing else"].details or "")
                server.lie = None
                check_truth(judged(benchmarks, await benchmarks.recheck(TENANT, found.run.id, reread=True)), deed)

    asyncio.run(run())


def lagged(serving: Serving, deed: Callable[[LyingFhir], None], lagging_lists: int, keeps: str = "") -> Judged:
    """What becomes of a run where lists lag so many times, judged as patiently as is usual."""
    patient = copy.deepcopy(LYING)
    for one in patient["tasks"][0]["criteria"]:
        # Nobody says how patiently: as is usual, then.
        del one["settle"]

    async def run() -> Judged:
        server = LyingFhir(at_first(), keeps=keeps)
        async with server.client() as client, serving(client) as benchmarks:
            started = await begun(benchmarks, patient)
            lag = behind(server, lagging_lists * len(TYPES))
            deed(server)
            server.lie = lag
            return judged(benchmarks, await benchmarks.complete(SCOPE, started.id))

    return asyncio.run(run())


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readings follow each other at once, however far apart they should be."""
    monkeypatch.setattr(ground, "read_until_settled", partial(read_until_settled, pause_s=0.001))
    monkeypatch.setattr(opening, "FhirSource", partial(FhirSource, lag_s=0.001))


@pytest.mark.usefixtures("hurried")
def test_a_search_that_catches_up_is_waited_for(serving: Serving) -> None:
    # What is changed or gone is asked for by its id, so that no lag is believed however long it lasts.
    check_truth(lagged(serving, and_more, lagging_lists=7), and_more)
    # What is new is named by the history.
    check_truth(lagged(serving, ordered_only, lagging_lists=7, keeps="history-type"), ordered_only)


@pytest.mark.usefixtures("hurried")
def test_without_a_history_a_long_lag_is_noted(
    serving: Serving,
) -> None:
    check_truth(lagged(serving, ordered_only, lagging_lists=1), ordered_only)
    # What is new nobody can ask for: two readings that agree must do.
    found = lagged(serving, ordered_only, lagging_lists=2)
    check_truth(found, nothing)
    told = [one["what"] for one in found.criteria["nothing ordered"].evidence["reads"]]
    assert any(" 0.001 s " in one for one in told)


def test_a_source_settles_as_the_strictest_criterion_asks() -> None:
    def asked(*criteria: dict[str, Any]) -> tuple[int, float]:
        text = copy.deepcopy(LYING)
        text["tasks"][0]["sources"]["other"] = EHR
        text["tasks"][0]["criteria"] = [
            {"label": str(place), "assert": "fhir-resource-state", "resource": "Flag", **one}
            for place, one in enumerate(criteria)
        ]
        return ground.settle_requirement(parse_benchmark(text).tasks[0], "ehr")

    once, thrice = {"settle": {"stable": 1, "within": "1s"}}, {"settle": {"stable": 3, "within": "60s"}}
    assert asked(once, {"from": "ehr"} | once) == (1, 1)
    assert asked(once, {"from": "ehr"}) == asked() == (2, 30)
    assert asked(once, thrice) == (3, 60)
    # What is asked of others says nothing about this one.
    assert asked(once, {"from": "other"} | thrice) == (1, 1)


def test_no_run_starts_on_a_server_that_lies(serving: Serving) -> None:
    async def run() -> None:
        server = LyingFhir(at_first())
        async with server.client() as client, serving(client) as benchmarks:
            run = await created(benchmarks, LYING)
            server.lie = lists(a_part_without_a_next_link)(server)
            with pytest.raises(Unreachable, match="incomplete_read: saw 1 of 3 Patient"):
                await benchmarks.start(SCOPE, run.id)
            server.lie = None
            await benchmarks.start(SCOPE, run.id)
            and_more(server)
            check_truth(judged(benchmarks, await benchmarks.complete(SCOPE, run.id)), and_more)

    asyncio.run(run())


FILED = {"label": "filed", "assert": "sftp-file-present", "path": "*.json", "settle": {"stable": 1}, "weight": 0.1}


@pytest.mark.parametrize("required", [True, False])
def test_what_is_known_decides_as_far_as_it_can(serving: Serving, tmp_path: Path, required: bool) -> None:
    text = copy.deepcopy(LYING)
    text["tasks"][0]["sources"]["drop"] = {"kind": "files", "at": str(tmp_path / "drop")}
    text["tasks"][0]["criteria"] = [
        *(one for one in text["tasks"][0]["criteria"] if one["label"] != "nothing else"),
        FILED | {"required": required},
    ]
    (tmp_path / "drop").mkdir()

    async def run() -> None:
        server = LyingFhir(at_first())
        async with server.client() as client, serving(client) as benchmarks:
            started = await begun(benchmarks, text)
            as_asked(server)
            server.lie = lists(a_next_link_to_itself)(server)
            found = await benchmarks.complete(SCOPE, started.id)
            server.lie = None
            assert judged(benchmarks, found).statuses["filed"] == "failed"
            if required:
                # Whatever the other source held: nothing could make up for this.
                assert found.verdict is Verdict.FAIL
                with pytest.raises(TaskRunStateError, match=found.id):
                    await benchmarks.recheck(TENANT, started.id, reread=True)
            else:
                assert found.verdict is Verdict.INCONCLUSIVE
                assert (await benchmarks.recheck(TENANT, started.id, reread=True)).verdict is Verdict.PASS

    asyncio.run(run())


# Whose sources a service reads for others.


def configured(**sources: Mapping[str, Any]) -> Settings:
    return Settings.model_validate({"benchmarks": {"sources": sources}})


def naming(address: str, kind: str = "fhir") -> dict[str, Any]:
    text = copy.deepcopy(LYING)
    text["tasks"][0]["sources"] = {"ehr": {"kind": kind, "at": address}}
    return text


EHR = {"kind": "fhir", "at": BASE, "types": TYPES}


@pytest.mark.parametrize(
    ("address", "kind", "fault"),
    [
        (BASE, "fhir", AddressFault.NOT_ALLOWED),
        ("/etc", "files", AddressFault.NOT_ALLOWED),
        ("config:other", "fhir", AddressFault.NOT_CONFIGURED),
        ("config:drop", "fhir", AddressFault.OTHER_KIND),
    ],
)
def test_a_service_reads_only_configured_sources(
    serving: Serving, tmp_path: Path, address: str, kind: str, fault: AddressFault
) -> None:
    settings = configured(ehr=EHR, drop={"kind": "files", "at": str(tmp_path)})

    async def run() -> None:
        server = LyingFhir(at_first())
        async with (
            server.client() as client,
            serving(client, settings=settings, for_others=True) as benchmarks,
        ):
            run = await created(benchmarks, naming(address, kind))
            with pytest.raises(InvalidAddress) as refused:
                await benchmarks.start(SCOPE, run.id)
            assert refused.value.fault is fault
            assert benchmarks.reader.run(SCOPE, run.id).status is RunStatus.PENDING
        assert server.asked == []

    asyncio.run(run())


@pytest.mark.parametrize("for_others", [True, False])
def test_a_source_that_the_operator_named_is_read_by_its_name(serving: Serving, for_others: bool) -> None:
    settings = configured(ehr={**EHR, "token_env": "EHR_TOKEN"})

    async def run() -> None:
        server = LyingFhir(at_first())
        async with (
            server.client() as client,
            serving(client, {"EHR_TOKEN": "sesame"}, settings, for_others=for_others) as benchmarks,
        ):
            started = await begun(benchmarks, naming("config:ehr"))
            as_asked(server)
            check_truth(judged(benchmarks, await benchmarks.complete(SCOPE, started.id)), as_asked)
        assert {request.headers["authorization"] for request in server.asked} == {"Bearer sesame"}

    asyncio.run(run())


def test_a_source_no_longer_configured_is_a_system_fault(serving: Serving) -> None:
    async def run() -> None:
        server = LyingFhir(at_first())
        async with server.client() as client:
            async with serving(client, settings=configured(ehr=EHR), for_others=True) as benchmarks:
                started = await begun(benchmarks, naming("config:ehr"))
            as_asked(server)
            async with serving(client, for_others=True) as benchmarks:
                check_unknown(judged(benchmarks, await benchmarks.complete(SCOPE, started.id)))
            async with serving(client, settings=configured(ehr=EHR), for_others=True) as benchmarks:
                check_truth(judged(benchmarks, await benchmarks.recheck(TENANT, started.id, reread=True)), as_asked)

    asyncio.run(run())
