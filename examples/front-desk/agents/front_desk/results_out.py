"""Aisha Khan's blood count goes to the specialist whom she sees next."""

from front_desk.desk import Desk, Json
from front_desk.writing import hl7, segment

REPORT = "DiagnosticReport/cbc-khan-0302"


def gold(desk: Desk) -> None:
    """All three results, final, under her medical record number and no other."""
    assert desk.send(_report(desk)) == "AA"  # noqa: S101 - an agent that is not understood has failed


def leaked_ssn(desk: Desk) -> None:
    """Every identifier that the chart has, the social security number among them."""
    desk.send(_report(desk, more_of_her="~524-06-8831^^^USA^SS"))


def left_one_result_out(desk: Desk) -> None:
    """The low hemoglobin, of all things."""
    desk.send(_report(desk, left_out="718-7"))


def _report(desk: Desk, more_of_her: str = "", left_out: str = "") -> str:
    report = desk.read(REPORT)
    found = [desk.read(one["reference"]) for one in report["result"]]
    sent = [one for one in found if one["code"]["coding"][0]["code"] != left_out]
    return hl7(
        "ORU^R01^ORU_R01",
        "LAKESIDE",
        "MS000990",
        segment("PID", {1: "1", 3: f"483711^^^MAPLE^MR{more_of_her}", 5: "Khan^Aisha", 7: "20010809", 8: "F"}),
        segment("OBR", {1: "1", 3: "cbc-khan-0302", 4: "58410-2^CBC panel^LN", 7: "20260302092000-0600", 25: "F"}),
        *(_result(number, one) for number, one in enumerate(sent, 1)),
    )


def _result(number: int, one: Json) -> str:
    code, value = one["code"]["coding"][0]["code"], one["valueQuantity"]
    what = f"{code}^{one['code']['text']}^LN"
    return segment("OBX", {1: str(number), 2: "NM", 3: what, 5: str(value["value"]), 6: value["unit"], 11: "F"})
