"""Tables and SQL of usage runs and observations.

- write.py - the writes: record runs, observations, acknowledgements and prices
- rows.py - rows of runs within a transaction
- read.py, due.py, by_contract.py - queries
- invalidate.py - make runs due whose cohort has changed
- call_owners.py - which run owns a call
- accounts.py - leases, keys and stored responses
"""
