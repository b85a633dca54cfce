"""Tokens: metered, reconciled with the provider, decided, priced."""
