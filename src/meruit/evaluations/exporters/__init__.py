"""Formats that evaluations are written in, one file each; registered with `exporters.add`.

An exporter takes an `EvaluationExport` of export.py and yields text or bytes, so that no evaluation is held whole.
"""
