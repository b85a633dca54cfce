"""`meruit benchmark`: benchmark.py has the command, standings.py its leaderboard and comparison."""
