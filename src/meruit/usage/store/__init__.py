"""Tables and SQL of metered runs and observations."""
