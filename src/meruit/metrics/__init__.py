"""Computes numbers from work. Each file is a family of metrics; a new file is found automatically.

latency.py, text.py, labels.py, content.py  the built-in families
custom.py                                   metrics that the author's own code computes
support/                                    BLEU, ROUGE, patterns, JSON Schema and the extractor interface
"""
