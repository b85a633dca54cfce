"""X12 transactions for agents to act on."""
