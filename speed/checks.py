"""One item held against an assertion of ten fields, each check against the field's own library on the same message.

CPU from the snapshot as it is recorded to the evidence, everything parsed again each time. The aim is
below 1 ms; growth shows what a thousand other items in the same source cost.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import hl7
import jmespath
from pyx12.x12file import X12Reader

from meruit.model.criterion import Assertion
from meruit.model.environment import Snapshot, SourceKind, as_work_part, make_item
from meruit.model.evidence import Checked
from meruit.model.work import Work
from meruit.registry import checks
from speed.measure import Row, interleaved

MESSAGE = "\r".join(
    [
        r"MSH|^~\&|LAB|CLINIC|EHR|CLINIC|20260306100000-0600||ORU^R01^ORU_R01|MSG00001|P|2.5.1",
        "PID|1||483671^^^CLINIC^MR~999-11-2222^^^SSA^SS||Smith^John^Q||19740101|M|||1 Main St^^Town^TX^75001",
        "PV1|1|O|CLINIC^^^^^^^^ROOM 1||||1234567893^Rivera^Ana",
        "ORC|RE|ORD1|FIL1||CM",
        "OBR|1|ORD1|FIL1|55284-4^Blood pressure^LN|||20260306095500-0600",
        *(f"OBX|{n}|NM|84{n:02}-6^Reading {n}^LN||{110 + n}|mm[Hg]|90-140|N|||F" for n in range(1, 11)),
    ]
)
HL7_FIELDS = {
    "MSH-9.1": "ORU", "MSH-9.2": "R01", "MSH-10": "MSG00001", "PID-3[5=MR].1": "483671", "PID-5.1": "Smith",
    "PID-7": "19740101", "PV1-7.1": "1234567893", "OBX[3.1=8405-6]-5": {"near": {"value": 115, "by": 1}},
    "OBX-11": {"all": "F"}, "ZPD": "absent",
}  # fmt: skip
INTERCHANGE = "~".join(
    [
        "ISA*00*          *00*          *ZZ*PAYER          *ZZ*CLINIC         *260306*1000*^*00501*000000905*0*P*:",
        "GS*HB*PAYER*CLINIC*20260306*1000*1*X*005010X279A1",
        "ST*271*0001*005010X279A1",
        "BHT*0022*11*10001234*20260306*1000",
        "HL*1**20*1", "NM1*PR*2*ACME HEALTH*****PI*842610001",
        "HL*2*1*21*1", "NM1*1P*2*CLINIC*****XX*1234567893",
        "HL*3*2*22*0", "TRN*2*93175-012547*9877281234", "NM1*IL*1*SMITH*JOHN****MI*123456789", "DMG*D8*19740101*M",
        *("EB*1**30", "EB*B**98***27*10.00*****Y", "EB*C**30***23*500.00*****Y") * 8,
        "SE*36*0001", "GE*1*1", "IEA*1*000000905", "",
    ]
)  # fmt: skip
X12_FIELDS = {
    "BHT.2": "11", "TRN.2": "93175-012547", "HL[20]/NM1[1=PR].3": "ACME HEALTH", "HL[22]/NM1[1=IL].9": "123456789",
    "HL[22]/NM1[1=IL].3": "SMITH", "HL[22]/DMG.2": "19740101", "HL[22]/EB[1=1].3": "30",
    "HL[22]/EB[1=B].7": {"near": {"value": 10, "by": 0}}, "HL[22]/EB[1=C].7": {"gte": 1}, "HL[22]/AAA": "absent",
}  # fmt: skip
ORDER = {
    "resourceType": "MedicationRequest", "id": "m", "status": "active", "intent": "order",
    "subject": {"reference": "Patient/S1"}, "authoredOn": "2026-03-06T10:00:00-06:00",
    "medicationCodeableConcept": {"coding": [{"system": "http://hl7.org/fhir/sid/ndc", "code": "40032-917-01"}]},
    "requester": {"reference": "Practitioner/p1"}, "note": [{"text": "with food"}],
    "dosageInstruction": [
        {"route": {"text": "oral"}, "doseAndRate": [{"doseQuantity": {"value": 80.0, "unit": "mEq"}}]}
    ],
}  # fmt: skip
FHIR_FIELDS = {
    "status": "active", "intent": "order", "subject": {"ref": "Patient/S1"}, "note.text": {"contains": "food"},
    "medication": {"coding": "http://hl7.org/fhir/sid/ndc|40032-917-01"}, "requester": {"ref": "Practitioner/p1"},
    "authoredOn": {"same_day": "2026-03-06"}, "dosageInstruction.route": {"says": "oral"},
    "dosageInstruction.doseAndRate.dose": {"quantity": {"value": 80, "unit": "mEq", "by": 0.1}}, "reasonCode": "absent",
}  # fmt: skip
ROW = {
    "id": "PA-1", "member": "MEM88771", "cpt": "72148", "status": "pending", "urgency": "standard", "npi": "1234567893",
    "attachments": ["mri.pdf"], "documents": [{"name": "mri.pdf", "size": 12345}], "diagnosis": "M54.5", "notes": "",
}  # fmt: skip
ROW_FIELDS = {
    "member": "MEM88771", "cpt": "72148", "status": {"in": ["pending", "approved"]}, "urgency": "standard",
    "npi": {"matches": "[0-9]{10}"}, "attachments": {"count": {"gte": 1}}, "documents[].name": {"any": "mri.pdf"},
    "documents.size": {"gt": 0}, "diagnosis": "M54.5", "notes": "empty",
}  # fmt: skip
CALL = [
    ("payer", "Thank you for calling, this call may be recorded."), ("agent", "I am calling about a member's claim."),
    ("payer", "What is the member ID?"), ("agent", "The member ID is MEM double eight seven seven one."),
    ("agent", "The date of birth is January first, nineteen seventy four."),
    ("payer", "It has been approved, the reference is forty four seventy one."),
]  # fmt: skip
PHRASES = {
    "contains": ["member ID", "date of birth", "calling about", "double eight", "the member"],
    "phrases": [{"digits": "4471", "speaker": "payer"}, {"any_of": ["approved", "authorized"], "speaker": "payer"}],
    "forbidden": ["you have", "I diagnose", "trust me"],
}

Before, After = Mapping[str, bytes], Mapping[str, bytes]


def rows() -> Iterator[Row]:
    for name, run, baseline, told in _cases():
        ours, theirs = interleaved(run, baseline)
        yield Row(f"{name}, 10 fields", ours, theirs, told, None, f"{'under' if ours < 1_000 else 'OVER'} 1 ms")


def growth() -> Iterator[tuple[str, int, float]]:
    """A thousand times as many items as are looked for."""
    for size in (10, 100, 1_000):
        body = json.dumps(ORDER)
        items = [
            make_item(f"MedicationRequest/{n}", body.replace('"m"', f'"{n}"').encode(), version="1")
            for n in range(size)
        ]
        asked = {"resource": "MedicationRequest", "search": {"_id": "5"}, "fields": FHIR_FIELDS}
        run = _run("fhir-resource-state", asked, Snapshot(SourceKind.FHIR, items))
        yield "fhir-resource-state, items in the store", size, interleaved(run, _nothing, seconds=0.5)[0] / 1_000


def _nothing() -> None:
    pass


def _run(name: str, asked: Mapping[str, Any], after: Snapshot) -> Callable[[], Checked]:
    prepared = checks.get(name).prepare(Assertion.model_validate({"assert": name, **asked}))
    given, done = as_work_part({"s": Snapshot(after.kind)}), as_work_part({"s": after})

    def run() -> Checked:
        found = prepared(Work(input=given, output=done))
        assert isinstance(found, Checked), found
        assert found.score == "1", found.details
        return found

    return run


def _one(kind: SourceKind, body: str, key: str = "000001") -> Snapshot:
    return Snapshot(kind, [make_item(key, body.encode())])


def _cases() -> Iterator[tuple[str, Callable[[], object], Callable[[], object], str]]:
    message = _one(SourceKind.HL7, MESSAGE)
    yield "hl7-structural", _run("hl7-structural", {"fields": HL7_FIELDS}, message), _python_hl7, "python-hl7 parses it"
    interchange = _one(SourceKind.X12, INTERCHANGE)
    yield (
        "x12-response",
        _run("x12-response", {"set": "271", "fields": X12_FIELDS}, interchange),
        _pyx12,
        "pyx12 reads it",
    )
    order = _one(SourceKind.FHIR, json.dumps(ORDER), "MedicationRequest/m")
    asked = {"resource": "MedicationRequest", "changed": "created", "count": 1, "fields": FHIR_FIELDS}
    yield "fhir-resource-state", _run("fhir-resource-state", asked, order), _fhirpath, "fhirpathpy, ten expressions"
    row = _one(SourceKind.ROWS, json.dumps(ROW), "prior_auth/PA-1")
    rows_asked = {"correlate_by": {"resource": "prior_auth"}, "count": 1, "fields": ROW_FIELDS}
    yield "portal-state-match", _run("portal-state-match", rows_asked, row), _jmespath, "jmespath, ten queries"
    file = _one(SourceKind.FILES, json.dumps(ROW), "out/roster.json")
    files_asked = {"path": "out/*.json", "parse": "json", "fields": ROW_FIELDS}
    yield "sftp-file-present", _run("sftp-file-present", files_asked, file), _jmespath, "jmespath, ten queries"
    turns = [make_item(f"{n:06}", text.encode(), facts={"speaker": who}) for n, (who, text) in enumerate(CALL, 1)]
    call = Snapshot(SourceKind.VOICE, turns)
    yield "voice-transcript", _run("voice-transcript", PHRASES, call), _plain_phrases, "lower-case `in`, ten phrases"
    quiet = {"s": Snapshot(SourceKind.FHIR, [make_item(f"Patient/{n}", b"{}", version="1") for n in range(100)])}
    yield "state-unchanged, 100 items", _unchanged(quiet), _plain_dicts, "two dicts compared"


def _unchanged(world: dict[str, Snapshot]) -> Callable[[], Checked]:
    prepared = checks.get("state-unchanged").prepare(Assertion.model_validate({"assert": "state-unchanged"}))
    given = as_work_part(world)

    def run() -> Checked:
        found = prepared(Work(input=given, output=given))
        assert isinstance(found, Checked)
        assert found.score == "1"
        return found

    return run


def _python_hl7() -> object:
    return hl7.parse(MESSAGE)


def _pyx12() -> object:
    import io

    return list(X12Reader(io.StringIO(INTERCHANGE)))


_EXPRESSIONS: list[Callable[..., Any]] = []


def _fhirpath() -> object:
    if not _EXPRESSIONS:
        from fhirpathpy import compile as compiled

        paths = [path.split(".")[0] for path in FHIR_FIELDS]
        _EXPRESSIONS.extend(compiled(path) for path in paths)
    resource = json.loads(json.dumps(ORDER))
    return [evaluate(resource) for evaluate in _EXPRESSIONS]


def _jmespath() -> object:
    row = json.loads(json.dumps(ROW))
    return [jmespath.search(path, row) for path in ROW_FIELDS]


def _plain_phrases() -> object:
    said = [text.lower() for _, text in CALL]
    return [
        phrase in text
        for phrase in ("member id", "date of birth", "approved", "you have", "trust me") * 2
        for text in said
    ]


def _plain_dicts() -> object:
    was = {f"Patient/{n}": "1" for n in range(100)}
    return was == dict(was)
