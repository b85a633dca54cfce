"""A payer's web portal for agents to act on."""
