"""How a bill comes about, one rule a file; terms name the rules and their order."""
