"""The audit log as pure functions: entries, Merkle tree, signed notes, commitments. No database, no clock.

Read in this order:
    entries.py      what the log says, one class per kind of entry
    commitment.py   salted hashes of evidence
    merkle.py       tree hashes and proofs
    note.py         keys, signed notes and checkpoints
    statement.py    signed in-toto statements
"""
