"""Turns on the event loop: each caller does one thing that takes time in each round, so that rounds stay short."""

import asyncio
from collections import deque


class LoopTurns:
    """Callers that had their turn in this round, and who of each waits for the next one. Belongs to one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def take(self, caller: str) -> None:
        """Wait until nothing else of the caller runs in this round of the loop."""
        loop = asyncio.get_running_loop()
        queue = self._waiting.get(caller)
        if queue is None:
            self._waiting[caller] = deque()
            loop.call_soon(self._pass_on, caller)
            return
        turn = loop.create_future()
        queue.append(turn)
        await turn

    def _pass_on(self, caller: str) -> None:
        queue = self._waiting[caller]
        while queue:
            turn = queue.popleft()
            # A request that was cancelled waits no more.
            if not turn.done():
                turn.set_result(None)
                asyncio.get_running_loop().call_soon(self._pass_on, caller)
                return
        del self._waiting[caller]
