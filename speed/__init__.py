"""The speed suite: each row is a ratio to a baseline measured in the same run, never a timed test."""
