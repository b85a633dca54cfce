"""Results of other tools, one file each; registered with `importers.add`.

An importer recognises its files by content and yields what they say: facts of the run, cases with the origin's claims,
and notes on what could not be read. It judges nothing. Read one of them first:

- pydantic_evals.py, deepeval.py, promptfoo.py, inspect.py - reports of evaluation tools
- openai_evals.py, verifiers.py, harbor.py - logs of runs
- langfuse.py, phoenix.py, otel.py - exports of tracing tools
- rows.py - plain JSON Lines, CSV and Parquet
- support/ - what they share
"""
