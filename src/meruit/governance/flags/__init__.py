"""Reasons not to believe an outcome, one file each."""
