"""Records that last: SQLite and Postgres behind one contract."""
