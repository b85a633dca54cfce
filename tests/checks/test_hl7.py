"""What was sent as HL7 v2: a message holds what was taken from it, and each thing that it lacks costs its share."""

import string
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.questions import Sending, failing

from meruit import VerificationEngine
from meruit.benchmarks.evidence import format_evidence
from meruit.checks.formats.hl7v2 import read_batch
from meruit.checks.hl7 import Hl7Document
from meruit.documents.authoring import parse_criteria
from meruit.errors import AuthorError, CriteriaError
from meruit.model.environment import SourceKind
from meruit.model.evidence import Checked, Fault, Missing
from meruit.model.verdict import Status
from meruit.registry import checks

SIU = rb"""MSH|^~\&|MESA_OP|CLINIC|SCHEDAPP|HOSPITAL|20260303120000||SIU^S13^SIU_S12|2026030312|P|2.5.1
SCH|10345^10345|2196178^2196178|||10345|OFFICE|follow-up|OFFICE|60|m|^^60^20260306100000-0600^20260306110000-0600|||||9^Rivera||||9^Rivera|||||Booked
PID|1||483671^^^GHH^MR||Smith^John
RGS|1|A
AIS|1|A|OFFICE^Office visit|20260306100000|15|m|60|m||Booked
"""
ORU = rb"""MSH|^~\&|GHH LAB|ELAB-3|GHH OE|BLDG4|20260304093000||ORU^R01^ORU_R01|CNTRL-3456|P|2.5.1
PID|1||483671^^^GHH^MR||Miller^Eve^E||19620320|F||||||""
OBR|1|845439^GHH OE|1045813^GHH LAB|55284-4^Blood pressure^LN|||20260304073000
OBX|1|NM|8480-6^Systolic^LN||118|mm[Hg]^mm[Hg]^UCUM|90-140|N|||F
OBX|2|NM|8462-4^Diastolic^LN||79|mm[Hg]^mm[Hg]^UCUM|60-90||||F
"""
RESCHEDULED = """
criteria:
- {name: SIU S13 out, assert: hl7-structural, from: outbound,
   correlate_by: {MSH-9.1: SIU, MSH-9.2: S13, PID-3.1: "483671"},
   count: 1, segments: {SCH: 1, RGS: ">=1", AIS: ">=1"}, order: [MSH, SCH, PID, RGS],
   fields: {MSH-5.1: SCHEDAPP, SCH-11.4: {around: {value: "20260306100000-0600", by: 0m}},
     "PID-3[5=MR].1": "483671", SCH-25.1: Booked}}
"""
RESULT = r"""
criteria:
- {assert: hl7-structural, from: outbound, correlate_by: {MSH-9: {matches: "ORU\\^R01.*"}},
   fields: {"OBX[3.1=8480-6]-5": {near: {value: 118, by: 1}}, OBX-11: {all: F}, "PID-3[5=SS]": absent, ZPD: absent}}
"""


SENT = Sending("hl7-structural", "outbound", SourceKind.HL7)
work, held, found, judged = SENT.work, SENT.held, SENT.found, SENT.judged


# --- what stands in a message is found there --------------------------------------------------------------------------

# No word of a matcher can be made of these.
TEXTS = st.text(string.ascii_uppercase + string.digits + " .-é", max_size=6)
Body = list[tuple[str, list[str]]]
BODIES = st.lists(
    st.tuples(st.sampled_from(["PV1", "OBX", "ZPD"]), st.lists(TEXTS, min_size=1, max_size=5)), min_size=1, max_size=6
)


def message(body: Body, control: str = "1") -> bytes:
    lines = [
        f"MSH|^~\\&|A|B|C|D|20260304||ORU^R01|{control}|P|2.5.1",
        *("|".join([name, *parts]) for name, parts in body),
    ]
    return "\r".join(lines).encode()


def places(body: Body) -> list[tuple[int, int, str]]:
    """Every field: its segment, its number, and its path."""
    return [
        (place, number, f"{name}[{sum(other == name for other, _ in body[: place + 1])}]-{number}")
        for place, (name, parts) in enumerate(body)
        for number in range(1, len(parts) + 1)
    ]


@given(BODIES, st.data())
def test_a_message_holds_every_field_that_was_taken_from_it(body: Body, data: st.DataObject) -> None:
    taken = data.draw(st.lists(st.sampled_from(places(body)), min_size=1, unique=True))
    counts = {name: sum(name == other for other, _ in body) for name, _ in body}
    score, details = found(
        work(message(body)),
        fields={path: body[place][1][number - 1] for place, number, path in taken},
        segments=counts,
        order=["MSH", *dict.fromkeys(name for name, _ in body)],
    )
    assert score == "1"
    assert len(details["fields"]) == len(taken) + len(counts) + 1


@given(BODIES, st.data())
def test_one_changed_field_fails_alone_and_costs_its_share(body: Body, data: st.DataObject) -> None:
    taken = data.draw(st.lists(st.sampled_from(places(body)), min_size=1, unique=True))
    asked = {path: body[place][1][number - 1] for place, number, path in taken}
    place, number, changed = data.draw(st.sampled_from(taken))
    other = [(name, [*parts]) for name, parts in body]
    other[place][1][number - 1] += "X"
    score, details = found(work(message(other)), fields=asked)
    assert failing(details) == [changed]
    assert Fraction(score) == 1 - Fraction(1, len(asked))
    assert found(work(message(other)), fields=asked, credit="all")[0] == "0"
    assert found(work(message(other)), fields={**asked, changed: {"equals": asked[changed], "must": True}})[0] == "0"


@settings(max_examples=30)
@given(st.lists(BODIES, min_size=1, max_size=12), st.data())
def test_each_message_of_a_batch_is_a_candidate(bodies: list[Body], data: st.DataObject) -> None:
    batch = b"FHS|^~\\&\rBHS|^~\\&\r" + b"\r".join(message(one, f"{n}") for n, one in enumerate(bodies)) + b"\rBTS\rFTS"
    meant = data.draw(st.integers(0, len(bodies) - 1))
    counts = {name: sum(name == other for other, _ in bodies[meant]) for name, _ in bodies[meant]}
    score, details = found(work(batch), correlate_by={"MSH-10": meant}, count=1, segments=counts)
    assert score == "1"
    assert details["considered"] == len(bodies)
    ((only,),) = [details["selected"]]
    parts = only["key"].split("#")
    assert parts[0] == "000001"
    assert [int(one) for one in parts[1:]] == ([meant + 1] if len(bodies) > 1 else [])
    assert found(work(batch), count=len(bodies))[0] == "1"


# --- the worked examples ----------------------------------------------------------------------------------------------


def test_the_reschedule_notice_is_found() -> None:
    result = judged(RESCHEDULED, ORU, SIU)
    assert result.met
    evidence = format_evidence(result)
    assert [one["path"] for one in evidence["field_results"]] == [
        *("SCH", "RGS", "AIS", "order"),
        *("MSH-5.1", "SCH-11.4", "PID-3[5=MR].1", "SCH-25.1"),
    ]
    assert [*evidence["field_results"][0]][:4] == ["path", "expected", "actual", "passed"]
    assert evidence["selected"][0]["key"] == "000002"


@pytest.mark.parametrize(
    ("was", "sent", "paths"),
    [
        (b"SCHEDAPP", b"OTHERAPP", ["MSH-5.1"]),
        (b"20260306100000-0600", b"20260306100100-0600", ["SCH-11.4"]),
        (b"|||||Booked", b"|||||Pending", ["SCH-25.1"]),
        (b"RGS|1|A\n", b"", ["RGS", "order"]),
        (b"\nPID|1||483671^^^GHH^MR||Smith^John\nRGS|1|A", b"\nRGS|1|A\nPID|1||483671^^^GHH^MR||Smith^John", ["order"]),
        (b"PID|1", b"SCH|2\nPID|1", ["SCH"]),
    ],
)
def test_a_wrong_reschedule_notice_loses_what_is_wrong(was: bytes, sent: bytes, paths: list[str]) -> None:
    assert was in SIU
    result = judged(RESCHEDULED, SIU.replace(was, sent))
    assert result.status is Status.NOT_MET
    assert result.fault is Fault.AGENT
    assert failing(result.details or {}) == paths
    assert Fraction(result.score or 0).limit_denominator(100) == 1 - Fraction(len(paths), 8)


def test_a_notice_without_the_asked_record_number_is_of_another() -> None:
    result = judged(RESCHEDULED, SIU.replace(b"483671^^^GHH^MR", b"483671^^^GHH^PI"))
    assert (result.status, result.score) == (Status.NOT_MET, 0)
    assert failing(result.details or {}) == ["PID-3[5=MR].1"]


@pytest.mark.parametrize("sent", [(), (ORU,), (SIU, SIU), (SIU.replace(b"483671", b"483672"),), (SIU, b"MSH")])
def test_exactly_one_valid_reschedule_notice_is_required(sent: tuple[bytes, ...]) -> None:
    result = judged(RESCHEDULED, *sent)
    assert (result.status, result.score, result.fault) == (Status.NOT_MET, 0, Fault.AGENT)


@pytest.mark.parametrize(
    ("was", "sent", "paths"),
    [
        (b"||118|", b"||118|", []),
        (b"||118|", b"||117.5|", []),
        (b"||118|", b"||120|", ["OBX[3.1=8480-6]-5"]),
        (b"||118|", b"||high|", ["OBX[3.1=8480-6]-5"]),
        (b"90||||F", b"90||||P", ["OBX-11"]),
        (b"90||||F", b"90", ["OBX-11"]),
        (b"^MR||", b"^MR~555-44-4444^^^SSA^SS||", ["PID-3[5=SS]"]),
        (b"OBR|1", b"ZPD|1\nOBR|1", ["ZPD"]),
    ],
)
def test_a_result_is_final_and_leaks_nothing(was: bytes, sent: bytes, paths: list[str]) -> None:
    assert was in ORU
    result = judged(RESULT, SIU, ORU.replace(was, sent))
    assert failing(result.details or {}) == paths
    assert result.score == 1 - len(paths) / 4
    assert result.met is (not paths)


# --- cases to argue about ---------------------------------------------------------------------------------------------


def test_what_was_not_sent_gets_no_credit_for_what_it_does_not_hold() -> None:
    assert found(work(), fields={"ZPD": "absent"})[0] == "0"


def test_absent_empty_and_null_are_three_things() -> None:
    sent = work(b'MSH|^~\\&|A||||||ADT^A08|1|P|2.5\rPID|1||""||\r')
    for path, wanted in {"PID-3": "hl7_null", "PID-4": "empty", "PID-9": "absent"}.items():
        assert found(sent, fields={path: wanted})[0] == "1"
        for other in {"hl7_null", "empty", "absent"} - {wanted}:
            assert found(sent, fields={path: other})[0] == "0"
    assert found(sent, fields={"PID-3": "exists", "PID-4": "exists", "PID-1": "exists"})[0] == "1/3"
    assert found(sent, fields={"PID-3": '""'})[0] == "0", "null is no text"
    assert found(sent, fields={"PID-4": {"equals": ""}})[0] == "1"


def test_a_number_matches_its_text() -> None:
    assert found(work(SIU), correlate_by={"PID-3.1": 483671}, fields={"SCH-9": 60})[0] == "1"
    assert found(work(SIU.replace(b"|60|m|^", b"|060|m|^")), fields={"SCH-9": 60})[0] == "0"


def test_the_nearest_are_shown_with_what_keeps_them_from_being_meant() -> None:
    _, details = found(work(ORU, SIU), correlate_by={"MSH-9.2": "S13", "PID-3.1": "999"})
    assert details["considered"] == 2
    assert details["nearest"][0]["key"] == "000002"
    assert [one["path"] for one in details["nearest"][0]["failing"]] == ["PID-3.1"]


def test_only_what_was_sent_since_counts_where_the_author_says_so() -> None:
    assert found(work(before=(SIU,)), correlate_by={"MSH-9.2": "S13"})[0] == "1"
    assert found(work(before=(SIU,)), correlate_by={"MSH-9.2": "S13"}, changed="created")[0] == "0"
    assert found(work(SIU, before=(ORU,)), changed="created", count=1)[0] == "1"


def test_an_invalid_message_is_listed_but_not_selected() -> None:
    score, details = found(work(b"hello", SIU), correlate_by={"MSH-9.2": "S13"})
    assert score == "1"
    (unreadable,) = details["unreadable"]
    assert all(segment in unreadable["why"] for segment in ("MSH", "FHS", "BHS"))
    assert unreadable == {"key": "000001", "why": unreadable["why"], "offset": 0, "head": "hello"}
    finding = held(work(SIU.replace(b"PID|1", b"PID,1")), correlate_by={"MSH-9.2": "S13"})
    assert isinstance(finding, Checked)
    assert (finding.score, finding.fault) == ("0", Fault.AGENT)
    assert finding.details is not None
    assert finding.details["unreadable"][0]["offset"] == SIU.index(b"PID|1")
    assert found(work(SIU, b"hello"), count=1)[0] == "0", "nobody knows that there is no second one"


def test_a_batch_without_messages_holds_no_candidate() -> None:
    score, details = found(work(b"FHS|^~\\&\rFTS|0\r"))
    assert (score, details["considered"]) == ("0", 0)
    assert found(work(b"FHS|^~\\&\rFTS|0\r"), count=0)[0] == "1"


def test_a_batch_is_as_expected_only_if_all_of_it_is() -> None:
    done = work(SIU + ORU)
    asked = {
        "criteria": [
            {"assert": "hl7-structural", "correlate_by": {"MSH-9.2": "S13"}},
            {"assert": "state-unchanged"},
        ]
    }
    engine = VerificationEngine()
    first = engine.verify_sync("c", done.input, done.output, asked, {}).criterion_results
    assert [one.met for one in first] == [True, False]
    asked["criteria"].append({"assert": "hl7-structural", "correlate_by": {"MSH-9.2": "R01"}})
    second = engine.verify_sync("c", done.input, done.output, asked, {}).criterion_results
    assert all(one.met for one in second)


def test_a_value_of_the_state_before_can_be_asked_for() -> None:
    let = {"was": {"correlate_by": {"MSH-9.1": "SIU"}, "path": "PID-3.1"}}
    assert found(work(ORU, before=(SIU,)), let=let, where={"MSH-9.1": "ORU"}, fields={"PID-3.1": "${was}"})[0] == "1"
    batch = held(work(ORU, before=(SIU + ORU,)), let=let, fields={"PID-3.1": "${was}"})
    assert isinstance(batch, Missing)
    assert (batch.fault, "batch of 2" in batch.why) == (Fault.AUTHOR, True)
    with pytest.raises(AuthorError, match="unknown key 'set'"):
        held(work(ORU, before=(SIU,)), let={"was": {"set": "271", "path": "PID-3.1"}}, where={"PID-1": "${was}"})


def test_a_message_can_be_walked_through_as_a_mapping() -> None:
    (message_sent,) = map(Hl7Document, read_batch(ORU))
    walked = dict(message_sent)
    assert [*walked] == ["MSH", "PID", "OBR", "OBX"]
    assert len(message_sent) == len(walked)
    assert [one[:5] for one in walked["OBX"]] == ["OBX|1", "OBX|2"]
    assert "ZPD" not in message_sent


def test_a_captured_message_lends_its_values_to_later_checks() -> None:
    ack = b"MSH|^~\\&|||||||ACK|9|P|2.5.1\rMSA|AA|2026030312\r"
    asked = [
        {"assert": "hl7-structural", "correlate_by": {"MSH-9.1": "SIU"}, "capture": "sent"},
        {
            "assert": "hl7-structural",
            "correlate_by": {"MSA-2": '${sent["MSH-10"]}'},
            "fields": {"MSA-1": "AA", "MSH-9": {"not": '${sent["MSH-9.1"]}'}},
        },
        {"assert": "hl7-structural", "correlate_by": {"MSA-2": '${sent["MSH-77"]}'}},
        {"assert": "hl7-structural", "correlate_by": {"MSA-2": '${sent["nothing"]}'}},
    ]
    done = work(SIU, ack)
    results = VerificationEngine().verify_sync("c", done.input, done.output, {"criteria": asked}, {}).criterion_results
    assert [one.met for one in results[:2]] == [True, True]
    assert not any(one.met for one in results[2:])


def test_hidden_evidence_shows_digests_and_no_reason_that_quotes() -> None:
    asked = {"PID-5.1": "Smith", "PID-3[5=MR].1": "1", "SCH-25.1": "exists"}
    _, details = found(work(SIU), evidence="hash", fields=asked, segments={"SCH": 1})
    assert failing(details) == ["PID-3[5=MR].1"]
    assert "483671" not in str(details)
    assert "Booked" not in str(details)
    assert all(str(one["actual"]).startswith("sha256:") for one in details["fields"])


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"fields": {"PID.3": "1"}}, "PID.3"),
        ({"fields": {"PID-0": "1"}}, "counted from 1"),
        ({"fields": {"PID-3": True}}, "is text"),
        ({"correlate_by": {"pid-3": "1"}}, "'pid-3'"),
        ({"segments": {"sch": 1}}, "segments.sch"),
        ({"segments": {"SCH": "many"}}, "a number"),
        ({"order": ["PID", "PID"]}, "twice"),
        ({"correlate_by": {"PID-3": "1"}, "where": {"PID-3": "2"}}, "in where"),
        ({"count": {"max": 1}, "segments": {"SCH": 1}}, "remove one"),
        ({"count": 0, "fields": {"PID-3": "1"}}, "remove one"),
        ({"segment": {"SCH": 1}}, "'segments'"),
    ],
)
def test_an_invalid_assertion_is_refused(asked: dict[str, Any], told: str) -> None:
    with pytest.raises(AuthorError, match=r".") as refused:
        held(work(), **asked)
    assert told in str(refused.value)


def test_a_fault_is_reported_with_its_line() -> None:
    with pytest.raises(CriteriaError, match=r"line 3, criteria\[0\]\.fields"):
        parse_criteria("criteria:\n- assert: hl7-structural\n  fields: {PID.3: x}\n", assertions_too=True)


def test_the_examples_of_the_check_hold() -> None:
    for example in checks.get("hl7-structural").examples:
        assert found(example.work, **example.assertion)[0] == example.expect
