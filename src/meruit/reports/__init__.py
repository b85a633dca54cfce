"""What may be said of agents, and no more: costs of verified runs, success of all of them, and how sure either is."""
