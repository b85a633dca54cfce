"""Asks providers on schedule and records what they answer."""
