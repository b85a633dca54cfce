"""A provider that bills tokens, for tests and demos."""
