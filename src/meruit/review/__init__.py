"""People's labels, and what they say of judges: review queues, agreement, calibration, corrected rates.

Read in this order:
    agreement.py     how far people agree
    calibration.py   how often a judge is right
    corrected.py     a judged pass rate corrected by labels of the same cases
    rogan_gladen.py  the same by the judge's known error
    plan.py          how many labels an interval needs
"""
