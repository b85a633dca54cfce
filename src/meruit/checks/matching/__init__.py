"""Matchers: what a value must be, compiled once."""
