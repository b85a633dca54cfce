"""People's labels, and what they say of judges: review queues, agreement, calibration, corrected rates.

Read in this order:
    label.py         a review, its draws and its labels, as values
    draw.py          draw cases by chance within strata, with the probability of each
    ask.py           what labellers are asked
    service.py       Reviews: make a queue, hand out cases blind, keep labels
    truth.py         what several people's labels say together
    agreement.py     how far people agree
    calibration.py   how often a judge is right
    corrected.py     a judged pass rate corrected by labels of the same cases
    rogan_gladen.py  the same by the judge's known error
    plan.py          how many labels an interval needs
    results.py       ReviewResults: all of these for the evaluations of a tenant
    store/           tables and SQL
"""

from typing import TYPE_CHECKING

from meruit._lazy import lazy_names

if TYPE_CHECKING:
    from meruit.review.agreement import Agreement, agreement_of
    from meruit.review.calibration import Calibration, JudgedLabel, calibrate
    from meruit.review.corrected import CorrectedMean, RatedCase, Target, correct_difference, correct_rate
    from meruit.review.label import DrawKind, Label, LabelChoice, ReviewDraw, ReviewRecord, ReviewTerms
    from meruit.review.plan import LabelPlan, plan_from_error, plan_from_pilot
    from meruit.review.results import CorrectedDifference, CorrectedRate, JudgeCalibration, ReviewResults
    from meruit.review.rogan_gladen import RoganGladen, correct_by_error_rates
    from meruit.review.service import BlindCase, ReviewProgress, ReviewRequest, Reviews

_NAMES = {
    "review.label": ("DrawKind", "Label", "LabelChoice", "ReviewDraw", "ReviewRecord", "ReviewTerms"),
    "review.agreement": ("Agreement", "agreement_of"),
    "review.calibration": ("Calibration", "JudgedLabel", "calibrate"),
    "review.corrected": ("CorrectedMean", "RatedCase", "Target", "correct_difference", "correct_rate"),
    "review.plan": ("LabelPlan", "plan_from_error", "plan_from_pilot"),
    "review.results": ("CorrectedDifference", "CorrectedRate", "JudgeCalibration", "ReviewResults"),
    "review.rogan_gladen": ("RoganGladen", "correct_by_error_rates"),
    "review.service": ("BlindCase", "ReviewProgress", "ReviewRequest", "Reviews"),
}
__all__ = [
    "Agreement",
    "BlindCase",
    "Calibration",
    "CorrectedDifference",
    "CorrectedMean",
    "CorrectedRate",
    "DrawKind",
    "JudgeCalibration",
    "JudgedLabel",
    "Label",
    "LabelChoice",
    "LabelPlan",
    "RatedCase",
    "ReviewDraw",
    "ReviewProgress",
    "ReviewRecord",
    "ReviewRequest",
    "ReviewResults",
    "ReviewTerms",
    "Reviews",
    "RoganGladen",
    "Target",
    "agreement_of",
    "calibrate",
    "correct_by_error_rates",
    "correct_difference",
    "correct_rate",
    "plan_from_error",
    "plan_from_pilot",
]
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
