"""Workers that drive agent runs durably: in one process on SQLite, or in many on Postgres.

- worker.py - `run_worker`: choose the engine and work until stopped
- engine.py - claim a run, drive it, pause it, end it
- polling.py - find due runs, send heartbeats, stop
- local.py - the engine for one process
- dbos.py - the engine for many processes, on DBOS and Postgres
"""
