"""A worker: drives queued runs of a store until it is stopped, alone on SQLite or beside others on Postgres."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from meruit.gate.runner.engine import AgentRoster
from meruit.gate.runner.local import InlineEngine, hold_worker_lock
from meruit.gate.runner.polling import PollingIntervals
from meruit.store.store import Store

CONCURRENCY = 16
"""Default number of runs that one worker drives at a time."""


async def run_worker(  # noqa: PLR0913 - each is a setting of its own
    store: Store,
    agents: AgentRoster,
    *,
    concurrency: int = CONCURRENCY,
    deps: Any = None,
    until_idle: bool = False,
    stopping: asyncio.Event | None = None,
    watch: Callable[[str, str], None] = lambda _run, _text: None,
    pace: PollingIntervals = PollingIntervals(),  # noqa: B008 - frozen
    total: int | None = None,
    only: str | None = None,
) -> None:
    """Drive queued runs of these agents until `stopping` is set; with `until_idle`, until nothing is left to do.

    With `only`, drive just that run and, for a team, its members. With `total`, all workers on Postgres with the same
    settings drive no more than so many runs at a time. Raises WorkerRefused where another process works on the same
    SQLite file, or where DBOS is missing, too old or in use.
    """
    stop = asyncio.Event() if stopping is None else stopping
    inline = InlineEngine(store, agents, concurrency=concurrency, deps=deps, watch=watch, pace=pace, only=only)
    if store.database.location.kind != "postgresql":
        with hold_worker_lock(store.database.location.folder):
            await inline.serve(stop, until_idle=until_idle)
    elif only is not None:
        # The shared queue could give it other runs.
        with silence_logger("sqlalchemy.pool"):
            await inline.serve(stop, until_idle=until_idle)
    else:
        # Slow to import, and part of an extra.
        from meruit.gate.runner.dbos import DbosEngine

        engine = DbosEngine(store, agents, concurrency=concurrency, total=total, deps=deps, watch=watch, pace=pace)
        with silence_logger("sqlalchemy.pool"):
            await engine.serve(stop, until_idle=until_idle)


@contextmanager
def silence_logger(name: str) -> Iterator[None]:
    """Silence a library whose errors the worker reports itself in one line."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
