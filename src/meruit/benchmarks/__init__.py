"""Benchmarks: published tasks, the runs of agents on them, and their scores.

Read in this order:

- published.py - publish benchmarks and find them
- service.py - the life of a run: create, start, complete, judge again, cancel
- environment.py - what the service needs of an environment
- run_reader.py - read runs and results
- rollouts.py - run an agent on every task; agent_process.py - its process
- evidence.py - criterion runs, and what callers may see; score.py - the score of a benchmark run
- lint.py, mutations.py - check a benchmark before it is used
- schema.py - the JSON Schema of benchmark files
- store/ - tables and transitions
"""
