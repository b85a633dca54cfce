"""What all checks share.

Read in this order:
    assertion.py     the settings of every assertion
    compile.py       `state_check` registers a check; an assertion is compiled once and run on any work
    context.py       what a check reads: one source before and after the run
    selection.py     selecting, counting and scoring items
    batches.py       items that hold several documents
    file_formats.py  the formats of files
"""
