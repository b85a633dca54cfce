"""State checks: what an agent left behind in the world, held against what should be there."""
