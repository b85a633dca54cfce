"""Threads for database reads, kept apart from slower work."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from meruit.store.database import MAX_READERS

T = TypeVar("T")

# Not asyncio's own threads: those run the code of criteria and wait for checkpoints.
_READERS = ThreadPoolExecutor(MAX_READERS, thread_name_prefix="meruit-reader")


async def run_in_reader_thread(query: Callable[..., T], *arguments: Any) -> T:
    """Run a read on one of the reader threads."""
    return await asyncio.get_running_loop().run_in_executor(_READERS, query, *arguments)
