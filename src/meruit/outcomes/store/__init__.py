"""Tables and SQL of outcomes, criteria and batches."""
