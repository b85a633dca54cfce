"""Tables and SQL of agent runs and submissions."""
