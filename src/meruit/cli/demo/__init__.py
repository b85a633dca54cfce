"""The stories of `meruit demo`: marketplace.py (contracts and payment), usage.py (token usage), stories/ (files)."""
