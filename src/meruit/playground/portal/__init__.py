"""A payer's web portal for agents to act on.

Read in this order:

- app.py - the pages and their forms
- pages.py - templates, sessions and errors; forms.py - what a browser sends
- payer.py - members, claims and prior authorisations, and how they are decided
"""
