"""Checks a bundle step by step.

Read in this order:

- entries.py - every step that needs nothing but the bundle
- signatures.py - who signed it, and that its entries are in the signed log
- history.py - what the log says of an outcome and its contract; outcome_history.py and contract_history.py read it
- blobs.py - its contents are those that the log commits to
- labels.py, usage.py - people's labels, and the tokens that were paid
- outcome.py - measure and judge the work again
- plausibility.py, settlement.py - apply governance and settlement again
- receipt.py - check a receipt
"""
