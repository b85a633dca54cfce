"""Task sets, the runs of agents on them, and their scores."""
