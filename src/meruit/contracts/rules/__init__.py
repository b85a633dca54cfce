"""Settlement rules, one per file: how a verdict becomes a bill. Terms name the rules and their order."""
