"""Re-scoring of recorded outcomes, row by row, by columns, or on a cluster."""
