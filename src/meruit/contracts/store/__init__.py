"""Tables and SQL of contracts, work and the ledger.

Read in this order: transaction.py (one contract inside a write), read.py (contracts), holds.py (those that wait for a
person), input_reads.py, work.py, ledger.py.
"""
