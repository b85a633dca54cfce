"""Parsers of HL7 v2, X12 and JSON paths."""
