"""Request the providers' counts when runs are due, and record an observation of each run.

- reconciler.py - one round over all accounts
- account.py - one account, day by day
- response.py - the response of an account
"""
