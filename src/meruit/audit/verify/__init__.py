"""Checks a bundle step by step: entries, outcome, settlement, usage."""
