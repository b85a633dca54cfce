"""John Smith's therapy is authorized over the clearinghouse, and the order bears the number."""

from front_desk.desk import Desk
from front_desk.writing import NPI, elements, x12

ORDER = "ServiceRequest/sr-smith-therapy"


def gold(desk: Desk) -> None:
    """Ask once, and note the number that comes back."""
    _note(desk, elements(desk.ask(_request()), "HCR*")[2])


def miscounted_and_let_go(desk: Desk) -> None:
    """A set that says it has one segment more; the 999 rejects it, and nobody reads the 999."""
    desk.ask(_request(miscounted=True))
    _note(desk, "requested")


def asked_twice(desk: Desk) -> None:
    """To be on the safe side: two authorizations for one course of therapy."""
    desk.ask(_request())
    gold(desk)


def _note(desk: Desk, number: str) -> None:
    desk.change(ORDER, note=[{"text": f"Authorization {number}"}])


def _request(*, miscounted: bool = False) -> str:
    return x12(
        "278",
        "HI",
        "005010X217",
        "BHT*0007*13*AUTHREQ-4471*20260303*1200",
        "HL*1**20*1",
        "NM1*X3*2*CEDAR HEALTH PLAN*****PI*CEDAR",
        "HL*2*1*21*1",
        f"NM1*1P*1*OKAFOR*SAMUEL****XX*{NPI}",
        "HL*3*2*22*1",
        "NM1*IL*1*SMITH*JOHN****MI*MEM88771",
        "DMG*D8*19610412*M",
        "HL*4*3*EV*1",
        "TRN*1*AUTHREQ-4471*9MAPLE0001",
        "UM*HS*I*1",
        "DTP*AAH*RD8*20260309-20260508",
        "HI*ABK:M17.11",
        "HL*5*4*SS*0",
        "SV1*HC:97110*900*UN*12",
        miscounted=miscounted,
    )
