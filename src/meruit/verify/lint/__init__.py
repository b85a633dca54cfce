"""Finds criteria that cannot be meant."""
