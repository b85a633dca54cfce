"""User code in a box: one contract, three tiers."""
