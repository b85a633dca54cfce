"""Reads the YAML and JSON that people write, and reports every mistake at once with its line.

Read in this order:
    document.py             a file becomes values that know their lines
    yaml_events.py, json_events.py, tree.py  the parsers behind it
    authoring.py            criteria, work and benchmark files become validated models
    validation_messages.py  what pydantic finds wrong, in the author's words
    document_reader.py      reads a file field by field, where no model fits
    json_slices.py          a large JSON document is parsed in slices, so that other threads run
    csv_table.py, xlsx_table.py  tables for spreadsheets
    sanitize.py             values of plugins and agents become plain JSON
"""
