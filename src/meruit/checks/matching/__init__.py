"""Matchers: what a value must be, compiled once.

Read in this order:
    matchers.py  every matcher that an author can write
    compare.py   how values are compared with one expectation
    equality.py, ordering.py, coding.py  equality; order of numbers and times; FHIR codings
    formulas.py  `${…}`: values computed from the state before the run
"""
