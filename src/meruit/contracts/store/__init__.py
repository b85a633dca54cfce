"""Tables and SQL of contracts, work and the ledger.

Read in this order: transaction.py (one contract inside a write), read.py (contracts), work.py, ledger.py.
"""
