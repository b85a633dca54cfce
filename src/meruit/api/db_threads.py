"""Reading the database beside the event loop, on threads that nothing slower may take."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from meruit.store.database import MAX_READERS

T = TypeVar("T")

# Not asyncio's own threads: criteria's code is tried there, and checkpoints are waited for.
_READERS = ThreadPoolExecutor(MAX_READERS, thread_name_prefix="meruit-reader")


async def run_in_reader_thread(ask: Callable[..., T], *arguments: Any) -> T:
    """The answer, asked on a thread for readers."""
    return await asyncio.get_running_loop().run_in_executor(_READERS, ask, *arguments)
