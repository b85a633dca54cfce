"""`meruit eval`, `meruit dataset` and `meruit import`: judge files of outputs, compare evaluations, list failing cases.

- group.py - the command and its subcommands
- filters.py - the filters of cases, as options
- run.py - `meruit eval run`
- browse.py - `meruit eval list`, `show` and `compare`
- pairwise.py - `meruit eval compare --pairwise`
- export.py - `meruit eval export`
- dataset.py - `meruit dataset`
- import_file.py - `meruit import`
- reports.py - what `meruit eval run` writes for a pipeline
- view.py - summaries, cases and comparisons as text
"""
