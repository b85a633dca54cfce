"""The audit log: Merkle tree, signed notes, entries, commitments."""
