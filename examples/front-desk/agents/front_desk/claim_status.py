"""What became of a claim for Daniel Novak, and who has to deal with it."""

from front_desk.desk import Desk
from front_desk.writing import NPI, elements, x12

CATEGORIES = {"F1": "paid", "F2": "denied"}


def gold(desk: Desk) -> None:
    """Ask for that claim, and tell billing what the payer says."""
    _tell_billing(desk, _asked(desk, "CLM-4471"))


def asked_for_another_claim(desk: Desk) -> None:
    """The next one on the list, of the same day."""
    _tell_billing(desk, _asked(desk, "CLM-4472"))


def billing_not_told(desk: Desk) -> None:
    """Ask, read the answer, and close the window."""
    _asked(desk, "CLM-4471")


def _asked(desk: Desk, claim: str) -> str:
    answer = desk.ask(
        x12(
            "276",
            "HR",
            "005010X212",
            "BHT*0010*13*STAT-0303-1*20260303*1200",
            "HL*1**20*1",
            "NM1*PR*2*CEDAR HEALTH PLAN*****PI*CEDAR",
            "HL*2*1*21*1",
            "NM1*41*2*MAPLE STREET*****46*MAPLE",
            "HL*3*2*19*1",
            f"NM1*1P*1*OKAFOR*SAMUEL****XX*{NPI}",
            "HL*4*3*22*0",
            "DMG*D8*19491203*M",
            "NM1*IL*1*NOVAK*DANIEL****MI*MEM88775",
            "TRN*1*STAT-0303-1",
            f"REF*1K*{claim}",
            "DTP*472*D8*20260210",
        )
    )
    return CATEGORIES[elements(answer, "STC*")[1].partition(":")[0]]


def _tell_billing(desk: Desk, status: str) -> None:
    desk.create(
        {
            "resourceType": "Task",
            "status": "requested",
            "intent": "order",
            "description": f"Claim CLM-4471: {status} by Cedar Health Plan.",
            "for": {"reference": "Patient/daniel-novak"},
            "owner": {"reference": "Organization/maple-street-billing"},
        }
    )
