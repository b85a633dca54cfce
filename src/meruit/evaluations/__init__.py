"""Evaluations: named sets of cases judged by the same criteria, compared case by case.

Read in this order:
    service.py      Evaluator: begin, judge, record in segments, finish
    run.py          a whole run: cases from a file or a target, progress, going on after a death
    targets.py      what makes outputs: a function, a command, or an HTTP endpoint
    datafiles.py    cases from JSON Lines, CSV, Parquet and standard input
    segment.py      how up to 512 cases are kept as one blob
    summary.py      the numbers of one evaluation
    compare.py      two evaluations, paired case by case
    reader.py       Evaluations: find, list, cases, summaries, comparisons
    store/          tables and SQL
"""
