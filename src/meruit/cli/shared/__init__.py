"""Work that several commands share.

Read in this order:

- open_store.py, engine.py - open the store; load settings, criteria and the engine
- list_options.py - the options of lists: a span of time, CSV
- record_outcome.py - verify and record
- contracts.py - act on contracts and print them
- usage_files.py - read and write metrics.json and runs_manifest.json
- load_agents.py, agent_run.py - load agents, run one, watch and print it
- benchmark_session.py, benchmark_runs.py, lint_benchmark.py - open, run and test benchmarks
- playground_files.py - playgrounds on the disk
"""
