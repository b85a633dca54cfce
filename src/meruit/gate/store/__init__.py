"""Tables and SQL of agent runs and submissions.

- rows.py - the row of a run and its steps, as one transaction reads and writes them
- runs.py - writes of a run: queue, claim, record a step, pause, resume, cancel, end
- submissions.py - the write that accounts for a submission
- read.py - queries: runs, steps, submissions, due and orphaned runs, workers
"""
