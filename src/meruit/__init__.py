"""Meruit: proves whether an AI agent's work was done, how well, what it cost, and what is owed."""
