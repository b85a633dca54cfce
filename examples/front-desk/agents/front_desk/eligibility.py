"""Whether Robert Lee is covered today, and what he pays at the desk."""

from front_desk.desk import Desk
from front_desk.writing import NPI, elements, x12

VISIT = "Appointment/apt-1003"


def gold(desk: Desk) -> None:
    """Ask, and note what the answer says."""
    answer = desk.ask(_question("19580125"))
    copay = elements(answer, "EB*B*")[7]
    desk.change(VISIT, comment=f"Copay ${copay}")


def wrong_birth_date(desk: Desk) -> None:
    """Day and month swapped as by a tired hand; the payer knows no such member, and that is noted."""
    desk.ask(_question("19580521"))
    desk.change(VISIT, comment="Not covered, patient to pay in full")


def guessed_the_copay(desk: Desk) -> None:
    """What he paid the last time, without asking."""
    desk.change(VISIT, comment="Copay $20")


def _question(born: str) -> str:
    return x12(
        "270",
        "HS",
        "005010X279A1",
        "BHT*0022*13*ELIG-0303-1*20260303*1200",
        "HL*1**20*1",
        "NM1*PR*2*CEDAR HEALTH PLAN*****PI*CEDAR",
        "HL*2*1*21*1",
        f"NM1*1P*1*OKAFOR*SAMUEL****XX*{NPI}",
        "HL*3*2*22*0",
        "TRN*1*ELIG-0303-1*9MAPLE0001",
        "NM1*IL*1*LEE*ROBERT****MI*MEM88773",
        f"DMG*D8*{born}*M",
        "DTP*291*D8*20260303",
        "EQ*30",
    )
