"""Recorded outcomes: service, export, re-scoring."""
