"""The database: tables, one transaction for callers that come together, evidence files and API keys.

Read in this order:
    location.py     where records are: a data directory, and perhaps a Postgres URL
    schema/         every table as SQLAlchemy makes it, one MetaData
    tables.py       the same tables by name, without SQLAlchemy; layout.py has their columns, `make docs` writes it
    database.py     connections to SQLite and Postgres
    driver.py       the writer's connection: text past SQLAlchemy, its queries on the same connection
    migrate.py      create, upgrade or refuse a database; migrations/ holds the layouts
    transaction.py  what one group of callers writes: rows, log entries, events
    rows.py         rows that a transaction knows already, by key
    lru.py          a bounded map, for caches
    recorder.py     the thread that writes; callers are answered once their write is durable
    idempotency.py  requests that may arrive twice
    log.py, log_tiles.py, checkpoint.py   the audit log in the database
    signed_rows.py  signatures on API keys and sessions, without which a row opens nothing
    access/         API keys, browser sessions, and what each key has sent
    blobs.py, store.py                    evidence, and all of it opened together
"""
