"""Nouns: frozen data without behaviour. Imports nothing else of ours."""
