"""Contracts: offer, award, settlement, ledger."""
