"""Criteria and work in, verdict out."""
