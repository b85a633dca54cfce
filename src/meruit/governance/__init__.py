"""Governance: decide whether an outcome is plausible before it is paid.

Read in this order:

- dossier.py - collect the facts about an outcome, without the work itself
- flags/ - the rules, one per file; each finds one kind of suspicion
- evaluate.py - apply the rules to a dossier
- history.py - the statistics and fingerprints that are remembered of each agent
- store.py - the tables of that history; records.py - what other packages may use of it
- binomial.py - the statistics that some rules use
- remote.py - ask a governance service over HTTP
- simulation/ - measure the rules on a simulated market
"""
