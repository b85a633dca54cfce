"""What authors wrote, given up on: nobody waits for it, and nothing of it is left in a log."""

import asyncio
import gc
from typing import Any

import pytest

from meruit.errors import OutOfTime
from meruit.gate.tools import await_in_task, run_in_thread


def complaints(scenario: Any) -> list[str]:
    """What the loop complains of while something happens on it."""
    said: list[str] = []
    # What earlier tests left behind need not be walked over again.
    gc.freeze()

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, about: said.append(about["message"]))
        await scenario()
        for _ in range(5):
            await asyncio.sleep(0)
        gc.collect()

    asyncio.run(watched())
    gc.collect()
    return said


@pytest.mark.parametrize("turns", [1, 2, 3])
@pytest.mark.parametrize("pause_s", [None, 0, 60])
def test_who_is_cancelled_leaves_no_complaint(turns: int, pause_s: float | None) -> None:
    async def author() -> None:
        if pause_s is not None:
            await asyncio.sleep(pause_s)
        raise ValueError("no")

    async def scenario() -> None:
        task = asyncio.create_task(await_in_task(author(), 5))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises((asyncio.CancelledError, ValueError)):
            await task

    assert complaints(scenario) == []


def test_a_stop_iteration_is_reported() -> None:
    async def author() -> None:
        raise GeneratorExit

    def blocking() -> None:
        raise GeneratorExit

    async def scenario() -> None:
        with pytest.raises(RuntimeError, match="it raised GeneratorExit"):
            await await_in_task(author(), 5)
        with pytest.raises(RuntimeError, match="it raised GeneratorExit"):
            await run_in_thread(blocking)
        with pytest.raises(OutOfTime):
            await await_in_task(asyncio.sleep(60), 0.01)

    assert complaints(scenario) == []
