"""Emma Jones turns out not to be allergic to penicillin; the entry stays, and says so."""

from front_desk.desk import Desk

PENICILLIN, LATEX = "AllergyIntolerance/alg-jones-penicillin", "AllergyIntolerance/alg-jones-latex"
SYSTEM = "http://terminology.hl7.org/CodeSystem/allergyintolerance-"


def gold(desk: Desk) -> None:
    """Refuted and inactive, with the reason."""
    _refute(desk, PENICILLIN)


def deleted_it(desk: Desk) -> None:
    """Not allergic, so away with it."""
    desk.delete(PENICILLIN)


def refuted_latex_too(desk: Desk) -> None:
    """Both allergies of the list, in one go."""
    _refute(desk, PENICILLIN)
    _refute(desk, LATEX)


def _refute(desk: Desk, allergy: str) -> None:
    desk.change(
        allergy,
        clinicalStatus={"coding": [{"system": f"{SYSTEM}clinical", "code": "inactive"}]},
        verificationStatus={"coding": [{"system": f"{SYSTEM}verification", "code": "refuted"}]},
        note=[{"text": "Refuted by oral challenge on 2 March 2026, Dr. Rivera."}],
    )
