"""What came back as X12: an answer holds what was taken from it, and each thing that it lacks costs its share."""

import builtins
import string
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.questions import Sending, failing

from meruit import VerificationEngine
from meruit.benchmarks.evidence import format_evidence
from meruit.checks.formats import x12_guides as guides
from meruit.checks.formats.x12 import read
from meruit.checks.formats.x12_guides import guide_violations, guides_of
from meruit.checks.x12 import OUTCOMES, X12Document, X12Envelope
from meruit.documents.authoring import parse_criteria
from meruit.errors import AuthorError, CriteriaError
from meruit.model.environment import SourceKind
from meruit.model.evidence import Checked, Fault, Missing
from meruit.model.verdict import Status
from meruit.model.work import Work
from meruit.registry import checks

ISA = "ISA*00*          *00*          *ZZ*PAYER          *ZZ*CLINIC         *260301*1319*^*00501*000000907*0*P*:~"
KINDS = {
    "271": ("HB", "005010X279A1"),
    "278": ("HI", "005010X217"),
    "835": ("HP", "005010X221A1"),
    "997": ("FA", "004010"),
    "999": ("FA", "005010X231A1"),
}
ELIGIBLE = (
    "BHT*0022*11*10001234*20260301*1319|HL*1**20*1|NM1*PR*2*ABC COMPANY*****PI*842610001|HL*2*1*21*1|"
    "NM1*1P*2*BONE AND JOINT CLINIC*****XX*1234567893|HL*3*2*22*1|TRN*2*93175-012547*9877281234|"
    "NM1*IL*1*SMITH*ROBERT****MI*123456789|HL*4*3*23*0|NM1*03*1*SMITH*MARY LOU|EB*1**30*MC*GOLD 123 PLAN|"
    "EB*B*IND*1^33^98***27*10*****Y|EB*B*IND*98***27*30*****N"
)
CERTIFIED = (
    "BHT*0007*11*A12345*20260301*1102*18|HL*1**20*1|HL*2*1*21*1|HL*3*2*22*1|NM1*IL*1*SMITH*JOE****MI*12345678901|"
    "HL*4*3*EV*1|TRN*2*AUTHREQ-4471*9012345678|HCR*A1*AUTH-0081096|DTP*AAH*RD8*20260310-20260410|HL*5*4*SS*0|"
    "HCR*A1*LINE-1|SV1*HC:33510*250*UN*1"
)
ACKNOWLEDGED = "AK1*HC*1*005010X222A1|AK2*837*0001*005010X222A1|IK5*A|AK2*837*0002*005010X222A1|IK5*A|AK9*A*2*2*2"

ACTIVE = """
criteria:
- {assert: x12-response, from: clearinghouse, set: "271", correlate_by: {TRN.2: 93175-012547},
   envelope: ok, fields: {"HL[23]/EB[1=1].1": "1", "HL[23]/EB[1=B][12=Y].7": {near: {value: 10.00, by: 0}},
     "HL[22]/NM1[1=IL].9": "123456789", "HL[23]/AAA": absent}}
"""
REVIEWED = r"""
criteria:
- {assert: x12-response, set: "278", version: 005010X217, correlate_by: {TRN.2: AUTHREQ-4471}, outcome: certified,
   fields: {"HL[EV]/HCR.2": {matches: "AUTH-\\d+"}, "HL[EV]/DTP[1=AAH].3": {exists: true}}}
"""
ACCEPTED = """
criteria:
- {assert: x12-response, set: "999", fields: {AK9.1: {in: [A, E]}, IK5.1: {all: A}}}
"""


def transaction(body: str, name: str, number: int = 1) -> str:
    segments = [one for one in body.split("|") if one]
    version = "" if name == "835" else f"*{KINDS[name][1]}"
    return f"ST*{name}*{number:04}{version}~{''.join(f'{one}~' for one in segments)}SE*{len(segments) + 2}*{number:04}~"


def interchange(*sets: str, kind: str) -> bytes:
    code, version = KINDS[kind]
    group = f"GS*{code}*PAYER*CLINIC*20260301*1319*1*X*{version}~{''.join(sets)}GE*{len(sets)}*1~"
    return f"{ISA}{group}IEA*1*000000907~".encode()


def answer(body: str, name: str) -> bytes:
    return interchange(transaction(body, name), kind=name)


SENT = Sending("x12-response", "clearinghouse", SourceKind.X12)
work, held, found, judged = SENT.work, SENT.held, SENT.found, SENT.judged


# --- what stands in an answer is found there --------------------------------------------------------------------------

# No word of a matcher can be made of these.
TEXTS = st.text(string.ascii_uppercase + string.digits + " .-é", max_size=6)
Body = list[tuple[str, list[str]]]
BODIES = st.lists(
    st.tuples(st.sampled_from(["NM1", "EB", "TRN"]), st.lists(TEXTS, min_size=1, max_size=4)), min_size=1, max_size=6
)


def written(body: Body, number: int = 1) -> str:
    """Each segment ends with a mark of its own, by which a path can pick it."""
    return transaction(
        "|".join("*".join([name, f"S{place}", *parts]) for place, (name, parts) in enumerate(body)), "271", number
    )


def places(body: Body) -> list[tuple[int, int, str]]:
    """Every element: its segment, its number, and its path."""
    return [
        (place, number, f"{name}[1=S{place}].{number + 2}")
        for place, (name, parts) in enumerate(body)
        for number in range(len(parts))
    ]


@given(BODIES, st.data())
def test_an_answer_holds_every_element_that_was_taken_from_it(body: Body, data: st.DataObject) -> None:
    taken = data.draw(st.lists(st.sampled_from(places(body)), min_size=1, unique=True))
    asked = {path: body[place][1][number] for place, number, path in taken}
    score, details = found(work(interchange(written(body), kind="271")), set="271", envelope="ok", fields=asked)
    assert score == "1"
    assert [one["path"] for one in details["fields"]] == ["envelope", *asked]


@given(BODIES, st.data())
def test_one_changed_element_fails_alone_and_costs_its_share(body: Body, data: st.DataObject) -> None:
    taken = data.draw(st.lists(st.sampled_from(places(body)), min_size=1, unique=True))
    asked = {path: body[place][1][number] for place, number, path in taken}
    place, number, changed = data.draw(st.sampled_from(taken))
    other = [(name, [*parts]) for name, parts in body]
    other[place][1][number] += "X"
    done = work(interchange(written(other), kind="271"))
    score, details = found(done, fields=asked)
    assert failing(details) == [changed]
    assert Fraction(score) == 1 - Fraction(1, len(asked))
    assert found(done, fields=asked, credit="all")[0] == "0"
    assert found(done, fields={**asked, changed: {"equals": asked[changed], "must": True}})[0] == "0"


@settings(max_examples=30)
@given(st.lists(BODIES, min_size=1, max_size=12), st.data())
def test_each_transaction_of_an_interchange_is_a_candidate(bodies: list[Body], data: st.DataObject) -> None:
    done = work(interchange(*(written(one, number) for number, one in enumerate(bodies, 1)), kind="271"))
    meant = data.draw(st.integers(1, len(bodies)))
    score, details = found(
        done, correlate_by={"ST.2": f"{meant:04}"}, count=1, envelope="ok", fields={"SE.1": len(bodies[meant - 1]) + 2}
    )
    assert score == "1"
    assert details["considered"] == len(bodies)
    (only,) = details["selected"]
    parts = only["key"].split("#")
    assert parts[0] == "000001"
    assert [int(one) for one in parts[1:]] == ([meant] if len(bodies) > 1 else [])
    assert found(done, count=len(bodies))[0] == "1"


# --- the worked examples ----------------------------------------------------------------------------------------------


def test_an_active_member_with_a_copay_is_found() -> None:
    result = judged(ACTIVE, answer(ACKNOWLEDGED, "999"), answer(ELIGIBLE, "271"))
    assert result.met
    evidence = format_evidence(result)
    assert [*evidence["fieldResults"][0]][:4] == ["path", "expected", "actual", "passed"]
    assert [one["path"] for one in evidence["fieldResults"]][:2] == ["envelope", "HL[23]/EB[1=1].1"]
    assert evidence["selected"][0]["key"] == "000002"


@pytest.mark.parametrize(
    ("was", "sent", "paths"),
    [
        ("EB*1**30", "EB*6**30", ["HL[23]/EB[1=1].1"]),
        ("27*10*", "27*15*", ["HL[23]/EB[1=B][12=Y].7"]),
        ("*****Y", "*****N", ["HL[23]/EB[1=B][12=Y].7"]),
        ("EB*1**30", "AAA*N**72*C|EB*1**30", ["HL[23]/AAA"]),
        ("HL*4*3*23*0", "HL*4*9*23*0", ["envelope"]),
        ("HL*4*3*23*0", "HL*4*3*22*0", ["HL[23]/EB[1=1].1", "HL[23]/EB[1=B][12=Y].7"]),
    ],
)
def test_another_eligibility_loses_what_is_not_as_asked(was: str, sent: str, paths: list[str]) -> None:
    assert was in ELIGIBLE
    result = judged(ACTIVE, answer(ELIGIBLE.replace(was, sent), "271"))
    assert result.status is Status.NOT_MET
    assert failing(result.details or {}) == paths
    assert Fraction(result.score or 0).limit_denominator(100) == 1 - Fraction(len(paths), 5)


def test_the_eligibility_of_another_member_is_not_the_one_asked_for() -> None:
    result = judged(ACTIVE, answer(ELIGIBLE.replace("MI*123456789", "MI*123456780"), "271"))
    assert (result.status, result.score) == (Status.NOT_MET, 0)
    assert failing(result.details or {}) == ["HL[22]/NM1[1=IL].9"]
    assert "123456780" in (result.details or {})["why"]


def test_a_review_is_certified() -> None:
    assert judged(REVIEWED, answer(CERTIFIED, "278")).met


@pytest.mark.parametrize(
    ("was", "sent", "paths"),
    [
        ("HCR*A1*AUTH-0081096", "HCR*A3*AUTH-0081096", ["outcome"]),
        ("HCR*A1*LINE-1", "HCR*A3*LINE-1", ["outcome"]),
        ("HCR*A1*AUTH-0081096|", "", ["HL[EV]/HCR.2"]),
        ("AUTH-0081096", "pending", ["HL[EV]/HCR.2"]),
        ("DTP*AAH*RD8*20260310-20260410|", "", ["HL[EV]/DTP[1=AAH].3"]),
        ("DTP*AAH*RD8*20260310-20260410|", "DTP*AAH*RD8*|", ["HL[EV]/DTP[1=AAH].3"]),
    ],
)
def test_another_review_loses_what_is_not_as_asked(was: str, sent: str, paths: list[str]) -> None:
    assert was in CERTIFIED
    result = judged(REVIEWED, answer(CERTIFIED.replace(was, sent), "278"))
    assert failing(result.details or {}) == paths
    assert Fraction(result.score or 0).limit_denominator(100) == 1 - Fraction(len(paths), 3)


def test_an_answer_to_another_request_or_in_another_version_is_not_meant() -> None:
    for was, sent in ((b"AUTHREQ-4471", b"AUTHREQ-4472"), (b"005010X217", b"005010X215"), (b"ST*278", b"ST*279")):
        result = judged(REVIEWED, answer(CERTIFIED, "278").replace(was, sent))
        assert (result.score, result.fault) == (0, Fault.AGENT)
        assert result.details is not None
        assert len(result.details["nearest"][0]["failing"]) == 1


@pytest.mark.parametrize(
    ("was", "sent", "paths"),
    [
        ("AK9*A", "AK9*A", []),
        ("AK9*A", "AK9*E", []),
        ("AK9*A", "AK9*R", ["AK9.1"]),
        ("0002*005010X222A1|IK5*A", "0002*005010X222A1|IK5*R*5", ["IK5.1"]),
        ("AK9*A*2*2*2", "", ["AK9.1"]),
    ],
)
def test_a_group_is_accepted_with_all_its_sets(was: str, sent: str, paths: list[str]) -> None:
    assert was in ACKNOWLEDGED
    result = judged(ACCEPTED, answer(ACKNOWLEDGED.replace(was, sent), "999"))
    assert failing(result.details or {}) == paths
    assert result.score == 1 - len(paths) / 2


# --- outcomes ---------------------------------------------------------------------------------------------------------


def outcome(body: str, name: str, word: str) -> str:
    return found(work(answer(body, name)), set=name, outcome=word)[0]


@pytest.mark.parametrize(
    ("word", "code"),
    [
        ("certified", "A1"),
        ("partially_certified", "A2"),
        ("denied", "A3"),
        ("pended", "A4"),
        ("modified", "A6"),
        ("cancelled", "C"),
        ("contact_payer", "CT"),
        ("no_action_required", "NA"),
    ],
)
def test_a_review_has_the_outcome_of_its_code_and_no_other(word: str, code: str) -> None:
    body = CERTIFIED.replace("HCR*A1", f"HCR*{code}")
    assert {one for one in OUTCOMES["278"] if outcome(body, "278", one) == "1"} == {word}


def test_the_event_decides_unless_all_of_it_is_meant() -> None:
    mixed = CERTIFIED.replace("HCR*A1*AUTH", "HCR*A6*AUTH")
    assert outcome(mixed, "278", "modified") == "1"
    assert outcome(mixed, "278", "certified") == "0"
    overruled = CERTIFIED.replace("HCR*A1*LINE", "HCR*A3*LINE")
    assert outcome(overruled, "278", "certified") == "0"
    assert outcome(overruled, "278", "denied") == "0"
    unheard_of = CERTIFIED.replace("HCR*A1*LINE", "HCR*ZZ*LINE")
    assert outcome(unheard_of, "278", "certified") == "0"
    services = CERTIFIED.replace("HCR*A1*AUTH-0081096|", "").replace("HCR*A1", "HCR*A4")
    assert outcome(services, "278", "pended") == "1"


def test_an_answer_without_a_decision_has_no_outcome_but_may_be_a_refusal() -> None:
    refused = CERTIFIED.replace("HCR*A1*AUTH-0081096", "AAA*N**72*C").replace("HCR*A1*LINE-1|", "")
    assert {word for word in OUTCOMES["278"] if outcome(refused, "278", word) == "1"} == {"rejected"}
    details = found(work(answer(refused, "278")), set="278", outcome="certified")[1]
    assert details["fields"][0]["actual"] is None


@pytest.mark.parametrize(
    ("benefits", "words"),
    [
        ("EB*1**30", {"active"}),
        ("EB*5", {"active"}),
        ("EB*6**30", {"inactive"}),
        ("EB*1**30|EB*6**35", {"active"}),
        ("EB*6**1^30^35|EB*1**88", {"inactive"}),
        ("EB*1**88|EB*6**35", set()),
        ("EB*1**30|EB*6**30", set()),
        ("EB*B*IND*30***27*10|EB*1**98", {"active"}),
        ("EB*B*IND*30***27*10", set()),
        ("AAA*Y**42*R", {"rejected"}),
    ],
)
def test_a_member_is_active_by_the_plan_as_a_whole_where_it_is_named(benefits: str, words: set[str]) -> None:
    body = f"BHT*0022*11*1*20260301*1319|HL*1**20*1|HL*2*1*22*0|{benefits}"
    assert {word for word in OUTCOMES["271"] if outcome(body, "271", word) == "1"} == words


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("A", {"accepted"}),
        ("E", {"accepted", "accepted_with_errors"}),
        ("P", {"partially_accepted"}),
        ("R", {"rejected"}),
        ("X", {"rejected"}),
    ],
)
def test_an_acknowledgement_says_what_became_of_a_group(code: str, words: set[str]) -> None:
    body = ACKNOWLEDGED.replace("AK9*A", f"AK9*{code}")
    for name in ("999", "997"):
        assert {word for word in OUTCOMES[name] if outcome(body, name, word) == "1"} == words


# --- envelopes and guides ---------------------------------------------------------------------------------------------


def test_what_is_wrong_with_an_envelope_is_listed_and_bounded() -> None:
    bad = answer(ELIGIBLE, "271").replace(b"SE*15*0001", b"SE*3*0009").replace(b"IEA*1*", b"IEA*4*")
    score, details = found(work(bad), set="271", envelope="ok", fields={"TRN.2": "exists"})
    assert score == "1/2"
    (shown,) = [one for one in details["fields"] if one["path"] == "envelope"]
    assert shown["expected"] == "ok"
    assert [one.split(": ")[1][:4] for one in shown["actual"]] == ["SE01", "SE02", "IEA0"]
    many = answer("|".join(f"HL*1*{number}*20" for number in range(500, 600)), "271")
    (listed,) = found(work(many), envelope="ok")[1]["fields"]
    assert len(str(listed)) < 2_000


def test_the_flaws_of_an_interchange_count_for_each_of_its_transactions() -> None:
    sets = [transaction(ELIGIBLE, "271", number) for number in (1, 2)]
    broken = interchange(*sets, kind="271").replace(b"SE*15*0002", b"SE*16*0002")
    assert found(work(broken), correlate_by={"ST.2": "0001"}, envelope="ok")[0] == "0"


VALID = {"set": "999", "version": "005010X231A1", "valid": True}


def test_an_answer_that_follows_its_guide_is_valid() -> None:
    assert found(work(answer(ACKNOWLEDGED, "999")), **VALID)[0] == "1"


@pytest.mark.parametrize(
    ("was", "sent", "told"),
    [
        ("AK9*A*2*2*2", "AK9*A*2*2*two", "AK904"),
        ("|AK9*A*2*2*2", "", "(AK9) missing"),
        ("|IK5*A|AK9", "|IK5*Q|AK9", "IK5*Q not found"),
        ("AK1*HC", "NM1*IL|AK1*HC", "NM1*IL not found"),
    ],
)
def test_a_violation_of_the_guide_is_reported(was: str, sent: str, told: str) -> None:
    assert was in ACKNOWLEDGED
    done = work(answer(ACKNOWLEDGED.replace(was, sent), "999"))
    score, details = found(done, **VALID)
    assert score == "0"
    assert told in str(details["fields"][0]["actual"])
    hidden = found(done, **VALID, evidence="hash")[1]
    assert told not in str(hidden)


def test_a_guide_is_for_its_group_and_its_interchange() -> None:
    for was, sent, told in ((b"GS*FA*", b"GS*HC*", "GS01"), (b"*00501*", b"*00402*", "ISA12")):
        details = found(work(answer(ACKNOWLEDGED, "999").replace(was, sent)), **VALID)[1]
        assert told in str(details["fields"][0]["actual"])


def test_one_walk_along_a_guide_leaves_nothing_for_the_next() -> None:
    good, bad = (read(answer(body, "999"))[0].transactions[0] for body in (ACKNOWLEDGED, "AK1*HC*1*005010X222A1"))
    asked = guides_of("999", "005010X231A1")
    first = guide_violations(bad, asked)
    assert first
    assert guide_violations(good, asked) == []
    assert guide_violations(bad, asked) == first


def test_requests_and_responses_of_one_version_have_guides_of_their_own() -> None:
    both = guides_of("278", "004010X094A1")
    assert {one.purpose for one in both} == {"11", "13"}
    for purpose in ("11", "13"):
        body = f"BHT*0078*{purpose}*1*20260301*1102"
        content = answer(body, "278").replace(b"00501*", b"00401*").replace(b"005010X217", b"004010X094A1")
        told = guide_violations(read(content)[0].transactions[0], both)
        assert not [one for one in told if "BHT02" in one]


def test_a_long_answer_is_held_against_its_guide_only_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guides, "MAX_SEGMENTS", 6)
    details = found(work(answer(ACKNOWLEDGED, "999")), **VALID)[1]
    assert "more than 6 segments" in str(details["fields"][0]["actual"])
    many = answer("|".join(["NM1*IL"] * 200), "999")
    monkeypatch.setattr(guides, "MAX_SEGMENTS", 1000)
    assert (
        len(guide_violations(read(many)[0].transactions[0], guides_of("999", "005010X231A1"))) == guides.MAX_COMPLAINTS
    )


def test_a_missing_library_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("pyx12"):
            raise ImportError(name)
        return real(name, *rest, **more)

    guides._load_guides.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(AuthorError, match=r"meruit\[checks\]"):
        held(work(), **VALID)


# --- cases to argue about ---------------------------------------------------------------------------------------------


def test_a_number_matches_its_text() -> None:
    done = work(answer(ELIGIBLE, "271"))
    assert found(done, set=271, fields={"HL[22]/NM1[1=IL].9": 123456789, "ST.1": 271})[0] == "1"
    assert found(done, set=271, version={"matches": "005010X279.*"})[0] == "1"
    assert found(done, set=271, version="005010X279")[0] == "0"


def test_absent_and_empty_are_two_things() -> None:
    done = work(answer(ELIGIBLE, "271"))
    assert found(done, fields={"HL[22]/NM1.5": "empty", "HL[22]/NM1.10": "absent"})[0] == "1"
    assert found(done, fields={"HL[22]/NM1.5": "absent", "HL[22]/NM1.10": "empty"})[0] == "0"


def test_what_never_came_gets_no_credit_for_what_it_does_not_hold() -> None:
    assert found(work(), set="271", fields={"AAA": "absent"})[0] == "0"


def test_an_invalid_interchange_is_listed_but_not_selected() -> None:
    score, details = found(work(b"<html>", answer(ELIGIBLE, "271")), set="271")
    assert score == "1"
    assert details["unreadable"][0] | {"why": ""} == {"key": "000001", "why": "", "offset": 0, "head": "<html>"}
    assert found(work(b"<html>", answer(ELIGIBLE, "271")), set="271", count=1)[0] == "0"
    finding = held(work(answer(ELIGIBLE, "271").replace(b"~TRN*", b"~trn*")), set="271")
    assert isinstance(finding, Checked)
    assert (finding.score, finding.fault) == ("0", Fault.AGENT)
    assert finding.details is not None
    assert finding.details["unreadable"][0]["offset"] == answer(ELIGIBLE, "271").index(b"TRN*")


def test_an_interchange_without_transactions_holds_no_candidate() -> None:
    alone = f"{ISA}TA1*000000905*260301*1318*A*000~IEA*0*000000907~".encode()
    assert found(work(alone))[0] == "0"
    assert found(work(alone), count=0)[0] == "1"


def test_an_acknowledged_interchange_can_be_asserted() -> None:
    for code, outcome in (("A", "accepted"), ("E", "accepted_with_errors"), ("R", "rejected")):
        alone = f"{ISA}TA1*000000905*260301*1318*{code}*020~IEA*0*000000907~".encode()
        assert found(work(alone), set="TA1", outcome=outcome, fields={"TA1.1": "000000905"})[0] == "1"
        other = "rejected" if code != "R" else "accepted"
        assert found(work(alone), set="TA1", outcome=other)[0] == "0"
    assert found(work(answer(ELIGIBLE, "271")), set="TA1", count=0)[0] == "1"


def test_an_interchange_is_as_expected_only_if_all_of_it_is() -> None:
    sets = [transaction(body, "271", number) for number, body in ((1, ELIGIBLE), (2, ELIGIBLE))]
    done = work(interchange(*sets, kind="271"))
    untouched = {"assert": "state-unchanged"}
    asked: list[Any] = [{"assert": "x12-response", "correlate_by": {"ST.2": "0001"}}, untouched]
    engine = VerificationEngine()
    first = engine.verify_sync("c", done.input, done.output, {"criteria": asked}, {}).criterion_results
    assert [one.met for one in first] == [True, False]
    asked = [{"assert": "x12-response", "match": "all"}, untouched]
    second = engine.verify_sync("c", done.input, done.output, {"criteria": asked}, {}).criterion_results
    assert all(one.met for one in second)


def test_a_value_of_the_state_before_can_be_asked_for() -> None:
    let = {"trace": {"set": 271, "version": "005010X279A1", "path": "TRN.2"}}
    done = work(answer(ACKNOWLEDGED, "999"), answer(ELIGIBLE, "271"), before=(answer(ELIGIBLE, "271"),))
    assert found(done, let=let, changed="created", correlate_by={"TRN.2": "${trace}"}, count=1)[0] == "1"
    kind = found(done, let={"kind": {"path": "ST.1"}}, set="${kind}", outcome="active", changed="created")
    assert kind[0] == "1"


def test_an_outcome_may_be_known_only_when_the_check_runs() -> None:
    done = work(answer(ELIGIBLE, "271"))
    facts = Work(input={**done.input, "facts": {"hoped": "active", "kind": "271"}}, output=done.output)
    assert found(facts, set="${kind}", outcome="${hoped}")[0] == "1"
    other = Work(input={**done.input, "facts": {"hoped": "certified", "kind": "271"}}, output=done.output)
    finding = held(other, set="${kind}", outcome="${hoped}")
    assert isinstance(finding, Missing)
    assert finding.fault is Fault.AUTHOR
    guided = Work(input={**done.input, "facts": {"version": "005010X279A1"}}, output=done.output)
    finding = held(guided, set="271", version="${version}", valid=True)
    assert isinstance(finding, Missing)
    assert "271 in 005010X279A1" in finding.why


def test_an_answer_can_be_walked_through_as_a_mapping() -> None:
    (came,) = read(answer(CERTIFIED, "278"))
    walked = dict(X12Document(came.transactions[0], X12Envelope(came)))
    assert [*walked][:3] == ["ST", "BHT", "HL"]
    assert walked["HCR"] == ["HCR*A1*AUTH-0081096", "HCR*A1*LINE-1"]


def test_a_captured_answer_lends_its_values_to_later_checks() -> None:
    asked = [
        {"assert": "x12-response", "set": "278", "capture": "review"},
        {"assert": "x12-response", "set": "271", "fields": {"TRN.2": {"not": '${review["HL[EV]/HCR.2"]}'}}},
        {"assert": "x12-response", "set": "271", "fields": {"TRN.2": '${review["HL[EV]/HCR.2"]}'}},
    ]
    done = work(answer(CERTIFIED, "278"), answer(ELIGIBLE, "271"))
    results = VerificationEngine().verify_sync("c", done.input, done.output, {"criteria": asked}, {}).criterion_results
    assert [one.met for one in results] == [True, True, False]
    assert "AUTH-0081096" in str(results[2].details)


def test_hidden_evidence_shows_digests_and_no_reason_that_quotes() -> None:
    body = ELIGIBLE.replace("HL*4*3*23", "HL*4*MARIA*23")
    asked = {"HL[22]/NM1[1=IL].3": "JONES", "HL[22]/NM1[1=IL].9": "exists"}
    done = work(answer(body, "271"))
    _, details = found(done, set="271", evidence="hash", envelope="ok", outcome="inactive", fields=asked)
    assert failing(details) == ["outcome", "envelope", "HL[22]/NM1[1=IL].3"]
    for quoted in ("SMITH", "123456789'", "MARIA"):
        assert quoted not in str(details)
    assert all(str(one["actual"]).startswith("sha256:") for one in details["fields"])


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"fields": {"NM109": "1"}}, "NM109"),
        ({"fields": {"ST.0": "1"}}, "number 0"),
        ({"fields": {"ST.1": False}}, "is text"),
        ({"fields": {"version": "1"}}, "'version'"),
        ({"set": "27"}, "set"),
        ({"set": True}, "set"),
        ({"set": "271", "correlate_by": {"ST.1": "271"}}, "correlate_by"),
        ({"correlate_by": {"TRN.2": "1"}, "where": {"TRN.2": "1"}}, "correlate_by"),
        ({"outcome": "active"}, "271, 278, TA1, 997, 999"),
        ({"set": "835", "outcome": "paid"}, "outcome"),
        ({"set": "271", "outcome": "certified"}, "'certified'"),
        ({"set": "278", "outcome": "certifed"}, "'certified'"),
        ({"set": "271", "envelope": "fine"}, "envelope"),
        ({"set": "999", "valid": True}, "and version"),
        ({"set": "271", "version": "005010X279A1", "valid": True}, "271 in 005010X279A1"),
        ({"set": "999", "version": "005010X231A1", "valid": False}, "valid"),
        ({"set": "999", "version": {"in": []}}, "version"),
        ({"count": [0, 2], "envelope": "ok"}, "envelope"),
        ({"sett": "271"}, "'set'"),
    ],
)
def test_an_invalid_assertion_is_refused(asked: dict[str, Any], told: str) -> None:
    with pytest.raises(AuthorError, match=r".") as refused:
        held(work(), **asked)
    assert told in str(refused.value)


def test_a_fault_is_reported_with_its_line() -> None:
    with pytest.raises(CriteriaError, match=r"line 4, criteria\[0\]\.fields"):
        parse_criteria("criteria:\n- assert: x12-response\n  set: 271\n  fields: {NM109: x}\n", assertions_too=True)


def test_the_examples_of_the_check_hold() -> None:
    for example in checks.get("x12-response").examples:
        assert found(example.work, **example.assertion)[0] == example.expect
