"""The clearinghouse: every request is answered in X12 that another's reader finds whole."""

import asyncio
import io
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import pyx12.params
import pyx12.x12file
import pyx12.x12n_document
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meruit.checks.formats.x12 import TransactionSet, compile_path, flaws, read, values
from meruit.errors import PlaygroundRefusal, UnreadableContent
from meruit.model.environment import SourceKind
from meruit.playground.portal import payer
from meruit.playground.state import PlaygroundState
from meruit.playground.x12 import app as x12

NOON = datetime(2026, 3, 6, 12, tzinfo=UTC)
MEMBER = {
    "id": "MEM88771",
    "name": "Ann Smith",
    "birth_date": "1980-01-31",
    "plan": "GOLD 123",
    "active": True,
    "copay": "10.00",
    "group": "GRP-7",
    "coverage_from": "2026-01-01",
    "dependents": [{"name": "Bo Smith", "birth_date": "2015-05-05", "copay": "5.50"}],
}
CLAIM = {
    "id": "CLM-1",
    "member": "MEM88771",
    "amount": "450.00",
    "paid": "400.00",
    "status": "paid",
    "service_date": "2026-02-01",
    "account": "ACC-9",
    "decided_on": "2026-02-20",
    "check_number": "CHK1",
    "check_date": "2026-02-21",
}
NAMES = "NM1*PR*2*CEDAR HEALTH*****PI*842610001"
GUIDES = {"270": ("HS", "005010X279A1"), "276": ("HR", "005010X212"), "278": ("HI", "005010X217")}


@pytest.fixture
def state(tmp_path: Path) -> PlaygroundState:
    return made(tmp_path / "one.playground")


def made(path: Path) -> PlaygroundState:
    found = PlaygroundState.create(path, clock=lambda: NOON)
    rows = {
        "member/MEM88771": MEMBER,
        "member/MEM2": {"id": "MEM2", "name": "Off, Lee", "active": False},
        "claim/CLM-1": CLAIM,
        "claim/CLM-2": {"id": "CLM-2", "member": "MEM88771", "status": "denied", "amount": 99},
        "auth_rule/1-mri": {"cpt": "72148", "decision": "certified"},
        "auth_rule/2-cosmetic": {"cpt": ["15823", "15824"], "decision": "not_certified", "reason_code": "0M"},
        "auth_rule/3-papers": {"cpt": "27447", "documents": 1, "decision": "certified"},
        "auth_rule/4-wait": {"cpt": "27447", "decision": "pended", "reason": "Send the x-ray report."},
    }
    put(found, rows)
    return found


def put(state: PlaygroundState, rows: Mapping[str, object]) -> None:
    for key, row in rows.items():
        state.put(SourceKind.ROWS, key, json.dumps(row).encode(), event="seed")


def enveloped(kind: str, *bodies: Sequence[str], marks: str = "*:~^", wanted: str = "0", **broken: str) -> bytes:
    """A request as a client would write it; `broken` replaces trailers and versions."""
    function, version = GUIDES.get(kind, ("HC", "005010X222A1"))
    version = broken.get("version", version)
    isa = f"ISA*00*{'':10}*00*{'':10}*ZZ*{'CLINIC':15}*ZZ*{'CEDAR':15}*260306*1200*^*00501*000000077*{wanted}*T*:"
    segments = [isa, f"GS*{function}*CLINIC*CEDAR*20260306*1200*55*X*{version}"]
    for number, body in enumerate(bodies, 1):
        count = broken.get("se", f"{len(body) + 2}*{number:04}")
        segments += [f"ST*{kind}*{number:04}*{version}", *body, f"SE*{count}"]
    segments += [broken.get("ge", f"GE*{len(bodies)}*55"), broken.get("iea", "IEA*1*000000077")]
    text = "".join(f"{segment}~" for segment in segments if segment)
    return text.translate(str.maketrans("*:~^", marks)).encode()


def eligibility(member: str = "MEM88771", who: str = "SMITH*ANN", born: str = "19800131", *more: str) -> list[str]:
    return [
        *("BHT*0022*13*REQ-1*20260306*1200", "HL*1**20*1", NAMES, "HL*2*1*21*1"),
        *("NM1*1P*2*BONE CLINIC*****XX*1234567893", f"HL*3*2*22*{int(bool(more))}", "TRN*1*93175-012547*9877281234"),
        *(f"NM1*IL*1*{who}****MI*{member}", f"DMG*D8*{born}", *(more or ["EQ*30"])),
    ]


def status(*narrowed: str, member: str = "MEM88771") -> list[str]:
    return [
        *("BHT*0010*13*REQ-2*20260306*1200", "HL*1**20*1", NAMES, "HL*2*1*21*1", "NM1*41*2*CLINIC*****46*X67E"),
        *("HL*3*2*19*1", "NM1*1P*2*BONE CLINIC*****XX*1234567893", "HL*4*3*22*0", "DMG*D8*19800131*F"),
        *(f"NM1*IL*1*SMITH*ANN****MI*{member}", "TRN*1*ASK-1", *narrowed),
    ]


def review(cpt: str = "72148", *event: str, member: str = "MEM88771", kind: str = "I") -> list[str]:
    return [
        *("BHT*0007*13*REQ-3*20260306*1200", "HL*1**20*1", "NM1*X3*2*CEDAR HEALTH*****PI*842610001", "HL*2*1*21*1"),
        *("NM1*1P*2*BONE CLINIC*****XX*1234567893", "HL*3*2*22*1", f"NM1*IL*1*SMITH*ANN****MI*{member}"),
        *("HL*4*3*EV*1", "TRN*1*AUTHREQ-4471*9012345678", f"UM*HS*{kind}*4*11:B**U", "HI*ABK:M5416", *event),
        *("HL*5*4*SS*0", f"SV1*HC:{cpt}*1200*UN*1"),
    ]


def only(answer: bytes, kind: str) -> TransactionSet:
    """The one set of an answer, which is whole by our reader and by pyx12's."""
    (found,) = read(answer)
    assert flaws(found) == []
    assert errors_of(answer) == []
    (transaction,) = found.transactions
    assert transaction.set_id == kind
    return transaction


# Any: pyx12 is not typed.
def errors_of(answer: bytes) -> list[Any]:
    reader = pyx12.x12file.X12Reader(io.StringIO(answer.decode("ascii")))
    found: list[Any] = []
    for _ in reader:
        found += reader.pop_errors()
    reader.cleanup()
    return found + list(reader.pop_errors())


def is_valid(acknowledgement: bytes) -> bool:
    """Whether pyx12 finds nothing wrong with a 999; of the sets here it knows that guide only."""
    told, asked = io.StringIO(), io.StringIO(acknowledgement.decode("ascii"))
    return bool(pyx12.x12n_document.x12n_document(pyx12.params.ParamsBase(), asked, told, None))


def at(transaction: TransactionSet, path: str) -> tuple[str, ...]:
    return values(transaction, compile_path(path))


def kept(state: PlaygroundState, kind: str) -> list[TransactionSet]:
    return [
        transaction
        for one in state.items(SourceKind.X12)
        for transaction in read(one.content())[0].transactions
        if one.facts["set"] == kind
    ]


def test_a_member_is_covered_and_has_a_copay(state: PlaygroundState) -> None:
    answer = x12.exchange(state, enveloped("270", eligibility()))
    found = only(answer, "271")
    assert (found.version, found.gs.get(1)) == ("005010X279A1", "HB")
    assert at(found, "TRN.2") == ("93175-012547",)
    assert at(found, "TRN.1") == ("2",)
    assert at(found, "HL[22]/NM1[1=IL].9") == ("MEM88771",)
    assert at(found, "HL[22]/EB[1=1].5") == ("GOLD 123",)
    assert at(found, "HL[22]/EB[1=B][12=Y].7") == ("10",)
    assert at(found, "HL[22]/REF[1=6P].2") == ("GRP-7",)
    assert at(found, "HL[22]/DTP[1=346].3") == ("20260101",)
    assert at(found, "AAA") == ()
    assert [text.strip() for text in (at(found, "ISA.6") + at(found, "ISA.8") + at(found, "GS.2"))] == [
        *("CEDAR", "CLINIC", "CEDAR")
    ]


def test_requests_are_events_and_replies_are_items(state: PlaygroundState) -> None:
    asked = enveloped("270", eligibility())
    answer = x12.exchange(state, asked)
    acknowledgement, business = state.items(SourceKind.X12)
    assert business.content() == answer
    assert business.facts == {"type": "x12_response", "at": "2026-03-06T12:00:00.000000Z", "set": "271"}
    assert only(acknowledgement.content(), "999").set_id == "999"
    (event,) = [event for event in state.events() if event.type == "x12_request"]
    assert event.facts == {"body": asked.decode(), "sets": ["270"]}


def test_a_dependent_is_answered_under_the_subscriber(state: PlaygroundState) -> None:
    dependent = ("HL*4*3*23*0", "NM1*03*1*SMITH*BO", "DMG*D8*20150505", "EQ*30^98")
    found = only(
        x12.exchange(state, enveloped("270", eligibility("MEM88771", "SMITH*ANN", "19800131", *dependent))), "271"
    )
    assert at(found, "HL[22]/EB") == ()
    assert at(found, "HL[23]/EB[1=B].7") == ("5.5", "5.5")
    assert at(found, "HL[23]/EB[1=1].3") == ("30", "98")
    stranger = ("HL*4*3*23*0", "NM1*03*1*SMITH*CY", "EQ*30")
    found = only(
        x12.exchange(state, enveloped("270", eligibility("MEM88771", "SMITH*ANN", "19800131", *stranger))), "271"
    )
    assert at(found, "HL[23]/AAA.3") == ("67",)


@pytest.mark.parametrize(
    ("member", "who", "born", "code"),
    [
        ("NOBODY", "SMITH*ANN", "19800131", "75"),
        ("", "SMITH*ANN", "19800131", "72"),
        ("MEM88771", "JONES*ANN", "19800131", "73"),
        ("MEM88771", "SMITH*ANN", "19800130", "71"),
    ],
)
def test_who_is_not_known_as_said_is_rejected(
    state: PlaygroundState, member: str, who: str, born: str, code: str
) -> None:
    found = only(x12.exchange(state, enveloped("270", eligibility(member, who, born))), "271")
    assert at(found, "HL[22]/AAA.3") == (code,)
    assert at(found, "EB") == ()
    assert at(found, "TRN.2") == ("93175-012547",)


def test_who_is_no_more_covered_has_no_benefits(state: PlaygroundState) -> None:
    found = only(x12.exchange(state, enveloped("270", eligibility("MEM2", "OFF*LEE"))), "271")
    assert at(found, "EB.1") == ("6",)


def test_benefits_of_a_row_are_reported(state: PlaygroundState) -> None:
    more = [
        {"code": "C", "amount": "500", "period": "23", "network": "Y", "note": "Deductible"},
        {"code": "A", "percent": 20, "service": "98"},
        "nonsense",
    ]
    put(state, {"member/M3": {"name": "Smith", "benefits": more, "gender": "female", "birth_date": "1999-09-09"}})
    found = only(x12.exchange(state, enveloped("270", eligibility("M3", "SMITH*", "19990909"))), "271")
    assert at(found, "EB.1") == ("1", "C")
    assert at(found, "EB[1=C].7") == ("500",)
    assert at(found, "MSG.1") == ("Deductible",)
    found = only(x12.exchange(state, enveloped("270", eligibility("M3", "SMITH*", "19990909", "EQ*98"))), "271")
    assert at(found, "EB[1=A].8") == ("0.2",)


@pytest.mark.parametrize(
    ("narrowed", "told"),
    [
        (["REF*1K*CLM-1"], [("F1:65", "CLM-1")]),
        (["REF*EJ*ACC-9"], [("F1:65", "CLM-1")]),
        (["DTP*472*D8*20260201", "AMT*T3*450"], [("F1:65", "CLM-1")]),
        (["AMT*T3*99", "DTP*472*RD8*20260101-20260131"], [("F2:585", "CLM-2")]),
        ([], [("F1:65", "CLM-1"), ("F2:585", "CLM-2")]),
        (["REF*1K*OTHER"], [("A4:35", "")]),
    ],
)
def test_claims_are_found_by_number_or_by_date_and_amount(
    state: PlaygroundState, narrowed: list[str], told: list[tuple[str, str]]
) -> None:
    found = only(x12.exchange(state, enveloped("276", status(*narrowed))), "277")
    assert at(found, "STC.1") == tuple(code for code, _ in told)
    assert at(found, "REF[1=1K].2") == tuple(claim for _, claim in told if claim)
    assert set(at(found, "TRN.2")) == {"ASK-1"}


def test_a_paid_claim_says_how_it_was_paid(state: PlaygroundState) -> None:
    found = only(x12.exchange(state, enveloped("276", status("REF*1K*CLM-1"))), "277")
    assert at(found, "STC") == ("STC*F1:65*20260220**450*400*20260220**20260221*CHK1",)
    assert at(found, "REF[1=EJ].2") == ("ACC-9",)
    assert at(found, "DTP[1=472].3") == ("20260201",)


def test_a_claim_of_an_unknown_member_is_not_found(state: PlaygroundState) -> None:
    found = only(x12.exchange(state, enveloped("276", status("REF*EJ*A1", member="NOBODY"))), "277")
    assert at(found, "STC.1") == ("D0:33:IL",)
    assert at(found, "REF.2") == ("A1",)
    dependents = [*status()[:-1], "HL*5*4*23*0", "NM1*QC*1*SMITH*BO", "TRN*1*ASK-2", "REF*1K*CLM-1", "TRN*1*ASK-3"]
    found = only(x12.exchange(state, enveloped("276", dependents)), "277")
    assert at(found, "TRN.2") == ("ASK-2", "ASK-3", "ASK-3")


@pytest.mark.parametrize(
    ("cpt", "event", "action", "status_after"),
    [
        ("72148", ["DTP*AAH*D8*20260310"], "A1", "approved"),
        ("15824", [], "A3", "denied"),
        ("99999", [], "A4", "pending"),
        ("27447", [], "A4", "pending"),
        ("27447", ["PWK*OZ*EL***AC*XRAY-1", "MSG*Pain for a year"], "A1", "approved"),
    ],
)
def test_a_review_is_decided_by_the_rules_and_kept(
    state: PlaygroundState, cpt: str, event: list[str], action: str, status_after: str
) -> None:
    found = only(x12.exchange(state, enveloped("278", review(cpt, *event))), "278")
    (row,) = payer.rows(state, "prior_auth")
    assert at(found, "HL[EV]/HCR.1") == (action,)
    assert at(found, "HL[EV]/TRN.2") == ("AUTHREQ-4471",)
    assert at(found, "HL[EV]/REF[1=NT].2") == ("PA-000001",)
    assert at(found, "HL[EV]/HI.1-2") == ("M5416",)
    assert at(found, "HL[SS]/SV1.1-2") == (cpt,)
    assert at(found, "HL[EV]/DTP[1=AAH].3") == (("20260310",) if cpt == "72148" else ("20260306",))
    assert (at(found, "HL[EV]/HCR.2") == ("AUTH-000001",)) is (action == "A1")
    assert row["status"] == status_after
    assert {name: row[name] for name in ("member", "cpt", "diagnosis", "urgency", "npi", "channel", "trace")} == {
        "member": "MEM88771",
        "cpt": cpt,
        "diagnosis": "M5416",
        "urgency": "urgent",
        "npi": "1234567893",
        "channel": "x12",
        "trace": "AUTHREQ-4471",
    }
    assert row["attachments"] == (["XRAY-1"] if "MSG*Pain for a year" in event else [])
    assert any(one.type == "prior_auth_created" for one in state.events())


def test_a_reason_is_reported(state: PlaygroundState) -> None:
    denied = only(x12.exchange(state, enveloped("278", review("15823"))), "278")
    assert at(denied, "HL[EV]/HCR.3") == ("0M",)
    waiting = only(x12.exchange(state, enveloped("278", review("27447"))), "278")
    assert at(waiting, "HL[EV]/MSG.1") == ("Send the x-ray report.",)


def test_a_certification_is_read_cancelled_and_appealed(state: PlaygroundState) -> None:
    for cpt in ("72148", "15823", "99999"):
        x12.exchange(state, enveloped("278", review(cpt)))

    def asked(number: str, kind: str = "I") -> TransactionSet:
        return only(x12.exchange(state, enveloped("278", review("72148", f"REF*BB*{number}", kind=kind))), "278")

    assert at(asked("AUTH-000001"), "HCR.2") == ("AUTH-000001",)
    assert at(asked("PA-000003", "3"), "HCR.1") == ("C",)
    assert at(asked("PA-000002", "1"), "HCR.1") == ("A4",)
    assert at(asked("PA-000002", "1"), "AAA.3") == ("33",)
    assert at(asked("NOTHING"), "AAA.3") == ("T5",)
    assert [row["status"] for row in payer.rows(state, "prior_auth")] == ["approved", "appealed", "withdrawn"]
    assert len(payer.rows(state, "appeal")) == 1


def test_a_review_for_an_unknown_member_is_rejected(state: PlaygroundState) -> None:
    found = only(x12.exchange(state, enveloped("278", review(member="NOBODY"))), "278")
    assert at(found, "HL[22]/AAA.3") == ("75",)
    assert at(found, "HCR") == ()
    assert at(found, "TRN.2") == ("AUTHREQ-4471",)
    assert payer.rows(state, "prior_auth") == []


def test_other_services_are_read(state: PlaygroundState) -> None:
    body = review()
    for line, code in (("SV2*0360*HC:27447*100", "27447"), ("SV3*AD:D0120", "D0120"), ("HSD*VS*1", "")):
        x12.exchange(state, enveloped("278", [*body[:-1], line]))
        assert payer.rows(state, "prior_auth")[-1]["cpt"] == code


def test_every_group_is_acknowledged(state: PlaygroundState) -> None:
    x12.exchange(state, enveloped("270", eligibility(), eligibility("NOBODY")))
    (found,) = kept(state, "999")
    (content,) = [one.content() for one in state.items(SourceKind.X12) if one.facts["set"] == "999"]
    assert is_valid(content)
    assert (found.version, found.gs.get(1)) == ("005010X231A1", "FA")
    assert at(found, "AK1") == ("AK1*HS*55*005010X279A1",)
    assert at(found, "IK5.1") == ("A", "A")
    assert at(found, "AK9") == ("AK9*A*2*2*2",)
    assert [at(one, "TRN.2") for one in kept(state, "271")] == [("93175-012547",)] * 2


BROKEN: list[tuple[bytes, str, str]] = [
    (enveloped("270", eligibility(), se="99*0001"), "IK5.2", "4"),
    (enveloped("270", eligibility(), se="12*0009"), "IK5.2", "3"),
    (enveloped("270", eligibility(), ge="GE*1*56"), "AK9.5", "4"),
    (enveloped("270", eligibility(), ge="GE*7*55"), "AK9.5", "5"),
    (enveloped("270", eligibility(), ge=""), "AK9.5", "3"),
    (enveloped("270", eligibility(), version="004010X092A1"), "IK5.2", "1"),
    (enveloped("837", ["BHT*0019*00*1*20260306*1200*CH"]), "AK9.5", "1"),
    (enveloped("270", eligibility()[1:]), "IK3.1", "BHT"),
    (enveloped("270", eligibility()[:-1]), "IK3.1", "EQ"),
    (enveloped("270", [one for one in eligibility() if one != NAMES]), "IK3", "IK3*NM1*4**3"),
    (enveloped("270", [one.replace("TRN*1*93175-012547", "TRN*1*") for one in eligibility()]), "IK4", "IK4*2*127*1"),
    (enveloped("270", [one.replace("HL*3*2", "HL*3*9") for one in eligibility()]), "IK4", "IK4*2*734*7"),
    (enveloped("276", [one for one in status() if "19" not in one[:9]]), "IK3.1", "HL"),
    (enveloped("278", [one for one in review() if not one.startswith("UM")]), "IK3.1", "UM"),
    (enveloped("270", []), "IK3.1", "BHT"),
    (enveloped("270", eligibility()).replace(b"ST*270*0001*", b"ST*270**"), "IK5.2", "7"),
    (enveloped("270", eligibility()).replace(b"~SE*12*0001~", b"~"), "IK5.2", "2"),
]


@pytest.mark.parametrize(("asked", "path", "said"), BROKEN, ids=range(len(BROKEN)))
def test_what_breaks_the_guide_is_rejected_with_where_and_why(
    state: PlaygroundState, asked: bytes, path: str, said: str
) -> None:
    answer = x12.exchange(state, asked)
    found = only(answer, "999")
    assert is_valid(answer)
    assert said in at(found, path)
    assert at(found, "AK9.1") == ("R",)
    assert [one.facts["set"] for one in state.items(SourceKind.X12)] == ["999"]


def test_sound_sets_beside_broken_ones_are_answered(state: PlaygroundState) -> None:
    rejected, answered = read(x12.exchange(state, enveloped("270", eligibility(), eligibility()[:-1])))
    assert at(rejected.transactions[0], "AK9.1") == ("P",)
    assert at(rejected.transactions[0], "IK5.1") == ("A", "R")
    assert len(answered.transactions) == 1


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (enveloped("270", eligibility(), iea="IEA*1*000000078"), "001"),
        (enveloped("270", eligibility(), iea="IEA*4*000000077"), "021"),
        (enveloped("270", eligibility(), iea=""), "023"),
        (enveloped("270", eligibility())[:106] + b"IEA*0*000000077~", "024"),
    ],
)
def test_a_broken_interchange_gets_a_ta1(state: PlaygroundState, asked: bytes, code: str) -> None:
    answer = x12.exchange(state, asked)
    (found,) = read(answer)
    assert [one.why for one in flaws(found)] == [f"TA1 rejects interchange 000000077: {code}"]
    assert f"TA1*000000077*260306*1200*R*{code}~" in answer.decode()
    assert [one.facts["set"] for one in state.items(SourceKind.X12)] == ["TA1"]


def test_a_ta1_is_sent_to_who_asks_for_it(state: PlaygroundState) -> None:
    first, second = read(x12.exchange(state, enveloped("270", eligibility(), wanted="1")))
    assert (first.groups, len(second.transactions)) == ([], 1)


@pytest.mark.parametrize("marks", ["|>\n!", "*:~U", "\x1d\x1f\x1c\x1e", ".:~^", "*-~^"])
def test_replies_use_the_delimiters_of_the_request(state: PlaygroundState, marks: str) -> None:
    asked = enveloped("270", eligibility(), marks=marks)
    if marks[3] == "U":
        asked = asked.replace(b"*U*00501*", b"*U*00401*")
    answer = x12.exchange(state, asked)
    (found,) = read(answer)
    assert flaws(found) == []
    assert at(found.transactions[0], "EB[1=B].7") == ("10",)
    assert found.marks.element == ("*" if {".", "-"} & set(marks) else marks[0])
    assert (len(answer.split(found.marks.terminator.encode())[0]), found.marks.repetition) != (0, None)


def test_a_request_may_not_be_endless(state: PlaygroundState) -> None:
    many = ["BHT*0022*13*1", *(f"HL*{number}**20*0" for number in range(600))]
    with pytest.raises(PlaygroundRefusal) as refused:
        x12.exchange(state, enveloped("270", many))
    assert refused.value.status == 413


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NASTY = st.text(alphabet=st.sampled_from("*:~^|>\nAé漢' ,\x00-1"), max_size=20)


@settings(max_examples=30)
@example({}, {}, {"reason": ":"}, "*:~^")
@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys((*MEMBER, "gender", "benefits"), ANYTHING | NASTY)),
    st.fixed_dictionaries({}, optional=dict.fromkeys((*CLAIM, "category", "code"), ANYTHING | NASTY)),
    st.fixed_dictionaries({}, optional=dict.fromkeys(("decision", "reason", "documents", "cpt"), ANYTHING | NASTY)),
    st.sampled_from(["*:~^", "|>\n!"]),
)
def test_any_rows_give_answers_that_can_be_read(
    tmp_path_factory: pytest.TempPathFactory,
    member: dict[str, object],
    claim: dict[str, object],
    rule: dict[str, object],
    marks: str,
) -> None:
    state = PlaygroundState.create(tmp_path_factory.mktemp("any") / "one.playground", clock=lambda: NOON)
    put(state, {"member/M1": member, "claim/C1": {**claim, "member": "M1"}, "auth_rule/1": rule})
    for asked, kind in (
        (enveloped("270", eligibility("M1", "*", ""), marks=marks), "271"),
        (
            enveloped("270", eligibility("M1", "*", "19990101", "HL*4*3*23*0", "NM1*03*1*X", "EQ*30"), marks=marks),
            "271",
        ),
        (enveloped("276", status(member="M1"), marks=marks), "277"),
        (enveloped("278", review(member="M1"), marks=marks), "278"),
    ):
        answer = x12.exchange(state, asked.replace(b"DMG*D8*~", b""))
        (found,) = read(answer)
        assert flaws(found) == []
        assert errors_of(answer) == []
        assert found.transactions[0].set_id in (kind, "999")
    state.close()


@settings(max_examples=60)
@given(st.data())
def test_damaged_requests_never_crash(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    state = made(tmp_path_factory.mktemp("damaged") / "one.playground")
    asked = bytearray(data.draw(st.sampled_from([enveloped("278", review()), enveloped("276", status())])))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(106, len(asked) - 1))
        asked[start : start + data.draw(st.integers(0, 12))] = data.draw(
            st.binary(max_size=4) | st.sampled_from([b"*", b"~", b"**", b"~HL*9*1*22~", b"*EV*"])
        )
    try:
        answer = x12.exchange(state, bytes(asked))
    except UnreadableContent:
        assert state.events()[-1].type == "x12_request"
    else:
        assert all("TA1 rejects" in flaw.why for one in read(answer) for flaw in flaws(one))
    state.close()


def test_the_endpoint_answers_x12_lists_and_refuses(state: PlaygroundState, tmp_path: Path) -> None:
    async def run() -> None:
        # Any: httpx and Starlette spell the types of ASGI differently.
        served: Any = x12.app({"one": state}.get)
        transport = httpx.ASGITransport(app=served)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answered = await client.post("/one/x12", content=enveloped("270", eligibility()))
            assert (answered.status_code, answered.headers["content-type"]) == (200, "application/edi-x12")
            assert only(answered.content, "271").set_id == "271"
            listed = (await client.get("/one/x12")).json()["answers"]
            assert [(one["key"], one["set"]) for one in listed] == [("000001", "999"), ("000002", "271")]
            assert (await client.get("/one/x12/000002")).content == answered.content
            assert (await client.get("/one/x12/000009")).status_code == 404
            refused = await client.post("/one/x12", content=b"\xffhello")
            assert refused.status_code == 400
            assert (refused.json()["offset"], refused.json()["head"]) == (0, "\\xffhello")
            assert state.events()[-1].facts["base64"] == "/2hlbGxv"
            assert (await client.post("/one/x12", content=b"x" * 300_000)).status_code == 413
            assert (await client.post("/two/x12", content=b"")).status_code == 404
            wrong = await client.put("/one/x12", content=b"")
            assert (wrong.status_code, set(wrong.headers["allow"].split(", ")) >= {"GET", "POST"}) == (405, True)
            (tmp_path / "one.playground").rename(tmp_path / "gone")
            state.close()
            assert (await client.get("/one/x12")).status_code == 503

    asyncio.run(run())
