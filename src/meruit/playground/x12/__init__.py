"""X12 transactions for agents to act on.

Read in this order:

- app.py - a clearinghouse over HTTP
- acknowledge.py - validation, and the 999
- eligibility.py, claims.py, authorization.py - 270/271, 276/277 and 278
- write.py - writing X12
"""
