"""Proof that what was recorded is still what was recorded: pure, and checkable by someone who does not trust us."""
