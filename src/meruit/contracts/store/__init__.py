"""Tables and SQL of contracts, work and the ledger."""
