"""Verification: criteria are compiled once, work is measured and judged, and the result never raises.

Read in this order:
    load.py         criteria and work from files
    catalogue.py    which extractor answers which criterion; CompiledCriteria
    measure.py      evidence for each criterion
    engine.py       VerificationEngine: compile, verify, governance
    cache.py        results of costly metrics, kept for a while
    custom_code.py  code that criteria bring along
    schema.py       JSON Schema of criteria files
    lint/           tests of criteria before anyone relies on them
"""
