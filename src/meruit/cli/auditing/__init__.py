"""`meruit audit`: proof bundles, receipts, checkpoints, witnesses, and the check of a whole store.

- group.py - the command, and what reads or checks a store and its bundles
- follow.py - keep checkpoints of a log and prove that each extends the last
- keys.py - which keys may sign the log
- receipt.py - receipts of single verdicts
- witness.py - run a witness, and ask witnesses
- inputs.py - keys, checkpoints and logs that options name
"""
