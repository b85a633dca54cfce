"""Evidence in, verdict out: pure, exact, the same today and in ten years."""
