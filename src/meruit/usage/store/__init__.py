"""Tables and SQL of usage runs and observations.

- record_runs.py, record_observations.py, record_prices.py, acknowledge.py, observe_now.py - the writes
- validate.py, decide_again.py, publish.py - what the writes share
- rows.py - rows of runs within a transaction
- read.py, due.py, by_contract.py - queries
- invalidate.py - make runs due whose cohort has changed
- call_owners.py - which run owns a call
- accounts.py - leases, keys and stored responses
"""
