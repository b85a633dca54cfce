"""Computes numbers from work. Each file is a family of metrics; a new file is found automatically.

latency.py, text.py, labels.py, content.py  latency, text, classification, content
exact_match.py, one_of.py, contains_reference.py, edit_similarity.py, number_close.py  answers and their references
json_equal.py, json_fields.py               documents and their references
tool_calls.py, trajectory.py                the tools that an agent called
embedding_similarity.py                     likeness in meaning, by an endpoint that the settings name
origin.py                                   what the origin of an imported case claims
judge.py                                    what model judges answer; judges/ asks them
custom.py                                   metrics that the author's own code computes
support/                                    BLEU, ROUGE, patterns, JSON Schema and the extractor interface
"""
