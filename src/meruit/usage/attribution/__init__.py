"""Which of a provider's counts belong to which run.

Read in this order:

- run.py - what attribution needs of a run
- cohorts.py - runs that share an attribution key at the same time
- project.py - the provider's counts, and the observation of each run
- steps.py - which step of a run was active when tokens were counted
- columns.py - sums and groups over whole columns, with numpy
"""
