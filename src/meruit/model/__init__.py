"""Frozen data that several packages share. Imports nothing else of Meruit, except `errors`.

Read in this order:
    work.py, criterion.py, threshold.py, kinds.py  what is verified, and what success means
    evidence.py, vote.py, verdict.py               what was measured, what judges voted, what was decided
    outcome.py, governance.py                      a recorded outcome, and whether it is plausible
    contract.py, money.py                          published work, its terms and contracts, bills
    usage.py, metering.py, chat.py                 token usage, its runs and prices, chat messages
    task.py, assertion.py, task_run.py             benchmarks, what they assert, their runs
    environment.py                                 the state of the environment
    access.py, events.py, limits.py                roles, events, limits
    canonical.py, numbers.py, time.py, text.py, record.py  helpers
"""
