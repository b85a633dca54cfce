"""Turns on the event loop: one of each caller in each round, in order."""

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from meruit.web.loop_turns import LoopTurns


async def run(turns: LoopTurns, callers: list[str]) -> list[tuple[int, str, int]]:
    """Each request takes one turn; returns the round, the caller and the number of each."""
    rounds, order = 0, list[tuple[int, str, int]]()
    ended = asyncio.Event()

    async def count_rounds() -> None:
        nonlocal rounds
        while not ended.is_set():
            rounds += 1
            await asyncio.sleep(0)

    async def serve(caller: str, number: int) -> None:
        await turns.take(caller)
        order.append((rounds, caller, number))

    counting = asyncio.create_task(count_rounds())
    await asyncio.gather(*(serve(caller, number) for number, caller in enumerate(callers)))
    ended.set()
    await counting
    return order


@given(st.lists(st.sampled_from("abc"), max_size=30))
def test_a_caller_has_one_turn_in_a_round(callers: list[str]) -> None:
    order = asyncio.run(run(LoopTurns(), callers))
    assert len(order) == len(callers)
    assert max(Counter((place, caller) for place, caller, _ in order).values(), default=0) <= 1
    for caller in "abc":
        numbers = [number for _, one, number in order if one == caller]
        assert numbers == sorted(numbers)


def test_others_do_not_wait_for_a_caller_with_many_requests() -> None:
    order = asyncio.run(run(LoopTurns(), ["noisy"] * 200 + ["quiet"]))
    assert [place for place, (_, caller, _) in enumerate(order) if caller == "quiet"] == [1]


def test_a_request_that_was_cancelled_holds_up_no_other() -> None:
    async def use() -> bool:
        turns = LoopTurns()
        await turns.take("a")
        gone, next_one = asyncio.create_task(turns.take("a")), asyncio.create_task(turns.take("a"))
        await asyncio.sleep(0)
        gone.cancel()
        await next_one
        for _ in range(3):
            await asyncio.sleep(0)
        return not turns._waiting

    assert asyncio.run(use())
