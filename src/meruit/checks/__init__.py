"""State checks: compare what an agent left in its environment with what must be there. One file is one check.

Read in this order:
    fhir.py, hl7.py, x12.py, files.py, portal.py, voice.py  the checks, as authors use them
    fax.py, message.py, cds.py, answer.py, unchanged.py     more of them
    framework/   what they share: assertions, compiling, context, selecting items, batches
    matching/    what a value must be: matchers, equality, order, formulas
    fhir_types/  FHIR search, references, periods and quantities
    formats/     parsers of HL7 v2, X12, fax pages and JSON paths
    values/      exact numbers, dates, globs, speech, look-alike characters
"""
