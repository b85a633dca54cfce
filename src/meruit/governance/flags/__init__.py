"""Governance rules, one per file: each finds one kind of suspicion in a dossier."""
